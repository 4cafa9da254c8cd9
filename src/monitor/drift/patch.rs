// SPDX-License-Identifier: Apache-2.0
//! The merge patch from live to predicted, as far as the desired object has a say.

use serde_json::{Map, Value};

/// What tells the items of a list apart, the first that they have: the merge keys of Kubernetes' own lists.
const IDENTITIES: [&str; 10] =
    ["name", "key", "mountPath", "devicePath", "containerPort", "port", "ip", "topologyKey", "type", "uid"];

/// The merge patch that turns `live` into `predicted` in the fields that `desired` sets. A list that differs is
/// replaced whole, with everything that is predicted of it.
pub(super) fn restoring(desired: &Value, live: &Value, predicted: &Value) -> Option<Value> {
    if is_empty(desired) {
        return emptying(live, predicted);
    }
    let (Value::Object(desired), Value::Object(predicted)) = (desired, predicted) else {
        return differs(desired, live, predicted).then(|| predicted.clone());
    };
    let Value::Object(live) = live else { return Some(Value::Object(predicted.clone())) };
    let mut patch = Map::new();
    for (key, wanted) in desired {
        if wanted.is_null() {
            continue;
        }
        let change = match (told(live, key), told(predicted, key)) {
            (None, None) => None,
            (Some(found), Some(right)) if found == right => None,
            (Some(found), Some(right)) => restoring(wanted, found, right),
            // An empty map may be all that there is to say: `emptyDir: {}`. An empty list is as good as none.
            (None, Some(right)) => (right.is_object() || !is_void(right)).then(|| right.clone()),
            (Some(found), None) => (!is_void(found)).then_some(Value::Null),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn told<'v>(state: &'v Map<String, Value>, key: &str) -> Option<&'v Value> {
    state.get(key).filter(|value| !value.is_null())
}

/// Takes out of what is wanted the maps and lists that are empty only because nothing that was in them is compared.
pub(super) fn drop_emptied(before: &Value, wanted: &mut Value) {
    let (before, wanted) = match (before, wanted) {
        (Value::Object(before), Value::Object(wanted)) => (before, wanted),
        (Value::Array(before), Value::Array(wanted)) if before.len() == wanted.len() => {
            before.iter().zip(wanted).for_each(|(before, wanted)| drop_emptied(before, wanted));
            return;
        }
        _ => return,
    };
    wanted.retain(|key, value| {
        let before = before.get(key);
        if let Some(before) = before {
            drop_emptied(before, value);
        }
        !is_empty(value) || before.is_some_and(is_empty)
    });
}

/// Where nothing in particular is wanted, the server decides what stays. Only what it would empty is drift.
fn emptying(live: &Value, predicted: &Value) -> Option<Value> {
    if is_void(live) || !is_void(predicted) {
        return None;
    }
    let (Value::Object(live), Value::Object(_)) = (live, predicted) else { return Some(predicted.clone()) };
    let filled = live.iter().filter(|(_, value)| !is_void(value));
    Some(Value::Object(filled.map(|(key, _)| (key.clone(), Value::Null)).collect()))
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

/// `{}` or `[]`.
fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Says nothing: `null`, an empty list, a map of nothing else. The server keeps some of them and drops others.
pub fn is_void(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_void),
        Value::Array(list) => list.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
