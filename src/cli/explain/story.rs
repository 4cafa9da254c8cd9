// SPDX-License-Identifier: Apache-2.0
//! From facts to sentences. Pure: no cluster, no clock, no terminal.

use chrono::TimeDelta;

use super::{
    claim::claimed,
    drift,
    facts::{Advice, Explanation, Facts, Phase},
    sight::{ago, changed, held, live, replicas, stamp},
};
use crate::{
    agent::correction,
    api::{Condition, keys, names, state, state::State},
    cli::{age, claim_edit, output},
    monitor::conditions::{DEPLOYED, INSTALLED, MONITORED, READY},
    protocol::{ClaimSlot, ClaimState},
};

/// How long a claim that cannot be read is respected: the default of `--claim-timeout`.
const CLAIM_TIMEOUT: &str = "10m";
/// Label of a Cluster that keeps bundles of Fleet's own agent away.
const NO_AGENT_BUNDLE: &str = "fleet.cattle.io/non-managed-agent=true";

/// Says where a bundle is, why, and what comes next.
pub fn explain(facts: &Facts<'_>) -> Explanation {
    let bd = facts.bd;
    let mut told = Explanation {
        name: bd.metadata.name.clone().unwrap_or_default(),
        namespace: bd.metadata.namespace.clone().unwrap_or_default(),
        state: state::state(bd).as_str(),
        phase: Phase::Unclaimed,
        summary: String::new(),
        why: Vec::new(),
        claim: None,
        waits_for: Vec::new(),
        next: String::new(),
        next_at: None,
        last_error: last_error(facts),
        drift: drift::of(facts),
        release: bd
            .status
            .as_ref()
            .map(|status| status.release.clone())
            .filter(|release| !release.is_empty()),
        unseen: unseen(facts),
        advice: Vec::new(),
    };
    let slot = claim_edit::slot(bd);
    match &slot {
        _ if bd.metadata.deletion_timestamp.is_some() => deleting(facts, &mut told),
        ClaimSlot::Unreadable { text } => unreadable(text, &mut told),
        ClaimSlot::Claim(claim) => claimed(facts, claim, &mut told),
        ClaimSlot::Empty => idle(facts, &mut told),
    }
    release_remarks(facts, &mut told);
    told.summary = format!("Bundle {}/{} {}", told.namespace, told.name, told.summary);
    told
}

impl Explanation {
    pub(super) fn at(&mut self, phase: Phase, summary: impl Into<String>) {
        self.phase = phase;
        self.summary = summary.into();
    }

    pub(super) fn say(&mut self, sentence: impl Into<String>) {
        self.why.push(sentence.into());
    }

    pub(super) fn advise(&mut self, command: &str, effect: &str) {
        let command = format!("{command} {} -n {}", self.name, self.namespace);
        self.advice.push(Advice { command, effect: effect.to_owned() });
    }
}

fn deleting(facts: &Facts<'_>, told: &mut Explanation) {
    told.at(Phase::Deleting, "is being deleted.");
    let holders = facts.bd.metadata.finalizers.clone().unwrap_or_default();
    if holders.is_empty() {
        told.next = "a replica removes its objects, then its release records.".into();
    } else {
        told.say(format!(
            "Its BundleDeployment stays until these finalizers are taken off: {}.",
            holders.join(", ")
        ));
        told.next =
            "a replica removes its objects at once; the object goes when whoever set the finalizers takes them off."
                .into();
    }
    if let Some(claim) = claim_edit::slot(facts.bd).claim().filter(|claim| claim.state.is_open()) {
        told.claim = Some(held(facts, claim));
        told.say(format!("Replica {} still held a claim on it; that work is called off.", claim.holder));
    }
}

fn unreadable(text: &str, told: &mut Explanation) {
    told.at(Phase::Unreadable, "carries a claim that this version cannot read.");
    let shown: String = text.chars().take(200).collect();
    told.say(format!("Condition {} says: {}", keys::CLAIM_CONDITION, shown.trim()));
    told.say("It is taken for another program's, and respected while it may be at work.");
    told.next = format!(
        "a replica takes it over once it has stood unchanged for its claim timeout ({CLAIM_TIMEOUT} by default)."
    );
    told.advise("flotilla release --force", "takes that claim away now; be sure that nobody works under it");
}

pub(super) fn idle(facts: &Facts<'_>, told: &mut Explanation) {
    let bd = facts.bd;
    if names::is_agent_bundle(&told.name) {
        told.at(
            Phase::Refused,
            "is not deployed: it carries Fleet's own agent, which would take this one's place.",
        );
        told.next = "nothing, until the bundle goes.".into();
        told.advice.push(Advice {
            command: format!("kubectl label clusters.fleet.cattle.io -n NAMESPACE CLUSTER {NO_AGENT_BUNDLE}"),
            effect: "makes Fleet's controller remove it".into(),
        });
        return;
    }
    let outdated = crate::upstream::snapshot(bd, false).outdated;
    if closed_gate(facts, told) {
        return;
    }
    if !outdated && claim_edit::gave_up(bd) {
        told.at(Phase::Failed, "cannot be deployed as it is.");
        told.say("The error is one that no retry can mend: the content alone decides it.");
        told.waits_for.push("a change of the bundle".into());
        told.next = "nothing, until the bundle changes.".into();
        told.advise("flotilla retry", "tries once more all the same");
        return;
    }
    if outdated {
        told.at(Phase::Unclaimed, "is to be deployed, and no replica has claimed it yet.");
        return claimable(facts, told);
    }
    deployed(facts, told);
}

/// What keeps every replica from beginning; true if something does.
pub(super) fn closed_gate(facts: &Facts<'_>, told: &mut Explanation) -> bool {
    let spec = &facts.bd.spec;
    let outdated = crate::upstream::snapshot(facts.bd, false).outdated;
    let held = [
        (
            spec.paused,
            "it is paused (spec.paused); not even its objects are looked at",
            "somebody to unpause the bundle",
        ),
        (spec.off_schedule, "it is outside of its Schedule (spec.offSchedule)", "its next Schedule window"),
        (
            spec.waiting_for_values,
            "its values Secret is not written yet (spec.waitingForValues)",
            "Fleet's controller to write its values",
        ),
        (
            spec.deployment_id.is_empty(),
            "it has no deployment id",
            "Fleet's controller to roll a version out to this cluster",
        ),
    ];
    let reasons: Vec<_> = held.into_iter().filter(|(holds, ..)| *holds).collect();
    if !reasons.is_empty() {
        told.at(
            Phase::Held,
            if outdated { "is not deployed yet and held back." } else { "is deployed and held as it is." },
        );
        for (_, why, what) in reasons {
            told.say(format!("No replica touches it: {why}."));
            told.waits_for.push(what.into());
        }
        told.next = "it is claimed within a second of that.".into();
        return true;
    }
    if let (true, Err(text)) = (outdated, &facts.dependencies) {
        told.at(Phase::Blocked, "waits for the bundles it depends on.");
        told.say(format!("No replica claims it: {text}."));
        told.waits_for.push("its dependencies (spec.dependsOn)".into());
        told.next = "it is claimed within a second of the last one's change.".into();
        return true;
    }
    false
}

/// What is said of a unit that any replica may take.
pub(super) fn claimable(facts: &Facts<'_>, told: &mut Explanation) {
    told.next = "the first replica with a free slot claims it.".into();
    let Some(live) = live(facts) else { return };
    if live.is_empty() {
        return nobody(facts, told);
    }
    let free: usize = live.iter().map(|session| session.free_slots).sum();
    told.say(format!("{} live; {free} worker slots are free.", replicas(live.len())));
    if free == 0 {
        told.waits_for.push("a free worker slot".into());
    }
}

pub(super) fn nobody(facts: &Facts<'_>, told: &mut Explanation) {
    if live(facts).is_some_and(|live| live.is_empty()) {
        if matches!(told.phase, Phase::Unclaimed | Phase::Expired) {
            told.phase = Phase::NoReplica;
        }
        told.say("No replica of the agent lives in its cluster.");
        told.waits_for.push("a live replica".into());
        told.next = "nothing, until a replica of the agent runs.".into();
    }
}

/// The condition, if it is false.
fn negative<'a>(facts: &Facts<'a>, type_: &str) -> Option<&'a Condition> {
    facts.bd.condition(type_).filter(|condition| condition.status == "False")
}

fn deployed(facts: &Facts<'_>, told: &mut Explanation) {
    let release = told.release.clone().unwrap_or_default();
    match state::state(facts.bd) {
        state if negative(facts, MONITORED).is_some() => unseen_objects(facts, state, told),
        State::NotReady => {
            told.at(Phase::NotReady, "is deployed; not all of its objects are ready.");
            told.waits_for = not_ready(facts);
            told.next = "a replica watches them and reports each change.".into();
        }
        State::OutOfSync => {
            told.at(
                Phase::OutOfSync,
                "is deployed; a newer version is staged and not rolled out to this cluster yet.",
            );
            told.next = "Fleet's controller rolls it out.".into();
        }
        State::Modified => {
            told.at(Phase::Drifted, "is deployed, and objects differ from the release.");
            let corrects = facts.bd.spec.correct_drift.as_ref().is_some_and(|correct| correct.enabled);
            told.next = match corrects {
                true => "a replica reverts the changes (correctDrift is enabled).".into(),
                false => "nothing: correctDrift is not enabled for this bundle.".into(),
            };
            if corrects {
                contended(facts, told);
            }
            if !corrects {
                told.advice.push(Advice {
                    command: format!(
                        "flotilla diff bd/{} -n {} --downstream-kubeconfig FILE",
                        told.name, told.namespace
                    ),
                    effect: "shows what a deployment would change".into(),
                });
            }
        }
        _ => {
            told.at(Phase::Ready, "is deployed and ready.");
            told.next = "nothing, until the bundle or an object of it changes.".into();
        }
    }
    if !release.is_empty() {
        told.say(format!("Release {release} is in force."));
    }
}

/// Nobody sees what lives now.
fn unseen_objects(facts: &Facts<'_>, state: State, told: &mut Explanation) {
    let Some(condition) = negative(facts, MONITORED) else { return };
    told.at(Phase::Unseen, "is deployed; its objects cannot be looked at.");
    let was = match state {
        State::NotReady => "not all of its objects were ready",
        State::Modified => "objects differed from the release",
        State::OutOfSync => "all was ready, and a newer version was staged",
        _ => "all was ready",
    };
    told.say(format!(
        "It is told as last seen: {was}. What lives cannot be looked at since {} ago, because: {}.",
        ago(facts.now, changed(condition)),
        one_line(&condition.message).trim_end_matches('.')
    ));
    told.waits_for.push("its objects to be seen again".into());
    told.next = "a replica looks again and again, and reports what it then sees.".into();
    nobody(facts, told);
}

/// Somebody undoes the corrections.
fn contended(facts: &Facts<'_>, told: &mut Explanation) {
    let Some(condition) = negative(facts, READY) else { return };
    let Some((text, wait)) = correction::contention_in(&condition.message) else { return };
    told.say(format!("Somebody contends: {text}."));
    // It was told when the correction was undone, a moment after that was made.
    let wait = TimeDelta::from_std(wait).ok();
    let due = changed(condition).and_then(|since| since.checked_add_signed(wait?));
    told.next = match due {
        Some(due) if due > facts.now => {
            format!("a replica reverts the changes again in {}.", age::text((due - facts.now).num_seconds()))
        }
        _ => "a replica reverts the changes again now.".into(),
    };
    told.next_at = due.map(stamp);
}

pub(super) fn not_ready(facts: &Facts<'_>) -> Vec<String> {
    let entries = facts.bd.status.iter().flat_map(|status| &status.non_ready_status);
    entries
        .map(|entry| {
            let place = output::place(&entry.kind, &entry.namespace, &entry.name);
            match entry.summary.message.as_slice() {
                [] => format!("{place} ({})", entry.summary.state),
                messages => format!("{place} ({}: {})", entry.summary.state, messages.join("; ")),
            }
        })
        .collect()
}

/// What the release records tell that the status does not.
fn release_remarks(facts: &Facts<'_>, told: &mut Explanation) {
    let Some(Ok(history)) = facts.below.map(|below| &below.history) else { return };
    let Some(newest) = history.last() else { return };
    if newest.status.starts_with("pending-") && !newest.ours {
        told.say(format!(
            "Revision {} is {}, by another tool (a person's helm, or Fleet's agent).",
            newest.revision, newest.status
        ));
        told.waits_for.push(format!(
            "revision {} to end; it is failed once it stood unchanged for the claim timeout",
            newest.revision
        ));
    } else if newest.status != "deployed" {
        let description =
            if newest.description.is_empty() { String::new() } else { format!(": {}", newest.description) };
        told.say(format!("The newest revision, {}, is {}{description}.", newest.revision, newest.status));
    }
}

fn last_error(facts: &Facts<'_>) -> Option<String> {
    let slot = claim_edit::slot(facts.bd);
    let backing_off = slot.claim().filter(|claim| claim.state == ClaimState::BackingOff);
    let cause = backing_off.and_then(|claim| claim.cause.clone());
    cause.or_else(|| failed_condition(facts)).map(|text| one_line(&text))
}

fn failed_condition(facts: &Facts<'_>) -> Option<String> {
    let condition = [DEPLOYED, INSTALLED, MONITORED].into_iter().find_map(|type_| negative(facts, type_))?;
    Some(condition.message.clone()).filter(|text| !text.is_empty())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn unseen(facts: &Facts<'_>) -> Vec<String> {
    let Some(below) = facts.below else {
        return vec!["which replicas live, the release's history, who changed objects (--downstream-kubeconfig shows them)".into()];
    };
    let parts = [
        ("which replicas live", below.sessions.as_ref().err()),
        ("the release's history", below.history.as_ref().err()),
    ];
    parts.into_iter().filter_map(|(part, error)| error.map(|error| format!("{part}: {error}"))).collect()
}
