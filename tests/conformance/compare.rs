// SPDX-License-Identifier: Apache-2.0
//! What differs between two canonical recordings.

use std::collections::BTreeMap;

use regex_lite::{Captures, Regex};
use serde_json::Value;

use super::canonical::ANY;

/// One place where they differ; an absent value is null.
#[derive(Clone, Debug)]
pub struct Difference {
    /// JSON pointer into the canonical recording.
    pub at: String,
    /// What the recording has.
    pub expected: Value,
    /// What is there.
    pub seen: Value,
}

/// Names that the cluster gives, and their counterparts in the recording: the same name must be the same throughout a
/// case, whatever it is.
#[derive(Clone)]
pub struct Names {
    pattern: Regex,
    there: BTreeMap<String, String>,
    here: BTreeMap<String, String>,
}

impl Names {
    /// None met yet.
    pub fn new() -> Names {
        let uid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
        // Ids of Contents and of deployments are the harness' own: packing and the order of keys are in them.
        let pattern = format!("<uid-[0-9]+>|{uid}|s-[0-9a-f]{{61}}(:[0-9a-f]{{64}})?");
        let pattern = Regex::new(&pattern).expect("a constant pattern");
        Names { pattern, there: BTreeMap::new(), here: BTreeMap::new() }
    }

    /// Whether two texts are equal but for such names.
    fn equal(&mut self, expected: &str, seen: &str) -> bool {
        if expected == seen && !self.pattern.is_match(expected) {
            return true;
        }
        let (literals, names) = self.split(expected);
        let (seen_literals, seen_names) = self.split(seen);
        if literals != seen_literals || names.len() != seen_names.len() {
            return false;
        }
        names.into_iter().zip(seen_names).all(|(expected, seen)| {
            let there = self.there.entry(expected.clone()).or_insert_with(|| seen.clone());
            let here = self.here.entry(seen.clone()).or_insert_with(|| expected.clone());
            *there == seen && *here == expected
        })
    }

    /// A value with the recording's names in the place of the cluster's.
    pub fn recorded(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| (key.clone(), self.recorded(value))).collect()
            }
            Value::Array(items) => items.iter().map(|item| self.recorded(item)).collect(),
            Value::String(text) => {
                let name =
                    |found: &Captures<'_>| self.here.get(&found[0]).cloned().unwrap_or(found[0].to_owned());
                self.pattern.replace_all(text, name).into_owned().into()
            }
            other => other.clone(),
        }
    }

    fn split(&self, text: &str) -> (Vec<String>, Vec<String>) {
        let (mut literals, mut names, mut from) = (Vec::new(), Vec::new(), 0);
        for found in self.pattern.find_iter(text) {
            literals.push(text[from..found.start()].to_owned());
            names.push(found.as_str().to_owned());
            from = found.end();
        }
        literals.push(text[from..].to_owned());
        (literals, names)
    }
}

/// All differences, in the order of their pointers.
pub fn differences(expected: &Value, seen: &Value, names: &mut Names) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(expected, seen, "", names, &mut found);
    let units = expected["bundleDeployments"].as_object();
    found.retain(|difference| !units.is_some_and(|units| names_another(difference, units)));
    for difference in &mut found {
        difference.seen = names.recorded(&difference.seen);
    }
    found
}

/// Whether a value is the one that is said, names that do not occur in the recording apart.
pub fn is(said: &Value, seen: &Value) -> bool {
    let (mut names, mut found) = (Names::new(), Vec::new());
    compare(said, seen, "", &mut names, &mut found);
    found.is_empty()
}

/// With several objects that are not ready, the condition names any of them.
fn names_another(difference: &Difference, units: &serde_json::Map<String, Value>) -> bool {
    units.iter().any(|(name, unit)| {
        let list = unit["status"]["nonReadyStatus"].as_array();
        let list = list.filter(|list| list.len() > 1);
        let at = format!("/bundleDeployments/{name}/status/conditions/Ready/message");
        let text = difference.seen.as_str().unwrap_or_default();
        difference.at == at
            && list.into_iter().flatten().any(|entry| {
                let word = |key: &str| entry[key].as_str().unwrap_or_default();
                let object = format!("{}/{} ", word("namespace"), word("name"));
                let messages = entry["summary"]["message"].as_array().into_iter().flatten();
                let messages: Vec<&str> = messages.filter_map(Value::as_str).collect();
                text.contains(&object) && text.ends_with(&messages.join(", "))
            })
    })
}

fn compare(expected: &Value, seen: &Value, at: &str, names: &mut Names, found: &mut Vec<Difference>) {
    if expected == ANY {
        return;
    }
    match (expected, seen) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                let (left, right) =
                    (left.get(key).unwrap_or(&Value::Null), right.get(key).unwrap_or(&Value::Null));
                compare(left, right, &at, names, found);
            }
        }
        (Value::Array(left), Value::Array(right)) if at.ends_with("/nonReadyStatus") => {
            compare_sets(left, right, at, names, found);
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(left, right, &format!("{at}/{index}"), names, found);
            }
        }
        (Value::String(left), Value::String(right)) if names.equal(left, right) => {}
        _ if expected == seen => {}
        _ => found.push(Difference { at: at.into(), expected: expected.clone(), seen: seen.clone() }),
    }
}

/// Entries in any order; those with fewer blurred fields choose first.
fn compare_sets(left: &[Value], right: &[Value], at: &str, names: &mut Names, found: &mut Vec<Difference>) {
    let mut rest: Vec<&Value> = right.iter().collect();
    let mut exact_first: Vec<&Value> = left.iter().collect();
    exact_first.sort_by_key(|entry| entry.to_string().matches(ANY).count());
    for entry in exact_first {
        let fit = rest.iter().position(|candidate| {
            let (mut trial, mut differences) = (names.clone(), Vec::new());
            compare(entry, candidate, at, &mut trial, &mut differences);
            let fits = differences.is_empty();
            if fits {
                *names = trial;
            }
            fits
        });
        match fit {
            Some(index) => drop(rest.remove(index)),
            None => {
                let expected = entry.clone();
                let at = format!("{at}/{}", entry["name"].as_str().unwrap_or_default());
                found.push(Difference { at, expected, seen: Value::Null });
            }
        }
    }
    for entry in rest {
        let at = format!("{at}/{}", entry["name"].as_str().unwrap_or_default());
        match found.iter_mut().find(|one| one.at == at && one.seen.is_null()) {
            Some(one) => one.seen = entry.clone(),
            None => found.push(Difference { at, expected: Value::Null, seen: entry.clone() }),
        }
    }
}
