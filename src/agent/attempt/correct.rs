// SPDX-License-Identifier: Apache-2.0
//! A correction: what the deployed revision has is applied once more, as a new revision, under a claim of its own.
//!
//! The revision that is deployed stays so until the new one is: a correction that fails leaves the record as it was.

use std::sync::Arc;

use tracing::info;

use super::{AttemptError, Deployed, Ended, Run, history};
use crate::{
    agent::{
        drift,
        plan::{self, Plan, PlanError},
    },
    api::{self, ReleaseId},
    downstream::{
        drift::Drift,
        release::{Gate, Record, Status},
    },
    monitor::{Evaluation, Key},
    render::{self, Rendered},
    upstream,
};

/// What is put right in place of.
struct Found {
    plan: Arc<Plan>,
    evaluation: Evaluation,
    /// The first object that was changed.
    drift: Option<(Key, Arc<Drift>)>,
}

impl Run {
    /// Runs the correction to its end, whatever that is.
    pub(super) async fn correct(&mut self) -> Ended {
        if let Err(error) = self.act_as_account().await {
            return self.not_corrected(error).await;
        }
        let job = &self.job;
        let found = match self.find().await {
            Ok(found) => found,
            Err(error) => return self.not_corrected(error).await,
        };
        if !is_correctable(&found.evaluation) {
            let Found { plan, evaluation, .. } = found;
            let release = plan.release.clone();
            return Ended::corrected(
                job,
                Deployed { release, operation: None, plan, evaluation, namespace: None },
                None,
            );
        }
        let note = told(&found);
        match self.put_right(&found).await {
            Ok(deployed) => {
                history::note(&job.ctx, &job.name, None);
                Ended::corrected(job, deployed, Some(note))
            }
            Err(error) => self.not_corrected(error).await,
        }
    }

    async fn not_corrected(&self, error: AttemptError) -> Ended {
        let error = history::explain(&self.job, error).await;
        history::note(&self.job.ctx, &self.job.name, Some(&error));
        if self.is_lost(&error).await {
            return Ended::discarded(&self.job, &error);
        }
        Ended::not_corrected(&self.job, &error)
    }

    /// Looks once more: what called for the correction may be over, or another replica may have seen it.
    async fn find(&self) -> Result<Found, AttemptError> {
        let (ctx, job) = (&self.job.ctx, &self.job);
        let release = job.object.status.as_ref().map(|status| status.release.clone()).unwrap_or_default();
        let known = job.plan.clone().filter(|plan| plan.release.to_string() == release);
        let plan = match known {
            Some(plan) => plan,
            None => Arc::new(plan::load(ctx, &job.name, &release).await.map_err(AttemptError::Observe)?),
        };
        plan::watch(ctx, &job.name, &job.object, &plan).await.map_err(AttemptError::Observe)?;
        drift::look(ctx, &job.name, &job.object, &plan).await.map_err(AttemptError::Observe)?;
        let evaluation =
            plan::evaluate(ctx, &job.name, &job.object, &plan).await.map_err(AttemptError::Observe)?;
        let drift = drift::found(ctx, &plan);
        Ok(Found { plan, evaluation, drift })
    }

    async fn put_right(&self, found: &Found) -> Result<Deployed, AttemptError> {
        let (ctx, plan) = (&self.job.ctx, &found.plan);
        let ReleaseId { namespace, name, revision } = &plan.release;
        let records = self.downstream.store.history(namespace, name).await.map_err(AttemptError::Release)?;
        if !stands(&records, *revision) {
            let release = plan.release.to_string();
            return Err(AttemptError::Observe(PlanError::Gone { release }));
        }
        let objects = plan::objects(ctx, &plan.release).await.map_err(AttemptError::Observe)?;
        let wanted = objects.clone();
        let settled = drift::settled(ctx, &self.job.object, plan, objects).await;
        let hash = api::names::object_hash(&api::names::set_id(&self.job.name, &ctx.scope));
        let rendered =
            Rendered { objects: settled.map_err(AttemptError::Observe)?, hash, ..Rendered::default() };
        let history_kept = self.options.helm.as_ref().map_or(0, |helm| helm.max_history);
        let max_history = usize::try_from(history_kept).unwrap_or(0);
        let gate = Gate::correct(
            &self.downstream.store,
            &self.fence,
            &self.job.name,
            records,
            *revision,
            max_history,
        );
        let mut gate = gate.await.map_err(AttemptError::Release)?;
        match self.put_back_in_place(&rendered, &wanted, found, &gate).await {
            Ok((plan, evaluation)) => {
                gate.note_fields(plan.memory.digest(&plan.desired));
                let operation = gate.operation();
                let revision = gate.deployed(None).await.map_err(AttemptError::Release)?;
                let release = ReleaseId { revision, ..found.plan.release.clone() };
                let plan = Arc::new(Plan { release: release.clone(), ..plan });
                Ok(Deployed { release, operation, plan, evaluation, namespace: None })
            }
            Err(error) => {
                let kept = self
                    .job
                    .object
                    .spec
                    .correct_drift
                    .as_ref()
                    .is_some_and(|correct| correct.keep_fail_history);
                let closed = if kept {
                    let repeated = self.repeated(&gate).await;
                    gate.failed(&error.text(), &repeated).await
                } else {
                    gate.withdrawn().await
                };
                if let Err(cause) = closed {
                    info!(
                        cause = upstream::chain(&cause),
                        "the record of the failed correction stays pending"
                    );
                }
                Err(error)
            }
        }
    }

    async fn put_back_in_place(
        &self,
        rendered: &Rendered,
        wanted: &[render::Object],
        found: &Found,
        gate: &Gate,
    ) -> Result<(Plan, Evaluation), AttemptError> {
        let (ctx, job) = (&self.job.ctx, &self.job);
        let owned = self.objects_of(gate.deployed_before()).await?;
        self.apply(rendered, &owned, gate).await?;
        let before = self.objects_of(gate.before()).await?;
        self.prune(
            &Rendered { objects: wanted.to_vec(), hash: rendered.hash.clone(), ..Rendered::default() },
            &before,
            gate,
        )
        .await?;
        let desired = found.plan.desired.clone();
        // Not what was just applied counts, but what the release wants: had the server been told otherwise meanwhile, or
        // a webhook changed it on the way, it would still differ.
        drift::look(ctx, &job.name, &job.object, &found.plan).await.map_err(AttemptError::Observe)?;
        if let Some((key, drift)) = drift::found(ctx, &found.plan)
            && found.drift.as_ref().is_some_and(|(was, _)| *was == key)
        {
            return Err(reverted(&key, &drift));
        }
        let memory = self.memory(wanted, &desired);
        let previous = plan::keys(ctx, &before, &self.namespace).await.unwrap_or_default();
        let plan = Plan { release: ReleaseId::default(), desired, previous, memory };
        let evaluation =
            plan::evaluate(ctx, &job.name, &job.object, &plan).await.map_err(AttemptError::Observe)?;
        Ok((plan, evaluation))
    }
}

/// Whether applying the release once more would help: what is extra only stays on purpose, or until it is finalized.
pub(in crate::agent) fn is_correctable(evaluation: &Evaluation) -> bool {
    evaluation.counts.missing + evaluation.counts.modified > 0
}

/// Whether the revision is deployed and nothing but failed corrections came after it.
fn stands(records: &[Record], revision: u32) -> bool {
    let Some(deployed) = records.iter().find(|record| record.revision == revision) else { return false };
    let Ok(release) = &deployed.release else { return false };
    let later = records.iter().filter(|record| record.revision > revision);
    deployed.status == Status::Deployed
        && later.into_iter().all(|record| {
            record.status != Status::Deployed
                && record.release.as_ref().is_ok_and(|later| later.manifest == release.manifest)
        })
}

fn reverted(key: &Key, drift: &Drift) -> AttemptError {
    let by = match &drift.manager {
        Some(manager) => format!("manager \"{manager}\""),
        None => "an admission webhook, or the API server itself,".to_owned(),
    };
    AttemptError::Reverted { object: key.to_string(), field: drift.field.clone(), by }
}

/// What was found, for people.
fn told(found: &Found) -> String {
    let counts = found.evaluation.counts;
    let mut note = format!("{} changed and {} missing objects put right", counts.modified, counts.missing);
    if let Some((key, drift)) = &found.drift {
        let by =
            drift.manager.as_deref().map(|manager| format!(" by manager \"{manager}\"")).unwrap_or_default();
        note += &format!("; {key}: {} was changed{by}", drift.field);
    }
    note
}
