// SPDX-License-Identifier: Apache-2.0
//! The rules of Kubernetes' kstatus library: is one object where its spec wants it to be?
//!
//! Messages are shown to people and compared by tools, so they are word for word those of that library.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::subject::{Condition, Subject};

/// How long a Pod may stay unschedulable before that is a failure; kstatus' own figure.
pub(super) const SCHEDULE_WINDOW: TimeDelta = TimeDelta::seconds(15);

/// Where an object is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not there yet.
    InProgress,
    /// It will not get there by itself.
    Failed,
    /// It is there.
    Current,
    /// It is being deleted.
    Terminating,
}

/// A phase and the text that explains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub phase: Phase,
    pub message: String,
}

fn progress(message: impl Into<String>) -> Outcome {
    Outcome { phase: Phase::InProgress, message: message.into() }
}

fn failed(message: impl Into<String>) -> Outcome {
    Outcome { phase: Phase::Failed, message: message.into() }
}

fn current(message: impl Into<String>) -> Outcome {
    Outcome { phase: Phase::Current, message: message.into() }
}

/// Judges one object; `None` when its status has fields of a wrong type (the summary then goes without).
pub(super) fn compute(subject: &Subject<'_>, now: DateTime<Utc>) -> Option<Outcome> {
    if subject.deleting {
        let message = "Resource scheduled for deletion".into();
        return Some(Outcome { phase: Phase::Terminating, message });
    }
    if let (Some(generation), Some(value)) =
        (subject.generation, subject.at(&["status", "observedGeneration"]))
    {
        let observed = value.as_i64()?;
        if observed != generation {
            let kind = subject.kind;
            return Some(progress(format!(
                "{kind} generation is {generation}, but latest observed generation is {observed}"
            )));
        }
    }
    if subject.malformed {
        return None;
    }
    for condition in subject.status_conditions() {
        if condition.is("Reconciling", "True") {
            return Some(progress(condition.message.clone()));
        }
        if condition.is("Stalled", "True") {
            return Some(failed(condition.message.clone()));
        }
    }
    by_kind(subject, now)
}

fn by_kind(subject: &Subject<'_>, now: DateTime<Utc>) -> Option<Outcome> {
    let group = subject.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    let outcome = match (group, subject.kind) {
        ("", "Service") => service(subject),
        ("", "Pod") => return pod(subject, now),
        ("", "Secret" | "ConfigMap") | ("batch", "CronJob") => current("Resource is always ready"),
        ("", "PersistentVolumeClaim") => claim(subject),
        ("apps", "StatefulSet") => stateful_set(subject),
        ("apps" | "extensions", "DaemonSet") => daemon_set(subject),
        ("apps" | "extensions", "Deployment") => deployment(subject),
        ("apps" | "extensions", "ReplicaSet") => replica_set(subject),
        ("policy", "PodDisruptionBudget") => current("AllowedDisruptions has been computed."),
        ("batch", "Job") => job(subject),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(subject),
        _ => any_other(subject),
    };
    Some(outcome)
}

fn find<'s, 'a>(subject: &'s Subject<'a>, type_: &str) -> Option<&'s Condition<'a>> {
    subject.status_conditions().iter().find(|condition| condition.type_ == type_)
}

fn has(subject: &Subject<'_>, type_: &str, status: &str) -> bool {
    subject.status_conditions().iter().any(|condition| condition.is(type_, status))
}

fn any_other(subject: &Subject<'_>) -> Outcome {
    match find(subject, "Ready") {
        Some(ready) if ready.status == "True" => current("Resource is Ready"),
        Some(ready) if ready.status == "False" || ready.status == "Unknown" => {
            progress(ready.message.clone())
        }
        _ => current("Resource is current"),
    }
}

fn service(subject: &Subject<'_>) -> Outcome {
    let balanced = subject.text(&["spec", "type"], "ClusterIP") == "LoadBalancer";
    if balanced && subject.text(&["spec", "clusterIP"], "").is_empty() {
        return progress("ClusterIP not set. Service type: LoadBalancer");
    }
    current("Service is ready")
}

fn claim(subject: &Subject<'_>) -> Outcome {
    match subject.text(&["status", "phase"], "unknown") {
        "Bound" => current("PVC is Bound"),
        phase => progress(format!("PVC is not Bound. phase: {phase}")),
    }
}

fn pod(subject: &Subject<'_>, now: DateTime<Utc>) -> Option<Outcome> {
    Some(match subject.text(&["status", "phase"], "") {
        "Succeeded" => current("Pod has completed successfully"),
        "Failed" => current("Pod has completed, but not successfully"),
        "Running" if has(subject, "Ready", "True") => current("Pod is Ready"),
        "Running" => match crash_loops(subject).as_slice() {
            [] => progress("Pod is running but is not Ready"),
            names => failed(format!("Containers in CrashLoop state: {}", names.join(","))),
        },
        "Pending" if !is_unschedulable(subject) => progress("Pod is in the Pending phase"),
        "Pending" if subject.created_at.is_some_and(|created| now - SCHEDULE_WINDOW < created) => {
            progress("Pod has not been scheduled")
        }
        "Pending" => failed("Pod could not be scheduled"),
        "" => progress("Pod phase not available"),
        _ => return None,
    })
}

/// Whether a Pod waits for a node that can take it.
pub(super) fn is_unschedulable(subject: &Subject<'_>) -> bool {
    let mut conditions = subject.status_conditions().iter();
    conditions.any(|one| one.is("PodScheduled", "False") && one.reason == "Unschedulable")
}

fn crash_loops<'a>(subject: &Subject<'a>) -> Vec<&'a str> {
    let containers = subject.at(&["status", "containerStatuses"]).and_then(Value::as_array);
    let crashing = |container: &&Value| container["state"]["waiting"]["reason"] == "CrashLoopBackOff";
    containers
        .into_iter()
        .flatten()
        .filter(crashing)
        .filter_map(|container| container["name"].as_str())
        .collect()
}

fn stateful_set(subject: &Subject<'_>) -> Outcome {
    if subject.text(&["spec", "updateStrategy", "type"], "") == "OnDelete" {
        return current("StatefulSet is using the ondelete update strategy");
    }
    let wanted = subject.int(&["spec", "replicas"], 1);
    let status = |field| subject.int(&["status", field], 0);
    let (replicas, ready, updated) = (status("replicas"), status("readyReplicas"), status("updatedReplicas"));
    if wanted > replicas {
        return progress(format!("Replicas: {replicas}/{wanted}"));
    }
    if wanted > ready {
        return progress(format!("Ready: {ready}/{wanted}"));
    }
    if replicas > wanted {
        return progress(format!("Pending termination: {}", replicas - wanted));
    }
    let partition = subject.int(&["spec", "updateStrategy", "rollingUpdate", "partition"], -1);
    if partition != -1 {
        if updated < wanted - partition {
            return progress(format!("updated: {updated}/{}", wanted - partition));
        }
        return current(format!("Partition rollout complete. updated: {updated}"));
    }
    let present = status("currentReplicas");
    if wanted > present {
        return progress(format!("current: {present}/{wanted}"));
    }
    let revision = |field| subject.text(&["status", field], "");
    if revision("currentRevision") != revision("updateRevision") {
        return progress("Waiting for updated revision to match current");
    }
    current(format!("All replicas scheduled as expected. Replicas: {replicas}"))
}

fn daemon_set(subject: &Subject<'_>) -> Outcome {
    if subject.generation.is_none() {
        return progress(format!("{} metadata.generation not found", subject.kind));
    }
    if subject.at(&["status", "observedGeneration"]).is_none() {
        return progress(format!("{} status.observedGeneration not found", subject.kind));
    }
    let status = |field, default| subject.int(&["status", field], default);
    let desired = status("desiredNumberScheduled", -1);
    if desired == -1 {
        return progress("Missing .status.desiredNumberScheduled");
    }
    let steps = [
        ("Current", "currentNumberScheduled"),
        ("Updated", "updatedNumberScheduled"),
        ("Available", "numberAvailable"),
        ("Ready", "numberReady"),
    ];
    for (name, field) in steps {
        let number = status(field, 0);
        if desired > number {
            return progress(format!("{name}: {number}/{desired}"));
        }
    }
    current(format!("All replicas scheduled as expected. Replicas: {desired}"))
}

fn deployment(subject: &Subject<'_>) -> Outcome {
    // Without a deadline the controller writes no Progressing condition that could be waited for.
    let endless = i64::from(i32::MAX);
    let mut progressing = subject.int(&["spec", "progressDeadlineSeconds"], endless) == endless;
    for condition in subject.status_conditions().iter().filter(|condition| condition.type_ == "Progressing") {
        if condition.reason == "ProgressDeadlineExceeded" {
            return failed("Progress deadline exceeded");
        }
        progressing |= condition.status == "True" && condition.reason == "NewReplicaSetAvailable";
    }
    let wanted = subject.int(&["spec", "replicas"], 1);
    let status = |field| subject.int(&["status", field], 0);
    let (replicas, updated) = (status("replicas"), status("updatedReplicas"));
    let (available, ready) = (status("availableReplicas"), status("readyReplicas"));
    if wanted > replicas {
        return progress(format!("Replicas: {replicas}/{wanted}"));
    }
    if wanted > updated {
        return progress(format!("Updated: {updated}/{wanted}"));
    }
    if replicas > wanted {
        return progress(format!("Pending termination: {}", replicas - wanted));
    }
    if updated > available {
        return progress(format!("Available: {available}/{updated}"));
    }
    if wanted > ready {
        return progress(format!("Ready: {ready}/{wanted}"));
    }
    if !progressing {
        return progress("ReplicaSet not Available");
    }
    if !has(subject, "Available", "True") {
        return progress("Deployment not Available");
    }
    current(format!("Deployment is available. Replicas: {replicas}"))
}

fn replica_set(subject: &Subject<'_>) -> Outcome {
    if has(subject, "ReplicaFailure", "True") {
        return progress("Replica Failure condition. Check Pods");
    }
    let wanted = subject.int(&["spec", "replicas"], 1);
    let status = |field| subject.int(&["status", field], 0);
    let steps = [
        ("Labelled", "fullyLabeledReplicas"),
        ("Available", "availableReplicas"),
        ("Ready", "readyReplicas"),
    ];
    for (name, field) in steps {
        let number = status(field);
        if wanted > number {
            return progress(format!("{name}: {number}/{wanted}"));
        }
    }
    let replicas = status("replicas");
    if replicas > wanted {
        return progress(format!("Pending termination: {}", replicas - wanted));
    }
    current(format!("ReplicaSet is available. Replicas: {replicas}"))
}

fn job(subject: &Subject<'_>) -> Outcome {
    let parallelism = subject.int(&["spec", "parallelism"], 1);
    let completions = subject.int(&["spec", "completions"], parallelism);
    let status = |field| subject.int(&["status", field], 0);
    let (succeeded, active, failures) = (status("succeeded"), status("active"), status("failed"));
    let suspended = subject.at(&["spec", "suspend"]) == Some(&Value::Bool(true));
    for condition in subject.status_conditions().iter().filter(|condition| condition.status == "True") {
        match condition.type_.as_ref() {
            "Complete" => return current(format!("Job Completed. succeeded: {succeeded}/{completions}")),
            "Failed" => return failed(format!("Job Failed. failed: {failures}/{completions}")),
            "Suspended" if suspended => return current("Job is suspended"),
            _ => {}
        }
    }
    if subject.text(&["status", "startTime"], "").is_empty() {
        return progress("Job not started");
    }
    current(format!("Job in progress. success:{succeeded}, active: {active}, failed: {failures}"))
}

fn definition(subject: &Subject<'_>) -> Outcome {
    for condition in subject.status_conditions() {
        let refused = condition.is("NamesAccepted", "False");
        let withdrawn = condition.is("Established", "False") && condition.reason != "Installing";
        if refused || withdrawn {
            return failed(condition.message.clone());
        }
        if condition.is("Established", "True") {
            return current("CRD is established");
        }
    }
    progress("Install in progress")
}

#[cfg(test)]
#[path = "kstatus/tests.rs"]
mod tests;
