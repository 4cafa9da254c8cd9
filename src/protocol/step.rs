// SPDX-License-Identifier: Apache-2.0
//! One step of one unit in one replica: what happened, what it means, what to do.
//!
//! `step` first takes in what happened, then, if the replica is idle on this unit, decides (`decide`). It never
//! reads a clock and never writes: agent and model checker execute the effects and feed back the answers.

use std::time::Duration;

use super::{
    Claim, ClaimSlot, ClaimState, Effect, End, Env, Epoch, Gate, Input, Note, Observation, Outcome, Removal,
    SessionId, Snapshot, TakeoverReason, Time, Uid, Unit, Wake, Work, backoff, decide, wakes,
};

/// Conflicts with unrelated writers that one claim or finish survives (L5).
const CONFLICT_LIMIT: u32 = 3;
/// After that many, the unit rests this long before it is tried again.
const CONFLICT_REST: Duration = Duration::from_secs(1);

/// Takes one input; the effects are to be executed in order.
pub fn step(unit: &mut Unit, input: Input, env: &Env<'_>) -> Vec<Effect> {
    let mut effects = Vec::new();
    take_in(unit, input, env, &mut effects);
    if matches!(unit.work, Work::Idle | Work::Verifying { .. }) {
        decide::decide(unit, env, &mut effects);
    }
    effects
}

fn take_in(unit: &mut Unit, input: Input, env: &Env<'_>, effects: &mut Vec<Effect>) {
    match input {
        Input::Seen(snapshot) => seen(unit, snapshot, false, env, effects),
        Input::Read(snapshot) => seen(unit, snapshot, true, env, effects),
        Input::ReadAbsent => absent(unit, env, effects),
        Input::ReadFailed => read_failed(unit, env, effects),
        Input::Deleted(uid) => deleted(unit, uid, env, effects),
        Input::Vanished => vanished(unit, env, effects),
        Input::Written(snapshot) => written(unit, snapshot, env, effects),
        Input::Conflict => conflict(unit, env, effects),
        Input::Unclear => unclear(unit, effects),
        Input::Denied => denied(unit, env, effects),
        Input::Done { outcome, release } => done(unit, outcome, release, env, effects),
        Input::Waiting { seconds } => waiting(unit, seconds, effects),
        Input::Verified { quiet } => verified(unit, quiet, env, effects),
        Input::Removed(removal) => removed(unit, removal, env, effects),
        Input::Tick => tick(unit, env, effects),
        Input::Stop => stop(unit, effects),
        Input::Redeploy => unit.redeploy = true,
    }
}

/// A state of the object, from the watch or from a live read.
fn seen(unit: &mut Unit, snapshot: Snapshot, live: bool, env: &Env<'_>, effects: &mut Vec<Effect>) {
    if let Work::Absent { uid, .. } = &unit.work {
        if *uid != snapshot.uid {
            forget(unit);
        } else {
            unit.work = Work::Idle;
        }
    }
    let recreated = unit.latest.as_ref().is_some_and(|latest| latest.uid != snapshot.uid);
    if recreated {
        // Another uid under the same name is another unit. Whoever works for the old one stops; what stands is
        // the new one's to deploy over, so nothing of the old release is removed here.
        if let Some(nonce) = running_nonce(unit) {
            effects.push(Effect::Cancel { nonce });
        }
        forget(unit);
    } else if snapshot.version < unit.own {
        if !live {
            return; // rule 6: older than what this replica wrote
        }
        // A live read below an own write: upstream was restored from a backup.
        unit.own = Epoch::default();
        unit.latest = None;
        effects.extend([Effect::Note(Note::Restored), Effect::Relist]);
    }
    if unit.latest.as_ref().is_some_and(|latest| !live && snapshot.version <= latest.version) {
        return;
    }
    if wakes(unit.latest.as_ref(), &snapshot) == Wake::Unit {
        unit.pause_until = None;
    }
    observe(unit, &snapshot.slot, env);
    unit.latest = Some(snapshot);
    on_news(unit, live, env, effects);
}

/// What news mean for work under way.
fn on_news(unit: &mut Unit, live: bool, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Some(latest) = unit.latest.clone() else { return };
    match &mut unit.work {
        Work::Idle | Work::Verifying { .. } | Work::Removing { .. } | Work::Absent { .. } => {}
        Work::Claiming { claim, unclear, tries, from } => {
            if latest.slot.is_held_by(&claim.nonce) {
                let (claim, from) = (claim.clone(), from.take());
                won(unit, claim, from, &latest, effects); // S9: the answer was lost, the claim was not
            } else if live {
                // A claim, whoever's, decides; an unrelated write does not (rule 3).
                let rival = latest.slot.is_open();
                let moved = latest.deployment != claim.deployment || !may_claim(&latest, unit.redeploy);
                if rival || moved || *tries > CONFLICT_LIMIT {
                    if let Some(holder) = latest.slot.claim().filter(|_| rival).map(|c| c.holder.clone()) {
                        effects.push(Effect::Note(Note::LostRace { holder }));
                    }
                    unit.work = Work::Idle;
                    if !rival && !moved {
                        unit.pause_until = Some(env.now + CONFLICT_REST);
                    }
                } else {
                    *unclear = false;
                    effects.push(Effect::WriteClaim { version: latest.version, claim: claim.clone() });
                }
            }
        }
        Work::Running { claim, version, cancelled, .. } => {
            let mine = latest.slot.is_held_by(&claim.nonce);
            let moved = latest.deployment != claim.deployment;
            if mine && latest.version > *version {
                *version = latest.version;
            }
            if (!mine || moved) && !*cancelled && (live || latest_is_after(version, unit.latest.as_ref())) {
                *cancelled = true;
                effects.push(Effect::Cancel { nonce: claim.nonce.clone() });
            }
        }
        Work::Finishing { claim, end, version, release, tries } => {
            if latest.slot.is_held_by(&claim.nonce) {
                *version = latest.version.clone();
                if live {
                    if latest.deployment != claim.deployment {
                        *end = replacement(claim, &latest, unit.redeploy, env);
                    }
                    let (nonce, end, version) = (claim.nonce.clone(), end.clone(), version.clone());
                    effects.push(Effect::Finish { version, nonce, end });
                }
            } else if live {
                // S9: settled by the result itself.
                let landed = match end {
                    End::Deployed => latest.slot == ClaimSlot::Empty && latest.release == *release,
                    End::Permanent | End::BackOff(_) | End::Release(_) => *tries == 0,
                    End::Replace(next) => latest.slot.is_held_by(&next.nonce),
                };
                if let (End::Replace(next), true) = (&end, landed) {
                    let next = next.clone();
                    won(unit, next, None, &latest, effects);
                    return;
                }
                if !landed {
                    effects.push(Effect::Note(Note::Discarded));
                }
                unit.work = Work::Idle;
            }
        }
    }
}

/// The watch may lag: a state older than the claim itself says nothing about it.
fn latest_is_after(version: &Epoch, latest: Option<&Snapshot>) -> bool {
    latest.is_some_and(|latest| latest.version >= *version)
}

/// Whether this state asks for a claim, leaving aside who holds it.
pub(super) fn may_claim(snapshot: &Snapshot, redeploy: bool) -> bool {
    snapshot.gate == Gate::Open && !snapshot.deployment.is_empty() && (snapshot.outdated || redeploy)
}

/// Notes since when the slot shows what it shows. A claim is the same as long as nonce and state are.
fn observe(unit: &mut Unit, slot: &ClaimSlot, env: &Env<'_>) {
    let same = unit.observed.as_ref().is_some_and(|seen| match (&seen.slot, slot) {
        (ClaimSlot::Claim(before), ClaimSlot::Claim(after)) => {
            before.nonce == after.nonce && before.state == after.state
        }
        (before, after) => before == after,
    });
    if !same {
        unit.observed = Some(Observation { slot: slot.clone(), now: env.now, healthy: env.healthy });
        unit.wanted = None;
    }
}

/// A write of ours was answered with the object it made.
fn written(unit: &mut Unit, snapshot: Snapshot, env: &Env<'_>, effects: &mut Vec<Effect>) {
    unit.own = unit.own.clone().max(snapshot.version.clone());
    observe(unit, &snapshot.slot, env);
    unit.latest = Some(snapshot.clone());
    match std::mem::take(&mut unit.work) {
        Work::Claiming { claim, from, .. } => won(unit, claim, from, &snapshot, effects),
        Work::Finishing { end: End::Replace(next), .. } => won(unit, next, None, &snapshot, effects),
        Work::Finishing { end, .. } => {
            if end == End::Deployed {
                unit.redeploy = false;
            }
        }
        // The step into a wait: same nonce, same epoch, no slot.
        Work::Running { claim, epoch, cancelled, .. } => {
            let claim = snapshot.slot.claim().cloned().unwrap_or(claim);
            unit.work = Work::Running { claim, epoch, version: snapshot.version, waiting: true, cancelled };
        }
        other => unit.work = other,
    }
}

/// The claim stands: it was answered, or read back by its nonce. Its version is the epoch.
fn won(unit: &mut Unit, claim: Claim, from: Option<SessionId>, at: &Snapshot, effects: &mut Vec<Effect>) {
    unit.own = unit.own.clone().max(at.version.clone());
    unit.wanted = None;
    if claim.state == ClaimState::Quarantined {
        effects.push(Effect::Note(Note::Quarantined { lost: claim.lost }));
        unit.work = Work::Idle;
        return;
    }
    effects.push(Effect::Note(Note::Won { attempt: claim.attempt }));
    effects.push(Effect::Start {
        claim: claim.clone(),
        epoch: at.version.clone(),
        taken_over: from.is_some(),
    });
    unit.work = Work::Running {
        claim,
        epoch: at.version.clone(),
        version: at.version.clone(),
        waiting: false,
        cancelled: false,
    };
}

fn conflict(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    effects.push(Effect::Note(Note::Conflict));
    match &mut unit.work {
        Work::Claiming { tries, .. } | Work::Finishing { tries, .. } => {
            *tries += 1;
            // Jitter grows with the tries; the first look is at once, since most conflicts are a rival's claim.
            let after = if *tries == 1 { Duration::ZERO } else { backoff::before_retry(*tries, env.entropy) };
            effects.push(Effect::Reread { after });
        }
        Work::Running { .. } => effects.push(Effect::Reread { after: Duration::ZERO }),
        Work::Idle | Work::Verifying { .. } | Work::Removing { .. } | Work::Absent { .. } => {}
    }
}

fn unclear(unit: &mut Unit, effects: &mut Vec<Effect>) {
    match &mut unit.work {
        Work::Claiming { unclear, .. } => *unclear = true,
        Work::Finishing { .. } | Work::Running { .. } => {}
        Work::Idle | Work::Verifying { .. } | Work::Removing { .. } | Work::Absent { .. } => return,
    }
    effects.push(Effect::Reread { after: Duration::ZERO });
}

fn denied(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    match &mut unit.work {
        Work::Claiming { .. } => {
            unit.work = Work::Idle;
            unit.pause_until = Some(env.now + backoff::after_failure(1, env.entropy));
        }
        // The claim stays open until the server takes the finish or an observer ends it: nothing is lost.
        Work::Finishing { tries, .. } => {
            *tries += 1;
            effects.push(Effect::Reread { after: backoff::before_retry(*tries + 3, env.entropy) });
        }
        Work::Running { .. }
        | Work::Idle
        | Work::Verifying { .. }
        | Work::Removing { .. }
        | Work::Absent { .. } => {}
    }
}

fn read_failed(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    match &mut unit.work {
        // An unclear write must be settled; a slot stays taken meanwhile, which slows us while upstream is down.
        Work::Claiming { tries, .. } | Work::Finishing { tries, .. } => {
            let after = backoff::before_retry((*tries).max(1) + 2, env.entropy);
            effects.push(Effect::Reread { after });
        }
        Work::Verifying { .. } => {
            unit.work = Work::Idle;
            unit.pause_until = Some(env.now + Duration::from_secs(1));
        }
        Work::Absent { .. } => effects.push(Effect::Reread { after: backoff::before_retry(10, env.entropy) }),
        Work::Idle | Work::Running { .. } | Work::Removing { .. } => {}
    }
}

fn done(unit: &mut Unit, outcome: Outcome, release: String, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Running { claim, version, .. } = &unit.work else { return };
    let (claim, version) = (claim.clone(), version.clone());
    let Some(latest) = unit.latest.clone() else {
        unit.work = Work::Idle; // deleted or re-created meanwhile; `deleted` has set what follows
        return;
    };
    if outcome == Outcome::Fenced || (!latest.slot.is_held_by(&claim.nonce) && latest.version >= version) {
        // Not ours any more: discard, and look at who holds it.
        effects.push(Effect::Note(Note::Discarded));
        unit.work = Work::Idle;
        if latest.slot.is_held_by(&claim.nonce) {
            effects.push(Effect::Reread { after: Duration::ZERO });
            unit.pause_until = Some(env.now + CONFLICT_REST);
        }
        return;
    }
    let end = if latest.deployment != claim.deployment {
        replacement(&claim, &latest, unit.redeploy, env)
    } else {
        match outcome {
            Outcome::Deployed => End::Deployed,
            Outcome::Permanent => End::Permanent,
            Outcome::Failed { cause } => End::BackOff(backed_off(&claim, cause, env)),
            Outcome::Stopped | Outcome::Fenced => End::Release(given_up(&claim)),
        }
    };
    effects.push(Effect::Finish { version: version.clone(), nonce: claim.nonce.clone(), end: end.clone() });
    unit.work = Work::Finishing { claim, end, version, release, tries: 0 };
}

/// The deployment id moved on under our claim: a fresh claim on the new one, or none.
fn replacement(claim: &Claim, latest: &Snapshot, redeploy: bool, env: &Env<'_>) -> End {
    if env.draining || !may_claim(latest, redeploy) {
        return End::Release(None);
    }
    let mut next = decide::fresh(env, latest, ClaimState::Claimed);
    next.unknown.clone_from(&claim.unknown);
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

/// A hand-over is no loss, but earlier attempts stay on record (S5).
fn given_up(claim: &Claim) -> Option<Claim> {
    let remember = claim.attempt > 1 || claim.lost > 0;
    remember.then(|| Claim {
        state: ClaimState::Expired,
        retry_in: None,
        cause: Some("handed over".into()),
        ..claim.clone()
    })
}

fn waiting(unit: &mut Unit, seconds: u64, effects: &mut Vec<Effect>) {
    let Work::Running { claim, version, waiting: false, cancelled: false, .. } = &unit.work else { return };
    let budget = claim.budget.saturating_add(seconds);
    let waiting = Claim { state: ClaimState::Waiting, budget, ..claim.clone() };
    effects.push(Effect::WriteClaim { version: version.clone(), claim: waiting });
}

fn verified(unit: &mut Unit, quiet: bool, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Verifying { session } = &unit.work else { return };
    let session = session.clone();
    unit.work = Work::Idle;
    let held = unit.latest.as_ref().and_then(|latest| latest.slot.claim());
    let still = held.is_some_and(|claim| claim.state.is_open() && claim.session == session);
    if !still {
        return;
    }
    if quiet {
        decide::take_over(unit, TakeoverReason::Quiet, env, effects);
    } else {
        unit.pause_until = Some(env.now + env.config.ttl);
    }
}

fn deleted(unit: &mut Unit, uid: Uid, env: &Env<'_>, effects: &mut Vec<Effect>) {
    match (&unit.latest, &unit.work) {
        (Some(latest), _) if latest.uid != uid => return, // the successor's are not touched
        (None, Work::Absent { uid: missed, .. }) if *missed != uid => return,
        (None, Work::Idle) => return,
        _ => {}
    }
    start_removal(unit, uid, env, effects);
}

/// The first in preference removes at once; the others look a little later whether anything is left to do.
fn start_removal(unit: &mut Unit, uid: Uid, env: &Env<'_>, effects: &mut Vec<Effect>) {
    if let Some(nonce) = running_nonce(unit) {
        effects.push(Effect::Cancel { nonce });
    }
    forget(unit);
    let rank = env.sessions.rank(env.session, &uid, env.healthy);
    let due = env.now + env.config.steal_delay * rank;
    unit.work = Work::Removing { uid, due, running: false, tries: 0 };
    remove_when_due(unit, None, env, effects);
}

fn remove_when_due(unit: &mut Unit, dead: Option<SessionId>, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Removing { uid, due, running, .. } = &mut unit.work else { return };
    if *running {
        return;
    }
    if env.now < *due {
        effects.push(Effect::WakeAt(*due));
    } else if !env.draining {
        *running = true;
        effects.push(Effect::Remove { uid: uid.clone(), dead_guard: dead });
    }
}

fn removed(unit: &mut Unit, removal: Removal, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Removing { due, running, tries, .. } = &mut unit.work else { return };
    *running = false;
    match removal {
        Removal::Complete => {
            if unit.latest.is_some() {
                unit.work = Work::Idle; // re-created meanwhile
            } else {
                forget(unit);
                effects.push(Effect::Forget);
            }
        }
        Removal::Guarded(session) => match env.sessions.life(&session, env.healthy) {
            super::Life::Dead => remove_when_due(unit, Some(session), env, effects),
            super::Life::Quiet if *tries > 0 => remove_when_due(unit, Some(session), env, effects),
            super::Life::Live(_) | super::Life::Quiet | super::Life::Unknown => {
                // Looked at again after TTL; a second look at a still unknown guard counts as its death.
                let unknown = env.sessions.life(&session, env.healthy) == super::Life::Unknown;
                *tries += 1;
                *due = env.now + env.config.ttl;
                if unknown && *tries > 2 {
                    *due = env.now;
                    remove_when_due(unit, Some(session), env, effects);
                } else {
                    effects.push(Effect::WakeAt(*due));
                }
            }
        },
        Removal::Failed => {
            *tries += 1;
            *due = env.now + backoff::after_failure(*tries, env.entropy);
            effects.push(Effect::WakeAt(*due));
        }
    }
}

fn vanished(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Some(latest) = &unit.latest else { return };
    if matches!(unit.work, Work::Idle | Work::Verifying { .. }) {
        unit.work = Work::Absent { uid: latest.uid.clone(), since: env.now };
    }
    effects.push(Effect::Reread { after: Duration::ZERO });
}

/// Absence is not an order: only after the grace period, and still 404, is it a deletion.
fn absent(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    match &unit.work {
        Work::Absent { uid, since } => {
            let (uid, end) = (uid.clone(), *since + env.config.absence_grace);
            if env.now >= end {
                start_removal(unit, uid, env, effects);
            } else {
                effects.push(Effect::Note(Note::AbsenceHeld));
                effects.push(Effect::Reread { after: end - env.now });
            }
        }
        Work::Idle | Work::Verifying { .. } | Work::Claiming { .. } | Work::Finishing { .. } => {
            if let Some(uid) = unit.latest.as_ref().map(|latest| latest.uid.clone()) {
                unit.work = Work::Absent { uid, since: env.now };
                effects.push(Effect::Reread { after: env.config.absence_grace });
            } else {
                unit.work = Work::Idle;
            }
        }
        Work::Running { claim, .. } => effects.push(Effect::Cancel { nonce: claim.nonce.clone() }),
        Work::Removing { .. } => {}
    }
}

fn tick(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    remove_when_due(unit, None, env, effects);
}

fn stop(unit: &mut Unit, effects: &mut Vec<Effect>) {
    if let Work::Running { claim, cancelled, .. } = &mut unit.work
        && !*cancelled
    {
        *cancelled = true;
        effects.push(Effect::Cancel { nonce: claim.nonce.clone() });
    }
}

fn running_nonce(unit: &Unit) -> Option<super::Nonce> {
    match &unit.work {
        Work::Running { claim, .. } => Some(claim.nonce.clone()),
        Work::Idle
        | Work::Claiming { .. }
        | Work::Verifying { .. }
        | Work::Finishing { .. }
        | Work::Removing { .. }
        | Work::Absent { .. } => None,
    }
}

/// Nothing known of an earlier object holds for the next one.
fn forget(unit: &mut Unit) {
    *unit = Unit::default();
}

/// When a waiting unit is due; used by `decide`.
pub(super) fn wake_at(time: Time, effects: &mut Vec<Effect>) {
    effects.push(Effect::WakeAt(time));
}
