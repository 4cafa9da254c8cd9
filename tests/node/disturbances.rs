// SPDX-License-Identifier: Apache-2.0
//! What is done to the agent's Pods while they work.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use super::BOUND;
use super::harness::judge::Ended;
use super::harness::node::Node;
use super::harness::units::Units;
use super::harness::until;
use super::pods::{Pods, is_ready};

/// Disturbs, and remembers whom.
pub struct Disturber<'a> {
    node: &'a Node,
    client: Client,
    units: &'a Units,
    pods: &'a Pods,
    replicas: usize,
    ended: Vec<Ended>,
}

impl<'a> Disturber<'a> {
    /// Has done nothing yet; three replicas run.
    pub fn new(node: &'a Node, client: Client, units: &'a Units, pods: &'a Pods) -> Disturber<'a> {
        Disturber { node, client, units, pods, replicas: 3, ended: Vec::new() }
    }

    /// Those that got no time to finish, and when.
    pub fn ended(&self) -> Vec<Ended> {
        self.ended.clone()
    }

    /// `kubectl delete pod --force --grace-period=0` on a Pod that holds a claim.
    pub async fn force_delete_a_holder(&mut self) -> anyhow::Result<()> {
        let holder = self.holder().await?;
        self.note(&holder);
        self.delete(&holder, &["--force", "--grace-period=0"])?;
        self.replaced(&holder).await
    }

    /// A plain delete: SIGTERM, and time to finish.
    pub async fn delete_a_holder(&mut self) -> anyhow::Result<()> {
        let holder = self.holder().await?;
        self.delete(&holder, &["--wait=false"])?;
        self.replaced(&holder).await
    }

    /// SIGKILL to the process of a Pod that stays: the kubelet starts the container again.
    pub async fn kill_a_holders_container(&mut self) -> anyhow::Result<()> {
        let holder = self.holder().await?;
        let container = container(&self.pods.api().get(&holder).await?)?;
        self.note(&holder);
        self.node.kill_container(&container)?;
        let what = format!("the container of {holder} to run again");
        until(&what, BOUND, async || {
            let pod = self.pods.api().get(&holder).await?;
            Ok((is_ready(&pod) && container_id(&pod) != Some(container.as_str())).then_some(()))
        })
        .await
    }

    /// As an autoscaler or a person would.
    pub async fn scale(&mut self, replicas: usize) -> anyhow::Result<()> {
        let count = format!("--replicas={replicas}");
        self.node.run(
            "kubectl",
            &["scale", "deployment/flotilla-agent", "--namespace=cattle-fleet-system", &count],
        )?;
        self.replicas = replicas;
        self.pods.until_ready(replicas).await.map(drop)
    }

    /// Waits until every Pod runs the image with this tag.
    pub async fn until_all_run(&self, tag: &str) -> anyhow::Result<()> {
        self.pods.until_ready(self.replicas).await?;
        for (name, pod) in self.pods.all().await? {
            let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
            let image = containers.first().and_then(|container| container.image.clone()).unwrap_or_default();
            ensure!(image.ends_with(&format!(":{tag}")), "{name} runs {image}");
        }
        Ok(())
    }

    /// A drain of the only node: cordon, evict until the budget says no, uncordon, and the rest.
    pub async fn drain(&mut self) -> anyhow::Result<()> {
        let mut left: BTreeSet<String> = self.pods.until_ready(self.replicas).await?;
        self.cordon(true).await?;
        let first = left.pop_first().context("no pod to evict")?;
        self.evict(&first).await?.context("the first eviction was refused")?;
        // Its successor finds no node, so the budget is spent.
        let second = left.first().cloned().context("no second pod")?;
        ensure!(self.evict(&second).await?.is_none(), "the budget let two replicas go at once");
        self.cordon(false).await?;
        for name in left {
            self.pods.until_ready(self.replicas).await?;
            let what = format!("{name} to be evicted");
            until(&what, BOUND, async || self.evict(&name).await).await?;
        }
        self.pods.until_ready(self.replicas).await.map(drop)
    }

    /// A ready Pod that holds a claim now.
    async fn holder(&self) -> anyhow::Result<String> {
        let ready: BTreeSet<String> = self.pods.until_ready(self.replicas).await?;
        let fresh = Instant::now();
        let claim = self
            .units
            .until_claim("a claim of a ready pod", BOUND, |claim| {
                claim.end.is_none() && claim.seen > fresh && ready.contains(&claim.holder)
            })
            .await?;
        Ok(claim.holder)
    }

    fn note(&mut self, holder: &str) {
        self.ended.push(Ended { holder: holder.to_owned(), at: Instant::now() });
    }

    fn delete(&self, pod: &str, how: &[&str]) -> anyhow::Result<()> {
        let mut args = vec!["delete", "pod", pod, "--namespace=cattle-fleet-system"];
        args.extend(how);
        self.node.run("kubectl", &args).map(drop)
    }

    async fn replaced(&self, gone: &str) -> anyhow::Result<()> {
        let names = self.pods.until_ready(self.replicas).await?;
        ensure!(!names.contains(gone), "{gone} is still there");
        Ok(())
    }

    async fn cordon(&self, cordoned: bool) -> anyhow::Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let patch = json!({"spec": {"unschedulable": cordoned}});
        nodes.patch("node-0", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// `Some` when it was allowed, `None` when the budget forbids it now.
    async fn evict(&self, pod: &str) -> anyhow::Result<Option<()>> {
        let params = EvictParams { delete_options: Some(DeleteParams::default()), ..EvictParams::default() };
        match self.pods.api().evict(pod, &params).await {
            Ok(_) => Ok(Some(())),
            Err(kube::Error::Api(status)) if status.code == 429 => Ok(None),
            Err(error) => Err(error).with_context(|| format!("evicting {pod}")),
        }
    }
}

fn container_id(pod: &Pod) -> Option<&str> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.first()?.container_id.as_deref()?.strip_prefix("containerd://")
}

fn container(pod: &Pod) -> anyhow::Result<String> {
    match container_id(pod) {
        Some(id) => Ok(id.to_owned()),
        None => bail!("the pod has no container"),
    }
}
