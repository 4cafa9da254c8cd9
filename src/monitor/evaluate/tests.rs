// SPDX-License-Identifier: Apache-2.0
use chrono::TimeDelta;
use serde_json::{Value, json};

use super::*;
use crate::{
    api::{IgnoreOptions, keys},
    monitor::{ErrorStatuses, Judge, observe},
};

fn now() -> DateTime<Utc> {
    "2026-08-22T10:00:00Z".parse().unwrap()
}

fn observed(object: &Value) -> Arc<Observed> {
    let (ignore, errors) = (IgnoreOptions::default(), ErrorStatuses::default());
    Arc::new(observe(object, &Judge { ignore: &ignore, errors: &errors, now: now() }))
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": name, "uid": name}})
}

/// A custom object that is not ready, with this message.
fn widget(name: &str, uid: &str, message: &str) -> Value {
    json!({
        "apiVersion": "gold.example.com/v1", "kind": "Widget",
        "metadata": {"namespace": "n", "name": name, "uid": uid},
        "status": {"conditions": [{"type": "Ready", "status": "False", "message": message}]},
    })
}

/// Judges these live objects, all desired and ours.
fn judged(objects: &[Value]) -> Evaluation {
    let live: Vec<_> = objects.iter().map(observed).collect();
    let desired: Vec<Key> = live.iter().map(|object| (*object.key).clone()).collect();
    let find = |key: &Key| {
        let found = live.iter().find(|object| *object.key == *key);
        Live::Ours(Arc::clone(found.unwrap()))
    };
    evaluate(&desired, &find, &[], now())
}

fn key(name: &str) -> Key {
    Key::new("v1", "ConfigMap", "n", name)
}

#[test]
fn a_release_that_is_all_there_is_ready_and_says_nothing() {
    let result = judged(&[config_map("a"), config_map("b")]);
    assert!(result.ready && result.non_modified && !result.incomplete);
    assert_eq!(result.message, None);
    assert_eq!(result.counts, ResourceCounts { ready: 2, desired_ready: 2, ..ResourceCounts::default() });
    assert_eq!(result.resources[1].name, "b");
}

#[test]
fn an_empty_release_is_ready() {
    let result = judged(&[]);
    assert_eq!(result, Evaluation { ready: true, non_modified: true, ..Evaluation::default() });
}

#[test]
fn what_is_not_ready_is_listed_by_uid_and_the_first_gives_the_text() {
    let result = judged(&[widget("w1", "u2", "two"), widget("w2", "u1", "one"), config_map("a")]);
    let uids: Vec<_> = result.non_ready.iter().map(|entry| entry.uid.as_str()).collect();
    assert_eq!(uids, ["u1", "u2"]);
    assert_eq!(result.message.unwrap(), "widget.gold.example.com n/w2 [progressing] one");
    assert!(!result.ready && result.non_modified);
    let expected = ResourceCounts { ready: 1, not_ready: 2, desired_ready: 3, ..ResourceCounts::default() };
    assert_eq!(result.counts, expected);
}

#[test]
fn missing_and_foreign_objects_are_modified_and_counted_as_missing() {
    let desired = [key("gone"), key("foreign"), key("here")];
    let here = observed(&config_map("here"));
    let live = |key: &Key| match &*key.name {
        "gone" => Live::Missing,
        "foreign" => Live::NotOurs,
        _ => Live::Ours(Arc::clone(&here)),
    };
    let result = evaluate(&desired, &live, &[], now());
    let flags: Vec<_> =
        result.modified.iter().map(|one| (one.name.as_str(), one.missing, one.exist)).collect();
    assert_eq!(flags, [("foreign", true, true), ("gone", true, false)]);
    assert_eq!(result.message.unwrap(), "configmap.v1 n/foreign is not owned by us");
    assert!(result.ready && !result.non_modified);
    let expected = ResourceCounts { ready: 1, missing: 2, desired_ready: 3, ..ResourceCounts::default() };
    assert_eq!(result.counts, expected);
    assert_eq!(result.resources.len(), 1);
    let only = evaluate(&desired[..1], &live, &[], now());
    assert_eq!(only.message.unwrap(), "configmap.v1 n/gone missing");
}

#[test]
fn extra_objects_are_modified_and_counted_as_orphaned_but_are_no_resources() {
    let extra = [observed(&config_map("old"))];
    let result = evaluate(&[], &|_| Live::Missing, &extra, now());
    assert!(result.modified[0].delete && result.resources.is_empty());
    assert_eq!(result.message.unwrap(), "configmap.v1 n/old extra");
    assert_eq!(result.counts, ResourceCounts { orphaned: 1, ..ResourceCounts::default() });
}

#[test]
fn what_is_not_ready_speaks_before_what_is_modified() {
    let live = observed(&widget("w", "u", "wait"));
    let desired = [key("gone"), (*live.key).clone()];
    let find = |key: &Key| if key == &*live.key { Live::Ours(Arc::clone(&live)) } else { Live::Missing };
    let result = evaluate(&desired, &find, &[], now());
    assert_eq!(result.message.unwrap(), "widget.gold.example.com n/w [progressing] wait");
}

#[test]
fn modified_entries_are_sorted_as_one_text() {
    let desired = [key("b"), key("a-b"), Key::new("apps/v1", "Deployment", "", "z"), key("a"), key("B")];
    let result = evaluate(&desired, &|_| Live::Missing, &[], now());
    let names: Vec<_> = result.modified.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["z", "B", "a", "a-b", "b"]);
}

#[test]
fn lists_are_cut_at_ten_and_counts_are_not() {
    let many: Vec<_> =
        (0..12).map(|number| widget(&format!("w{number:02}"), &format!("u{number:02}"), "wait")).collect();
    let result = judged(&many);
    assert_eq!((result.non_ready.len(), result.counts.not_ready), (10, 12));
    assert!(result.incomplete);
    assert_eq!(result.resources.len(), 12);
    assert!(!judged(&many[..10]).incomplete);

    let desired: Vec<_> = (0..11).map(|number| key(&format!("c{number:02}"))).collect();
    let result = evaluate(&desired, &|_| Live::Missing, &[], now());
    assert_eq!((result.modified.len(), result.counts.missing, result.incomplete), (10, 11, true));
}

#[test]
fn resources_stand_kind_by_kind_in_the_releases_order_and_by_name_within() {
    let order = |objects: &[Value]| -> Vec<String> {
        judged(objects).resources.iter().map(|one| format!("{}/{}", one.namespace, one.name)).collect()
    };
    let other =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n-x", "name": "a"}});
    let objects = [widget("w", "u", "m"), config_map("b"), widget("v", "u", "m"), other, config_map("a")];
    assert_eq!(order(&objects), ["n/v", "n/w", "n-x/a", "n/a", "n/b"]);
}

#[test]
fn an_object_named_twice_counts_once() {
    let result = judged(&[config_map("a"), config_map("b"), config_map("a")]);
    assert_eq!(result.counts.desired_ready, 2);
}

#[test]
fn texts_name_the_group_or_the_version_of_the_core_group() {
    assert_eq!(reference("apps/v1", "Deployment", "default", "web"), "deployment.apps default/web");
    assert_eq!(reference("v1", "Service", "default", "svc"), "service.v1 default/svc");
    assert_eq!(reference("v1", "Namespace", "", "n"), "namespace.v1 n");
    assert_eq!(reference("", "Odd", "n", "o"), "odd n/o");
}

#[test]
fn details_carry_the_mark_and_the_messages() {
    let summary = |transitioning, error, message: &[&str]| Summary {
        transitioning,
        error,
        message: message.iter().map(ToString::to_string).collect(),
        ..Summary::default()
    };
    assert_eq!(detail(&summary(true, false, &["m1", "m2"])), "[progressing] m1, m2");
    assert_eq!(detail(&summary(true, true, &["m1"])), "[progressing,error] m1");
    assert_eq!(detail(&summary(false, true, &["m1"])), "error] m1");
    assert_eq!(detail(&summary(true, false, &[])), "[progressing]");
}

#[test]
fn a_changed_object_shows_the_patch_that_would_mend_it() {
    let patch = r#"{"data":{"key":"value"}}"#;
    let entry = ModifiedStatus { patch: patch.into(), ..modified(&key("c")) };
    let evaluation = Evaluation { modified: vec![entry], ..Evaluation::default() };
    assert_eq!(evaluation.text().unwrap(), format!("configmap.v1 n/c modified {patch}"));
}

#[test]
fn only_unwanted_objects_of_the_previous_release_are_extra() {
    let live = |name: &str| observed(&config_map(name));
    let mut exempt = config_map("exempt");
    exempt["metadata"]["labels"] = json!({keys::PRUNE_LABEL: "false"});
    let labelled = [live("wanted"), live("old"), live("copied"), observed(&exempt)];
    let previous = [key("old"), key("exempt"), Key::new("v1", "Secret", "n", "copied")];
    let names = |found: Vec<Arc<Observed>>| -> Vec<String> {
        found.iter().map(|object| object.key.name.to_string()).collect()
    };
    assert_eq!(names(extras(&labelled, &[key("wanted")], &previous)), ["old"]);
}

#[test]
fn an_object_desired_under_another_version_of_its_group_is_not_extra() {
    let scaler = |version: &str| Key::new(version, "HorizontalPodAutoscaler", "n", "h");
    let live = observed(&json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"namespace": "n", "name": "h"}}));
    let previous = [scaler("autoscaling/v1")];
    assert!(extras(&[Arc::clone(&live)], &[scaler("autoscaling/v2")], &previous).is_empty());
    assert_eq!(extras(&[live], &[scaler("other/v2")], &previous).len(), 1);
}

#[test]
fn an_evaluation_is_written_whole_and_the_cut_is_taken_back() {
    let mut status = BundleDeploymentStatus { incomplete_state: true, ..BundleDeploymentStatus::default() };
    judged(&[widget("w", "u", "m")]).write(&mut status, Some(3));
    assert!(!status.ready && status.non_modified && !status.incomplete_state);
    assert_eq!(
        (status.non_ready_status.len(), status.resources.len(), status.sync_generation),
        (1, 1, Some(3))
    );
    assert_eq!(status.resource_counts.unwrap().not_ready, 1);
    judged(&[]).write(&mut status, None);
    assert!(status.ready && status.non_ready_status.is_empty() && status.resources.is_empty());
    assert_eq!(status.resource_counts, Some(ResourceCounts::default()));
}

#[test]
fn the_counts_of_an_empty_release_are_not_written() {
    let mut status = BundleDeploymentStatus::default();
    judged(&[]).write(&mut status, None);
    assert_eq!(status.resource_counts, None);
}

#[test]
fn time_alone_can_change_the_judgement_and_the_result_says_when() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "n", "name": "p", "creationTimestamp": "2026-08-22T09:59:50Z"},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
        ]},
    });
    let result = judged(&[pod, config_map("a")]);
    assert_eq!(result.changes_at, Some(now() + TimeDelta::seconds(5)));
}
