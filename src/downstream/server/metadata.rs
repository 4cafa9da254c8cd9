// SPDX-License-Identifier: Apache-2.0
//! The metadata of live objects: what is read where the rest does not matter.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde::{Deserialize, Deserializer};

use crate::{
    api::keys,
    protocol::{Epoch, Stamp},
    render::HOOK,
};

/// What stands in the metadata of a live object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiveMeta {
    /// Its name.
    pub name: String,
    /// Its namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty only in an object that was never stored.
    pub uid: String,
    /// The version read; the precondition of the next write.
    pub resource_version: String,
    /// As they are.
    pub labels: BTreeMap<String, String>,
    /// As they are.
    pub annotations: BTreeMap<String, String>,
    /// Set while finalizers hold a deleted object.
    pub deletion_timestamp: Option<String>,
    /// What must be done before it goes.
    pub finalizers: Vec<String>,
    /// Who owns which field.
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

impl LiveMeta {
    /// The claim under which the object was last written; `None` when it carries no stamp of ours.
    pub fn stamp(&self) -> Option<Stamp> {
        self.annotations.get(keys::EPOCH_ANNOTATION).and_then(|text| Stamp::parse(text))
    }

    /// The resourceVersion as something to compare.
    pub fn version(&self) -> Epoch {
        Epoch(self.resource_version.clone())
    }

    /// The Helm release it says it belongs to: namespace and name.
    pub fn release(&self) -> Option<(&str, &str)> {
        let namespace = self.annotations.get(keys::RELEASE_NAMESPACE)?;
        let name = self.annotations.get(keys::RELEASE_NAME)?;
        Some((namespace, name))
    }

    /// Whether it is a hook: run at certain moments of a release, not kept in it and not removed with it.
    pub fn is_hook(&self) -> bool {
        self.annotations.contains_key(HOOK)
    }

    /// Helm's keep policy.
    pub fn is_kept(&self) -> bool {
        self.annotations
            .get(keys::RESOURCE_POLICY)
            .is_some_and(|policy| policy.trim().eq_ignore_ascii_case("keep"))
    }
}

/// An object of which only the metadata is read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct MetaOnly {
    /// Its metadata.
    #[serde(default)]
    pub metadata: LiveMeta,
}

/// A list of objects of which only some part is read.
#[derive(Clone, Debug, Deserialize)]
pub struct ListOf<T> {
    /// The objects. An empty list of metadata comes as `null`.
    #[serde(
        default = "Vec::new",
        deserialize_with = "null_is_empty",
        bound(deserialize = "T: Deserialize<'de>")
    )]
    pub items: Vec<T>,
}

fn null_is_empty<'de, T: Deserialize<'de>, D: Deserializer<'de>>(reader: D) -> Result<Vec<T>, D::Error> {
    Option::deserialize(reader).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_is_read_in_each_form_in_which_servers_send_it() {
        for text in [r#"{"items":null}"#, r#"{"items":[]}"#, "{}"] {
            assert!(serde_json::from_str::<ListOf<MetaOnly>>(text).unwrap().items.is_empty(), "{text}");
        }
        let one = r#"{"items":[{"metadata":{"name":"a"}}]}"#;
        assert_eq!(serde_json::from_str::<ListOf<MetaOnly>>(one).unwrap().items[0].metadata.name, "a");
    }
}
