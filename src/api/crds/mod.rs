// SPDX-License-Identifier: Apache-2.0
//! CustomResourceDefinitions generated from the types, for clusters without a Fleet controller.
//!
//! They prune and accept what Fleet's own do, so that an object written under one set can be written under the
//! other. `tests/snapshots/crds.yaml` shows every change.

mod schema;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::json;

use super::{Bundle, BundleDeployment, Cluster};

/// The definitions Flotilla and its command line need, in a stable order.
pub fn all() -> Vec<CustomResourceDefinition> {
    [
        (Bundle::crd(), "Files, options and targets; the controller makes BundleDeployments of it."),
        (BundleDeployment::crd(), "One bundle on one cluster: what is deployed there and how it went."),
        (Cluster::crd(), "A cluster that bundles are deployed to."),
        (content(), "The files of a bundle, named after their hash."),
    ]
    .into_iter()
    .map(|(mut crd, description)| {
        crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
        for version in &mut crd.spec.versions {
            let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) else {
                continue;
            };
            *schema = schema::as_fleets(schema, description);
        }
        crd
    })
    .collect()
}

/// The definitions as one YAML text of several documents.
pub fn yaml() -> Result<String, serde_saphyr::ser::Error> {
    let mut text = String::new();
    for crd in all() {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&crd)?);
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(text)
}

/// Content has no spec, so nothing can be derived.
fn content() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "contents.fleet.cattle.io"},
        "spec": {
            "group": "fleet.cattle.io",
            "names": {"kind": "Content", "plural": "contents", "singular": "content"},
            "scope": "Cluster",
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "content": {
                            "description": "Gzip of the manifest JSON.",
                            "type": "string",
                            "format": "byte",
                        },
                        "sha256sum": {
                            "description": "Hex SHA-256 of the uncompressed bytes; may be empty.",
                            "type": "string",
                        },
                        "status": {
                            "description": "References, counted by the controller.",
                            "type": "object",
                            "properties": {"referenceCount": {
                                "description": "BundleDeployments that use it.",
                                "type": "integer",
                            }},
                        },
                    },
                }},
            }],
        },
    }))
    .expect("the literal above is a definition; a test reads it")
}

#[cfg(test)]
mod tests;
