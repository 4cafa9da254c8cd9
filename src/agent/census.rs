// SPDX-License-Identifier: Apache-2.0
//! How many units stand where in this replica's eyes, and how long the oldest waits for a claim: the gauges
//! `flotilla_units` and `flotilla_oldest_waiting_seconds`.

use std::collections::{BTreeMap, HashMap};

use super::surroundings::Clock;
use crate::{
    protocol::{ClaimSlot, ClaimState, Gate, Time, Unit, Work},
    telemetry::{Metrics, metrics::UnitState},
};

/// Counts units by state; a unit is counted where it stood last.
#[derive(Debug, Default)]
pub(super) struct Census {
    units: HashMap<UnitState, usize>,
    /// How many have waited since then.
    waiting: BTreeMap<Time, usize>,
}

/// Where a unit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    state: UnitState,
    /// Since when it could be claimed and is not.
    waiting: Option<Time>,
}

impl Census {
    /// A unit moved; `None` is not counted at all.
    pub fn moved(&mut self, metrics: &Metrics, clock: &Clock, before: Option<Place>, after: Option<Place>) {
        let (was, is) = (before.map(|place| place.state), after.map(|place| place.state));
        if was != is {
            if let Some(state) = was {
                let count = self.units.entry(state).or_default();
                *count = count.saturating_sub(1);
                metrics.set_units(state, *count);
            }
            if let Some(state) = is {
                let count = self.units.entry(state).or_default();
                *count += 1;
                metrics.set_units(state, *count);
            }
        }
        let (was, is) = (before.and_then(|place| place.waiting), after.and_then(|place| place.waiting));
        if was != is {
            if let Some(since) = was
                && let Some(count) = self.waiting.get_mut(&since)
            {
                *count -= 1;
                if *count == 0 {
                    self.waiting.remove(&since);
                }
            }
            if let Some(since) = is {
                *self.waiting.entry(since).or_default() += 1;
            }
            let oldest = self.waiting.first_key_value().map(|(since, _)| clock.moment(*since));
            metrics.set_oldest_waiting(oldest);
        }
    }
}

/// Where a unit is counted; `None` for one that is gone or was never seen.
pub(super) fn place(unit: &Unit) -> Option<Place> {
    let idle = matches!(unit.work, Work::Idle | Work::Verifying { .. });
    Some(Place { state: state(unit)?, waiting: unit.wanted.filter(|_| idle) })
}

fn state(unit: &Unit) -> Option<UnitState> {
    match &unit.work {
        Work::Claiming { .. } | Work::Finishing { .. } | Work::Running { waiting: false, .. } => {
            return Some(UnitState::Working);
        }
        Work::Running { waiting: true, .. } => return Some(UnitState::Waiting),
        Work::Removing { running: true, .. } => return Some(UnitState::Working),
        Work::Removing { .. } => return Some(UnitState::Queued),
        Work::Absent { .. } => return Some(UnitState::Absent),
        Work::Idle | Work::Verifying { .. } => {}
    }
    let latest = unit.latest.as_ref()?;
    let resting = match &latest.slot {
        ClaimSlot::Empty => None,
        ClaimSlot::Unreadable { .. } => Some(UnitState::Elsewhere),
        ClaimSlot::Claim(claim) => match claim.state {
            ClaimState::Claimed | ClaimState::Waiting => Some(UnitState::Elsewhere),
            ClaimState::BackingOff if claim.rests() => None,
            ClaimState::BackingOff => Some(UnitState::BackingOff),
            ClaimState::Quarantined => Some(UnitState::Quarantined),
            ClaimState::Expired => None,
        },
    };
    Some(resting.unwrap_or(match latest.gate {
        Gate::Held | Gate::Blocked | Gate::Refused => UnitState::Held,
        Gate::Open if latest.outdated || unit.wants(latest) => UnitState::Queued,
        Gate::Open => UnitState::Idle,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Snapshot;

    fn unit(gate: Gate, outdated: bool, slot: ClaimSlot) -> Unit {
        let latest = Snapshot {
            uid: "u".into(),
            version: "5".into(),
            deployment: "d".into(),
            gate,
            outdated,
            corrects: false,
            release: String::new(),
            slot,
            rest: 0,
        };
        Unit { latest: Some(latest), ..Unit::default() }
    }

    fn claim(status: &str, reason: &str) -> ClaimSlot {
        let message = "v1 holder=a session=s nonce=n attempt=1 lost=0 by= budget=1 deployment=d";
        ClaimSlot::parse(status, reason, message)
    }

    #[test]
    fn every_unit_stands_somewhere_and_is_counted_once() {
        let table = [
            (unit(Gate::Open, false, ClaimSlot::Empty), UnitState::Idle),
            (unit(Gate::Open, true, ClaimSlot::Empty), UnitState::Queued),
            (unit(Gate::Open, true, claim("False", "Expired")), UnitState::Queued),
            (unit(Gate::Held, true, ClaimSlot::Empty), UnitState::Held),
            (unit(Gate::Open, true, claim("True", "Claimed")), UnitState::Elsewhere),
            (unit(Gate::Open, true, claim("False", "BackingOff")), UnitState::BackingOff),
            (
                Unit {
                    work: Work::Absent { uid: "u".into(), since: None },
                    ..unit(Gate::Open, false, ClaimSlot::Empty)
                },
                UnitState::Absent,
            ),
            (unit(Gate::Open, true, claim("False", "Quarantined")), UnitState::Quarantined),
        ];
        let (mut census, metrics) = (Census::default(), Metrics::new());
        let mut before = None;
        let clock = Clock::start();
        for (unit, expected) in table {
            let after = place(&unit);
            assert_eq!(after, Some(Place { state: expected, waiting: None }));
            census.moved(&metrics, &clock, before, after);
            before = after;
        }
        assert_eq!(place(&Unit::default()), None);
        assert_eq!(census.units.values().sum::<usize>(), 1);
        assert!(metrics.encode().contains(r#"flotilla_units{state="quarantined"} 1"#));
        census.moved(&metrics, &clock, before, None);
        assert_eq!(census.units.values().sum::<usize>(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_that_waits_is_told_until_none_does() {
        let waiting = |since| {
            let unit = unit(Gate::Open, true, ClaimSlot::Empty);
            place(&Unit { wanted: Some(Time::from_secs(since)), ..unit })
        };
        let (mut census, metrics, clock) = (Census::default(), Metrics::new(), Clock::start());
        let told = |metrics: &Metrics| {
            let text = metrics.encode();
            let line = text.lines().find_map(|line| line.strip_prefix("flotilla_oldest_waiting_seconds "));
            line.unwrap().parse::<f64>().unwrap()
        };
        assert_eq!(told(&metrics), 0.0);
        for since in [4, 2, 2] {
            census.moved(&metrics, &clock, None, waiting(since));
        }
        tokio::time::advance(Time::from_secs(10)).await;
        assert_eq!(told(&metrics), 8.0);
        census.moved(&metrics, &clock, waiting(2), None);
        assert_eq!(told(&metrics), 8.0);
        census.moved(&metrics, &clock, waiting(2), None);
        assert_eq!(told(&metrics), 6.0);
        census.moved(&metrics, &clock, waiting(4), waiting(9));
        assert_eq!(told(&metrics), 1.0);
        census.moved(&metrics, &clock, waiting(9), None);
        assert_eq!(told(&metrics), 0.0);
    }
}
