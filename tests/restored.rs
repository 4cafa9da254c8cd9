// SPDX-License-Identifier: Apache-2.0
//! A management cluster that is restored from a backup: nothing is overwritten by guess, nothing sticks unseen, people are
//! told, a person resets.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use flotilla::api::{BundleDeployment, DownstreamResource, keys};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::world::{Downstream, World, get, ready};
use harness::{GENEROUS, Tools, fleet, until};

const BOUND: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "vault";
const BACKUP: &str = "backup";
/// Versions of the lost time: more than what follows the restore uses up.
const LOST: usize = 600;
/// A unit that no agent works on.
const ABANDONED: &str = "abandoned";

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_future_stamped_is_told_and_reset_by_command() -> anyhow::Result<()> {
    restored(Agent::StartsAfter).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_runs_through_a_restore_sticks_at_nothing_it_remembers() -> anyhow::Result<()> {
    restored(Agent::RunsThrough).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agent {
    /// It knows nothing of the lost time.
    StartsAfter,
    /// It remembers versions that nobody else knows any more.
    RunsThrough,
}

/// Nobody is left to take over the claim that the restore brings back.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_runs_through_a_restore_expires_what_it_brought_back() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let mut world = World::start(binary, tools, Downstream::Bare).await?;
    let result = reaped(&mut world).await;
    world.conclude(result)
}

async fn reaped(world: &mut World) -> anyhow::Result<()> {
    let client = world.upstream.admin().await?;
    let units: Api<BundleDeployment> = Api::namespaced(client, &world.registration.cluster_namespace);
    let unit = Bundle::new(ABANDONED, NAMESPACE).bundle_deployment(&world.registration);
    units.create(&PostParams::default(), &unit).await?;
    let claim = async |status: &str, reason: &str, nonce: &str| {
        let message =
            format!("v1 holder=a session=s nonce={nonce} attempt=1 lost=0 by= budget=1 deployment=d");
        let condition = json!({"type": "InProgress", "status": status, "reason": reason, "message": message});
        let patch = json!({"status": {"conditions": [condition]}});
        units.patch_status(ABANDONED, &PatchParams::default(), &Patch::Merge(&patch)).await
    };
    claim("True", "Claimed", "past").await?;
    world.upstream.back_up(BACKUP).await?;

    // The controller knows the lost time only.
    claim("False", "Quarantined", "lost").await?;
    let mut controller = world.controller("controller", &["--claim-margin", "1s"])?;
    ready(&mut controller).await?;
    let told = async |state: &str, count: usize| {
        let line = format!("flotilla_fleet_claims{{state=\"{state}\"}} {count}");
        let (_, text) = get(&controller.metrics_url()).await?;
        anyhow::Ok(text.lines().any(|found| found == line).then_some(()))
    };
    until("the lost claim to be counted", GENEROUS, async || told("quarantined", 1).await).await?;
    world.upstream.restore(BACKUP).await?;

    until("the claim to be expired", GENEROUS, async || {
        let live = units.get(ABANDONED).await?;
        let Some(claim) = live.condition("InProgress") else { return Ok(None) };
        Ok((claim.reason == "Expired" && claim.message.contains("nonce=past")).then_some(()))
    })
    .await?;
    until("no ghost to be counted", GENEROUS, async || told("quarantined", 0).await).await?;
    until("the claim to be counted", GENEROUS, async || told("expired", 1).await).await?;
    controller.check()
}

async fn restored(agent: Agent) -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let mut world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&mut world, agent).await;
    world.conclude(result)
}

async fn story(world: &mut World, how: Agent) -> anyhow::Result<()> {
    let mut agent = world.ready_replica("agent", 4).await?;
    let source = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"k": "v"},
        "metadata": {"name": "cargo", "namespace": world.registration.cluster_namespace}});
    fleet::apply(&world.upstream.admin().await?, source).await?;
    // With a copy, which no release lists and which is written first.
    let ledger = |version: &str| {
        let cargo = DownstreamResource { kind: "Secret".into(), name: "cargo".into() };
        Bundle::config_maps("ledger", NAMESPACE, 3, version)
            .with(|options| options.downstream_resources = vec![cargo])
    };
    deployed(world, &ledger("1")).await?;
    deployed(world, &Bundle::config_maps("quiet", NAMESPACE, 1, "1")).await?;
    let versions = async |world: &World| -> anyhow::Result<Vec<String>> {
        let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, NAMESPACE);
        let maps = maps.list(&ListParams::default().labels(keys::HASH_LABEL)).await?;
        let its = maps.iter().filter(|map| map.name_any().starts_with("ledger-"));
        Ok(its.map(|map| map.data.clone().unwrap_or_default()["version"].clone()).collect())
    };
    world.upstream.back_up(BACKUP).await?;
    ready(&mut agent).await?;

    // The time that will be lost.
    let maps: Api<ConfigMap> = Api::default_namespaced(world.upstream.admin().await?);
    for index in 0..LOST {
        let change = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "clock"}, "data": {"index": index.to_string()}});
        maps.patch("clock", &PatchParams::apply("test"), &Patch::Apply(&change)).await?;
    }
    deployed(world, &ledger("2")).await?;
    deployed(world, &Bundle::config_maps("forgotten", NAMESPACE, 1, "1")).await?;
    if how == Agent::StartsAfter {
        agent.kill()?;
    }
    world.upstream.restore(BACKUP).await?;
    ensure!(maps.get_opt("clock").await?.is_none(), "the store was not restored");
    if how == Agent::StartsAfter {
        agent = world.ready_replica("agent-after", 4).await?;
    }

    // What no lost stamp stands on goes on as ever.
    deployed(world, &Bundle::config_maps("new", NAMESPACE, 1, "1")).await?;
    assert_eq!(versions(world).await?, ["2"; 3], "nothing was overwritten by guess");
    if how == Agent::RunsThrough {
        world.event("UpstreamRestored", "versions went backwards").await?;
    }

    // Its status says that the first version is deployed, and it is not. Nobody need touch the bundle to learn that.
    let units = world.units().await?;
    let told = units
        .until("the condition", GENEROUS, |live| {
            let condition = live.get("ledger")?.condition("Deployed")?.clone();
            condition.message.contains("went back in time").then_some(condition.message)
        })
        .await?;
    ensure!(told.contains("flotilla reset ledger"), "{told}");
    let (code, text) = get(&format!("{}/readyz", agent.probe_url())).await?;
    ensure!(code == 503 && text.contains("[-]upstream-history failed"), "{code}: {text}");
    assert_eq!(versions(world).await?, ["2"; 3], "overwritten by guess");

    let output = Command::new(&world.binary)
        .args(["reset", "ledger", "--kubeconfig"])
        .arg(world.upstream.admin_kubeconfig())
        .args(["--namespace", &world.registration.cluster_namespace, "--downstream-kubeconfig"])
        .arg(world.downstream.admin_kubeconfig())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    eprintln!("{how:?}: {said}");
    ensure!(said.contains("ledger reset ("), "{said}");
    // At once, and not when its back-off ends.
    units.until_ready(["ledger"], GENEROUS).await?;
    assert_eq!(versions(world).await?, ["1"; 3], "what the restored cluster wants");
    let secrets: Api<Secret> = Api::namespaced(world.downstream.admin().await?, NAMESPACE);
    ensure!(secrets.get("cargo").await?.labels().contains_key(keys::BUNDLE_DEPLOYMENT), "it is no copy");
    deployed(world, &ledger("3")).await?;
    assert_eq!(versions(world).await?, ["3"; 3]);
    units.until_ready(["quiet", "new"], GENEROUS).await?;
    // Deployed in the lost time, and absent since: absence is no order.
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, NAMESPACE);
    maps.get("forgotten-0").await?;
    ready(&mut agent).await
}

/// Publishes a bundle and waits until it is deployed. Looks anew each time: who watches has a memory of its own.
async fn deployed(world: &World, bundle: &Bundle) -> anyhow::Result<()> {
    let units = world.units().await?;
    world.publisher().await?.publish(std::slice::from_ref(bundle)).await?;
    let id = bundle.deployment_id();
    let done = |live: &harness::units::Live| {
        let unit = live.get(&bundle.name)?;
        (unit.spec.deployment_id == id && harness::units::is_ready(unit)).then_some(())
    };
    units.until(&format!("{} to be deployed", bundle.name), BOUND, done).await
}
