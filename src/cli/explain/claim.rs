// SPDX-License-Identifier: Apache-2.0
//! What is said of a unit that carries a claim.

use chrono::{DateTime, TimeDelta, Utc};

use super::{
    facts::{Explanation, Facts, Life, Phase},
    sight::{ago, held, live, renewed, stamp, written},
    story::{claimable, closed_gate, idle, nobody, not_ready},
};
use crate::{
    cli::age,
    protocol::{Claim, ClaimState, backoff},
};

/// How long a unit in quarantine rests.
const QUARANTINE: i64 = 3600;
/// Begins the error of a replica whose management cluster went back in time.
const WENT_BACK: &str = "the management cluster went back in time";

pub(super) fn claimed(facts: &Facts<'_>, claim: &Claim, told: &mut Explanation) {
    let fact = held(facts, claim);
    let since = written(facts);
    let spec = &facts.bd.spec;
    let life = fact.life;
    told.claim = Some(fact);
    if claim.deployment != spec.deployment_id && !claim.state.is_open() {
        told.say(format!(
            "The claim is about an earlier deployment ({}); the new one need not wait for it.",
            claim.deployment
        ));
        return idle(facts, told);
    }
    if !claim.state.is_open() && closed_gate(facts, told) {
        told.say(format!("Before that: {} after attempt {}.", claim.state.reason(), claim.attempt));
        return;
    }
    match claim.state {
        ClaimState::Claimed => {
            told.at(Phase::Claimed, "is being deployed.");
            told.say(format!(
                "Replica {} works on deployment {}: attempt {}, begun {} ago.",
                claim.holder,
                claim.deployment,
                claim.attempt,
                ago(facts.now, since)
            ));
            open_claim(facts, claim, life, since, told);
        }
        ClaimState::Waiting => {
            told.at(Phase::Waiting, "is deployed and waits until it is ready.");
            told.say(format!(
                "Replica {} applied attempt {} and has waited {} so far; it holds no worker slot.",
                claim.holder,
                claim.attempt,
                ago(facts.now, since)
            ));
            told.waits_for = not_ready(facts);
            open_claim(facts, claim, life, since, told);
        }
        // Its conditions say what is wrong; the claim only keeps a mark.
        ClaimState::BackingOff if claim.rests() => {}
        ClaimState::BackingOff => backing_off(facts, claim, since, told),
        ClaimState::Expired => {
            told.at(Phase::Expired, "lost its claim and may be claimed by any replica.");
            told.say(format!("Attempt {} was replica {}'s.", claim.attempt, claim.holder));
            lost(claim, told);
            if let Some(cause) = &claim.cause {
                told.say(format!("Why: {cause}."));
            }
            claimable(facts, told);
        }
        ClaimState::Quarantined => quarantined(claim, since, facts, told),
    }
    if claim.deployment != spec.deployment_id {
        told.say(format!(
            "A newer deployment, {}, is asked for; it replaces this one at the next safe point.",
            spec.deployment_id
        ));
    }
}

/// What is to be said of a claim that somebody holds.
fn open_claim(
    facts: &Facts<'_>,
    claim: &Claim,
    life: Life,
    since: Option<DateTime<Utc>>,
    told: &mut Explanation,
) {
    lost(claim, told);
    let budget = i64::try_from(claim.budget).unwrap_or(i64::MAX);
    let end = since.and_then(|since| since.checked_add_signed(TimeDelta::try_seconds(budget)?));
    match life {
        Life::Live => {
            told.say(format!("{} lives: {}.", claim.holder, renewed(facts, claim)));
            told.next = match end {
                Some(end) if end > facts.now => format!(
                    "{} finishes, or gives up when its budget of {} is spent, in {}.",
                    claim.holder,
                    age::text(budget),
                    age::text((end - facts.now).num_seconds())
                ),
                _ => "its budget is spent: another replica takes it over within the margin.".into(),
            };
            told.next_at = end.map(stamp);
        }
        Life::Silent => {
            told.say(format!(
                "{} is silent: {}. Its peers take it for dead.",
                claim.holder,
                renewed(facts, claim)
            ));
            takeover(facts, claim, told);
        }
        Life::Ended => {
            told.say(format!(
                "Session {} of {} has ended: it has no Lease any more.",
                claim.session, claim.holder
            ));
            takeover(facts, claim, told);
        }
        Life::Unknown => {
            told.next = format!(
                "{} finishes; if it is dead or stuck, a peer takes over within seconds, or when the budget of {} is \
                 spent, or else the controller ends the claim.",
                claim.holder,
                age::text(budget)
            );
            told.next_at = end.map(stamp);
        }
    }
}

fn takeover(facts: &Facts<'_>, claim: &Claim, told: &mut Explanation) {
    match live(facts).as_deref() {
        Some([]) => {
            told.next = format!(
                "nobody is left to take over; flotilla controller, where it runs, ends the claim when its budget of {} \
                 is spent.",
                age::text(i64::try_from(claim.budget).unwrap_or(i64::MAX))
            );
            told.waits_for.push("a live replica".into());
        }
        Some([peer]) => {
            told.next = format!(
                "replica {} takes over within seconds, as attempt {}.",
                peer.holder,
                claim.attempt.saturating_add(1)
            );
        }
        Some(peers) => {
            told.next = format!(
                "one of {} live replicas takes over within seconds, as attempt {}.",
                peers.len(),
                claim.attempt.saturating_add(1)
            );
        }
        None => told.next = "a live replica takes over.".into(),
    }
}

fn lost(claim: &Claim, told: &mut Explanation) {
    if claim.lost > 0 {
        told.say(format!(
            "{} earlier {} lost with the replica that made {} (sessions {}).",
            claim.lost,
            if claim.lost == 1 { "attempt was" } else { "attempts were" },
            if claim.lost == 1 { "it" } else { "them" },
            claim.by.join(", ")
        ));
    }
    if backoff::is_suspect(claim.lost) && claim.state != ClaimState::Quarantined {
        told.say("It may be what kills replicas: one that tries it begins nothing else until it is alone, and done.");
    }
}

fn backing_off(facts: &Facts<'_>, claim: &Claim, since: Option<DateTime<Utc>>, told: &mut Explanation) {
    let rest = i64::try_from(claim.retry_in.unwrap_or(0)).unwrap_or(i64::MAX);
    let due = since.and_then(|since| since.checked_add_signed(TimeDelta::try_seconds(rest)?));
    let went_back = claim.cause.as_deref().is_some_and(|cause| cause.contains(WENT_BACK));
    if went_back {
        told.at(Phase::WentBack, "waits for a person: the management cluster was restored from a backup.");
        told.say("Objects below carry stamps of a time that was lost with the restore; nothing is overwritten by guess.");
        told.waits_for
            .push("`flotilla reset`, or for the management cluster's versions to come that far again".into());
        told.advise(
            "flotilla reset --downstream-kubeconfig FILE",
            "sets those stamps back, once you have checked what is deployed",
        );
    } else {
        told.at(Phase::BackingOff, "failed and is tried again.");
        told.say(format!(
            "Attempt {} by replica {} failed {} ago.",
            claim.attempt,
            claim.holder,
            ago(facts.now, since)
        ));
        told.advise("flotilla retry", "does not wait for that");
    }
    lost(claim, told);
    told.next = match due {
        Some(due) if due > facts.now => {
            format!(
                "attempt {} in {}.",
                claim.attempt.saturating_add(1),
                age::text((due - facts.now).num_seconds())
            )
        }
        _ => format!("attempt {} as soon as a replica has a free slot.", claim.attempt.saturating_add(1)),
    };
    told.next_at = due.map(stamp);
    nobody(facts, told);
}

fn quarantined(claim: &Claim, since: Option<DateTime<Utc>>, facts: &Facts<'_>, told: &mut Explanation) {
    told.at(Phase::Quarantined, "is in quarantine and left alone.");
    lost(claim, told);
    if let Some(cause) = &claim.cause {
        told.say(format!("Evidence: {cause}."));
    }
    let due = since.and_then(|since| since.checked_add_signed(TimeDelta::try_seconds(QUARANTINE)?));
    told.next = match due {
        Some(due) if due > facts.now => format!(
            "one replica alone tries again in {}, or at once when the bundle changes.",
            age::text((due - facts.now).num_seconds())
        ),
        _ => "one replica alone tries again now.".into(),
    };
    told.next_at = due.map(stamp);
    told.advise("flotilla retry", "tries it now and forgives the losses");
    nobody(facts, told);
}
