// SPDX-License-Identifier: Apache-2.0
//! From here on nothing goes wrong any more: everything must come to rest, as it should be, within a bound (L1–L5).

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
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

/// The round in which every watch is begun anew: late enough that what needs no such help has come to rest before.
const RESYNC: u8 = 9;

/// Which runs without faults are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orders {
    /// Every one: whatever can happen next, does.
    All,
    /// So many: of what can happen always the first, always the last, then one by the hash of state and number.
    Some(u64),
}

/// How many steps of time it takes from where to rest, at most. What many runs have in common is gone through once, so
/// that every state of a search can be looked at.
///
/// Time passes only when nothing else can happen, so every run is fair: whoever can act does before the next step. A
/// run that comes back to where it was goes on for ever, and is a finding like one that takes too long. A step that
/// changes nothing is none: who can do nothing else spins.
pub struct Rests {
    orders: Orders,
    known: Mutex<HashMap<u64, u8, BuildHasherDefault<Words>>>,
}

/// A state on the way, and what of it was looked at.
struct Frame<S> {
    space: S,
    key: u64,
    round: u8,
    next: usize,
    /// What was tried changed something.
    moved: bool,
    worst: u8,
}

impl Rests {
    /// Nothing is known yet.
    pub fn new(orders: Orders) -> Self {
        Self { orders, known: Mutex::default() }
    }

    /// How many situations were looked at.
    pub fn looked_at(&self) -> usize {
        self.known().len()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u64, u8, BuildHasherDefault<Words>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why `state` does not come to rest, or `None`.
    pub fn stuck<S: Space>(&self, state: &S, bug: Bug) -> Option<String> {
        match self.orders {
            Orders::All => self.stuck_in(state, None, bug),
            Orders::Some(count) => (0..count).find_map(|order| self.stuck_in(state, Some(order), bug)),
        }
    }

    fn stuck_in<S: Space>(&self, state: &S, order: Option<u64>, bug: Bug) -> Option<String> {
        let key = |space: &S, round: u8| {
            let mut hasher = Words(0);
            (space, round.min(ROUNDS), order).hash(&mut hasher);
            hasher.finish()
        };
        let start = state.calmed(bug);
        let first = Frame { key: key(&start, 0), space: start, round: 0, next: 0, moved: false, worst: 0 };
        if let Some(rest) = self.known().get(&first.key) {
            return too_late(*rest, state);
        }
        let mut under_way: HashSet<u64, BuildHasherDefault<Words>> = HashSet::default();
        under_way.insert(first.key);
        let mut way = vec![first];
        loop {
            let frame = way.last_mut().expect("not yet at its end");
            let width = frame.space.width();
            if frame.next == width.max(1) || (frame.moved && order.is_some()) {
                if !frame.moved {
                    return Some(format!("spins: {:?}", frame.space));
                }
                let done = way.pop().expect("the last");
                under_way.remove(&done.key);
                self.known().insert(done.key, done.worst);
                let Some(before) = way.last_mut() else { return too_late(done.worst, state) };
                before.worst = before.worst.max(done.worst.saturating_add(done.round - before.round));
                continue;
            }
            let first = match order {
                None | Some(0) => 0,
                Some(1) => width.saturating_sub(1),
                Some(_) => usize::try_from(frame.key >> 8).unwrap_or(0) % width.max(1),
            };
            let choice = (first + frame.next) % width.max(1);
            frame.next += 1;
            let (mut space, mut round) = (frame.space.clone(), frame.round);
            match space.moment(choice, &mut round, bug) {
                Moment::Rest => {
                    frame.moved = true;
                    continue;
                }
                Moment::Broken(why) => return Some(why.to_owned()),
                Moment::Moved => {}
            }
            let key = key(&space, round);
            if key == frame.key && round == frame.round {
                continue; // who asks again and again changes nothing, and keeps nobody from going on
            }
            frame.moved = true;
            let passed = round - frame.round;
            if let Some(rest) = self.known().get(&key) {
                frame.worst = frame.worst.max(rest.saturating_add(passed));
            } else if round >= BOUND || !under_way.insert(key) {
                return Some(format!("does not come to rest: {space:?}"));
            } else {
                way.push(Frame { space, key, round, next: 0, moved: false, worst: 0 });
            }
        }
    }
}

fn too_late<S: Space>(rest: u8, state: &S) -> Option<String> {
    (rest >= BOUND).then(|| format!("comes to rest after {rest} steps only: {state:?}"))
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

    /// What can happen now.
    pub fn calm_actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.actions(&mut actions);
        actions.retain(|action| *action != Action::Find); // what is missing stays so
        actions
    }

    /// Of what can happen now, this happens; if nothing can, time passes.
    pub fn go_on(&mut self, choice: usize, round: &mut u8, bug: Bug) -> Moment {
        if let Some(action) = self.calm_actions().get(choice) {
            self.act(*action, bug);
        } else if self.broken.is_none() {
            if *round > 2 && bug != Bug::NoSweep {
                self.sweep();
            }
            if *round == RESYNC && self.setting.resyncs {
                (0..self.replicas.len()).for_each(|index| self.resync(index));
            }
            if *round > 10 && bug != Bug::NoSweep {
                self.collect();
            }
            let resyncs = self.setting.resyncs && *round <= RESYNC;
            if *round > 3 && !resyncs && self.is_at_rest() {
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
            // What is to be deployed anyway needs no push, and must not be pushed back to what the status names.
            if self.doubtful && bd.deployment == bd.applied {
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
