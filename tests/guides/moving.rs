// SPDX-License-Identifier: Apache-2.0
//! `docs/moving.md`: from Fleet's agent to ours and back.

use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::{BundleDeployment, names};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::harness::fleet::REGISTRATION_NAMESPACE;
use super::harness::guide::{Guide, Shell};
use super::harness::node::PAUSE;
use super::harness::units::Units;
use super::harness::{GENEROUS, until};

/// The namespace of both agents.
const NAMESPACE: &str = "garden";

/// Follows the page to its end.
pub async fn in_and_back(client: &Client, shell: &Shell) -> anyhow::Result<()> {
    let guide = Guide::read("docs/moving.md", shell.clone())?;
    let units: Api<BundleDeployment> =
        Api::namespaced(client.clone(), &names::cluster_namespace(REGISTRATION_NAMESPACE, "garden"));
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);

    // As Rancher would have it: a Cluster without our label, Fleet's agent, and the registration they share.
    let registered = "flotilla register garden --context management --agent-namespace garden \
         --downstream-kubeconfig \"$KUBECONFIG\" --downstream-context site";
    shell.done(registered)?;
    let clusters = "kubectl --context management --namespace fleet-default";
    shell.done(&format!(
        "{clusters} label clusters.fleet.cattle.io garden fleet.cattle.io/cluster-management-"
    ))?;
    let refused = shell.run(registered)?;
    ensure!(refused.code == 1 && refused.stderr.contains("--existing"), "{}", refused.stderr);
    let site = "kubectl --context site --namespace garden";
    shell.done(&format!("{site} create deployment fleet-agent --image {PAUSE}"))?;
    let _agent = AbortOnDropHandle::new(tokio::spawn(fleets_agent(client.clone())));
    until_held(&leases, "fleet-agent-").await?;
    std::fs::create_dir_all(shell.dir.join("shop/manifests"))?;
    std::fs::write(shell.dir.join("shop/fleet.yaml"), "defaultNamespace: arcade\n")?;
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stall}\ndata: {fruit: pears}\n";
    std::fs::write(shell.dir.join("shop/manifests/map.yaml"), map)?;
    shell.done("flotilla apply shop/ --context management --namespace \"$GARDEN\"")?;

    guide.section("In", &[])?;
    let cluster = shell.done(&format!("{clusters} get clusters.fleet.cattle.io garden -o json"))?;
    let cluster: Value = serde_json::from_str(&cluster.stdout)?;
    ensure!(cluster["metadata"]["labels"]["fleet.cattle.io/non-managed-agent"] == "true", "{cluster}");
    until_held(&leases, "flotilla/").await?;
    Units::follow(units.clone()).await?.until_ready(["shop"], GENEROUS).await?;

    shell.done("flotilla quarantine shop --context management --namespace \"$GARDEN\"")?;
    let claimed = |unit: &BundleDeployment| unit.condition("InProgress").is_some();
    ensure!(claimed(&units.get("shop").await?));
    guide.section("Back", &[])?;
    ensure!(!claimed(&units.get("shop").await?), "no entry may be left for Fleet's tools");
    until_held(&leases, "fleet-agent-").await?;
    guide.finished()
}

async fn until_held(leases: &Api<Lease>, start: &str) -> anyhow::Result<()> {
    until(&format!("Lease fleet-agent to be held by {start}…"), GENEROUS, async || {
        let holder = leases.get_opt("fleet-agent").await?.as_ref().map(holder).unwrap_or_default();
        Ok(holder.starts_with(start).then_some(()))
    })
    .await
}

fn holder(lease: &Lease) -> String {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default()
}

/// Fleet's agent, as far as its Lease tells: its Pod renews the Lease while it lives, and takes it when nobody has it.
async fn fleets_agent(client: Client) {
    for number in 0u32.. {
        // A call that fails is made again.
        let _ = renewed(&client, number).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn renewed(client: &Client, number: u32) -> anyhow::Result<()> {
    let (pods, leases) = (
        Api::<Pod>::namespaced(client.clone(), NAMESPACE),
        Api::<Lease>::namespaced(client.clone(), NAMESPACE),
    );
    let lives = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let all = pods.list(&ListParams::default().labels("app=fleet-agent")).await?;
    let pod = all.iter().find(|pod| lives(pod)).context("it does not run")?.name_any();
    let lease = leases.get_opt("fleet-agent").await?;
    let other = lease.as_ref().map(holder).filter(|holder| !holder.is_empty() && *holder != pod);
    ensure!(other.is_none(), "it stands by");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "fleet-agent", "resourceVersion": lease.and_then(|lease| lease.resource_version())},
        "spec": {"holderIdentity": pod, "leaseDurationSeconds": 6, "leaseTransitions": number}});
    leases.patch("fleet-agent", &PatchParams::apply("fleetagent").force(), &Patch::Apply(&lease)).await?;
    Ok(())
}
