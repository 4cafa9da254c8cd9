// SPDX-License-Identifier: Apache-2.0
//! What nobody needs any more goes, also when nobody saw its end; what is only missing stays.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use flotilla::telemetry::events::reason;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::records::releases;
use harness::replica::Replica;
use harness::world::{Downstream, World, collected, get, ready};
use harness::{GENEROUS, Tools, until};

const BOUND: Duration = Duration::from_secs(120);
/// Short, so that a test need not wait for minutes: no longer than the collector rests between two passes, so that what
/// is not held goes at the second.
const ARGUMENTS: &[&str] = &["--absence-grace=1s", "--mass-absence-grace=1h"];
/// More than ten, and more than a fifth.
const MANY: usize = 14;

#[tokio::test(flavor = "multi_thread")]
async fn releases_without_a_bundle_go_and_a_mass_of_them_is_held() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let client = world.downstream.admin().await?;
    // A foreign release of a person's Helm is nobody's garbage.
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &world.registration.agent_namespace);
    let settings = json!({"data": {"config": r#"{"garbageCollectionInterval": "2s"}"#}});
    maps.patch("fleet-agent", &PatchParams::default(), &Patch::Merge(&settings)).await?;
    what_was_deleted_while_nobody_ran_is_found(world, &client).await?;
    what_moved_leaves_nothing_behind_unless_it_is_paused(world, &client).await?;
    many_at_once_are_held(world, &client).await
}

async fn what_was_deleted_while_nobody_ran_is_found(world: &World, client: &Client) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let mut first = agent(world, "first").await?;
    publisher
        .publish(&[
            Bundle::config_maps("gone", "alpha", 3, "1"),
            Bundle::config_maps("kept", "alpha", 2, "1").with(|options| {
                options.keep_resources = true;
                options.helm.get_or_insert_default().release_name = "other-name".into();
            }),
            Bundle::config_maps("stays", "alpha", 2, "1"),
        ])
        .await?;
    units.until_ready(["gone", "kept", "stays"], BOUND).await?;
    first.kill()?;
    publisher.withdraw("gone").await?;
    publisher.withdraw("kept").await?;

    let _agents = (agent(world, "second").await?, agent(world, "third").await?);
    until("the orphans to be collected", GENEROUS, async || {
        Ok((releases(client, "alpha").await? == ["stays"]).then_some(()))
    })
    .await?;
    let left = objects(client, "alpha").await?;
    assert_eq!(left, ["kept-0", "kept-1", "stays-0", "stays-1"]);
    publisher.withdraw("stays").await?;
    until("the rest to be removed", GENEROUS, async || {
        Ok(releases(client, "alpha").await?.is_empty().then_some(()))
    })
    .await
}

async fn what_moved_leaves_nothing_behind_unless_it_is_paused(
    world: &World,
    client: &Client,
) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let mover = agent(world, "mover").await?;
    let bundle = |namespace: &str| Bundle::config_maps("nomad", namespace, 2, "1");
    publisher.publish(&[bundle("here")]).await?;
    units.until_ready(["nomad"], BOUND).await?;
    let paused = Bundle { paused: true, ..bundle("there") };
    publisher.publish(std::slice::from_ref(&paused)).await?;
    // What was published later is done: the paused one was seen and left.
    publisher.publish(&[Bundle::config_maps("later", "there", 1, "1")]).await?;
    units.until_ready(["later"], BOUND).await?;
    collected(&mover, 2).await?;
    assert_eq!(objects(client, "here").await?, ["nomad-0", "nomad-1"], "paused: nothing is removed");

    publisher.publish(&[bundle("there")]).await?;
    until("the old place to be empty", GENEROUS, async || {
        Ok(releases(client, "here").await?.is_empty().then_some(()))
    })
    .await?;
    assert_eq!(objects(client, "here").await?, Vec::<String>::new());
    assert_eq!(objects(client, "there").await?, ["later-0", "nomad-0", "nomad-1"]);
    assert_eq!(releases(client, "there").await?, ["later", "nomad"]);
    publisher.withdraw("nomad").await?;
    publisher.withdraw("later").await?;
    until("the bundle to be gone", GENEROUS, async || {
        Ok(releases(client, "there").await?.is_empty().then_some(()))
    })
    .await
}

async fn many_at_once_are_held(world: &World, client: &Client) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let mut agent_before = agent(world, "before").await?;
    let name = |index: usize| format!("mass-{index:02}");
    let bundles: Vec<Bundle> =
        (0..MANY + 2).map(|index| Bundle::config_maps(&name(index), "mass", 1, "1")).collect();
    publisher.publish(&bundles).await?;
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;
    agent_before.kill()?;
    for index in 0..MANY {
        publisher.withdraw(&name(index)).await?;
    }
    let mut after = agent(world, "after").await?;
    until("the hold to be told", GENEROUS, async || {
        let (code, text) = get(&format!("{}/readyz?verbose", after.probe_url())).await?;
        Ok((code == 503 && text.contains("[-]absence failed: 14 ")).then_some(()))
    })
    .await?;
    world.event(reason::ABSENCE_HELD, "14 of 16 releases have no BundleDeployment").await?;
    // The first look made them missing, the next would remove them.
    collected(&after, 3).await?;
    after.check()?;
    assert_eq!(releases(client, "mass").await?.len(), MANY + 2, "nothing is removed");
    // Whoever puts them back ends the hold.
    publisher.publish(&bundles).await?;
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;
    ready(&mut after).await?;
    let count = objects(client, "mass").await?.len();
    ensure!(count == MANY + 2, "{count} objects");
    Ok(())
}

async fn agent(world: &World, name: &str) -> anyhow::Result<Replica> {
    let mut replica = world.replica_with(name, 4, ARGUMENTS)?;
    ready(&mut replica).await?;
    Ok(replica)
}

async fn objects(client: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut names: Vec<String> =
        maps.list_metadata(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
    names.retain(|name| name != "kube-root-ca.crt");
    names.sort();
    Ok(names)
}
