// SPDX-License-Identifier: Apache-2.0
//! Readiness as recorded from Fleet's agent: the same live objects must give the same status.
//!
//! Each recording holds the live objects without their status; the status is what the API server sets on creation,
//! overlaid with what the steps patch. What needs a cluster (drift patches, the recording's deploys) is left to the
//! conformance tests.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use chrono::{DateTime, Utc};
use flotilla::{
    api::{BundleDeploymentResource, BundleDeploymentStatus, IgnoreOptions, NonReadyStatus, keys},
    monitor::{ErrorStatuses, Evaluation, Judge, Key, Live, Observed, evaluate, observe},
};
use serde_json::{Value, json};

type Place = (String, String, String);

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn place(object: &Value) -> Place {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = object.get("metadata").unwrap_or(object);
    (text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
}

/// The status an API server gives a new object.
fn initial_status(kind: &str) -> Value {
    match kind {
        "Pod" | "PersistentVolumeClaim" => json!({"phase": "Pending"}),
        "Service" => json!({"loadBalancer": {}}),
        "DaemonSet" => json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}),
        "StatefulSet" => json!({"replicas": 0, "availableReplicas": 0}),
        "HorizontalPodAutoscaler" => json!({"desiredReplicas": 0, "currentMetrics": null}),
        _ => json!({}),
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// Follows one case; calls `check` after each recorded step.
fn follow(case: &Path, check: &dyn Fn(&str, &Evaluation, &BundleDeploymentStatus)) {
    let (steps, expected) = (read(&case.join("steps.json")), read(&case.join("expected.json")));
    let mut statuses: BTreeMap<Place, Value> = BTreeMap::new();
    let mut recorded = expected["steps"].as_array().unwrap().iter().peekable();
    for step in steps["steps"].as_array().unwrap() {
        for patch in step["actions"].as_array().unwrap().iter().map(|action| &action["patch"]) {
            if patch["status"] == true {
                let status =
                    statuses.entry(place(patch)).or_insert_with_key(|(kind, ..)| initial_status(kind));
                merge(status, &patch["patch"]["status"]);
            }
        }
        if step["settle"] == false {
            continue;
        }
        let seen = recorded.next().unwrap();
        assert_eq!(seen["step"], step["name"]);
        let deployments = seen["bundleDeployments"].as_object().unwrap();
        let status = &deployments.values().next().unwrap()["status"];
        let status: BundleDeploymentStatus = serde_json::from_value(status.clone()).unwrap();
        let objects = live_objects(&seen["objects"], &statuses, &status);
        let name = format!("{} {}", steps["case"].as_str().unwrap(), step["name"].as_str().unwrap());
        check(&name, &judged(&objects), &status);
    }
    assert!(recorded.next().is_none());
}

/// The recorded objects of the release, with a status and with uids in the recording's order.
fn live_objects(
    objects: &Value,
    statuses: &BTreeMap<Place, Value>,
    expected: &BundleDeploymentStatus,
) -> Vec<Value> {
    let mut result = Vec::new();
    for object in objects.as_array().unwrap() {
        if object["metadata"]["labels"][keys::HASH_LABEL].is_null() {
            continue;
        }
        let place = place(object);
        let mut object = object.clone();
        object["status"] = statuses.get(&place).cloned().unwrap_or_else(|| initial_status(&place.0));
        let named = |entry: &NonReadyStatus| entry.kind == place.0 && entry.name == place.2;
        let rank = expected.non_ready_status.iter().position(named);
        object["metadata"]["uid"] =
            rank.map_or_else(|| "u-none".into(), |rank| format!("u-{rank:02}")).into();
        object["metadata"]["creationTimestamp"] = "2026-08-22T10:00:00Z".into();
        result.push(object);
    }
    result
}

fn judged(objects: &[Value]) -> Evaluation {
    let now: DateTime<Utc> = "2026-08-22T10:01:00Z".parse().unwrap();
    let (ignore, errors) = (IgnoreOptions::default(), ErrorStatuses::default());
    let judge = Judge { ignore: &ignore, errors: &errors, now };
    let live: BTreeMap<Key, Arc<Observed>> = objects
        .iter()
        .map(|object| observe(object, &judge))
        .map(|observed| ((*observed.key).clone(), Arc::new(observed)))
        .collect();
    let desired: Vec<Key> = live.keys().cloned().collect();
    evaluate(&desired, &|key| Live::Ours(Arc::clone(&live[key])), &[], now)
}

fn without_uid(list: &[NonReadyStatus]) -> Vec<NonReadyStatus> {
    list.iter().map(|entry| NonReadyStatus { uid: String::new(), ..entry.clone() }).collect()
}

fn names(list: &[BundleDeploymentResource]) -> Vec<(&str, &str, &str, &str)> {
    let mut names: Vec<_> =
        list.iter().map(|one| (&*one.api_version, &*one.kind, &*one.namespace, &*one.name)).collect();
    names.sort_unstable();
    names
}

#[test]
fn every_recorded_readiness_case_reads_as_fleets_agent_reported_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/readiness");
    let mut cases: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    assert!(cases.len() >= 9, "recordings are missing");
    for case in cases {
        follow(&case, &|name, ours, theirs| {
            assert_eq!(ours.ready, theirs.ready, "{name}: ready");
            assert_eq!(
                without_uid(&ours.non_ready),
                without_uid(&theirs.non_ready_status),
                "{name}: not ready"
            );
            assert_eq!(names(&ours.resources), names(&theirs.resources), "{name}: resources");
            let (counted, recorded) = (ours.counts, theirs.resource_counts.unwrap_or_default());
            // Drifted objects count as ready as long as drift is not looked at.
            assert_eq!(counted.ready, recorded.ready + recorded.modified, "{name}: ready");
            assert_eq!(counted.not_ready, recorded.not_ready, "{name}: not ready");
            assert_eq!(counted.desired_ready, recorded.desired_ready, "{name}: desired");
            let ready = theirs.conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
            assert_eq!(ours.message.as_deref().unwrap_or_default(), ready.message, "{name}: Ready text");
            // Fleet's agent never takes the flag back; ours says what is true now.
            assert_eq!(ours.incomplete, theirs.non_ready_status.len() == 10, "{name}: incomplete");
        });
    }
}
