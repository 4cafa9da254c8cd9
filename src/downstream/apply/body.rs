// SPDX-License-Identifier: Apache-2.0
//! The bytes of one apply: the rendered object with what is added at apply time, written in one pass without copying
//! the object.
//!
//! Added here and not in the stored manifest: Helm's ownership label and annotations, the epoch, and the precondition.

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};

use crate::api::keys;

/// Fields of metadata that only the server writes; a manifest made from a live object may carry them.
const SERVER_OWNED: [&str; 6] =
    ["uid", "resourceVersion", "managedFields", "creationTimestamp", "generation", "selfLink"];

/// What is laid over the rendered object.
pub(in crate::downstream) struct Overlay<'a> {
    /// The release it belongs to: name and namespace. Hooks and the CRDs of `crds/` are no release's.
    pub release: Option<(&'a str, &'a str)>,
    /// `<uid>/<epoch>`.
    pub stamp: Option<&'a str>,
    /// uid of the object that was read; `None` creates.
    pub uid: Option<&'a str>,
    /// Version of the object that was read, or the one that no object has.
    pub resource_version: &'a str,
    /// Where it goes, also when nothing is written: the server names it in its errors. Empty for cluster-scoped
    /// objects, whatever is written.
    pub namespace: &'a str,
    /// A live autoscaler decides on the replicas.
    pub leave_replicas: bool,
}

/// The apply's body.
pub(in crate::downstream) fn bytes(
    object: &Value,
    overlay: &Overlay<'_>,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Body { object, overlay })
}

struct Body<'a> {
    object: &'a Value,
    overlay: &'a Overlay<'a>,
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let empty = Map::new();
        let metadata = self.object["metadata"].as_object().unwrap_or(&empty);
        map.serialize_entry("metadata", &Metadata { metadata, overlay: self.overlay })?;
        for (key, value) in self.object.as_object().into_iter().flatten() {
            match (key.as_str(), value) {
                ("metadata", _) => {}
                ("spec", Value::Object(spec)) if self.overlay.leave_replicas => {
                    map.serialize_entry("spec", &Without { map: spec, key: "replicas" })?;
                }
                _ => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

struct Metadata<'a> {
    metadata: &'a Map<String, Value>,
    overlay: &'a Overlay<'a>,
}

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let overlay = self.overlay;
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.metadata {
            let key = key.as_str();
            let dropped =
                SERVER_OWNED.contains(&key) || matches!(key, "labels" | "annotations" | "namespace");
            if !dropped {
                map.serialize_entry(key, value)?;
            }
        }
        if !overlay.namespace.is_empty() {
            map.serialize_entry("namespace", overlay.namespace)?;
        }
        let (mut labels, mut annotations) = (Vec::new(), Vec::new());
        if let Some((name, namespace)) = overlay.release {
            labels.push((keys::MANAGED_BY, "Helm"));
            annotations.extend([(keys::RELEASE_NAME, name), (keys::RELEASE_NAMESPACE, namespace)]);
        }
        annotations.extend(overlay.stamp.map(|stamp| (keys::EPOCH_ANNOTATION, stamp)));
        for (key, over) in [("labels", &labels), ("annotations", &annotations)] {
            let merged = Merged::new(self.metadata.get(key), over);
            if merged.base.is_some() || !over.is_empty() {
                map.serialize_entry(key, &merged)?;
            }
        }
        if let Some(uid) = overlay.uid {
            map.serialize_entry("uid", uid)?;
        }
        map.serialize_entry("resourceVersion", overlay.resource_version)?;
        map.end()
    }
}

/// A map of strings with entries laid over. What is no map is sent as it is, for the server to refuse.
struct Merged<'a> {
    base: Option<&'a Value>,
    over: &'a [(&'a str, &'a str)],
}

impl<'a> Merged<'a> {
    fn new(base: Option<&'a Value>, over: &'a [(&'a str, &'a str)]) -> Self {
        Self { base: base.filter(|base| !base.is_null()), over }
    }
}

impl Serialize for Merged<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let base = match self.base {
            Some(Value::Object(base)) => Some(base),
            Some(other) => return other.serialize(serializer),
            None => None,
        };
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in base.into_iter().flatten() {
            if !self.over.iter().any(|(over, _)| over == key) {
                map.serialize_entry(key, value)?;
            }
        }
        for (key, value) in self.over {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

struct Without<'a> {
    map: &'a Map<String, Value>,
    key: &'static str,
}

impl Serialize for Without<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.map.iter().filter(|(key, _)| *key != self.key))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn overlay() -> Overlay<'static> {
        Overlay {
            release: Some(("app", "ns")),
            stamp: Some("u/20"),
            uid: Some("live"),
            resource_version: "7",
            namespace: "other",
            leave_replicas: false,
        }
    }

    fn sent(object: Value, overlay: &Overlay<'_>) -> Value {
        serde_json::from_slice(&bytes(&object, overlay).unwrap()).unwrap()
    }

    #[test]
    fn ownership_epoch_and_precondition_are_laid_over_what_is_rendered() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
            "metadata": {"name": "c", "namespace": "other", "uid": "copied", "resourceVersion": "1", "generation": 4,
                "creationTimestamp": null, "managedFields": [], "finalizers": ["f"],
                "labels": {"app.kubernetes.io/managed-by": "mine", "l": "1"}, "annotations": {"a": "1"}}});
        assert_eq!(
            sent(object, &overlay()),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
                "metadata": {"name": "c", "namespace": "other", "uid": "live", "resourceVersion": "7", "finalizers": ["f"],
                    "labels": {"app.kubernetes.io/managed-by": "Helm", "l": "1"},
                    "annotations": {"a": "1", "meta.helm.sh/release-name": "app",
                        "meta.helm.sh/release-namespace": "ns", "flotilla.fleet/epoch": "u/20"}}})
        );
    }

    #[test]
    fn replicas_are_left_to_an_autoscaler_and_namespaces_to_namespaced_kinds() {
        let object = json!({"metadata": {"name": "w", "namespace": "x", "labels": null}, "spec": {"replicas": 3, "a": 1}});
        let overlay = Overlay { uid: None, namespace: "", leave_replicas: true, ..overlay() };
        let sent = sent(object, &overlay);
        assert_eq!(sent["spec"], json!({"a": 1}));
        assert!(sent["metadata"].get("namespace").is_none() && sent["metadata"].get("uid").is_none());
    }

    #[test]
    fn what_is_no_releases_gets_no_owner() {
        let object = json!({"metadata": {"name": "h", "labels": {"l": "1"}}});
        let overlay = Overlay { release: None, stamp: None, uid: None, ..overlay() };
        let metadata = &sent(object, &overlay)["metadata"];
        assert_eq!(metadata["labels"], json!({"l": "1"}));
        assert!(metadata.get("annotations").is_none());
    }

    #[test]
    fn labels_that_are_no_map_are_for_the_server_to_refuse() {
        assert_eq!(sent(json!({"metadata": {"labels": "x"}}), &overlay())["metadata"]["labels"], "x");
    }
}
