// SPDX-License-Identifier: Apache-2.0
//! One shape for recordings and for what is seen: lists without an order of their own become maps, so that a JSON
//! pointer names the same thing in both.
//!
//! * `/bundleDeployments/NAME/status`, with `conditions` by type
//! * `/objects/KIND[.GROUP] NAMESPACE NAME`
//! * `/releases/NAMESPACE NAME REVISION`
//!
//! What is dropped here differs by design for every object and is said in `docs/differences.md`: our epoch annotation and
//! the condition `InProgress`. What the recordings' own description tells to treat as equal is made equal here.

use std::collections::BTreeMap;

use flotilla::api::keys;
use serde_json::{Map, Value, json};

/// Stands where anything is right.
pub const ANY: &str = "<any>";

/// Both in the same shape: the expected step and the seen one.
pub fn both(expected: &Value, seen: &Value) -> (Value, Value) {
    // The numbers of failed revisions say how often it was tried; they count only when there is none.
    let by_rank = [expected, seen].iter().any(|step| revisions(step).any(is_failed));
    (canonical(expected, by_rank), canonical(seen, by_rank))
}

/// Puts [`ANY`] where a second recording differed from the first; `at` are pointers into this step.
pub fn blur(step: &mut Value, at: &[String]) {
    let reordered = at.iter().any(|at| at.contains("/conditions/") && at.ends_with("/type"));
    for pointer in at {
        // Conditions in another order, and numbers of failed revisions, are compared otherwise.
        if pointer.starts_with("/releases/") || reordered && pointer.contains("/conditions/") {
            continue;
        }
        if let Some(value) = step.pointer_mut(pointer) {
            *value = ANY.into();
        } else if let Some((parent, key)) = pointer.rsplit_once('/')
            && let Some(Value::Object(fields)) = step.pointer_mut(parent)
        {
            fields.insert(key.into(), ANY.into());
        }
    }
}

fn canonical(step: &Value, by_rank: bool) -> Value {
    let (releases, ranks) = releases(step, by_rank);
    let mut units = Map::new();
    for (name, unit) in step["bundleDeployments"].as_object().into_iter().flatten() {
        let unit = match unit {
            Value::Null => Value::Null,
            unit => json!({"status": status(&unit["status"], &ranks)}),
        };
        units.insert(name.clone(), unit);
    }
    let objects = step["objects"].as_array().into_iter().flatten().filter_map(object).collect::<Map<_, _>>();
    json!({"bundleDeployments": units, "objects": objects, "releases": releases})
}

fn status(status: &Value, ranks: &BTreeMap<String, String>) -> Value {
    let mut status = pruned(status).unwrap_or_else(|| json!({}));
    if let Some(conditions) = status.get_mut("conditions") {
        let by_type = conditions.as_array().into_iter().flatten().filter_map(|condition| {
            let name = condition["type"].as_str().unwrap_or_default().to_owned();
            let mut condition = condition.clone();
            condition.as_object_mut()?.remove("type");
            (name != keys::CLAIM_CONDITION).then_some((name, condition))
        });
        *conditions = Value::Object(by_type.collect());
    }
    if let Some(release) = status["release"].as_str().and_then(|release| ranks.get(release)) {
        status["release"] = release.clone().into();
    }
    pruned(&status).unwrap_or_else(|| json!({}))
}

/// Without what may be absent as well: false, zero, empty.
fn pruned(value: &Value) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Number(number) if number.as_f64() == Some(0.0) => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => {
            Some(items.iter().map(|item| pruned(item).unwrap_or_else(|| item.clone())).collect())
        }
        Value::Object(fields) => {
            let kept: Map<String, Value> =
                fields.iter().filter_map(|(key, value)| Some((key.clone(), pruned(value)?))).collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        other => Some(other.clone()),
    }
}

fn object(object: &Value) -> Option<(String, Value)> {
    if object["absent"] == true {
        return None;
    }
    let mut object = object.clone();
    let text = |key: &str| object[key].as_str().or(object["metadata"][key].as_str()).unwrap_or_default();
    let group =
        text("apiVersion").rsplit_once('/').map_or_else(String::new, |(group, _)| format!(".{group}"));
    let key = format!("{}{group} {} {}", text("kind"), text("namespace"), text("name"));
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(keys::EPOCH_ANNOTATION);
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    Some((key, object))
}

fn revisions(step: &Value) -> impl Iterator<Item = &Value> {
    step["releases"].as_array().into_iter().flatten()
}

fn is_failed(release: &Value) -> bool {
    release["info"]["status"] == "failed"
}

/// The releases by name and revision, and where revisions are counted anew: the words of a status for them.
fn releases(step: &Value, by_rank: bool) -> (Map<String, Value>, BTreeMap<String, String>) {
    let mut groups: BTreeMap<(String, String), Vec<&Value>> = BTreeMap::new();
    for release in revisions(step) {
        let text = |key: &str| release[key].as_str().unwrap_or_default().to_owned();
        groups.entry((text("secretNamespace"), text("name"))).or_default().push(release);
    }
    let (mut found, mut ranks) = (Map::new(), BTreeMap::new());
    for ((namespace, name), mut group) in groups {
        group.sort_by_key(|release| release["version"].as_u64());
        let last_failed = group.iter().rposition(|release| is_failed(release));
        let mut index = 0;
        if by_rank {
            group.retain(|release| {
                index += 1;
                !is_failed(release) || Some(index - 1) == last_failed
            });
        }
        for (rank, release) in group.into_iter().enumerate() {
            let mut release = release.clone();
            let mut revision = release["version"].to_string();
            if by_rank {
                let rank = (rank + 1).to_string();
                ranks.insert(format!("{namespace}/{name}:{revision}"), format!("{namespace}/{name}:{rank}"));
                release["version"] = ANY.into();
                release["labels"]["version"] = ANY.into();
                release["secret"] = ANY.into();
                revision = rank;
            }
            found.insert(format!("{namespace} {name} {revision}"), release);
        }
    }
    (found, ranks)
}
