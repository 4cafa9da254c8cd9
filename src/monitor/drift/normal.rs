// SPDX-License-Identifier: Apache-2.0
//! What is not compared, kind by kind, and what a correction leaves to others.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{ObjectRules, rules::remove};

/// What stands in the place of a Secret's value.
const MASK: &str = "***";
/// Annotations that deploying writes itself, or that only repeat the object.
const OWN_ANNOTATIONS: [&str; 2] =
    ["kubectl.kubernetes.io/last-applied-configuration", crate::api::keys::EPOCH_ANNOTATION];
const OBJECT_SET: &str = "objectset.rio.cattle.io/";
/// A certificate authority that somebody else is to fill in: nothing, or one newline in base64.
const PLACEHOLDERS: [&str; 2] = ["", "Cg=="];

/// Reduces a state to what is compared: no status, of the metadata only what a manifest decides, a Secret's
/// `stringData` as the data it becomes.
pub(super) fn prepare(state: &mut Value) {
    let secret = state["kind"] == "Secret" && state["apiVersion"] == "v1";
    let Value::Object(fields) = state else { return };
    for key in ["apiVersion", "kind", "status"] {
        fields.remove(key);
    }
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        metadata.retain(|key, _| matches!(key.as_str(), "labels" | "annotations" | "finalizers"));
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations
                .retain(|key, _| !OWN_ANNOTATIONS.contains(&key.as_str()) && !key.starts_with(OBJECT_SET));
        }
    }
    if secret {
        fold_strings(fields);
    }
}

/// As the API server does it: over the data, in base64.
fn fold_strings(fields: &mut Map<String, Value>) {
    let Some(Value::Object(strings)) = fields.remove("stringData") else { return };
    if strings.is_empty() {
        return;
    }
    let data = fields.entry("data").or_insert(Value::Null);
    if data.is_null() {
        *data = Value::Object(Map::new());
    }
    let Value::Object(data) = data else { return };
    for (key, value) in strings {
        if let Value::String(text) = value {
            data.insert(key, STANDARD.encode(text).into());
        }
    }
}

/// Takes out of the desired state what it leaves to others: the rules of an aggregated role, a webhook's certificate
/// authority that is to be filled in. What others put there does not show in the patch either.
pub(super) fn free_delegated(desired: &mut Value, predicted: &mut Value) {
    if desired.get("aggregationRule").is_some_and(|rule| !rule.is_null()) {
        remove(desired, "/rules");
    }
    for webhook in webhooks(desired) {
        if is_placeholder(&webhook["clientConfig"]["caBundle"]) {
            remove(webhook, "/clientConfig/caBundle");
        }
    }
    let filled: Vec<Value> = webhooks(desired)
        .iter()
        .filter(|webhook| !webhook["clientConfig"]["caBundle"].is_null())
        .map(|webhook| webhook["name"].clone())
        .collect();
    for webhook in webhooks(predicted) {
        if !filled.contains(&webhook["name"]) {
            remove(webhook, "/clientConfig/caBundle");
        }
    }
}

fn webhooks(state: &mut Value) -> &mut [Value] {
    state.get_mut("webhooks").and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

fn is_placeholder(authority: &Value) -> bool {
    authority.as_str().is_some_and(|text| PLACEHOLDERS.contains(&text))
}

/// Makes of a desired object what a correction applies: fields that rules overlook, or that are left to others, keep
/// what is live. `replicas` says that an autoscaler decides on them.
pub fn settle(desired: &mut Value, live: &Value, rules: &ObjectRules<'_>, replicas: bool) {
    let scaled = replicas.then_some("/spec/replicas");
    for path in rules.paths().chain(scaled) {
        keep(desired, live, path);
    }
    if desired.get("aggregationRule").is_some_and(|rule| !rule.is_null()) {
        keep(desired, live, "/rules");
    }
    for webhook in webhooks(desired) {
        if !is_placeholder(&webhook["clientConfig"]["caBundle"]) {
            continue;
        }
        let theirs = live["webhooks"].as_array().into_iter().flatten();
        let filled = theirs.filter(|other| other["name"] == webhook["name"]);
        if let Some(authority) =
            filled.map(|other| &other["clientConfig"]["caBundle"]).find(|it| it.is_string())
        {
            webhook["clientConfig"]["caBundle"] = authority.clone();
        }
    }
}

fn keep(desired: &mut Value, live: &Value, path: &str) {
    let Some(ours) = desired.pointer_mut(path) else { return };
    match live.pointer(path) {
        Some(found) => *ours = found.clone(),
        None => remove(desired, path),
    }
}

/// A Secret's patch with the same structure and no value.
pub(super) fn masked(patch: &Value) -> Value {
    let mut masked = patch.clone();
    for key in ["data", "stringData"] {
        if let Some(values) = masked.get_mut(key) {
            mask(values);
        }
    }
    masked
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => map.values_mut().for_each(mask),
        Value::Array(list) => list.iter_mut().for_each(mask),
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) | Value::String(_) => *value = MASK.into(),
    }
}
