// SPDX-License-Identifier: Apache-2.0
//! A deployment that waits for readiness keeps its claim and no worker slot, and ends when there is reason to.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use flotilla::api::keys;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, Publisher};
use harness::judge;
use harness::units::{End, Units, is_ready};
use harness::world::{Downstream, World, settled_audit};
use harness::{GENEROUS, Tools, until};

const NAMESPACE: &str = "harbour";
const BOUND: Duration = Duration::from_secs(120);
/// Far beyond every bound of this test: a wait that ends was ended.
const ENDLESS: i64 = 3600;

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_holds_no_slot_and_ends_when_there_is_reason() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::WORKLOADS)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Nodes(1)).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    // One slot: what waits would block everything else if it held it.
    let mut replica = world.ready_replica("replica-1", 1).await?;
    a_waiting_bundle_lets_others_pass(world, &units, &publisher).await?;
    a_new_deployment_id_ends_the_wait(&units, &publisher).await?;
    a_deletion_ends_the_wait(world, &units, &publisher).await?;
    a_wait_that_runs_out_is_told_and_not_repeated(&units, &publisher).await?;
    sigterm_hands_a_wait_over(world, &units, &publisher, &mut replica).await
}

/// A Deployment for nodes of the pool `pool`, of which there are none at first.
fn crane(name: &str, pool: &str, seconds: i64) -> Bundle {
    let manifest = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {
            "nodeSelector": {"pool": pool},
            "containers": [{"name": "crane", "image": "example.test/crane:1"}],
        }},
    }});
    Bundle::new(name, NAMESPACE)
        .file("manifests/crane.yaml", manifest.to_string())
        .with(|options| options.helm.get_or_insert_default().timeout_seconds = seconds)
}

async fn until_waiting(units: &Units, name: &str) -> anyhow::Result<()> {
    units
        .until(&format!("{name} to wait"), BOUND, |live| {
            let claim = live.get(name)?.condition(keys::CLAIM_CONDITION)?;
            ((claim.status.as_str(), claim.reason.as_str()) == ("True", "Waiting")).then_some(())
        })
        .await
}

async fn a_waiting_bundle_lets_others_pass(
    world: &World,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    publisher.publish(&[crane("slow", "slow", ENDLESS)]).await?;
    until_waiting(units, "slow").await?;
    publisher.publish(&[Bundle::config_maps("quick", NAMESPACE, 3, "1")]).await?;
    units.until_ready(["quick"], BOUND).await?;
    until_waiting(units, "slow").await.context("it waits on while others pass")?;

    let nodes: Api<Node> = Api::all(world.downstream.admin().await?);
    let node = nodes.list(&ListParams::default()).await?.items.pop().context("a node")?;
    let label = json!({"metadata": {"labels": {"pool": "slow"}}});
    let name = node.metadata.name.context("a node has a name")?;
    nodes.patch(&name, &PatchParams::default(), &Patch::Merge(&label)).await?;
    units.until_ready(["slow"], BOUND).await?;

    let audit = settled_audit(&world.upstream, &world.upstream.admin().await?).await?;
    let registration = &world.registration;
    let writes = judge::status_writes(&audit, &registration.upstream_user, &registration.cluster_namespace);
    assert_eq!((writes["slow"], writes["quick"]), (3, 2), "claim, wait and result; claim and result");
    Ok(())
}

async fn a_new_deployment_id_ends_the_wait(units: &Units, publisher: &Publisher) -> anyhow::Result<()> {
    publisher.publish(&[crane("changed", "nowhere", ENDLESS)]).await?;
    until_waiting(units, "changed").await?;
    publisher.publish(&[Bundle::config_maps("changed", NAMESPACE, 2, "2")]).await?;
    units.until_ready(["changed"], BOUND).await?;
    let claims: Vec<_> = units.claims().into_iter().filter(|claim| claim.unit == "changed").collect();
    let ends: Vec<_> = claims.iter().map(|claim| claim.end.clone()).collect();
    let replaced = End::Replaced { by: claims[1].nonce.clone(), takeover: false };
    assert_eq!(ends, [Some(replaced), Some(End::Finished)]);
    Ok(())
}

async fn a_deletion_ends_the_wait(world: &World, units: &Units, publisher: &Publisher) -> anyhow::Result<()> {
    publisher.publish(&[crane("dropped", "nowhere", ENDLESS)]).await?;
    until_waiting(units, "dropped").await?;
    publisher.withdraw("dropped").await?;
    let client = world.downstream.admin().await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(client, NAMESPACE);
    until("the release to be gone", GENEROUS, async || {
        let records = secrets.list_metadata(&ListParams::default().labels("owner=helm,name=dropped")).await?;
        let gone = deployments.get_opt("dropped").await?.is_none() && records.items.is_empty();
        Ok(gone.then_some(()))
    })
    .await
}

async fn a_wait_that_runs_out_is_told_and_not_repeated(
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    publisher.publish(&[crane("late", "nowhere", 3)]).await?;
    let told = units
        .until("the wait to run out", BOUND, |live| {
            let unit = live.get("late")?;
            let installed = unit.condition("Installed").filter(|condition| condition.status == "False")?;
            unit.condition(keys::CLAIM_CONDITION).is_none().then(|| installed.message.clone())
        })
        .await?;
    let told = told.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(told.len(), 2, "{told:?}");
    let start = format!(
        "not installed: resource Deployment/{NAMESPACE}/late not ready. status: InProgress, message: "
    );
    assert!(told[0].starts_with(&start), "{told:?}");
    assert_eq!(told[1], "context deadline exceeded");
    let live = units.live();
    let status = live["late"].status.clone().unwrap_or_default();
    assert_eq!(
        (status.applied_deployment_id, status.release),
        (live["late"].spec.deployment_id.clone(), String::new())
    );

    // Others pass; it is not tried again before it changes.
    publisher.publish(&[Bundle::config_maps("next", NAMESPACE, 1, "1")]).await?;
    units.until_ready(["next"], BOUND).await?;
    let tries = || units.claims().iter().filter(|claim| claim.unit == "late").count();
    assert_eq!(tries(), 1);
    publisher.publish(&[Bundle::config_maps("late", NAMESPACE, 1, "1")]).await?;
    units.until_ready(["late"], BOUND).await?;
    assert_eq!(tries(), 2);
    Ok(())
}

async fn sigterm_hands_a_wait_over(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    replica: &mut harness::replica::Replica,
) -> anyhow::Result<()> {
    publisher.publish(&[crane("handed", "handed", ENDLESS)]).await?;
    until_waiting(units, "handed").await?;
    replica.term()?;
    let status = tokio::time::timeout(GENEROUS, replica.wait()).await.context("SIGTERM is ignored")??;
    assert!(status.success(), "{status}");
    let first = units
        .until_claim("its claim to end", GENEROUS, |claim| claim.unit == "handed" && claim.end.is_some());
    assert_ne!(first.await?.end, Some(End::Finished));

    let _next = world.ready_replica("replica-2", 1).await?;
    until_waiting(units, "handed").await?;
    let nodes: Api<Node> = Api::all(world.downstream.admin().await?);
    let node = nodes.list(&ListParams::default()).await?.items.pop().context("a node")?;
    let name = node.metadata.name.context("a node has a name")?;
    let label = json!({"metadata": {"labels": {"pool": "handed"}}});
    nodes.patch(&name, &PatchParams::default(), &Patch::Merge(&label)).await?;
    units
        .until("the next agent to finish it", BOUND, |live| is_ready(live.get("handed")?).then_some(()))
        .await?;
    let second = units.claims().into_iter().rfind(|claim| claim.unit == "handed").context("its claim")?;
    // A hand-over is no loss.
    assert_eq!((second.holder.as_str(), second.lost), ("replica-2", 0));
    Ok(())
}
