// SPDX-License-Identifier: Apache-2.0
use chrono::TimeDelta;
use serde_json::json;

use super::*;
use crate::monitor::ErrorStatuses;

const NOW: &str = "2026-08-22T10:00:00Z";

fn now() -> DateTime<Utc> {
    NOW.parse().unwrap()
}

fn judged<T>(judge: impl FnOnce(&Judge<'_>) -> T) -> T {
    let (ignore, errors) = (IgnoreOptions::default(), ErrorStatuses::default());
    judge(&Judge { ignore: &ignore, errors: &errors, now: now() })
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "namespace": "n", "name": "d", "uid": "u-1", "resourceVersion": "42", "generation": 3,
            "creationTimestamp": "2026-08-22T09:00:00Z",
            "labels": {keys::HASH_LABEL: "abc"},
            "annotations": {keys::EPOCH_ANNOTATION: "bd-uid/41"},
            "managedFields": [
                {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {}}},
                {"manager": "fleetagent", "operation": "Apply", "time": NOW, "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            ],
        },
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": "a very long text"}]}}},
        "status": {"observedGeneration": 3, "replicas": 1},
    })
}

fn typed(object: &Value) -> DynamicObject {
    serde_json::from_value(object.clone()).unwrap()
}

#[test]
fn a_full_object_is_reduced_to_names_versions_and_its_summary() {
    let observed = judged(|judge| observe(&deployment(), judge));
    assert_eq!(*observed.key, Key::new("apps/v1", "Deployment", "n", "d"));
    assert_eq!((observed.uid.as_str(), observed.version.0.as_str()), ("u-1", "42"));
    assert_eq!(observed.generation, Some(3));
    assert_eq!(observed.created_at.as_deref(), Some("2026-08-22T09:00:00Z"));
    assert_eq!(observed.hash.as_deref(), Some("abc"));
    assert_eq!(observed.stamp.as_ref().unwrap().to_string(), "bd-uid/41");
    assert_eq!(observed.summary.message, ["Replicas: 1/2"]);
    assert!(observed.owners.managed.is_some() && !observed.kept && !observed.deleting);
}

#[test]
fn json_and_typed_objects_are_observed_alike() {
    let object = deployment();
    let from_json = judged(|judge| observe(&object, judge));
    let from_typed = judged(|judge| observe_dynamic("apps/v1", "Deployment", &typed(&object), judge));
    assert_eq!(from_json, from_typed);
    assert!(from_json.tells_the_same_as(&from_typed));
}

#[test]
fn metadata_alone_observes_alike_where_a_kind_is_ready_by_existing() {
    let mut object = deployment();
    object["apiVersion"] = "v1".into();
    object["kind"] = "ConfigMap".into();
    object["status"] = Value::Null;
    let full = judged(|judge| observe(&object, judge));
    let metadata = typed(&object).metadata;
    assert_eq!(judged(|judge| observe_metadata("v1", "ConfigMap", &metadata, judge)), full);
    assert!(full.summary.is_ready());
    object["metadata"]["deletionTimestamp"] = NOW.into();
    let metadata = typed(&object).metadata;
    let observed = judged(|judge| observe_metadata("v1", "ConfigMap", &metadata, judge));
    assert!(observed.deleting);
    assert_eq!(observed.summary.message, ["Resource scheduled for deletion"]);
}

#[test]
fn another_version_alone_tells_nothing_new() {
    let one = judged(|judge| observe(&deployment(), judge));
    let mut object = deployment();
    object["metadata"]["resourceVersion"] = "43".into();
    let other = judged(|judge| observe(&object, judge));
    assert_ne!(one, other);
    assert!(one.tells_the_same_as(&other));
    object["status"]["replicas"] = 2.into();
    assert!(!judged(|judge| observe(&object, judge)).tells_the_same_as(&one));
}

#[test]
fn a_field_taken_from_us_changes_the_digest_and_foreign_entries_do_not() {
    let digest = |object: &Value| judged(|judge| observe(object, judge)).owners.managed;
    let before = digest(&deployment());
    let mut object = deployment();
    object["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:status": {}});
    assert_eq!(digest(&object), before);
    object["metadata"]["managedFields"][1]["fieldsV1"] = json!({"f:spec": {}});
    assert!(digest(&object).is_some());
    assert_ne!(digest(&object), before);
    object["metadata"]["managedFields"][1]["operation"] = "Update".into();
    assert_eq!(digest(&object), None);
}

#[test]
fn objects_exempt_from_pruning_or_given_up_on_purpose_are_kept() {
    let kept = |object: &Value| judged(|judge| observe(object, judge)).kept;
    let mut object = deployment();
    object["metadata"]["labels"][keys::PRUNE_LABEL] = "false".into();
    assert!(kept(&object));
    let mut object = deployment();
    object["metadata"]["annotations"][keys::RESOURCE_POLICY] = " Keep ".into();
    assert!(kept(&object));
    object["metadata"]["annotations"][keys::RESOURCE_POLICY] = "drop".into();
    assert!(!kept(&object));
}

#[test]
fn a_stamp_that_is_not_ours_is_none() {
    let mut object = deployment();
    object["metadata"]["annotations"][keys::EPOCH_ANNOTATION] = "nonsense".into();
    assert_eq!(judged(|judge| observe(&object, judge)).stamp, None);
}

#[test]
fn an_unschedulable_pod_turns_from_waiting_to_failed_without_an_event() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "creationTimestamp": NOW},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"},
        ]},
    });
    let observed = judged(|judge| observe(&pod, judge));
    let later = now() + TimeDelta::seconds(15);
    assert_eq!(observed.changes_at(now()), Some(later));
    assert_eq!(observed.summary_at(now()).message, ["no node", "Pod has not been scheduled"]);
    assert_eq!(observed.summary_at(later).message, ["no node", "Pod could not be scheduled"]);
    assert_eq!(observed.changes_at(later), None);
}

#[test]
fn only_kinds_whose_status_says_nothing_are_ready_by_existing() {
    for (api_version, kind) in [
        ("v1", "Secret"),
        ("v1", "ConfigMap"),
        ("v1", "ServiceAccount"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("batch/v1", "CronJob"),
    ] {
        assert!(is_ready_by_existing(api_version, kind), "{kind}");
    }
    for (api_version, kind) in [
        ("v1", "Service"),
        ("v1", "PersistentVolumeClaim"),
        ("apps/v1", "Deployment"),
        ("batch/v1", "Job"),
        ("policy/v1", "PodDisruptionBudget"),
        ("apiregistration.k8s.io/v1", "APIService"),
        ("example.com/v1", "ConfigMap"),
    ] {
        assert!(!is_ready_by_existing(api_version, kind), "{kind}");
    }
}

#[test]
fn ten_thousand_observed_objects_are_a_few_megabytes() {
    // The texts come on top: about 200 bytes for the usual lengths of names, uid, version, time and stamp.
    assert!(size_of::<Observed>() <= 256, "{}", size_of::<Observed>());
    assert!(size_of::<Key>() <= 64, "{}", size_of::<Key>());
    let mut object = deployment();
    object["spec"]["replicas"] = 0.into();
    object["kind"] = "Widget".into();
    let (one, other) = judged(|judge| (observe(&object, judge), observe(&object, judge)));
    assert!(Arc::ptr_eq(&one.summary, &other.summary), "ready objects share their summary");
}

#[test]
fn an_object_without_anything_is_observed_without_anything() {
    let observed = judged(|judge| observe(&json!({}), judge));
    assert_eq!(*observed.key, Key::new("", "", "", ""));
    assert_eq!((observed.hash, observed.stamp, observed.owners.managed), (None, None, None));
}
