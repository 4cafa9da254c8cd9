// SPDX-License-Identifier: Apache-2.0
//! A cluster that gives no answers: `Monitored` says so, once, all else stays as it was known last, and it passes.
//! Every replica reaches the cluster through a proxy that can take the way away.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use flotilla::api::{BundleDeployment, BundleDeploymentStatus};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;

#[path = "../dev/harness/mod.rs"]
mod harness;

#[allow(dead_code)]
#[path = "fleet_controller/rules.rs"]
mod rules;

use harness::bundles::{Bundle, NEVER_READY};
use harness::proxy::{Mode, Proxy};
use harness::replica::Replica;
use harness::units::{Change, Units};
use harness::world::{Downstream, World, ready};
use harness::{GENEROUS, Tools, pki, until};

const NAMESPACE: &str = "lighthouse";
const BUNDLES: usize = 6;
/// An outage is told after a minute; the machine may be busy.
const BOUND: Duration = Duration::from_secs(240);
/// Renewals that fail after the outage was told: more than a minute of them, in which a unit is looked at again.
const LONG: usize = 14;

/// On each piece, either way: well within what a renewal may take.
const SLOW: Duration = Duration::from_millis(700);

struct Coast<'a> {
    world: &'a World,
    units: Units,
    proxy: Proxy,
    kubeconfig: PathBuf,
}

impl Coast<'_> {
    /// Replicas behind the proxy, and bundles that are ready, not ready, and modified.
    async fn new(world: &World) -> anyhow::Result<Coast<'_>> {
        let proxy = Proxy::start(world.downstream.port).await?;
        // The same credentials at the proxy's address.
        let text = std::fs::read_to_string(&world.registration.agent_kubeconfig)?;
        let kubeconfig = world.dir().join("agent-behind-the-proxy.kubeconfig");
        pki::write_private(&kubeconfig, &text.replace(&world.downstream.url(), &proxy.url()))?;
        Ok(Coast { world, units: world.units().await?, proxy, kubeconfig })
    }

    async fn replica(&self, name: &str) -> anyhow::Result<Replica> {
        let (world, log) = (self.world, self.world.dir().join(format!("{name}.log")));
        let mut replica = Replica::spawn(
            &world.binary,
            name,
            &self.kubeconfig,
            &world.registration.agent_namespace,
            &[],
            &[("BUNDLEDEPLOYMENT_RECONCILER_WORKERS", "4")],
            &log,
        )?;
        self.proxy.introduce(name, replica.pid());
        ready(&mut replica).await.map(|()| replica)
    }

    async fn settle(&self) -> anyhow::Result<()> {
        let publisher = self.world.publisher().await?;
        let names: Vec<String> = (0..BUNDLES).map(|index| format!("lamp-{index}")).collect();
        let lamps: Vec<Bundle> =
            names.iter().map(|name| Bundle::config_maps(name, NAMESPACE, 2, "1")).collect();
        publisher.publish(&lamps).await?;
        publisher.publish(&[Bundle::new("idle", NAMESPACE).file("manifests/idle.yaml", NEVER_READY)]).await?;
        self.units.until_ready(names.iter().map(String::as_str), GENEROUS).await?;
        let maps: Api<ConfigMap> = Api::namespaced(self.world.downstream.admin().await?, NAMESPACE);
        let foreign = Patch::Merge(json!({"data": {"version": "somebody else's"}}));
        maps.patch("lamp-0-0", &PatchParams::default(), &foreign).await?;
        self.units
            .until("bundles that are not ready and that are modified", GENEROUS, |live| {
                let idle = live.get("idle")?.status.as_ref()?;
                let modified = live.get("lamp-0")?.status.as_ref()?;
                let monitored = |name: &str| live.get(name)?.condition("Monitored").map(|_| ());
                let quiet = live.values().all(|unit| unit.condition("InProgress").is_none());
                monitored("idle")?;
                (quiet && !idle.non_ready_status.is_empty() && !modified.modified_status.is_empty())
                    .then_some(())
            })
            .await
    }

    /// What Fleet's controller makes of each unit.
    fn shown(&self) -> anyhow::Result<BTreeMap<String, rules::Verdict>> {
        let live = self.units.live();
        let verdict = |unit: &BundleDeployment| serde_json::to_value(unit).map(|unit| rules::verdict(&unit));
        live.iter().map(|(name, unit)| Ok((name.clone(), verdict(unit)?))).collect()
    }

    fn statuses(&self) -> BTreeMap<String, BundleDeploymentStatus> {
        let live = self.units.live();
        live.iter().map(|(name, unit)| (name.clone(), unit.status.clone().unwrap_or_default())).collect()
    }

    async fn until_monitored(&self, what: &str, seen: bool) -> anyhow::Result<()> {
        let right = |unit: &BundleDeployment| {
            let condition = unit.condition("Monitored");
            condition.is_some_and(|condition| condition.status == if seen { "True" } else { "False" })
        };
        self.units.until(what, BOUND, |live| live.values().all(|unit| right(unit)).then_some(())).await
    }
}

/// Everything but what `Monitored` says.
fn known(status: &BundleDeploymentStatus) -> BundleDeploymentStatus {
    let mut status = status.clone();
    status.conditions.retain(|condition| condition.type_ != "Monitored");
    status
}

/// How often each unit was written since the last call.
fn writes(changes: &mut UnboundedReceiver<Change>) -> BTreeMap<String, usize> {
    let mut writes = BTreeMap::new();
    while let Ok(change) = changes.try_recv() {
        if let Some(unit) = change.after {
            *writes.entry(unit.name_any()).or_default() += 1;
        }
    }
    writes
}

fn failed_renewals(replica: &Replica) -> usize {
    replica.log().lines().filter(|line| line.contains("cannot renew session Lease")).count()
}

/// Waits until so many more renewals of this replica have failed.
async fn long_enough(replica: &Replica) -> anyhow::Result<()> {
    let before = failed_renewals(replica);
    until(
        "the outage to go on",
        BOUND,
        async || Ok((failed_renewals(replica) >= before + LONG).then_some(())),
    )
    .await
}

/// A test of its own world.
async fn with_coast(story: impl AsyncFnOnce(&Coast<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(env!("CARGO_BIN_EXE_flotilla")), tools, Downstream::Bare).await?;
    let result = async { story(&Coast::new(&world).await?).await }.await;
    world.conclude(result)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_refuses_connections_is_told_once_and_passes() -> anyhow::Result<()> {
    with_coast(async |coast| outage(coast, Mode::Cut).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_frozen_is_told_once_and_passes() -> anyhow::Result<()> {
    with_coast(async |coast| outage(coast, Mode::HalfOpen).await).await
}

async fn outage(coast: &Coast<'_>, fault: Mode) -> anyhow::Result<()> {
    let names = ["north", "east", "south"];
    let mut replicas = Vec::new();
    for name in names {
        replicas.push(coast.replica(name).await?);
    }
    coast.settle().await?;
    let (before, shown) = (coast.statuses(), coast.shown()?);
    let mut changes = coast.units.changes();

    names.iter().for_each(|name| coast.proxy.set(name, fault));
    coast.until_monitored("the outage to be told", false).await?;
    // What happens meanwhile is seen by nobody.
    let maps: Api<ConfigMap> = Api::namespaced(coast.world.downstream.admin().await?, NAMESPACE);
    maps.delete("lamp-1-0", &DeleteParams::default()).await?;
    for replica in &replicas {
        long_enough(replica).await?;
    }
    let told = coast.statuses();
    for (name, status) in &told {
        ensure!(known(status) == known(&before[name]), "{name}: {status:?} was {:?}", before[name]);
        let monitored = status.conditions.iter().find(|condition| condition.type_ == "Monitored");
        let text = monitored.map(|condition| condition.message.as_str()).unwrap_or_default();
        let tried =
            "cannot reach the API server of the downstream cluster: cannot renew session Lease flotilla-";
        ensure!(text.starts_with(tried), "{name}: {text}");
    }
    for (name, now) in coast.shown()? {
        let was = &shown[&name];
        ensure!(now.state == was.state && now.deployed == was.deployed, "{name}: {now:?} was {was:?}");
        ensure!(now.monitored.starts_with("Error: cannot reach"), "{name}: {now:?}");
    }
    let written = writes(&mut changes);
    ensure!(written.len() == told.len() && written.values().all(|count| *count == 1), "{written:?}");

    names.iter().for_each(|name| coast.proxy.set(name, Mode::Pass));
    coast.until_monitored("the end of the outage to be told", true).await?;
    coast
        .units
        .until("what happened meanwhile to be told", BOUND, |live| {
            let status = live.get("lamp-1")?.status.as_ref()?;
            status.modified_status.first().filter(|entry| entry.missing).map(|_| ())
        })
        .await?;
    let after = coast.statuses();
    for (name, status) in after.iter().filter(|(name, _)| *name != "lamp-1") {
        ensure!(known(status) == known(&before[name]), "{name}: {status:?} was {:?}", before[name]);
    }
    let written = writes(&mut changes);
    // One tells that it can be seen again, and one more what happened meanwhile, unless both were seen together.
    for (name, count) in &written {
        ensure!(*count <= if name == "lamp-1" { 2 } else { 1 }, "{written:?}");
    }
    replicas.iter_mut().try_for_each(|replica| replica.check())
}

/// It takes itself for the one whose duty it is; the others take it for dead and see that all is well.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_alone_is_blind_does_not_contradict_those_that_see() -> anyhow::Result<()> {
    with_coast(blind).await
}

async fn blind(coast: &Coast<'_>) -> anyhow::Result<()> {
    let blind = coast.replica("blind").await?;
    let (mut one, mut other) = (coast.replica("one").await?, coast.replica("other").await?);
    coast.settle().await?;
    let before = coast.statuses();
    let mut changes = coast.units.changes();

    coast.proxy.set("blind", Mode::Cut);
    until("it to see nothing", BOUND, async || {
        Ok(blind.log().contains("the cluster cannot be looked at").then_some(()))
    })
    .await?;
    long_enough(&blind).await?;
    coast.until_monitored("those that see to say so", true).await?;
    let written = writes(&mut changes);
    ensure!(written.values().all(|count| *count <= 2), "they contradict each other: {written:?}");

    coast.proxy.set("blind", Mode::Pass);
    until("it to see again", BOUND, async || {
        Ok(blind.log().contains("the cluster can be looked at again").then_some(()))
    })
    .await?;

    // Slow is not dead.
    ["blind", "one", "other"].iter().for_each(|name| coast.proxy.set(name, Mode::Delay(SLOW)));
    let maps: Api<ConfigMap> = Api::namespaced(coast.world.downstream.admin().await?, NAMESPACE);
    maps.delete("lamp-2-0", &DeleteParams::default()).await?;
    coast
        .units
        .until("a slow cluster to be looked at", BOUND, |live| {
            let status = live.get("lamp-2")?.status.as_ref()?;
            status.modified_status.first().filter(|entry| entry.missing).map(|_| ())
        })
        .await?;
    coast.until_monitored("all to be seen", true).await?;
    for (name, status) in coast.statuses().iter().filter(|(name, _)| *name != "lamp-2") {
        ensure!(known(status) == known(&before[name]), "{name}: {status:?} was {:?}", before[name]);
    }
    let written = writes(&mut changes);
    ensure!(written.len() <= 1, "it was told of others, too: {written:?}");
    one.check()?;
    other.check()
}
