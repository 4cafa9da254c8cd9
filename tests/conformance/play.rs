// SPDX-License-Identifier: Apache-2.0
//! Plays one case and judges each of its steps.
//!
//! A step has passed once the cluster is as recorded, known differences apart, and stays so for a moment. Until its
//! limit it is only not yet so: how fast an agent is decides nothing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::keys;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::actions::Actor;
use super::canonical::{blur, both};
use super::case::Case;
use super::compare::{Difference, Names, differences};
use super::ground::Ground;
use super::lists::{Complaint, Lists};
use super::record::{Recorder, read_manifests};

/// How long equality must last: longer than our agent takes to see and to report a change.
const HOLD: Duration = Duration::from_millis(2500);
/// How long the BundleDeployments must be unchanged before a whole look is worth its requests.
const CALM: Duration = Duration::from_millis(600);
/// A look at least this often, however busy they are.
const OVERDUE: Duration = Duration::from_secs(5);
/// How often the BundleDeployments are looked at.
const PERIOD: Duration = Duration::from_millis(200);
/// The limit where a step names none, in seconds.
const MOST: u64 = 60;
/// What a busy machine is given on top of the recording's limit.
const GRACE: Duration = Duration::from_secs(30);

/// How long to wait for what is not as recorded.
#[derive(Clone, Copy)]
pub struct Patience {
    /// No longer than the step's own limit, nor than this.
    pub most: Duration,
    /// Give up when nothing has moved for this long.
    pub idle: Duration,
    /// The first step that fails ends the case.
    pub first_only: bool,
}

impl Patience {
    /// Until the step's limit: for a case that is to pass.
    pub const FULL: Patience = Patience { most: Duration::MAX, idle: Duration::MAX, first_only: false };
    /// Until it is calm: for a case that is known to fail.
    pub const SHORT: Patience =
        Patience { most: Duration::from_secs(20), idle: Duration::from_secs(5), first_only: true };
}

/// What came of a case: the complaints, step by step. None: it passed.
pub type Complaints = Vec<(String, Vec<Complaint>)>;

/// Plays a case to its end, or to the first step that fails when patience is short.
pub async fn play(
    ground: &Ground,
    name: &str,
    lists: &Lists,
    patience: Patience,
) -> anyhow::Result<Complaints> {
    let case = Case::read(name, &ground.cluster_namespace)?;
    let mut actor = Actor::new(&ground.server, &case, &ground.cluster_namespace);
    let result = steps(ground, &case, &mut actor, lists, patience).await;
    for unit in case.units() {
        ground.server.delete(&actor.unit_path(unit)).await?;
    }
    result
}

async fn steps(
    ground: &Ground,
    case: &Case,
    actor: &mut Actor<'_>,
    lists: &Lists,
    mut patience: Patience,
) -> anyhow::Result<Complaints> {
    let mut recorder = Recorder::new(ground, case);
    let (mut names, mut complaints) = (Names::new(), Vec::new());
    let recorded = expected_steps(ground, case).await?;
    let mut recorded = recorded.iter();
    for step in case.steps["steps"].as_array().context("a case without steps")? {
        let name = step["name"].as_str().unwrap_or_default();
        let mut refused = Vec::new();
        for (index, action) in step["actions"].as_array().into_iter().flatten().enumerate() {
            if let Err(error) = actor.act(action).await {
                let (at, expected) = (format!("/actions/{index}"), Value::Null);
                refused.push(Difference { at, expected, seen: format!("{error:#}").into() });
            }
        }
        if step["settle"] == false {
            ensure!(refused.is_empty(), "step {name}: {refused:?}");
            continue;
        }
        let expected = recorded.next().with_context(|| format!("nothing is recorded of step {name}"))?;
        let limit = Duration::from_secs(step["most"].as_u64().unwrap_or(MOST)) + GRACE;
        let judge = Judge { case, step: name, refused, expected, lists };
        let patience_now = Patience { most: patience.most.min(limit), ..patience };
        let found = judge.settle(actor, ground, &mut recorder, &mut names, patience_now).await?;
        if !found.is_empty() {
            complaints.push((name.to_owned(), found));
            if patience.first_only {
                break;
            }
            // What comes after a failure is for information.
            patience = Patience { first_only: false, ..Patience::SHORT };
        }
    }
    Ok(complaints)
}

/// The recorded steps, with what is not to be compared blurred.
async fn expected_steps(ground: &Ground, case: &Case) -> anyhow::Result<Vec<Value>> {
    let mut steps = case.expected["steps"].as_array().context("a recording without steps")?.clone();
    for (index, step) in steps.iter_mut().enumerate() {
        let prefix = format!("/steps/{index}/");
        let volatile = case.expected["volatile"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mine: Vec<String> =
            volatile.filter_map(|at| at.strip_prefix(&prefix)).map(|at| format!("/{at}")).collect();
        blur(step, &mine);
        for release in step["releases"].as_array_mut().into_iter().flatten() {
            read_manifests(&ground.engine, release).await;
        }
    }
    Ok(steps)
}

struct Judge<'a> {
    case: &'a Case,
    step: &'a str,
    /// Actions that the cluster refused.
    refused: Vec<Difference>,
    expected: &'a Value,
    lists: &'a Lists,
}

impl Judge<'_> {
    /// Waits until the cluster is as expected, or gives the complaints of the last look.
    async fn settle(
        &self,
        actor: &Actor<'_>,
        ground: &Ground,
        recorder: &mut Recorder<'_>,
        names: &mut Names,
        patience: Patience,
    ) -> anyhow::Result<Vec<Complaint>> {
        let start = Instant::now();
        let (mut versions, mut moved) = (Value::Null, start);
        let (mut looked, mut equal_since): (Option<Instant>, Option<Instant>) = (None, None);
        loop {
            let (now, claimed) = self.versions(actor, ground).await?;
            if now != versions {
                (versions, moved) = (now, Instant::now());
                looked = looked.filter(|_| equal_since.is_none());
                equal_since = None;
            }
            let calm = moved.elapsed() >= CALM && !claimed;
            let due = match (looked, equal_since) {
                (_, Some(since)) => since.elapsed() >= HOLD,
                (None, None) => calm || moved.elapsed() >= OVERDUE,
                (Some(at), None) => at.elapsed() >= if calm { CALM.max(at - moved.min(at)) } else { OVERDUE },
            } || start.elapsed() >= patience.most;
            if due {
                let seen = recorder.record(actor, &self.expected["objects"]).await?;
                looked = Some(Instant::now());
                let (expected, shown) = both(self.expected, &seen);
                let mut trial = names.clone();
                let mut found = differences(&expected, &shown, &mut trial);
                found.extend(self.refused.iter().cloned());
                let complaints = self.lists.sift(&self.case.name, self.step, &found);
                let held = equal_since.is_some_and(|since| since.elapsed() >= HOLD);
                if complaints.is_empty() && (held || start.elapsed() >= patience.most) {
                    *names = trial;
                    return Ok(Vec::new());
                }
                equal_since = if complaints.is_empty() { equal_since.or(looked) } else { None };
                let idle = moved.elapsed() >= patience.idle && !claimed;
                if !complaints.is_empty() && (idle || start.elapsed() >= patience.most) {
                    self.store(&shown, &complaints)?;
                    return Ok(complaints);
                }
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Which versions the BundleDeployments have, and whether one is claimed.
    async fn versions(&self, actor: &Actor<'_>, ground: &Ground) -> anyhow::Result<(Value, bool)> {
        let (mut versions, mut claimed) = (Vec::new(), false);
        for unit in self.case.units() {
            let unit = ground.server.get(&actor.unit_path(unit)).await?.unwrap_or_default();
            versions.push(unit["metadata"]["resourceVersion"].clone());
            let conditions = unit["status"]["conditions"].as_array();
            claimed |= conditions
                .into_iter()
                .flatten()
                .any(|condition| condition["type"] == keys::CLAIM_CONDITION && condition["status"] == "True");
        }
        Ok((json!(versions), claimed))
    }

    /// Writes what was seen to a file, for those who want to see the whole.
    fn store(&self, shown: &Value, complaints: &[Complaint]) -> anyhow::Result<()> {
        let path = seen_file(&self.case.name, self.step);
        std::fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        let expected = both(self.expected, self.expected).0;
        std::fs::write(&path, format!("{shown:#}\n"))?;
        std::fs::write(path.with_extension("expected.json"), format!("{expected:#}\n"))?;
        // As `differences.json` wants it.
        let found: Value = complaints.iter().map(|one| (one.at.clone(), one.seen.clone())).collect();
        std::fs::write(path.with_extension("found.json"), format!("{found:#}\n"))?;
        Ok(())
    }
}

/// Where the canonical form of a step that failed is stored.
pub fn seen_file(case: &str, step: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join("golden")
        .join(format!("{}--{step}.json", case.replace('/', "--")))
}
