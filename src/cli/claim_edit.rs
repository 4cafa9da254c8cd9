// SPDX-License-Identifier: Apache-2.0
//! What the operator's word does to a claim. Pure: from one status to the next.

use crate::{
    api::{BundleDeployment, BundleDeploymentStatus, keys},
    protocol::{Claim, ClaimSlot, ClaimState, Nonce},
    upstream::fields,
};

/// Who speaks, in the claims written here.
const HOLDER: &str = "command-line";
/// In the place of a deployment id that nobody could read.
const UNKNOWN: &str = "unknown";

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Try it again now, whatever it is resting for.
    Retry,
    /// Take the claim away, with its counts.
    Release {
        /// Also one that a replica holds.
        force: bool,
        /// Also the word that strays are to be looked for: Fleet's agent is to go on, and does not look.
        clear: bool,
    },
    /// Leave it alone until it changes, or for the rest that quarantine is.
    Quarantine {
        /// For those who read it.
        cause: String,
        /// Also one that a replica holds.
        force: bool,
    },
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Edited {
    /// Write this.
    Status(Box<BundleDeploymentStatus>),
    /// Nothing to do, and why.
    Unchanged(&'static str),
    /// Not done, and why.
    Refused(String),
}

impl Edit {
    /// The past participle, for the output.
    pub fn done(&self) -> &'static str {
        match self {
            Self::Retry => "retried",
            Self::Release { .. } => "released",
            Self::Quarantine { .. } => "quarantined",
        }
    }

    /// Decides on an object as it was just read. `nonce` is fresh, `now` is for people.
    pub fn apply(&self, bd: &BundleDeployment, nonce: Nonce, now: &str) -> Edited {
        let mut status = bd.status.clone().unwrap_or_default();
        let slot = slot(bd);
        if let (true, Self::Retry) = (slot.is_open(), self) {
            return Edited::Refused(format!("{} is at work on it", holder(&slot)));
        }
        if let (true, Self::Release { force: false, .. } | Self::Quarantine { force: false, .. }) =
            (slot.is_open(), self)
        {
            return Edited::Refused(format!(
                "{} is at work on it; with --force its result will be thrown away",
                holder(&slot)
            ));
        }
        let claim = match self {
            Self::Retry => match slot.claim() {
                // The record goes on, but the losses are forgiven: the next one does not condemn it again.
                Some(claim) => {
                    let cause = Some("to be tried again, by command".into());
                    let state = ClaimState::Expired;
                    Some(Claim {
                        state,
                        nonce,
                        lost: 0,
                        by: Vec::new(),
                        retry_in: None,
                        cause,
                        ..claim.clone()
                    })
                }
                None if gave_up(bd) => {
                    // What only a change can mend is tried again when it counts as not applied.
                    status.applied_deployment_id.clear();
                    return Edited::Status(Box::new(status));
                }
                None => return Edited::Unchanged("nothing to retry"),
            },
            Self::Release { .. } if slot == ClaimSlot::Empty => return Edited::Unchanged("no claim"),
            Self::Release { clear: true, .. } => None,
            Self::Release { .. } if is_reminder(&slot) => {
                return Edited::Unchanged("what a lost holder left is yet to be looked for");
            }
            // Who was lost or is thrown out may have left objects half done: that is for the next one to look for (S2).
            Self::Release { .. } if may_have_strays(&slot) => Some(Claim {
                state: ClaimState::Expired,
                holder: HOLDER.into(),
                session: HOLDER.into(),
                nonce,
                attempt: 0,
                lost: 0,
                by: Vec::new(),
                budget: 0,
                deployment: slot.claim().map_or(UNKNOWN, |claim| &claim.deployment).to_owned(),
                unswept: true,
                retry_in: None,
                cause: Some("released by command".into()),
                unknown: slot.claim().map_or_else(Vec::new, |claim| claim.unknown.clone()),
            }),
            Self::Release { .. } => None,
            Self::Quarantine { cause, .. } => {
                if bd.spec.deployment_id.is_empty() {
                    return Edited::Refused("it has no deployment id yet".into());
                }
                let before = slot.claim().filter(|claim| claim.deployment == bd.spec.deployment_id);
                Some(Claim {
                    state: ClaimState::Quarantined,
                    holder: HOLDER.into(),
                    session: HOLDER.into(),
                    nonce,
                    attempt: before.map_or(1, |claim| claim.attempt),
                    lost: before.map_or(0, |claim| claim.lost),
                    by: before.map_or_else(Vec::new, |claim| claim.by.clone()),
                    budget: 0,
                    deployment: bd.spec.deployment_id.clone(),
                    unswept: slot.is_unswept(),
                    retry_in: None,
                    cause: Some(cause.clone()),
                    unknown: before.map_or_else(Vec::new, |claim| claim.unknown.clone()),
                })
            }
        };
        fields::set_claim(&mut status.conditions, claim.as_ref(), now);
        Edited::Status(Box::new(status))
    }
}

/// What stands in the claim's condition.
pub(super) fn slot(bd: &BundleDeployment) -> ClaimSlot {
    bd.condition(keys::CLAIM_CONDITION).map_or(ClaimSlot::Empty, |condition| {
        ClaimSlot::parse(&condition.status, &condition.reason, &condition.message)
    })
}

/// A release has left it: nothing but the word that strays are to be looked for.
fn is_reminder(slot: &ClaimSlot) -> bool {
    slot.claim().is_some_and(|claim| {
        claim.state == ClaimState::Expired && claim.holder.0 == HOLDER && claim.unswept && claim.attempt == 0
    })
}

/// A claim of the operator's own was nobody's work: only the word that it took over counts.
fn may_have_strays(slot: &ClaimSlot) -> bool {
    let own = slot.claim().filter(|claim| claim.holder.0 == HOLDER);
    own.map_or_else(|| slot.is_unswept(), |claim| claim.unswept)
}

fn holder(slot: &ClaimSlot) -> &str {
    slot.claim().map_or("somebody", |claim| &claim.holder.0)
}

/// A replica gave up for good: applied by name, installed in truth not.
pub(super) fn gave_up(bd: &BundleDeployment) -> bool {
    let failed = |type_| bd.condition(type_).is_some_and(|condition| condition.status == "False");
    bd.status.as_ref().is_some_and(|status| !status.applied_deployment_id.is_empty())
        && (failed("Installed") || failed("Deployed"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RELEASE: Edit = Edit::Release { force: false, clear: false };
    const FORCE: Edit = Edit::Release { force: true, clear: false };
    const CLEAR: Edit = Edit::Release { force: false, clear: true };

    fn bd(conditions: Value) -> BundleDeployment {
        serde_json::from_value(json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": "web", "uid": "u", "resourceVersion": "7"},
            "spec": {"deploymentID": "d"},
            "status": {"appliedDeploymentID": "d", "release": "", "conditions": conditions},
        }))
        .unwrap()
    }

    fn claim(reason: &str) -> Value {
        let status = if matches!(reason, "Claimed" | "Waiting") { "True" } else { "False" };
        let message = "v1 holder=pod-1 session=s nonce=n attempt=4 lost=3 by=s,t budget=600 deployment=d new=word \
                       retryIn=300 cause=why";
        json!({"type": "InProgress", "status": status, "reason": reason, "message": message})
    }

    fn after(edit: &Edit, bd: &BundleDeployment) -> Result<(BundleDeploymentStatus, ClaimSlot), Edited> {
        match edit.apply(bd, "fresh".into(), "now") {
            Edited::Status(status) => {
                let edited = BundleDeployment { status: Some((*status).clone()), ..bd.clone() };
                Ok((*status, slot(&edited)))
            }
            other => Err(other),
        }
    }

    #[test]
    fn a_retry_ends_the_rest_and_forgives_the_losses_but_keeps_the_count() {
        for reason in ["BackingOff", "Quarantined", "Expired"] {
            let (_, slot) = after(&Edit::Retry, &bd(json!([claim(reason)]))).unwrap();
            let claim = slot.claim().unwrap();
            assert_eq!((claim.state, claim.attempt, claim.lost), (ClaimState::Expired, 4, 0), "{reason}");
            assert_eq!((&*claim.nonce.0, claim.retry_in, claim.by.len()), ("fresh", None, 0));
            assert_eq!(claim.unknown, [("new".to_owned(), "word".to_owned())]);
        }
    }

    #[test]
    fn what_waits_for_a_change_is_retried_as_if_it_were_not_applied() {
        let failed = json!([{"type": "Installed", "status": "False", "message": "no"}]);
        let (status, slot) = after(&Edit::Retry, &bd(failed)).unwrap();
        assert_eq!((status.applied_deployment_id.as_str(), slot), ("", ClaimSlot::Empty));
        let fine = bd(json!([{"type": "Installed", "status": "True"}]));
        assert_eq!(after(&Edit::Retry, &fine).unwrap_err(), Edited::Unchanged("nothing to retry"));
    }

    #[test]
    fn a_holder_is_not_disturbed_without_force() {
        for edit in [Edit::Retry, RELEASE, Edit::Quarantine { cause: "x".into(), force: false }] {
            for reason in ["Claimed", "Waiting"] {
                let refused = after(&edit, &bd(json!([claim(reason)]))).unwrap_err();
                assert!(matches!(refused, Edited::Refused(text) if text.starts_with("pod-1 is at work")));
            }
        }
        let strange = bd(json!([{"type": "InProgress", "status": "True", "message": "?"}]));
        assert!(matches!(after(&RELEASE, &strange), Err(Edited::Refused(_))));
        let (_, slot) = after(&FORCE, &strange).unwrap();
        assert!(slot.is_unswept() && !slot.is_open(), "{slot:?}");
    }

    #[test]
    fn a_release_takes_the_claim_away_and_nothing_else() {
        let other = json!({"type": "Ready", "status": "True"});
        let (status, slot) = after(&RELEASE, &bd(json!([other, claim("BackingOff")]))).unwrap();
        assert_eq!((status.conditions.len(), slot), (1, ClaimSlot::Empty));
        assert_eq!(after(&RELEASE, &bd(json!([other]))).unwrap_err(), Edited::Unchanged("no claim"));
        // What an operator wrote was nobody's work.
        let quarantine = Edit::Quarantine { cause: "x".into(), force: false };
        let (status, _) = after(&quarantine, &bd(json!([other]))).unwrap();
        let by_hand = BundleDeployment { status: Some(status), ..bd(json!([])) };
        assert_eq!(after(&RELEASE, &by_hand).unwrap().1, ClaimSlot::Empty);
    }

    #[test]
    fn a_release_keeps_nothing_but_that_strays_are_to_be_looked_for() {
        let mut unswept = claim("BackingOff");
        unswept["message"] =
            json!(unswept["message"].as_str().unwrap().replace(" deployment=", " unswept=true deployment="));
        for (edit, before) in [
            (FORCE, claim("Claimed")),
            (FORCE, claim("Waiting")),
            (RELEASE, claim("Expired")),
            (RELEASE, claim("Quarantined")),
            (RELEASE, unswept),
        ] {
            let (_, slot) = after(&edit, &bd(json!([before]))).unwrap();
            let left = slot.claim().unwrap();
            assert_eq!(
                (left.state, left.unswept, left.attempt, left.lost),
                (ClaimState::Expired, true, 0, 0),
                "{before}"
            );
            assert_eq!((left.nonce.0.as_str(), left.deployment.as_str()), ("fresh", "d"));
            assert!(slot.asks("d"), "also of a bundle whose status says that it is deployed");
            let again = bd(json!([{"type": "InProgress", "status": "False", "reason": "Expired",
                "message": left.message()}]));
            for edit in [RELEASE, FORCE] {
                assert!(matches!(after(&edit, &again), Err(Edited::Unchanged(_))), "{before}");
            }
            // On the way back to Fleet's agent, which does not look and knows no such condition.
            assert_eq!(after(&CLEAR, &again).unwrap().1, ClaimSlot::Empty);
        }
        // Of one that failed in order nothing is left to be looked for.
        assert_eq!(after(&FORCE, &bd(json!([claim("BackingOff")]))).unwrap().1, ClaimSlot::Empty);
        assert_eq!(after(&CLEAR, &bd(json!([claim("Quarantined")]))).unwrap().1, ClaimSlot::Empty);
        assert!(matches!(after(&CLEAR, &bd(json!([claim("Claimed")]))), Err(Edited::Refused(_))));
    }

    #[test]
    fn a_quarantine_by_hand_names_its_cause_and_is_about_the_deployment_of_now() {
        let edit = Edit::Quarantine { cause: "kills nodes".into(), force: true };
        for (conditions, attempt) in [(json!([]), 1), (json!([claim("Claimed")]), 4)] {
            let (_, slot) = after(&edit, &bd(conditions)).unwrap();
            let claim = slot.claim().unwrap();
            assert_eq!((claim.state, claim.attempt), (ClaimState::Quarantined, attempt));
            assert_eq!((claim.deployment.as_str(), claim.cause.as_deref()), ("d", Some("kills nodes")));
        }
    }
}
