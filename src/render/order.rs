// SPDX-License-Identifier: Apache-2.0
//! The order in which objects are created, and which of equal ones counts.

use std::collections::HashSet;

use super::{Object, Source};

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

/// Sort key of Helm's order: by kind, then as the files sort by name and the documents lie in them. The names that
/// Helm makes up for what a post-renderer gave it end in a number, so that 10 comes before 2.
pub(super) fn place<'a>(object: &'a Object, source: &'a Source) -> (usize, &'a str, &'a Source) {
    let rank = install_order(&object.kind);
    let kind = if rank == INSTALL_ORDER.len() { object.kind.as_str() } else { "" };
    (rank, kind, source)
}

/// For each object whether it is the last of its name. An object without a namespace is taken to be in that of the
/// release.
pub(super) fn last_ones<'a>(
    objects: impl DoubleEndedIterator<Item = &'a Object>,
    release_namespace: &str,
) -> Vec<bool> {
    let mut seen = HashSet::new();
    let mut last: Vec<bool> = objects
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
