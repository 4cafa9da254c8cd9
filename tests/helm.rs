// SPDX-License-Identifier: Apache-2.0
//! The real helm works on our releases: it lists them, shows them, upgrades them, rolls them back and uninstalls them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

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

/// What Fleet's agent would do with it is shown in two halves, since helm's field manager is always `helm`: an apply
/// under that agent's manager, without force; and helm's own merge with the manifest in our record.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_agent_goes_on_with_our_release_and_back() -> anyhow::Result<()> {
    let tools = Tools::build(&["kube-apiserver", "etcd", "helm"])?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = handed_back(&world).await;
    world.conclude(result)
}

const HANDED_BACK: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: prices, labels: {season: winter}}
data: {apple: one, pear: two}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: notice}
data: {text: closing}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kiosk}
spec:
  selector: {matchLabels: {app: kiosk}}
  template:
    metadata: {labels: {app: kiosk}}
    spec: {containers: [{name: c, image: example.com/c:1}]}
";

async fn handed_back(world: &World) -> anyhow::Result<()> {
    let units = world.units().await?;
    let publisher = world.publisher().await?;
    let mut replica = world.ready_replica("replica-1", 4).await?;
    let bundle = Bundle::new("kiosk", "market").file("manifests/kiosk.yaml", HANDED_BACK);
    publisher.publish(std::slice::from_ref(&bundle)).await?;
    units
        .until("the bundle to be deployed", BOUND, |live| {
            let status = live.get("kiosk")?.status.as_ref()?;
            (status.applied_deployment_id == bundle.deployment_id()).then_some(())
        })
        .await?;
    replica.term()?;
    replica.wait().await?;

    let client = world.downstream.admin().await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "market");
    let deployments: Api<Deployment> = Api::namespaced(client, "market");
    let (was, prices) = (deployments.get("kiosk").await?, maps.get("prices").await?);

    let mut applied = serde_json::to_value(&prices)?;
    applied["data"] = json!({"apple": "half"});
    for bookkeeping in ["managedFields", "resourceVersion", "uid", "creationTimestamp"] {
        applied["metadata"].as_object_mut().context("metadata")?.remove(bookkeeping);
    }
    let applied = maps.patch("prices", &PatchParams::apply("fleetagent"), &Patch::Apply(applied)).await?;
    let data = applied.data.unwrap_or_default();
    assert_eq!(
        data,
        [("apple".to_owned(), "half".to_owned())].into(),
        "no conflict, and what it dropped is gone"
    );

    let helm = |arguments: &[&str]| helm(world, &[arguments, &["-n", "market"]].concat());
    // The next version, made of what the record lists, marks and all.
    let manifest = helm(&["get", "manifest", "kiosk"])?;
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&manifest)?;
    objects.retain(|object| object["metadata"]["name"] != "notice");
    let next = objects.iter_mut().find(|object| object["metadata"]["name"] == "prices");
    let next = next.context("the record lists the prices")?;
    next["data"] = json!({"apple": "three"});
    next["metadata"]["labels"].as_object_mut().context("labels")?.remove("season");
    let chart = world.dir().join("next");
    std::fs::create_dir_all(chart.join("templates"))?;
    std::fs::write(chart.join("Chart.yaml"), "{apiVersion: v2, name: kiosk, version: 2.0.0}")?;
    let text: String = objects.iter().map(|object| format!("---\n{object}\n")).collect();
    std::fs::write(chart.join("templates/all.yaml"), text)?;
    helm(&["upgrade", "kiosk", &chart.display().to_string(), "--server-side=false"])?;

    let changed = maps.get("prices").await?;
    let data = changed.data.clone().unwrap_or_default();
    assert_eq!(data, [("apple".to_owned(), "three".to_owned())].into(), "a dropped entry is gone");
    assert!(!changed.labels().contains_key("season"), "a dropped label is gone");
    assert_eq!(maps.get_opt("notice").await?, None, "a dropped object is gone");
    untouched(&was, &deployments.get("kiosk").await?);

    helm(&["rollback", "kiosk", "1", "--server-side=false"])?;
    let back = maps.get("prices").await?;
    assert_eq!((&back.data, back.uid()), (&prices.data, prices.uid()));
    assert_eq!(back.labels(), prices.labels());
    assert_eq!(maps.get("notice").await?.data.unwrap_or_default()["text"], "closing");
    untouched(&was, &deployments.get("kiosk").await?);
    let history: Value = serde_json::from_str(&helm(&["history", "kiosk", "-o", "json"])?)?;
    let states: Vec<_> = history.as_array().into_iter().flatten().map(|one| &one["status"]).collect();
    assert_eq!(states, ["superseded", "superseded", "deployed"]);
    Ok(())
}

/// Nothing that a controller acts on. The generation of a Deployment counts its annotations, too, among them our stamp.
fn untouched(was: &Deployment, now: &Deployment) {
    assert_eq!((was.uid(), &was.spec), (now.uid(), &now.spec));
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
