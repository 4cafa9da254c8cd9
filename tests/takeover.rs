// SPDX-License-Identifier: Apache-2.0
//! Claims of a holder that is known to be dead are taken over at once, those of one that is stuck after their budget,
//! and no others.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::{BundleDeployment, keys};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, Publisher};
use harness::units::Units;
use harness::world::{Downstream, World, get};
use harness::{GENEROUS, Tools};

const NAMESPACE: &str = "quay";
/// From a proof to the takeover.
const AT_ONCE: Duration = Duration::from_secs(15);
/// Far beyond every bound of this test: silence explains nothing here.
const ENDLESS_TTL: &str = "--session-ttl=10m";

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_are_replaced_at_once_and_the_stuck_after_their_budget() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let stage = Stage {
        world,
        units: world.units().await?,
        publisher: world.publisher().await?,
        downstream: world.downstream.admin().await?,
    };
    stage.the_end_of_a_pod_frees_its_claims().await?;
    stage.a_stuck_holder_keeps_its_claim_for_budget_and_margin().await
}

struct Stage<'a> {
    world: &'a World,
    units: Units,
    publisher: Publisher,
    downstream: Client,
}

impl Stage<'_> {
    async fn the_end_of_a_pod_frees_its_claims(&self) -> anyhow::Result<()> {
        let pods: Api<Pod> =
            Api::namespaced(self.downstream.clone(), &self.world.registration.agent_namespace);
        let terminated = json!({"terminated": {"exitCode": 137}});
        let looping = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let ends = [
            ("crashed", Some(json!({"phase": "Running", "containerStatuses": [container(&terminated, 0)]}))),
            ("looping", Some(json!({"phase": "Running", "containerStatuses": [container(&looping, 2)]}))),
            ("failed", Some(json!({"phase": "Failed"}))),
            ("deleted", None),
        ];
        for (name, _) in &ends {
            let uid = self.pod(&pods, name).await?;
            self.lease(name, Some(&uid)).await?;
            self.claimed(name, 600).await?;
        }
        let mut replica = self.world.ready_replica_with("survivor", 4, &[ENDLESS_TTL]).await?;
        self.nothing_happens("while-they-run", &ends.each_ref().map(|(name, _)| *name)).await?;
        // On its way out, but still running for as long as it is given.
        pods.delete("deleted", &DeleteParams::default().grace_period(600)).await?;
        let leaving = pods.get("deleted").await?;
        ensure!(leaving.metadata.deletion_timestamp.is_some(), "the Pod should be terminating");
        self.nothing_happens("while-one-leaves", &ends.each_ref().map(|(name, _)| *name)).await?;

        for (index, (name, status)) in ends.iter().enumerate() {
            let ended = Instant::now();
            match status {
                Some(status) => status_of(&pods, name, status).await?,
                None => drop(pods.delete(name, &DeleteParams::default().grace_period(0)).await?),
            }
            let next = self.taken_over(name, "survivor").await?;
            let took = next.seen - ended;
            eprintln!("{name}: taken over after {took:?}");
            ensure!(took <= AT_ONCE, "{name}: taken over only after {took:?}");
            assert_eq!((next.attempt, next.lost), (2, 1));
            self.units.until_ready([*name], GENEROUS).await?;
            let rest: Vec<&str> = ends[index + 1..].iter().map(|(name, _)| *name).collect();
            self.nothing_happens(&format!("after-{name}"), &rest).await?;
        }
        self.counted(replica.metrics_url(), "dead", ends.len()).await?;
        replica.term()?;
        replica.wait().await?;
        Ok(())
    }

    async fn a_stuck_holder_keeps_its_claim_for_budget_and_margin(&self) -> anyhow::Result<()> {
        const BUDGET: u64 = 6;
        const MARGIN: u64 = 4;
        self.lease("stuck", None).await?;
        let _alive = self.kept_alive("stuck");
        self.claimed("stuck", BUDGET).await?;
        let started = Instant::now();
        let margin = format!("--claim-margin={MARGIN}s");
        let arguments = ["--session-ttl=5s", "--session-renew=1s", margin.as_str()];
        let replica = self.world.ready_replica_with("successor", 4, &arguments).await?;
        let seen_by_now = Instant::now();
        let next = self.taken_over("stuck", "successor").await?;
        let end = Duration::from_secs(BUDGET + MARGIN);
        ensure!(next.seen >= started + end, "taken over {:?} after the start", next.seen - started);
        ensure!(next.seen <= seen_by_now + end + AT_ONCE, "taken over only now");
        self.units.until_ready(["stuck"], GENEROUS).await?;
        self.counted(replica.metrics_url(), "overdue", 1).await
    }

    /// A Pod that runs.
    async fn pod(&self, pods: &Api<Pod>, name: &str) -> anyhow::Result<String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": "node-1", "serviceAccountName": "fleet-agent", "automountServiceAccountToken": false,
                "containers": [{"name": "agent", "image": "example.test/agent:1"}],
            },
        }))?;
        let made = pods.create(&PostParams::default(), &pod).await?;
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        status_of(pods, name, &json!({"phase": "Running", "containerStatuses": [container(&running, 0)]}))
            .await?;
        made.metadata.uid.context("a Pod has a uid")
    }

    /// The session Lease of a replica that does not exist.
    async fn lease(&self, name: &str, pod_uid: Option<&str>) -> anyhow::Result<()> {
        let registration = &self.world.registration;
        let leases: Api<Lease> = Api::namespaced(self.downstream.clone(), &registration.agent_namespace);
        let lease: Lease = serde_json::from_value(json!({"metadata": {
            "name": format!("flotilla-{name}"),
            "labels": {
                keys::CLUSTER_NAMESPACE_LABEL: registration.cluster_namespace, keys::AGENT_SCOPE_LABEL: "",
            },
            "annotations": {
                "flotilla.fleet/holder": name, "flotilla.fleet/pod-uid": pod_uid.unwrap_or_default(),
                "flotilla.fleet/free-slots": "0",
            },
        }, "spec": {"holderIdentity": name}}))?;
        leases.create(&PostParams::default(), &lease).await?;
        Ok(())
    }

    /// Renews a session for as long as the result lives.
    fn kept_alive(&self, name: &str) -> Renewals {
        let namespace = &self.world.registration.agent_namespace;
        let leases: Api<Lease> = Api::namespaced(self.downstream.clone(), namespace);
        let name = format!("flotilla-{name}");
        Renewals(tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(500));
            for count in 0u64.. {
                ticks.tick().await;
                let patch = json!({"spec": {"leaseTransitions": count}});
                let _ = leases.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            }
        }))
    }

    /// A bundle that the session `name` has claimed.
    async fn claimed(&self, name: &str, budget: u64) -> anyhow::Result<()> {
        let bundle = Bundle::config_maps(name, NAMESPACE, 2, "1");
        self.publisher.publish(std::slice::from_ref(&bundle)).await?;
        let message = format!(
            "v1 holder={name} session={name} nonce=nonce-of-{name} attempt=1 lost=0 by= budget={budget} deployment={}",
            bundle.deployment_id()
        );
        let status = json!({"status": {"conditions": [
            {"type": keys::CLAIM_CONDITION, "status": "True", "reason": "Claimed", "message": message},
        ]}});
        let api: &Api<BundleDeployment> = self.publisher.units();
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        self.units.until_claim("the claim", GENEROUS, |claim| claim.unit == name).await?;
        Ok(())
    }

    async fn taken_over(&self, name: &str, by: &str) -> anyhow::Result<harness::units::Claim> {
        let is_next = |claim: &harness::units::Claim| claim.unit == name && claim.holder == by;
        self.units.until_claim(&format!("{by} to take {name} over"), GENEROUS, is_next).await
    }

    /// A replica is at work, and has had the time of a deployment to touch these claims.
    async fn nothing_happens(&self, probe: &str, claimed: &[&str]) -> anyhow::Result<()> {
        self.publisher.publish(&[Bundle::config_maps(probe, NAMESPACE, 1, "1")]).await?;
        self.units.until_ready([probe], GENEROUS).await?;
        for claim in self.units.claims().iter().filter(|claim| claimed.contains(&claim.unit.as_str())) {
            ensure!(claim.holder == claim.unit && claim.end.is_none(), "{probe}: {claim:?}");
        }
        Ok(())
    }

    async fn counted(&self, url: String, reason: &str, count: usize) -> anyhow::Result<()> {
        let (_, text) = get(&url).await?;
        let takeovers = text.lines().filter(|line| line.starts_with("flotilla_takeovers_total"));
        let counted: Vec<&str> = takeovers.filter(|line| !line.ends_with(" 0")).collect();
        assert_eq!(counted, [format!("flotilla_takeovers_total{{reason=\"{reason}\"}} {count}")]);
        Ok(())
    }
}

fn container(state: &Value, restarts: u32) -> Value {
    let last = if restarts > 0 { json!({"terminated": {"exitCode": 137}}) } else { json!({}) };
    json!({
        "name": "agent", "image": "example.test/agent:1", "imageID": "", "ready": false, "restartCount": restarts,
        "state": state, "lastState": last,
    })
}

async fn status_of(pods: &Api<Pod>, name: &str, status: &Value) -> anyhow::Result<()> {
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&json!({"status": status}))).await?;
    Ok(())
}

struct Renewals(JoinHandle<()>);

impl Drop for Renewals {
    fn drop(&mut self) {
        self.0.abort();
    }
}
