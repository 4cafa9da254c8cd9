// SPDX-License-Identifier: Apache-2.0
//! A BundleDeployment's state as Fleet's controller computes it.

use std::{fmt, str::FromStr};

use super::BundleDeployment;

/// Ordered by rank: the highest one of several stands for them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Deployed, and every object is ready.
    Ready,
    /// Deployed, but an object is not ready.
    NotReady,
    /// No BundleDeployment yet.
    Pending,
    /// A newer version is staged and not promoted.
    OutOfSync,
    /// An object differs from the release.
    Modified,
    /// Not deployed yet.
    WaitApplied,
    /// Could not be deployed.
    ErrApplied,
}

impl State {
    /// Every state, lowest rank first.
    pub const ALL: [Self; 7] = [
        Self::Ready,
        Self::NotReady,
        Self::Pending,
        Self::OutOfSync,
        Self::Modified,
        Self::WaitApplied,
        Self::ErrApplied,
    ];

    /// Fleet's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::NotReady => "NotReady",
            Self::Pending => "Pending",
            Self::OutOfSync => "OutOfSync",
            Self::Modified => "Modified",
            Self::WaitApplied => "WaitApplied",
            Self::ErrApplied => "ErrApplied",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that names no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a state")]
pub struct StateError(pub String);

impl FromStr for State {
    type Err = StateError;

    fn from_str(text: &str) -> Result<Self, StateError> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| StateError(text.to_owned()))
    }
}

/// The state; the order of the questions is Fleet's.
pub fn state(bd: &BundleDeployment) -> State {
    let applied = bd.status.as_ref().map_or("", |status| status.applied_deployment_id.as_str());
    let (ready, non_modified) = bd.status.as_ref().map_or((false, false), |s| (s.ready, s.non_modified));
    if applied != bd.spec.deployment_id {
        let failed = bd.condition("Deployed").is_some_and(|condition| condition.status == "False");
        if failed { State::ErrApplied } else { State::WaitApplied }
    } else if !ready {
        State::NotReady
    } else if bd.spec.deployment_id != bd.spec.staged_deployment_id {
        State::OutOfSync
    } else if !non_modified {
        State::Modified
    } else {
        State::Ready
    }
}

/// The message Fleet shows with the state: of `Deployed`, else of `Installed` when the ids are equal, else of
/// `Monitored`.
pub fn message(bd: &BundleDeployment) -> &str {
    let applied = bd.status.as_ref().map_or("", |status| status.applied_deployment_id.as_str());
    let of = |type_| bd.condition(type_).map_or("", |condition| condition.message.as_str());
    let installed = if applied == bd.spec.deployment_id { of("Installed") } else { "" };
    [of("Deployed"), installed, of("Monitored")].into_iter().find(|text| !text.is_empty()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn bd(spec: Value, status: Value) -> BundleDeployment {
        serde_json::from_value(json!({
            "apiVersion": "fleet.cattle.io/v1alpha1",
            "kind": "BundleDeployment",
            "metadata": {"name": "web", "namespace": "c1"},
            "spec": spec,
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn states_follow_fleets_order_of_questions() {
        let ids = json!({"deploymentID": "a", "stagedDeploymentID": "a"});
        let staged = json!({"deploymentID": "a", "stagedDeploymentID": "b"});
        let failed = json!([{"type": "Deployed", "status": "False"}]);
        for (spec, status, expected) in [
            (&ids, json!({}), State::WaitApplied),
            (&ids, json!({"conditions": failed}), State::ErrApplied),
            (&ids, json!({"appliedDeploymentID": "a", "conditions": failed}), State::NotReady),
            (&ids, json!({"appliedDeploymentID": "a", "nonModified": true}), State::NotReady),
            (&staged, json!({"appliedDeploymentID": "a", "ready": true}), State::OutOfSync),
            (&ids, json!({"appliedDeploymentID": "a", "ready": true}), State::Modified),
            (&ids, json!({"appliedDeploymentID": "a", "ready": true, "nonModified": true}), State::Ready),
        ] {
            assert_eq!(state(&bd(spec.clone(), status.clone())), expected, "{spec} {status}");
        }
    }

    #[test]
    fn a_claim_does_not_change_the_state() {
        let ids = json!({"deploymentID": "a", "stagedDeploymentID": "a"});
        let claim = json!([{"type": "InProgress", "status": "True", "reason": "Claimed", "message": "v1"}]);
        assert_eq!(state(&bd(ids, json!({"conditions": claim}))), State::WaitApplied);
    }

    #[test]
    fn names_and_ranks_are_fleets() {
        let names: Vec<_> = State::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            ["Ready", "NotReady", "Pending", "OutOfSync", "Modified", "WaitApplied", "ErrApplied"]
        );
        assert!(State::ALL.is_sorted());
        assert_eq!("Modified".parse(), Ok(State::Modified));
        assert!("modified".parse::<State>().is_err());
    }

    #[test]
    fn the_message_is_the_first_that_says_something() {
        let conditions = |deployed: &str, installed: &str| {
            json!([
                {"type": "Monitored", "status": "True", "message": "m"},
                {"type": "Deployed", "status": "True", "message": deployed},
                {"type": "Installed", "status": "True", "message": installed},
            ])
        };
        let text = |applied: &str, deployed: &str, installed: &str| {
            let status =
                json!({"appliedDeploymentID": applied, "conditions": conditions(deployed, installed)});
            message(&bd(json!({"deploymentID": "a"}), status)).to_owned()
        };
        assert_eq!(text("a", "d", "i"), "d");
        assert_eq!(text("a", "", "i"), "i");
        assert_eq!(text("b", "", "i"), "m");
    }
}
