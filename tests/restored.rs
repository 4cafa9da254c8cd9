// SPDX-License-Identifier: Apache-2.0
//! A management cluster that went back in time: nothing is overwritten by guess, people are told, a person resets.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use flotilla::api::keys;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::world::{Downstream, World, get, ready};
use harness::{GENEROUS, Tools, until};

const BOUND: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "vault";
/// A version that this test's management cluster does not reach.
const FUTURE: &str = "99999999";

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_future_stamped_is_told_and_reset_by_command() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let mut agent = world.ready_replica("agent", 4).await?;
    publisher.publish(&[Bundle::config_maps("ledger", NAMESPACE, 3, "1")]).await?;
    units.until_ready(["ledger"], BOUND).await?;

    // What the restored cluster would meet: everything was written by claims that it does not remember.
    let uid = units.live()["ledger"].uid().unwrap_or_default();
    let client = world.downstream.admin().await?;
    let stamp = json!({"metadata": {"annotations": {keys::EPOCH_ANNOTATION: format!("{uid}/{FUTURE}")}}});
    let (maps, secrets): (Api<ConfigMap>, Api<Secret>) =
        (Api::namespaced(client.clone(), NAMESPACE), Api::namespaced(client, NAMESPACE));
    for index in 0..3 {
        maps.patch(&format!("ledger-{index}"), &PatchParams::default(), &Patch::Merge(&stamp)).await?;
    }
    for record in secrets.list_metadata(&ListParams::default().labels("owner=helm")).await? {
        secrets.patch_metadata(&record.name_any(), &PatchParams::default(), &Patch::Merge(&stamp)).await?;
    }

    publisher.publish(&[Bundle::config_maps("ledger", NAMESPACE, 3, "2")]).await?;
    let told = units
        .until("the condition", GENEROUS, |live| {
            let condition = live.get("ledger")?.condition("Deployed")?.clone();
            condition.message.contains("went back in time").then_some(condition.message)
        })
        .await?;
    ensure!(told.contains("flotilla reset ledger"), "{told}");
    let (code, text) = get(&format!("{}/readyz", agent.probe_url())).await?;
    ensure!(code == 503 && text.contains("[-]upstream-history failed"), "{code}: {text}");
    for map in maps.list(&ListParams::default().labels(keys::HASH_LABEL)).await? {
        assert_eq!(map.data.unwrap_or_default()["version"], "1", "overwritten by guess");
    }

    let output = Command::new(&world.binary)
        .args(["reset", "ledger", "--kubeconfig"])
        .arg(world.upstream.admin_kubeconfig())
        .args(["--namespace", &world.registration.cluster_namespace, "--downstream-kubeconfig"])
        .arg(world.downstream.admin_kubeconfig())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(said.contains("reset (4 stamps set to "), "{said}");
    // At once, and not when its back-off ends.
    units.until_ready(["ledger"], GENEROUS).await?;
    until("the second version", GENEROUS, async || {
        let map = maps.get("ledger-0").await?;
        Ok((map.data.unwrap_or_default()["version"] == "2").then_some(()))
    })
    .await?;
    ready(&mut agent).await
}
