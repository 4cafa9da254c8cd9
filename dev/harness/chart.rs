// SPDX-License-Identifier: Apache-2.0
//! Flotilla's own charts on a real node, by real helm, in local mode: bundles come from the cluster itself.

use std::path::Path;

use super::fleet::AGENT_NAMESPACE;
use super::node::Node;

/// The namespace of the BundleDeployments.
pub const LOCAL_NAMESPACE: &str = "cluster-fleet-local-local";
/// Where the controller runs.
pub const CONTROLLER_NAMESPACE: &str = "cattle-fleet-flotilla";

/// Installs, or upgrades, both charts with the image tag `tag` and waits until everything is ready. `slots` are each
/// replica's deployments at once.
pub fn install(
    node: &Node,
    agents: usize,
    slots: usize,
    controllers: usize,
    tag: &str,
) -> anyhow::Result<()> {
    let slots = format!("agent.reconciler.workers.bundledeployment={slots}");
    let (namespace, tag) = (format!("local.clusterNamespace={LOCAL_NAMESPACE}"), format!("image.tag={tag}"));
    let replicas = format!("replicas={agents}");
    // No cluster DNS on a node that stays.
    let url = "local.apiServerURL=https://10.96.0.1:443";
    let agent = ["local.enabled=true", &namespace, url, &replicas, &slots, &tag];
    release(node, "flotilla-agent", AGENT_NAMESPACE, &agent)?;
    let replicas = format!("replicas={controllers}");
    release(node, "flotilla-controller", CONTROLLER_NAMESPACE, &[&replicas, &tag])
}

fn release(node: &Node, chart: &str, namespace: &str, settings: &[&str]) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts").join(chart).display().to_string();
    let mut args = vec!["upgrade", "--install", chart, &path, "--namespace", namespace, "--create-namespace"];
    args.extend(["--wait", "--timeout=3m"]);
    let common = ["image.repository=flotilla.local/flotilla", "image.pullPolicy=Never"];
    for setting in common.iter().chain(settings) {
        args.extend(["--set", setting]);
    }
    node.run("helm", &args).map(drop)
}
