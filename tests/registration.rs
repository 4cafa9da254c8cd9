// SPDX-License-Identifier: Apache-2.0
//! An agent gets its registration once, however many replicas ask and wherever one is killed; keeps it through rotation
//! and refusal; says that it lives; and stands by while Fleet's agent runs.
//!
//! Fleet's controller is played by a stand-in (`dev/harness/registrar.rs`) on a real API server.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::Cluster;
use flotilla::registration;
use futures::{StreamExt, TryStreamExt, future, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, Publisher};
use harness::fleet::{self, REGISTRATION_NAMESPACE};
use harness::stage::{Stage, settings};
use harness::units::Units;
use harness::world::{Downstream, World, get, ready};
use harness::{GENEROUS, Tools, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_is_got_once_and_kept() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = stories(&world).await;
    world.conclude(result)
}

async fn stories(world: &World) -> anyhow::Result<()> {
    let stage = Stage::new(world).await?;
    tokio::try_join!(
        timed(
            "a_flow_that_is_cut_anywhere_is_completed_and_asks_once",
            stage.a_flow_that_is_cut_anywhere_is_completed_and_asks_once()
        ),
        timed("ten_replicas_ask_once", stage.ten_replicas_ask_once()),
        timed(
            "refused_credentials_are_replaced_when_there_is_a_bootstrap_secret",
            stage.refused_credentials_are_replaced_when_there_is_a_bootstrap_secret()
        ),
        timed(
            "rotated_credentials_are_tried_and_then_used_without_a_restart",
            stage.rotated_credentials_are_tried_and_then_used_without_a_restart()
        ),
        timed(
            "fleets_agent_is_waited_for_and_then_kept_waiting",
            stage.fleets_agent_is_waited_for_and_then_kept_waiting()
        ),
    )?;
    Ok(())
}

/// Tells how long a story takes: together they are to stay below a minute on a quiet machine.
async fn timed(name: &str, story: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let start = Instant::now();
    story.await?;
    eprintln!("{name}: {:?}", start.elapsed());
    Ok(())
}

impl Stage<'_> {
    async fn a_flow_that_is_cut_anywhere_is_completed_and_asks_once(&self) -> anyhow::Result<()> {
        for old in [Old::None, Old::Refused, Old::Immutable] {
            // Through a stream, as below: polled when it was woken, and not whenever another story was.
            let mut whole =
                stream::iter([usize::MAX]).map(|all| self.cut_after(all, old)).buffer_unordered(1);
            let whole = whole.try_next().await?.flatten().context("a flow without a cut ends")?;
            eprintln!("a whole flow takes {whole} polls: {old:?}");
            ensure!(whole > 10, "{whole} polls are too few to be a flow");
            // Where exactly a poll falls is another place each time: sixty of them leave no step out.
            stream::iter((0..whole).step_by(whole.div_ceil(60)))
                .map(|polls| self.cut_after(polls, old))
                .buffer_unordered(10)
                .try_collect::<Vec<_>>()
                .await?;
        }
        Ok(())
    }

    /// Drops a flow after so many polls, as a kill would, and runs it again. Returns how many it took if it ended.
    async fn cut_after(&self, polls: usize, old: Old) -> anyhow::Result<Option<usize>> {
        let namespace = format!("cut-{old:?}-{polls}").to_lowercase();
        self.offer(&namespace, "cut").await?;
        if old != Old::None {
            let url = self.world.upstream.url();
            self.useless_secret(&namespace, &url, old == Old::Immutable).await?;
        }
        let settings = settings(&namespace);
        let flow = registration::obtain(&self.local, &settings);
        let ended = Cut { flow: Box::pin(flow), left: polls, used: 0 }.await;
        if old == Old::Refused {
            let secret = self.secret(&namespace, registration::SECRET).await?;
            ensure!(secret.is_some(), "{namespace}: the old Secret is lost");
        }
        registration::obtain(&self.local, &settings).await.with_context(|| namespace.clone())?;
        self.asked_once(&namespace).await?;
        ended.map(|(ended, used)| ended.map(|_| used)).transpose().map_err(Into::into)
    }

    async fn ten_replicas_ask_once(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "ten";
        self.offer(NAMESPACE, "ten").await?;
        let settings = settings(NAMESPACE);
        let all = (0..10).map(|_| registration::obtain(&self.local, &settings));
        let all = future::try_join_all(all).await?;
        ensure!(all.iter().all(|got| got.fingerprint == all[0].fingerprint), "they must share it");
        self.asked_once(NAMESPACE).await?;
        let created = self.created_with(NAMESPACE).await?;
        ensure!(created == 1, "{created} requests of ten replicas");
        Ok(())
    }

    async fn refused_credentials_are_replaced_when_there_is_a_bootstrap_secret(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "refused";
        self.offer(NAMESPACE, "refused").await?;
        let mut replicas = (1..=3)
            .map(|number| self.replica(&format!("refused-{number}"), NAMESPACE))
            .collect::<anyhow::Result<Vec<_>>>()?;
        for replica in &mut replicas {
            ready(replica).await?;
        }
        self.asked_once(NAMESPACE).await?;
        let (publisher, units) = self.cluster_of(NAMESPACE).await?;
        publisher.publish(&[Bundle::config_maps("first", "garden", 2, "v1")]).await?;
        units.until_ready(["first"], GENEROUS).await?;

        self.the_cluster_is_seen_with_and_without_a_status(NAMESPACE).await?;
        self.fleets_own_agent_is_refused_in_words(NAMESPACE, &publisher, &units).await?;

        // The account goes, and with it the token; nothing is there to get another one with.
        let before = self.registrar.requests(NAMESPACE).await?[0].clone();
        let accounts: Api<ServiceAccount> =
            Api::namespaced(self.upstream.clone(), publisher_namespace(&publisher));
        let account = accounts.list(&ListParams::default()).await?.items[0].name_any();
        accounts.delete(&account, &DeleteParams::default()).await?;
        const REFUSED: &str = "there is no Secret refused/fleet-agent-bootstrap";
        until("the sign of life to be refused", GENEROUS, async || {
            for replica in &replicas {
                let (_, told) = get(&format!("{}/readyz?verbose", replica.probe_url())).await?;
                if told.contains(REFUSED) {
                    return Ok(Some(()));
                }
            }
            Ok(None)
        })
        .await?;
        // The others ask for nothing until their watch ends, after a minute, or until there is work.
        publisher.publish(&[Bundle::config_maps("second", "garden", 2, "v1")]).await?;
        for replica in &replicas {
            self.says(replica, REFUSED).await?;
        }
        self.event(NAMESPACE, "CredentialsRefused").await?;
        let old = self.secret(NAMESPACE, registration::SECRET).await?;
        ensure!(old.is_some(), "the old Secret must not be lost before a new one works");

        self.offer(NAMESPACE, "refused").await?;
        units.until_ready(["second"], GENEROUS).await?;
        for replica in &mut replicas {
            ready(replica).await?;
        }
        self.asked_once(NAMESPACE).await?;
        let after = self.registrar.requests(NAMESPACE).await?;
        ensure!(after[0].name_any() != before.name_any(), "it takes another request");
        let created = self.created_with(NAMESPACE).await?;
        ensure!(created == 2, "{created} requests for two registrations");
        self.end(replicas).await
    }

    /// The sign of life comes, and comes again into a Cluster that has lost its status.
    async fn the_cluster_is_seen_with_and_without_a_status(&self, client_id: &str) -> anyhow::Result<()> {
        let clusters: Api<Cluster> = Api::namespaced(self.upstream.clone(), REGISTRATION_NAMESPACE);
        let name = self.cluster_name(client_id).await?;
        let seen = async || {
            let status = clusters.get(&name).await?.status.unwrap_or_default();
            Ok(status.agent.filter(|agent| agent.last_seen.is_some()).map(|agent| (agent, status.namespace)))
        };
        let (agent, namespace) = until("the Cluster to be seen", GENEROUS, seen).await?;
        ensure!(agent.namespace == client_id, "seen in {}", agent.namespace);
        ensure!(!namespace.is_empty(), "the rest of the status must stay");
        let without = json!({"status": null});
        clusters.patch_status(&name, &PatchParams::default(), &Patch::Merge(&without)).await?;
        let (_, namespace) = until("the Cluster to be seen again", GENEROUS, seen).await?;
        ensure!(namespace.is_empty(), "nothing but the sign of life is the agent's to write");
        let back = json!({"status": {"namespace": fleet::cluster_namespace(REGISTRATION_NAMESPACE, &name)}});
        clusters.patch_status(&name, &PatchParams::default(), &Patch::Merge(&back)).await?;
        Ok(())
    }

    async fn fleets_own_agent_is_refused_in_words(
        &self,
        namespace: &str,
        publisher: &Publisher,
        units: &Units,
    ) -> anyhow::Result<()> {
        publisher.publish(&[Bundle::config_maps("fleet-agent-garden", "garden", 1, "v1")]).await?;
        let cluster = self.cluster_name(namespace).await?;
        let label = format!(
            "Label Cluster {REGISTRATION_NAMESPACE}/{cluster} with fleet.cattle.io/non-managed-agent=true"
        );
        units
            .until("the refusal to be told", GENEROUS, |live| {
                let unit = live.get("fleet-agent-garden")?;
                unit.condition("Deployed")
                    .filter(|told| told.status == "False" && told.message.contains(&label))
                    .map(drop)
            })
            .await?;
        self.event(namespace, "AgentBundleRefused").await?;
        ensure!(
            !units.claims().iter().any(|claim| claim.unit == "fleet-agent-garden"),
            "it must not be claimed"
        );
        publisher.withdraw("fleet-agent-garden").await
    }

    async fn rotated_credentials_are_tried_and_then_used_without_a_restart(&self) -> anyhow::Result<()> {
        let world = self.world;
        let namespace = world.registration.agent_namespace.as_str();
        let mut replica = world.ready_replica("rotated", 4).await?;
        let (publisher, units) = (world.publisher().await?, world.units().await?);
        let at = world.registration.cluster_namespace.as_str();

        self.rotate(namespace, &world.upstream.token_kubeconfig("nonsense", at)).await?;
        self.says(&replica, "stay in use").await?;
        publisher.publish(&[Bundle::config_maps("under-old", "orchard", 2, "v1")]).await?;
        units.until_ready(["under-old"], GENEROUS).await?;

        let token = self.second_account(at).await?;
        self.rotate(namespace, &world.upstream.token_kubeconfig(&token, at)).await?;
        ready(&mut replica).await?;
        self.event(namespace, "CredentialsChanged").await?;
        // The old ones are dead from here on.
        let accounts: Api<ServiceAccount> = Api::namespaced(self.upstream.clone(), at);
        accounts.delete("request-shop", &DeleteParams::default()).await?;
        publisher.publish(&[Bundle::config_maps("under-new", "orchard", 2, "v1")]).await?;
        units.until_ready(["under-new"], GENEROUS).await?;
        ensure!(replica.exited()?.is_none(), "the same process must go on");
        self.end(vec![replica]).await
    }

    async fn fleets_agent_is_waited_for_and_then_kept_waiting(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "standby";
        self.offer(NAMESPACE, "standby").await?;
        let leases: Api<Lease> = Api::namespaced(self.local.clone(), NAMESPACE);
        let fleets = self.fleets_agent(NAMESPACE);
        until("Fleet's agent to lead", GENEROUS, async || {
            leases.get_opt("fleet-agent").await.map_err(Into::into)
        })
        .await?;
        let mut replicas = vec![self.replica("standby-1", NAMESPACE)?, self.replica("standby-2", NAMESPACE)?];
        for replica in &replicas {
            self.says(replica, "pod fleet-agent-5d9c renews Lease standby/fleet-agent").await?;
        }
        let (publisher, units) = self.cluster_of(NAMESPACE).await?;
        publisher.publish(&[Bundle::config_maps("later", "meadow", 2, "v1")]).await?;
        for replica in &replicas {
            // A sight of the unit, and a while of Fleet's agent's life after it.
            self.says(replica, "[+]watch ok").await?;
        }
        let version = leases.get("fleet-agent").await?.resource_version();
        until("Fleet's agent to renew", GENEROUS, async || {
            Ok((leases.get("fleet-agent").await?.resource_version() != version).then_some(()))
        })
        .await?;
        ensure!(units.claims().is_empty(), "nothing may be claimed beside Fleet's agent");

        fleets.abort();
        units.until_ready(["later"], GENEROUS).await?;
        let first = self.lease_holder(NAMESPACE, "").await?;
        for replica in &mut replicas {
            ready(replica).await?;
        }
        // One goes, and the other has it.
        let index = replicas.iter().position(|replica| first.ends_with(replica.name())).context("who?")?;
        let mut leaving = replicas.swap_remove(index);
        leaving.term()?;
        let second = self.lease_holder(NAMESPACE, &first).await?;
        ensure!(second.ends_with(replicas[0].name()), "{second} has the Lease");
        leaving.wait().await?;
        self.end(replicas).await
    }

    /// Fleet's agent, as far as its Lease tells.
    fn fleets_agent(&self, namespace: &str) -> tokio::task::JoinHandle<()> {
        let leases: Api<Lease> = Api::namespaced(self.local.clone(), namespace);
        tokio::spawn(async move {
            for number in 0u32.. {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": "fleet-agent"},
                    "spec": {"holderIdentity": "fleet-agent-5d9c", "leaseDurationSeconds": 6,
                        "leaseTransitions": number}});
                let params = PatchParams::apply("fleetagent").force();
                let _ = leases.patch("fleet-agent", &params, &Patch::Apply(&lease)).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
    }
}

fn publisher_namespace(publisher: &Publisher) -> &str {
    publisher.units().namespace().unwrap_or_default()
}

/// What was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    /// No Secret `fleet-agent`.
    None,
    /// One whose credentials are refused.
    Refused,
    /// The same, and it cannot be changed.
    Immutable,
}

/// A future that is dropped after so many polls.
struct Cut<F> {
    flow: Pin<Box<F>>,
    left: usize,
    used: usize,
}

impl<F: Future<Output = Result<T, E>>, T, E> Future for Cut<F> {
    type Output = Option<(Result<T, E>, usize)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.used += 1;
        let used = self.used;
        self.flow.as_mut().poll(context).map(|result| Some((result, used)))
    }
}
