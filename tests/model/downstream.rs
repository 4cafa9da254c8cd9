// SPDX-License-Identifier: Apache-2.0
//! Downstream: what a holder writes, fenced as design section 5 says, and what a removal deletes.
//!
//! Every write is two moments: it is checked, and it lands. Anything may happen between.

use flotilla::protocol::{Input, Outcome, Removal, SessionId, Uid};

use super::{
    replica::release,
    world::{At, Bug, DownWrite, Run, Thing, World},
};

enum Checked {
    Write(DownWrite),
    Skip,
    Fenced,
    /// The claim stands, for what is asked for no more.
    Outdated,
    /// Another unit's.
    Foreign,
    /// Not now: another one is at work.
    Later,
}

impl World {
    fn thing(&mut self, object: Option<usize>) -> &mut Option<Thing> {
        match object {
            Some(index) => &mut self.down.objects[index],
            None => &mut self.down.record,
        }
    }

    fn found(&self, object: Option<usize>) -> &Option<Thing> {
        match object {
            Some(index) => &self.down.objects[index],
            None => &self.down.record,
        }
    }

    /// Lands a write; false is a conflict.
    pub fn land(&mut self, write: &DownWrite, bug: Bug) -> bool {
        let found = self.found(write.object).clone();
        let fits = match (&found, write.found) {
            (None, None) => true,
            (Some(thing), Some((uid, version))) => thing.version == version && thing.uid == uid,
            (None, Some(_)) if bug == Bug::ApplyWithoutUid && write.state.is_some() => {
                self.break_("S7: an apply made anew what had been deleted");
                true
            }
            _ => false,
        };
        if !fits {
            return false;
        }
        if found.as_ref().is_some_and(|thing| thing.stamp.0 == write.by.0 && thing.stamp.1 > write.by.1) {
            self.break_("S1: an older epoch wrote over a newer one");
        }
        self.down.uids += u32::from(found.is_none());
        let uid = found.as_ref().map_or(self.down.uids, |thing| thing.uid);
        let version = found.map_or(1, |thing| thing.version + 1);
        *self.thing(write.object) =
            write.state.clone().map(|state| Thing { uid, version, stamp: write.by.clone(), state });
        true
    }

    fn is_mine(&self, run: &Run) -> bool {
        self.bd.as_ref().is_some_and(|bd| bd.uid == run.uid && bd.slot.is_held_by(&run.claim.nonce))
    }

    fn is_asked_for(&self, run: &Run) -> bool {
        self.bd.as_ref().is_some_and(|bd| bd.deployment == run.claim.deployment)
    }

    /// The check before a write of `state` (`None` deletes).
    fn check(&mut self, run: &Run, object: Option<usize>, state: Option<&str>, bug: Bug) -> Checked {
        let found = self.found(object).clone();
        let mine = found.as_ref().is_some_and(|thing| thing.stamp.0 == run.uid);
        if found.as_ref().is_some_and(|thing| object.is_some() && !self.is_ours(thing)) {
            // Ownership before epochs: stamps of another uid do not compare.
            match state {
                None if bug != Bug::PruneForeign => return Checked::Skip,
                Some(_) if !self.setting.takes && bug != Bug::ApplyForeign => return Checked::Foreign,
                _ => {}
            }
        }
        if let Some(thing) = &found {
            let newer = mine && thing.stamp.1 > run.epoch;
            let ignored = bug == Bug::IgnoreStamp
                || (bug == Bug::StealPending && object.is_none() && thing.state.starts_with("pending"));
            if newer && !ignored {
                return Checked::Fenced;
            }
            let equal = state == Some(thing.state.as_str());
            if mine && equal && (thing.stamp.1 == run.epoch || (object.is_some() && bug == Bug::SkipEqual)) {
                return Checked::Skip;
            }
            if let Some(session) = thing.state.strip_prefix("uninstalling ")
                && ((mine && !self.restored) || self.lives(session))
            {
                return Checked::Later;
            }
        } else if state.is_none() {
            return Checked::Skip;
        }
        if !mine && bug != Bug::CreateUnconfirmed && !self.is_mine(run) {
            return Checked::Fenced;
        }
        let asks = !matches!(bug, Bug::CreateUnconfirmed | Bug::ConfirmNonceOnly);
        if !mine && asks && !self.is_asked_for(run) {
            return Checked::Outdated;
        }
        if found.is_none() && self.removed.contains(&run.uid) && !self.restored {
            self.break_("S7: created after the uninstall");
        }
        let foreign = found.as_ref().is_some_and(|thing| object.is_some() && !self.is_ours(thing));
        if foreign && !self.setting.takes {
            self.break_("S2: another unit's object is taken unasked");
        }
        Checked::Write(DownWrite {
            object,
            found: found.map(|thing| (thing.uid, thing.version)),
            by: (run.uid.clone(), run.epoch),
            state: state.map(str::to_owned),
        })
    }

    fn lives(&self, session: &str) -> bool {
        self.replicas
            .iter()
            .enumerate()
            .any(|(index, replica)| replica.alive && replica.session(index) == SessionId(session.to_owned()))
    }

    /// Whether the run can go on now.
    pub fn can_run(&self, index: usize) -> bool {
        let Some(run) = &self.replicas[index].run else { return false };
        let Some(record) = &self.down.record else { return true };
        let guard = record.state.strip_prefix("uninstalling ");
        let later =
            guard.is_some_and(|session| (record.stamp.0 == run.uid && !self.restored) || self.lives(session));
        run.at != At::Gate || run.cancelled || run.pending.is_some() || !later
    }

    /// The run's next moment.
    pub fn run(&mut self, index: usize, bug: Bug) {
        let Some(mut run) = self.replicas[index].run.clone() else { return };
        if let At::Ended(outcome) = run.at.clone() {
            self.replicas[index].run = None;
            // A deployment under a marked claim ends with that look.
            let holds = self.bd.as_ref().or(self.absent.as_ref());
            let holds = holds.is_some_and(|bd| bd.slot.is_held_by(&run.claim.nonce));
            let swept = outcome == Outcome::Deployed && run.claim.unswept && holds;
            self.unswept &= !swept;
            let (nonce, release) = (run.claim.nonce.clone(), release(&run.claim.nonce));
            return self.feed(index, Input::Done { nonce, outcome, release }, bug);
        }
        if let Some(write) = run.pending.take() {
            if self.land(&write, bug) {
                // Who closes its record has nothing on its way any more, though its claim is gone.
                self.unswept &= run.at != At::Close || self.is_mine(&run);
                run.at = self.after(&run);
            }
            // The next check follows at once: what matters is what happens between a check and its write.
            // Before the end it may have to wait, though.
            let may_wait = run.at == At::Close && self.budget.waits > 0;
            let again = !may_wait && !matches!(run.at, At::Ended(_));
            self.replicas[index].run = Some(run);
            if again {
                self.run(index, bug);
            }
            return;
        } else if run.cancelled {
            run.at = At::Ended(Outcome::Stopped);
        } else {
            let deployment = run.claim.deployment.clone();
            let forgets = matches!(bug, Bug::ForgetPending | Bug::ForgetTakeover | Bug::ForgetRejected);
            let interrupted =
                |record: &Thing| record.stamp.0 == run.uid && record.state.starts_with("pending");
            if run.at == At::Gate && !forgets && self.down.record.as_ref().is_some_and(interrupted) {
                run.claim.unswept = true;
            }
            let checked = match run.at {
                At::Gate => self.check(&run, None, Some(&format!("pending {deployment}")), bug),
                At::Object(object) => {
                    let state = (object < self.wanted(&deployment)).then_some(deployment.as_str());
                    self.check(&run, Some(object), state, bug)
                }
                At::Close => {
                    let own = (run.uid.clone(), run.epoch);
                    let is_own = self.down.record.as_ref().is_some_and(|record| record.stamp == own);
                    let state = format!("deployed {deployment}");
                    if is_own { self.check(&run, None, Some(&state), bug) } else { Checked::Fenced }
                }
                At::Ended(_) => Checked::Skip,
            };
            match checked {
                Checked::Write(write) => run.pending = Some(write),
                Checked::Skip => run.at = self.after(&run),
                Checked::Fenced => {
                    self.disturbed = true;
                    run.at = At::Ended(Outcome::Fenced);
                }
                Checked::Outdated => run.at = At::Ended(Outcome::Stopped),
                Checked::Foreign => {
                    run.at = At::Ended(Outcome::Failed { cause: "not ours".into() });
                }
                Checked::Later => {}
            }
        }
        self.replicas[index].run = Some(run);
    }

    fn after(&self, run: &Run) -> At {
        match run.at {
            At::Gate => At::Object(0),
            At::Object(index) if index + 1 < self.down.objects.len() => At::Object(index + 1),
            At::Object(_) => At::Close,
            At::Close | At::Ended(_) => At::Ended(Outcome::Deployed),
        }
    }

    /// The removal's next moment.
    pub fn remove(&mut self, index: usize, bug: Bug) {
        let session = self.replicas[index].session(index);
        let Some(mut removal) = self.replicas[index].removal.clone() else { return };
        let guard = format!("uninstalling {session}");
        let ours = |thing: &Thing, uid: &Uid| thing.stamp.0 == *uid;
        if let Some(write) = removal.pending.take() {
            if self.land(&write, bug) {
                removal.at = match removal.at {
                    At::Gate => At::Object(0),
                    At::Object(object) if object + 1 < self.down.objects.len() => At::Object(object + 1),
                    At::Object(_) => At::Close,
                    _ => At::Ended(Outcome::Deployed),
                };
            }
            self.replicas[index].removal = Some(removal);
            return;
        }
        if removal.at == At::Gate && self.bd.as_ref().is_some_and(|bd| bd.uid == removal.uid) {
            // The live look before anything is touched: it is there.
            self.replicas[index].removal = None;
            return self.feed(index, Input::Removed(Removal::Failed), bug);
        }
        let object = match removal.at {
            At::Gate | At::Close => None,
            At::Object(object) => Some(object),
            At::Ended(_) => {
                self.replicas[index].removal = None;
                if !self.removed.contains(&removal.uid) {
                    self.removed.push(removal.uid);
                }
                return self.feed(index, Input::Removed(Removal::Complete), bug);
            }
        };
        let found = self.found(object).clone().filter(|thing| ours(thing, &removal.uid));
        let other =
            found.as_ref().and_then(|thing| thing.state.strip_prefix("uninstalling ")).map(SessionId::from);
        if let Some(other) =
            other.filter(|other| *other != session && removal.dead_guard.as_ref() != Some(other))
        {
            self.replicas[index].removal = None;
            return self.feed(index, Input::Removed(Removal::Guarded(other)), bug);
        }
        match found {
            Some(thing) => {
                let state = (removal.at == At::Gate).then_some(guard);
                let by = thing.stamp.clone();
                removal.pending =
                    Some(DownWrite { object, found: Some((thing.uid, thing.version)), by, state });
            }
            None => {
                removal.at = match removal.at {
                    At::Gate => At::Object(0),
                    At::Object(object) if object + 1 < self.down.objects.len() => At::Object(object + 1),
                    At::Object(_) => At::Close,
                    _ => At::Ended(Outcome::Deployed),
                }
            }
        }
        self.replicas[index].removal = Some(removal);
    }

    /// The later look for strays: what a uid that is gone, or an older epoch than the record's, left behind.
    pub fn sweep(&mut self) {
        let Some(bd) = &self.bd else {
            self.clear();
            if self.down.record.as_ref().is_some_and(|record| self.removed.contains(&record.stamp.0)) {
                self.down.record = None;
            }
            return;
        };
        let wanted = self.wanted(&bd.applied.clone());
        let uid = bd.uid.clone();
        for index in 0..self.down.objects.len() {
            let stray = |thing: &Thing| self.is_ours(thing) && (index >= wanted || thing.stamp.0 != uid);
            if self.down.objects[index].as_ref().is_some_and(stray) {
                self.down.objects[index] = None;
            }
        }
    }

    /// Nothing of this unit is left.
    pub fn clear(&mut self) {
        let unit = self.setting.unit;
        let ours = |thing: &Thing| thing.stamp.0.0.starts_with(unit);
        self.down.objects.iter_mut().for_each(|object| {
            object.take_if(|thing| ours(thing));
        });
    }
}
