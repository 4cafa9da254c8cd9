// SPDX-License-Identifier: Apache-2.0
//! From documents to objects: lists are opened, what is no object is left out, Fleet's marks are put on.

use std::fmt;

use serde_json::{Map, Value};

use crate::api::keys;

use super::{Kinds, RenderError, Scope, engine::Document};

const CRD: &str = "CustomResourceDefinition";

/// One object as it is to be on the cluster.
#[derive(Clone, PartialEq)]
pub struct Object {
    /// For instance `apps/v1`.
    pub api_version: String,
    /// For instance `Deployment`.
    pub kind: String,
    /// As written in the manifest; empty if it says none.
    pub namespace: String,
    /// Never empty.
    pub name: String,
    /// The whole object, with Fleet's label and annotations.
    pub value: Value,
}

/// Names only: it may be a Secret.
impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api_version, kind, namespace, name, .. } = self;
        write!(f, "{api_version} {kind} {namespace}/{name}")
    }
}

/// The objects of raw documents, in order. Documents that say neither kind nor version are nobody's, as values files
/// that lie beside manifests; Fleet and we pass over them.
pub(super) fn objects(documents: Vec<Document>) -> Result<Vec<Object>, RenderError> {
    let mut found = Vec::with_capacity(documents.len());
    for Document { file, value, .. } in documents {
        open(&file, value, &mut found)?;
    }
    Ok(found)
}

/// The objects of a document that a template or a kustomization gave: one that is no object is an error there. Says
/// whether the document was a list, whose items are nobody's file to Helm.
pub(super) fn rendered(file: &str, value: Value, found: &mut Vec<Object>) -> Result<bool, RenderError> {
    for (pointer, field, name) in [("/kind", "kind", "Kind"), ("/apiVersion", "apiVersion", "apiVersion")] {
        if text(file, &value, pointer, field)?.is_none() {
            let message =
                format!("error while running post render on files: Object '{name}' is missing in a document");
            return Err(RenderError::Object { file: file.to_owned(), message });
        }
    }
    let list = value.get("items").is_some_and(|items| items.is_array() || items.is_null());
    open(file, value, found)?;
    Ok(list)
}

fn open(file: &str, mut value: Value, found: &mut Vec<Object>) -> Result<(), RenderError> {
    let (Some(kind), Some(api_version)) =
        (text(file, &value, "/kind", "kind")?, text(file, &value, "/apiVersion", "apiVersion")?)
    else {
        return Ok(());
    };
    match value.get_mut("items").map(Value::take) {
        // To Kubernetes whatever has items is a list, and items that do not say so are of its kind.
        Some(Value::Array(items)) => {
            for mut item in items {
                let says_nothing = item.get("kind").is_none() && item.get("apiVersion").is_none();
                if let (true, Some(fields)) = (says_nothing, item.as_object_mut()) {
                    let item_kind = kind.strip_suffix("List").unwrap_or(&kind);
                    fields.insert("kind".into(), item_kind.into());
                    fields.insert("apiVersion".into(), api_version.as_str().into());
                }
                open(file, item, found)?;
            }
            return Ok(());
        }
        Some(Value::Null) => return Ok(()),
        Some(other) => value["items"] = other,
        None => {}
    }
    let name = text(file, &value, "/metadata/name", "ObjectMeta.metadata.name")?;
    let namespace = text(file, &value, "/metadata/namespace", "ObjectMeta.metadata.namespace")?;
    let Some(name) = name else {
        let message = format!(
            "error validating data: {kind} ({api_version}) in {file}: resource name may not be empty"
        );
        return Err(RenderError::Object { file: file.to_owned(), message });
    };
    found.push(Object { api_version, kind, namespace: namespace.unwrap_or_default(), name, value });
    Ok(())
}

/// A field's text; `None` if it is absent, null or empty. Any other value is an error in Go's words: YAML 1.1 makes
/// `name: n` a boolean.
fn text(file: &str, value: &Value, pointer: &str, field: &str) -> Result<Option<String>, RenderError> {
    let what = match value.pointer(pointer) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(Value::Bool(_)) => "bool",
        Some(Value::Number(_)) => "number",
        Some(Value::Array(_)) => "array",
        Some(Value::Object(_)) => "object",
    };
    let message = format!(
        "unable to build kubernetes objects from release manifest: unable to decode \"\": json: cannot unmarshal {what} into Go struct field {field} of type string"
    );
    Err(RenderError::Object { file: file.to_owned(), message })
}

/// What Fleet writes on every object.
pub(super) struct Marks<'a> {
    /// The annotation's value.
    pub set_id: &'a str,
    /// The label's value.
    pub hash: &'a str,
    /// Whether CustomResourceDefinitions stay when the release goes.
    pub keep_crds: bool,
}

impl Marks<'_> {
    /// Puts label and annotations on an object, over whatever it says itself.
    pub(super) fn put(&self, object: &mut Object) {
        let Some(metadata) = object.value.get_mut("metadata").and_then(Value::as_object_mut) else {
            return;
        };
        strings(metadata, "labels").insert(keys::HASH_LABEL.into(), self.hash.into());
        let annotations = strings(metadata, "annotations");
        annotations.insert(keys::ID_ANNOTATION.into(), self.set_id.into());
        if self.keep_crds && object.kind == CRD {
            annotations.insert(keys::RESOURCE_POLICY.into(), "keep".into());
        }
    }
}

/// The labels or annotations. Like Kubernetes' own accessor, which Fleet uses, it reads none where one value is no
/// string, so such a map starts anew: `raw/metadata-edge` shows it.
fn strings<'a>(metadata: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let entry = metadata.entry(key).or_insert(Value::Null);
    let sound = entry.as_object().is_some_and(|map| map.values().all(Value::is_string));
    if !sound {
        *entry = Value::Object(Map::new());
    }
    entry.as_object_mut().expect("made an object above")
}

/// Puts every object into a namespace.
///
/// # Errors
/// The first object that is cluster scoped or of an unknown kind; nothing is changed then.
pub(super) fn force_namespace(
    objects: &mut [&mut Object],
    namespace: &str,
    kinds: &dyn Kinds,
) -> Result<(), RenderError> {
    for Object { api_version, kind, name, .. } in objects.iter().map(|object| &**object) {
        let named = || (name.clone(), kind.clone(), api_version.clone());
        match kinds.scope(api_version, kind) {
            Some(Scope::Namespaced) => {}
            Some(Scope::Cluster) => {
                let (name, kind, api_version) = named();
                return Err(RenderError::ClusterScoped { name, kind, api_version });
            }
            None => {
                let (name, kind, api_version) = named();
                return Err(RenderError::UnknownKind { name, kind, api_version });
            }
        }
    }
    for object in objects {
        namespace.clone_into(&mut object.namespace);
        if let Some(metadata) = object.value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("namespace".into(), namespace.into());
        }
    }
    Ok(())
}
