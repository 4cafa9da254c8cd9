// SPDX-License-Identifier: Apache-2.0
//! A replica: the product's own step, with its surroundings made from the world.

use std::time::Duration;

use flotilla::protocol::{
    Config, Effect, Env, Holder, Input, Note, SessionSeen, Sessions, TakeoverReason, Work, step,
};

use super::{
    upstream::QUARANTINE,
    world::{Answer, At, Bug, Change, Event, NOW, Read, Removing, Run, STEP, World, Write},
};

/// The product's settings, in steps of time.
pub fn config() -> Config {
    Config {
        ttl: STEP,
        claim_timeout: STEP * 2,
        claim_margin: STEP,
        steal_delay: Duration::ZERO,
        absence_grace: STEP * 2,
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
        let sessions = self.sessions(index, bug);
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
            free_slots: usize::from(!replica.unit.holds_slot()),
            draining: false,
            entropy,
            config: &config(),
        };
        let effects = step(&mut replica.unit, input, &env);
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
                free_slots: 1,
            };
            sessions.seen(seen, peer.changed - skew);
        }
        sessions
    }

    fn execute(&mut self, index: usize, effect: Effect) {
        self.judge_start(&effect);
        let uid =
            self.replicas[index].unit.latest.as_ref().map(|latest| latest.uid.clone()).unwrap_or_default();
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
                if self.replicas[index].run.is_some() || self.replicas[index].removal.is_some() {
                    self.break_("a removal beside another work of the same replica");
                }
                let removal = Removing { uid, dead_guard, at: At::Gate, guarded_by: None, pending: None };
                self.replicas[index].removal = Some(removal);
            }
            Effect::Relist => self.break_("S9: a restore was seen that never was"),
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
        let write = Write { uid, version: version.parse().expect("a version"), change, answer: None };
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
        *replica = super::world::Replica { alive: false, boots, ..super::world::Replica::new() };
        self.leases.iter_mut().filter(|lease| lease.pod == index).for_each(|lease| lease.steady = 0);
        self.disturbed = true;
    }

    pub fn restart(&mut self, index: usize, bug: Bug) {
        let session = self.replicas[index].session(index);
        self.replicas[index].alive = true;
        self.leases.push(super::world::Lease { session, pod: index, version: 0, steady: 0 });
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
                self.execute(index, Effect::Start { claim, epoch: snapshot.version, taken_over: true });
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
