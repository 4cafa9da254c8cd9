// SPDX-License-Identifier: Apache-2.0
//! The merge patch from live to predicted, as far as the desired object has a say.

use serde_json::{Map, Value};

/// What tells the items of a list apart, the first that they have: the merge keys of Kubernetes' own lists.
const IDENTITIES: [&str; 10] =
    ["name", "key", "mountPath", "devicePath", "containerPort", "port", "ip", "topologyKey", "type", "uid"];

/// The merge patch that turns `live` into `predicted` in the fields that `desired` sets. A list that differs is
/// replaced whole, with everything that is predicted of it.
pub(super) fn restoring(desired: &Value, live: &Value, predicted: &Value) -> Option<Value> {
    let (Value::Object(desired), Value::Object(predicted)) = (desired, predicted) else {
        return differs(desired, live, predicted).then(|| predicted.clone());
    };
    let Value::Object(live) = live else { return Some(Value::Object(predicted.clone())) };
    let mut patch = Map::new();
    for (key, wanted) in desired {
        if is_void(wanted) {
            continue;
        }
        let change = match (live.get(key), predicted.get(key)) {
            (None, None) => None,
            (Some(found), Some(right)) if found == right => None,
            (Some(found), Some(right)) => restoring(wanted, found, right),
            (None, Some(right)) => (!is_void(right)).then(|| right.clone()),
            (Some(found), None) => (!is_void(found)).then_some(Value::Null),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The first field that a patch changes, as a path for people: `spec.replicas`.
pub fn first_field(patch: &Value) -> String {
    let mut path = Vec::new();
    let mut place = patch;
    while let Some((key, value)) = place.as_object().and_then(|map| map.iter().next()) {
        path.push(key.as_str());
        place = value;
    }
    path.join(".")
}

fn differs(desired: &Value, live: &Value, predicted: &Value) -> bool {
    match (desired, live, predicted) {
        _ if live == predicted || (is_void(live) && is_void(predicted)) => false,
        (Value::Array(desired), Value::Array(live), Value::Array(predicted)) => {
            lists_differ(desired, live, predicted)
        }
        _ => true,
    }
}

fn lists_differ(desired: &[Value], live: &[Value], predicted: &[Value]) -> bool {
    let Some(key) = identity(&[desired, live, predicted]) else {
        let paired = desired.len() == live.len() && live.len() == predicted.len();
        let mut items = desired.iter().zip(live).zip(predicted);
        return !paired || items.any(|((wanted, found), right)| restoring(wanted, found, right).is_some());
    };
    let of = |list: &'_ [Value], item: &Value| list.iter().position(|other| other[key] == item[key]);
    // Only where the list is ours alone would applying take an item away.
    let surplus = live.iter().any(|found| of(predicted, found).is_none());
    surplus
        || desired.iter().any(|wanted| match (of(live, wanted), of(predicted, wanted)) {
            (Some(found), Some(right)) => restoring(wanted, &live[found], &predicted[right]).is_some(),
            (None, Some(_)) => true,
            (_, None) => false,
        })
}

/// The key that all items of all lists have, each another value within its list.
fn identity(lists: &[&[Value]]) -> Option<&'static str> {
    IDENTITIES.into_iter().find(|key| {
        lists.iter().all(|list| {
            let values: Vec<&Value> = list.iter().map(|item| &item[*key]).collect();
            let told = values.iter().all(|value| value.is_string() || value.is_number());
            told && values.iter().enumerate().all(|(at, value)| !values[..at].contains(value))
        })
    })
}

/// Says nothing: `null`, an empty map, an empty list. The server keeps some of them and drops others.
pub(super) fn is_void(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_void),
        Value::Array(list) => list.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
