// SPDX-License-Identifier: Apache-2.0
//! Judges a run by what the stores saw. Nothing here comes from the agents' own counters. Pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flotilla::api::keys;

use super::disturber::{Done, Run};
use super::load::{self, Story};
use super::witness::Evidence;
use super::{living, stale};
use crate::harness::judge::{self, Ended, was_lost};
use crate::harness::units::{Claim, End, is_ready};

/// What is promised about time, for the judge.
#[derive(Clone, Copy, Debug)]
pub struct Promises {
    /// A session's time to live.
    pub ttl: Duration,
}

/// What came of it. Every list of sentences must be empty, except the last ones.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    /// Deployments done twice without need.
    pub doubles: Vec<String>,
    /// Writes of an older claim over a newer one, contents that are not the claim's, and deletions of what is wanted.
    pub stale: Vec<String>,
    /// Objects of a wanted bundle that are missing or wrong at the end.
    pub lost: Vec<String>,
    /// Objects and releases at the end that nobody wants.
    pub resurrected: Vec<String>,
    /// Bundles that are not as wanted at the end.
    pub stuck: Vec<String>,
    /// Claims at the end.
    pub claims_left: Vec<String>,
    /// Claims taken over although their session was alive.
    pub from_the_living: Vec<String>,
    /// Claims at work beside one that must work alone in its replica.
    pub company: Vec<String>,
    /// Processes that ended although nobody told them to.
    pub crashes: Vec<String>,
    /// What the store and the audit logs tell differently.
    pub disagreements: Vec<String>,
    /// Versions that both tell.
    pub audited: usize,
    /// Of these, such as only a request without a clear outcome accounts for.
    pub unanswered: usize,
    /// Writes that the servers refused for their precondition.
    pub refused: usize,
    /// Claims made.
    pub claims: usize,
    /// Revisions opened.
    pub revisions: usize,
    /// Revisions repeated because a claim was lost or a failure reported.
    pub repeats: usize,
    /// Takeovers.
    pub takeovers: usize,
    /// Claims ended by the controller.
    pub expired: usize,
    /// Versions of objects seen.
    pub sights: usize,
    /// Of these, deletions.
    pub deletions: usize,
    /// Of the versions, of copied Secrets and ConfigMaps.
    pub copies: usize,
    /// Of the versions, of hooks.
    pub hooks: usize,
    /// Objects that an older claim created after a newer one had removed them; gone again at the end.
    pub late_creates: Vec<String>,
    /// Objects created when the removal of their bundle had begun; gone again at the end.
    pub after_end: Vec<String>,
    /// From SIGKILL of a holder to the next claim.
    pub after_kill: Vec<Duration>,
    /// From SIGSTOP of a holder to the next claim.
    pub after_freeze: Vec<Duration>,
}

impl Judgement {
    /// What must be nothing, by name.
    pub fn zeros(&self) -> [(&'static str, &[String]); 10] {
        [
            ("double deployments", &self.doubles),
            ("stale writes", &self.stale),
            ("objects lost", &self.lost),
            ("objects or releases resurrected", &self.resurrected),
            ("bundles stuck", &self.stuck),
            ("claims left", &self.claims_left),
            ("claims taken from the living", &self.from_the_living),
            ("claims beside one that works alone", &self.company),
            ("crashes", &self.crashes),
            ("disagreements of store and audit logs", &self.disagreements),
        ]
    }
}

/// Judges everything.
pub fn judge(evidence: &Evidence, story: &Story, done: &Done, promises: Promises) -> Judgement {
    let claims = evidence.units.claims();
    let records: Vec<_> = evidence.records.iter().map(|kept| kept.record.clone()).collect();
    let ended: Vec<Ended> = done
        .runs
        .iter()
        .filter_map(|run| Some(Ended { holder: run.name.clone(), at: run.killed.or(run.terminated)? }))
        .collect();
    let verdict = judge::verdict(claims, &records, &ended);
    let closed =
        |reason: &str| claims.iter().filter(|claim| claim.end == Some(End::Closed(reason.into()))).count();
    let sights_of = |kind: &str| evidence.sights.iter().filter(|sight| sight.key.ends_with(kind)).count();
    let (after_kill, after_freeze) = gaps(claims, &done.runs);
    let stale::Found { stale, late_creates, after_end } = stale::judge(evidence, story);
    let (lost, resurrected) = objects(evidence, story);
    let (stuck, claims_left) = units(evidence, story);
    Judgement {
        doubles: verdict.doubles.clone(),
        stale,
        lost,
        resurrected,
        stuck,
        claims_left,
        from_the_living: living::from_the_living(evidence, done, promises),
        company: living::company(evidence),
        crashes: done.crashes.clone(),
        claims: claims.len(),
        revisions: verdict.gates,
        repeats: verdict.repeats.values().sum(),
        takeovers: verdict.takeovers.len(),
        expired: closed("Expired"),
        sights: evidence.sights.len(),
        deletions: evidence.sights.iter().filter(|sight| sight.state.is_none()).count(),
        copies: sights_of(load::COPY),
        hooks: sights_of(load::HOOK),
        late_creates,
        after_end,
        after_kill,
        after_freeze,
        ..Judgement::default()
    }
}

/// Names of the bundles that rest in quarantine now.
pub fn in_quarantine(evidence: &Evidence) -> Vec<String> {
    let live = evidence.units.live().iter();
    live.filter(|(_, unit)| {
        unit.condition(keys::CLAIM_CONDITION).is_some_and(|condition| condition.reason == "Quarantined")
    })
    .map(|(name, _)| name.clone())
    .collect()
}

/// Whether everything is as it should be at the end: nothing stuck, left, lost or too much.
pub fn is_settled(evidence: &Evidence, story: &Story) -> bool {
    let (lost, resurrected) = objects(evidence, story);
    let (stuck, claims) = units(evidence, story);
    lost.is_empty() && resurrected.is_empty() && stuck.is_empty() && claims.is_empty()
}

/// What is missing, and what is too much.
fn objects(evidence: &Evidence, story: &Story) -> (Vec<String>, Vec<String>) {
    let mut wanted: BTreeMap<&str, &str> = BTreeMap::new();
    for id in story.now.values() {
        let Some(deployment) = story.deployments.get(id) else { continue };
        wanted.extend(deployment.objects.iter().map(|(key, version)| (key.as_str(), version.as_str())));
    }
    let lost = wanted
        .iter()
        .filter_map(|(key, version)| match evidence.objects.get(*key) {
            None => Some(format!("{key} is missing")),
            Some(state) if state.version != *version => {
                Some(format!("{key} has version {} instead of {version}", state.version))
            }
            Some(_) => None,
        })
        .collect();
    // A hook is nobody's once it ran: what a killed holder left of one stays, as with Helm.
    let hooks: BTreeSet<&str> = story
        .deployments
        .values()
        .flat_map(|deployment| deployment.hooks.keys().map(String::as_str))
        .collect();
    let mut too_much: Vec<String> = evidence
        .objects
        .iter()
        .filter(|(key, _)| !wanted.contains_key(key.as_str()) && !hooks.contains(key.as_str()))
        .map(|(key, state)| format!("{key} (version {}, stamp {:?})", state.version, state.stamp))
        .collect();
    for record in evidence.records.iter().filter(|kept| kept.present).map(|kept| &kept.record) {
        let name = format!("release {}/{}:{}", record.namespace, record.release, record.revision);
        if !story.now.contains_key(&record.release) {
            too_much.push(format!("{name} of a deleted bundle ({})", record.states.join(", ")));
        }
    }
    (lost, too_much)
}

fn units(evidence: &Evidence, story: &Story) -> (Vec<String>, Vec<String>) {
    let (mut stuck, mut claims) = (Vec::new(), Vec::new());
    let live = evidence.units.live();
    for (name, id) in &story.now {
        let Some(unit) = live.get(name) else {
            stuck.push(format!("{name} is not there"));
            continue;
        };
        if unit.spec.deployment_id != *id {
            stuck.push(format!("{name} wants {} instead of {id}", unit.spec.deployment_id));
        }
        if !is_ready(unit) {
            let conditions = unit.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
            let texts: Vec<String> = conditions
                .iter()
                .map(|c| format!("{}={} {} {:.300}", c.type_, c.status, c.reason, c.message))
                .collect();
            let status = unit.status.as_ref();
            stuck.push(format!(
                "{name}: wants {id}, applied {:?}, release {:?}, ready {:?}, not modified {:?}; {}",
                status.map(|status| &status.applied_deployment_id),
                status.map(|status| &status.release),
                status.map(|status| status.ready),
                status.map(|status| status.non_modified),
                texts.join("; ")
            ));
        }
    }
    for (name, unit) in live {
        if let Some(claim) = unit.condition(keys::CLAIM_CONDITION) {
            claims.push(format!("{name}: {} {}", claim.reason, claim.message));
        }
        if !story.now.contains_key(name) {
            stuck.push(format!("{name} was deleted and is there"));
        }
    }
    (stuck, claims)
}

/// How long claims lay there after their holder was killed or frozen.
fn gaps(claims: &[Claim], runs: &[Run]) -> (Vec<Duration>, Vec<Duration>) {
    let (mut killed, mut frozen) = (Vec::new(), Vec::new());
    for claim in claims.iter().filter(|claim| was_lost(claim)) {
        let Some(at) = claim.ended else { continue };
        // A claim is seen a moment after it was made.
        let run = runs.iter().rfind(|run| run.name == claim.holder && run.from <= claim.seen);
        let Some(run) = run else { continue };
        if let Some(kill) = run.killed.filter(|kill| *kill <= at) {
            killed.push(at - kill.max(claim.seen));
        } else if let Some((from, _)) = run.frozen.iter().rfind(|(from, _)| *from <= at)
            && claim.seen <= *from
        {
            frozen.push(at - *from);
        }
    }
    killed.sort();
    frozen.sort();
    (killed, frozen)
}

/// The `part` quantile (0.5, 0.99, 1.0) of sorted times.
pub fn quantile(times: &[Duration], part: f64) -> Option<Duration> {
    let index = ((times.len() as f64 * part).ceil() as usize).clamp(1, times.len().max(1)) - 1;
    times.get(index).copied()
}
