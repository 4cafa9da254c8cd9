// SPDX-License-Identifier: Apache-2.0
use serde_json::json;

use super::*;
use crate::{api::IgnoreOptions, monitor::observed::subject_of};

const CREATED: &str = "2026-08-22T10:00:00Z";

/// Judges an object `seconds` after its creation.
fn judged_after(seconds: i64, object: &Value) -> Option<Outcome> {
    let created: DateTime<Utc> = CREATED.parse().unwrap();
    let ignore = IgnoreOptions::default();
    compute(&subject_of(object, &ignore), created + TimeDelta::seconds(seconds))
}

/// Checks rows of (spec, status, outcome) for one kind.
fn check(api_version: &str, kind: &str, rows: &[(Value, Value, Outcome)]) {
    for (spec, status, expected) in rows {
        let object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": "x", "generation": 1, "creationTimestamp": CREATED},
            "spec": spec, "status": status,
        });
        assert_eq!(judged_after(60, &object).as_ref(), Some(expected), "{kind} {spec} {status}");
    }
}

fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({"conditions": [{"type": type_, "status": status, "reason": reason, "message": "its message"}]})
}

#[test]
fn deletion_comes_before_everything_else() {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"generation": 2, "deletionTimestamp": CREATED},
        "status": {"observedGeneration": 1},
    });
    let expected = Outcome { phase: Phase::Terminating, message: "Resource scheduled for deletion".into() };
    assert_eq!(judged_after(0, &object), Some(expected));
}

#[test]
fn a_generation_not_yet_observed_is_progress_for_every_kind() {
    let message = "Widget generation is 1, but latest observed generation is 7";
    check(
        "gold.example.com/v1",
        "Widget",
        &[
            (json!({}), json!({"observedGeneration": 7}), progress(message)),
            (json!({}), json!({"observedGeneration": 1}), current("Resource is current")),
        ],
    );
}

#[test]
fn reconciling_and_stalled_decide_for_every_kind() {
    check(
        "v1",
        "ConfigMap",
        &[
            (json!({}), condition("Reconciling", "True", "R"), progress("its message")),
            (json!({}), condition("Stalled", "True", "R"), failed("its message")),
            (json!({}), condition("Reconciling", "False", "R"), current("Resource is always ready")),
        ],
    );
}

#[test]
fn services_wait_for_a_cluster_ip_only_as_load_balancers() {
    check(
        "v1",
        "Service",
        &[
            (
                json!({"type": "LoadBalancer"}),
                json!({}),
                progress("ClusterIP not set. Service type: LoadBalancer"),
            ),
            (
                json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1"}),
                json!({}),
                current("Service is ready"),
            ),
            (json!({"type": "ExternalName"}), json!({}), current("Service is ready")),
            (json!({}), json!({}), current("Service is ready")),
        ],
    );
}

#[test]
fn pods_follow_their_phase() {
    let looping = json!({"phase": "Running", "containerStatuses": [
        {"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        {"name": "ok", "state": {"running": {}}},
        {"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
    ]});
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    check(
        "v1",
        "Pod",
        &[
            (json!({}), json!({}), progress("Pod phase not available")),
            (json!({}), json!({"phase": "Pending"}), progress("Pod is in the Pending phase")),
            (json!({}), json!({"phase": "Running"}), progress("Pod is running but is not Ready")),
            (json!({}), looping, failed("Containers in CrashLoop state: a,b")),
            (json!({}), ready, current("Pod is Ready")),
            (json!({}), json!({"phase": "Succeeded"}), current("Pod has completed successfully")),
            (json!({}), json!({"phase": "Failed"}), current("Pod has completed, but not successfully")),
        ],
    );
}

#[test]
fn a_pod_may_be_unschedulable_for_fifteen_seconds() {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": CREATED},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
        ]},
    });
    assert_eq!(judged_after(14, &object), Some(progress("Pod has not been scheduled")));
    assert_eq!(judged_after(15, &object), Some(failed("Pod could not be scheduled")));
}

#[test]
fn a_pod_phase_nobody_knows_is_not_judged() {
    let object = json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Odd"}});
    assert_eq!(judged_after(0, &object), None);
}

#[test]
fn some_kinds_are_ready_whatever_they_say() {
    for (api_version, kind) in [("v1", "Secret"), ("v1", "ConfigMap"), ("batch/v1", "CronJob")] {
        let status = condition("Ready", "False", "R");
        check(api_version, kind, &[(json!({}), status, current("Resource is always ready"))]);
    }
    let message = "AllowedDisruptions has been computed.";
    check("policy/v1", "PodDisruptionBudget", &[(json!({}), json!({}), current(message))]);
}

#[test]
fn volume_claims_are_current_when_bound() {
    check(
        "v1",
        "PersistentVolumeClaim",
        &[
            (json!({}), json!({}), progress("PVC is not Bound. phase: unknown")),
            (json!({}), json!({"phase": "Lost"}), progress("PVC is not Bound. phase: Lost")),
            (json!({}), json!({"phase": "Bound"}), current("PVC is Bound")),
        ],
    );
}

#[test]
fn stateful_sets_count_their_replicas_in_order() {
    let three = json!({"replicas": 3});
    let partition = json!({"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 1}}});
    let full = json!({"replicas": 3, "readyReplicas": 3, "currentReplicas": 3});
    check(
        "apps/v1",
        "StatefulSet",
        &[
            (json!({}), json!({}), progress("Replicas: 0/1")),
            (three.clone(), json!({"replicas": 1}), progress("Replicas: 1/3")),
            (three.clone(), json!({"replicas": 3, "readyReplicas": 2}), progress("Ready: 2/3")),
            (three.clone(), json!({"replicas": 5, "readyReplicas": 3}), progress("Pending termination: 2")),
            (partition.clone(), full.clone(), progress("updated: 0/2")),
            (
                partition,
                json!({"replicas": 3, "readyReplicas": 3, "updatedReplicas": 2}),
                current("Partition rollout complete. updated: 2"),
            ),
            (
                three.clone(),
                json!({"replicas": 3, "readyReplicas": 3, "currentReplicas": 1}),
                progress("current: 1/3"),
            ),
            (
                three.clone(),
                json!({"replicas": 3, "readyReplicas": 3, "currentReplicas": 3, "currentRevision": "a", "updateRevision": "b"}),
                progress("Waiting for updated revision to match current"),
            ),
            (three, full, current("All replicas scheduled as expected. Replicas: 3")),
            (
                json!({"replicas": 3, "updateStrategy": {"type": "OnDelete"}}),
                json!({}),
                current("StatefulSet is using the ondelete update strategy"),
            ),
        ],
    );
}

#[test]
fn daemon_sets_need_their_generations_and_count_in_order() {
    let seen = |fields: Value| {
        let mut status = fields;
        status["observedGeneration"] = 1.into();
        status
    };
    let none = json!({});
    check(
        "extensions/v1beta1",
        "DaemonSet",
        &[
            (none.clone(), json!({}), progress("DaemonSet status.observedGeneration not found")),
            (none.clone(), seen(json!({})), progress("Missing .status.desiredNumberScheduled")),
            (none.clone(), seen(json!({"desiredNumberScheduled": 2})), progress("Current: 0/2")),
            (
                none.clone(),
                seen(
                    json!({"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "updatedNumberScheduled": 1}),
                ),
                progress("Updated: 1/2"),
            ),
            (
                none.clone(),
                seen(
                    json!({"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "updatedNumberScheduled": 2}),
                ),
                progress("Available: 0/2"),
            ),
            (
                none.clone(),
                seen(
                    json!({"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "updatedNumberScheduled": 1,
                "numberAvailable": 1}),
                ),
                progress("Ready: 0/1"),
            ),
            (
                none,
                seen(json!({"desiredNumberScheduled": 0})),
                current("All replicas scheduled as expected. Replicas: 0"),
            ),
        ],
    );
    let ungenerated = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x"}});
    assert_eq!(judged_after(0, &ungenerated), Some(progress("DaemonSet metadata.generation not found")));
}

#[test]
fn deployments_count_their_replicas_and_then_look_at_conditions() {
    let spec = json!({"replicas": 2, "progressDeadlineSeconds": 600});
    let numbers = |replicas: i64, updated: i64, available: i64, ready: i64| json!({"replicas": replicas, "updatedReplicas": updated, "availableReplicas": available, "readyReplicas": ready});
    let with = |conditions: Value| {
        let mut status = numbers(2, 2, 2, 2);
        status["conditions"] = conditions;
        status
    };
    let rolled_out = json!({"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"});
    let available = json!({"type": "Available", "status": "True"});
    let exceeded = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
    check(
        "apps/v1",
        "Deployment",
        &[
            (spec.clone(), json!({}), progress("Replicas: 0/2")),
            (spec.clone(), numbers(2, 1, 2, 2), progress("Updated: 1/2")),
            (spec.clone(), numbers(3, 2, 2, 2), progress("Pending termination: 1")),
            (spec.clone(), numbers(2, 2, 1, 2), progress("Available: 1/2")),
            (spec.clone(), numbers(2, 2, 2, 1), progress("Ready: 1/2")),
            (spec.clone(), numbers(2, 2, 2, 2), progress("ReplicaSet not Available")),
            (spec.clone(), with(json!([rolled_out])), progress("Deployment not Available")),
            (spec.clone(), with(exceeded), failed("Progress deadline exceeded")),
            (spec, with(json!([rolled_out, available])), current("Deployment is available. Replicas: 2")),
            (
                json!({"replicas": 2}),
                with(json!([available])),
                current("Deployment is available. Replicas: 2"),
            ),
            (
                json!({"replicas": 2, "progressDeadlineSeconds": i32::MAX}),
                with(json!([available])),
                current("Deployment is available. Replicas: 2"),
            ),
        ],
    );
}

#[test]
fn replica_sets_look_at_their_failure_first() {
    let numbers = |labelled: i64, available: i64, ready: i64, replicas: i64| {
        json!({"fullyLabeledReplicas": labelled, "availableReplicas": available, "readyReplicas": ready,
            "replicas": replicas})
    };
    let two = json!({"replicas": 2});
    let failure = condition("ReplicaFailure", "True", "R");
    check(
        "apps/v1",
        "ReplicaSet",
        &[
            (two.clone(), failure, progress("Replica Failure condition. Check Pods")),
            (two.clone(), numbers(1, 2, 2, 2), progress("Labelled: 1/2")),
            (two.clone(), numbers(2, 1, 2, 2), progress("Available: 1/2")),
            (two.clone(), numbers(2, 2, 1, 2), progress("Ready: 1/2")),
            (two.clone(), numbers(2, 2, 2, 4), progress("Pending termination: 2")),
            (two, numbers(2, 2, 2, 2), current("ReplicaSet is available. Replicas: 2")),
        ],
    );
}

#[test]
fn a_running_job_is_current_and_one_not_started_is_not() {
    let spec = json!({"completions": 3});
    let started = |extra: Value| {
        let mut status = extra;
        status["startTime"] = CREATED.into();
        status
    };
    let with = |type_: &str| {
        started(json!({"failed": 1, "succeeded": 2, "conditions": [{"type": type_, "status": "True"}]}))
    };
    check(
        "batch/v1",
        "Job",
        &[
            (spec.clone(), json!({}), progress("Job not started")),
            (
                spec.clone(),
                started(json!({"active": 1, "succeeded": 2, "failed": 4})),
                current("Job in progress. success:2, active: 1, failed: 4"),
            ),
            (spec.clone(), with("Complete"), current("Job Completed. succeeded: 2/3")),
            (spec.clone(), with("Failed"), failed("Job Failed. failed: 1/3")),
            (json!({"parallelism": 5}), with("Complete"), current("Job Completed. succeeded: 2/5")),
            (json!({"suspend": true}), with("Suspended"), current("Job is suspended")),
            (
                json!({"suspend": false}),
                with("Suspended"),
                current("Job in progress. success:2, active: 0, failed: 1"),
            ),
        ],
    );
}

#[test]
fn resource_definitions_are_current_once_established() {
    check(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        &[
            (json!({}), json!({}), progress("Install in progress")),
            (json!({}), condition("Established", "False", "Installing"), progress("Install in progress")),
            (json!({}), condition("Established", "False", "Other"), failed("its message")),
            (json!({}), condition("NamesAccepted", "False", "Taken"), failed("its message")),
            (json!({}), condition("Established", "True", "R"), current("CRD is established")),
        ],
    );
}

#[test]
fn other_kinds_are_as_ready_as_they_say() {
    check(
        "gold.example.com/v1",
        "Widget",
        &[
            (json!({}), json!({}), current("Resource is current")),
            (json!({}), condition("Ready", "True", "R"), current("Resource is Ready")),
            (json!({}), condition("Ready", "False", "R"), progress("its message")),
            (json!({}), condition("Ready", "Unknown", "R"), progress("its message")),
        ],
    );
}

#[test]
fn a_kind_of_another_group_is_not_taken_for_the_built_in_one() {
    check(
        "serving.example.com/v1",
        "Service",
        &[(json!({"type": "LoadBalancer"}), json!({}), current("Resource is current"))],
    );
}

#[test]
fn a_status_of_strange_types_is_not_judged() {
    for status in [
        json!("fine"),
        json!({"conditions": "many"}),
        json!({"conditions": [{"type": "Ready", "status": true}]}),
        json!({"conditions": ["Ready"]}),
        json!({"observedGeneration": "one"}),
    ] {
        let object = json!({
            "apiVersion": "gold.example.com/v1", "kind": "Widget", "metadata": {"generation": 1}, "status": status,
        });
        assert_eq!(judged_after(0, &object), None, "{status}");
    }
}
