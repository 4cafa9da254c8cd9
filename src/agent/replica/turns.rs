// SPDX-License-Identifier: Apache-2.0
//! When a unit is looked at again: at its time, or when a worker slot is free.

use std::{cmp::Reverse, collections::BTreeMap};

use super::Replica;
use crate::{
    agent::inbox::Name,
    protocol::{Input, Time},
};

/// Units that wait for a worker slot.
///
/// Those come first that this replica is the first choice for, the oldest first. The rest follow in an order that is
/// each replica's own: replicas that are all busy, and so believe each other full, must not reach for the same unit
/// whenever a slot is free.
#[derive(Default)]
pub(super) struct Queue {
    units: BTreeMap<Turn, Name>,
    count: u64,
}

/// A place in the queue: preferred replicas before this one, order among equals, arrival.
pub(super) type Turn = (u32, u64, u64);

impl Queue {
    fn push(&mut self, name: Name, before: u32, weight: u64) -> Turn {
        self.count += 1;
        let turn = (before, if before == 0 { 0 } else { u64::MAX - weight }, self.count);
        self.units.insert(turn, name);
        turn
    }

    pub(super) fn remove(&mut self, turn: &Turn) {
        self.units.remove(turn);
    }
}

impl Replica {
    pub(super) fn on_timer(&mut self) {
        let now = self.ctx.clock.now();
        while let Some(Reverse((time, _))) = self.timers.peek()
            && *time <= now
        {
            let Some(Reverse((time, name))) = self.timers.pop() else { return };
            let Some(entry) = self.units.get_mut(&name) else { continue };
            if entry.wake == Some(time) {
                entry.wake = None;
                self.feed(&name, Input::Tick);
            }
        }
    }

    /// Arms a timer unless an earlier one is armed.
    pub(in crate::agent) fn wake_at(&mut self, name: &Name, time: Time) {
        let Some(entry) = self.units.get_mut(name) else { return };
        if entry.wake.is_none_or(|armed| time < armed) {
            entry.wake = Some(time);
            self.timers.push(Reverse((time, name.clone())));
        }
    }

    /// Gives free slots to those that wait for one, in turn; as long as one wants to work alone, to nobody else.
    pub(super) fn serve_queue(&mut self) {
        while let Some((turn, name)) = self.next_in_turn() {
            self.want_slot.remove(&turn);
            if let Some(entry) = self.units.get_mut(&name) {
                entry.queued = None;
                self.feed(&name, Input::Tick);
            }
        }
    }

    fn next_in_turn(&self) -> Option<(Turn, Name)> {
        let next = match &self.alone {
            Some(name) => (self.units.get(name)?.queued?, name.clone()),
            None => self.want_slot.units.first_key_value().map(|(turn, name)| (*turn, name.clone()))?,
        };
        self.slots(&next.1).admit(self.alone.is_some()).then_some(next)
    }

    /// Puts a unit into the queue; one that is in it finds its place anew.
    pub(in crate::agent) fn want_slot(&mut self, name: &Name) {
        let healthy = self.healthy.at(self.ctx.clock.now());
        let Some(entry) = self.units.get_mut(name) else { return };
        let Some(latest) = &entry.unit.latest else { return };
        let (before, weight) = self.sessions.preference(&self.ctx.session_id, &latest.uid, healthy);
        match entry.queued {
            Some((stood, ..)) if stood == before => return,
            Some(turn) => self.want_slot.remove(&turn),
            None => {}
        }
        entry.queued = Some(self.want_slot.push(name.clone(), before, weight));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_replica_is_preferred_for_comes_first_in_order_of_arrival() {
        let mut queue = Queue::default();
        for (name, before, weight) in [
            ("other-light", 1, 3),
            ("mine-old", 0, 1),
            ("last", 2, 9),
            ("mine-new", 0, 8),
            ("other-heavy", 1, 5),
        ] {
            queue.push(name.into(), before, weight);
        }
        let order: Vec<Name> = queue.units.into_values().collect();
        let order: Vec<&str> = order.iter().map(|name| &**name).collect();
        assert_eq!(order, ["mine-old", "mine-new", "other-heavy", "other-light", "last"]);
    }
}
