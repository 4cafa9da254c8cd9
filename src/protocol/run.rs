// SPDX-License-Identifier: Apache-2.0
//! A deployment under a claim: its start, its wait, its end, and the one write that ends the claim.

use std::time::Duration;

use super::{
    Claim, ClaimSlot, ClaimState, Effect, End, Env, Gate, Nonce, Note, Outcome, Snapshot, Time, Unit, Work,
    answers::{landed, won},
    backoff, decide,
    step::{may_claim, wake_at},
    unit::Entering,
};

/// Starts the deployment, unless the replica is going or the watch has shown another deployment id before the answer
/// came: a claim nothing was done under is given up, or replaced, at once.
pub(super) fn start(
    unit: &mut Unit,
    claim: Claim,
    at: &Snapshot,
    since: Time,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    let epoch = at.version.clone();
    let version = unit.latest.as_ref().map_or(&epoch, |latest| &latest.version).max(&epoch).clone();
    let moved = unit.latest.as_ref().is_some_and(|latest| latest.deployment != claim.deployment);
    if env.draining || moved {
        let end = End::Release(Some(given_up(&claim)));
        return send_finish(unit, claim, end, version, String::new(), env, effects);
    }
    effects.push(Effect::Start { claim: claim.clone(), epoch: epoch.clone() });
    let deadline = since.saturating_add(Duration::from_secs(claim.budget));
    unit.work = Work::Running {
        claim,
        epoch,
        version,
        waiting: false,
        cancelled: false,
        deadline,
        entering: None,
        ended: None,
    };
}

/// Tells a running deployment to stop at the next safe point.
pub(super) fn cancel(unit: &mut Unit, effects: &mut Vec<Effect>) {
    if let Work::Running { claim, cancelled, .. } = &mut unit.work
        && !*cancelled
    {
        *cancelled = true;
        effects.push(Effect::Cancel { nonce: claim.nonce.clone() });
    }
}

/// The holder stops at its own budget; observers act a margin later.
pub(super) fn watch_deadline(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Running { deadline, cancelled: false, .. } = &unit.work else { return };
    if env.now >= *deadline {
        cancel(unit, effects);
    } else {
        wake_at(*deadline, effects);
    }
}

/// The deployment waits for readiness: one more write gives its slot back and tells the longer budget.
pub(super) fn waiting(
    unit: &mut Unit,
    nonce: &Nonce,
    seconds: u64,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    let Work::Running { claim, version, waiting: false, cancelled: false, entering, .. } = &mut unit.work
    else {
        return;
    };
    if claim.nonce != *nonce || entering.is_some() {
        return;
    }
    if env.draining {
        return cancel(unit, effects); // a wait has no end in sight
    }
    let budget = claim.budget.saturating_add(seconds);
    let next = Claim { state: ClaimState::Waiting, budget, ..claim.clone() };
    *entering = Some(Entering { claim: next.clone(), since: env.now, sent: true });
    effects.push(Effect::WriteClaim { version: version.clone(), claim: next });
}

/// A state of the object while the deployment runs.
pub(super) fn news(unit: &mut Unit, latest: &Snapshot, live: bool, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Running { claim, version, .. } = &mut unit.work else { return };
    let mine = latest.slot.is_held_by(&claim.nonce);
    if mine {
        version.clone_from(&latest.version);
    }
    if !mine || latest.deployment != claim.deployment || latest.gate == Gate::Refused {
        cancel(unit, effects);
        return;
    }
    entered(unit, latest, env, effects);
    let Work::Running { entering: Some(entering), version, cancelled: false, ended: None, .. } =
        &mut unit.work
    else {
        return;
    };
    if live && !entering.sent {
        entering.sent = true;
        effects.push(Effect::WriteClaim { version: version.clone(), claim: entering.claim.clone() });
    }
}

/// If the object shows the step into the wait, it is taken.
pub(super) fn entered(unit: &mut Unit, at: &Snapshot, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Running { claim, version, waiting, deadline, entering, .. } = &mut unit.work else { return };
    if let Some(latest) = unit.latest.as_ref().filter(|latest| latest.slot.is_held_by(&claim.nonce)) {
        version.clone_from(&latest.version);
    }
    let Some(next) = entering.take_if(|entering| at.slot.shows(&entering.claim)) else { return };
    *deadline = next.since.saturating_add(Duration::from_secs(next.claim.budget));
    *claim = next.claim;
    *waiting = true;
    ended_meanwhile(unit, env, effects);
}

/// The deployment ended while the step into the wait was on its way, and that is settled or refused now.
pub(super) fn ended_meanwhile(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Running { ended, .. } = &mut unit.work else { return };
    if let Some((outcome, release)) = ended.take() {
        end(unit, outcome, release, env, effects);
    }
}

/// The deployment ended; an earlier run's end is told apart by its nonce.
pub(super) fn done(
    unit: &mut Unit,
    nonce: &Nonce,
    outcome: Outcome,
    release: String,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    if unit.stopping.as_ref() == Some(nonce) {
        unit.stopping = None;
        return;
    }
    let Work::Running { claim, entering, ended, .. } = &mut unit.work else { return };
    if claim.nonce != *nonce {
        return;
    }
    if entering.as_ref().is_some_and(|entering| entering.sent) {
        *ended = Some((outcome, release)); // one write at a time
        return;
    }
    end(unit, outcome, release, env, effects);
}

fn end(unit: &mut Unit, outcome: Outcome, release: String, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Running { claim, version, deadline, .. } = std::mem::take(&mut unit.work) else { return };
    let Some(latest) = &unit.latest else { return };
    if outcome == Outcome::Fenced || !latest.slot.is_held_by(&claim.nonce) {
        // Not ours any more: discard, and look at who holds it.
        effects.push(Effect::Note(Note::Discarded));
        if latest.slot.is_held_by(&claim.nonce) {
            unit.pause_until = Some(env.now + backoff::after_failure(claim.attempt, env.entropy));
        }
        effects.push(Effect::Reread { after: Duration::ZERO });
        return;
    }
    let result = match outcome {
        _ if latest.gate == Gate::Refused => End::Release(None),
        Outcome::Deployed => End::Deployed,
        Outcome::Permanent => End::Permanent(claim.unswept.then(|| rests(&claim))),
        Outcome::Failed { cause } => End::BackOff(backed_off(&claim, cause, env)),
        // A living holder says so itself: that is a failure, not a loss.
        Outcome::Stopped if env.now >= deadline => {
            End::BackOff(backed_off(&claim, format!("not finished within {} s", claim.budget), env))
        }
        Outcome::Stopped | Outcome::Fenced => End::Release(Some(given_up(&claim))),
    };
    send_finish(unit, claim, result, version, release, env, effects);
}

fn send_finish(
    unit: &mut Unit,
    claim: Claim,
    result: End,
    version: super::Epoch,
    release: String,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    let end = result.clone();
    unit.work =
        Work::Finishing { claim, result, end, version, release, since: env.now, tries: 0, sent: false };
    send(unit, env, effects);
}

/// Sends the finish as it has to be by what is known now.
fn send(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Some(latest) = &unit.latest else { return };
    let wanted = unit.wants(latest);
    let Work::Finishing { claim, result, end, version, since, sent, .. } = &mut unit.work else { return };
    if latest.deployment != claim.deployment {
        // An unclear replacement that is still right keeps its nonce: it may have been written.
        let still = matches!(end, End::Replace(next) if next.deployment == latest.deployment)
            && may_claim(latest, wanted)
            && !env.draining;
        if !still {
            *end = replacement(claim, result, latest, wanted, env);
            *since = env.now;
        }
    } else {
        end.clone_from(result);
    }
    *sent = true;
    effects.push(Effect::Finish { version: version.clone(), nonce: claim.nonce.clone(), end: end.clone() });
}

/// A state of the object while the finish is not answered, or was refused.
pub(super) fn settle(
    unit: &mut Unit,
    latest: &Snapshot,
    live: bool,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    let Work::Finishing { claim, version, end, release, sent, .. } = &mut unit.work else { return };
    if latest.slot.is_held_by(&claim.nonce) {
        version.clone_from(&latest.version);
        if live && !*sent {
            send(unit, env, effects);
        }
    } else if live && !*sent {
        // S9: settled by the result itself.
        if landed(end, &claim.nonce, release, latest) {
            return ended(unit, latest, env, effects);
        }
        effects.push(Effect::Note(Note::Discarded));
        unit.work = Work::Idle;
    }
}

/// The finish was answered, unless this is a late answer to an earlier write.
pub(super) fn finished(unit: &mut Unit, at: &Snapshot, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Finishing { claim, version, end, sent, .. } = &mut unit.work else { return };
    if !landed(end, &claim.nonce, &at.release, at) {
        return;
    }
    if at.version > *version {
        return ended(unit, at, env, effects);
    }
    // The claim was seen open at a later version than its end: upstream was restored in between (or this is the answer
    // to some write long ago). The answer awaited may have been this one: ask what stands.
    *sent = false;
    effects.push(Effect::Reread { after: Duration::ZERO });
}

/// The claim is ended.
fn ended(unit: &mut Unit, at: &Snapshot, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Finishing { claim, end, since, .. } = std::mem::take(&mut unit.work) else { return };
    match end {
        End::Replace(next) => {
            unit.alone = None; // nothing of it was ever lost
            unit.work = Work::Claiming { claim: next, over: ClaimSlot::Empty, since, tries: 0, sent: false };
            won(unit, at, env, effects);
        }
        End::Deployed | End::Permanent(_) => {
            unit.redeploy = false;
            unit.drift = None;
            if unit.latest.as_ref().is_some_and(|latest| may_claim(latest, false))
                && at.deployment == claim.deployment
            {
                // The status does not tell what was done: rest, so that this cannot become a storm.
                unit.pause_until = Some(env.now + backoff::after_failure(claim.attempt, env.entropy));
            }
        }
        End::BackOff(_) | End::Release(_) => {}
    }
}

/// The deployment id moved on under our claim: a fresh claim on the new one, or the mark of the old one.
fn replacement(claim: &Claim, result: &End, latest: &Snapshot, wanted: bool, env: &Env<'_>) -> End {
    // Who waited for readiness has no slot to go on with.
    let room = !env.slots.reserved && (claim.state != ClaimState::Waiting || env.slots.free > 0);
    if env.draining || !room || !may_claim(latest, wanted) {
        return End::Release(Some(given_up(claim)));
    }
    let mut next = decide::fresh(env, latest, ClaimState::Claimed);
    next.unknown.clone_from(&claim.unknown);
    next.unswept = claim.unswept && *result != End::Deployed;
    End::Replace(next)
}

fn backed_off(claim: &Claim, cause: String, env: &Env<'_>) -> Claim {
    let wait = backoff::after_failure(claim.attempt, env.entropy);
    Claim {
        state: ClaimState::BackingOff,
        retry_in: Some(wait.as_secs().max(1)),
        cause: Some(cause),
        ..claim.clone()
    }
}

/// What only a change can mend waits for it without a claim; the mark of a takeover needs one to stand on.
fn rests(claim: &Claim) -> Claim {
    let cause = Some("waits for a change; what a lost holder left is to be looked for then".into());
    Claim { state: ClaimState::BackingOff, retry_in: None, cause, ..claim.clone() }
}

/// A hand-over is no loss, but it leaves its mark: attempts stay on record (S5), and the target may be half done (S2).
fn given_up(claim: &Claim) -> Claim {
    Claim { state: ClaimState::Expired, retry_in: None, cause: Some("handed over".into()), ..claim.clone() }
}
