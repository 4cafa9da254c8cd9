// SPDX-License-Identifier: Apache-2.0
//! A registered agent goes on: when the replica with the duties dies, when its Secret changes in the middle of work or
//! for another namespace, when its check-in fails; and it takes nothing of Fleet's own agent away.
//!
//! Fleet's controller is played by a stand-in (`dev/harness/registrar.rs`) on a real API server.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use flotilla::api::{Cluster, keys, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, NEVER_READY, Publisher};
use harness::fleet::REGISTRATION_NAMESPACE;
use harness::records::Records;
use harness::replica::Replica;
use harness::stage::Stage;
use harness::units::{Claim, End, Units};
use harness::world::{Downstream, World, collected, counter, ready, settled_audit};
use harness::{AuditEntry, GENEROUS, Tools, until};

/// A replica is dead after a short silence, and what checks in does so because the duty came to it, not the hour.
const DUTIES: &[&str] = &["--session-ttl=6s", "--session-renew=1s", "--checkin-interval=1h"];
const SEEN: &str = r#"flotilla_check_ins_total{outcome="written"}"#;
const FAILED: &str = r#"flotilla_check_ins_total{outcome="failed"}"#;
/// Objects enough for credentials to change in the middle of them.
const OBJECTS: usize = 400;

#[tokio::test(flavor = "multi_thread")]
async fn a_registered_agent_goes_on_whatever_becomes_of_its_parts() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = stories(&world).await;
    world.conclude(result)
}

async fn stories(world: &World) -> anyhow::Result<()> {
    let stage = Stage::new(world).await?;
    tokio::try_join!(
        stage.duties_are_taken_over_from_the_dead(),
        stage.credentials_change_in_the_middle_of_deployments(),
        stage.another_cluster_namespace_ends_the_process_in_order(),
        stage.a_failing_check_in_stops_no_work(),
        stage.what_fleets_own_agent_left_stays(),
        stage.at_rest_only_leases_and_signs_of_life_are_written(),
    )?;
    Ok(())
}

impl Stage<'_> {
    async fn duties_are_taken_over_from_the_dead(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "duties";
        let mut replicas = self.registered(NAMESPACE, 3, DUTIES).await?;
        let (publisher, units) = self.cluster_of(NAMESPACE).await?;
        let holder = self.lease_holder(NAMESPACE, "").await?;

        let index = until("a replica to check in", GENEROUS, async || {
            for (index, replica) in replicas.iter().enumerate() {
                if counter(replica, SEEN).await? > 0 {
                    return Ok(Some(index));
                }
            }
            Ok(None)
        })
        .await?;
        let before = self.check_ins(NAMESPACE).await?;
        let mut dead = replicas.swap_remove(index);
        dead.kill()?;
        let killed = Instant::now();
        publisher.publish(&[Bundle::config_maps("without-it", "duty", 2, "v1")]).await?;
        until("a peer to check in", GENEROUS, async || {
            Ok((self.check_ins(NAMESPACE).await? > before).then_some(()))
        })
        .await?;
        eprintln!("a peer checked in {:?} after the death of the one with the duty", killed.elapsed());
        units.until_ready(["without-it"], GENEROUS).await?;

        let mut killed = killed;
        if !holder.ends_with(dead.name()) {
            let holder = self.lease_holder(NAMESPACE, "").await?;
            let index = replicas.iter().position(|peer| holder.ends_with(peer.name())).context("who?")?;
            replicas.swap_remove(index).kill()?;
            killed = Instant::now();
        }
        publisher.publish(&[Bundle::config_maps("in-between", "duty", 2, "v1")]).await?;
        units.until_ready(["in-between"], GENEROUS).await?;
        let next = self.lease_holder(NAMESPACE, &holder).await?;
        eprintln!("Lease fleet-agent was taken over {:?} after its holder's death", killed.elapsed());
        ensure!(replicas.iter().any(|peer| next.ends_with(peer.name())), "{next} has the Lease");
        for replica in &mut replicas {
            ready(replica).await?;
        }
        self.end(replicas).await
    }

    /// Signs of life ever written to the Cluster's status.
    async fn check_ins(&self, client_id: &str) -> anyhow::Result<usize> {
        let name = self.cluster_name(client_id).await?;
        let entries = settled_audit(&self.world.upstream, &self.upstream).await?;
        let its = entries.iter().filter(|entry| {
            entry.resource == "clusters" && entry.subresource == "status" && entry.name == name
        });
        Ok(its.filter(|entry| entry.code == 200 && entry.user.contains("serviceaccount")).count())
    }

    async fn credentials_change_in_the_middle_of_deployments(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "rotated";
        let mut replicas = self.registered(NAMESPACE, 2, &[]).await?;
        let (publisher, units) = self.cluster_of(NAMESPACE).await?;
        let records = Records::follow(self.local.clone()).await?;
        let at = namespace_of(&publisher);

        let waits =
            Bundle::new("waits", "orchard").file("manifests/deployment.yaml", NEVER_READY).with(|options| {
                options.helm.get_or_insert_default().timeout_seconds = 300;
            });
        publisher.publish(&[waits]).await?;
        units
            .until("the wait", GENEROUS, |live| {
                (live.get("waits")?.condition("InProgress")?.reason == "Waiting").then_some(())
            })
            .await?;
        publisher.publish(&[Bundle::config_maps("large", "field", OBJECTS, "v1")]).await?;
        units.until_claim("the large one to be claimed", GENEROUS, |claim| claim.unit == "large").await?;

        let accounts: Api<ServiceAccount> = Api::namespaced(self.upstream.clone(), at);
        let first = accounts.list(&ListParams::default()).await?.items[0].name_any();
        let token = self.second_account(at).await?;
        self.rotate(NAMESPACE, &self.world.upstream.token_kubeconfig(&token, at)).await?;
        self.exchanged(&replicas).await?;
        // The old credentials are dead from here on, and one deployment is still under way.
        accounts.delete(&first, &DeleteParams::default()).await?;
        ensure!(open(&units, "waits").is_some(), "the wait should go on");
        self.make_ready("orchard", "idle").await?;
        units.until_ready(["waits", "large"], GENEROUS).await?;
        for (unit, namespace) in [("waits", "orchard"), ("large", "field")] {
            let claims: Vec<Claim> = units.claims().into_iter().filter(|claim| claim.unit == unit).collect();
            ensure!(claims.len() == 1, "{unit}: {claims:?}");
            ensure!(claims[0].end == Some(End::Finished), "{unit}: {claims:?}");
            let revisions = records.of(namespace, unit);
            ensure!(revisions.len() == 1, "{unit} was deployed again: {revisions:?}");
        }
        for replica in &mut replicas {
            ready(replica).await?;
        }
        self.end(replicas).await
    }

    /// Each of them uses what the Secret says now.
    async fn exchanged(&self, replicas: &[Replica]) -> anyhow::Result<()> {
        for replica in replicas {
            until("the new credentials to be in use", GENEROUS, async || {
                Ok(replica.log().contains("new credentials are in use").then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// What a controller would say of a Deployment whose pods run.
    async fn make_ready(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.local.clone(), namespace);
        let generation = deployments.get(name).await?.metadata.generation;
        let status = json!({"status": {
            "observedGeneration": generation, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
            "availableReplicas": 1,
            "conditions": [{"type": "Available", "status": "True", "reason": "Test", "message": ""},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "message": ""}],
        }});
        deployments.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        Ok(())
    }

    async fn another_cluster_namespace_ends_the_process_in_order(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "moved";
        let mut replicas = self.registered(NAMESPACE, 1, &[]).await?;
        let (publisher, units) = self.cluster_of(NAMESPACE).await?;
        publisher.publish(&[Bundle::config_maps("before", "old", OBJECTS, "v1")]).await?;
        units.until_claim("work to be under way", GENEROUS, |claim| claim.unit == "before").await?;

        // The next one is registered as any other; its Secret is what the first is given.
        self.offer("moved-to", "moved-to").await?;
        flotilla::registration::obtain(&self.local, &harness::stage::settings("moved-to")).await?;
        let next = self.secret("moved-to", flotilla::registration::SECRET).await?.context("no Secret")?;
        let secrets: Api<Secret> = Api::namespaced(self.local.clone(), NAMESPACE);
        let patch = json!({"data": next.data});
        secrets.patch("fleet-agent", &PatchParams::default(), &Patch::Merge(&patch)).await?;

        let mut replica = replicas.remove(0);
        let status = tokio::time::timeout(GENEROUS, replica.wait()).await.context("it goes on")??;
        ensure!(!status.success(), "a start anew is asked for by an error");
        let log = replica.log();
        ensure!(log.contains("registered for another cluster namespace"), "the log does not say why: {log}");
        // It ended what it had begun; nobody else is there.
        units.until_ready(["before"], GENEROUS).await?;
        ensure!(units.claims().len() == 1, "{:?}", units.claims());
        ensure!(units.claims().iter().all(|claim| claim.lost == 0), "{:?}", units.claims());

        let mut again = self.replica("moved-again", NAMESPACE)?;
        ready(&mut again).await?;
        let (publisher, units) = self.cluster_of("moved-to").await?;
        publisher.publish(&[Bundle::config_maps("after", "new", 2, "v1")]).await?;
        units.until_ready(["after"], GENEROUS).await?;
        self.end(vec![again]).await
    }

    async fn a_failing_check_in_stops_no_work(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "unseen";
        let mut replicas = self.registered(NAMESPACE, 1, &["--checkin-interval=1s"]).await?;
        let (publisher, units) = self.cluster_of(NAMESPACE).await?;
        self.says(&replicas[0], "[+]cluster-status ok").await?;
        let request = self.registrar.requests(NAMESPACE).await?[0].name_any();
        let bindings: Api<RoleBinding> = Api::namespaced(self.upstream.clone(), REGISTRATION_NAMESPACE);
        let mut binding = bindings.get(&request).await?;
        bindings.delete(&request, &DeleteParams::default()).await?;

        self.says(&replicas[0], "[-]cluster-status failed: ").await?;
        ensure!(counter(&replicas[0], FAILED).await? > 0);
        publisher.publish(&[Bundle::config_maps("all-the-same", "meadow", 2, "v1")]).await?;
        units.until_ready(["all-the-same"], GENEROUS).await?;
        // Its rights on bundles are what its credentials are judged by.
        self.says(&replicas[0], "[+]registration ok").await?;
        self.says(&replicas[0], "[+]watch ok").await?;

        binding.metadata.resource_version = None;
        binding.metadata.uid = None;
        bindings.create(&PostParams::default(), &binding).await?;
        self.says(&replicas[0], "[+]cluster-status ok").await?;
        let clusters: Api<Cluster> = Api::namespaced(self.upstream.clone(), REGISTRATION_NAMESPACE);
        let cluster = clusters.get(&self.cluster_name(NAMESPACE).await?).await?;
        ensure!(cluster.status.and_then(|status| status.agent).is_some(), "it was never seen");
        ready(&mut replicas[0]).await?;
        self.end(replicas).await
    }

    /// The agent bundle's BundleDeployment comes and goes, and what it once deployed is not touched: neither when its
    /// deletion is seen, nor by the collector, which finds a release without a BundleDeployment.
    async fn what_fleets_own_agent_left_stays(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "theirs";
        const MODEL: &str = "a-fleet-agent-garden";
        const AGENT: &str = "fleet-agent-garden";
        let flags = &["--absence-grace=1s", "--mass-absence-grace=1s"];
        self.offer(NAMESPACE, NAMESPACE).await?;
        let config = json!({"clientID": NAMESPACE, "labels": {"env": "test"},
            "garbageCollectionInterval": "1s"});
        let settings: Api<ConfigMap> = Api::namespaced(self.local.clone(), NAMESPACE);
        let patch = json!({"data": {"config": config.to_string()}});
        settings.patch("fleet-agent", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let mut replica = self.replica_with("theirs-1", NAMESPACE, flags)?;
        ready(&mut replica).await?;
        let (publisher, units) = self.cluster_of(NAMESPACE).await?;
        publisher.publish(&[Bundle::config_maps(MODEL, "garden", 1, "v1")]).await?;
        units.until_ready([MODEL], GENEROUS).await?;
        let left = self.renamed(MODEL, AGENT, "garden").await?;

        publisher.publish(&[Bundle::config_maps(AGENT, "garden", 1, "v1")]).await?;
        units
            .until("the refusal", GENEROUS, |live| {
                live.get(AGENT)?.condition("Deployed").filter(|told| told.status == "False").map(drop)
            })
            .await?;
        publisher.withdraw(AGENT).await?;
        // What the agent did deploy goes, by the same replica, later.
        publisher.withdraw(MODEL).await?;
        let maps: Api<ConfigMap> = Api::namespaced(self.local.clone(), "garden");
        until("the other bundle to be removed", GENEROUS, async || {
            Ok(maps.get_opt(&format!("{MODEL}-0")).await?.is_none().then_some(()))
        })
        .await?;
        collected(&replica, 3).await?;
        let secrets: Api<Secret> = Api::namespaced(self.local.clone(), "garden");
        let record = secrets.get(&left.record.name_any()).await?;
        ensure!(record.resource_version() == left.record.resource_version(), "its record was changed");
        let map = maps.get(&left.map.name_any()).await?;
        ensure!(map.resource_version() == left.map.resource_version(), "its object was changed");
        self.end(vec![replica]).await
    }

    /// A release and its one object as if it had been another bundle's.
    async fn renamed(&self, from: &str, to: &str, namespace: &str) -> anyhow::Result<Left> {
        let secrets: Api<Secret> = Api::namespaced(self.local.clone(), namespace);
        let all = secrets.list(&ListParams::default().labels(&format!("owner=helm,name={from}"))).await?;
        let mut record = all.items.into_iter().next().context("no record")?;
        let packed = record.data.as_ref().and_then(|data| data.get("release")).context("an empty record")?;
        let mut text = String::new();
        GzDecoder::new(STANDARD.decode(&packed.0)?.as_slice()).read_to_string(&mut text)?;
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(renamed(&text, from, to).as_bytes())?;
        let packed = STANDARD.encode(packed.finish()?).into_bytes();
        record.data = Some([("release".to_owned(), ByteString(packed))].into());
        let record: Secret = fresh(record, from, to)?;
        let maps: Api<ConfigMap> = Api::namespaced(self.local.clone(), namespace);
        let map: ConfigMap = fresh(maps.get(&format!("{from}-0")).await?, from, to)?;
        Ok(Left {
            record: secrets.create(&PostParams::default(), &record).await?,
            map: maps.create(&PostParams::default(), &map).await?,
        })
    }

    /// Each replica renews its session's Lease, one of them Lease `fleet-agent`, and one says that the cluster lives.
    async fn at_rest_only_leases_and_signs_of_life_are_written(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "rest";
        let replicas = self.registered(NAMESPACE, 2, &["--checkin-interval=1s"]).await?;
        let (publisher, units) = self.cluster_of(NAMESPACE).await?;
        publisher.publish(&[Bundle::config_maps("settled", "pasture", 3, "v1")]).await?;
        units.until_ready(["settled"], GENEROUS).await?;
        // What follows a deployment is over by then.
        self.renewed(NAMESPACE).await?;
        let before = self.written(NAMESPACE, "pasture", namespace_of(&publisher)).await?.len();
        self.renewed(NAMESPACE).await?;
        self.renewed(NAMESPACE).await?;
        let written = self.written(NAMESPACE, "pasture", namespace_of(&publisher)).await?;
        let kinds: BTreeSet<&str> = written[before..].iter().map(|(resource, _)| &**resource).collect();
        ensure!(kinds == BTreeSet::from(["clusters/status", "leases/"]), "{:?}", &written[before..]);
        let leases = written[before..].iter().filter(|(resource, _)| resource == "leases/");
        let leases: BTreeSet<&str> = leases.map(|(_, name)| &**name).collect();
        ensure!(leases.len() == 3 && leases.contains("fleet-agent"), "{leases:?}");
        self.end(replicas).await
    }

    /// Waits for the next renewal of Lease `fleet-agent`.
    async fn renewed(&self, namespace: &str) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.local.clone(), namespace);
        let version = leases.get("fleet-agent").await?.resource_version();
        until("Lease fleet-agent to be renewed", GENEROUS, async || {
            Ok((leases.get("fleet-agent").await?.resource_version() != version).then_some(()))
        })
        .await
    }

    /// What the agent in `home` wrote, or tried to: there, in `namespace`, and upstream. Resource and name, in order.
    async fn written(
        &self,
        home: &str,
        namespace: &str,
        cluster_namespace: &str,
    ) -> anyhow::Result<Vec<(String, String)>> {
        let (world, asked) = (self.world, format!("system:serviceaccount:{cluster_namespace}:"));
        let mut entries = settled_audit(&world.upstream, &self.upstream).await?;
        entries.retain(|entry| entry.user.starts_with(&asked));
        let mut local = settled_audit(&world.downstream, &self.local).await?;
        local.retain(|entry| entry.user == world.registration.downstream_user);
        local.retain(|entry| [home, namespace].contains(&&*entry.namespace) || entry.name == namespace);
        entries.extend(local);
        entries.retain(AuditEntry::is_write);
        entries.sort_by_key(|entry| entry.completed);
        let told = |entry: AuditEntry| (format!("{}/{}", entry.resource, entry.subresource), entry.name);
        Ok(entries.into_iter().map(told).collect())
    }

    /// Replicas of a cluster that was registered by them.
    async fn registered(
        &self,
        namespace: &str,
        count: usize,
        flags: &[&str],
    ) -> anyhow::Result<Vec<Replica>> {
        self.offer(namespace, namespace).await?;
        let mut replicas = (1..=count)
            .map(|number| self.replica_with(&format!("{namespace}-{number}"), namespace, flags))
            .collect::<anyhow::Result<Vec<_>>>()?;
        for replica in &mut replicas {
            ready(replica).await?;
        }
        Ok(replicas)
    }
}

/// What Fleet's agent left of its own bundle.
struct Left {
    record: Secret,
    map: ConfigMap,
}

/// Bundle names and set ids replaced.
fn renamed(text: &str, from: &str, to: &str) -> String {
    let (old, new) = (names::set_id(from, ""), names::set_id(to, ""));
    let hash = text.replace(&names::object_hash(&old), &names::object_hash(&new));
    hash.replace(&old, &new).replace(from, to)
}

/// An object to be created under another name, in all it says but its data.
fn fresh<K>(object: K, from: &str, to: &str) -> anyhow::Result<K>
where
    K: ResourceExt + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut object = object;
    object.meta_mut().resource_version = None;
    object.meta_mut().uid = None;
    object.meta_mut().creation_timestamp = None;
    object.meta_mut().managed_fields = None;
    // Fleet's agent makes no such stamp.
    object.annotations_mut().remove(keys::EPOCH_ANNOTATION);
    // A record's payload is packed twice and has no such text.
    Ok(serde_json::from_str(&renamed(&serde_json::to_string(&object)?, from, to))?)
}

fn namespace_of(publisher: &Publisher) -> &str {
    publisher.units().namespace().unwrap_or_default()
}

fn open(units: &Units, unit: &str) -> Option<Claim> {
    units.claims().into_iter().find(|claim| claim.unit == unit && claim.end.is_none())
}
