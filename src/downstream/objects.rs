// SPDX-License-Identifier: Apache-2.0
//! Which object is which: identities that survive a change of API version, and the namespace an object ends up in.

use std::{collections::HashSet, fmt, sync::Arc};

use super::kinds::{Kind, KindCache};
use crate::{api::keys, render::Object};

/// One object, whatever version of its API it is written in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// API group; empty for the core.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Identity {
    /// The identity of a manifest's object in a release whose namespace is `release_namespace`.
    pub fn of(object: &Object, kinds: &KindCache, release_namespace: &str) -> Self {
        let group = group_of(&object.api_version);
        let kind = kinds
            .known(&object.api_version, &object.kind)
            .or_else(|| kinds.known_in_any_version(group, &object.kind));
        let namespace = match kind {
            Some(kind) => namespace_of(&kind, &object.namespace, release_namespace),
            None if object.namespace.is_empty() => release_namespace,
            None => &object.namespace,
        };
        Self {
            group: group.to_owned(),
            kind: object.kind.clone(),
            namespace: namespace.to_owned(),
            name: object.name.clone(),
        }
    }

    /// The identities of many objects.
    pub fn of_all<'a>(
        objects: impl IntoIterator<Item = &'a Object>,
        kinds: &KindCache,
        release_namespace: &str,
    ) -> HashSet<Self> {
        objects.into_iter().map(|object| Self::of(object, kinds, release_namespace)).collect()
    }
}

/// An object's place in the cluster, for messages.
pub(super) struct Place<'a> {
    pub kind: &'a Arc<Kind>,
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Place<'_> {
    pub(super) fn path(&self) -> String {
        self.kind.path(self.namespace, self.name)
    }
}

/// As Helm names an object in errors: `namespace/name group/version, Kind=Kind`.
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}", self.namespace, self.name, self.kind)
    }
}

/// The group of an apiVersion.
pub(super) fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Where an object lives: nowhere when cluster-scoped, else where it says, else in the release's namespace.
pub(super) fn namespace_of<'a>(kind: &Kind, written: &'a str, release_namespace: &'a str) -> &'a str {
    match (kind.namespaced, written.is_empty()) {
        (false, _) => "",
        (true, true) => release_namespace,
        (true, false) => written,
    }
}

/// Helm's keep policy, as written in a manifest.
pub fn is_kept(object: &Object) -> bool {
    let policy = object.value["metadata"]["annotations"][keys::RESOURCE_POLICY].as_str();
    policy.is_some_and(|policy| policy.trim().eq_ignore_ascii_case("keep"))
}

/// Whether a name can be one segment of a URL; the API server's own rule for path segments.
pub(super) fn is_askable(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '%'])
}
