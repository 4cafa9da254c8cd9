// SPDX-License-Identifier: Apache-2.0
//! What can happen next, and that it happens.

use std::time::Duration;

use flotilla::protocol::{
    ClaimSlot, Epoch, Input, Outcome, Work,
    reaper::{Limits, Sight, Verdict, Watched, judge, see},
};

use super::{
    replica::config,
    upstream::CLAIM_TIMEOUT,
    world::{At, Bd, Bug, Event, NOW, World},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Watch(usize),
    Serve(usize),
    Reply(usize),
    /// The request never arrives, and the sender is told nothing.
    LoseRequest(usize),
    /// The request was served, and the sender is told nothing.
    LoseReply(usize),
    /// The sender is told nothing, and the request arrives later.
    DelayRequest(usize),
    DoubleReply(usize),
    Doubled(usize),
    Read(usize),
    ServeRead(usize),
    ReplyRead(usize),
    FailRead(usize),
    Verify(usize),
    Tick(usize),
    Run(usize),
    Fail(usize),
    Reject(usize),
    Wait(usize),
    Remove(usize),
    Crash(usize),
    Restart(usize),
    Freeze(usize),
    Thaw(usize),
    Advance,
    Unrelated,
    Spec,
    Pause,
    Resume,
    Delete,
    Recreate,
    Ghost(usize),
    Late(usize),
    ReaperLook(usize),
    ReaperAct(usize),
    /// SIGTERM.
    Drain(usize),
    /// The grace period is over.
    Stop(usize),
    /// Nothing is under way any more: the process ends.
    Exit(usize),
    /// Another program claims, in words that nobody here reads, and ends that claim.
    Strange,
    StrangeEnds,
    /// Somebody puts an old status back, from before the claim.
    Wipe,
    Save,
    Restore,
    /// The downstream API server goes away, and comes back.
    Outage,
    OutageEnds,
    /// One replica's list lacks the object, which is there.
    Miss(usize),
    /// The object is missing without a deletion, and is back.
    Lose,
    Find,
}

impl Action {
    /// Whether it befalls a replica, or everything, whatever the unit.
    pub fn is_global(self) -> bool {
        use Action::*;
        matches!(
            self,
            Crash(_)
                | Restart(_)
                | Freeze(_)
                | Thaw(_)
                | Drain(_)
                | Stop(_)
                | Exit(_)
                | Advance
                | Outage
                | OutageEnds
        )
    }
}

impl World {
    /// Everything that can happen next.
    pub fn actions(&self, actions: &mut Vec<Action>) {
        use Action::*;
        if self.broken.is_some() {
            return;
        }
        let budget = &self.budget;
        for index in 0..self.replicas.len() {
            self.replica_actions(index, actions);
        }
        actions.extend((0..self.ghosts.len()).map(Ghost));
        actions.extend((0..self.late.len()).map(Late));
        if budget.time > 0 {
            actions.push(Advance);
        }
        if self.outage {
            actions.push(OutageEnds);
        } else if budget.outages > 0 {
            actions.push(Outage);
        }
        if self.absent.is_some() && self.absent_age < self.grace() && !self.mass {
            actions.push(Find);
        }
        if let Some(bd) = &self.bd {
            if budget.absences > 0 && self.absent_age == 0 {
                actions.push(Lose);
            }
            if budget.unrelated > 0 {
                actions.push(Unrelated);
            }
            if budget.spec > 0 {
                actions.push(Spec);
            }
            if bd.held {
                actions.push(Resume);
            } else if budget.pauses > 0 {
                actions.push(Pause);
            }
            if budget.deletions > 0 {
                actions.push(Delete);
            }
            if budget.strange > 0 {
                match &bd.slot {
                    ClaimSlot::Unreadable { text } if text.ends_with("over") => {}
                    ClaimSlot::Unreadable { .. } => actions.push(StrangeEnds),
                    ClaimSlot::Empty | ClaimSlot::Claim(_) => actions.push(Strange),
                }
            }
            if budget.wipes > 0 && bd.slot.claim().is_some_and(|claim| claim.state.is_open()) {
                actions.push(Wipe);
            }
            if budget.restores > 0 && self.saved.is_none() {
                actions.push(Save);
            }
        } else if budget.recreations > 0 && self.absent.is_none() {
            actions.push(Recreate);
        }
        if budget.restores > 0 && self.saved.is_some() {
            actions.push(Restore);
        }
        if let Some(bd) = &self.bd {
            let version = Epoch(bd.version.to_string());
            for (index, watched) in self.reapers.iter().enumerate() {
                if watched.as_ref().map_or(bd.slot != ClaimSlot::Empty, |seen| seen.version != version) {
                    actions.push(ReaperLook(index));
                }
                let due = |seen: &Watched| !matches!(judge(seen, &limits(), NOW), Verdict::Leave(_));
                if watched.as_ref().is_some_and(due) {
                    actions.push(ReaperAct(index));
                }
            }
        }
    }

    fn replica_actions(&self, index: usize, actions: &mut Vec<Action>) {
        use Action::*;
        let (replica, budget) = (&self.replicas[index], &self.budget);
        if let Some(write) = &replica.write
            && write.answer.is_none()
        {
            actions.push(Serve(index));
            if budget.lost > 0 && replica.runs() {
                actions.extend([LoseRequest(index), DelayRequest(index)]);
            }
        }
        if replica.read.as_ref().is_some_and(|read| read.answer.is_none()) {
            if replica.runs() {
                actions.push(Read(index));
            }
            if budget.slow_reads > 0 {
                actions.push(ServeRead(index));
            }
        }
        if !replica.alive {
            return if !self.outage {
                actions.push(Restart(index))
            };
        }
        if replica.frozen {
            return actions.push(Thaw(index));
        }
        if let Some(answer) = replica.write.as_ref().and_then(|write| write.answer.as_ref()) {
            actions.push(Reply(index));
            if budget.lost > 0 {
                actions.push(LoseReply(index));
            }
            if budget.doubled > 0 && answer.is_news() {
                actions.push(DoubleReply(index));
            }
        }
        if !replica.events.is_empty() {
            actions.push(Watch(index));
        }
        if budget.absences > 0 && self.bd.is_some() {
            actions.push(Miss(index));
        }
        if !replica.doubled.is_empty() {
            actions.push(Doubled(index));
        }
        if replica.read.as_ref().is_some_and(|read| read.answer.is_some()) {
            actions.push(ReplyRead(index));
            if budget.lost > 0 {
                actions.push(FailRead(index));
            }
        }
        if replica.verify.is_some() {
            actions.push(Verify(index));
        }
        if self.now_is_late(index)
            || (replica.want_slot && self.slots(index).admit(replica.unit.alone.is_some()))
        {
            actions.push(Tick(index));
        }
        let run = replica.run.as_ref();
        if let Some(run) = run.filter(|run| !self.outage || matches!(run.at, At::Ended(_))) {
            if self.can_run(index) {
                actions.push(Run(index));
            }
            if budget.failures > 0 && run.pending.is_none() && !matches!(run.at, At::Ended(_)) {
                actions.push(Fail(index));
            }
            if budget.rejections > 0 && run.pending.is_none() && !matches!(run.at, At::Ended(_)) {
                actions.push(Reject(index));
            }
            if budget.waits > 0 && run.at == At::Close && run.pending.is_none() {
                actions.push(Wait(index));
            }
        }
        if replica.removal.is_some() && !self.outage {
            actions.push(Remove(index));
        }
        if replica.draining {
            if matches!(&replica.unit.work, Work::Running { cancelled: false, .. }) {
                actions.push(Stop(index));
            }
            if !replica.unit.is_busy() {
                actions.push(Exit(index));
            }
        } else if budget.drains > 0 {
            actions.push(Drain(index));
        }
        if budget.crashes > 0 {
            actions.push(Crash(index));
        }
        if budget.freezes > 0 && self.setting.freezes.is_none_or(|only| only == index) {
            actions.push(Freeze(index));
        }
    }

    /// It happens.
    pub fn act(&mut self, action: Action, bug: Bug) {
        match action {
            Action::Watch(index) => self.watch(index, bug),
            Action::Serve(index) => {
                let write = self.replicas[index].write.clone().expect("a request");
                let answer = self.serve(&write);
                self.replicas[index].write.as_mut().expect("a request").answer = Some(answer);
            }
            Action::Reply(index) => self.reply(index, bug),
            Action::LoseRequest(index) | Action::LoseReply(index) => {
                self.replicas[index].write = None;
                self.unclear(index, bug);
            }
            Action::DelayRequest(index) => {
                let write = self.replicas[index].write.take();
                self.ghosts.extend(write);
                self.unclear(index, bug);
            }
            Action::DoubleReply(index) => {
                self.budget.doubled -= 1;
                self.disturbed = true;
                let answer = self.replicas[index].write.as_ref().and_then(|write| write.answer.clone());
                self.replicas[index].doubled.extend(answer);
                self.reply(index, bug);
            }
            Action::Doubled(index) => {
                let answer = self.replicas[index].doubled.remove(0);
                self.feed(index, answer.into(), bug);
            }
            Action::Read(index) | Action::ServeRead(index) => {
                let answer = self.bd.as_ref().map(Bd::snapshot);
                self.replicas[index].read.as_mut().expect("a read").answer = Some(answer);
                if let Action::Read(_) = action {
                    self.reply_read(index, bug);
                } else {
                    self.budget.slow_reads -= 1;
                }
            }
            Action::ReplyRead(index) => self.reply_read(index, bug),
            Action::FailRead(index) => {
                self.budget.lost -= 1;
                self.replicas[index].read = None;
                self.feed(index, Input::ReadFailed, bug);
            }
            Action::Verify(index) => self.verify(index, bug),
            Action::Tick(index) => {
                self.replicas[index].wake = None;
                self.feed(index, Input::Tick, bug);
            }
            Action::Run(index) => self.run(index, bug),
            Action::Fail(index) => {
                self.budget.failures -= 1;
                let run = self.replicas[index].run.as_mut().expect("a run");
                run.at = At::Ended(Outcome::Failed { cause: "quota".into() });
            }
            Action::Reject(index) => {
                self.budget.rejections -= 1;
                self.replicas[index].run.as_mut().expect("a run").at = At::Ended(Outcome::Permanent);
            }
            Action::Wait(index) => {
                self.budget.waits -= 1;
                let nonce = self.replicas[index].run.as_ref().expect("a run").claim.nonce.clone();
                self.feed(index, Input::Waiting { nonce, seconds: 15 }, bug);
            }
            Action::Remove(index) => self.remove(index, bug),
            Action::Crash(index) => {
                self.budget.crashes -= 1;
                self.crash(index);
            }
            Action::Restart(index) => self.restart(index, bug),
            Action::Freeze(index) => {
                self.budget.freezes -= 1;
                self.disturbed = true;
                self.replicas[index].frozen = true;
                self.leases.iter_mut().filter(|lease| lease.pod == index).for_each(|lease| lease.steady = 0);
            }
            Action::Thaw(index) => {
                self.replicas[index].frozen = false;
                self.see_leases(index);
            }
            Action::Advance => {
                self.budget.time -= 1;
                self.advance(bug);
            }
            Action::Ghost(index) => {
                let write = self.ghosts.remove(index);
                self.serve(&write);
            }
            Action::Late(index) => {
                let write = self.late.remove(index);
                self.land(&write, bug);
            }
            Action::ReaperLook(index) => {
                let bd = self.bd.as_ref().expect("an object");
                let (version, slot) = (Epoch(bd.version.to_string()), bd.slot.clone());
                let watched = self.reapers[index].take();
                // An event of the watch; a list, where events are not believed.
                let sight = if bug == Bug::ReaperNeverBack { Sight::Event } else { Sight::Read };
                self.reapers[index] = see(watched, sight, version, slot, NOW);
            }
            Action::ReaperAct(index) => self.reap(index, bug),
            Action::Drain(index) => {
                self.budget.drains -= 1;
                let replica = &mut self.replicas[index];
                replica.draining = true;
                if matches!(replica.unit.work, Work::Running { waiting: true, .. }) {
                    self.feed(index, Input::Stop, bug);
                }
                if bug == Bug::ExitHolding {
                    self.exit(index);
                }
            }
            Action::Stop(index) => self.feed(index, Input::Stop, bug),
            Action::Exit(index) => self.exit(index),
            Action::Outage => {
                self.budget.outages -= 1;
                self.disturbed = true;
                self.lose_downstream();
            }
            Action::OutageEnds => self.outage = false,
            Action::Miss(index) => {
                self.budget.absences -= 1;
                self.replicas[index].events.push(Event::Vanished);
            }
            Action::Lose => {
                self.budget.absences -= 1;
                self.lose(false);
            }
            Action::Find => self.find(),
            Action::Save => self.saved = self.bd.clone(),
            Action::Restore => self.restore(),
            Action::Unrelated
            | Action::Strange
            | Action::StrangeEnds
            | Action::Wipe
            | Action::Spec
            | Action::Pause
            | Action::Resume
            | Action::Delete
            | Action::Recreate => self.outside(action),
        }
    }

    fn unclear(&mut self, index: usize, bug: Bug) {
        self.budget.lost -= 1;
        self.disturbed = true;
        self.feed(index, Input::Unclear, bug);
    }

    fn reap(&mut self, index: usize, bug: Bug) {
        let Some(watched) = self.reapers[index].take() else { return };
        let slot = match judge(&watched, &limits(), NOW) {
            Verdict::Leave(_) => return,
            Verdict::Replace(_) if bug == Bug::ReaperClears && watched.slot.claim().is_none() => {
                ClaimSlot::Empty
            }
            Verdict::Replace(claim) => ClaimSlot::Claim(claim),
        };
        let fits = |bd: &&Bd| bd.version.to_string() == watched.version.0 || bug == Bug::ReaperBlind;
        if let Some(bd) = self.bd.as_ref().filter(fits).cloned() {
            let attempt = |slot: &ClaimSlot| slot.claim().map_or(0, |claim| claim.attempt);
            if attempt(&slot) < attempt(&bd.slot) {
                self.break_("S5: a reaper's write let attempts fall");
            }
            if matches!(bd.slot, ClaimSlot::Unreadable { .. }) && self.slot_age < CLAIM_TIMEOUT {
                self.break_("S3: a claim that cannot be read was not respected");
            }
            self.disturbed = true;
            self.lost_holder(&bd);
            self.store(Bd { slot, ..bd });
        }
    }
}

fn limits() -> Limits {
    let config = config(0, false);
    Limits { claim_timeout: config.claim_timeout, margin: config.claim_margin + Duration::from_secs(1) }
}
