// SPDX-License-Identifier: Apache-2.0
//! What Fleet's controller leaves in the upstream and the downstream cluster for an agent to work with.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams, TypeMeta};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::control_plane::ControlPlane;
use super::pki;
use super::until::{GENEROUS, Wait};

/// The namespace upstream in which clusters are registered.
pub const REGISTRATION_NAMESPACE: &str = "fleet-default";
/// The namespace downstream in which the agent lives.
pub const AGENT_NAMESPACE: &str = "cattle-fleet-system";

/// Longer than any run, and what a token Secret comes close to: it never expires.
const TOKEN_SECONDS: i64 = 365 * 24 * 3600;

/// A registered agent.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The name of the Cluster object, in [`REGISTRATION_NAMESPACE`].
    pub cluster: String,
    /// The namespace upstream that holds the cluster's BundleDeployments.
    pub cluster_namespace: String,
    /// The namespace downstream of the agent.
    pub agent_namespace: String,
    /// The agent's kubeconfig for the downstream cluster (cluster-admin, context in the agent's namespace).
    pub agent_kubeconfig: PathBuf,
    /// The bearer token of the agent's narrow identity upstream, to act under its rights in a test.
    pub upstream_token: String,
    /// The user name of that identity, as audit entries show it.
    pub upstream_user: String,
    /// The user name of the downstream identity.
    pub downstream_user: String,
}

/// Installs the CRDs that `binary crds` prints, and waits until they are served.
pub async fn install_crds(upstream: &ControlPlane, binary: &Path) -> anyhow::Result<()> {
    let output = Command::new(binary)
        .arg("crds")
        .output()
        .with_context(|| format!("running {} crds", binary.display()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{} crds failed ({}): {stderr}", binary.display(), output.status);
    }
    install_crds_from(upstream, std::str::from_utf8(&output.stdout)?).await
}

/// Installs the CRDs of a YAML text, and waits until they are served.
pub(super) async fn install_crds_from(upstream: &ControlPlane, yaml: &str) -> anyhow::Result<()> {
    let client = upstream.admin().await?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).context("reading the CRDs")?;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for document in documents.iter().filter(|document| !document.is_null()) {
        let name = apply(&client, document.clone()).await?;
        let what = format!("CRD {name} to be established");
        let wait = Wait::new(&what, GENEROUS);
        let established = async || {
            let status = api.get(&name).await?.status;
            let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
            Ok(conditions.iter().any(|c| c.type_ == "Established" && c.status == "True").then_some(()))
        };
        while wait.attempt(established()).await?.is_none() {}
    }
    Ok(())
}

/// Registers the agent of `downstream` as `cluster`, with the rights and objects an existing registration leaves.
///
/// The CRDs must be installed. Repeating it is harmless; several clusters can share an upstream.
pub async fn register(
    upstream: &ControlPlane,
    downstream: &ControlPlane,
    cluster: &str,
) -> anyhow::Result<Registration> {
    register_through(upstream, &upstream.url(), downstream, cluster).await
}

/// The same with the agent reaching the upstream at `url`, that of a proxy on this machine.
pub async fn register_through(
    upstream: &ControlPlane,
    url: &str,
    downstream: &ControlPlane,
    cluster: &str,
) -> anyhow::Result<Registration> {
    let cluster_namespace = cluster_namespace(REGISTRATION_NAMESPACE, cluster);
    let client = upstream.admin().await?;
    for object in upstream_objects(cluster, &cluster_namespace) {
        apply(&client, object).await?;
    }
    let request = request_name(cluster);
    let upstream_token = token(&client, &cluster_namespace, &request).await?;
    set_cluster_namespace(&client, cluster, &cluster_namespace).await?;

    let client = downstream.admin().await?;
    let kubeconfig = upstream.token_kubeconfig_at(url, &upstream_token, &cluster_namespace);
    for object in downstream_objects(cluster, &cluster_namespace, &kubeconfig) {
        apply(&client, object).await?;
    }
    let local_token = token(&client, AGENT_NAMESPACE, "fleet-agent").await?;
    let agent_kubeconfig = downstream.dir.join(format!("agent-{cluster}.kubeconfig"));
    pki::write_private(&agent_kubeconfig, &downstream.token_kubeconfig(&local_token, AGENT_NAMESPACE))?;
    Ok(Registration {
        cluster: cluster.into(),
        upstream_user: format!("system:serviceaccount:{cluster_namespace}:{request}"),
        downstream_user: format!("system:serviceaccount:{AGENT_NAMESPACE}:fleet-agent"),
        cluster_namespace,
        agent_namespace: AGENT_NAMESPACE.into(),
        agent_kubeconfig,
        upstream_token,
    })
}

/// The name Fleet gives to the namespace of a cluster (for the short names of tests, which need no shortening).
pub fn cluster_namespace(registration_namespace: &str, cluster: &str) -> String {
    let digest = Sha256::digest(format!("{registration_namespace}::{cluster}"));
    let hash: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("cluster-{registration_namespace}-{cluster}-{hash}")
}

/// Applies an object as a whole, whatever its kind, and gives its name.
pub async fn apply(client: &Client, object: Value) -> anyhow::Result<String> {
    let object: DynamicObject = serde_json::from_value(object).context("an object to apply")?;
    let name = object.metadata.name.clone().context("an object to apply has no name")?;
    let types: &TypeMeta = object.types.as_ref().context("an object to apply has no kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.patch(&name, &PatchParams::apply("flotilla-harness").force(), &Patch::Apply(&object))
        .await
        .with_context(|| format!("applying {} {name}", types.kind))?;
    Ok(name)
}

fn request_name(cluster: &str) -> String {
    format!("request-{cluster}")
}

/// The two ClusterRoles that all agents share.
pub fn agent_roles() -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let managed = json!({"fleet.cattle.io/managed": "true"});
    vec![
        json!({"apiVersion": rbac, "kind": "ClusterRole",
        "metadata": {"name": "fleet-bundle-deployment", "labels": managed}, "rules": [
            {"apiGroups": ["fleet.cattle.io"], "resources": ["bundledeployments"],
                "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["fleet.cattle.io"], "resources": ["bundledeployments/status"],
                "verbs": ["update", "patch"]},
            {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["get"]},
        ]}),
        json!({"apiVersion": rbac, "kind": "ClusterRole",
        "metadata": {"name": "fleet-content", "labels": managed}, "rules": [
            {"apiGroups": ["fleet.cattle.io"], "resources": ["contents"], "verbs": ["get"]},
        ]}),
    ]
}

fn upstream_objects(cluster: &str, cluster_namespace: &str) -> Vec<Value> {
    let request = request_name(cluster);
    let managed = json!({"fleet.cattle.io/managed": "true"});
    let subject = json!([{"kind": "ServiceAccount", "name": request, "namespace": cluster_namespace}]);
    let rbac = "rbac.authorization.k8s.io/v1";
    let role =
        |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let mut objects = agent_roles();
    objects.extend([
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": REGISTRATION_NAMESPACE}}),
        // The label keeps Fleet's own controller, should one run there, from deploying its agent.
        json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": {
            "name": cluster, "namespace": REGISTRATION_NAMESPACE,
            "labels": {"fleet.cattle.io/cluster-management": "flotilla"},
        }, "spec": {}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": cluster_namespace, "labels": managed,
            "annotations": {
                "fleet.cattle.io/cluster": cluster, "fleet.cattle.io/cluster-namespace": REGISTRATION_NAMESPACE,
            },
        }}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
            "name": request, "namespace": cluster_namespace, "labels": managed,
            "annotations": {
                "fleet.cattle.io/cluster": cluster,
                "fleet.cattle.io/cluster-registration": request,
                "fleet.cattle.io/cluster-registration-namespace": REGISTRATION_NAMESPACE,
            },
        }}),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {
            "name": format!("{request}-token"), "namespace": cluster_namespace, "labels": managed,
            "annotations": {"kubernetes.io/service-account.name": request},
        }}),
        json!({"apiVersion": rbac, "kind": "Role",
        "metadata": {"name": request, "namespace": REGISTRATION_NAMESPACE, "labels": managed}, "rules": [
            {"apiGroups": ["fleet.cattle.io"], "resources": ["clusters/status"], "verbs": ["patch"],
                "resourceNames": [cluster]},
        ]}),
        json!({"apiVersion": rbac, "kind": "RoleBinding",
            "metadata": {"name": request, "namespace": REGISTRATION_NAMESPACE, "labels": managed},
            "roleRef": role("Role", &request), "subjects": subject}),
        json!({"apiVersion": rbac, "kind": "RoleBinding",
            "metadata": {"name": request, "namespace": cluster_namespace, "labels": managed},
            "roleRef": role("ClusterRole", "fleet-bundle-deployment"), "subjects": subject}),
        json!({"apiVersion": rbac, "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("{request}-content"), "labels": managed},
            "roleRef": role("ClusterRole", "fleet-content"), "subjects": subject}),
    ]);
    objects
}

fn downstream_objects(cluster: &str, cluster_namespace: &str, kubeconfig: &str) -> Vec<Value> {
    let agent = |name: &str| json!({"name": name, "namespace": AGENT_NAMESPACE});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": AGENT_NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": agent("fleet-agent"), "stringData": {
            "kubeconfig": kubeconfig,
            "deploymentNamespace": cluster_namespace,
            "clusterNamespace": REGISTRATION_NAMESPACE,
            "clusterName": cluster,
        }}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": agent("fleet-agent"),
            "data": {"config": "{}"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": agent("fleet-agent")}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "fleet-agent"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "fleet-agent", "namespace": AGENT_NAMESPACE}]}),
    ]
}

/// Targeting and the agent's check-in need a Cluster that has a status.
async fn set_cluster_namespace(client: &Client, cluster: &str, namespace: &str) -> anyhow::Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("fleet.cattle.io", "v1alpha1", "Cluster"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), REGISTRATION_NAMESPACE, &resource);
    let patch = json!({"status": {"namespace": namespace}});
    api.patch_status(cluster, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .with_context(|| format!("setting the status of Cluster {cluster}"))?;
    Ok(())
}

/// Asks the server for a token: nobody fills the token Secret unless a controller manager runs.
pub async fn token(client: &Client, namespace: &str, account: &str) -> anyhow::Result<String> {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request: TokenRequest =
        serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": TOKEN_SECONDS}}))?;
    let answer = api
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .with_context(|| format!("asking for a token of {namespace}/{account}"))?;
    answer.status.and_then(|status| status.token).context("a token request was answered without a token")
}

/// What the audit log calls a token of a service account.
pub fn credential(token: &str) -> anyhow::Result<String> {
    let payload = token.split('.').nth(1).context("a token has three parts")?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?;
    Ok(format!("JTI={}", claims["jti"].as_str().context("a token has an id")?))
}

/// A bearer token of an account of that name, which may do everything: where a client certificate cannot be used.
pub async fn master_token(plane: &ControlPlane, name: &str) -> anyhow::Result<String> {
    let client = plane.admin().await?;
    let account = json!({"kind": "ServiceAccount", "name": name, "namespace": "default"});
    let role =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name}, "subjects": [account], "roleRef": role}),
    ] {
        apply(&client, object).await?;
    }
    token(&client, "default", name).await
}
