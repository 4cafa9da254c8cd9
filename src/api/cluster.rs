// SPDX-License-Identifier: Apache-2.0
//! `Cluster`: a cluster bundles are deployed to. Agents write `status.agent` and nothing else.

use k8s_openapi::api::core::v1::{Affinity, EnvVar, LocalObjectReference, ResourceRequirements, Toleration};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    BundleSummary, Condition, ResourceCounts, Unknown, is_zero, null_default, optional::optional_spec,
};

/// What people and Fleet's controller say about a cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "fleet.cattle.io",
    version = "v1alpha1",
    kind = "Cluster",
    plural = "clusters",
    namespaced,
    status = "ClusterStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Bundles-Ready","type":"string","jsonPath":".status.display.readyBundles"}"#,
    printcolumn = r#"{"name":"Last-Seen","type":"string","jsonPath":".status.agent.lastSeen"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "ClusterSpec")]
pub struct ClusterSpec {
    /// Pauses all its BundleDeployments.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Identifies the cluster at registration.
    #[serde(
        rename = "clientID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub client_id: String,
    /// Secret with a kubeconfig of the cluster; only for clusters the controller imports.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kube_config_secret: String,
    /// Where that Secret is; empty means the Cluster's namespace.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub kube_config_secret_namespace: String,
    /// Raised to deploy the agent anew.
    #[serde(skip_serializing_if = "is_zero")]
    pub redeploy_agent_generation: i64,
    /// Added to the agent's environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<EnvVar>>")]
    pub agent_env_vars: Option<Value>,
    /// Where the agent runs downstream; empty means the controller's default.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub agent_namespace: String,
    /// Prefix of the agent's image.
    #[serde(
        rename = "privateRepoURL",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub private_repo_url: String,
    /// Free-form; for templates in a bundle's values.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::options::free_form")]
    pub template_values: Option<Map<String, Value>>,
    /// Added to the agent's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<Toleration>>")]
    pub agent_tolerations: Option<Value>,
    /// Replaces the affinity of the agent's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Affinity>")]
    pub agent_affinity: Option<Value>,
    /// Of the agent's container.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ResourceRequirements>")]
    pub agent_resources: Option<Value>,
    /// The agent uses the host's network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    /// Priority and disruption budget of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_scheduling_customization: Option<AgentSchedulingCustomization>,
    /// Pull secrets of the agent's pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<LocalObjectReference>>")]
    pub agent_pull_secrets: Option<Value>,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

optional_spec!(ClusterSpec);

/// Priority and disruption budget of the agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct AgentSchedulingCustomization {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<PriorityClassSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudgetSpec>,
}

/// The agent's priority class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct PriorityClassSpec {
    #[serde(skip_serializing_if = "is_zero")]
    pub value: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
}

/// The agent's disruption budget; numbers or percentages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct PodDisruptionBudgetSpec {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub min_available: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub max_unavailable: String,
}

/// What is known about a cluster. All but `agent` is the controller's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ClusterStatus {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The cluster namespace: where its BundleDeployments are.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<BundleSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_counts: Option<ResourceCounts>,
    #[serde(skip_serializing_if = "is_zero")]
    pub ready_git_repos: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub desired_ready_git_repos: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub ready_helm_ops: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub desired_ready_helm_ops: i64,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub agent_env_vars_hash: String,
    #[serde(
        rename = "agentPrivateRepoURL",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub agent_private_repo_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_host_network: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_deployed_generation: Option<i64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub agent_migrated: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub agent_namespace_migrated: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cattle_namespace_migrated: bool,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub agent_affinity_hash: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub agent_resources_hash: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub agent_tolerations_hash: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub agent_config_changed: bool,
    #[serde(
        rename = "apiServerURL",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub api_server_url: String,
    #[serde(
        rename = "apiServerCAHash",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub api_server_ca_hash: String,
    /// `system-store` or `strict`.
    #[serde(
        rename = "agentTLSMode",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub agent_tls_mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<ClusterDisplay>,
    /// Written by the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// Go duration text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub garbage_collection_interval: Option<String>,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub agent_scheduling_customization_hash: String,
    /// Some Schedule names the cluster.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub scheduled: bool,
    /// Inside a Schedule's window.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub active_schedule: bool,
    /// Fields of a newer CRD.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: Unknown,
}

/// Printer column texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ClusterDisplay {
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub ready_bundles: String,
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub state: String,
}

/// The agent's sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub last_seen: Option<String>,
    /// Where the agent runs.
    #[serde(deserialize_with = "null_default")]
    pub namespace: String,
}
