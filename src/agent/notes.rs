// SPDX-License-Identifier: Apache-2.0
//! One place that reports a unit's changes of state: log line, metric, Event.

use k8s_openapi::api::core::v1::ObjectReference;
use tracing::{debug, info, warn};

use super::context::Context;
use crate::{
    api::{self, BundleDeployment},
    protocol::{Note, TakeoverReason},
    telemetry::{
        events::{EventType, reason},
        metrics,
    },
};

/// Reports what the protocol found worth telling.
pub(super) fn tell(ctx: &Context, name: &str, object: Option<&BundleDeployment>, note: Note) {
    match note {
        Note::Won { attempt } => {
            ctx.metrics.claim_won();
            info!(unit = name, attempt, holder = %ctx.holder, session = %ctx.session_id, "claim won");
        }
        Note::Conflict => {
            ctx.metrics.claim_conflict();
            debug!(unit = name, "a status write met a conflict");
        }
        Note::LostRace { holder } => {
            ctx.metrics.claim_lost();
            debug!(unit = name, holder = %holder, "another replica was first");
        }
        Note::TakenOver { from, reason: why } => {
            ctx.metrics.takeover(metric(why));
            info!(unit = name, session = %from, reason = text(why), "taking over a claim");
            let note = format!("bundle {name}: claim of session {from} taken over: {}", text(why));
            publish(ctx, object, EventType::Normal, reason::TAKEN_OVER, note);
        }
        Note::Discarded => {
            info!(unit = name, "the claim is not ours any more: result discarded");
        }
        Note::Quarantined { lost } => {
            ctx.metrics.claims_quarantined();
            warn!(unit = name, lost, "lost with its holder too often: quarantined");
            let note =
                format!("bundle {name}: quarantined after {lost} attempts were lost with their holders");
            publish(ctx, object, EventType::Warning, reason::QUARANTINED, note);
        }
        Note::AbsenceHeld => {
            warn!(unit = name, "the BundleDeployment is missing, but no deletion was seen: holding on");
            let note = format!(
                "bundle {name}: its BundleDeployment is missing without a DELETED event; \
                 nothing is removed before it was missing for {} s",
                ctx.protocol.absence_grace.as_secs()
            );
            publish(ctx, object, EventType::Warning, reason::ABSENCE_HELD, note);
        }
        Note::Restored => {
            warn!(
                unit = name,
                "versions of the management cluster went backwards: everything is listed anew"
            );
            let note = "the management cluster's versions went backwards (restored from a backup?); everything is \
                        listed anew, and what was deployed after the backup is told by each bundle's conditions";
            publish(ctx, None, EventType::Warning, reason::UPSTREAM_RESTORED, note.to_owned());
        }
    }
}

/// Reports a deployment that went on after its claim was lost: what it still had to write was refused (S1).
pub(super) fn tell_late(ctx: &Context, name: &str, object: Option<&BundleDeployment>) {
    ctx.metrics.stale_write_refused();
    let note = format!(
        "bundle {name}: its claim went to another while this replica worked on it; what was still to be written was refused"
    );
    publish(ctx, object, EventType::Warning, reason::STALE_WRITE_REFUSED, note);
}

/// Publishes an Event about a unit: about its release record when there is one, else about the agent itself.
pub(super) fn publish(
    ctx: &Context,
    object: Option<&BundleDeployment>,
    kind: EventType,
    reason: &'static str,
    note: String,
) {
    let release = object
        .and_then(|object| object.status.as_ref())
        .and_then(|status| status.release.parse::<api::ReleaseId>().ok());
    let regarding = match release {
        Some(release) => record(&release),
        None => ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Secret".into()),
            namespace: Some(ctx.agent_namespace.clone()),
            name: Some("fleet-agent".into()),
            ..ObjectReference::default()
        },
    };
    ctx.events.publish(regarding, kind, reason, note);
}

/// The Secret of a release record.
pub(super) fn record(release: &api::ReleaseId) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Secret".into()),
        namespace: Some(release.namespace.clone()),
        name: Some(format!("sh.helm.release.v1.{}.v{}", release.name, release.revision)),
        ..ObjectReference::default()
    }
}

fn metric(why: TakeoverReason) -> metrics::TakeoverReason {
    match why {
        TakeoverReason::Quiet => metrics::TakeoverReason::Quiet,
        TakeoverReason::Dead => metrics::TakeoverReason::Dead,
        TakeoverReason::Own => metrics::TakeoverReason::Own,
        TakeoverReason::Overdue => metrics::TakeoverReason::Overdue,
        TakeoverReason::Unreadable => metrics::TakeoverReason::Unreadable,
    }
}

fn text(why: TakeoverReason) -> &'static str {
    match why {
        TakeoverReason::Quiet => "its session has been silent",
        TakeoverReason::Dead => "its session has ended",
        TakeoverReason::Own => "it is a claim of this replica that nobody works on",
        TakeoverReason::Overdue => "its budget is spent",
        TakeoverReason::Unreadable => "it cannot be read and stood unchanged for the claim timeout",
    }
}
