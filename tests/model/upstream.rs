// SPDX-License-Identifier: Apache-2.0
//! The upstream API server, and what may be said about every status write that it takes.

use flotilla::protocol::{Claim, ClaimSlot, ClaimState, Effect, End, Nonce};

use super::world::{Answer, Bd, Change, Event, World, Write};

/// How long a quarantine lasts here, in steps of time.
pub const QUARANTINE: u8 = 2;
/// How long a claim that cannot be read is respected here, in steps of time.
pub const CLAIM_TIMEOUT: u8 = 2;

impl World {
    /// Takes or refuses a status write.
    pub fn serve(&mut self, write: &Write) -> Answer {
        let Some(bd) = self.bd.clone() else { return Answer::Absent };
        if bd.version != write.version {
            return Answer::Conflict;
        }
        if bd.uid != write.uid {
            self.break_("S3: a write for one uid reached another");
        }
        let mut next = bd.clone();
        match &write.change {
            Change::Claim(claim) => {
                self.judge_claim(&bd, claim, false);
                if !bd.slot.is_held_by(&claim.nonce) {
                    self.lost_holder(&bd);
                }
                next.slot = ClaimSlot::Claim(claim.clone());
            }
            Change::End { nonce, end, release } => {
                self.judge_end(&bd, nonce, end);
                match end {
                    End::Deployed => {
                        next.slot = ClaimSlot::Empty;
                        (next.applied, next.release) = (bd.deployment.clone(), release.clone());
                        next.rejected = false;
                        self.doubtful = false;
                        self.deployed += 1;
                        if self.deployed > 1 && !self.disturbed {
                            self.break_("S9: deployed twice without a fault");
                        }
                    }
                    End::Permanent(claim) => {
                        next.slot = claim.clone().map_or(ClaimSlot::Empty, ClaimSlot::Claim);
                        next.applied.clone_from(&bd.deployment);
                        next.rejected = true;
                    }
                    End::BackOff(claim) => next.slot = ClaimSlot::Claim(claim.clone()),
                    End::Release(claim) => {
                        next.slot = claim.clone().map_or(ClaimSlot::Empty, ClaimSlot::Claim)
                    }
                    End::Replace(claim) => {
                        self.judge_claim(&Bd { slot: ClaimSlot::Empty, ..bd }, claim, true);
                        next.slot = ClaimSlot::Claim(claim.clone());
                    }
                }
            }
        }
        self.store(next);
        Answer::Written(Box::new(self.bd.as_ref().expect("just stored").snapshot()))
    }

    /// Stores the object at a new version and tells every watch.
    pub fn store(&mut self, mut bd: Bd) {
        self.version += self.setting.stride;
        bd.version = self.version;
        let same = self.bd.as_ref().is_some_and(|before| before.slot.is_same(&bd.slot));
        if !same {
            self.slot_age = 0;
        }
        let event = Event::Seen(Box::new(bd.snapshot()));
        self.bd = Some(bd);
        self.tell(event);
    }

    pub fn tell(&mut self, event: Event) {
        let lag = usize::from(self.budget.lag);
        for replica in self.replicas.iter_mut().filter(|replica| replica.alive) {
            replica.events.push(event.clone());
            // States in between may be skipped, as a reflector does; deletions may not.
            let seen: Vec<usize> = replica
                .events
                .iter()
                .enumerate()
                .filter(|(_, event)| matches!(event, Event::Seen(_)))
                .map(|(at, _)| at)
                .collect();
            if seen.len() > 1 + lag {
                replica.events.remove(seen[lag]);
            }
        }
    }

    fn judge_claim(&mut self, bd: &Bd, claim: &Claim, replaces: bool) {
        let entering = bd.slot.is_held_by(&claim.nonce);
        if bd.held && !entering {
            self.break_("S10: claimed while held");
        }
        if claim.deployment != bd.deployment {
            self.break_("S3: claimed for another deployment id");
        }
        // What came back after its deletion was seen is deployed anew, whatever its status says.
        let up_to_date = bd.applied == bd.deployment && !bd.slot.asks(&bd.deployment);
        if up_to_date && !replaces && !self.restored {
            self.break_("S2: claimed though it is up to date");
        }
        if matches!(bd.slot, ClaimSlot::Unreadable { .. }) && self.slot_age < CLAIM_TIMEOUT {
            self.break_("S3: a claim that cannot be read was not respected");
        }
        let others = self.setting.first.is_some_and(|first| claim.holder.0 != format!("pod-{first}"));
        if others {
            self.break_("L5: claimed out of turn");
        }
        let opens = claim.state == ClaimState::Claimed;
        // One that another program overwrote before it was known to stand may be sent again; nothing was done under it.
        self.landed.retain(|(nonce, _)| *nonce != claim.nonce || !opens || self.started.contains(nonce));
        if opens && self.landed.iter().any(|(nonce, _)| *nonce == claim.nonce) {
            self.break_("S3: a nonce was claimed twice");
        }
        if opens {
            self.landed.push((claim.nonce.clone(), self.version + self.setting.stride));
        }
        let Some(before) = bd.slot.claim().filter(|before| before.deployment == claim.deployment) else {
            return;
        };
        let same = before.nonce == claim.nonce;
        if claim.lost < before.lost
            || (if same { claim.attempt != before.attempt } else { claim.attempt <= before.attempt })
        {
            self.break_("S5: attempts fell");
        }
        match before.state {
            ClaimState::Quarantined if self.slot_age < QUARANTINE => {
                self.break_("S6: claimed before the quarantine was over");
            }
            ClaimState::BackingOff if self.slot_age == 0 => {
                self.break_("S5: claimed before the rest was over")
            }
            _ => {}
        }
    }

    /// What stands in the slot is taken over, or overwritten.
    pub fn lost_holder(&mut self, bd: &Bd) {
        let open = bd.slot.claim().filter(|claim| claim.state.is_open());
        self.unswept |= open.is_some_and(|claim| self.started.contains(&claim.nonce));
    }

    fn judge_end(&mut self, bd: &Bd, nonce: &Nonce, end: &End) {
        if !bd.slot.is_held_by(nonce) {
            self.break_("S4: a result without the claim");
        }
        let held = bd.slot.claim().expect("held");
        let same = held.deployment == bd.deployment;
        match end {
            End::Deployed if self.unswept => {
                self.break_("S2: nobody looked for what a lost holder left behind");
            }
            End::Permanent(None) if self.unswept => {
                self.break_("S2: the mark of what a lost holder left behind is gone");
            }
            End::Deployed | End::Permanent(_) | End::BackOff(_) if !same => {
                self.break_("S4: the result of another deployment id");
            }
            End::Release(None) => self.break_("S2: the mark of unfinished work is gone"),
            _ => {}
        }
    }

    /// A deployment starts: its epoch lies between its own claim and the next one.
    pub fn judge_start(&mut self, effect: &Effect) {
        let Effect::Start { claim, epoch, .. } = effect else { return };
        let epoch: u32 = epoch.0.parse().expect("a version");
        if self.started.contains(&claim.nonce) {
            self.break_("S3: a claim was started twice");
        }
        self.started.push(claim.nonce.clone());
        let at = self.landed.iter().position(|(nonce, _)| *nonce == claim.nonce);
        let Some(at) = at else {
            // Of a future that was lost, nothing is known here.
            return if !self.restored {
                self.break_("S3: started without a claim")
            };
        };
        let next = self.landed.get(at + 1).map_or(u32::MAX, |(_, version)| *version);
        if epoch < self.landed[at].1 || epoch >= next {
            self.break_("S3: epochs do not rise with the claims");
        }
    }
}
