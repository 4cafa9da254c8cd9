// SPDX-License-Identifier: Apache-2.0
//! `BundleDeploymentOptions`: how a bundle is deployed.
//!
//! Field order is Fleet's Go declaration order, since the options hash is taken over a JSON text in this order.
//! Every field is omitted when empty, as Go's `omitempty` does.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};

use super::{Unknown, is_zero, null_default};

/// How a bundle is deployed on one cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleDeploymentOptions {
    /// Overlays merged into raw YAML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub yaml: Option<YamlOptions>,
    /// Where the kustomization is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kustomize: Option<KustomizeOptions>,
    /// Release namespace if `namespace` is empty.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub default_namespace: String,
    /// Forces all objects into this namespace.
    #[serde(
        rename = "namespace",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub target_namespace: String,
    /// Options of the release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helm: Option<HelmOptions>,
    /// Downstream account to impersonate.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub service_account: String,
    /// `false`: the release namespace must exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_namespace: Option<bool>,
    /// Raised to force a new sync.
    #[serde(skip_serializing_if = "is_zero")]
    pub force_sync_generation: i64,
    /// Differences to overlook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diff: Option<DiffOptions>,
    /// Keep the objects when the bundle goes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_resources: bool,
    /// Used by the controller only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delete_namespace: bool,
    /// Conditions hidden from readiness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore: Option<IgnoreOptions>,
    /// Input for `spec.correctDrift`; not part of the hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correct_drift: Option<CorrectDrift>,
    /// Labels forced on the release namespace.
    #[serde(skip_serializing_if = "no_pairs")]
    pub namespace_labels: Option<BTreeMap<String, String>>,
    /// Annotations forced on the release namespace.
    #[serde(skip_serializing_if = "no_pairs")]
    pub namespace_annotations: Option<BTreeMap<String, String>>,
    /// Do not keep CRDs on removal.
    #[serde(rename = "deleteCRDResources", skip_serializing_if = "std::ops::Not::not")]
    pub delete_crd_resources: bool,
    /// Secrets and ConfigMaps copied from upstream.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub downstream_resources: Vec<DownstreamResource>,
    /// Resources another bundle just gave up.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub overwrites: Vec<OverwrittenResource>,
    /// The target namespace must exist and match.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "selector_as_go")]
    pub allowed_target_namespace_selector: Option<LabelSelector>,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// Overlay directories.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct YamlOptions {
    /// Names of directories below `overlays/`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<String>,
}

/// Where the kustomization is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KustomizeOptions {
    /// Directory in the bundle.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub dir: String,
}

/// Options of the release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct HelmOptions {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub values_files: Vec<String>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub chart: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub repo: String,
    /// At most 53 characters.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    #[schemars(
        length(max = 53),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub release_name: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Seconds to wait for readiness; 0 does not wait.
    #[serde(skip_serializing_if = "is_zero")]
    pub timeout_seconds: i64,
    /// Free-form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub values: Option<Map<String, Value>>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub template_values: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub values_from: Vec<ValuesFrom>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub take_ownership: bool,
    /// Revisions kept; 0 means Fleet's default of 2.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_history: i64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub wait_for_jobs: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub atomic: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_pre_process: bool,
    #[serde(rename = "disableDNS", skip_serializing_if = "std::ops::Not::not")]
    pub disable_dns: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_schema_validation: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_dependency_update: bool,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// A reference to values downstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ValuesFrom {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
}

/// A key of a Secret or ConfigMap. `name` is always written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct KeyRef {
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub key: String,
}

/// Differences to overlook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct DiffOptions {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub compare_patches: Vec<ComparePatch>,
}

/// One rule of differences to overlook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ComparePatch {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub json_pointers: Vec<String>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<Operation>,
}

/// An operation of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Operation {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub op: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub path: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// Conditions hidden from readiness.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IgnoreOptions {
    /// A condition is hidden if all pairs of one map are equal in it.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<BTreeMap<String, String>>,
}

/// Whether and how foreign changes are reverted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct CorrectDrift {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enabled: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_fail_history: bool,
}

/// A Secret or ConfigMap copied from upstream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct DownstreamResource {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A resource another bundle just gave up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct OverwrittenResource {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

/// Go's `omitempty` leaves out a map without entries, present or not.
fn no_pairs(pairs: &Option<BTreeMap<String, String>>) -> bool {
    pairs.as_ref().is_none_or(BTreeMap::is_empty)
}

/// Go's order (labels first) and its `omitempty`; the generated type has neither.
fn selector_as_go<S: Serializer>(selector: &Option<LabelSelector>, serializer: S) -> Result<S::Ok, S::Error> {
    let labels = selector.iter().filter_map(|s| s.match_labels.as_ref()).find(|labels| !labels.is_empty());
    let expressions =
        selector.iter().filter_map(|s| s.match_expressions.as_ref()).find(|list| !list.is_empty());
    let mut map = serializer.serialize_map(None)?;
    if let Some(labels) = labels {
        map.serialize_entry("matchLabels", labels)?;
    }
    if let Some(expressions) = expressions {
        map.serialize_entry("matchExpressions", expressions)?;
    }
    map.end()
}

pub(super) fn free_form(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}
