// SPDX-License-Identifier: Apache-2.0
//! A site that gets nothing but printed manifests and an image, on a real node: `docs/unmanaged.md`, its printed way.

use std::path::Path;

use anyhow::{Context, ensure};
use flotilla::api::{BundleDeployment, names};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::GENEROUS;
use harness::guide::{Guide, Shell};
use harness::node::{Node, image, on_a_node};
use harness::units::Units;

const BINARY: &str = env!("CARGO_BIN_EXE_flotilla");
/// As the guide names it.
const IMAGE: &str = "registry.example/flotilla:0.1.0";

#[tokio::test(flavor = "multi_thread")]
async fn printed_manifests_and_kubectl_are_enough_for_an_agent_that_deploys() -> anyhow::Result<()> {
    on_a_node("flotilla-air-gapped-", story).await
}

async fn story(node: &Node, work: &Path) -> anyhow::Result<()> {
    let namespace = names::cluster_namespace("fleet-default", "orchard");
    let guide = Guide::read("docs/unmanaged.md", shell(node, work, &namespace)?)?;
    node.load(&image(&["--tag", IMAGE])?)?;
    guide.section("", &[])?;
    guide.section("Printed, for a site that cannot be reached", &[])?;
    guide.command("flotilla register orchard --print downstream --token-file")?;
    let rollout = ["rollout", "status", "deployment/flotilla-agent", "--timeout=5m"];
    node.run("kubectl", &[&rollout[..], &["--namespace", "cattle-fleet-system"]].concat())?;

    guide.command("flotilla apply shop/")?;
    let client = node.plane.admin().await?;
    let units: Api<BundleDeployment> = Api::namespaced(client.clone(), &namespace);
    Units::follow(units).await?.until_ready(["shop"], GENEROUS).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "market");
    let data = maps.get("stall").await?.data.unwrap_or_default();
    ensure!(data.get("fruit").map(String::as_str) == Some("pears"), "{data:?}");
    Ok(())
}

fn shell(node: &Node, work: &Path, namespace: &str) -> anyhow::Result<Shell> {
    std::fs::create_dir_all(work.join("shop/manifests"))?;
    std::fs::write(work.join("shop/fleet.yaml"), "defaultNamespace: market\n")?;
    std::fs::write(
        work.join("shop/manifests/map.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stall}\ndata: {fruit: pears}\n",
    )?;
    std::fs::write(work.join("ca.pem"), node.plane.ca_pem())?;
    // Two names for the one cluster: the guide tells the management cluster from the site.
    let mut all: Value = serde_saphyr::from_str(&std::fs::read_to_string(node.plane.admin_kubeconfig())?)?;
    let context = all["contexts"][0]["context"].clone();
    all["contexts"] =
        json!([{"name": "management", "context": context}, {"name": "site", "context": context}]);
    let kubeconfig = work.join("kubeconfig");
    std::fs::write(&kubeconfig, all.to_string())?;
    let beside = Path::new(BINARY).parent().context("no folder")?;
    let path = std::env::var("PATH")?;
    let variables = [
        ("PATH", format!("{}:{}:{path}", beside.display(), node.tools.bin.display())),
        ("HOME", work.display().to_string()),
        ("KUBECONFIG", kubeconfig.display().to_string()),
        ("SERVER", node.plane.url()),
        ("ORCHARD", namespace.to_owned()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
    Ok(Shell { dir: work.to_owned(), variables })
}
