// SPDX-License-Identifier: Apache-2.0
//! A removed CRD deletes every BundleDeployment; that is no order to uninstall what they deployed.

use std::path::Path;
use std::time::Duration;

use flotilla::telemetry::events::reason;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::replica::Replica;
use harness::world::{Downstream, World, get, ready};
use harness::{GENEROUS, Tools, fleet, until};

const BOUND: Duration = Duration::from_secs(120);
const BUNDLES: usize = 15;
const NAMESPACE: &str = "shelf";
/// What the log says of a removal that is held.
const REFUSED: &str = "the release is not removed yet; it is tried again";

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_kind_uninstalls_nothing() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let client = world.downstream.admin().await?;
    let mut replicas: Vec<Replica> = Vec::new();
    for name in ["one", "two"] {
        let mut replica = world.replica_with(name, 4, &["--absence-grace=3s"])?;
        ready(&mut replica).await?;
        replicas.push(replica);
    }
    let bundles: Vec<Bundle> = (0..BUNDLES)
        .map(|index| Bundle::config_maps(&format!("book-{index:02}"), NAMESPACE, 2, "1"))
        .collect();
    publisher.publish(&bundles).await?;
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;
    let before = objects(&client).await?;
    assert_eq!(before.len(), 2 * BUNDLES);

    let crds: Api<CustomResourceDefinition> = Api::all(world.upstream.admin().await?);
    crds.delete("bundledeployments.fleet.cattle.io", &DeleteParams::default()).await?;
    for replica in &replicas {
        until("the hold to be told", GENEROUS, async || {
            let (_, text) = get(&format!("{}/readyz?verbose", replica.probe_url())).await?;
            Ok(text.contains("[-]absence failed").then_some(()))
        })
        .await?;
    }
    world.event(reason::ABSENCE_HELD, "their kind is being removed").await?;
    // Each was tried and refused, and refused again after a rest longer than the grace of single units.
    until("each removal to be refused twice", GENEROUS, async || {
        let refused = |replica: &Replica, unit: &str| {
            let log = replica.log();
            let of_it = format!("\"unit\":\"{unit}\"");
            log.lines().filter(|line| line.contains(REFUSED) && line.contains(&of_it)).count()
        };
        let all = |replica| bundles.iter().all(|bundle| refused(replica, &bundle.name) >= 2);
        Ok(replicas.iter().all(all).then_some(()))
    })
    .await?;
    assert_eq!(objects(&client).await?, before, "something was uninstalled or made anew");

    fleet::install_crds(&world.upstream, &world.binary).await?;
    let units = world.units().await?;
    publisher.publish(&bundles).await?;
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;
    assert_eq!(objects(&client).await?, before, "what was there is the same object still");
    for replica in &mut replicas {
        ready(replica).await?;
    }
    Ok(())
}

/// Name and uid of what was deployed.
async fn objects(client: &Client) -> anyhow::Result<Vec<(String, String)>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let list = maps.list_metadata(&ListParams::default()).await?;
    let mut objects: Vec<_> =
        list.items.iter().map(|map| (map.name_any(), map.uid().unwrap_or_default())).collect();
    objects.retain(|(name, _)| name.starts_with("book-"));
    objects.sort();
    Ok(objects)
}
