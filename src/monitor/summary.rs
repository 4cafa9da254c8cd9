// SPDX-License-Identifier: Apache-2.0
//! Readiness of one object in the words of Rancher's summary library: thirteen rules, in order.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::{
    ErrorStatuses,
    kstatus::{self, Phase},
    subject::{Subject, as_text},
};
use crate::api::Summary;

/// Rule 8: how long a Rancher object without conditions counts as new.
const NEW: TimeDelta = TimeDelta::seconds(5);
/// Rule 9: how long a Rancher object may take to be removed before that is an error.
const REMOVAL: TimeDelta = TimeDelta::minutes(5);

/// Conditions that mean an error when false and progress when unknown, with the state they stand for.
const FALSE_IS_ERROR: &[(&str, &str)] = &[
    ("Active", "activating"),
    ("AddonDeploy", "provisioning"),
    ("AgentDeployed", "provisioning"),
    ("CertsGenerated", "provisioning"),
    ("DockerProvisioned", "provisioning"),
    ("NodesCreated", "provisioning"),
    ("Provisioned", "provisioning"),
    ("etcd", "provisioning"),
    ("BackingNamespaceCreated", "configuring"),
    ("ConfigOK", "configuring"),
    ("CreatorMadeOwner", "configuring"),
    ("DefaultNamespaceAssigned", "configuring"),
    ("DefaultNetworkPolicyCreated", "configuring"),
    ("DefaultProjectCreated", "configuring"),
    ("Built", "building"),
    ("Created", "creating"),
    ("Deployed", "deploying"),
    ("Drained", "draining"),
    ("Downloaded", "downloading"),
    ("Inactive", "deactivating"),
    ("Initialized", "initializing"),
    ("Installed", "installing"),
    ("Pending", "pending"),
    ("ScalingActive", "pending"),
    ("AbleToScale", "pending"),
    ("PodScheduled", "scheduling"),
    ("Reconciled", "reconciling"),
    ("Refreshed", "refreshed"),
    ("Registered", "registering"),
    ("Removed", "removing"),
    ("Saved", "saving"),
    ("Updated", "updating"),
    ("Updating", "updating"),
    ("Upgraded", "upgrading"),
    ("Waiting", "waiting"),
    ("InitialRolesPopulated", "activating"),
    ("RunCompleted", "running"),
    ("Processed", "processed"),
];

/// Conditions that mean progress when false and an error when unknown. `None`: the state is the condition's reason.
const FALSE_IS_PROGRESS: &[(&str, Option<&str>)] = &[
    ("Completed", Some("activating")),
    ("Ready", Some("unavailable")),
    ("Available", Some("updating")),
    ("BootstrapReady", None),
    ("InfrastructureReady", None),
    ("NodeHealthy", None),
];

/// Summarizes an object whose conditions have been read.
pub(super) fn summarize(subject: &Subject<'_>, errors: &ErrorStatuses, now: DateTime<Utc>) -> Summary {
    let mut summary = Summary::default();
    own_words(subject, &mut summary);
    error_conditions(subject, errors, &mut summary);
    transitions(subject, &mut summary);
    active(subject, &mut summary);
    phase(subject, &mut summary);
    initializing(subject, now, &mut summary);
    removing(subject, now, &mut summary);
    let outcome = kstatus::compute(subject, now);
    if let Some(outcome) = &outcome {
        standard(outcome, &mut summary);
    }
    load_balancer(subject, &mut summary);
    if let Some(outcome) = &outcome {
        standard_always(outcome, &mut summary);
    }
    finish(summary)
}

/// When the summary of an unchanged object will read differently, if ever after `now`.
pub(super) fn next_change(subject: &Subject<'_>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let waits = subject.kind == "Pod" && kstatus::is_unschedulable(subject);
    let moments = [
        subject.created_at.filter(|_| waits).map(|created| created + kstatus::SCHEDULE_WINDOW),
        time(subject.rancher.created).map(|created| created + NEW),
        // "Before", not "at": a full second later is always past it.
        time(subject.rancher.removed).map(|removed| removed + REMOVAL + TimeDelta::seconds(1)),
    ];
    moments.into_iter().flatten().filter(|&moment| moment > now).min()
}

/// Rule 1: the object says it itself.
fn own_words(subject: &Subject<'_>, summary: &mut Summary) {
    let words = ["display", "summary"].into_iter().find_map(|field| {
        subject.at(&["status", field]).and_then(Value::as_object).filter(|words| !words.is_empty())
    });
    let Some(words) = words else { return };
    let truth = |value: &Value| *value == Value::Bool(true) || value == "true";
    if let Some(state) = words.get("state") {
        summary.state = as_text(Some(state)).into_owned();
    }
    if let Some(transitioning) = words.get("transitioning") {
        summary.transitioning = truth(transitioning);
    }
    if let Some(error) = words.get("error") {
        summary.error = truth(error);
    }
    if let Some(message) = words.get("message") {
        summary.message.push(as_text(Some(message)).into_owned());
    }
}

/// Rule 2: conditions that are errors, by their reason or by the kind's table.
fn error_conditions(subject: &Subject<'_>, errors: &ErrorStatuses, summary: &mut Summary) {
    if subject.conditions.is_empty() {
        return;
    }
    let table = errors.of(subject.api_version, subject.kind);
    for condition in &subject.conditions {
        let listed = table.get(condition.type_.as_ref());
        let listed = listed.is_some_and(|statuses| statuses.iter().any(|status| *status == condition.status));
        if listed || condition.reason == "Error" {
            summary.error = true;
            summary.message.push(condition.message.clone().into_owned());
            if summary.state.is_empty() || summary.state == "active" {
                summary.state = "error".into();
            }
        }
    }
}

/// Rules 3, 4 and 5: conditions that tell of a transition.
fn transitions(subject: &Subject<'_>, summary: &mut Summary) {
    for condition in &subject.conditions {
        let entry = FALSE_IS_ERROR.iter().find(|(type_, _)| *type_ == condition.type_);
        let Some((_, state)) = entry else { continue };
        if condition.status == "False" {
            summary.error = true;
        } else if condition.status == "Unknown" && summary.state.is_empty() {
            summary.transitioning = true;
        } else {
            continue;
        }
        say(summary, state, &condition.message);
    }
    if summary.state.is_empty()
        && let Some(condition) = subject.conditions.iter().find(|one| one.is("Reconciling", "True"))
    {
        summary.transitioning = true;
        say(summary, "reconciling", &condition.message);
    }
    let mut not_ready = None;
    for condition in &subject.conditions {
        if !summary.state.is_empty() {
            return;
        }
        if condition.is("Ready", "False") {
            // Said last: another condition usually knows better why.
            not_ready = Some(&condition.message);
            continue;
        }
        let entry = FALSE_IS_PROGRESS.iter().find(|(type_, _)| *type_ == condition.type_);
        let Some((_, state)) = entry else { continue };
        match condition.status.as_ref() {
            "False" => summary.transitioning = true,
            "Unknown" => summary.error = true,
            _ => continue,
        }
        say(summary, state.unwrap_or(&condition.reason), &condition.message);
    }
    if let Some(message) = not_ready.filter(|_| summary.state.is_empty()) {
        summary.transitioning = true;
        say(summary, "unavailable", message);
    }
}

fn say(summary: &mut Summary, state: &str, message: &str) {
    state.clone_into(&mut summary.state);
    summary.message.push(message.to_owned());
}

/// Rule 6: `spec.active`.
fn active(subject: &Subject<'_>, summary: &mut Summary) {
    if summary.state.is_empty() {
        match as_text(subject.at(&["spec", "active"])).as_ref() {
            "true" => summary.state = "active".into(),
            "false" => summary.state = "inactive".into(),
            _ => {}
        }
    }
}

/// Rule 7: `status.phase`.
fn phase(subject: &Subject<'_>, summary: &mut Summary) {
    let phase = as_text(subject.at(&["status", "phase"]));
    match phase.as_ref() {
        "Succeeded" | "Bound" => {
            summary.state = phase.to_ascii_lowercase();
            summary.transitioning = false;
        }
        "" => {}
        _ if summary.state.is_empty() => summary.state = phase.into_owned(),
        _ => {}
    }
}

/// Rule 8: a Rancher object too young to have conditions.
fn initializing(subject: &Subject<'_>, now: DateTime<Utc>, summary: &mut Summary) {
    let bare =
        subject.has_conditions && subject.conditions.is_empty() && subject.api_version.contains("cattle.io");
    let young = || time(subject.rancher.created).is_some_and(|created| created + NEW > now);
    if summary.state.is_empty() && bare && young() {
        summary.state = "initializing".into();
        summary.transitioning = true;
    }
}

/// Rule 9: a Rancher object being removed.
fn removing(subject: &Subject<'_>, now: DateTime<Utc>, summary: &mut Summary) {
    if subject.rancher.removed.is_empty() {
        return;
    }
    summary.state = "removing".into();
    summary.transitioning = true;
    let waiting =
        subject.conditions.iter().filter(|one| one.is("Removed", "Unknown") || one.is("Removed", "False"));
    summary.message.extend(waiting.map(|condition| condition.message.clone().into_owned()));
    if subject.rancher.finalizer.is_empty() {
        return;
    }
    let finalizer = subject.rancher.finalizer;
    let finalizer = finalizer.rsplit_once("controller.cattle.io/").map_or(finalizer, |(_, name)| name);
    let what = if finalizer == "foregroundDeletion" { "object cleanup" } else { finalizer };
    summary.message.push(format!("waiting on {what}"));
    summary.error |= time(subject.rancher.removed).is_some_and(|removed| removed + REMOVAL < now);
}

/// Rule 10: kstatus, for objects that have said nothing so far.
fn standard(outcome: &kstatus::Outcome, summary: &mut Summary) {
    if !summary.state.is_empty() {
        return;
    }
    let state = match outcome.phase {
        Phase::InProgress => "in-progress",
        Phase::Failed => "failed",
        Phase::Current => "active",
        Phase::Terminating => "removing",
    };
    summary.transitioning |= matches!(outcome.phase, Phase::InProgress | Phase::Terminating);
    summary.error |= outcome.phase == Phase::Failed;
    say(summary, state, &outcome.message);
}

/// Rule 11: a load balancer without an address.
fn load_balancer(subject: &Subject<'_>, summary: &mut Summary) {
    let undecided = summary.state.is_empty() || summary.state == "active";
    let balanced = ["serviceKind", "type"]
        .into_iter()
        .any(|field| subject.at(&["spec", field]).is_some_and(|value| value == "LoadBalancer"));
    if undecided && subject.kind == "Service" && balanced {
        let addresses = subject.at(&["status", "loadBalancer", "ingress"]).and_then(Value::as_array);
        if addresses.is_none_or(Vec::is_empty) {
            summary.transitioning = true;
            say(summary, "pending", "Load balancer is being provisioned");
        }
    }
}

/// Rule 13: kstatus once more, whatever was said before.
fn standard_always(outcome: &kstatus::Outcome, summary: &mut Summary) {
    summary.transitioning |= matches!(outcome.phase, Phase::InProgress | Phase::Terminating);
    summary.error |= outcome.phase == Phase::Failed;
    let mut parts: Vec<&str> = Vec::new();
    for part in outcome.message.split("; ") {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    summary.message.push(parts.join("; "));
}

fn finish(mut summary: Summary) -> Summary {
    if summary.state.is_empty() {
        summary.state = "active".into();
    }
    summary.state = summary.state.to_lowercase();
    let mut messages: Vec<String> = Vec::with_capacity(summary.message.len());
    for message in summary.message {
        let message = message.trim();
        if !message.is_empty() && messages.iter().all(|known| known != message) {
            messages.push(message.to_owned());
        }
    }
    Summary { message: messages, ..summary }
}

fn time(text: &str) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc())
}

#[cfg(test)]
#[path = "summary/tests.rs"]
mod tests;
