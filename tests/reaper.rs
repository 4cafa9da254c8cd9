// SPDX-License-Identifier: Apache-2.0
//! The companion controller watches a large fleet in little memory.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use flotilla::api::BundleDeployment;
use futures::{StreamExt, TryStreamExt};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::world::{Downstream, World, get, ready};
use harness::{GENEROUS, Tools, until};

const FLEET: usize = 10_000;
const WRITERS: usize = 32;
/// The target: 10,000 BundleDeployments in 60 MB.
const LIMIT: u64 = 60_000_000;
/// In each status: what a bundle of some objects has.
const RESOURCES: usize = 20;
const CREATION: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_bundledeployments_are_watched_in_60_mb() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let client = world.upstream.admin().await?;
    tokio::time::timeout(CREATION, populate(world, client)).await??;
    // It lists all of them at its start, then follows.
    let mut controller = world.controller("controller", &[])?;
    ready(&mut controller).await?;
    let metrics = async || get(&controller.metrics_url()).await.map(|(_, text)| text);
    until("the claims to be counted", GENEROUS, async || {
        let text = metrics().await?;
        let counted = |state: &str| {
            let line = format!("flotilla_fleet_claims{{state=\"{state}\"}} {}", FLEET / 100);
            text.lines().any(|found| found == line)
        };
        Ok((counted("open") && counted("quarantined") && counted("expired")).then_some(()))
    })
    .await?;
    let resident = controller.rss_bytes()?;
    eprintln!("{FLEET} BundleDeployments: {} MB resident", resident / 1_000_000);
    ensure!(resident <= LIMIT, "{resident} bytes resident");
    controller.check()
}

/// Ten thousand units of which one in a hundred is being worked on, and as many rest.
async fn populate(world: &World, client: Client) -> anyhow::Result<()> {
    let api: Api<BundleDeployment> = Api::namespaced(client, &world.registration.cluster_namespace);
    let registration = &world.registration;
    futures::stream::iter(0..FLEET)
        .map(|index| {
            let api = api.clone();
            async move {
                let name = format!("unit-{index:05}");
                let object = Bundle::new(&name, "fleet").bundle_deployment(registration);
                api.create(&PostParams::default(), &object).await?;
                let status = json!({"status": status(index)});
                api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(WRITERS)
        .try_collect::<()>()
        .await
}

fn status(index: usize) -> serde_json::Value {
    let resources: Vec<_> = (0..RESOURCES)
        .map(|resource| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "fleet", "name": format!("map-{resource}")})
        })
        .collect();
    let mut conditions = vec![json!({"type": "Ready", "status": "True"})];
    let claim = |status: &str, reason: &str| {
        json!({"type": "InProgress", "status": status, "reason": reason, "message":
            "v1 holder=pod-1 session=s nonce=n attempt=1 lost=0 by= budget=600 deployment=d"})
    };
    match index % 100 {
        0 => conditions.push(claim("True", "Claimed")),
        1 => conditions.push(claim("False", "Quarantined")),
        2 => conditions.push(claim("False", "Expired")),
        _ => {}
    }
    json!({"conditions": conditions, "resources": resources, "ready": true, "nonModified": true})
}
