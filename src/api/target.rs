// SPDX-License-Identifier: Apache-2.0
//! Where a bundle goes and how fast. Fleet's controller decides by these; `flotilla apply` carries them along.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BundleDeploymentOptions, Unknown, null_default};

/// Clusters, and the options that differ there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BundleTarget {
    /// Options merged over the bundle's. Keeps unknown fields for the whole struct.
    #[serde(flatten)]
    pub options: BundleDeploymentOptions,
    /// For people.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Do not deploy there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub do_not_deploy: bool,
    /// A cluster by name.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
    /// Clusters by labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<LabelSelector>,
    /// Clusters of a group.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub cluster_group: String,
    /// Clusters of groups by labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_group_selector: Option<LabelSelector>,
}

/// Clusters a bundle may go to at all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct BundleTargetRestriction {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<LabelSelector>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub cluster_group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_group_selector: Option<LabelSelector>,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// How fast a new version spreads over clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStrategy {
    /// Clusters that may be unavailable, number or percentage; default 100 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Partitions that may be unavailable, number or percentage; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable_partitions: Option<IntOrString>,
    /// Size of automatic partitions, number or percentage; default 25 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_partition_size: Option<IntOrString>,
    /// Clusters from which on partitions are made; default 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_partition_threshold: Option<i64>,
    /// New BundleDeployments made at once; default 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_new: Option<i64>,
    /// Explicit partitions.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<Partition>,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// Clusters that get a new version together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Partition {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Clusters of it that may be unavailable, number or percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub cluster_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<LabelSelector>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub cluster_group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_group_selector: Option<LabelSelector>,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}
