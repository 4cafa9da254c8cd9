// SPDX-License-Identifier: Apache-2.0
//! The objects on the management cluster, in the order in which they must be made.
//!
//! The Cluster comes before its namespace: Fleet's cleanup deletes namespaces whose Cluster is not there. The account
//! comes before its token's Secret: the token controller deletes Secrets whose account is not there.

use serde_json::{Value, json};

use super::{
    Identity, MANAGEMENT_LABEL, Plan,
    account::{ACCOUNT, CONTENT_ROLE, UNIT_ROLE},
};

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";
/// Label of all Secrets that stand for a token of the agent.
pub(super) const TOKEN_LABEL: &str = "flotilla.fleet/agent-token";
/// What Fleet's controller puts on the objects that it makes for a cluster.
const MANAGED: &str = "fleet.cattle.io/managed";

/// Everything but the token and the status.
pub fn objects(plan: &Plan) -> Vec<Value> {
    let mut labels = json!(plan.labels);
    labels[MANAGEMENT_LABEL] = "flotilla".into();
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": plan.namespace}}),
        json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": {
            "name": plan.name, "namespace": plan.namespace, "labels": labels,
        }, "spec": {}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": plan.cluster_namespace, "labels": {MANAGED: "true"}, "annotations": notes(plan),
        }}),
        json!({"apiVersion": RBAC, "kind": "ClusterRole",
        "metadata": {"name": UNIT_ROLE, "labels": {MANAGED: "true"}}, "rules": [
            {"apiGroups": ["fleet.cattle.io"], "resources": ["bundledeployments"],
                "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["fleet.cattle.io"], "resources": ["bundledeployments/status"],
                "verbs": ["update", "patch"]},
            {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["get"]},
        ]}),
        json!({"apiVersion": RBAC, "kind": "ClusterRole",
        "metadata": {"name": CONTENT_ROLE, "labels": {MANAGED: "true"}}, "rules": [
            {"apiGroups": ["fleet.cattle.io"], "resources": ["contents"], "verbs": ["get"]},
        ]}),
    ];
    objects.extend(rights(plan));
    objects
}

/// The part of them that is the agent's access, and that is taken away again: the account first.
pub fn rights(plan: &Plan) -> Vec<Value> {
    let role = |kind: &str, name: &str| json!({"apiGroup": GROUP, "kind": kind, "name": name});
    let (namespace, account) = plan.account();
    let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": namespace}]);
    let check_in = plan.check_in_role();
    let labels = json!({MANAGED: "true"});
    let mut objects = Vec::new();
    if plan.identity == Identity::Own {
        objects.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
            "name": ACCOUNT, "namespace": plan.cluster_namespace, "labels": labels, "annotations": notes(plan),
        }}));
    }
    objects.extend([
        json!({"apiVersion": RBAC, "kind": "Role",
        "metadata": {"name": check_in, "namespace": plan.namespace, "labels": labels}, "rules": [
            {"apiGroups": ["fleet.cattle.io"], "resources": ["clusters/status"], "verbs": ["patch"],
                "resourceNames": [plan.name]},
        ]}),
        json!({"apiVersion": RBAC, "kind": "RoleBinding",
            "metadata": {"name": check_in, "namespace": plan.namespace, "labels": labels},
            "roleRef": role("Role", &check_in), "subjects": subjects}),
        json!({"apiVersion": RBAC, "kind": "RoleBinding",
            "metadata": {"name": ACCOUNT, "namespace": plan.cluster_namespace, "labels": labels},
            "roleRef": role("ClusterRole", UNIT_ROLE), "subjects": subjects}),
        json!({"apiVersion": RBAC, "kind": "ClusterRoleBinding",
            "metadata": {"name": plan.content_binding(), "labels": labels},
            "roleRef": role("ClusterRole", CONTENT_ROLE), "subjects": subjects}),
    ]);
    objects
}

/// A Secret whose token the token controller fills in, and that makes it valid as long as it is there.
///
/// A name must not be used twice for one account: such a token is made of names alone and would be the old one again.
pub fn token_secret(plan: &Plan, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {
        "name": name, "namespace": plan.cluster_namespace, "labels": {MANAGED: "true", TOKEN_LABEL: "true"},
        "annotations": {"kubernetes.io/service-account.name": ACCOUNT},
    }})
}

/// The status: targeting ignores a Cluster without a namespace, and the check-in one without a status.
pub fn status_patch(plan: &Plan) -> Value {
    json!({"status": {"namespace": plan.cluster_namespace}})
}

fn notes(plan: &Plan) -> Value {
    json!({"fleet.cattle.io/cluster": plan.name, "fleet.cattle.io/cluster-namespace": plan.namespace})
}
