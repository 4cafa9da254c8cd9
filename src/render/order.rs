// SPDX-License-Identifier: Apache-2.0
//! The order in which objects are created, and which of equal ones counts.

use std::collections::HashSet;

use super::Object;

/// Helm 4's `InstallOrder`. Kinds that are not in it come last, by name.
const INSTALL_ORDER: [&str; 38] = [
    "PriorityClass",
    "Namespace",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodSecurityPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "SecretList",
    "ConfigMap",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleList",
    "ClusterRoleBinding",
    "ClusterRoleBindingList",
    "Role",
    "RoleList",
    "RoleBinding",
    "RoleBindingList",
    "Service",
    "DaemonSet",
    "Pod",
    "ReplicationController",
    "ReplicaSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "StatefulSet",
    "Job",
    "CronJob",
    "IngressClass",
    "Ingress",
    "APIService",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// A kind's rank when installing: lower ones first. Unknown kinds share the highest and are sorted by name.
pub fn install_order(kind: &str) -> usize {
    INSTALL_ORDER.iter().position(|known| *known == kind).unwrap_or(INSTALL_ORDER.len())
}

/// Sort key of Helm's order. Inside one kind Helm sorts by the name it gave each document, whose number is compared as
/// text: 10 comes before 2.
pub(super) fn place(object: &Object, position: usize) -> (usize, String, String) {
    let rank = install_order(&object.kind);
    let name = if rank == INSTALL_ORDER.len() { object.kind.clone() } else { String::new() };
    (rank, name, position.to_string())
}

/// For each object whether it is the last of its name. An object without a namespace is taken to be in that of the
/// release.
pub(super) fn last_ones(objects: &[Object], release_namespace: &str) -> Vec<bool> {
    let mut seen = HashSet::with_capacity(objects.len());
    let mut last: Vec<bool> = objects
        .iter()
        .rev()
        .map(|object| {
            let group = object.api_version.split_once('/').map_or("", |(group, _)| group);
            let namespace =
                if object.namespace.is_empty() { release_namespace } else { object.namespace.as_str() };
            seen.insert((group, object.kind.as_str(), namespace, object.name.as_str()))
        })
        .collect();
    last.reverse();
    last
}
