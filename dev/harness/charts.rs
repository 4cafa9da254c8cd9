// SPDX-License-Identifier: Apache-2.0
//! Charts with hooks, and what becomes of their releases, in a cluster where nothing runs Jobs.

use std::time::Duration;

use anyhow::Context;
use flotilla::api::keys;
use flotilla::downstream::release::{Release, decode};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::bundles::Bundle;
use super::units::Units;
use super::until::until;

/// Where these charts go.
pub const NAMESPACE: &str = "yard";
const BOUND: Duration = Duration::from_secs(120);

/// The namespace of these tests, downstream.
pub struct Yard {
    /// The cluster.
    pub client: Client,
    jobs: Api<Job>,
    /// Its ConfigMaps.
    pub maps: Api<ConfigMap>,
    /// Its Secrets, release records among them.
    pub secrets: Api<Secret>,
}

impl Yard {
    /// Of this cluster.
    pub fn new(client: Client) -> Yard {
        let (jobs, maps, secrets) = (
            Api::namespaced(client.clone(), NAMESPACE),
            Api::namespaced(client.clone(), NAMESPACE),
            Api::namespaced(client.clone(), NAMESPACE),
        );
        Yard { client, jobs, maps, secrets }
    }

    /// The uid of a Job, once it is there and is not `other`.
    pub async fn job(&self, name: &str, other: &str) -> anyhow::Result<String> {
        until(&format!("Job {name}"), BOUND, async || {
            let found = self.jobs.get_opt(name).await?;
            Ok(found.and_then(|job| job.metadata.uid).filter(|uid| uid != other))
        })
        .await
    }

    /// Says how a Job ended: nothing runs it.
    pub async fn ends(&self, name: &str, well: bool) -> anyhow::Result<()> {
        let now = "2026-08-22T12:00:00Z";
        let condition =
            |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now, "reason": "Said"});
        let status = if well {
            json!({"startTime": now, "completionTime": now, "succeeded": 1,
                "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]})
        } else {
            json!({"startTime": now, "failed": 1, "conditions": [condition("FailureTarget"), condition("Failed")]})
        };
        let patch = Patch::Merge(json!({"status": status}));
        self.jobs.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Whether there is a ConfigMap of this name.
    pub async fn has(&self, map: &str) -> anyhow::Result<bool> {
        Ok(self.maps.get_opt(map).await?.is_some())
    }

    /// Revision, status and description of each record of a release, oldest first.
    pub async fn history(&self, release: &str) -> anyhow::Result<Vec<(u32, String, String)>> {
        let mut all = Vec::new();
        for record in self.records(release).await? {
            all.push((record.version, record.info.status.to_string(), record.info.description));
        }
        all.sort();
        Ok(all)
    }

    /// The records of a release, oldest first.
    pub async fn records(&self, release: &str) -> anyhow::Result<Vec<Release>> {
        let found =
            self.secrets.list(&ListParams::default().labels(&format!("owner=helm,name={release}"))).await?;
        let mut releases = Vec::new();
        for secret in found {
            let data = secret.data.unwrap_or_default();
            releases.push(decode(&data.get("release").context("a payload")?.0)?);
        }
        releases.sort_by_key(|release| release.version);
        Ok(releases)
    }
}

/// A ConfigMap that tells the revision, or a Job; as a hook of these events at this weight.
pub fn object(kind: &str, name: &str, hook: Option<(&str, &str)>) -> Value {
    let mut object = match kind {
        "Job" => {
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.test/c:1"}]}}}})
        }
        _ => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"revision": "{{ .Release.Revision }}"}}),
    };
    if let Some((events, weight)) = hook {
        object["metadata"]["annotations"] = json!({"helm.sh/hook": events, "helm.sh/hook-weight": weight});
    }
    object
}

/// A chart of these objects, whose hooks have a minute each.
pub fn chart(name: &str, objects: &[Value]) -> Bundle {
    let mut bundle = Bundle::new(name, NAMESPACE)
        .file("Chart.yaml", format!("apiVersion: v2\nname: {name}\nversion: 0.1.0\n"))
        .with(|options| options.helm.get_or_insert_default().timeout_seconds = 60);
    for (index, object) in objects.iter().enumerate() {
        bundle = bundle.file(&format!("templates/{index}.yaml"), object.to_string());
    }
    bundle
}

/// Waits until a unit's claim says that it waits.
pub async fn until_waiting(units: &Units, name: &str) -> anyhow::Result<()> {
    units
        .until(&format!("{name} to wait"), BOUND, |live| {
            let claim = live.get(name)?.condition(keys::CLAIM_CONDITION)?;
            ((claim.status.as_str(), claim.reason.as_str()) == ("True", "Waiting")).then_some(())
        })
        .await
}
