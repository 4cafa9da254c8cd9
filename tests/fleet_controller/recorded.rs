// SPDX-License-Identifier: Apache-2.0
//! The recordings of Fleet's agent through the eyes of Fleet's controller: what it makes of the recorded status, and
//! what of ours, which is the recorded one with the known differences (`tests/golden.rs` holds us to that).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use crate::conformance::actions::wanted;
use crate::conformance::canonical::{ANY, both};
use crate::conformance::case::{self, Case, RECORDED_NAMESPACE, sha256};
use crate::conformance::lists::Lists;
use crate::ordered::Ordered;
use crate::rules::{self, Verdict};

/// Differences that the controller sees: the reason, the state it reads from theirs, and that from ours. Where both are
/// the same, words alone differ. A step with two reasons stands under both.
const SEEN: &[(&str, &str, &str)] = &[
    ("agent-names", "Ready", "ErrApplied"),
    ("agent-names", "WaitApplied", "ErrApplied"),
    ("correction-failed", "Ready", "Modified"),
    ("crd-first", "ErrApplied", "Ready"),
    ("first-try", "ErrApplied", "ErrApplied"),
    ("first-try", "ErrApplied", "NotReady"),
    ("force-sync", "Modified", "Ready"),
    ("kept-is-given-up", "Modified", "Ready"),
    ("look-ups", "ErrApplied", "Ready"),
    ("namespace-label", "Ready", "Ready"),
    ("not-rolled-out", "WaitApplied", "WaitApplied"),
    ("permanent", "ErrApplied", "NotReady"),
    ("record-too-large", "ErrApplied", "NotReady"),
    ("release-renamed", "NotReady", "Ready"),
    ("two-same-release", "Modified", "Ready"),
    ("two-same-release", "Ready", "ErrApplied"),
    ("what-we-apply", "Modified", "Ready"),
    ("which-content", "ErrApplied", "ErrApplied"),
    ("which-document", "ErrApplied", "NotReady"),
];

/// A step of a case in which both differ.
#[derive(Debug)]
struct Differs {
    step: String,
    reasons: BTreeSet<String>,
    recorded: Verdict,
    ours: Verdict,
}

#[test]
fn fleets_controller_reads_the_same_from_both_but_for_the_named_differences() -> anyhow::Result<()> {
    let cases = case::names()?;
    let lists = Lists::read(&cases)?;
    let (mut differing, mut judged) = (Vec::new(), 0);
    for name in cases.iter().filter(|name| lists.not_yet(name).is_none()) {
        judged += judge(name, &lists, &mut differing).with_context(|| name.clone())?;
    }
    ensure!(judged > 150, "{judged} recorded states");
    let found: BTreeSet<(&str, &str, &str)> = differing
        .iter()
        .flat_map(|one| one.reasons.iter().map(|reason| (&**reason, one.recorded.state, one.ours.state)))
        .collect();
    let listed: BTreeSet<_> = SEEN.iter().copied().collect();
    let shown: Vec<String> = differing
        .iter()
        .filter(|one| {
            one.reasons.iter().any(|reason| !listed.contains(&(reason, one.recorded.state, one.ours.state)))
        })
        .map(|one| {
            format!(
                "{}: {:?}\n  recorded {:?}\n  ours     {:?}",
                one.step, one.reasons, one.recorded, one.ours
            )
        })
        .collect();
    ensure!(found == listed, "found {found:#?}\nnot listed:\n{}", shown.join("\n"));
    // Whatever differs, nothing of ours looks ready that did not to theirs and is not.
    for one in differing.iter().filter(|one| one.ours.state == "Ready" && one.recorded.state != "Ready") {
        ensure!(one.ours.deployed == "True" && one.ours.monitored == "True", "{one:?}");
    }
    Ok(())
}

fn judge(name: &str, lists: &Lists, differing: &mut Vec<Differs>) -> anyhow::Result<usize> {
    let case = Case::read(name, RECORDED_NAMESPACE)?;
    let text = std::fs::read_to_string(case::root().join(name).join("steps.json"))?;
    let steps: Ordered = serde_json::from_str(&text)?;
    let mut asked = Asked::new(&case, &steps);
    let mut judged = 0;
    let mut recorded = case.expected["steps"].as_array().context("a recording without steps")?.iter();
    for step in steps.get("steps").context("a case without steps")?.items() {
        for action in step.get("actions").map(Ordered::items).unwrap_or_default() {
            asked.act(action)?;
        }
        if step.get("settle").is_some_and(|settle| settle.to_string() == "false") {
            continue;
        }
        let seen = recorded.next().context("a step that was not recorded")?;
        let step = step.get("name").map(Ordered::text).unwrap_or_default();
        let theirs = both(seen, seen).0;
        let ours = with_differences(&theirs, lists, name, step)?;
        for unit in case.units() {
            let (Some(recorded), Some(ours)) = (verdict(&theirs, unit, &asked), verdict(&ours, unit, &asked))
            else {
                continue;
            };
            judged += 1;
            let pointer = format!("/bundleDeployments/{unit}/");
            let mine = lists.of(name, step).filter(|(at, ..)| at.starts_with(&pointer));
            let reasons: BTreeSet<String> = mine.map(|(.., reason)| reason.to_owned()).collect();
            if recorded != ours {
                differing.push(Differs { step: format!("{name} {step}"), reasons, recorded, ours });
            }
        }
    }
    Ok(judged)
}

/// What the controller asks for, step by step.
struct Asked<'a> {
    case: &'a Case,
    options: BTreeMap<String, String>,
    specs: BTreeMap<String, Value>,
}

impl<'a> Asked<'a> {
    fn new(case: &'a Case, steps: &Ordered) -> Asked<'a> {
        let units = steps.get("bundleDeployments").map(Ordered::items).unwrap_or_default();
        let options = units.iter().map(|unit| {
            let options = unit.get("options").map_or_else(|| "{}".to_owned(), ToString::to_string);
            (unit.get("name").map(Ordered::text).unwrap_or_default().to_owned(), options)
        });
        Asked { case, options: options.collect(), specs: BTreeMap::new() }
    }

    fn act(&mut self, action: &Ordered) -> anyhow::Result<()> {
        let Some(value) = ["deploy", "update"].iter().find_map(|verb| action.get(verb)) else {
            return Ok(());
        };
        let name = value.get("name").map(Ordered::text).unwrap_or_default();
        if let Some(options) = value.get("options") {
            self.options.insert(name.to_owned(), options.to_string());
        }
        let (content, _) =
            wanted(self.case, &json!({"name": name}), &serde_json::from_str(&value.to_string())?)?;
        let options = self.options.get(name).context("no such BundleDeployment")?;
        let id = format!(
            "{}:{}",
            rules::text(&content, "/metadata/name"),
            sha256(format!("{options}\n").as_bytes())
        );
        self.specs.insert(name.to_owned(), json!({"deploymentID": id, "stagedDeploymentID": id}));
        Ok(())
    }
}

/// The step as ours leaves it.
fn with_differences(step: &Value, lists: &Lists, case: &str, name: &str) -> anyhow::Result<Value> {
    let mut ours = step.clone();
    for (at, value, _) in lists.of(case, name).filter(|(at, ..)| at.starts_with("/bundleDeployments/")) {
        let (parent, key) = at.rsplit_once('/').context("a pointer")?;
        // What a difference adds may stand in a place that the recording lacks.
        let mut place = &mut ours;
        for part in parent.split('/').skip(1) {
            place = match place {
                Value::Array(list) => list.get_mut(part.parse::<usize>()?).context("no such entry")?,
                Value::Null => {
                    *place = Value::Object(Map::new());
                    &mut place[part]
                }
                other => &mut other[part],
            };
        }
        match (place, value) {
            (Value::Array(list), _) => {
                let index: usize = key.parse()?;
                list.resize(list.len().max(index + 1), Value::Null);
                list[index] = value.clone();
            }
            (Value::Object(fields), Value::Null) => drop(fields.remove(key)),
            (place, _) => place[key] = value.clone(),
        }
    }
    Ok(ours)
}

/// What the controller makes of a BundleDeployment of a canonical step; `None` when it is not there.
fn verdict(step: &Value, name: &str, asked: &Asked<'_>) -> Option<Verdict> {
    let mut status = step["bundleDeployments"].get(name).filter(|unit| !unit.is_null())?["status"].clone();
    let by_type = status["conditions"].as_object().cloned().unwrap_or_default();
    let conditions = by_type.into_iter().map(|(type_, mut condition)| {
        if condition == ANY {
            condition = json!({"status": ANY, "message": ANY});
        }
        condition["type"] = type_.into();
        condition
    });
    status["conditions"] = conditions.collect();
    let mut spec = asked.specs.get(name)?.clone();
    if asked.case.steps.get("encodings").is_some() {
        // Packed by another program, and so another Content: the options alone tell which deployment it was.
        let hash = |id: &str| id.rsplit(':').next().unwrap_or_default().to_owned();
        let applied = rules::text(&status, "/appliedDeploymentID");
        if hash(applied) == hash(rules::text(&spec, "/deploymentID")) {
            let applied = applied.to_owned();
            (spec["deploymentID"], spec["stagedDeploymentID"]) = (applied.clone().into(), applied.into());
        }
    }
    Some(rules::verdict(&rules::unit(spec, status)))
}
