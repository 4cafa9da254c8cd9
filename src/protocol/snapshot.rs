// SPDX-License-Identifier: Apache-2.0
//! What the protocol needs to know of a BundleDeployment, and the one event filter.

use super::{ClaimSlot, Epoch, Uid};

/// A BundleDeployment at one resourceVersion, reduced to what decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Its uid: another one is another unit.
    pub uid: Uid,
    /// Its resourceVersion.
    pub version: Epoch,
    /// `spec.deploymentID`.
    pub deployment: String,
    /// Whether and why it may not be claimed.
    pub gate: Gate,
    /// Whether the status lacks what the spec asks for.
    pub outdated: bool,
    /// Whether foreign changes are to be reverted (`spec.correctDrift.enabled`).
    pub corrects: bool,
    /// `status.release`, empty when nothing stands.
    pub release: String,
    /// The claim.
    pub slot: ClaimSlot,
    /// Digest of every other field a replica acts on (options, monitoring status): a change wakes the monitor.
    pub rest: u64,
}

/// Whether a unit may be claimed at all: decided before claiming (S10).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// It may.
    Open,
    /// Paused, off schedule or waiting for values.
    Held,
    /// Its dependencies are not ready.
    Blocked,
    /// It is being deleted, or not for this agent.
    Refused,
}

/// What an event means for the replica that sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Nothing a replica acts on changed: a `display` update, a relist, an own write seen again.
    Nothing,
    /// Only the claim changed hands: remember it, start no work.
    Claim,
    /// Something to decide on.
    Unit,
}

/// The one event filter (rule 7). Compares values, never pointers; Fleet's own filter would loop on claims here.
pub fn wakes(before: Option<&Snapshot>, after: &Snapshot) -> Wake {
    let Some(before) = before else { return Wake::Unit };
    let same_unit = before.uid == after.uid
        && before.deployment == after.deployment
        && before.gate == after.gate
        && before.outdated == after.outdated
        && before.release == after.release
        && before.rest == after.rest;
    match (same_unit, before.slot == after.slot) {
        (true, true) => Wake::Nothing,
        (true, false) => Wake::Claim,
        (false, _) => Wake::Unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        Snapshot {
            uid: "u".into(),
            version: "5".into(),
            deployment: "s-1:a".into(),
            gate: Gate::Open,
            outdated: false,
            corrects: false,
            release: "ns/app:1".into(),
            slot: ClaimSlot::Empty,
            rest: 7,
        }
    }

    #[test]
    fn only_what_is_acted_on_wakes_a_unit() {
        let before = snapshot();
        assert_eq!(wakes(None, &before), Wake::Unit);
        assert_eq!(wakes(Some(&before), &Snapshot { version: "6".into(), ..snapshot() }), Wake::Nothing);
        let claimed = ClaimSlot::Unreadable { text: "x".into() };
        assert_eq!(wakes(Some(&before), &Snapshot { slot: claimed, ..snapshot() }), Wake::Claim);
        for changed in [
            Snapshot { deployment: "s-2:a".into(), ..snapshot() },
            Snapshot { gate: Gate::Held, ..snapshot() },
            Snapshot { outdated: true, ..snapshot() },
            Snapshot { release: String::new(), ..snapshot() },
            Snapshot { uid: "v".into(), ..snapshot() },
            Snapshot { rest: 8, ..snapshot() },
        ] {
            assert_eq!(wakes(Some(&before), &changed), Wake::Unit, "{changed:?}");
        }
    }
}
