// SPDX-License-Identifier: Apache-2.0
//! The real helm works on our releases: it lists them, shows them, and uninstalls them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::Tools;
use harness::bundles::Bundle;
use harness::world::{Downstream, World};

const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn the_real_helm_lists_shows_and_uninstalls_our_releases() -> anyhow::Result<()> {
    let tools = Tools::build(&["kube-apiserver", "etcd", "helm"])?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

fn bundle(version: &str) -> Bundle {
    let manifest = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: kiosk}}
spec:
  selector: {{app: kiosk}}
  ports: [{{name: http, port: 80}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: kiosk}}
data: {{version: \"{version}\"}}
"
    );
    Bundle::new("kiosk", "market").file("manifests/kiosk.yaml", manifest)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let helm = |arguments: &[&str]| helm(world, arguments);
    let units = world.units().await?;
    let publisher = world.publisher().await?;
    let _replica = world.ready_replica("replica-1", 4).await?;
    for version in ["1", "2"] {
        let bundle = bundle(version);
        publisher.publish(&[bundle.clone(), Bundle::config_maps("other", "elsewhere", 2, "1")]).await?;
        units
            .until("the version to be deployed", BOUND, |live| {
                let status = live.get("kiosk")?.status.as_ref()?;
                (status.applied_deployment_id == bundle.deployment_id()).then_some(())
            })
            .await?;
    }
    units.until_ready(["kiosk", "other"], BOUND).await?;

    let list: Value = serde_json::from_str(&helm(&["list", "-A", "-o", "json"])?)?;
    let mut releases: Vec<[&str; 4]> = list
        .as_array()
        .context("helm list -o json")?
        .iter()
        .map(|release| {
            ["namespace", "name", "revision", "status"].map(|key| release[key].as_str().unwrap_or("?"))
        })
        .collect();
    releases.sort();
    assert_eq!(releases, [["elsewhere", "other", "1", "deployed"], ["market", "kiosk", "2", "deployed"]]);

    let history: Value = serde_json::from_str(&helm(&["history", "kiosk", "-n", "market", "-o", "json"])?)?;
    let history: Vec<(u64, &str)> = history
        .as_array()
        .context("helm history -o json")?
        .iter()
        .map(|revision| {
            (revision["revision"].as_u64().unwrap_or_default(), revision["status"].as_str().unwrap_or("?"))
        })
        .collect();
    assert_eq!(history, [(1, "superseded"), (2, "deployed")]);

    let manifest = helm(&["get", "manifest", "kiosk", "-n", "market"])?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&manifest)?;
    let mut objects: Vec<(&str, &str)> = documents
        .iter()
        .map(|object| {
            (object["kind"].as_str().unwrap_or("?"), object["metadata"]["name"].as_str().unwrap_or("?"))
        })
        .collect();
    objects.sort();
    assert_eq!(objects, [("ConfigMap", "kiosk"), ("Service", "kiosk")], "{manifest}");
    let config = documents.iter().find(|object| object["kind"] == "ConfigMap");
    assert_eq!(config.map(|object| object["data"]["version"].as_str()), Some(Some("2")), "{manifest}");
    let old = helm(&["get", "manifest", "kiosk", "-n", "market", "--revision", "1"])?;
    assert!(old.contains("version: \"1\"") || old.contains("version: '1'"), "{old}");
    assert!(helm(&["status", "kiosk", "-n", "market"])?.contains("STATUS: deployed"));

    // An agent would deploy it anew.
    publisher.pause("kiosk", true).await?;
    helm(&["uninstall", "kiosk", "-n", "market"])?;
    let client = world.downstream.admin().await?;
    let (maps, services): (Api<ConfigMap>, Api<Service>) =
        (Api::namespaced(client.clone(), "market"), Api::namespaced(client.clone(), "market"));
    assert_eq!(maps.get_opt("kiosk").await?, None);
    assert_eq!(services.get_opt("kiosk").await?, None);
    let secrets: Api<Secret> = Api::namespaced(client, "market");
    let left = secrets.list(&ListParams::default().labels("owner=helm")).await?;
    assert_eq!(left.items.len(), 0, "records are left");
    Ok(())
}

fn helm(world: &World, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(world.tools.path("helm"))
        .args(arguments)
        .env("KUBECONFIG", world.downstream.admin_kubeconfig())
        .output()
        .context("running helm")?;
    let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("helm {} failed: {stderr}", arguments.join(" "));
    }
    Ok(stdout)
}
