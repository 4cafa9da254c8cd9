// SPDX-License-Identifier: Apache-2.0
//! Answers to the writes of a claim, and to live looks.

use std::time::Duration;

use super::{
    ClaimSlot, ClaimState, Effect, End, Env, Life, Note, SessionId, Snapshot, TakeoverReason, Unit, Work,
    backoff, decide, run,
    step::{CONFLICT_LIMIT, CONFLICT_REST, may_claim, take},
};

/// A write of ours was answered with the object it made. What it was is told by what it shows.
pub(super) fn written(unit: &mut Unit, snapshot: Snapshot, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Some(latest) = &unit.latest else { return };
    if latest.uid != snapshot.uid {
        return; // for an object that is gone
    }
    unit.own = unit.own.clone().max(snapshot.version.clone());
    if latest.version <= snapshot.version {
        take(unit, snapshot.clone(), env);
    }
    match &unit.work {
        Work::Claiming { claim, .. } if snapshot.slot.shows(claim) => won(unit, &snapshot, env, effects),
        Work::Running { .. } => run::entered(unit, &snapshot, env, effects),
        Work::Finishing { .. } => run::finished(unit, &snapshot, env, effects),
        _ => {} // an answer that came too late: the slot tells the rest
    }
}

/// The claim stands: it was answered, or read back by its nonce. Its version is the epoch.
pub(super) fn won(unit: &mut Unit, at: &Snapshot, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Claiming { claim, since, .. } = std::mem::take(&mut unit.work) else { return };
    unit.own = unit.own.clone().max(at.version.clone());
    unit.wanted = None;
    if claim.state == ClaimState::Quarantined {
        effects.push(Effect::Note(Note::Quarantined { lost: claim.lost }));
        return;
    }
    if unit.latest.as_ref().is_some_and(|latest| !latest.slot.is_held_by(&claim.nonce)) {
        effects.push(Effect::Note(Note::Discarded)); // won, and lost again before the answer came
        return;
    }
    effects.push(Effect::Note(Note::Won { attempt: claim.attempt }));
    run::start(unit, claim, at, since, env, effects);
}

/// A live read while a claim is not answered or was refused: decide whether to send it again.
pub(super) fn claim_again(unit: &mut Unit, latest: &Snapshot, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let wanted = unit.wants(latest);
    let Work::Claiming { claim, over, tries, sent, .. } = &mut unit.work else { return };
    if *sent {
        return; // its answer decides
    }
    // A claim, whoever's, decides, and so does its end; an unrelated write does not (rule 3).
    let same = latest.slot.is_same(over);
    let moved = latest.deployment != claim.deployment || !may_claim(latest, wanted) || env.draining;
    if same && !moved && *tries <= CONFLICT_LIMIT {
        *sent = true;
        effects.push(Effect::WriteClaim { version: latest.version.clone(), claim: claim.clone() });
        return;
    }
    let rival = latest.slot.claim().filter(|held| !same && held.state.is_open());
    if let Some(rival) = rival {
        effects.push(Effect::Note(Note::LostRace { holder: rival.holder.clone() }));
    }
    unit.work = Work::Idle;
    if same && !moved {
        unit.pause_until = Some(env.now + CONFLICT_REST);
    }
}

pub(super) fn conflict(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    effects.push(Effect::Note(Note::Conflict));
    if let Some(tries) = unanswered(unit) {
        // Jitter grows with the tries; the first look is at once, since most conflicts are a rival's claim.
        let after = if tries == 1 { Duration::ZERO } else { backoff::before_retry(tries, env.entropy) };
        effects.push(Effect::Reread { after });
        run::ended_meanwhile(unit, env, effects);
    }
}

pub(super) fn unclear(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    if let Some(tries) = unanswered(unit) {
        let after = if tries == 1 { Duration::ZERO } else { backoff::before_retry(tries, env.entropy) };
        effects.push(Effect::Reread { after });
        run::ended_meanwhile(unit, env, effects);
    }
}

/// A refused claim rests. A refused finish leaves the claim open until the server takes it or an observer ends it:
/// nothing is lost.
pub(super) fn denied(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    if let Work::Claiming { claim, .. } = &unit.work {
        unit.pause_until = Some(env.now + backoff::after_failure(claim.attempt, env.entropy));
        unit.work = Work::Idle;
    } else if let Some(tries) = unanswered(unit) {
        effects.push(Effect::Reread { after: backoff::before_retry(tries + 3, env.entropy) });
        run::ended_meanwhile(unit, env, effects);
    }
}

pub(super) fn read_failed(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let again = match &unit.work {
        // What is not settled must be; a slot stays taken meanwhile, which slows us while upstream is down.
        Work::Claiming { tries, sent: false, .. } | Work::Finishing { tries, sent: false, .. } => {
            Some(*tries + 2)
        }
        Work::Running { entering: Some(entering), .. } if !entering.sent => Some(5),
        Work::Absent { .. } => Some(10),
        Work::Verifying { .. } => {
            unit.work = Work::Idle;
            unit.pause_until = Some(env.now + CONFLICT_REST);
            None
        }
        _ => None,
    };
    if let Some(tries) = again {
        effects.push(Effect::Reread { after: backoff::before_retry(tries, env.entropy) });
    }
}

/// The write on its way was refused or is unclear: counts the try and returns the count.
pub(super) fn unanswered(unit: &mut Unit) -> Option<u32> {
    match &mut unit.work {
        Work::Claiming { tries, sent, .. } | Work::Finishing { tries, sent, .. } => {
            *sent = false;
            *tries = tries.saturating_add(1);
            Some(*tries)
        }
        Work::Running { entering: Some(entering), .. } => {
            entering.sent = false;
            Some(1)
        }
        _ => None,
    }
}

/// The live look at a quiet holder.
pub(super) fn verified(
    unit: &mut Unit,
    session: &SessionId,
    quiet: bool,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    if !matches!(&unit.work, Work::Verifying { session: asked } if asked == session) {
        return;
    }
    unit.work = Work::Idle;
    let held = unit.latest.as_ref().and_then(|latest| latest.slot.claim());
    if !held.is_some_and(|claim| claim.state.is_open() && claim.session == *session) {
        return;
    }
    let woke = matches!(env.sessions.life(session, env.healthy), Life::Live(_)); // S8
    if quiet && !woke {
        decide::take_over(unit, TakeoverReason::Quiet, env, effects);
    } else if !quiet {
        // The own watch of Leases lags behind: do not ask at once again.
        unit.pause_until = Some(env.now + env.config.ttl / 3);
    }
}

/// Whether the object shows that this end was written.
pub(super) fn landed(end: &End, nonce: &super::Nonce, release: &str, at: &Snapshot) -> bool {
    let given_up = |state| at.slot.claim().is_some_and(|held| held.nonce == *nonce && held.state == state);
    match end {
        End::Deployed => at.slot == ClaimSlot::Empty && at.release == release,
        End::Permanent(None) | End::Release(None) => at.slot == ClaimSlot::Empty,
        End::BackOff(_) | End::Permanent(Some(_)) => given_up(ClaimState::BackingOff),
        End::Release(Some(_)) => given_up(ClaimState::Expired),
        End::Replace(next) => at.slot.is_held_by(&next.nonce),
    }
}
