// SPDX-License-Identifier: Apache-2.0
//! The agent's Pods as they come and go, and their session Leases.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::BOUND;
use super::harness::until;

/// The Pods of one chart's Deployment.
pub struct Pods {
    api: Api<Pod>,
    namespace: &'static str,
    selector: String,
}

impl Pods {
    /// Those of the release `release` in `namespace`.
    pub async fn follow(client: Client, namespace: &'static str, release: &str) -> anyhow::Result<Pods> {
        let selector = format!("app.kubernetes.io/name={release},app.kubernetes.io/instance={release}");
        let pods = Pods { api: Api::namespaced(client, namespace), namespace, selector };
        pods.all().await?;
        Ok(pods)
    }

    /// The API behind.
    pub fn api(&self) -> &Api<Pod> {
        &self.api
    }

    /// All of them, those on their way out included, by name.
    pub async fn all(&self) -> anyhow::Result<BTreeMap<String, Pod>> {
        let params = ListParams::default().labels(&self.selector);
        let pods = self.api.list(&params).await.context("listing the agent's pods")?;
        Ok(pods.into_iter().map(|pod| (pod.name_any(), pod)).collect())
    }

    /// Waits until exactly `count` are there and all are ready; gives their names.
    pub async fn until_ready(&self, count: usize) -> anyhow::Result<BTreeSet<String>> {
        until(&format!("{count} pods of the agent to be ready"), BOUND, async || {
            let pods = self.all().await?;
            let whole = pods.len() == count && pods.values().all(is_ready);
            Ok(whole.then(|| pods.into_keys().collect()))
        })
        .await
    }

    /// Waits until each Pod has one session Lease and there is no other.
    pub async fn until_leases_match(&self, client: &Client) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), self.namespace);
        until("one session Lease for each pod", BOUND, async || {
            let all = leases.list(&ListParams::default()).await?;
            let holders: Vec<String> = all
                .iter()
                .filter(|lease| lease.name_any().starts_with("flotilla"))
                .filter_map(|lease| {
                    lease
                        .owner_references()
                        .iter()
                        .find(|owner| owner.kind == "Pod")
                        .map(|owner| owner.name.clone())
                })
                .collect();
            let unique: BTreeSet<&String> = holders.iter().collect();
            let pods = self.all().await?;
            let same = unique.len() == holders.len() && unique == pods.keys().collect();
            if !same {
                anyhow::bail!("Leases of {holders:?}, pods {:?}", pods.keys());
            }
            Ok(Some(()))
        })
        .await
    }
}

/// Ready, and not on its way out.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    ready && pod.metadata.deletion_timestamp.is_none()
}
