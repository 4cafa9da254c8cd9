// SPDX-License-Identifier: Apache-2.0
//! From a BundleDeployment to what the protocol decides on.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{
    api::{BundleDeployment, BundleDeploymentStatus, keys, names},
    monitor::conditions::INSTALLED,
    protocol::{ClaimSlot, Gate, Snapshot},
};

/// Reduces an object; `blocked` tells whether its dependencies are not ready.
pub fn snapshot(bd: &BundleDeployment, blocked: bool) -> Snapshot {
    let empty = BundleDeploymentStatus::default();
    let status = bd.status.as_ref().unwrap_or(&empty);
    let slot = bd.condition(keys::CLAIM_CONDITION).map_or(ClaimSlot::Empty, |condition| {
        ClaimSlot::parse(&condition.status, &condition.reason, &condition.message)
    });
    let options = bd.options();
    // Raising forceSyncGeneration asks for one more deployment of what was already applied.
    let forced = options.force_sync_generation > 0
        && status.sync_generation.is_some_and(|done| done < options.force_sync_generation);
    let uncopied = !options.downstream_resources.is_empty()
        && status.downstream_resources_generation != bd.spec.downstream_resources_generation;
    let undone = is_undone(bd, status);
    Snapshot {
        uid: bd.metadata.uid.as_deref().unwrap_or_default().into(),
        version: bd.metadata.resource_version.as_deref().unwrap_or_default().into(),
        deployment: bd.spec.deployment_id.clone(),
        gate: gate(bd, blocked),
        outdated: status.applied_deployment_id != bd.spec.deployment_id || forced || uncopied || undone,
        corrects: bd.spec.correct_drift.as_ref().is_some_and(|correct| correct.enabled),
        release: status.release.clone(),
        slot,
        rest: digest(bd, status),
    }
}

/// Applied, by what the status says, and yet there is no release and no failure that would explain it: somebody else wrote
/// it. What only rejections leave behind would otherwise stay for ever.
fn is_undone(bd: &BundleDeployment, status: &BundleDeploymentStatus) -> bool {
    let rejected = bd.condition(INSTALLED).is_some_and(|condition| condition.status == "False");
    status.release.is_empty() && !bd.spec.deployment_id.is_empty() && !rejected
}

fn gate(bd: &BundleDeployment, blocked: bool) -> Gate {
    let name = bd.metadata.name.as_deref().unwrap_or_default();
    if bd.metadata.deletion_timestamp.is_some() || names::is_agent_bundle(name) {
        Gate::Refused
    } else if bd.spec.paused || bd.spec.off_schedule || bd.spec.waiting_for_values {
        Gate::Held
    } else if blocked {
        Gate::Blocked
    } else {
        Gate::Open
    }
}

/// Everything a replica acts on that has no field of its own; `display` and the claim are not part of it.
fn digest(bd: &BundleDeployment, status: &BundleDeploymentStatus) -> u64 {
    let mut hasher = DefaultHasher::new();
    bd.metadata.generation.hash(&mut hasher);
    // Nothing is read from most of them, but touching a unit is how people have it looked at.
    bd.metadata.labels.hash(&mut hasher);
    for condition in status.conditions.iter().filter(|condition| condition.type_ != keys::CLAIM_CONDITION) {
        (&condition.type_, &condition.status, &condition.reason, &condition.message).hash(&mut hasher);
    }
    (status.ready, status.non_modified, status.incomplete_state, status.sync_generation).hash(&mut hasher);
    for resource in &status.resources {
        (&resource.kind, &resource.namespace, &resource.name).hash(&mut hasher);
    }
    for entry in &status.non_ready_status {
        (&entry.uid, &entry.summary.state, &entry.summary.message).hash(&mut hasher);
    }
    for entry in &status.modified_status {
        (&entry.kind, &entry.namespace, &entry.name, &entry.patch, entry.missing).hash(&mut hasher);
        (entry.exist, entry.delete).hash(&mut hasher);
    }
    if let Some(counts) = &status.resource_counts {
        (counts.ready, counts.desired_ready, counts.missing, counts.not_ready, counts.modified)
            .hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::{Wake, wakes};

    fn bd(change: serde_json::Value) -> BundleDeployment {
        let mut object = json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": "app", "namespace": "c", "uid": "u", "resourceVersion": "7", "generation": 1},
            "spec": {"deploymentID": "s-1:a"},
            "status": {"appliedDeploymentID": "s-1:a", "release": "ns/app:1", "ready": true,
                "conditions": [{"type": "Ready", "status": "True"}]},
        });
        merge(&mut object, change);
        serde_json::from_value(object).unwrap()
    }

    fn merge(into: &mut serde_json::Value, change: serde_json::Value) {
        match (into, change) {
            (serde_json::Value::Object(into), serde_json::Value::Object(change)) => {
                for (key, value) in change {
                    merge(into.entry(key).or_insert(serde_json::Value::Null), value);
                }
            }
            (into, change) => *into = change,
        }
    }

    #[test]
    fn what_is_applied_without_a_release_and_without_a_failure_is_not() {
        let outdated = |spec: &str, release: &str, installed: &str| {
            let conditions = json!([{"type": "Installed", "status": installed}]);
            let status = json!({"appliedDeploymentID": spec, "release": release, "conditions": conditions});
            snapshot(&bd(json!({"spec": {"deploymentID": spec}, "status": status})), false).outdated
        };
        assert!(outdated("s-1:a", "", "True"));
        assert!(!outdated("s-1:a", "ns/app:1", "True"));
        assert!(!outdated("s-1:a", "", "False"), "nothing was installed, and it is told why");
        assert!(!outdated("", "", "True"), "nothing is asked for");
    }

    #[test]
    fn what_the_status_lacks_is_outdated() {
        assert!(!snapshot(&bd(json!({})), false).outdated);
        assert!(snapshot(&bd(json!({"spec": {"deploymentID": "s-2:a"}})), false).outdated);
        let forced =
            json!({"spec": {"options": {"forceSyncGeneration": 2}}, "status": {"syncGeneration": 1}});
        assert!(snapshot(&bd(forced), false).outdated);
        let copies = |done: i64| {
            json!({"spec": {"options": {"downstreamResources": [{"kind": "Secret", "name": "s"}]},
                "downstreamResourcesGeneration": 2}, "status": {"downstreamResourcesGeneration": done}})
        };
        assert!(snapshot(&bd(copies(1)), false).outdated);
        assert!(!snapshot(&bd(copies(2)), false).outdated);
        assert!(!snapshot(&bd(json!({"spec": {"downstreamResourcesGeneration": 2}})), false).outdated);
    }

    #[test]
    fn held_blocked_and_refused_units_have_a_closed_gate() {
        for (change, gate) in [
            (json!({"spec": {"paused": true}}), Gate::Held),
            (json!({"spec": {"offSchedule": true}}), Gate::Held),
            (json!({"spec": {"waitingForValues": true}}), Gate::Held),
            (json!({"metadata": {"name": "fleet-agent-local"}}), Gate::Refused),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), Gate::Refused),
            (json!({}), Gate::Open),
        ] {
            assert_eq!(snapshot(&bd(change.clone()), false).gate, gate, "{change}");
        }
        assert_eq!(snapshot(&bd(json!({})), true).gate, Gate::Blocked);
    }

    #[test]
    fn display_and_versions_wake_nobody() {
        let before = snapshot(&bd(json!({})), false);
        let after =
            bd(json!({"metadata": {"resourceVersion": "8"}, "status": {"display": {"state": "Ready"}}}));
        assert_eq!(wakes(Some(&before), &snapshot(&after, false)), Wake::Nothing);
        let touched = bd(json!({"metadata": {"labels": {"touch": "1"}}}));
        assert_eq!(wakes(Some(&before), &snapshot(&touched, false)), Wake::Unit);
        let rewritten = bd(json!({"status": {"ready": false}}));
        assert_eq!(wakes(Some(&before), &snapshot(&rewritten, false)), Wake::Unit);
    }
}
