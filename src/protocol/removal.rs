// SPDX-License-Identifier: Apache-2.0
//! What is gone: absence is not an order, a deletion is.

use std::time::Duration;

use super::{
    Effect, Env, Life, Note, Removal, SessionId, Uid, Unit, Work, answers, backoff,
    run::{self, cancel},
    step::{forget, wake_at},
};

/// When so much is missing from one list that something else than a wish is behind it.
#[derive(Clone, Copy, Debug)]
pub struct Mass {
    /// More than this many.
    pub many: usize,
    /// And more than one in so many of all.
    pub share: usize,
}

impl Mass {
    /// More than ten, and more than a fifth of all, is no ordinary day.
    pub const USUAL: Self = Self { many: 10, share: 5 };

    /// Whether so many of so many are.
    pub fn is(self, missing: usize, known: usize) -> bool {
        missing > self.many && missing.saturating_mul(self.share) > known
    }
}

/// The deletion of this uid was seen.
pub(super) fn deleted(unit: &mut Unit, uid: Uid, env: &Env<'_>, effects: &mut Vec<Effect>) {
    if let Work::Removing { uid: removing, running: true, then, .. } = &mut unit.work {
        if *removing != uid {
            *then = Some(uid); // one after the other, so that their ends are told apart
            unit.latest = None;
        }
        return;
    }
    match (&unit.latest, &unit.work) {
        (Some(latest), _) if latest.uid != uid => {} // the successor's are not touched
        (None, Work::Removing { uid: removing, .. }) if *removing == uid => {}
        (None, Work::Idle) if unit.stopping.is_none() => effects.push(Effect::Forget),
        _ => start_removal(unit, uid, env, effects),
    }
}

/// The first in preference removes at once; the others look a little later whether anything is left to do.
fn start_removal(unit: &mut Unit, uid: Uid, env: &Env<'_>, effects: &mut Vec<Effect>) {
    cancel(unit, effects);
    forget(unit);
    let rank = env.sessions.rank(env.session, &uid, env.healthy);
    let due = env.now + env.config.steal_delay * rank;
    unit.work = Work::Removing { uid, due, running: false, tries: 0, suspect: None, then: None };
}

/// Starts what is due, once nothing of the removed object runs here any more.
pub(super) fn tick(unit: &mut Unit, woken: bool, env: &Env<'_>, effects: &mut Vec<Effect>) {
    match &unit.work {
        Work::Removing { due, running: false, .. } if unit.stopping.is_none() && !env.draining => {
            if env.now < *due {
                wake_at(*due, effects);
            } else {
                start(unit, None, effects);
            }
        }
        Work::Absent { since: Some(since), .. } => {
            let end = *since + env.config.absence_grace;
            if env.now < end {
                wake_at(end, effects);
            } else if woken {
                effects.push(Effect::Reread { after: Duration::ZERO });
            } else {
                // Something else came when it was due: not at once, for a read may be on its way, or have failed.
                wake_at(env.now + env.config.ttl / 3, effects);
            }
        }
        _ => {}
    }
}

fn start(unit: &mut Unit, dead_guard: Option<SessionId>, effects: &mut Vec<Effect>) {
    let Work::Removing { uid, running, .. } = &mut unit.work else { return };
    *running = true;
    effects.push(Effect::Remove { uid: uid.clone(), dead_guard });
}

/// The removal ended, or stopped.
pub(super) fn removed(unit: &mut Unit, removal: Removal, env: &Env<'_>, effects: &mut Vec<Effect>) {
    let Work::Removing { due, running: running @ true, tries, suspect, then, .. } = &mut unit.work else {
        return;
    };
    *running = false;
    if let Some(next) = then.take() {
        return start_removal(unit, next, env, effects);
    }
    if unit.latest.is_some() {
        unit.work = Work::Idle; // re-created meanwhile: what is left is for its deployment to replace
        return;
    }
    match removal {
        Removal::Complete => {
            forget(unit);
            effects.push(Effect::Forget);
        }
        Removal::Guarded(session) => {
            // A dead guard's place is taken; one not heard of is looked at once more after TTL.
            let life = env.sessions.life(&session, env.healthy);
            let again = suspect.as_ref() == Some(&session);
            if life == Life::Dead || (again && !matches!(life, Life::Live(_))) {
                return start(unit, Some(session), effects);
            }
            *suspect = (!matches!(life, Life::Live(_))).then_some(session);
            *due = env.now + env.config.ttl;
        }
        Removal::Failed => {
            *tries = tries.saturating_add(1);
            *due = env.now + backoff::after_failure(*tries, env.entropy);
        }
    }
}

/// A relist no longer has it.
pub(super) fn vanished(unit: &mut Unit, effects: &mut Vec<Effect>) {
    let Some(latest) = &unit.latest else { return };
    if matches!(unit.work, Work::Idle | Work::Verifying { .. }) {
        unit.work = Work::Absent { uid: latest.uid.clone(), since: None };
    }
    effects.push(Effect::Reread { after: Duration::ZERO });
}

/// A live read says 404. Only after the grace period, counted from the first such answer, is it a deletion.
pub(super) fn absent(unit: &mut Unit, env: &Env<'_>, effects: &mut Vec<Effect>) {
    match &mut unit.work {
        Work::Absent { uid, since } => {
            let since = *since.get_or_insert(env.now);
            if env.now >= since + env.config.absence_grace {
                let uid = uid.clone();
                start_removal(unit, uid, env, effects);
            } else {
                effects.push(Effect::Note(Note::AbsenceHeld));
            }
        }
        Work::Idle | Work::Verifying { .. } | Work::Claiming { .. } | Work::Finishing { .. } => {
            unit.work = Work::Idle;
            if let Some(latest) = &unit.latest {
                // It may have been read before the object was made: ask once more.
                unit.work = Work::Absent { uid: latest.uid.clone(), since: Some(env.now) };
                effects.push(Effect::Reread { after: backoff::before_retry(3, env.entropy) });
            }
        }
        Work::Running { .. } => {
            cancel(unit, effects);
            // If this answers the step into a wait, no other answer comes.
            answers::unanswered(unit);
            run::ended_meanwhile(unit, env, effects);
        }
        Work::Removing { .. } => {}
    }
}
