// SPDX-License-Identifier: Apache-2.0
//! The status fields an agent writes, and the smallest merge patch that writes them.

use serde_json::{Map, Value, json};

use crate::{
    api::{
        BundleDeployment, BundleDeploymentResource, BundleDeploymentStatus, Condition, ModifiedStatus,
        NonReadyStatus, ResourceCounts, keys,
    },
    monitor::conditions,
    protocol::Claim,
};

/// Lists in a status keep at most this many entries once the whole was too large to write.
const CUT_RESOURCES: usize = 0;
/// Characters a message keeps once the whole was too large to write.
const CUT_MESSAGE: usize = 512;

/// What monitoring found, or a deployment ended with. `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    /// `appliedDeploymentID`.
    pub applied: Option<String>,
    /// `release`.
    pub release: Option<String>,
    /// `syncGeneration`.
    pub sync_generation: Option<i64>,
    /// `downstreamResourcesGeneration`.
    pub copied: Option<i64>,
    /// The monitored part; all of it or nothing.
    pub observed: Option<ObservedFields>,
    /// Conditions to set, in this order.
    pub conditions: Vec<(&'static str, Result<(), String>)>,
}

/// The monitored part of the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedFields {
    /// No entry in `non_ready`.
    pub ready: bool,
    /// No entry in `modified`.
    pub non_modified: bool,
    /// Objects that are not ready.
    pub non_ready: Vec<NonReadyStatus>,
    /// Objects that differ.
    pub modified: Vec<ModifiedStatus>,
    /// A list was cut.
    pub incomplete: bool,
    /// Live objects.
    pub resources: Vec<BundleDeploymentResource>,
    /// Counts.
    pub counts: ResourceCounts,
}

impl Fields {
    /// The status after these fields; foreign conditions stay in place and order.
    pub fn merged_into(&self, before: &BundleDeploymentStatus, now: &str) -> BundleDeploymentStatus {
        let mut after = before.clone();
        if let Some(applied) = &self.applied {
            after.applied_deployment_id.clone_from(applied);
        }
        if let Some(release) = &self.release {
            after.release.clone_from(release);
        }
        if self.sync_generation.is_some() {
            after.sync_generation = self.sync_generation;
        }
        if let Some(copied) = self.copied {
            after.downstream_resources_generation = copied;
        }
        if let Some(observed) = &self.observed {
            after.ready = observed.ready;
            after.non_modified = observed.non_modified;
            after.non_ready_status.clone_from(&observed.non_ready);
            after.modified_status.clone_from(&observed.modified);
            after.incomplete_state = observed.incomplete;
            after.resources.clone_from(&observed.resources);
            let counted = observed.counts != ResourceCounts::default() || before.resource_counts.is_some();
            after.resource_counts = counted.then_some(observed.counts);
        }
        for (type_, state) in &self.conditions {
            if *type_ == conditions::READY && state.is_ok() && self.is_of_nothing() {
                conditions::set_empty(&mut after.conditions, now);
                continue;
            }
            conditions::set(
                &mut after.conditions,
                type_,
                state.as_ref().copied().map_err(String::as_str),
                now,
            );
        }
        after
    }

    /// Whether all is well because there is nothing that could be otherwise.
    fn is_of_nothing(&self) -> bool {
        self.observed.as_ref().is_some_and(|seen| {
            seen.ready
                && seen.non_modified
                && seen.resources.is_empty()
                && seen.counts == ResourceCounts::default()
        })
    }
}

/// Puts the claim into the list of conditions, or takes it out.
pub fn set_claim(conditions: &mut Vec<Condition>, claim: Option<&Claim>, now: &str) {
    let place = conditions.iter().position(|condition| condition.type_ == keys::CLAIM_CONDITION);
    let Some(claim) = claim else {
        conditions.retain(|condition| condition.type_ != keys::CLAIM_CONDITION);
        return;
    };
    let condition = Condition {
        type_: keys::CLAIM_CONDITION.into(),
        status: claim.status().into(),
        last_update_time: now.into(),
        last_transition_time: now.into(),
        reason: claim.state.reason().into(),
        message: claim.message(),
    };
    match place {
        Some(place) => conditions[place] = condition,
        None => conditions.push(condition),
    }
}

/// The merge patch from one status to the next, under the object's uid and version. `None`: nothing differs.
pub fn patch(
    bd: &BundleDeployment,
    version: &str,
    before: &BundleDeploymentStatus,
    after: &BundleDeploymentStatus,
) -> Option<Value> {
    let (before, after) = (to_map(before), to_map(after));
    let mut status = Map::new();
    for (key, value) in &after {
        if before.get(key) != Some(value) {
            status.insert(key.clone(), value.clone());
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        status.insert(key.clone(), Value::Null);
    }
    (!status.is_empty()).then(|| {
        json!({
            "metadata": {"uid": bd.metadata.uid, "resourceVersion": version},
            "status": status,
        })
    })
}

/// Makes a status that was too large writable: details go first, then messages; says so.
pub fn cut(status: &mut BundleDeploymentStatus) {
    status.resources.truncate(CUT_RESOURCES);
    status.non_ready_status.truncate(1);
    status.modified_status.truncate(1);
    for entry in &mut status.modified_status {
        entry.patch.clear();
    }
    for entry in &mut status.non_ready_status {
        entry.summary.message.truncate(1);
        entry.summary.message.iter_mut().for_each(shorten);
    }
    for condition in &mut status.conditions {
        if condition.type_ != keys::CLAIM_CONDITION {
            shorten(&mut condition.message);
        }
    }
    status.incomplete_state = true;
}

fn shorten(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(CUT_MESSAGE) {
        text.truncate(end);
        text.push('…');
    }
}

fn to_map(status: &BundleDeploymentStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        // A struct of strings, numbers and lists always serialises to an object.
        Ok(_) | Err(_) => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ClaimState;

    fn status() -> BundleDeploymentStatus {
        serde_json::from_value(json!({
            "release": "ns/app:1", "incompleteState": true,
            "conditions": [{"type": "Theirs", "status": "True"}, {"type": "Ready", "status": "True"}],
        }))
        .unwrap()
    }

    fn claim() -> Claim {
        let text = "v1 holder=a session=s nonce=n attempt=1 lost=0 by= budget=1 deployment=d";
        Claim::parse("True", "Claimed", text).unwrap()
    }

    #[test]
    fn a_claim_is_put_in_and_taken_out_without_moving_others() {
        let mut conditions = status().conditions;
        set_claim(&mut conditions, Some(&claim()), "t1");
        assert_eq!(
            conditions.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(),
            ["Theirs", "Ready", "InProgress"]
        );
        let waiting = Claim { state: ClaimState::Waiting, ..claim() };
        set_claim(&mut conditions, Some(&waiting), "t2");
        assert_eq!((conditions.len(), conditions[2].reason.as_str()), (3, "Waiting"));
        set_claim(&mut conditions, None, "t3");
        assert_eq!(conditions, status().conditions);
    }

    #[test]
    fn a_patch_holds_only_what_changed_and_its_preconditions() {
        let mut bd = BundleDeployment::default();
        bd.metadata.uid = Some("u".into());
        let before = status();
        let fields = Fields {
            applied: Some("s-1:a".into()),
            observed: Some(ObservedFields { ready: true, ..ObservedFields::default() }),
            conditions: vec![("Ready", Err("no".into()))],
            ..Fields::default()
        };
        let after = fields.merged_into(&before, "now");
        let patch_text = patch(&bd, "9", &before, &after).unwrap();
        assert_eq!(
            patch_text,
            json!({
                "metadata": {"uid": "u", "resourceVersion": "9"},
                "status": {
                    "appliedDeploymentID": "s-1:a", "ready": true, "incompleteState": null,
                    "conditions": [
                        {"type": "Theirs", "status": "True"},
                        {"type": "Ready", "status": "False", "reason": "Error", "message": "no", "lastUpdateTime": "now"},
                    ],
                },
            })
        );
        assert_eq!(patch(&bd, "9", &after, &after), None);
    }

    #[test]
    fn pc_046_a_release_without_objects_says_so() {
        let fields = |resources: usize, ready: bool| Fields {
            observed: Some(ObservedFields {
                ready,
                non_modified: true,
                resources: vec![BundleDeploymentResource::default(); resources],
                ..ObservedFields::default()
            }),
            conditions: vec![("Ready", if ready { Ok(()) } else { Err("no".into()) })],
            ..Fields::default()
        };
        for (resources, ready, reason) in
            [(0, true, conditions::NO_RESOURCES), (1, true, ""), (0, false, conditions::ERROR_REASON)]
        {
            let after = fields(resources, ready).merged_into(&status(), "now");
            assert_eq!(after.conditions[1].reason, reason, "{resources} {ready}");
            assert_eq!(fields(resources, ready).merged_into(&after, "later"), after, "said once");
        }
    }

    #[test]
    fn a_status_that_was_too_large_shrinks_and_says_so() {
        let mut large = status();
        large.conditions[1].message = "é".repeat(100_000);
        large.resources = vec![BundleDeploymentResource::default(); 50_000];
        cut(&mut large);
        assert!(large.incomplete_state && serde_json::to_string(&large).unwrap().len() < 2_000);
    }
}
