// SPDX-License-Identifier: Apache-2.0
//! What applying would make of a live object, where the API server does not tell: it refuses the dry run, or a webhook
//! does.

use serde_json::{Map, Value};

use super::{normal::prepare, patch::is_void};

/// The live object with the desired one merged in: maps by key, lists of Kubernetes' own kinds by their merge keys, new
/// items first, as a strategic merge patch does it. Values that only differ in spelling stay as they are.
///
/// `builtin` says that it is one of Kubernetes' own kinds; the lists of all others are replaced whole.
pub fn predicted(desired: &Value, live: &Value, builtin: bool) -> Value {
    let mut wanted = desired.clone();
    prepare(&mut wanted);
    let mut result = live.clone();
    merge(&mut result, &wanted, "", builtin);
    result
}

/// Of an object that the server has completed, what the desired one sets. Lists are taken whole.
pub fn restricted(completed: &Value, desired: &Value) -> Value {
    let (Value::Object(completed), Value::Object(desired)) = (completed, desired) else {
        return completed.clone();
    };
    let fields = desired.iter().filter(|(_, wanted)| !wanted.is_null()).filter_map(|(key, wanted)| {
        let found = completed.get(key)?;
        Some((key.clone(), restricted(found, wanted)))
    });
    Value::Object(fields.collect())
}

fn merge(live: &mut Value, desired: &Value, field: &str, builtin: bool) {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => {
            for (key, wanted) in desired {
                match live.get_mut(key) {
                    Some(found) => merge(found, wanted, key, builtin),
                    None if wanted.is_null() => {}
                    None => {
                        live.insert(key.clone(), without_nulls(wanted));
                    }
                }
            }
        }
        (Value::Array(live), Value::Array(desired)) => merge_lists(live, desired, field, builtin),
        (_, Value::Null) => {}
        (live, desired) if equivalent(live, desired) => {}
        (live, desired) => *live = without_nulls(desired),
    }
}

fn merge_lists(live: &mut Vec<Value>, desired: &[Value], field: &str, builtin: bool) {
    let key = merge_key(field, desired).filter(|_| builtin);
    let Some(key) = key else {
        let mut merged = live.clone();
        let paired = live.len() == desired.len();
        for (found, wanted) in merged.iter_mut().zip(desired) {
            merge(found, wanted, "", builtin);
        }
        if !paired || merged != *live {
            *live = desired.iter().map(without_nulls).collect();
        }
        return;
    };
    let mut new = Vec::new();
    for wanted in desired {
        match live.iter_mut().find(|found| found[key] == wanted[key]) {
            Some(found) => {
                merge(found, wanted, "", builtin);
                // A volume has one source: what took its place goes.
                if field == "volumes"
                    && let (Value::Object(found), Value::Object(wanted)) = (found, wanted)
                {
                    found.retain(|key, _| wanted.contains_key(key));
                }
            }
            None => new.push(without_nulls(wanted)),
        }
    }
    live.splice(0..0, new);
}

/// By which key the items of a list of Kubernetes' own kinds are merged; the API's own definitions. `None` replaces.
fn merge_key(field: &str, items: &[Value]) -> Option<&'static str> {
    Some(match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "webhooks"
        | "secrets" => "name",
        "ports" if items.iter().any(|item| item.get("containerPort").is_some()) => "containerPort",
        "ports" => "port",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "hostAliases" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        _ => return None,
    })
}

/// A desired object without what says nothing, for where nobody tells whether the server keeps it.
pub fn without_voids(desired: &Value) -> Value {
    match desired {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !is_void(value));
            Value::Object(kept.map(|(key, value)| (key.clone(), without_voids(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_voids).collect()),
        other => other.clone(),
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect::<Map<_, _>>())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

/// Whether two values are one to the API: the same quantity in two spellings.
fn equivalent(one: &Value, other: &Value) -> bool {
    if one == other {
        return true;
    }
    match (quantity(one), quantity(other)) {
        (Some(one), Some(other)) => (one - other).abs() <= one.abs().max(other.abs()) * 1e-12,
        _ => false,
    }
}

/// A quantity's amount: a number, with the suffixes that Kubernetes knows.
fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::String(text) => text.as_str(),
        _ => return None,
    };
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        _ => return text.parse().ok(),
    };
    number.parse::<f64>().ok().map(|number| number * factor)
}
