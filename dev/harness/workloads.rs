// SPDX-License-Identifier: Apache-2.0
//! Controllers, a scheduler and simulated nodes, so that Deployments become ready without containers.

use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use super::control_plane::ControlPlane;
use super::pki;
use super::ports::Port;
use super::tools::Tools;
use super::until::{GENEROUS, Wait};

impl ControlPlane {
    /// Starts kube-controller-manager, and with `nodes` > 0 also the scheduler, KWOK and that many Node objects.
    ///
    /// A pod is ready `pod_delay` after it was scheduled. Without nodes there is still garbage collection, and
    /// deleted namespaces go away, which a bare control plane does not offer.
    pub async fn start_workloads(
        &mut self,
        tools: &Tools,
        nodes: usize,
        pod_delay: Duration,
    ) -> anyhow::Result<()> {
        self.start_controller_manager(tools, &[])?;
        if nodes > 0 {
            self.start_scheduler(tools)?;
            self.start_kwok(tools, pod_delay)?;
            self.create_nodes(nodes).await?;
        }
        self.workloads_ready(nodes).await
    }

    pub(super) fn start_controller_manager(
        &mut self,
        tools: &Tools,
        extra_args: &[String],
    ) -> anyhow::Result<()> {
        let user = "system:kube-controller-manager";
        let kubeconfig = self.write_kubeconfig("controller-manager.kubeconfig", user, None)?;
        let mut command = Command::new(tools.path("kube-controller-manager"));
        command.args([
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--service-account-private-key-file={}", self.dir.join("tokens.key").display()),
            format!("--root-ca-file={}", self.dir.join("ca.pem").display()),
            "--use-service-account-credentials=true".into(),
        ]);
        command.args(SHARED_ARGS).args(extra_args);
        let process = self.spawn("kube-controller-manager", command)?;
        self.workloads.push(process);
        Ok(())
    }

    pub(super) fn start_scheduler(&mut self, tools: &Tools) -> anyhow::Result<()> {
        let kubeconfig = self.write_kubeconfig("scheduler.kubeconfig", "system:kube-scheduler", None)?;
        let mut command = Command::new(tools.path("kube-scheduler"));
        command.arg(format!("--kubeconfig={}", kubeconfig.display())).args(SHARED_ARGS);
        let process = self.spawn("kube-scheduler", command)?;
        self.workloads.push(process);
        Ok(())
    }

    fn start_kwok(&mut self, tools: &Tools, pod_delay: Duration) -> anyhow::Result<()> {
        let kubeconfig = self.write_kubeconfig("kwok.kubeconfig", "kwok", Some("system:masters"))?;
        let stages = self.dir.join("stages.yaml");
        pki::write_private(&stages, &STAGES.replace("POD_DELAY", &pod_delay.as_millis().to_string()))?;
        let port = Port::reserve()?;
        let mut command = Command::new(tools.path("kwok"));
        command.args([
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--config={}", stages.display()),
            format!("--node-port={}", port.number()),
            "--manage-all-nodes=true".into(),
            "--node-ip=127.0.0.1".into(),
            "--node-lease-duration-seconds=40".into(),
        ]);
        let process = self.spawn("kwok", command)?;
        self.workloads.push(process);
        self.ports.push(port);
        Ok(())
    }

    async fn create_nodes(&self, nodes: usize) -> anyhow::Result<()> {
        let api: Api<Node> = Api::all(self.admin().await?);
        let size = json!({"cpu": "64", "memory": "256Gi", "pods": "1000", "ephemeral-storage": "1Ti"});
        for index in 0..nodes {
            let name = format!("node-{index}");
            let node = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {
                    "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                }},
                "status": {"allocatable": size, "capacity": size},
            }))?;
            api.create(&PostParams::default(), &node).await.with_context(|| format!("creating {name}"))?;
        }
        Ok(())
    }

    /// Waits until pods can be placed, and service accounts are made for new namespaces.
    pub(super) async fn workloads_ready(&mut self, nodes: usize) -> anyhow::Result<()> {
        let client = self.admin().await?;
        let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
        let api: Api<Node> = Api::all(client);
        let wait = Wait::new("the nodes to be ready", GENEROUS);
        loop {
            self.workloads.iter_mut().try_for_each(|process| process.check())?;
            let usable = async {
                accounts.get("default").await?;
                let usable =
                    api.list(&ListParams::default()).await?.iter().filter(|node| is_usable(node)).count();
                Ok((usable >= nodes).then_some(()))
            };
            if wait.attempt(usable).await?.is_some() {
                return Ok(());
            }
        }
    }
}

/// No election among one, no port to serve metrics on, and no client-side throttle that a benchmark would measure.
const SHARED_ARGS: [&str; 4] =
    ["--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000"];

/// Ready, and without the taint a node carries until the controllers have seen it ready.
fn is_usable(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    let tainted = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).is_some_and(|t| !t.is_empty());
    ready && !tainted
}

/// The life of nodes and pods: KWOK brings no stages of its own.
const STAGES: &str = include_str!("stages.yaml");
