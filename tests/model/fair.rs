// SPDX-License-Identifier: Apache-2.0
//! From here on nothing goes wrong any more: everything must come to rest, as it should be, within a bound (L1–L5).

use flotilla::protocol::{ClaimSlot, Work};

use super::{
    actions::Action,
    world::{Budget, Bug, Thing, World},
};

/// Steps of time in which everything must have come to rest: an absence, a budget and the longest back-off, one after another.
pub const BOUND: u8 = 100;
/// Moments within one step of time; more is a unit that spins.
const MOMENTS: usize = 2000;

impl World {
    /// Why it does not come to rest, or `None`.
    pub fn stuck(&self, bug: Bug) -> Option<String> {
        let mut world = self.clone();
        world.calm();
        for index in 0..world.replicas.len() {
            if !world.replicas[index].alive {
                world.act(Action::Restart(index), bug);
            }
            if world.replicas[index].frozen {
                world.act(Action::Thaw(index), bug);
            }
        }
        for round in 0..BOUND {
            if !world.settle(bug) {
                return Some(format!("spins: {world:?}"));
            }
            if let Some(broken) = world.broken {
                return Some(broken.to_owned());
            }
            if round > 2 && bug != Bug::NoSweep {
                world.sweep();
            }
            if round > 10 && bug != Bug::NoSweep {
                world.collect();
            }
            if round > 3 && world.is_at_rest() {
                return None;
            }
            world.advance();
        }
        Some(format!("does not come to rest: {world:?}"))
    }

    /// People end what people began, and give the word that a restore needs (`flotilla reset`).
    pub fn calm(&mut self) {
        self.budget = Budget::default();
        if let Some(bd) = self.bd.clone().filter(|bd| bd.held) {
            self.store(super::world::Bd { held: false, ..bd });
        }
        if let (true, Some(bd)) = (self.restored, self.bd.clone()) {
            let things = self.down.objects.iter_mut().chain([&mut self.down.record]).flatten();
            for thing in things.filter(|thing| thing.stamp.0 == bd.uid && thing.stamp.1 > bd.version) {
                thing.stamp.1 = bd.version;
                thing.version += 1;
            }
            if self.doubtful {
                self.deployed = 0;
                let deployment = if bd.deployment == "d1" { "d2" } else { "d1" }.into();
                self.store(super::world::Bd { deployment, ..bd });
            }
        }
    }

    /// Everything that can happen without time passing happens; false when it does not end.
    fn settle(&mut self, bug: Bug) -> bool {
        let mut actions = Vec::new();
        for _ in 0..MOMENTS {
            actions.clear();
            self.actions(&mut actions);
            let Some(action) = actions.first() else { return true };
            self.act(*action, bug);
        }
        false
    }

    /// The agent's garbage collection: a release whose object is gone although nobody here ever saw it.
    pub fn collect(&mut self) {
        let known =
            self.replicas.iter().any(|replica| replica.unit.latest.is_some() || replica.removal.is_some());
        if self.bd.is_none() && !known {
            self.down.record = None;
            self.clear();
        }
    }

    pub fn is_at_rest(&self) -> bool {
        let idle = |replica: &super::world::Replica| {
            replica.unit.work == Work::Idle
                && replica.unit.stopping.is_none()
                && replica.run.is_none()
                && replica.removal.is_none()
        };
        self.replicas.iter().all(idle) && self.target_is_right()
    }

    /// Whether upstream says what is true downstream, with no claim left.
    fn target_is_right(&self) -> bool {
        let objects = &self.down.objects;
        let Some(bd) = &self.bd else {
            return self.down.record.is_none() && !objects.iter().flatten().any(|thing| self.is_ours(thing));
        };
        let stands = |object: &Option<Thing>| object.as_ref().is_some_and(|thing| self.is_ours(thing));
        let wanted = self.wanted(&bd.deployment);
        bd.slot == ClaimSlot::Empty
            && bd.applied == bd.deployment
            && objects.iter().enumerate().all(|(index, object)| stands(object) == (index < wanted))
    }

    /// S2: what is said to stand, stands.
    pub fn status_is_true(&self) -> bool {
        let Some(bd) =
            self.bd.as_ref().filter(|bd| bd.slot == ClaimSlot::Empty && bd.applied == bd.deployment)
        else {
            return true;
        };
        if self.doubtful {
            return true;
        }
        let mut wanted = self.down.objects.iter().take(self.wanted(&bd.applied));
        wanted.all(|object| {
            object.as_ref().is_some_and(|thing| thing.stamp.0 == bd.uid && thing.state == bd.applied)
        })
    }
}
