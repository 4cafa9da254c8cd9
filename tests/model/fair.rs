// SPDX-License-Identifier: Apache-2.0
//! From here on nothing goes wrong any more: everything must come to rest, as it should be, within a bound (L1–L5).

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{Mutex, PoisonError},
};

use flotilla::protocol::{ClaimSlot, Work};

use super::{
    actions::Action,
    search::Space,
    shared::{Shared, Words},
    world::{Budget, Bug, Thing, World},
};

/// Steps of time in which everything must have come to rest: an absence, a budget and the longest back-off, one after another.
pub const BOUND: u8 = 100;
/// Moments within one step of time; more is a unit that spins.
const MOMENTS: usize = 2000;

/// One moment without faults.
pub enum Moment {
    /// Something happened.
    Moved,
    /// Nothing can happen any more, and everything is as it should be.
    Rest,
    /// An invariant was broken.
    Broken(&'static str),
}

/// Rounds that differ by more than time: what is swept and collected only later.
const ROUNDS: u8 = 11;

/// How many steps of time it takes from where to rest. From one state on everything is determined, so what many states
/// have in common is gone through once, and every state of a search can be looked at.
#[derive(Default)]
pub struct Rests(Mutex<HashMap<u64, u8, BuildHasherDefault<Words>>>);

impl Rests {
    /// Why `state` does not come to rest, or `None`.
    pub fn stuck<S: Space>(&self, state: &S, bug: Bug) -> Option<String> {
        let mut space = state.calmed(bug);
        let (mut round, mut moments) = (0u8, 0);
        let mut way: Vec<(u64, u8)> = Vec::new();
        let end = loop {
            let mut hasher = Words(0);
            (&space, round.min(ROUNDS)).hash(&mut hasher);
            let here = hasher.finish();
            if let Some(rest) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&here) {
                break round.saturating_add(*rest);
            }
            way.push((here, round));
            let before = round;
            match space.moment(&mut round, bug) {
                Moment::Moved => {}
                Moment::Rest => break round,
                Moment::Broken(why) => return Some(why.to_owned()),
            }
            moments = if round == before { moments + 1 } else { 0 };
            if moments > MOMENTS {
                return Some(format!("spins: {space:?}"));
            }
            if round >= BOUND {
                return Some(format!("does not come to rest: {space:?}"));
            }
        };
        let mut rests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rests.extend(way.into_iter().map(|(here, at)| (here, end - at)));
        (end >= BOUND).then(|| format!("comes to rest after {end} steps only: {state:?}"))
    }
}

impl World {
    /// From here on nothing goes wrong.
    pub fn without_faults(&self, bug: Bug) -> Self {
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
        world
    }

    /// What can happen now happens; if nothing can, time passes.
    pub fn go_on(&mut self, round: &mut u8, bug: Bug) -> Moment {
        let mut actions = Vec::new();
        self.actions(&mut actions);
        actions.retain(|action| *action != Action::Find); // what is missing stays so
        if let Some(action) = actions.first() {
            self.act(*action, bug);
        } else if self.broken.is_none() {
            if *round > 2 && bug != Bug::NoSweep {
                self.sweep();
            }
            if *round > 10 && bug != Bug::NoSweep {
                self.collect();
            }
            if *round > 3 && self.is_at_rest() {
                return Moment::Rest;
            }
            self.advance(bug);
            *round += 1;
        }
        self.broken.map_or(Moment::Moved, Moment::Broken)
    }

    /// People end what people began, and give the word that a restore needs (`flotilla reset`).
    pub fn calm(&mut self) {
        self.budget = Budget::default();
        self.outage = false;
        if let Some(bd) = self.bd.clone().filter(|bd| bd.held) {
            self.store(super::world::Bd { held: false, ..bd });
        }
        if let (true, Some(bd)) = (self.restored, self.bd.clone()) {
            let down = &mut *self.down;
            let things = down.objects.iter_mut().chain([&mut down.record]).flatten();
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
        let idle = |replica: &Shared<super::world::Replica>| {
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
        if bd.rejected && bd.applied == bd.deployment {
            return !bd.slot.asks(&bd.deployment); // the status says that it does not stand
        }
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
        if self.doubtful || bd.rejected {
            return true;
        }
        let mut wanted = self.down.objects.iter().take(self.wanted(&bd.applied));
        wanted.all(|object| {
            object.as_ref().is_some_and(|thing| thing.stamp.0 == bd.uid && thing.state == bd.applied)
        })
    }
}
