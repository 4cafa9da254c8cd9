// SPDX-License-Identifier: Apache-2.0
//! A replica: the product's own step, with its surroundings made from the world.

use std::time::Duration;

use flotilla::protocol::{
    Claim, ClaimSlot, ClaimState, Config, Effect, End, Env, Holder, Input, Note, SessionSeen, Sessions,
    Slots, Snapshot, TakeoverReason, Work, step,
};

use super::{
    outside::GRACE,
    upstream::{CLAIM_TIMEOUT, QUARANTINE},
    world::{Answer, At, Bd, Bug, Change, Event, NOW, Read, Removing, Run, STEP, World, Write},
};

/// The product's settings, in steps of time.
pub fn config(steal: u8, patient: bool) -> Config {
    Config {
        ttl: STEP,
        claim_timeout: STEP * u32::from(CLAIM_TIMEOUT),
        claim_margin: STEP,
        steal_delay: STEP * u32::from(steal),
        absence_grace: STEP * u32::from(if patient { GRACE * 2 } else { GRACE }),
        quarantine: STEP * u32::from(QUARANTINE),
    }
}

impl World {
    /// One input for one replica, and its effects.
    pub fn feed(&mut self, index: usize, input: Input, bug: Bug) {
        if bug == Bug::ConflictIsLoss && input == Input::Conflict {
            let replica = &mut self.replicas[index];
            replica.unit.work = Work::Idle;
            replica.unit.pause_until = Some(NOW + STEP);
            return replica.wake = Some(NOW + STEP);
        }
        let input = match input {
            Input::ReadAbsent if bug == Bug::NoGrace => {
                let latest = self.replicas[index].unit.latest.as_ref();
                latest.map_or(Input::ReadAbsent, |latest| Input::Deleted(latest.uid.clone()))
            }
            Input::Seen(seen) if bug == Bug::ClaimUnreadable => Input::Seen(blind(seen)),
            Input::Read(seen) if bug == Bug::ClaimUnreadable => Input::Read(blind(seen)),
            input => input,
        };
        let sessions = self.sessions(index, bug);
        let slots = self.slots(index);
        // Whoever may kill its replica runs beside anything.
        let slots = if bug == Bug::NeverAlone { Slots { taken: 0, reserved: false, ..slots } } else { slots };
        let config = config(if bug == Bug::NoPreference { 0 } else { self.setting.steal }, self.held);
        let replica = &mut self.replicas[index];
        let session = replica.session(index);
        let holder = Holder(format!("pod-{index}"));
        let entropy = (index as u64 + 1) * 1000 + u64::from(replica.boots) * 100 + replica.nonces;
        let env = Env {
            now: NOW,
            healthy: NOW,
            session: &session,
            holder: &holder,
            sessions: &sessions,
            slots,
            draining: replica.draining && bug != Bug::ClaimDraining,
            entropy,
            config: &config,
        };
        let before = (bug == Bug::NeverSteal).then(|| replica.unit.clone());
        let mut effects = step(&mut replica.unit, input, &env);
        if let Some(before) = before
            && effects.iter().any(|effect| matches!(effect, Effect::Note(Note::TakenOver { .. })))
        {
            replica.unit = before;
            effects = vec![Effect::WakeAt(NOW + env.config.ttl)];
        }
        if bug == Bug::EndlessRest {
            let endless = |end: &mut End| {
                if let End::BackOff(claim) = end {
                    claim.retry_in = Some(1_000_000);
                }
            };
            if let Work::Finishing { end, result, .. } = &mut replica.unit.work {
                endless(end);
                endless(result);
            }
            for effect in &mut effects {
                if let Effect::Finish { end, .. } = effect {
                    endless(end);
                }
            }
        }
        if bug == Bug::ForgetRejected {
            if let Work::Finishing { end: End::Permanent(kept), result: End::Permanent(result), .. } =
                &mut replica.unit.work
            {
                (*kept, *result) = (None, None);
            }
            for effect in &mut effects {
                if let Effect::Finish { end: End::Permanent(kept), .. } = effect {
                    *kept = None;
                }
            }
        }
        if bug == Bug::ForgetTakeover {
            if let Work::Finishing { end: End::Replace(next), .. } = &mut replica.unit.work {
                next.unswept = false;
            }
            for effect in &mut effects {
                if let Effect::Finish { end: End::Replace(next), .. } = effect {
                    next.unswept = false;
                }
            }
        }
        if bug == Bug::NoQuarantine {
            let condemned = |claim: &mut Claim| {
                if claim.state == ClaimState::Quarantined {
                    claim.state = ClaimState::Claimed;
                }
            };
            if let Work::Claiming { claim, .. } = &mut replica.unit.work {
                condemned(claim);
            }
            for effect in &mut effects {
                if let Effect::WriteClaim { claim, .. } = effect {
                    condemned(claim);
                }
            }
        }
        (replica.wake, replica.want_slot) = (None, false);
        if matches!(replica.unit.work, Work::Claiming { .. } | Work::Finishing { .. }) {
            replica.nonces +=
                u64::from(format!("{:?}", replica.unit.work).contains(&format!("{entropy:016x}")));
        }
        for effect in effects {
            self.execute(index, effect);
        }
    }

    fn sessions(&self, index: usize, bug: Bug) -> Sessions {
        let mut sessions = Sessions::new(STEP);
        for peer in &self.replicas[index].peers {
            let skew = if bug == Bug::WallClock && peer.pod != index { STEP * 2 } else { Duration::ZERO };
            let seen = SessionSeen {
                session: peer.session.clone(),
                holder: Holder(format!("pod-{}", peer.pod)),
                pod_uid: Some(peer.pod.to_string()),
                // A later session of a pod was written later.
                version: format!("{:04}", (peer.session.0.as_bytes()[2] - b'0') as u32 * 100 + peer.version)
                    .as_str()
                    .into(),
                free_slots: peer.free.into(),
            };
            sessions.seen(seen, peer.changed - skew);
            if peer.gone {
                sessions.gone(&peer.session, peer.changed);
            }
        }
        sessions
    }

    fn execute(&mut self, index: usize, effect: Effect) {
        self.judge_start(&effect);
        let uid =
            self.replicas[index].unit.latest.as_ref().map(|latest| latest.uid.clone()).unwrap_or_default();
        let new = match &effect {
            Effect::WriteClaim { claim, .. } => claim.state == ClaimState::Claimed,
            Effect::Finish { end, .. } => matches!(end, End::Replace(_)),
            _ => false,
        };
        if new && self.replicas[index].draining {
            self.break_("L2: a replica on its way out claims");
        }
        match effect {
            Effect::WriteClaim { version, claim } => self.send(index, &version.0, uid, Change::Claim(claim)),
            Effect::Finish { version, nonce, end } => {
                let release = release(&nonce);
                self.send(index, &version.0, uid, Change::End { nonce, end, release });
            }
            Effect::Reread { .. } => self.replicas[index].ask(),
            Effect::Verify { session, known } => self.replicas[index].verify = Some((session, known)),
            Effect::Start { claim, epoch, .. } => {
                if self.replicas[index].run.is_some() {
                    self.break_("two runs of one unit in one replica");
                }
                let epoch = epoch.0.parse().expect("a version");
                let run = Run { uid, claim, epoch, cancelled: false, at: At::Gate, pending: None };
                self.replicas[index].run = Some(run);
            }
            Effect::Cancel { nonce } => {
                if let Some(run) = self.replicas[index].run.as_mut().filter(|run| run.claim.nonce == nonce) {
                    run.cancelled = true;
                }
            }
            Effect::WakeAt(time) => self.replicas[index].wake = Some(time),
            Effect::WantSlot => self.replicas[index].want_slot = true,
            Effect::Remove { uid, dead_guard } => {
                self.judge_removal(&uid);
                if self.replicas[index].run.is_some() || self.replicas[index].removal.is_some() {
                    self.break_("a removal beside another work of the same replica");
                }
                let removal = Removing { uid, dead_guard, at: At::Gate, guarded_by: None, pending: None };
                self.replicas[index].removal = Some(removal);
            }
            Effect::Relist if !self.restored => self.break_("S9: a restore was seen that never was"),
            Effect::Relist => {
                self.relisting.push(index);
                self.relist(index);
            }
            Effect::Forget => self.replicas[index].unit = Default::default(),
            Effect::Note(note) => self.judge_note(&note),
        }
    }

    fn judge_note(&mut self, note: &Note) {
        let Note::TakenOver { from, reason } = note else { return };
        match reason {
            TakeoverReason::Own => {
                // Allowed for answers that came too late; each must have been caused by a lost one.
                if !self.disturbed {
                    self.break_("S9: an own claim was lost without a fault");
                }
            }
            TakeoverReason::Overdue => self.disturbed = true,
            TakeoverReason::Quiet | TakeoverReason::Dead | TakeoverReason::Unreadable => {
                let steady = self
                    .leases
                    .iter()
                    .find(|lease| lease.session == *from)
                    .is_some_and(|lease| lease.steady > 1);
                if steady {
                    self.break_("S8: a session that renews was taken over");
                }
            }
        }
    }

    fn send(&mut self, index: usize, version: &str, uid: flotilla::protocol::Uid, change: Change) {
        let unknown = version.is_empty();
        if unknown && matches!(&change, Change::Claim(claim) if claim.state == ClaimState::Claimed) {
            return self.break_("S3: a claim against no version");
        }
        // No object has it: the agent refuses it as a conflict.
        let version = if unknown { 0 } else { version.parse().expect("a version") };
        let write = Write { uid, version, change, answer: None };
        if let Some(before) = self.replicas[index].write.replace(write)
            && before.answer.is_none()
        {
            let other = self.replicas[index].write.as_ref().is_some_and(|write| write.uid != before.uid);
            if other {
                self.replicas[index].doubled.push(Answer::Conflict); // its answer comes late
                self.disturbed = true;
            } else if !self.disturbed {
                self.break_("two writes of one unit on their way");
            }
            self.ghosts.push(before);
        }
    }

    /// The process is gone; what it had sent may still arrive.
    pub fn crash(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        self.ghosts.extend(replica.write.take().filter(|write| write.answer.is_none()));
        self.late.extend(replica.run.take().and_then(|run| run.pending));
        self.late.extend(replica.removal.take().and_then(|removal| removal.pending));
        let boots = replica.boots + 1;
        **replica = super::world::Replica { alive: false, boots, ..super::world::Replica::new() };
        self.leases.iter_mut().filter(|lease| lease.pod == index).for_each(|lease| lease.steady = 0);
        self.disturbed = true;
    }

    /// The watch begins with a list, after a restore.
    pub fn relist(&mut self, index: usize) {
        let now = self.bd.as_ref().map_or(Event::Vanished, |bd| Event::Seen(Box::new(bd.snapshot())));
        let replica = &mut self.replicas[index];
        replica.unit.forget_versions();
        replica.events = vec![now];
    }

    /// The watch begins anew with a list, as it does from time to time: what is known of the past stands.
    pub fn resync(&mut self, index: usize) {
        let now = self.bd.as_ref().map_or(Event::Vanished, |bd| Event::Seen(Box::new(bd.snapshot())));
        self.replicas[index].events = vec![now];
    }

    /// The process ends in order: its Lease goes last.
    pub fn exit(&mut self, index: usize) {
        let session = self.replicas[index].session(index);
        let holds =
            |bd: &Bd| bd.slot.claim().is_some_and(|held| held.session == session && held.state.is_open());
        if !self.disturbed && self.bd.as_ref().is_some_and(holds) {
            self.break_("L2: a claim was left behind by a replica that had time");
        }
        let disturbed = std::mem::replace(&mut self.disturbed, true);
        self.crash(index);
        self.disturbed = disturbed;
        self.leases.retain(|lease| lease.session != session);
        for other in 0..self.replicas.len() {
            if self.replicas[other].runs() {
                self.see_leases(other);
            }
        }
    }

    pub fn restart(&mut self, index: usize, bug: Bug) {
        let session = self.replicas[index].session(index);
        self.replicas[index].alive = true;
        self.leases.push(super::world::Lease { session, pod: index, version: 0, steady: 0, free: 1 });
        for other in 0..self.replicas.len() {
            if self.replicas[other].runs() {
                self.see_leases(other);
            }
        }
        if let Some(bd) = &self.bd {
            let snapshot = bd.snapshot();
            let own = snapshot.slot.claim().filter(|claim| claim.holder.0 == format!("pod-{index}")).cloned();
            self.replicas[index].events.push(Event::Seen(Box::new(snapshot.clone())));
            if let Some(claim) = own.filter(|claim| bug == Bug::AdoptAfterRestart && claim.state.is_open()) {
                self.execute(index, Effect::Start { claim, epoch: snapshot.version });
            }
        }
    }

    /// The answer to a status write arrives.
    pub fn reply(&mut self, index: usize, bug: Bug) {
        let Some(answer) = self.replicas[index].write.take().and_then(|write| write.answer) else { return };
        self.feed(index, answer.into(), bug);
    }

    pub fn reply_read(&mut self, index: usize, bug: Bug) {
        let Some(Read { answer: Some(answer), again }) = self.replicas[index].read.take() else { return };
        if again {
            self.replicas[index].ask();
        }
        self.feed(index, answer.map_or(Input::ReadAbsent, Input::Read), bug);
    }

    /// The live look at a session's Lease and then at the object.
    pub fn verify(&mut self, index: usize, bug: Bug) {
        let Some((session, known)) = self.replicas[index].verify.take() else { return };
        if self.outage {
            return self.feed(index, Input::ReadFailed, bug);
        }
        let lease = self.leases.iter().find(|lease| lease.session == session);
        let boot = |lease: &super::world::Lease| (lease.session.0.as_bytes()[2] - b'0') as u32 * 100;
        let quiet = bug == Bug::WallClock
            || lease.is_none_or(|lease| known.0 == format!("{:04}", boot(lease) + lease.version));
        let answer = self.bd.as_ref().map(|bd| Input::Read(bd.snapshot())).unwrap_or(Input::ReadAbsent);
        self.feed(index, answer, bug);
        self.feed(index, Input::Verified { session, quiet }, bug);
    }

    /// The watch delivers its next event.
    pub fn watch(&mut self, index: usize, bug: Bug) {
        let input = match self.replicas[index].events.remove(0) {
            Event::Seen(snapshot) => Input::Seen(*snapshot),
            Event::Deleted(uid) => Input::Deleted(uid),
            Event::Vanished => Input::Vanished,
        };
        self.feed(index, input, bug);
    }
}

impl super::world::Replica {
    /// A live read is asked for; they run one after another.
    fn ask(&mut self) {
        match &mut self.read {
            Some(read) => read.again = true,
            None => self.read = Some(Read { answer: None, again: false }),
        }
    }
}

/// Takes a claim that cannot be read for none.
fn blind(seen: Snapshot) -> Snapshot {
    let slot = match seen.slot {
        ClaimSlot::Unreadable { .. } => ClaimSlot::Empty,
        slot => slot,
    };
    Snapshot { slot, ..seen }
}

/// The release a run names.
pub fn release(nonce: &flotilla::protocol::Nonce) -> String {
    format!("ns/app:{nonce}")
}

impl Answer {
    /// Whether it is worth sending twice.
    pub fn is_news(&self) -> bool {
        !matches!(self, Answer::Absent)
    }
}
