// SPDX-License-Identifier: Apache-2.0
//! How many units stand where in this replica's eyes: the gauge `flotilla_units`.

use std::collections::HashMap;

use crate::{
    protocol::{ClaimSlot, ClaimState, Gate, Unit, Work},
    telemetry::{Metrics, metrics::UnitState},
};

/// Counts units by state; a unit is counted where it stood last.
#[derive(Debug, Default)]
pub(super) struct Census(HashMap<UnitState, usize>);

impl Census {
    /// A unit moved; `None` is not counted at all.
    pub fn moved(&mut self, metrics: &Metrics, before: Option<UnitState>, after: Option<UnitState>) {
        if before == after {
            return;
        }
        if let Some(state) = before {
            let count = self.0.entry(state).or_default();
            *count = count.saturating_sub(1);
            metrics.set_units(state, *count);
        }
        if let Some(state) = after {
            let count = self.0.entry(state).or_default();
            *count += 1;
            metrics.set_units(state, *count);
        }
    }
}

/// Where a unit stands; `None` for one that is gone or was never seen.
pub(super) fn state(unit: &Unit) -> Option<UnitState> {
    match &unit.work {
        Work::Claiming { .. } | Work::Finishing { .. } | Work::Running { waiting: false, .. } => {
            return Some(UnitState::Working);
        }
        Work::Running { waiting: true, .. } => return Some(UnitState::Waiting),
        Work::Removing { running: true, .. } => return Some(UnitState::Working),
        Work::Removing { .. } => return Some(UnitState::Queued),
        Work::Absent { .. } => return Some(UnitState::Held),
        Work::Idle | Work::Verifying { .. } => {}
    }
    let latest = unit.latest.as_ref()?;
    let resting = match &latest.slot {
        ClaimSlot::Empty => None,
        ClaimSlot::Unreadable { .. } => Some(UnitState::Elsewhere),
        ClaimSlot::Claim(claim) => match claim.state {
            ClaimState::Claimed | ClaimState::Waiting => Some(UnitState::Elsewhere),
            ClaimState::BackingOff => Some(UnitState::BackingOff),
            ClaimState::Quarantined => Some(UnitState::Quarantined),
            ClaimState::Expired => None,
        },
    };
    Some(resting.unwrap_or(match latest.gate {
        Gate::Held | Gate::Blocked | Gate::Refused => UnitState::Held,
        Gate::Open if latest.outdated || unit.redeploy => UnitState::Queued,
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
            (unit(Gate::Open, true, claim("False", "Quarantined")), UnitState::Quarantined),
        ];
        let (mut census, metrics) = (Census::default(), Metrics::new());
        let mut before = None;
        for (unit, expected) in table {
            let after = state(&unit);
            assert_eq!(after, Some(expected));
            census.moved(&metrics, before, after);
            before = after;
        }
        assert_eq!(state(&Unit::default()), None);
        assert_eq!(census.0.values().sum::<usize>(), 1);
        assert!(metrics.encode().contains(r#"flotilla_units{state="quarantined"} 1"#));
        census.moved(&metrics, before, None);
        assert_eq!(census.0.values().sum::<usize>(), 0);
    }
}
