// SPDX-License-Identifier: Apache-2.0
//! From the schemas derived of our types to schemas that accept what Fleet's do.
//!
//! kube's derive already inlines and makes them structural. What is left: Go writes `null` for empty strings and
//! lists, some Kubernetes types are stricter in their published schema than in any CRD, and a default in a schema
//! would be written into objects.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::{Map, Value, json};

/// Properties whose schema is a Kubernetes type's; their insides stay as Kubernetes has them.
const KUBERNETES_TYPES: [&str; 4] = ["agentEnvVars", "agentTolerations", "agentAffinity", "agentResources"];

/// References whose `name` Kubernetes allows to be empty, whatever its schema says.
const REFERENCES: [&str; 3] = ["configMapKeyRef", "secretKeyRef", "agentPullSecrets"];

/// The schema of a whole kind.
pub(super) fn as_fleets(schema: &JSONSchemaProps, description: &str) -> JSONSchemaProps {
    let mut root = serde_json::to_value(schema).expect("a schema is JSON");
    walk(&mut root, true);
    if let Some(root) = root.as_object_mut() {
        root.remove("title");
        root.remove("required");
        root.insert("description".into(), json!(description));
        let properties = root.entry("properties").or_insert_with(|| json!({}));
        properties["apiVersion"] = json!({"type": "string"});
        properties["kind"] = json!({"type": "string"});
        properties["metadata"] = json!({"type": "object"});
        for part in ["spec", "status"] {
            if let Some(part) = properties.get_mut(part).and_then(Value::as_object_mut) {
                part.remove("nullable");
            }
        }
    }
    serde_json::from_value(root).expect("what was a schema still is one")
}

/// `ours`: the type is Fleet's, so strings and lists may be null.
fn walk(node: &mut Value, ours: bool) {
    let Some(node) = node.as_object_mut() else { return };
    // A serde default says what absence means to us; in a CRD the server would write it into the object.
    if node.get("enum").is_none() {
        node.remove("default");
    }
    let selector = is_selector(node);
    if selector {
        node.insert("x-kubernetes-map-type".into(), json!("atomic"));
    }
    let ours = ours && !selector;
    let condition = is_condition(node);
    if let Some(properties) = node.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            let ours = ours && !KUBERNETES_TYPES.contains(&name.as_str());
            if REFERENCES.contains(&name.as_str()) {
                let list = property.get("items").is_some();
                name_may_be_empty(if list { &mut property["items"] } else { &mut *property });
            }
            if ours && !condition && may_be_null(property) {
                property["nullable"] = json!(true);
            }
            walk(property, ours);
        }
    }
    for below in ["items", "additionalProperties"] {
        if let Some(below) = node.get_mut(below) {
            walk(below, ours);
        }
    }
}

/// Strings, lists and maps: what Go's encoder of an older type may have written as `null`.
fn may_be_null(property: &Value) -> bool {
    let map = property.get("additionalProperties").is_some();
    let plain = property.get("enum").is_none();
    plain && (map || matches!(property["type"].as_str(), Some("string" | "array")))
}

fn is_condition(node: &Map<String, Value>) -> bool {
    let requires = |key: &str| {
        node.get("required").and_then(Value::as_array).is_some_and(|keys| keys.iter().any(|k| k == key))
    };
    requires("type") && requires("status")
}

fn is_selector(node: &Map<String, Value>) -> bool {
    let properties = node.get("properties").and_then(Value::as_object);
    properties
        .is_some_and(|p| p.len() == 2 && p.contains_key("matchLabels") && p.contains_key("matchExpressions"))
}

fn name_may_be_empty(reference: &mut Value) {
    let Some(required) = reference.get_mut("required").and_then(Value::as_array_mut) else { return };
    required.retain(|key| key != "name");
    if required.is_empty()
        && let Some(reference) = reference.as_object_mut()
    {
        reference.remove("required");
    }
}
