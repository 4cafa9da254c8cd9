// SPDX-License-Identifier: Apache-2.0
//! The user's rules of what to overlook: `diff.comparePatches` of a bundle.

use regex_lite::Regex;
use serde_json::Value;

use crate::{
    api::{ComparePatch, Operation},
    monitor::Key,
};

/// All rules of a bundle.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a>(&'a [ComparePatch]);

/// What is to be overlooked in one object.
#[derive(Clone, Debug, Default)]
pub struct ObjectRules<'a> {
    pointers: Vec<&'a str>,
    operations: Vec<&'a Operation>,
}

impl<'a> Rules<'a> {
    /// The rules as the options have them.
    pub fn new(patches: &'a [ComparePatch]) -> Self {
        Self(patches)
    }

    /// Whether the object may be missing: a rule with the operation `ignore`, whose name may be a pattern that matches
    /// anywhere. One that is no regular expression is compared as it is.
    pub fn may_miss(&self, key: &Key) -> bool {
        self.0.iter().any(|rule| {
            rule.operations.iter().any(|operation| operation.op == "ignore")
                && rule.api_version == *key.api_version
                && rule.kind == *key.kind
                && rule.namespace == *key.namespace
                && (rule.name.is_empty()
                    || rule.name == *key.name
                    || Regex::new(&rule.name).is_ok_and(|pattern| pattern.is_match(&key.name)))
        })
    }

    /// The rules for one object. Pointers go by group and kind, in which `*` stands for anything, and whatever the
    /// version; operations by the exact version and kind. A name or namespace left away means any.
    pub fn of(&self, key: &Key) -> ObjectRules<'a> {
        let mut found = ObjectRules::default();
        let says = |rule: &str, text: &str| rule.is_empty() || rule == text;
        for rule in self.0 {
            if !says(&rule.name, &key.name) || !says(&rule.namespace, &key.namespace) {
                continue;
            }
            let group = rule.api_version.split_once('/').map_or("", |(group, _)| group);
            if glob(group, key.group()) && glob(&rule.kind, &key.kind) {
                found.pointers.extend(rule.json_pointers.iter().map(String::as_str));
            }
            if rule.api_version == *key.api_version && rule.kind == *key.kind {
                found.operations.extend(rule.operations.iter().filter(|operation| operation.op != "ignore"));
            }
        }
        found
    }
}

impl ObjectRules<'_> {
    /// Applies them to one state of the object, each for itself: one that fails leaves the others alone.
    pub fn apply(&self, state: &mut Value) {
        for pointer in &self.pointers {
            remove(state, pointer);
        }
        for Operation { op, path, value } in &self.operations {
            match op.as_str() {
                "remove" => remove(state, path),
                "replace" if state.pointer(path).is_some() => put(state, path, value),
                "add" => put(state, path, value),
                _ => {}
            }
        }
    }

    /// The fields that are overlooked.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.pointers.iter().copied().chain(self.operations.iter().map(|operation| operation.path.as_str()))
    }
}

/// The place that holds what a JSON pointer names, and the last part of the pointer.
fn parent<'v>(state: &'v mut Value, pointer: &str) -> Option<(&'v mut Value, String)> {
    let (parent, last) = pointer.rsplit_once('/')?;
    Some((state.pointer_mut(parent)?, last.replace("~1", "/").replace("~0", "~")))
}

pub(super) fn remove(state: &mut Value, pointer: &str) {
    match parent(state, pointer) {
        Some((Value::Object(map), key)) => {
            map.remove(&key);
        }
        Some((Value::Array(list), key)) => {
            if let Some(index) = key.parse().ok().filter(|index| *index < list.len()) {
                list.remove(index);
            }
        }
        Some(_) | None => {}
    }
}

fn put(state: &mut Value, pointer: &str, value: &str) {
    match parent(state, pointer) {
        Some((Value::Object(map), key)) => {
            map.insert(key, value.into());
        }
        Some((Value::Array(list), key)) => match key.parse::<usize>() {
            Ok(index) if index < list.len() => list[index] = value.into(),
            Ok(_) => {}
            Err(_) if key == "-" => list.push(value.into()),
            Err(_) => {}
        },
        Some(_) | None => {}
    }
}

/// Whether a pattern in which `*` stands for any text matches the whole text.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return text.ends_with(part);
        }
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    true
}
