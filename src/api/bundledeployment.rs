// SPDX-License-Identifier: Apache-2.0
//! `BundleDeployment`: one bundle on one cluster. The controller writes the spec, agents write the status.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BundleDeploymentOptions, CorrectDrift, Unknown, optional::optional_spec};

/// What is to be deployed, written by Fleet's controller or `flotilla apply`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "fleet.cattle.io",
    version = "v1alpha1",
    kind = "BundleDeployment",
    plural = "bundledeployments",
    namespaced,
    status = "BundleDeploymentStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Deployed","type":"string","jsonPath":".status.display.deployed"}"#,
    printcolumn = r#"{"name":"Monitored","type":"string","jsonPath":".status.display.monitored"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "BundleDeploymentSpec")]
pub struct BundleDeploymentSpec {
    /// Do nothing, not even monitoring.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The next options, promoted to `options` by the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged_options: Option<BundleDeploymentOptions>,
    /// The next deployment id.
    #[serde(
        rename = "stagedDeploymentID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub staged_deployment_id: String,
    /// The options in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<BundleDeploymentOptions>,
    /// `manifestID:optionsHash`.
    #[serde(
        rename = "deploymentID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub deployment_id: String,
    /// Bundles that must be in an accepted state first.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<BundleRef>,
    /// Whether and how foreign changes are reverted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correct_drift: Option<CorrectDrift>,
    /// The manifest is in an OCI registry.
    #[serde(rename = "ociContents", skip_serializing_if = "std::ops::Not::not")]
    pub oci_contents: bool,
    /// Present: the agent downloads the chart itself (HelmOp).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helm_chart_options: Option<HelmChartOptions>,
    /// Non-empty: Helm values are in a Secret of the same name; hex SHA-256 of its contents.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub values_hash: String,
    /// Raised by the controller when a resource in `downstreamResources` changes.
    #[serde(skip_serializing_if = "is_zero")]
    pub downstream_resources_generation: i64,
    /// Outside its Schedule window; treated like paused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub off_schedule: bool,
    /// The controller has not written the values Secret yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub waiting_for_values: bool,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

optional_spec!(BundleDeploymentSpec);

/// A dependency: by bundle name, by labels, or both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleRef {
    /// Name of a bundle.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Labels of BundleDeployments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
    /// States that satisfy it; empty means `Ready`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub accepted_states: Vec<String>,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// How a HelmOp's chart is fetched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HelmChartOptions {
    /// Secret with credentials, in the BundleDeployment's namespace.
    #[serde(
        rename = "helmOpSecretName",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub secret_name: String,
    /// Skip the server's certificate check.
    #[serde(rename = "helmOpInsecureSkipTLSVerify", skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verify: bool,
    /// Base64 of a PEM bundle.
    #[schemars(extend("format" = "byte"))]
    #[serde(
        rename = "helmOpCABundle",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub ca_bundle: String,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// What agents report; everything not listed here is pruned by the stock CRD.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleDeploymentStatus {
    /// An atomic list: a merge patch replaces it whole. Holds the claim.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Last `spec.deploymentID` acted on.
    #[serde(
        rename = "appliedDeploymentID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub applied_deployment_id: String,
    /// Release id `namespace/name:revision`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// No entry in `nonReadyStatus`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ready: bool,
    /// No entry in `modifiedStatus`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub non_modified: bool,
    /// At most ten objects that are not ready.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub non_ready_status: Vec<NonReadyStatus>,
    /// At most ten objects that differ from the release.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub modified_status: Vec<ModifiedStatus>,
    /// A list above was cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete_state: bool,
    /// Strings for the printer columns; written by the controller.
    #[serde(deserialize_with = "null_default")]
    #[schemars(extend("nullable" = true))]
    pub display: BundleDeploymentDisplay,
    /// Copy of `options.forceSyncGeneration` after monitoring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_generation: Option<i64>,
    /// Live objects of the release.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<BundleDeploymentResource>,
    /// Counts over all objects, before any list was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_counts: Option<ResourceCounts>,
    /// Copied from the spec after copying resources.
    #[serde(skip_serializing_if = "is_zero")]
    pub downstream_resources_generation: i64,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// A condition as Fleet's CRD has it: six strings, no enum, no date format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Installed`, `Deployed`, `Ready`, `Monitored`, or the claim's `InProgress`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// RFC 3339, seconds; changes with status or message.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub last_update_time: String,
    /// RFC 3339; Fleet's agent leaves it empty.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub last_transition_time: String,
    /// `Error` on failures; other tools read it so.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people, and for the claim's words.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// An object of the release that is not ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NonReadyStatus {
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Why it is not ready.
    pub summary: Summary,
}

/// Readiness of one object in the words of Rancher's summary library.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// For example `in-progress`, `active`, `error`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Something failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub error: bool,
    /// On its way.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub transitioning: bool,
    /// Details, without duplicates.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub message: Vec<String>,
}

impl Summary {
    /// Ready is neither error nor transitioning; the state text does not matter (facts: Fleet's monitor).
    pub fn is_ready(&self) -> bool {
        !self.error && !self.transitioning
    }
}

/// An object that differs from the release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifiedStatus {
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// In the release, not found live under our label.
    #[serde(rename = "missing", skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
    /// With `missing`: it exists, but not as ours.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exist: bool,
    /// Live, but no longer in the release.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delete: bool,
    /// Merge patch that would restore the release.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub patch: String,
}

/// Printer column texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleDeploymentDisplay {
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub deployed: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub monitored: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub state: String,
}

/// A live object of the release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleDeploymentResource {
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[allow(missing_docs)]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub created_at: Option<String>,
}

/// Counts of the release's objects by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ResourceCounts {
    pub ready: i64,
    pub desired_ready: i64,
    pub wait_applied: i64,
    pub modified: i64,
    pub orphaned: i64,
    pub missing: i64,
    pub unknown: i64,
    pub not_ready: i64,
}

impl BundleDeployment {
    /// The options in force, or none at all.
    pub fn options(&self) -> std::borrow::Cow<'_, BundleDeploymentOptions> {
        match &self.spec.options {
            Some(options) => std::borrow::Cow::Borrowed(options),
            None => std::borrow::Cow::Owned(BundleDeploymentOptions::default()),
        }
    }

    /// The condition of that type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// Value of a label, or empty.
    pub fn label(&self, key: &str) -> &str {
        let labels: Option<&BTreeMap<String, String>> = self.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(key)).map_or("", String::as_str)
    }
}

pub(crate) fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Reads `null` as the default: Go writes nil slices so.
pub(crate) fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_a_newer_crd_survive_a_round_trip() {
        let document = json!({
            "apiVersion": "fleet.cattle.io/v1alpha1",
            "kind": "BundleDeployment",
            "metadata": {"name": "web", "namespace": "c1"},
            "spec": {
                "deploymentID": "s-1:o",
                "options": {"defaultNamespace": "ns", "helm": {"newHelm": 1}, "newOption": [1]},
                "dependsOn": [{"name": "db", "newReference": 1}],
                "newField": {"x": true},
            },
            "status": {"appliedDeploymentID": "s-1:o", "release": "ns/web:1", "newStatus": {"y": 1}, "display": {}},
        });
        let bd: BundleDeployment = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(bd.spec.unknown.keys().collect::<Vec<_>>(), ["newField"]);
        assert_eq!(serde_json::to_value(&bd).unwrap(), document);
    }
}
