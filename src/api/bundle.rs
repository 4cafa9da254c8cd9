// SPDX-License-Identifier: Apache-2.0
//! `Bundle`: files, options and targets. Fleet's controller makes BundleDeployments of it; `flotilla apply` makes one.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    BundleDeploymentOptions, BundleRef, BundleSummary, BundleTarget, BundleTargetRestriction, Condition,
    HelmChartOptions, RolloutStrategy, Unknown, is_zero, manifest::BundleResource, null_default,
    optional::optional_spec,
};

/// What is to be deployed, and where.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "fleet.cattle.io",
    version = "v1alpha1",
    kind = "Bundle",
    plural = "bundles",
    namespaced,
    status = "BundleStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"BundleDeployments-Ready","type":"string","jsonPath":".status.display.readyClusters"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "BundleSpec")]
pub struct BundleSpec {
    /// How it is deployed. Keeps unknown fields for the whole spec.
    #[serde(flatten)]
    pub options: BundleDeploymentOptions,
    /// Its BundleDeployments are not changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// How fast a new version spreads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout_strategy: Option<RolloutStrategy>,
    /// The files.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<BundleResource>,
    /// `FirstMatch` (default) or `AllMatches`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["FirstMatch", "AllMatches"], "default" = "FirstMatch"))]
    pub target_customization_mode: String,
    /// Clusters to deploy to.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<BundleTarget>,
    /// Clusters it may be deployed to at all.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub target_restrictions: Vec<BundleTargetRestriction>,
    /// Bundles that must be in an accepted state first.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<BundleRef>,
    /// Manifest id when the files are in an OCI registry.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub contents_id: String,
    /// Present: a HelmOp's chart instead of files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helm_op_options: Option<HelmChartOptions>,
    /// Non-empty: Helm values are in a Secret of the same name.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub values_hash: String,
}

optional_spec!(BundleSpec);

/// What became of it; written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct BundleStatus {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<BundleSummary>,
    #[serde(skip_serializing_if = "is_zero")]
    pub newly_created: i64,
    pub unavailable: i64,
    pub unavailable_partitions: i64,
    pub max_unavailable: i64,
    pub max_unavailable_partitions: i64,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<BundleDisplay>,
    /// Deprecated by Fleet.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub resource_key: Vec<ResourceKey>,
    #[serde(
        rename = "ociReference",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub oci_reference: String,
    pub observed_generation: i64,
    /// Hex SHA-256 over the files' JSON.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub resources_sha256_sum: String,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// One partition of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct PartitionStatus {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub count: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub max_unavailable: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub unavailable: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<BundleSummary>,
}

/// Printer column texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct BundleDisplay {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub ready_clusters: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub state: String,
}

/// An object the bundle likely deploys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ResourceKey {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_options_stand_inline_and_unknown_fields_survive() {
        let document = json!({
            "apiVersion": "fleet.cattle.io/v1alpha1",
            "kind": "Bundle",
            "metadata": {"name": "web"},
            "spec": {
                "defaultNamespace": "ns",
                "helm": {"values": {"a": 1}, "newHelm": 1},
                "paused": true,
                "resources": [{"name": "a.yaml", "content": "a: 1"}],
                "targets": [{"clusterName": "c", "namespace": "t", "newTarget": [1]}],
                "dependsOn": [{"name": "db", "newRef": 1}],
                "rolloutStrategy": {"maxUnavailable": "10%", "maxUnavailablePartitions": 1},
                "brandNew": {"x": true},
            },
        });
        let bundle: Bundle = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(bundle.spec.options.default_namespace, "ns");
        assert!(bundle.spec.paused);
        assert_eq!(bundle.spec.targets[0].options.target_namespace, "t");
        assert_eq!(bundle.spec.options.unknown.keys().collect::<Vec<_>>(), ["brandNew"]);
        assert_eq!(serde_json::to_value(&bundle).unwrap(), document);
    }

    #[test]
    fn nulls_where_go_writes_them_are_read_as_absent() {
        let bundle: Bundle = serde_json::from_value(json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Bundle", "metadata": {},
            "spec": {"resources": null, "targets": null, "serviceAccount": null, "helm": null, "dependsOn": null},
            "status": {"conditions": null, "partitions": null, "display": null},
        }))
        .unwrap();
        assert_eq!(bundle.spec, BundleSpec::default());
    }
}
