// SPDX-License-Identifier: Apache-2.0
//! The objects in the agent's own cluster.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{Plan, deployment};
use crate::{
    api::names::safe_concat_name,
    registration::{SECRET, managed::kubeconfig_text},
};

/// Name of the agent's account in its own cluster, where the chart does not make it.
pub const ACCOUNT: &str = "fleet-agent";
/// Where a Pod finds what proves its account; the kubelet renews it.
const POD_FILES: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How the agent gets at the management cluster.
pub enum Access<'a> {
    /// With a token.
    Token {
        /// URL of the API server.
        server: &'a str,
        /// Its authority, PEM; `None`: one that the system trusts.
        authority: Option<&'a str>,
        /// The token.
        token: &'a str,
    },
    /// With the account of its Pod, in its own cluster.
    Pod {
        /// URL of the API server as Pods reach it.
        server: &'a str,
    },
}

/// What the objects differ in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Leave account and rights to the agent's chart, which makes its own.
    pub for_chart: bool,
    /// Make the agent's Deployment, too, of this image.
    pub image: Option<String>,
}

/// All of them, in order; the Secret comes after what the agent needs when it finds it, and the agent itself comes last.
pub fn objects(plan: &Plan, access: &Access<'_>, settings: &Settings) -> Vec<Value> {
    let namespace = plan.agent_namespace.as_str();
    let account = plan.agent_account.as_str();
    let agent = json!({"name": SECRET, "namespace": namespace});
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})];
    if !settings.for_chart {
        objects.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
            "name": account, "namespace": namespace}}));
        // Bundles may contain anything, and the agent deploys what they contain.
        objects.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": safe_concat_name(&[namespace, account])},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]}));
    }
    let config = json!({"labels": plan.labels}).to_string();
    objects.push(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": agent, "data": {"config": config}}),
    );
    objects.push(secret(plan, access));
    objects.extend(settings.image.as_deref().map(|image| deployment::object(plan, image)));
    objects
}

/// Secret `fleet-agent` with the keys of Fleet's own.
pub fn secret(plan: &Plan, access: &Access<'_>) -> Value {
    let mut data = json!({});
    for (key, value) in [
        ("kubeconfig", kubeconfig(plan, access).as_str()),
        ("deploymentNamespace", &plan.cluster_namespace),
        ("clusterNamespace", &plan.namespace),
        ("clusterName", &plan.name),
    ] {
        data[key] = STANDARD.encode(value).into();
    }
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": SECRET, "namespace": plan.agent_namespace}, "data": data})
}

/// Its context's namespace is what the agent works in.
pub(super) fn kubeconfig(plan: &Plan, access: &Access<'_>) -> String {
    let namespace = plan.cluster_namespace.as_str();
    match access {
        Access::Token { server, authority, token } => kubeconfig_text(server, *authority, token, namespace),
        Access::Pod { server } => json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "default",
            "clusters": [{"name": "cluster", "cluster": {
                "server": server, "certificate-authority": format!("{POD_FILES}/ca.crt"),
            }}],
            "users": [{"name": "user", "user": {"tokenFile": format!("{POD_FILES}/token")}}],
            "contexts": [{"name": "default", "context": {
                "cluster": "cluster", "user": "user", "namespace": namespace,
            }}],
        })
        .to_string(),
    }
}
