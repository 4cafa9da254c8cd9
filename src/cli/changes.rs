// SPDX-License-Identifier: Apache-2.0
//! Two states of an object as a unified diff: server bookkeeping left out, Secret values masked. Pure.

use serde_json::Value;

use crate::{api::keys, render::yaml_text};

/// Lines shown around a change.
const CONTEXT: usize = 3;
/// Cells of the table that finds common lines; beyond, everything between the first and last change is replaced.
const CELLS: usize = 4_000_000;
/// What only the server writes.
const BOOKKEEPING: [&str; 6] =
    ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"];
/// kubectl's copy of an object, values included.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The difference between a state that is `was` ("live") and the bundle's, or nothing. `None` on a side: the object is
/// not there.
pub fn difference(object: &str, was: &str, before: Option<&Value>, after: Option<&Value>) -> Option<String> {
    let (mut old, mut new) = (before.map(cleaned), after.map(cleaned));
    mask(old.as_mut(), new.as_mut());
    let text = |value: &Option<Value>| value.as_ref().map(yaml_text).unwrap_or_default();
    let (old_text, new_text) = (text(&old), text(&new));
    if old_text == new_text {
        return None;
    }
    let head =
        |there: bool, word: &str| if there { format!("{object} ({word})") } else { "/dev/null".into() };
    Some(format!(
        "--- {}\n+++ {}\n{}",
        head(old.is_some(), was),
        head(new.is_some(), "bundle"),
        unified(&old_text, &new_text)
    ))
}

fn cleaned(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(object) = value.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = value["metadata"].as_object_mut() {
        for key in BOOKKEEPING {
            metadata.remove(key);
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            // Every deployment stamps; that is no change of the bundle's.
            annotations.remove(keys::EPOCH_ANNOTATION);
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    value
}

/// Replaces a Secret's values; that one differs stays visible.
fn mask(mut old: Option<&mut Value>, mut new: Option<&mut Value>) {
    let secret = |value: &Option<&mut Value>| value.as_ref().is_some_and(|value| value["kind"] == "Secret");
    if !secret(&old) && !secret(&new) {
        return;
    }
    for path in ["/data", "/stringData", "/metadata/annotations"] {
        let entries = |value: &Option<&mut Value>| {
            value
                .as_ref()
                .and_then(|value| value.pointer(path))
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default()
        };
        let (before, after) = (entries(&old), entries(&new));
        let put = |value: &mut Option<&mut Value>, key: &str, word: &str| {
            if let Some(map) =
                value.as_mut().and_then(|value| value.pointer_mut(path)).and_then(Value::as_object_mut)
                && let Some(entry) = map.get_mut(key)
            {
                *entry = word.into();
            }
        };
        for key in before.keys().chain(after.keys()) {
            if path == "/metadata/annotations" && key != LAST_APPLIED {
                continue;
            }
            let (one, two) = match (before.get(key), after.get(key)) {
                (Some(before), Some(after)) if before != after => ("*** (before)", "*** (after)"),
                _ => ("***", "***"),
            };
            put(&mut old, key, one);
            put(&mut new, key, two);
        }
    }
}

/// One line of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step<'a> {
    Same(&'a str),
    Old(&'a str),
    New(&'a str),
}

/// Hunks in unified form.
fn unified(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let steps = steps(&old, &new);
    let changed: Vec<usize> = steps
        .iter()
        .enumerate()
        .filter(|(_, step)| !matches!(step, Step::Same(_)))
        .map(|(at, _)| at)
        .collect();
    let mut hunks: Vec<(usize, usize)> = Vec::new();
    for at in changed {
        let (from, until) = (at.saturating_sub(CONTEXT), (at + CONTEXT + 1).min(steps.len()));
        match hunks.last_mut() {
            Some(last) if from <= last.1 => last.1 = until,
            _ => hunks.push((from, until)),
        }
    }
    let mut text = String::new();
    let (mut at, mut old_line, mut new_line) = (0, 1, 1);
    for (from, until) in hunks {
        let (skipped_old, skipped_new) = counts(&steps[at..from]);
        (old_line, new_line) = (old_line + skipped_old, new_line + skipped_new);
        let (olds, news) = counts(&steps[from..until]);
        // A side without lines stands before the first.
        let start = |line: usize, count: usize| if count == 0 { line - 1 } else { line };
        text.push_str(&format!(
            "@@ -{},{olds} +{},{news} @@\n",
            start(old_line, olds),
            start(new_line, news)
        ));
        for step in &steps[from..until] {
            let (sign, line) = match step {
                Step::Same(line) => (' ', line),
                Step::Old(line) => ('-', line),
                Step::New(line) => ('+', line),
            };
            text.push_str(&format!("{sign}{line}\n"));
        }
        (old_line, new_line, at) = (old_line + olds, new_line + news, until);
    }
    text
}

fn counts(steps: &[Step<'_>]) -> (usize, usize) {
    let old = steps.iter().filter(|step| !matches!(step, Step::New(_))).count();
    let new = steps.iter().filter(|step| !matches!(step, Step::Old(_))).count();
    (old, new)
}

/// The longest common subsequence, after equal ends are taken off.
fn steps<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Step<'a>> {
    let front = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old_rest, new_rest) = (&old[front..], &new[front..]);
    let back = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&old_rest[..old_rest.len() - back], &new_rest[..new_rest.len() - back]);
    let mut steps: Vec<Step<'a>> = old[..front].iter().map(|line| Step::Same(line)).collect();
    if a.len().saturating_mul(b.len()) > CELLS {
        steps.extend(a.iter().map(|line| Step::Old(line)));
        steps.extend(b.iter().map(|line| Step::New(line)));
    } else {
        let width = b.len() + 1;
        let mut table = vec![0u32; (a.len() + 1) * width];
        for i in (0..a.len()).rev() {
            for j in (0..b.len()).rev() {
                table[i * width + j] = if a[i] == b[j] {
                    table[(i + 1) * width + j + 1] + 1
                } else {
                    table[(i + 1) * width + j].max(table[i * width + j + 1])
                };
            }
        }
        let (mut i, mut j) = (0, 0);
        while i < a.len() || j < b.len() {
            if i < a.len() && j < b.len() && a[i] == b[j] {
                steps.push(Step::Same(a[i]));
                (i, j) = (i + 1, j + 1);
            } else if j == b.len() || i < a.len() && table[(i + 1) * width + j] >= table[i * width + j + 1] {
                steps.push(Step::Old(a[i]));
                i += 1;
            } else {
                steps.push(Step::New(b[j]));
                j += 1;
            }
        }
    }
    steps.extend(old_rest[old_rest.len() - back..].iter().map(|line| Step::Same(line)));
    steps
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_shown_as_diff_does() {
        let old: String = (1..=20).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n3\n", "\nthree\n").replace("\n19\n", "\n");
        assert_eq!(
            unified(&old, &new),
            "@@ -1,6 +1,6 @@\n 1\n 2\n-3\n+three\n 4\n 5\n 6\n@@ -16,5 +16,4 @@\n 16\n 17\n 18\n-19\n 20\n"
        );
        assert_eq!(unified("", "a\n"), "@@ -0,0 +1,1 @@\n+a\n");
        assert_eq!(unified("a\n", ""), "@@ -1,1 +0,0 @@\n-a\n");
    }

    #[test]
    fn what_only_the_server_or_a_deployment_writes_is_no_change() {
        let live = json!({"kind": "ConfigMap", "data": {"a": "1"}, "status": {"x": 1}, "metadata": {"name": "c", "uid": "u",
            "resourceVersion": "7", "generation": 2, "managedFields": [], "annotations": {keys::EPOCH_ANNOTATION: "u/1"}}});
        let after = json!({"kind": "ConfigMap", "data": {"a": "1"}, "metadata": {"name": "c"}});
        assert_eq!(difference("ConfigMap c", "live", Some(&live), Some(&after)), None);
        let text = difference("ConfigMap c", "live", None, Some(&after)).unwrap();
        assert!(text.starts_with("--- /dev/null\n+++ ConfigMap c (bundle)\n@@ -0,0 +1,5 @@\n"), "{text}");
        assert!(difference("ConfigMap c", "live", Some(&live), None).unwrap().contains("+++ /dev/null"));
    }

    #[test]
    fn no_secret_value_is_shown_and_a_change_is_seen_all_the_same() {
        let secret = |password: &str, user: &str| {
            json!({"kind": "Secret", "metadata": {"name": "s", "annotations": {LAST_APPLIED: password}},
                "data": {"password": password, "user": user}, "stringData": {"plain": password}})
        };
        let text =
            difference("Secret s", "live", Some(&secret("c2VjcmV0", "bWU=")), Some(&secret("bmV3", "bWU=")))
                .unwrap();
        assert!(
            text.contains("-  password: '*** (before)'\n+  password: '*** (after)'")
                || text.contains("*** (before)"),
            "{text}"
        );
        for value in ["c2VjcmV0", "bmV3", "bWU="] {
            assert!(!text.contains(value), "{text}");
            let alone = difference("Secret s", "live", None, Some(&secret(value, value))).unwrap();
            assert!(!alone.contains(value), "{alone}");
        }
        assert_eq!(difference("Secret s", "live", Some(&secret("a", "b")), Some(&secret("a", "b"))), None);
    }
}
