// SPDX-License-Identifier: Apache-2.0
//! The recordings of Fleet's agent through the eyes of Fleet's controller: what it makes of the recorded status, and
//! what of ours, which is the recorded one with the known differences (`tests/golden.rs` holds us to that).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use crate::conformance::actions::wanted;
use crate::conformance::canonical::{ANY, both};
use crate::conformance::case::{self, Case, RECORDED_NAMESPACE};
use crate::conformance::lists::Lists;
use crate::rules::{self, RANKS, Verdict};

/// Differences that the controller may see, with the states that it reads from both. That of a state without a change
/// concerns words alone.
///
/// | reason | recorded | ours |
const SEEN: &[(&str, &str, &str)] = &[];

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
        .filter(|one| one.reasons.iter().any(|reason| !listed.contains(&(reason, one.recorded.state, one.ours.state))))
        .map(|one| format!("{}: {:?}\n  recorded {:?}\n  ours     {:?}", one.step, one.reasons, one.recorded, one.ours))
        .collect();
    ensure!(found == listed, "found {found:#?}\nnot listed:\n{}", shown.join("\n"));
    // Whatever differs, nothing of ours looks ready that is not.
    for one in differing.iter().filter(|one| one.ours.state == "Ready") {
        ensure!(one.ours.deployed == "True" && one.ours.monitored == "True", "{one:?}");
    }
    Ok(())
}

fn judge(name: &str, lists: &Lists, differing: &mut Vec<Differs>) -> anyhow::Result<usize> {
    let case = Case::read(name, RECORDED_NAMESPACE)?;
    let mut units = case.steps["bundleDeployments"].as_array().cloned().unwrap_or_default();
    let (mut specs, mut judged) = (BTreeMap::new(), 0);
    let mut recorded = case.expected["steps"].as_array().context("a recording without steps")?.iter();
    for step in case.steps["steps"].as_array().context("a case without steps")? {
        for action in step["actions"].as_array().into_iter().flatten() {
            act(&case, &mut units, &mut specs, action)?;
        }
        if step["settle"] == false {
            continue;
        }
        let seen = recorded.next().context("a step that was not recorded")?;
        let step = rules::text(step, "/name");
        let theirs = both(seen, seen).0;
        let ours = with_differences(&theirs, lists, name, step)?;
        for unit in case.units() {
            let (Some(recorded), Some(ours)) = (verdict(&theirs, unit, &specs), verdict(&ours, unit, &specs)) else {
                continue;
            };
            judged += 1;
            ensure!(RANKS.contains(&ours.state));
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

/// What an action makes of the specs.
fn act(
    case: &Case,
    units: &mut [Value],
    specs: &mut BTreeMap<String, Value>,
    action: &Value,
) -> anyhow::Result<()> {
    let (verb, value) = action
        .as_object()
        .and_then(|action| action.iter().find(|(key, _)| *key != "ifAbsent"))
        .context("an empty action")?;
    let name = rules::text(value, "/name");
    if !matches!(verb.as_str(), "deploy" | "update") {
        return Ok(());
    }
    let unit = units.iter_mut().find(|unit| unit["name"] == name).context("no such BundleDeployment")?;
    if verb == "update" {
        for key in ["options", "spec"] {
            if let Some(given) = value.get(key) {
                unit[key] = given.clone();
            }
        }
    }
    specs.insert(name.to_owned(), wanted(case, unit, value)?.1);
    Ok(())
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
fn verdict(step: &Value, name: &str, specs: &BTreeMap<String, Value>) -> Option<Verdict> {
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
    Some(rules::verdict(&rules::unit(specs.get(name)?.clone(), status)))
}
