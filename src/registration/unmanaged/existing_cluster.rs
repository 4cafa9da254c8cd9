// SPDX-License-Identifier: Apache-2.0
//! A Cluster that Rancher or Fleet's controller manages, and goes on managing: only the bundle with Fleet's own agent is
//! kept away from it.

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Done, Outcome, UnmanagedError};
use crate::api::Cluster;

/// Label of a Cluster: the agent bundle targets the clusters without it.
pub const AGENT_BUNDLE_LABEL: &str = "fleet.cattle.io/non-managed-agent";
const TRIES: usize = 5;

/// Sets the label, in the version that was read.
pub async fn keep_agent_bundle_away(
    client: &Client,
    namespace: &str,
    name: &str,
    dry_run: bool,
) -> Result<Done, UnmanagedError> {
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), namespace);
    let object = format!("Cluster {namespace}/{name}");
    for _ in 0..TRIES {
        let found =
            clusters.get_opt(name).await.map_err(UnmanagedError::request(format!("read {object}")))?;
        let Some(cluster) = found else {
            return Err(UnmanagedError::NoCluster { cluster: format!("{namespace}/{name}") });
        };
        let labels = cluster.metadata.labels.unwrap_or_default();
        if labels.get(AGENT_BUNDLE_LABEL).is_some_and(|value| value == "true") {
            return Ok(Done { object, outcome: Outcome::Unchanged });
        }
        let patch = json!({"metadata": {
            "uid": cluster.metadata.uid, "resourceVersion": cluster.metadata.resource_version,
            "labels": {AGENT_BUNDLE_LABEL: "true"},
        }});
        let params = PatchParams { dry_run, ..PatchParams::default() };
        match clusters.patch_metadata(name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(Done { object, outcome: Outcome::Configured }),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(UnmanagedError::request(format!("label {object}"))(error)),
        }
    }
    Err(UnmanagedError::Contended { object })
}
