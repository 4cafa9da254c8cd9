// SPDX-License-Identifier: Apache-2.0
//! What people and other controllers do upstream, and what a backup does.

use flotilla::protocol::{ClaimSlot, Uid};

/// Steps of time for which an absence is no order; twice as long where much is missing at once.
pub const GRACE: u8 = 2;

use super::{
    actions::Action,
    world::{Bd, Event, World},
};

impl World {
    /// What people and other controllers do.
    pub fn outside(&mut self, action: Action) {
        if action == Action::Recreate {
            self.budget.recreations -= 1;
            self.deployed = 0;
            let uid = format!("{}2", self.setting.unit);
            return self.create(&uid);
        }
        let Some(mut bd) = self.bd.clone() else { return };
        match action {
            Action::Unrelated => self.budget.unrelated -= 1,
            Action::Spec => {
                self.budget.spec -= 1;
                self.deployed = 0;
                bd.deployment = if bd.deployment == "d1" { "d2" } else { "d1" }.into();
            }
            Action::Pause => {
                self.budget.pauses -= 1;
                bd.held = true;
            }
            Action::Resume => bd.held = false,
            Action::Strange => {
                self.budget.strange -= 1;
                self.disturbed = true;
                self.lost_holder(&bd);
                // Over a claim of ours it must not just end: the mark of what is half done would be gone.
                let over = if bd.slot == ClaimSlot::Empty { "" } else { " over" };
                bd.slot =
                    ClaimSlot::Unreadable { text: format!("True Claimed v2 {}{over}", self.budget.strange) };
            }
            Action::StrangeEnds => {
                self.budget.strange -= 1;
                bd.slot = ClaimSlot::Empty;
            }
            Action::Wipe => {
                self.budget.wipes -= 1;
                self.disturbed = true;
                // A run that has closed its record has nothing on its way.
                if self.down.record.as_ref().is_some_and(|record| record.state.starts_with("pending")) {
                    self.lost_holder(&bd);
                }
                bd.slot = ClaimSlot::Empty;
            }
            Action::Delete => {
                self.budget.deletions -= 1;
                self.disturbed = true; // a watch that lags shows it once more
                self.bd = None;
                self.version += self.setting.stride;
                return self.tell(Event::Deleted(bd.uid));
            }
            _ => {}
        }
        self.store(bd);
    }

    /// Upstream is as it was saved; what came later never was. New versions are none that were used before: one that
    /// is used twice, with two contents, cannot be told from itself (`docs/limits.md`).
    pub fn restore(&mut self) {
        let Some(bd) = self.saved.clone() else { return };
        self.budget.restores -= 1;
        (self.disturbed, self.restored, self.doubtful) = (true, true, true);
        self.removed.retain(|uid| *uid != bd.uid);
        self.landed.clear();
        self.unswept = false;
        self.ghosts.clear();
        self.deployed = 0;
        self.version = bd.version + 1;
        self.slot_age = 9; // whoever rests, has rested: nobody's clock goes back
        let event = Event::Seen(Box::new(bd.snapshot()));
        self.bd = Some(bd);
        self.replicas.iter_mut().for_each(|replica| replica.events.clear());
        self.tell(event);
    }

    /// It is missing from lists and reads, and nobody deleted it. `all`: with everything else.
    pub fn lose(&mut self, all: bool) {
        self.disturbed = true;
        (self.absent, self.absent_age, self.mass) = (self.bd.take(), 0, all);
        for replica in self.replicas.iter_mut().filter(|replica| replica.alive) {
            replica.events.retain(|event| matches!(event, Event::Deleted(_)));
        }
        self.tell(Event::Vanished);
    }

    /// It is back, as it was.
    pub fn find(&mut self) {
        self.bd = self.absent.take();
        self.absent_age = self.absent_age.max(1); // once is enough: one that nobody saw end does not end
        (self.mass, self.held) = (false, false);
        if let Some(bd) = &self.bd {
            let event = Event::Seen(Box::new(bd.snapshot()));
            self.tell(event);
        }
    }

    /// Steps for which an absence is no order, by design.
    pub fn grace(&self) -> u8 {
        if self.mass { GRACE * 2 } else { GRACE }
    }

    /// A removal begins.
    pub fn judge_removal(&mut self, uid: &Uid) {
        let is = |bd: &Option<Bd>| bd.as_ref().is_some_and(|bd| bd.uid == *uid);
        if is(&self.absent) && self.absent_age < self.grace() {
            self.break_("S7: what was absent for less than its grace is removed");
        }
    }

    /// Makes the BundleDeployment.
    pub fn create(&mut self, uid: &str) {
        self.unswept = false;
        self.store(Bd {
            uid: Uid(uid.to_owned()),
            version: 0,
            deployment: self.setting.born.into(),
            applied: String::new(),
            release: String::new(),
            held: false,
            rejected: false,
            slot: ClaimSlot::Empty,
        });
    }
}
