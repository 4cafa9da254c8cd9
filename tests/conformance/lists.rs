// SPDX-License-Identifier: Apache-2.0
//! What is known: differences with their reasons, and cases whose features are still to be built.
//!
//! Both lists stay true by themselves: a difference that does not occur fails its case, and so does a case that passes
//! while it is listed as one that cannot.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::case;
use super::compare::{Difference, is};

/// `differences.json` and `not-yet.json` of `tests/golden`.
pub struct Lists {
    /// Reasons of differences by their short names.
    pub reasons: BTreeMap<String, String>,
    differences: Vec<Known>,
    not_yet: Vec<NotYet>,
}

/// Differences of one case with one reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    case: String,
    steps: Vec<String>,
    /// A key of `reasons`.
    reason: String,
    /// Where, as a pointer into the canonical recording, and what we have there; null for nothing.
    at: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Differences {
    reasons: BTreeMap<String, String>,
    differences: Vec<Known>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NotYet {
    reason: String,
    cases: BTreeSet<String>,
}

impl Lists {
    /// Reads both and checks that they name what exists.
    pub fn read(cases: &[String]) -> anyhow::Result<Lists> {
        let Differences { reasons, differences } = read("differences.json")?;
        let not_yet: Vec<NotYet> = read("not-yet.json")?;
        let mut met = BTreeSet::new();
        for case in not_yet.iter().flat_map(|entry| &entry.cases) {
            ensure!(cases.contains(case), "not-yet.json: there is no case {case}");
            ensure!(met.insert(case), "not-yet.json: {case} stands there twice");
        }
        for known in &differences {
            ensure!(cases.contains(&known.case), "differences.json: there is no case {}", known.case);
            ensure!(reasons.contains_key(&known.reason), "differences.json: no reason {:?}", known.reason);
            ensure!(!known.at.is_empty() && !known.steps.is_empty(), "differences.json: an empty entry");
        }
        for reason in reasons.keys() {
            let used = differences.iter().any(|known| known.reason == *reason);
            ensure!(used, "differences.json: nothing has the reason {reason:?}");
        }
        Ok(Lists { reasons, differences, not_yet })
    }

    /// Why a case cannot pass yet.
    pub fn not_yet(&self, case: &str) -> Option<&str> {
        self.not_yet.iter().find(|entry| entry.cases.contains(case)).map(|entry| entry.reason.as_str())
    }

    /// The short names of the reasons for a case's differences.
    pub fn reasons_of(&self, case: &str) -> BTreeSet<&str> {
        self.differences
            .iter()
            .filter(|known| known.case == case)
            .map(|known| known.reason.as_str())
            .collect()
    }

    /// The known differences of one step: where, what we have there, and the short name of the reason.
    pub fn of(&self, case: &str, step: &str) -> impl Iterator<Item = (&str, &Value, &str)> {
        let mine = self.differences.iter().filter(move |known| known.case == case);
        let mine = mine.filter(move |known| known.steps.iter().any(|name| name == step));
        mine.flat_map(|known| known.at.iter().map(|(at, ours)| (at.as_str(), ours, known.reason.as_str())))
    }

    /// Takes the known differences out, and adds a complaint for each that is not there.
    pub fn sift(&self, case: &str, step: &str, found: &[Difference]) -> Vec<Complaint> {
        let mut known: BTreeMap<&str, &Value> = self.of(case, step).map(|(at, ours, _)| (at, ours)).collect();
        let mut complaints = Vec::new();
        for difference in found {
            let seen = short(&difference.seen);
            let (expected, word) = match known.remove(difference.at.as_str()) {
                Some(ours) if is(ours, &difference.seen) => continue,
                Some(ours) => (short(ours), "listed as"),
                None => (short(&difference.expected), "expected"),
            };
            let at = difference.at.clone();
            let text = format!("{at}\n      {word} {expected}\n      seen {seen}");
            complaints.push(Complaint { at, text, seen: difference.seen.clone() });
        }
        complaints.extend(known.keys().map(|at| Complaint {
            at: (*at).to_owned(),
            text: format!("{at}\n      a listed difference does not occur"),
            seen: Value::Null,
        }));
        complaints
    }
}

/// What is neither as recorded nor as listed.
#[derive(Clone, Debug)]
pub struct Complaint {
    /// Where.
    pub at: String,
    /// For people.
    pub text: String,
    /// What is there.
    pub seen: Value,
}

fn read<T: serde::de::DeserializeOwned>(file: &str) -> anyhow::Result<T> {
    let path = case::root().join(file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
}

/// A value in one line, cut.
fn short(value: &Value) -> String {
    let limit = if std::env::var_os("GOLDEN_LONG").is_some() { usize::MAX } else { 400 };
    let text = if value.is_null() { "nothing".into() } else { value.to_string() };
    if text.chars().count() <= limit {
        return text;
    }
    format!("{}…", text.chars().take(limit).collect::<String>())
}
