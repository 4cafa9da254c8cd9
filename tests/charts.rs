// SPDX-License-Identifier: Apache-2.0
//! Charts, kustomizations and overlays deployed by a real agent to a real API server, and read by the real helm.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use flotilla::api::keys;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::Tools;
use harness::bundles::{Bundle, Publisher};
use harness::units::Units;
use harness::world::{Downstream, World};

const BOUND: Duration = Duration::from_secs(120);
const NAMESPACE: &str = "market";

#[tokio::test(flavor = "multi_thread")]
async fn charts_kustomizations_and_overlays_are_deployed() -> anyhow::Result<()> {
    let tools = Tools::build(&["kube-apiserver", "etcd", "helm"])?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let units = world.units().await?;
    let publisher = world.publisher().await?;
    let downstream = world.downstream.admin().await?;
    let namespaces: Api<Namespace> = Api::all(downstream.clone());
    namespaces.create(&PostParams::default(), &named(json!({}), NAMESPACE)?).await?;
    let maps: Api<ConfigMap> = Api::namespaced(downstream, NAMESPACE);
    let source = json!({"data": {"values.yaml": "price: 7\nstall: {colour: red}\n", "found": "it-is"}});
    maps.create(&PostParams::default(), &named(source, "source")?).await?;
    let _replica = world.ready_replica("replica-1", 4).await?;

    a_chart_sees_release_cluster_and_values(world, &units, &publisher, &maps).await?;
    a_kustomization_and_an_overlay(&units, &publisher, &maps).await?;
    values_of_a_secret_wait_for_their_hash(world, &units, &publisher, &maps).await
}

fn named<T: serde::de::DeserializeOwned>(mut object: Value, name: &str) -> anyhow::Result<T> {
    object["metadata"] = json!({"name": name});
    Ok(serde_json::from_value(object)?)
}

async fn data(maps: &Api<ConfigMap>, name: &str) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(maps.get(name).await?.data)?)
}

async fn deployed(units: &Units, publisher: &Publisher, bundle: &Bundle) -> anyhow::Result<()> {
    publisher.publish(std::slice::from_ref(bundle)).await?;
    units
        .until(&format!("{} to be deployed", bundle.name), BOUND, |live| {
            let status = live.get(&bundle.name)?.status.as_ref()?;
            (status.applied_deployment_id == bundle.deployment_id() && status.ready).then_some(())
        })
        .await
}

const KIOSK: &str = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: kiosk}
data:
  release: "{{ .Release.Name }}.{{ .Release.Revision }}.{{ .Release.IsUpgrade }}"
  price: "{{ .Values.price }}"
  colour: "{{ .Values.stall.colour }} {{ .Values.stall.size }}"
  found: "{{ (lookup "v1" "ConfigMap" .Release.Namespace "source").data.found }}"
  serves: "{{ .Capabilities.APIVersions.Has "apps/v1/Deployment" }} {{ .Capabilities.APIVersions.Has "no/v1" }}"
"#;

fn kiosk(values: Value) -> anyhow::Result<Bundle> {
    let bundle = Bundle::new("kiosk", NAMESPACE)
        .file("beside.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: beside}\n")
        .file("charts/kiosk/Chart.yaml", "apiVersion: v2\nname: kiosk-chart\nversion: 1.2.3\n")
        .file("charts/kiosk/values.yaml", "price: 1\nstall: {colour: none, size: small}\n")
        .file("charts/kiosk/templates/kiosk.yaml", KIOSK);
    let helm = serde_json::from_value(values)?;
    Ok(bundle.with(|options| options.helm = Some(helm)))
}

async fn a_chart_sees_release_cluster_and_values(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    maps: &Api<ConfigMap>,
) -> anyhow::Result<()> {
    let options = json!({"chart": "charts/kiosk", "values": {"price": 5, "stall": {"size": "large"}},
        "valuesFrom": [{"configMapKeyRef": {"name": "source"}}]});
    deployed(units, publisher, &kiosk(options)?).await?;
    let expected = json!({"release": "kiosk.1.false", "price": "7", "colour": "red large", "found": "it-is",
        "serves": "true false"});
    assert_eq!(data(maps, "kiosk").await?, expected);
    assert_eq!(maps.get_opt("beside").await?, None, "files beside the chart are no manifests");

    let reused = kiosk(json!({"chart": "charts/kiosk"}))?;
    deployed(units, publisher, &reused).await?;
    let upgraded = data(maps, "kiosk").await?;
    assert_eq!(upgraded["release"], "kiosk.2.true");
    assert_eq!(upgraded["colour"], "red large", "an upgrade without values reuses the last ones");

    let values = helm(world, &["get", "values", "kiosk", "-n", NAMESPACE, "-o", "json"])?;
    let expected = json!({"price": 7, "stall": {"colour": "red", "size": "large"}});
    assert_eq!(serde_json::from_str::<Value>(&values)?, expected);
    let list: Value = serde_json::from_str(&helm(world, &["list", "-n", NAMESPACE, "-o", "json"])?)?;
    assert_eq!(list[0]["chart"], "kiosk-chart-1.2.3");
    let manifest = helm(world, &["get", "manifest", "kiosk", "-n", NAMESPACE])?;
    ensure!(manifest.contains("# Source: kiosk-chart/templates/kiosk.yaml"), "{manifest}");
    Ok(())
}

async fn a_kustomization_and_an_overlay(
    units: &Units,
    publisher: &Publisher,
    maps: &Api<ConfigMap>,
) -> anyhow::Result<()> {
    let base = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: base}\ndata: {from: base}\n";
    let kustomized = Bundle::new("kustomized", NAMESPACE)
        .file("kustomization.yaml", "namePrefix: over-\nresources: [base.yaml]\n")
        .file("base.yaml", base);
    deployed(units, publisher, &kustomized).await?;
    assert_eq!(data(maps, "over-base").await?, json!({"from": "base"}));
    assert_eq!(maps.get_opt("base").await?, None);

    let overlaid = Bundle::new("overlaid", NAMESPACE)
        .file("a.yaml", base)
        .file("overlays/prod/a_patch.yaml", "data: {patched: \"true\"}\n")
        .file("overlays/dev/b.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: dev-only}\n")
        .with(|options| options.yaml.get_or_insert_default().overlays = vec!["prod".into()]);
    deployed(units, publisher, &overlaid).await?;
    assert_eq!(data(maps, "base").await?, json!({"from": "base", "patched": "true"}));
    assert_eq!(maps.get_opt("dev-only").await?, None);
    Ok(())
}

/// The controller writes BundleDeployment and Secret one after the other: between the two nothing is said.
async fn values_of_a_secret_wait_for_their_hash(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    maps: &Api<ConfigMap>,
) -> anyhow::Result<()> {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: secretive}\ndata: {word: \"{{ .Values.word }}\"}\n";
    let mut bundle = Bundle::new("secretive", NAMESPACE).file("templates/a.yaml", text);
    bundle.paused = true;
    publisher.publish(&[bundle]).await?;
    let (right, wrong) = (r#"{"word":"hunter2"}"#, r#"{"word":"not-yet"}"#);
    let secret = |values: &str| -> anyhow::Result<Secret> {
        named(
            json!({"type": "fleet.cattle.io/bundle-deployment/v1alpha1", "stringData": {"values": values}}),
            "secretive",
        )
    };
    let upstream = world.upstream.admin().await?;
    let secrets: Api<Secret> = Api::namespaced(upstream, &world.registration.cluster_namespace);
    secrets.create(&PostParams::default(), &secret(wrong)?).await?;
    let hash: String = Sha256::digest(right).iter().map(|byte| format!("{byte:02x}")).collect();
    let patch = json!({"spec": {"paused": false, "valuesHash": hash}});
    publisher.units().patch("secretive", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    let message = units
        .until("the mismatch to be noticed", BOUND, |live| {
            let claim = live.get("secretive")?.condition(keys::CLAIM_CONDITION)?;
            (claim.reason == "BackingOff").then(|| claim.message.clone())
        })
        .await?;
    ensure!(message.contains("retrying, hash mismatch between secret and bundledeployment"), "{message}");
    ensure!(!message.contains("not-yet"), "{message}");
    let said = units.live().get("secretive").context("it is there")?.condition("Deployed").is_some();
    ensure!(!said, "Fleet's conditions say nothing of it");

    secrets.patch("secretive", &PatchParams::default(), &Patch::Merge(&secret(right)?)).await?;
    units.until_ready(["secretive"], BOUND).await?;
    assert_eq!(data(maps, "secretive").await?, json!({"word": "hunter2"}));
    let status = serde_json::to_string(&units.live().get("secretive").context("it is there")?.status)?;
    ensure!(!status.contains("hunter2"), "{status}");
    Ok(())
}

fn helm(world: &World, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(world.tools.path("helm"))
        .args(arguments)
        .env("KUBECONFIG", world.downstream.admin_kubeconfig())
        .output()
        .context("running helm")?;
    if !output.status.success() {
        bail!("helm {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
