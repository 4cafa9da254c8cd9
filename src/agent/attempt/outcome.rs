// SPDX-License-Identifier: Apache-2.0
//! What a deployment leaves: the protocol's outcome, and the status fields for the finish.

use std::{sync::Arc, time::Duration};

use tracing::{info, warn};

use super::{AttemptError, Deployed, Job, error::Class};
use crate::{
    agent::{
        around, notes,
        plan::{self, Plan},
    },
    api::ReleaseId,
    downstream::{fence::Fenced, release::Operation},
    monitor::{
        Evaluation,
        conditions::{DEPLOYED, INSTALLED, MONITORED, READY},
    },
    protocol::{Nonce, Outcome},
    telemetry::{
        events::{EventType, reason},
        metrics::DeploymentOutcome,
    },
    upstream::fields::{Fields, ObservedFields},
};

/// The end of one deployment.
#[derive(Debug)]
pub struct Ended {
    /// Under this claim.
    pub nonce: Nonce,
    /// For the protocol.
    pub outcome: Outcome,
    /// `ns/name:revision`, or empty.
    pub release: String,
    /// For the finish.
    pub fields: Fields,
    /// For monitoring.
    pub plan: Option<Arc<Plan>>,
    told: Told,
}

/// For metric and Event.
#[derive(Debug)]
enum Told {
    Installed,
    Upgraded,
    Adopted,
    Corrected { note: String },
    InOrder,
    NotCorrected { text: String, reverted: bool },
    Failed { text: String, permanent: bool, size: bool },
    Abandoned { met_newer: bool },
}

impl Ended {
    /// Success.
    pub(super) fn deployed(job: &Job, deployed: Deployed) -> Self {
        let Deployed { release, operation, plan, evaluation, namespace } = deployed;
        let mut fields = plan::fields(evaluation, &job.object);
        fields.applied = Some(job.claim.deployment.clone());
        fields.release = Some(release.to_string());
        fields.conditions.insert(0, (DEPLOYED, Ok(())));
        fields.conditions.insert(0, (INSTALLED, Ok(())));
        fields.conditions.push((MONITORED, Ok(())));
        if !job.object.options().downstream_resources.is_empty() {
            fields.copied = Some(job.object.spec.downstream_resources_generation);
        }
        if let Some(text) = &namespace {
            around::tell_marks(&mut fields, text);
        }
        Self {
            nonce: job.claim.nonce.clone(),
            outcome: Outcome::Deployed,
            release: release.to_string(),
            fields,
            plan: Some(plan),
            told: match operation {
                Some(Operation::Install) => Told::Installed,
                Some(Operation::Upgrade | Operation::Rollback { .. }) => Told::Upgraded,
                None => Told::Adopted,
            },
        }
    }

    /// A correction that was done; `note` says of what. `None`: there was nothing left to correct.
    pub(super) fn corrected(job: &Job, deployed: Deployed, note: Option<String>) -> Self {
        let told = note.map_or(Told::InOrder, |note| Told::Corrected { note });
        Self { told, ..Self::deployed(job, deployed) }
    }

    /// A correction that failed: what is deployed stays what it is, and so does what is told of it. Tried again
    /// whatever the reason, since only the cluster decides whether a change can be reverted.
    pub(super) fn not_corrected(job: &Job, error: &AttemptError) -> Self {
        let met_newer = matches!(error.fenced(), Some(Fenced::Newer { .. }));
        match error.class() {
            Class::Stopped => return Self::abandoned(job, Outcome::Stopped, met_newer),
            Class::Fenced => return Self::abandoned(job, Outcome::Fenced, met_newer),
            Class::Retryable | Class::Permanent => {}
        }
        let text = error.text();
        Self {
            nonce: job.claim.nonce.clone(),
            outcome: Outcome::Failed { cause: text.clone() },
            release: String::new(),
            fields: Fields { conditions: vec![(READY, Err(text.clone()))], ..Fields::default() },
            plan: None,
            told: Told::NotCorrected { text, reverted: matches!(error, AttemptError::Reverted { .. }) },
        }
    }

    /// Whether it was a correction that changed something.
    pub fn is_correction(&self) -> bool {
        matches!(self.told, Told::Corrected { .. })
    }

    /// Whether a write of it was refused in favour of a newer claim's.
    pub fn met_newer(&self) -> bool {
        matches!(self.told, Told::Abandoned { met_newer: true })
    }

    /// Anything else.
    ///
    /// `standing` is what was deployed before and still is; only for failures that no retry can mend.
    pub(super) fn failed(job: &Job, error: AttemptError, standing: Option<Deployed>) -> Self {
        let text = error.text();
        let met_newer = matches!(error.fenced(), Some(Fenced::Newer { .. }));
        let (outcome, told) = match error.class() {
            Class::Retryable => (Outcome::Failed { cause: text.clone() }, false),
            Class::Permanent => (Outcome::Permanent, true),
            Class::Stopped => return Self::abandoned(job, Outcome::Stopped, met_newer),
            Class::Fenced => return Self::abandoned(job, Outcome::Fenced, met_newer),
        };
        let told = Told::Failed { text: text.clone(), permanent: told, size: error.is_size() };
        let (mut release, mut plan) = (String::new(), None);
        let fields = match outcome {
            Outcome::Permanent => {
                let mut evaluation = None;
                if let Some(standing) = standing {
                    release = standing.release.to_string();
                    plan = Some(standing.plan);
                    evaluation = Some(standing.evaluation);
                }
                rejected(job, &text, &release, evaluation)
            }
            _ if error.is_silent() => Fields::default(),
            _ => Fields { conditions: vec![(DEPLOYED, Err(text))], ..Fields::default() },
        };
        Self { nonce: job.claim.nonce.clone(), outcome, release, fields, plan, told }
    }

    /// The claim is somebody else's: whatever failed is not told as this unit's failure.
    pub(super) fn discarded(job: &Job, error: &AttemptError) -> Self {
        let met_newer = matches!(error.fenced(), Some(Fenced::Newer { .. }));
        Self::abandoned(job, Outcome::Fenced, met_newer)
    }

    fn abandoned(job: &Job, outcome: Outcome, met_newer: bool) -> Self {
        Self {
            nonce: job.claim.nonce.clone(),
            outcome,
            release: String::new(),
            fields: Fields::default(),
            plan: None,
            told: Told::Abandoned { met_newer },
        }
    }

    /// A defect of ours ended it: that deployment's failure, not the replica's.
    pub fn panicked(nonce: Nonce, panic: &tokio::task::JoinError) -> Self {
        let text = AttemptError::Panicked(panic.to_string()).text();
        Self {
            nonce,
            outcome: Outcome::Failed { cause: text.clone() },
            release: String::new(),
            fields: Fields { conditions: vec![(DEPLOYED, Err(text.clone()))], ..Fields::default() },
            plan: None,
            told: Told::Failed { text, permanent: false, size: false },
        }
    }

    /// Log line, metric and Event of what it came to.
    pub(super) fn tell(&self, job: &Job, took: Duration) {
        let (ctx, name, attempt) = (&job.ctx, &job.name, job.claim.attempt);
        let object = Some(&*job.object);
        let outcome = match &self.told {
            Told::Installed => DeploymentOutcome::Installed,
            Told::Upgraded => DeploymentOutcome::Upgraded,
            Told::Corrected { .. } | Told::InOrder => DeploymentOutcome::Corrected,
            Told::NotCorrected { .. } => DeploymentOutcome::Failed,
            Told::Adopted => DeploymentOutcome::Adopted,
            Told::Failed { permanent: true, .. } => DeploymentOutcome::Rejected,
            Told::Failed { permanent: false, .. } => DeploymentOutcome::Failed,
            Told::Abandoned { .. } => DeploymentOutcome::Abandoned,
        };
        ctx.metrics.deployment(outcome, took);
        match &self.told {
            Told::Installed | Told::Upgraded | Told::Adopted => {
                info!(
                    release = self.release,
                    took_ms = took.as_millis(),
                    outcome = outcome.word(),
                    "deployed"
                );
                let failed_before = job.object.condition(DEPLOYED).is_some_and(|it| it.status == "False");
                let event = match self.told {
                    _ if attempt > 1 || failed_before => {
                        Some((reason::RECOVERED, format!("bundle {name}: deployed at attempt {attempt}")))
                    }
                    Told::Installed => Some((reason::FIRST_DEPLOYED, format!("bundle {name}: deployed"))),
                    _ => None,
                };
                if let (Some((reason, note)), Ok(release)) = (event, self.release.parse::<ReleaseId>()) {
                    ctx.events.publish(notes::record(&release), EventType::Normal, reason, note);
                }
            }
            Told::InOrder => info!("nothing left to correct"),
            Told::Corrected { note } => {
                info!(release = self.release, took_ms = took.as_millis(), cause = note, "corrected");
                let note = format!("bundle {name}: {note}");
                notes::publish(ctx, object, EventType::Normal, reason::DRIFT_CORRECTED, note);
            }
            Told::NotCorrected { text, reverted } => {
                warn!(cause = text, "foreign changes could not be corrected; it is tried again");
                let reason = if *reverted { reason::DRIFT_CONTENDED } else { reason::CORRECTION_FAILED };
                let note = format!("bundle {name} (will be tried again): {text}");
                notes::publish(ctx, object, EventType::Warning, reason, note);
            }
            Told::Failed { text, permanent, size, .. } => {
                warn!(cause = text, permanent, "deployment failed");
                let reason = if *size { reason::SIZE_EXCEEDED } else { reason::DEPLOY_FAILED };
                let next = if *permanent { "waits for a change" } else { "will be tried again" };
                notes::publish(
                    ctx,
                    object,
                    EventType::Warning,
                    reason,
                    format!("bundle {name} ({next}): {text}"),
                );
            }
            Told::Abandoned { .. } => info!(outcome = ?self.outcome, "deployment called off"),
        }
    }
}

/// The status Fleet's agent gives a failure that no retry can mend. What stands is told beside it, if anything does; not
/// ready all the same, or the bundle would count as deployed as it is wanted.
fn rejected(job: &Job, text: &str, release: &str, standing: Option<Evaluation>) -> Fields {
    // Other tools read both; which one Fleet's agent makes false depends on the text.
    let deployed = if AttemptError::is_fleet_non_retryable(text) { Ok(()) } else { Err(text.to_owned()) };
    let observed = match standing.map(|evaluation| plan::fields(evaluation, &job.object).observed) {
        Some(Some(observed)) => ObservedFields { ready: false, ..observed },
        Some(None) | None => ObservedFields { non_modified: true, ..ObservedFields::default() },
    };
    Fields {
        applied: Some(job.claim.deployment.clone()),
        release: Some(release.to_owned()),
        sync_generation: Some(job.object.options().force_sync_generation),
        copied: (!job.object.options().downstream_resources.is_empty())
            .then_some(job.object.spec.downstream_resources_generation),
        observed: Some(observed),
        conditions: vec![
            (INSTALLED, Err(format!("not installed: {text}"))),
            (DEPLOYED, deployed),
            (READY, Err(format!("not ready: {text}"))),
        ],
    }
}
