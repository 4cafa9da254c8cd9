// SPDX-License-Identifier: Apache-2.0
//! How Fleet's controller sums BundleDeployments up for a Bundle, a Cluster or a GitRepo, and the text of its `Ready`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::rules::{self, RANKS, text};

/// Entries a summary keeps of those that are not ready.
const KEPT: usize = 10;
/// Objects the text names of each list of an entry.
const NAMED: usize = 4;

/// BundleDeployments by state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many are in which state.
    pub counts: BTreeMap<&'static str, usize>,
    /// How many there are.
    pub desired: usize,
    /// Of the first that are not ready: name, and what is known of it.
    pub entries: Vec<(String, &'static str, Value)>,
}

impl Summary {
    /// Adds one under the name that the sum gives to it.
    pub fn add(&mut self, name: &str, unit: &Value) {
        let state = rules::state(unit);
        self.desired += 1;
        *self.counts.entry(state).or_default() += 1;
        if state != "Ready" && self.entries.len() < KEPT {
            self.entries.push((name.to_owned(), state, unit.clone()));
        }
    }

    /// The state that stands for all; nothing at all is ready.
    pub fn state(&self) -> &'static str {
        RANKS.into_iter().rev().find(|state| self.counts.contains_key(state)).unwrap_or("Ready")
    }

    /// The message of `Ready`: for each state the first entry that is in it. Empty when all is well.
    pub fn text(&self, kind: &str) -> String {
        let mut parts = Vec::new();
        for (state, count) in self.counts.iter().filter(|(state, _)| **state != "Ready") {
            let Some((name, _, unit)) = self.entries.iter().find(|entry| entry.1 == *state) else { continue };
            let colon = match rules::message(unit) {
                message if message.is_empty() => message,
                message => format!(": {message}"),
            };
            parts.push(format!("{state}({count}) [{kind} {name}{colon}]"));
            let list = |key: &str| unit["status"][key].as_array().into_iter().flatten().take(NAMED);
            parts.extend(list("modifiedStatus").map(modified));
            parts.extend(list("nonReadyStatus").map(not_ready));
        }
        parts.sort();
        parts.join("; ")
    }
}

/// Which object, in words.
fn object(entry: &Value) -> String {
    let (version, namespace) = (text(entry, "/apiVersion"), text(entry, "/namespace"));
    let group = version.split('/').next().filter(|group| !group.is_empty());
    let slash = if namespace.is_empty() { "" } else { "/" };
    let kind = text(entry, "/kind").to_lowercase();
    format!(
        "{kind}{}{} {namespace}{slash}{}",
        if group.is_some() { "." } else { "" },
        group.unwrap_or_default(),
        text(entry, "/name")
    )
}

fn is(entry: &Value, key: &str) -> bool {
    entry[key].as_bool().unwrap_or_default()
}

/// An object that differs, in words.
pub fn modified(entry: &Value) -> String {
    let what = match (is(entry, "missing"), is(entry, "exist"), is(entry, "delete")) {
        (true, true, _) => "is not owned by us".to_owned(),
        (true, false, _) => "missing".to_owned(),
        (false, _, true) => "extra".to_owned(),
        _ => format!("modified {}", text(entry, "/patch")),
    };
    format!("{} {what}", object(entry))
}

/// An object that is not ready, in words. That an error alone lacks its first bracket is the controller's.
pub fn not_ready(entry: &Value) -> String {
    let summary = &entry["summary"];
    let mark = match (is(summary, "transitioning"), is(summary, "error")) {
        (true, true) => "[progressing,error]",
        (true, false) => "[progressing]",
        (false, true) => "error]",
        (false, false) => "",
    };
    let messages: Vec<_> =
        summary["message"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    format!("{} {mark} {}", object(entry), messages.join(", ")).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rules::unit;

    fn asked(status: Value) -> Value {
        unit(json!({"deploymentID": "a", "stagedDeploymentID": "a"}), status)
    }

    fn ready() -> Value {
        asked(json!({"appliedDeploymentID": "a", "ready": true, "nonModified": true}))
    }

    fn failed(message: &str) -> Value {
        asked(
            json!({"conditions": [{"type": "Deployed", "status": "False", "reason": "Error", "message": message}]}),
        )
    }

    #[test]
    fn the_weightiest_state_stands_for_all() {
        let mut summary = Summary::default();
        assert_eq!((summary.state(), &*summary.text("Bundle")), ("Ready", ""));
        for (unit, expected) in [
            (ready(), "Ready"),
            (asked(json!({"appliedDeploymentID": "a"})), "NotReady"),
            (asked(json!({"appliedDeploymentID": "a", "ready": true})), "Modified"),
            (asked(json!({})), "WaitApplied"),
            (failed("no"), "ErrApplied"),
            (ready(), "ErrApplied"),
        ] {
            summary.add("web", &unit);
            assert_eq!(summary.state(), expected);
        }
        assert_eq!((summary.desired, summary.entries.len(), summary.counts["Ready"]), (6, 4, 2));
    }

    #[test]
    fn the_text_tells_the_first_of_each_state_and_the_first_objects() {
        let mut summary = Summary::default();
        summary.add("web", &failed("no such kind"));
        summary.add("db", &failed("never told"));
        let entry = |name: usize| {
            json!({"kind": "ConfigMap", "apiVersion": "v1", "namespace": "n", "name": format!("c{name}"),
            "missing": true})
        };
        let list: Vec<Value> = (0..6).map(entry).collect();
        summary
            .add("shop", &asked(json!({"appliedDeploymentID": "a", "ready": true, "modifiedStatus": list})));
        let missing: Vec<_> = (0..4).map(|name| format!("configmap.v1 n/c{name} missing")).collect();
        assert_eq!(
            summary.text("Cluster"),
            format!(
                "ErrApplied(2) [Cluster web: no such kind]; Modified(1) [Cluster shop]; {}",
                missing.join("; ")
            )
        );
        for _ in 0..12 {
            summary.add("more", &failed("x"));
        }
        assert_eq!((summary.entries.len(), summary.counts["ErrApplied"]), (KEPT, 14));
    }

    #[test]
    fn objects_are_named_as_fleet_names_them() {
        let with = |extra: Value| {
            let mut entry =
                json!({"kind": "Deployment", "apiVersion": "apps/v1", "namespace": "n", "name": "web"});
            entry.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            entry
        };
        for (extra, expected) in [
            (json!({"missing": true}), "deployment.apps n/web missing"),
            (json!({"missing": true, "exist": true}), "deployment.apps n/web is not owned by us"),
            (json!({"delete": true}), "deployment.apps n/web extra"),
            (json!({"patch": "{}"}), "deployment.apps n/web modified {}"),
            (json!({"namespace": "", "delete": true}), "deployment.apps web extra"),
            (json!({"apiVersion": "", "delete": true}), "deployment n/web extra"),
        ] {
            assert_eq!(modified(&with(extra)), expected);
        }
        for (summary, expected) in [
            (
                json!({"transitioning": true, "message": ["a", "b"]}),
                "deployment.apps n/web [progressing] a, b",
            ),
            (json!({"transitioning": true, "error": true}), "deployment.apps n/web [progressing,error]"),
            (json!({"error": true, "message": ["a"]}), "deployment.apps n/web error] a"),
        ] {
            assert_eq!(not_ready(&with(json!({"summary": summary}))), expected);
        }
    }
}
