// SPDX-License-Identifier: Apache-2.0
//! What an idle replica does about a unit: nothing, wait, or claim.

use std::time::Duration;

use super::{
    Claim, ClaimSlot, ClaimState, Effect, Env, Epoch, Life, Nonce, Snapshot, TakeoverReason, Time, Unit,
    Work, backoff,
    step::{may_claim, wake_at},
};
use super::{Note, Observation};

/// A preferred replica that is believed full delays this one by only that part of the steal delay: what its Lease says
/// of its slots is seconds old.
const FULL: u32 = 5;

/// Decides about an idle unit.
pub(super) fn decide(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let (Some(latest), Some(observed)) = (unit.latest.clone(), unit.observed.clone()) else { return };
    if unit.stopping.is_some() {
        return; // its end is awaited first: one run at a time
    }
    if is_of_before_a_restore(&latest) {
        return;
    }
    if !may_claim(&latest, unit.wants(&latest)) || env.draining {
        unit.wanted = None; // S10: paused, off schedule, blocked or done is never claimed
        return;
    }
    if let Some(until) = unit.pause_until {
        if env.now < until {
            return wake_at(until, effects);
        }
        unit.pause_until = None;
    }
    match &latest.slot {
        ClaimSlot::Empty => claim_when_due(unit, &latest, observed.now, first(), env, effects),
        ClaimSlot::Unreadable { .. } => {
            let end = observed.healthy + env.config.claim_timeout;
            if env.healthy >= end {
                take_over(unit, TakeoverReason::Unreadable, env, effects);
            } else {
                wake_at(env.now + (end - env.healthy), effects);
            }
        }
        ClaimSlot::Claim(claim) => on_claim(unit, &latest, claim, &observed, env, effects),
    }
}

/// The list that was asked for says what stands now.
fn is_of_before_a_restore(latest: &Snapshot) -> bool {
    latest.version == Epoch::default()
}

/// How the next claim continues the record of the last one.
struct Next {
    attempt: u32,
    lost: u32,
    by: Vec<String>,
    unknown: Vec<(String, String)>,
    /// It was lost once too often.
    condemned: bool,
    /// It works alone in its replica, or not at all.
    alone: bool,
}

fn first() -> Next {
    Next { attempt: 1, lost: 0, by: Vec::new(), unknown: Vec::new(), condemned: false, alone: false }
}

/// The record goes on as long as it is about the same deployment id (S5).
fn after(claim: &Claim, latest: &Snapshot) -> Next {
    if claim.deployment != latest.deployment {
        return Next { unknown: claim.unknown.clone(), ..first() };
    }
    Next {
        attempt: claim.attempt.saturating_add(1),
        lost: claim.lost,
        by: claim.by.clone(),
        unknown: claim.unknown.clone(),
        condemned: false,
        alone: claim.state == ClaimState::Quarantined || backoff::is_suspect(claim.lost),
    }
}

/// The record of an open claim that nobody stands behind any more: a loss, unless it waited or is our own (S5).
fn taken_over(claim: &Claim, latest: &Snapshot, reason: TakeoverReason) -> Next {
    let next = after(claim, latest);
    let counts = claim.state == ClaimState::Claimed
        && reason != TakeoverReason::Own
        && claim.deployment == latest.deployment;
    if !counts {
        return next;
    }
    let mut record = claim.clone();
    record.lose(&claim.session);
    // Only a new loss condemns: a proper failure after a quarantine is retried as any other.
    let condemned = backoff::is_poison(&record);
    let alone = !condemned && backoff::is_suspect(record.lost);
    Next { lost: record.lost, by: record.by, condemned, alone, ..next }
}

fn on_claim(
    unit: &mut Unit,
    latest: &Snapshot,
    claim: &Claim,
    observed: &Observation,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    let moved = claim.deployment != latest.deployment;
    match claim.state {
        ClaimState::Claimed | ClaimState::Waiting => {
            on_open_claim(unit, latest, claim, observed, env, effects);
        }
        ClaimState::Expired => {
            claim_when_due(unit, latest, observed.now, after(claim, latest), env, effects);
        }
        ClaimState::BackingOff => {
            let rest = Duration::from_secs(claim.retry_in.unwrap_or(0));
            let due = if moved { observed.now } else { observed.now + rest };
            claim_when_due(unit, latest, due, after(claim, latest), env, effects);
        }
        ClaimState::Quarantined => {
            // S6: not before its time; then once, by the first in preference, and alone.
            let due = if moved { observed.now } else { observed.now + env.config.quarantine };
            if env.now < due {
                return wake_at(due, effects);
            }
            claim_when_due(unit, latest, due, after(claim, latest), env, effects);
        }
    }
}

/// Somebody is at work: leave it, and look again when its session or its budget ends.
fn on_open_claim(
    unit: &mut Unit,
    latest: &Snapshot,
    claim: &Claim,
    observed: &Observation,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    if claim.session == *env.session {
        // Of this very run, but nobody works on it here: an answer that came too late, or a finish given up.
        return take_over(unit, TakeoverReason::Own, env, effects);
    }
    let budget = Duration::from_secs(claim.budget) + env.config.claim_margin;
    let overdue = observed.healthy + budget;
    if env.healthy >= overdue {
        return take_over(unit, TakeoverReason::Overdue, env, effects);
    }
    let quiet_at = match env.sessions.life(&claim.session, env.healthy) {
        Life::Dead => return take_over(unit, TakeoverReason::Dead, env, effects),
        Life::Live(quiet_at) => quiet_at,
        Life::Quiet => env.healthy,
        // Never seen: it has TTL from when this replica first saw its claim.
        Life::Unknown => observed.healthy + env.config.ttl,
    };
    if env.healthy < quiet_at {
        wake_at(env.now + (quiet_at.min(overdue) - env.healthy), effects);
    } else if !matches!(unit.work, Work::Verifying { .. })
        && may_go(unit, taken_over(claim, latest, TakeoverReason::Quiet).alone, env, effects)
    {
        // S8: a live look before acting; not before one could act, or it would be taken again and again.
        let session = claim.session.clone();
        let known = env.sessions.version(&session).cloned().unwrap_or_default();
        unit.work = Work::Verifying { session: session.clone() };
        effects.push(Effect::Verify { session, known });
    }
}

/// Replaces an open claim that nobody stands behind any more, in preference order.
pub(super) fn take_over(unit: &mut Unit, reason: TakeoverReason, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Some(latest) = unit.latest.clone() else { return };
    if !may_claim(&latest, unit.wants(&latest)) || env.draining || is_of_before_a_restore(&latest) {
        return;
    }
    unit.work = Work::Idle;
    let Some(claim) = latest.slot.claim() else {
        return claim_when_due(unit, &latest, env.now, first(), env, effects);
    };
    let next = taken_over(claim, &latest, reason);
    let before = effects.len();
    claim_when_due(unit, &latest, env.now, next, env, effects);
    if matches!(unit.work, Work::Claiming { .. }) {
        effects.insert(before, Effect::Note(Note::TakenOver { from: claim.session.clone(), reason }));
    }
}

/// Claims when due, in order of preference, with a free slot.
fn claim_when_due(
    unit: &mut Unit,
    latest: &Snapshot,
    due: Time,
    next: Next,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    if env.now < due {
        return wake_at(due, effects);
    }
    if !may_go(unit, next.alone, env, effects) {
        return;
    }
    let mut claim = fresh(env, latest, ClaimState::Claimed);
    claim.unswept = latest.slot.is_unswept();
    claim.attempt = next.attempt;
    claim.lost = next.lost;
    claim.by = next.by;
    claim.unknown = next.unknown;
    if next.condemned {
        claim.state = ClaimState::Quarantined;
        claim.cause = Some(format!("lost {} times by {}", claim.lost, claim.by.join(",")));
    }
    let over = latest.slot.clone();
    unit.work = Work::Claiming { claim: claim.clone(), over, since: env.now, tries: 0, sent: true };
    effects.push(Effect::WriteClaim { version: latest.version.clone(), claim });
}

/// Whether it is this replica's turn, and a slot is free; if not, asks to be woken.
///
/// Who must work `alone` waits until no other unit has a slot here, and nothing else begins meanwhile. A replica takes a
/// while to get empty, so the next in preference begins with that only a TTL later; who is full gets empty, too. What
/// still has a slot when all work must have ended does no work (a result that is refused on and on): L1.
fn may_go(unit: &mut Unit, alone: bool, env: &Env<'_>, effects: &mut Vec<Effect>) -> bool {
    let Some(latest) = &unit.latest else { return false };
    let wanted = *unit.wanted.get_or_insert(env.now);
    let (before, _) = env.sessions.preference(env.session, &latest.uid, env.healthy);
    let turn = if alone {
        wanted + env.config.ttl * before
    } else {
        // Who is believed full is not waited for, but all that believe so must not reach for it in the same moment.
        let rank = env.sessions.rank(env.session, &latest.uid, env.healthy);
        wanted + env.config.steal_delay * rank + env.config.steal_delay / FULL * before.saturating_sub(rank)
    };
    if env.now < turn {
        unit.alone = None;
        wake_at(turn, effects);
        return false;
    }
    let reserves = alone && !env.slots.reserved;
    unit.alone = reserves.then(|| unit.alone.unwrap_or(env.now));
    let patience = unit.alone.map(|since| since + env.config.claim_timeout + env.config.claim_margin);
    let waits = patience.is_some_and(|patience| env.now < patience);
    if env.slots.admit(waits) {
        return true;
    }
    effects.push(Effect::WantSlot);
    if let Some(patience) = patience {
        // Its place in the queue is for an empty replica; later any slot will do.
        wake_at(if waits { patience } else { env.now + env.config.claim_margin }, effects);
    }
    false
}

/// A first claim of this replica on what the snapshot asks for.
pub(super) fn fresh(env: &Env<'_>, latest: &Snapshot, state: ClaimState) -> Claim {
    Claim {
        state,
        holder: env.holder.clone(),
        session: env.session.clone(),
        nonce: Nonce(format!("{:016x}", env.entropy)),
        attempt: 1,
        lost: 0,
        by: Vec::new(),
        budget: env.config.claim_timeout.as_secs(),
        deployment: latest.deployment.clone(),
        unswept: false,
        retry_in: None,
        cause: None,
        unknown: Vec::new(),
    }
}
