// SPDX-License-Identifier: Apache-2.0
//! Sums over many BundleDeployments, as they stand in the status of bundles and clusters. The controller writes them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ModifiedStatus, NonReadyStatus, Unknown, is_zero, null_default};

/// BundleDeployments by state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct BundleSummary {
    #[serde(skip_serializing_if = "is_zero")]
    pub not_ready: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_applied: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub err_applied: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub out_of_sync: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub modified: i64,
    pub ready: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub pending: i64,
    pub desired_ready: i64,
    /// At most ten.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub non_ready_resources: Vec<NonReadyResource>,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// A bundle or BundleDeployment that is not ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct NonReadyResource {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// One of the names in [`super::state::State`].
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub bundle_state: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub modified_status: Vec<ModifiedStatus>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub non_ready_status: Vec<NonReadyStatus>,
}
