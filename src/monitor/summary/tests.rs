// SPDX-License-Identifier: Apache-2.0
use serde_json::json;

use super::*;
use crate::{api::IgnoreOptions, monitor::observed::subject_of};

const NOW: &str = "2026-08-22T10:00:00Z";

fn now() -> DateTime<Utc> {
    NOW.parse().unwrap()
}

fn summary(object: &Value) -> Summary {
    summary_at(object, now())
}

fn summary_at(object: &Value, now: DateTime<Utc>) -> Summary {
    let ignore = IgnoreOptions::default();
    summarize(&subject_of(object, &ignore), &ErrorStatuses::default(), now)
}

/// A custom object with these conditions: (type, status, reason, message).
fn widget(conditions: &[(&str, &str, &str, &str)]) -> Value {
    let conditions: Vec<_> = conditions
        .iter()
        .map(|(type_, status, reason, message)| {
            json!({"type": type_, "status": status, "reason": reason, "message": message})
        })
        .collect();
    json!({"apiVersion": "gold.example.com/v1", "kind": "Widget", "metadata": {"name": "w"},
        "status": {"conditions": conditions}})
}

/// Written short: state, then `T` for transitioning and `E` for error, then the messages.
fn short(summary: &Summary) -> String {
    let transitioning = if summary.transitioning { " T" } else { "" };
    let error = if summary.error { " E" } else { "" };
    format!("{}{transitioning}{error}: {}", summary.state, summary.message.join(" | "))
}

#[track_caller]
fn check(object: &Value, expected: &str) {
    assert_eq!(short(&summary(object)), expected, "{object}");
}

#[test]
fn rule_1_takes_the_objects_own_words_display_before_summary() {
    let mut object = widget(&[]);
    object["status"]["summary"] =
        json!({"state": "Odd", "transitioning": true, "error": "true", "message": "m"});
    check(&object, "odd T E: m | Resource is current");
    object["status"]["display"] = json!({"state": "Shown", "error": false});
    check(&object, "shown: Resource is current");
    object["status"]["display"] = json!({});
    check(&object, "odd T E: m | Resource is current");
}

#[test]
fn rule_2_knows_errors_by_reason_and_by_kind() {
    check(&widget(&[("Odd", "True", "Error", "m")]), "error E: m | Resource is current");
    check(&widget(&[("Failed", "True", "R", "m")]), "error E: m | Resource is current");
    check(&widget(&[("Failed", "False", "R", "m")]), "active: Resource is current");
    check(&widget(&[("Stalled", "True", "R", "m")]), "error E: m");
    let both = [("A", "True", "Error", "one"), ("Failed", "True", "R", "two")];
    check(&widget(&both), "error E: one | two | Resource is current");
}

#[test]
fn rule_2_keeps_a_state_that_says_more() {
    let mut object = widget(&[("Failed", "True", "R", "m")]);
    object["status"]["display"] = json!({"state": "cooking"});
    check(&object, "cooking E: m | Resource is current");
    object["status"]["display"] = json!({"state": "active"});
    check(&object, "error E: m | Resource is current");
}

#[test]
fn rule_2_uses_the_fallback_only_for_kinds_without_an_entry() {
    let mut node = widget(&[("Failed", "True", "R", "m"), ("DiskPressure", "True", "R", "full")]);
    node["apiVersion"] = "v1".into();
    node["kind"] = "Node".into();
    check(&node, "error E: full | Resource is current");
}

#[test]
fn rule_3_has_false_overwrite_the_state_and_unknown_only_fill_it() {
    for (type_, state) in FALSE_IS_ERROR {
        let expected = format!("{state} E: m | Resource is current");
        check(&widget(&[(type_, "False", "R", "m")]), &expected);
        let expected = format!("{state} T: m | Resource is current");
        check(&widget(&[(type_, "Unknown", "R", "m")]), &expected);
        check(&widget(&[(type_, "True", "R", "m")]), "active: Resource is current");
    }
    let two = [
        ("Built", "Unknown", "R", "one"),
        ("Saved", "Unknown", "R", "two"),
        ("Created", "False", "R", "three"),
    ];
    check(&widget(&two), "creating T E: one | three | Resource is current");
}

#[test]
fn rule_4_is_for_reconciling_when_nothing_else_was_said() {
    check(&widget(&[("Reconciling", "True", "R", "m")]), "reconciling T: m");
    let both = [("Reconciling", "True", "R", "m"), ("Built", "False", "R", "no")];
    check(&widget(&both), "building T E: no | m");
}

#[test]
fn rule_5_has_false_mean_progress_and_unknown_mean_error() {
    for (type_, state) in FALSE_IS_PROGRESS.iter().filter(|(type_, _)| *type_ != "Ready") {
        let state = state.unwrap_or("why");
        check(&widget(&[(type_, "False", "Why", "m")]), &format!("{state} T: m | Resource is current"));
        check(&widget(&[(type_, "Unknown", "Why", "m")]), &format!("{state} E: m | Resource is current"));
    }
    check(&widget(&[("Ready", "Unknown", "R", "m")]), "unavailable T E: m");
}

#[test]
fn rule_5_lets_another_condition_explain_why_it_is_not_ready() {
    check(&widget(&[("Ready", "False", "R", "m")]), "unavailable T: m");
    let both = [("Ready", "False", "R", "not ready"), ("Available", "False", "R", "why")];
    check(&widget(&both), "updating T: why | not ready");
}

#[test]
fn rule_6_reads_spec_active() {
    for (value, state) in [(json!(true), "active"), (json!(false), "inactive"), (json!("false"), "inactive")]
    {
        let mut object = widget(&[]);
        object["spec"] = json!({"active": value});
        check(&object, &format!("{state}: Resource is current"));
    }
}

#[test]
fn rule_7_clears_transitions_of_what_succeeded_or_is_bound() {
    for (phase, expected) in [
        ("Succeeded", "succeeded: m | Resource is current"),
        ("Bound", "bound: m | Resource is current"),
        ("Growing", "updating T: m | Resource is current"),
    ] {
        let mut object = widget(&[("Available", "False", "R", "m")]);
        object["status"]["phase"] = phase.into();
        check(&object, expected);
    }
    let mut object = widget(&[]);
    object["status"]["phase"] = "Growing".into();
    check(&object, "growing: Resource is current");
}

#[test]
fn rule_8_gives_young_rancher_objects_five_seconds() {
    let mut object = widget(&[]);
    object["apiVersion"] = "management.cattle.io/v3".into();
    object["metadata"]["created"] = NOW.into();
    assert_eq!(
        short(&summary_at(&object, now() + TimeDelta::seconds(4))),
        "initializing T: Resource is current"
    );
    assert_eq!(short(&summary_at(&object, now() + TimeDelta::seconds(5))), "active: Resource is current");
    object["status"] = json!({});
    check(&object, "active: Resource is current");
}

#[test]
fn rule_9_tells_what_a_removal_waits_for() {
    let mut object = widget(&[("Removed", "Unknown", "R", "still there")]);
    object["metadata"]["removed"] = NOW.into();
    check(&object, "removing T: still there | Resource is current");
    object["metadata"]["finalizers"] = json!(["controller.cattle.io/nodes", "other"]);
    check(&object, "removing T: still there | waiting on nodes | Resource is current");
    let late = summary_at(&object, now() + TimeDelta::seconds(301));
    assert!(late.error && late.transitioning);
}

#[test]
fn rule_10_leaves_it_to_kstatus() {
    check(&json!({"apiVersion": "v1", "kind": "ConfigMap"}), "active: Resource is always ready");
    check(&json!({"apiVersion": "apps/v1", "kind": "Deployment"}), "in-progress T: Replicas: 0/1");
    let deleted = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"deletionTimestamp": NOW}});
    check(&deleted, "removing T: Resource scheduled for deletion");
    let refused = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "status": {"conditions": [{"type": "NamesAccepted", "status": "False", "message": "taken"}]}});
    check(&refused, "failed E: taken");
}

#[test]
fn rule_11_waits_for_the_address_of_a_load_balancer() {
    let mut service = json!({"apiVersion": "v1", "kind": "Service",
        "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1"}});
    check(&service, "pending T: Service is ready | Load balancer is being provisioned");
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
    check(&service, "active: Service is ready");
}

#[test]
fn rule_13_runs_whatever_was_said_before() {
    let mut pod = widget(&[("Ready", "False", "R", "not yet")]);
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["status"]["phase"] = "Running".into();
    check(&pod, "unavailable T: not yet | Pod is running but is not Ready");
}

#[test]
fn rule_13_says_repeated_parts_of_a_message_once() {
    check(&widget(&[("Reconciling", "True", "R", "a; b; a")]), "reconciling T: a; b; a | a; b");
}

#[test]
fn a_succeeded_pod_is_ready_and_a_failed_one_is_not() {
    for (phase, expected) in [
        ("Succeeded", "succeeded: done | Pod has completed successfully"),
        ("Failed", "unavailable T: done | Pod has completed, but not successfully"),
    ] {
        let mut pod = widget(&[("Ready", "False", "R", "done")]);
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        pod["status"]["phase"] = phase.into();
        check(&pod, expected);
    }
}

#[test]
fn conditions_of_the_status_annotation_count_after_those_of_the_status() {
    let mut object = widget(&[("Built", "Unknown", "R", "own")]);
    object["metadata"]["annotations"] = json!({"cattle.io/status": r#"{"conditions":[{"type":"Created","status":"False","message":"noted"}]}"#});
    check(&object, "creating T E: own | noted | Resource is current");
    object["metadata"]["annotations"] = json!({"cattle.io/status": "no JSON"});
    check(&object, "building T: own | Resource is current");
}

#[test]
fn a_condition_is_hidden_when_all_pairs_of_one_rule_are_equal() {
    let rule =
        |pairs: &[(&str, &str)]| pairs.iter().map(|&(key, value)| (key.into(), value.into())).collect();
    let ignore = IgnoreOptions {
        conditions: vec![rule(&[("type", "Ready"), ("reason", "Slow")]), rule(&[("type", "Built")])],
    };
    let judged =
        |object: &Value| short(&summarize(&subject_of(object, &ignore), &ErrorStatuses::default(), now()));
    let hidden = widget(&[("Ready", "False", "Slow", "m"), ("Built", "False", "R", "m")]);
    assert_eq!(judged(&hidden), "active: Resource is current");
    assert_eq!(judged(&widget(&[("Ready", "False", "Broken", "m")])), "unavailable T: m");
}

#[test]
fn messages_are_trimmed_and_said_once_and_the_state_is_lower_case() {
    let object = widget(&[
        ("Built", "False", "R", " m "),
        ("Saved", "False", "R", "m"),
        ("Created", "False", "R", " "),
    ]);
    check(&object, "creating E: m | Resource is current");
}

#[test]
fn the_users_error_mapping_is_heeded() {
    let errors = ErrorStatuses::with(
        r#"[{"gvk":"gold.example.com/v1, Kind=Widget","conditionMappings":[{"type":"Odd","status":["True"]}]}]"#,
    )
    .unwrap();
    let ignore = IgnoreOptions::default();
    let object = widget(&[("Odd", "True", "R", "m"), ("Failed", "True", "R", "not listed any more")]);
    let summary = summarize(&subject_of(&object, &ignore), &errors, now());
    assert_eq!(short(&summary), "error E: m | Resource is current");
}
