// SPDX-License-Identifier: Apache-2.0
//! The chart in Helm's release record.

use serde_json::{Value, json};

use crate::api::keys;

use super::{Job, layout::Layout};

/// Time zero, which Fleet's agent gives every file, so that equal bundles give equal charts.
const EPOCH: &str = "1970-01-01T00:00:00Z";

/// Go's zero time: no schema.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The record's `chart` of a bundle that has no templates. Files are named, but their contents left out: nobody reads
/// them back (Helm and Fleet roll back to the manifest), and the record must fit into a Secret.
pub(super) fn generated(job: &Job<'_>, layout: &Layout) -> Value {
    let file = |name: &str| json!({"name": format!("raw-yaml/{name}"), "data": "", "modtime": EPOCH});
    let mut chart = json!({
        "metadata": {
            "name": job.bd_name,
            "version": layout.version,
            "apiVersion": "v2",
        },
        "lock": null,
        "templates": [],
        "values": null,
        "schema": null,
        "schemamodtime": NEVER,
        "files": layout.raw.iter().map(|(name, _)| file(name)).collect::<Vec<_>>(),
        "modtime": EPOCH,
    });
    annotate(&mut chart, job);
    chart
}

/// Makes a rendered chart one of Fleet's: by these annotations releases are found again. Contents of raw manifests are
/// left out here, too.
pub(super) fn annotate(chart: &mut Value, job: &Job<'_>) {
    for file in chart["files"].as_array_mut().into_iter().flatten() {
        if file["name"].as_str().is_some_and(|name| name.starts_with("raw-yaml/")) {
            file["data"] = "".into();
        }
    }
    let annotations = &mut chart["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[keys::SERVICE_ACCOUNT] = job.options.service_account.as_str().into();
    annotations[keys::BUNDLE_ID] = job.bd_name.into();
    annotations[keys::AGENT_NAMESPACE] = job.agent_namespace.into();
    annotations[keys::KEEP_RESOURCES] = job.options.keep_resources.to_string().into();
    if !job.commit.is_empty() {
        annotations[keys::COMMIT] = job.commit.into();
    }
}
