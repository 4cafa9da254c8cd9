// SPDX-License-Identifier: Apache-2.0
//! One step of one unit in one replica: what happened, what it means, what to do.
//!
//! `step` first takes in what happened, then, if the replica is idle on this unit, decides (`decide`). It never
//! reads a clock and never writes: agent and model checker execute the effects and feed back the answers. Late and
//! doubled answers are harmless: each is judged by what it shows, not by what was asked last.
//!
//! A unit with something to do always has one of these: an unanswered write, a live read on its way, a run that will
//! end (a cancelled one too), a removal under way, `WantSlot`, or `WakeAt`.

use std::time::Duration;

use super::{
    ClaimSlot, Effect, Env, Epoch, Gate, Input, Note, Observation, Snapshot, Time, Unit, Wake, Work, answers,
    answers::won,
    decide,
    removal::{absent, deleted, removed, tick as tick_removal, vanished},
    run::{self, cancel},
    wakes,
};

/// Conflicts with unrelated writers, and unclear answers, that one claim survives (L5).
pub(super) const CONFLICT_LIMIT: u32 = 3;
/// After that many, the unit rests this long before it is tried again.
pub(super) const CONFLICT_REST: Duration = Duration::from_secs(1);
/// The watch may show old states for this long before a live read asks whether upstream was restored.
const BEHIND_LIMIT: Duration = Duration::from_secs(30);

/// Takes one input; the effects are to be executed in order. At most one of them is `WakeAt`.
pub fn step(unit: &mut Unit, input: Input, env: &Env<'_>) -> Vec<Effect> {
    let mut effects = Vec::new();
    take_in(unit, input, env, &mut effects);
    if matches!(unit.work, Work::Idle | Work::Verifying { .. }) {
        decide::decide(unit, env, &mut effects);
    }
    // Who waits to be alone says so each time.
    let waits = effects.contains(&Effect::WantSlot) || matches!(unit.work, Work::Verifying { .. });
    if !waits && !unit.holds_slot() {
        unit.alone = None;
    }
    look_behind(unit, env, &mut effects);
    one_wake(effects)
}

fn take_in(unit: &mut Unit, input: Input, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let woken = input == Input::Tick;
    match input {
        Input::Seen(snapshot) => seen(unit, snapshot, false, env, effects),
        Input::Read(snapshot) => seen(unit, snapshot, true, env, effects),
        Input::ReadAbsent => absent(unit, env, effects),
        Input::ReadFailed => answers::read_failed(unit, env, effects),
        Input::Deleted(uid) => deleted(unit, uid, env, effects),
        Input::Vanished => vanished(unit, effects),
        Input::Written(snapshot) => answers::written(unit, snapshot, env, effects),
        Input::Conflict => answers::conflict(unit, env, effects),
        Input::Unclear => answers::unclear(unit, env, effects),
        Input::Denied => answers::denied(unit, env, effects),
        Input::Done { nonce, outcome, release } => run::done(unit, &nonce, outcome, release, env, effects),
        Input::Waiting { nonce, seconds } => run::waiting(unit, &nonce, seconds, env, effects),
        Input::Verified { session, quiet } => answers::verified(unit, &session, quiet, env, effects),
        Input::Gate(gate) => {
            if let Some(latest) = &mut unit.latest {
                latest.gate = gate;
            }
        }
        Input::Removed(removal) => removed(unit, removal, env, effects),
        Input::Tick => {}
        Input::Stop => cancel(unit, effects),
        Input::Redeploy { of } => {
            let stands =
                |release: &String| unit.latest.as_ref().is_some_and(|latest| latest.release == *release);
            unit.redeploy |= of.as_ref().is_none_or(stands);
        }
        Input::Drift { deployment, seen } => unit.drift = seen.then_some(deployment),
    }
    tick_removal(unit, woken, env, effects);
    run::watch_deadline(unit, env, effects);
}

/// A state of the object, from the watch or from a live read.
pub(super) fn seen(
    unit: &mut Unit,
    snapshot: Snapshot,
    live: bool,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) {
    if let Work::Removing { uid, running, .. } = &unit.work {
        if *uid == snapshot.uid {
            // Its deletion was seen; only the watch, which keeps order, can say that it is back after all. Not when a
            // successor was seen: then this is a list from a lagging cache.
            if live || snapshot.gate == Gate::Refused || unit.latest.is_some() {
                return;
            }
            unit.redeploy = true;
        }
        if !running {
            // What stands is for whoever is there now to deploy over.
            unit.work = Work::Idle;
        }
    }
    if unit.latest.is_none() && live {
        return; // the answer to a question about an object that is forgotten
    }
    if is_old(unit, &snapshot, live, env, effects) {
        return;
    }
    let recreated = unit.latest.as_ref().is_some_and(|latest| latest.uid != snapshot.uid);
    if recreated {
        // Another uid under the same name is another unit. Whoever works for the old one stops; what stands is
        // the new one's to deploy over, so nothing of the old release is removed here.
        cancel(unit, effects);
        forget(unit);
    }
    if matches!(unit.work, Work::Absent { .. }) {
        unit.work = Work::Idle;
    }
    take(unit, snapshot, env);
    on_news(unit, live, env, effects);
}

/// Rule 6: what is older than what is known is ignored, until live reads insist on it.
fn is_old(
    unit: &mut Unit,
    snapshot: &Snapshot,
    live: bool,
    env: &Env<'_>,
    effects: &mut Vec<Effect>,
) -> bool {
    let known = unit.latest.as_ref().map(|latest| &latest.version);
    let floor = known.map_or(&unit.own, |known| known.max(&unit.own));
    if snapshot.version >= *floor {
        (unit.behind, unit.doubted) = (None, None);
        return false;
    }
    if !live {
        unit.behind.get_or_insert(env.now);
        return true;
    }
    if unit.doubted.as_ref().is_none_or(|doubted| snapshot.version >= *doubted) {
        // It may have been read before the write that is known already; the next one cannot.
        unit.doubted = Some(floor.clone());
        unit.behind.get_or_insert(env.now);
        effects.push(Effect::Reread { after: Duration::ZERO });
        return true;
    }
    unit.own = Epoch::default();
    (unit.behind, unit.doubted) = (None, None);
    effects.extend([Effect::Note(Note::Restored), Effect::Relist]);
    false
}

/// Remembers a state that is no older than what is known.
pub(super) fn take(unit: &mut Unit, snapshot: Snapshot, env: &Env<'_>) {
    let before = unit.latest.as_ref();
    if wakes(before, &snapshot) == Wake::Unit {
        unit.pause_until = None;
    }
    let done_by_another = before.is_some_and(|before| {
        before.deployment != snapshot.deployment
            || (before.release != snapshot.release && snapshot.slot == ClaimSlot::Empty)
    });
    if done_by_another {
        unit.redeploy = false;
        unit.drift = None;
    }
    observe(unit, &snapshot.slot, env);
    unit.latest = Some(snapshot);
}

/// What news mean for work under way.
fn on_news(unit: &mut Unit, live: bool, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Some(latest) = unit.latest.clone() else { return };
    match &unit.work {
        Work::Claiming { claim, .. } => {
            if latest.slot.shows(claim) {
                won(unit, &latest, env, effects); // S9: the answer was lost, the claim was not
            } else if live {
                answers::claim_again(unit, &latest, env, effects);
            }
        }
        Work::Running { .. } => run::news(unit, &latest, live, env, effects),
        Work::Finishing { .. } => run::settle(unit, &latest, live, env, effects),
        Work::Idle | Work::Verifying { .. } | Work::Removing { .. } | Work::Absent { .. } => {}
    }
}

/// Whether this state asks for a claim, leaving aside who holds it.
///
/// A claim that was never finished does too, whatever the status says: the target may have been touched under it, for
/// another deployment id than the one that the status names and the spec went back to (S2). So does one that cannot be
/// read, after its time: or it would stand for ever, and nobody would monitor the unit under it. One that rests until a
/// change is no more work than a unit without a claim.
///
/// `wanted` says that there is work although the status is up to date (see [`Unit::wants`]).
pub(super) fn may_claim(snapshot: &Snapshot, wanted: bool) -> bool {
    snapshot.gate == Gate::Open
        && !snapshot.deployment.is_empty()
        && (snapshot.outdated || wanted || snapshot.slot.asks(&snapshot.deployment))
}

/// Notes since when the slot shows what it shows.
fn observe(unit: &mut Unit, slot: &ClaimSlot, env: &Env<'_>) {
    if unit.observed.as_ref().is_some_and(|seen| seen.slot.is_same(slot)) {
        return;
    }
    // A rest after a refused or lost claim is about the slot as it was.
    unit.pause_until = None;
    unit.wanted = None;
    unit.observed = Some(Observation { slot: slot.clone(), now: env.now, healthy: env.healthy });
}

/// Asks live whether upstream was restored when the watch stays behind: its own versions would be ignored for ever.
fn look_behind(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Some(since) = &mut unit.behind else { return };
    if env.now >= *since + BEHIND_LIMIT {
        *since = env.now;
        effects.push(Effect::Reread { after: Duration::ZERO });
    }
    wake_at(*since + BEHIND_LIMIT, effects);
}

/// Nothing known of an earlier object holds for the next one, except what still runs here.
pub(super) fn forget(unit: &mut Unit) {
    let running = match std::mem::take(&mut unit.work) {
        Work::Running { claim, ended: None, .. } => Some(claim.nonce),
        // A removal under way ends as what it is.
        removing @ Work::Removing { running: true, .. } => {
            unit.work = removing;
            None
        }
        _ => None,
    };
    let stopping = unit.stopping.take().or(running);
    *unit = Unit { stopping, alone: unit.alone, work: std::mem::take(&mut unit.work), ..Unit::default() };
}

/// When a waiting unit is due.
pub(super) fn wake_at(time: Time, effects: &mut Vec<Effect>) {
    effects.push(Effect::WakeAt(time));
}

/// Only the earliest wake counts; being woken, a unit tells its next one.
fn one_wake(mut effects: Vec<Effect>) -> Vec<Effect> {
    let times = effects.iter().filter_map(|effect| match effect {
        Effect::WakeAt(time) => Some(*time),
        _ => None,
    });
    if let Some(first) = times.min() {
        effects.retain(|effect| !matches!(effect, Effect::WakeAt(_)));
        effects.push(Effect::WakeAt(first));
    }
    effects
}
