// SPDX-License-Identifier: Apache-2.0
//! The chart that a raw bundle becomes in Helm's release record.

use serde_json::{Value, json};

use crate::api::keys;

use super::Job;

/// Characters of the commit in a generated version.
const SHORT_COMMIT: usize = 12;

/// Time zero, which Fleet's agent gives every file, so that equal bundles give equal charts.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// Go's zero time: no schema.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The record's `chart`. Files are named, but their contents left out: nobody reads them back (Helm and Fleet roll
/// back to the manifest), and the record must fit into a Secret.
pub(super) fn chart<'a>(job: &Job<'_>, files: impl Iterator<Item = &'a str>) -> Value {
    let mut annotations = json!({
        keys::SERVICE_ACCOUNT: job.options.service_account,
        keys::BUNDLE_ID: job.bd_name,
        keys::AGENT_NAMESPACE: job.agent_namespace,
        keys::KEEP_RESOURCES: job.options.keep_resources.to_string(),
    });
    if !job.commit.is_empty() {
        annotations[keys::COMMIT] = job.commit.into();
    }
    let file = |name: &str| json!({"name": format!("raw-yaml/{name}"), "data": "", "modtime": EPOCH});
    json!({
        "metadata": {
            "name": job.bd_name,
            "version": version(job),
            "apiVersion": "v2",
            "annotations": annotations,
        },
        "lock": null,
        "templates": [],
        "values": null,
        "schema": null,
        "schemamodtime": NEVER,
        "files": files.map(file).collect::<Vec<_>>(),
        "modtime": EPOCH,
    })
}

fn version(job: &Job<'_>) -> String {
    match job.commit.char_indices().nth(SHORT_COMMIT) {
        Some((end, _)) => format!("v0.0.0+git-{}", &job.commit[..end]),
        None => format!("v0.0.0+{}", job.manifest.id()),
    }
}
