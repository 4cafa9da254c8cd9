// SPDX-License-Identifier: Apache-2.0
//! One deployment: claim → load → render → gate → hooks → apply → prune → wait → hooks → observe → finish.
//!
//! The claim stands when `attempt` begins, and the loop writes the finish; in between are the steps of
//! [`Run::deploy`], each with an error of its own. The fence decides before every write downstream whether the
//! claim still allows it.

mod around;
mod correct;
mod error;
mod foresee;
mod hooks;
mod late;
mod load;
mod opening;
mod outcome;
mod place;
mod standing;
mod undo;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, OnceLock},
};

use tokio_util::sync::CancellationToken;
use tracing::info;

pub(super) use correct::is_correctable;
pub use error::AttemptError;
pub use foresee::{Outlook, Prospect, foresee};
use late::Late;
pub use load::Files;
pub use outcome::Ended;
pub(super) use place::kinds_of;

use super::{
    context::Context,
    history,
    inbox::{Name, Outbox},
    plan::{self, Plan},
    proof::Proof,
    waiting::{self, Waits},
};
use crate::{
    api::{self, BundleDeployment, BundleDeploymentOptions, ReleaseId},
    downstream::{
        Downstream, apply,
        fence::{ClaimNow, Fence},
        release::{Gate, Operation},
    },
    monitor::{Evaluation, Key, Owners},
    protocol::{Claim, Epoch, Stamp, Time, Uid},
    render::{self, Rendered},
};

/// What a deployment is started with.
pub struct Job {
    /// Surroundings.
    pub ctx: Arc<Context>,
    /// To the loop.
    pub outbox: Outbox,
    /// The unit.
    pub name: Name,
    /// The object at the claim.
    pub object: Arc<BundleDeployment>,
    /// The claim.
    pub claim: Claim,
    /// Its epoch.
    pub epoch: Epoch,
    /// Nothing is to be deployed, but foreign changes to be put right.
    pub correction: bool,
    /// What is known of the objects, for a correction.
    pub plan: Option<Arc<Plan>>,
    /// A session lost it before.
    pub taken_over: bool,
    /// Earlier BundleDeployments of this name, of which something landed late.
    pub earlier: BTreeSet<Uid>,
    /// When the request was sent that showed the claim as ours.
    pub confirmed: Time,
    /// Stops the work at the next safe point.
    pub cancelled: CancellationToken,
}

/// What stands after a deployment.
pub struct Deployed {
    release: ReleaseId,
    operation: Option<Operation>,
    plan: Arc<Plan>,
    evaluation: Evaluation,
    /// Why the namespace is not as the bundle wants it.
    namespace: Option<String>,
}

/// Runs one deployment to its end, whatever that is.
pub async fn attempt(job: Job) -> Ended {
    let started = job.ctx.clock.now();
    let mut run = Run::new(job);
    if run.job.correction {
        let ended = run.correct().await;
        ended.tell(&run.job, run.job.ctx.clock.now().saturating_sub(started));
        return ended;
    }
    let (result, gate) = run.deploy().await;
    let took = run.job.ctx.clock.now().saturating_sub(started);
    let ended = match result {
        Ok(deployed) => {
            history::note(&run.job.ctx, &run.job.name, None);
            Ended::deployed(&run.job, deployed)
        }
        Err(error) => {
            let error = history::explain(&run.job, error).await;
            history::note(&run.job.ctx, &run.job.name, Some(&error));
            if let Some(gate) = gate {
                let repeated = run.repeated(&gate).await;
                if let Err(cause) = gate.failed(&error.text(), &repeated).await {
                    info!(
                        cause = crate::upstream::chain(&cause),
                        "the record of the failed attempt stays pending"
                    );
                }
            }
            if run.is_lost(&error).await {
                Ended::discarded(&run.job, &error)
            } else {
                let standing = match error.class() {
                    error::Class::Permanent => run.standing().await,
                    _ => None,
                };
                Ended::failed(&run.job, error, standing)
            }
        }
    };
    ended.tell(&run.job, took);
    if let Some(late) = run.late.take() {
        late.look(&run.job);
    }
    ended
}

/// One deployment on its way.
struct Run {
    job: Job,
    fence: Fence,
    options: BundleDeploymentOptions,
    namespace: String,
    release: String,
    /// Earlier BundleDeployments of this name whose release this was.
    earlier: OnceLock<BTreeSet<Uid>>,
    waits: Waits,
    /// This cluster as the bundle's account sees it; until that is known, as the agent does.
    downstream: Downstream,
    /// A copy from the management cluster is another one now.
    renewed: bool,
    /// Who owned the fields of each object when it had been applied.
    applied: Mutex<HashMap<Key, Owners>>,
    /// What is to be looked for once more.
    late: OnceLock<Late>,
}

impl Run {
    fn new(job: Job) -> Self {
        let options = job.object.options().into_owned();
        let uid = job.object.metadata.uid.as_deref().unwrap_or_default();
        let proof = Proof::new(
            job.ctx.clone(),
            job.outbox.clone(),
            job.name.clone(),
            uid.into(),
            &job.claim,
            job.confirmed,
        );
        let fence = Fence {
            stamp: Stamp { uid: uid.into(), epoch: job.epoch.clone() },
            proof: Arc::new(proof),
            ttl: job.ctx.protocol.ttl,
            cancelled: job.cancelled.clone(),
        };
        let namespace = api::release_namespace(&options).to_owned();
        let release = api::release_name(&job.name, &options);
        let (earlier, late) = (OnceLock::new(), OnceLock::new());
        let waits = Waits::new(&job);
        let (downstream, applied) = (job.ctx.downstream.clone(), Mutex::default());
        Self {
            job,
            fence,
            options,
            namespace,
            release,
            earlier,
            waits,
            downstream,
            renewed: false,
            applied,
            late,
        }
    }

    /// Whether the claim went to somebody else meanwhile. A replica that was frozen fails in many ways before it
    /// learns that it was taken over; its successor's success must not be followed by its failure's Event.
    async fn is_lost(&self, error: &AttemptError) -> bool {
        let failed = matches!(error.class(), error::Class::Retryable | error::Class::Permanent);
        failed && matches!(self.fence.proof.confirm().await, Ok(ClaimNow::Lost))
    }

    /// The steps. A gate that comes back is open and to be failed.
    async fn deploy(&mut self) -> (Result<Deployed, AttemptError>, Option<Gate>) {
        if let Err(error) = self.surround().await {
            return (Err(error), None);
        }
        let rendered = match self.prepare().await {
            Ok(rendered) => rendered,
            Err(error) => return (Err(error), None),
        };
        let mut gate = match self.gate(&rendered).await {
            Ok(gate) => gate,
            Err(error) => return (Err(error), None),
        };
        self.waits.last(self.longest_wait(gate.operation(), &rendered.hooks));
        match self.put_in_place(&rendered, &mut gate).await {
            Ok((plan, evaluation)) => {
                let operation = gate.operation();
                gate.note_fields(plan.memory.digest(&plan.desired));
                match gate.deployed(Some(&rendered.notes)).await {
                    Ok(revision) => {
                        let release = ReleaseId {
                            namespace: self.namespace.clone(),
                            name: self.release.clone(),
                            revision,
                        };
                        let plan = Arc::new(Plan { release: release.clone(), ..plan });
                        let namespace = match self.mark_namespace().await {
                            Ok(namespace) => namespace,
                            Err(error) => return (Err(error), None),
                        };
                        (Ok(Deployed { release, operation, plan, evaluation, namespace }), None)
                    }
                    Err(source) => (Err(AttemptError::Release(source)), None),
                }
            }
            Err(error) if self.undoes(&error) => self.undo(&rendered, gate, error).await,
            Err(error) => (Err(error), Some(gate)),
        }
    }

    /// Everything before the release record: load, render, and what a chart wants before anything else.
    async fn prepare(&self) -> Result<Rendered, AttemptError> {
        let mut inputs = self.inputs().await?;
        if inputs.is_install() && self.install_crds(&inputs).await? {
            // Templates may ask for kinds that are served only from now on.
            inputs = self.inputs().await?;
        }
        self.checked(self.render(&inputs).await?).await
    }

    /// Makes the kinds of the chart's `crds/` served, before anything is rendered, as Helm does. Whether any is new.
    async fn install_crds(&self, inputs: &load::Inputs) -> Result<bool, AttemptError> {
        let source = self.source();
        let crds = render::crds(&self.job.ctx.engine, inputs.job(&source)).await;
        let crds = crds.map_err(AttemptError::Render)?;
        if crds.is_empty() {
            return Ok(false);
        }
        apply::install_crds(&self.downstream, &self.fence, &crds).await.map_err(AttemptError::Apply)
    }

    async fn render(&self, inputs: &load::Inputs) -> Result<Rendered, AttemptError> {
        let source = self.source();
        let job = inputs.job(&source);
        let mut rendered = render::render(&self.job.ctx.engine, job).await.map_err(AttemptError::Render)?;
        let kinds = &self.downstream.kinds;
        if !self.options.target_namespace.is_empty() {
            let hooks = rendered.hooks.iter().map(|hook| &hook.object);
            let all = rendered.objects.iter().chain(hooks);
            let wanted = all.map(|object| (&*object.api_version, &*object.kind));
            kinds.prepare(wanted).await.map_err(AttemptError::Kinds)?;
            rendered.force_namespace(&self.options.target_namespace, kinds).map_err(AttemptError::Render)?;
        }
        Ok(rendered)
    }

    /// A bundle that cannot be applied as a whole makes no revision.
    async fn checked(&self, rendered: Rendered) -> Result<Rendered, AttemptError> {
        apply::check(&self.downstream, &rendered.objects).await.map_err(AttemptError::Apply)?;
        Ok(rendered)
    }

    /// Hooks, objects, hooks: everything under the open gate.
    async fn put_in_place(
        &self,
        rendered: &Rendered,
        gate: &mut Gate,
    ) -> Result<(Plan, Evaluation), AttemptError> {
        // What stood already as it is wanted was neither installed nor upgraded.
        let moments = gate.operation().map(hooks::moments);
        if let Some([before, _]) = moments {
            self.run_hooks(gate, &rendered.hash, &rendered.hooks, before).await?;
        }
        let (plan, evaluation) = self.place(rendered, gate).await?;
        let ran = match moments {
            Some([_, after]) => self.run_hooks(gate, &rendered.hash, &rendered.hooks, after).await?,
            None => 0,
        };
        if ran == 0 {
            return Ok((plan, evaluation));
        }
        let evaluation = plan::evaluate(&self.job.ctx, &self.job.name, &self.job.object, &plan).await;
        Ok((plan, evaluation.map_err(AttemptError::Observe)?))
    }

    /// Apply, prune, wait, observe.
    async fn place(&self, rendered: &Rendered, gate: &Gate) -> Result<(Plan, Evaluation), AttemptError> {
        let ctx = &self.job.ctx;
        let before = self.objects_of(gate.before()).await?;
        let owned = self.objects_of(gate.deployed_before()).await?;
        self.apply(rendered, &owned, gate).await?;
        self.prune(rendered, &before, gate).await?;
        let desired =
            plan::keys(ctx, &rendered.objects, &self.namespace).await.map_err(AttemptError::Observe)?;
        let previous = plan::keys(ctx, &before, &self.namespace).await.unwrap_or_default();
        let memory = self.memory(&rendered.objects, &desired);
        let plan = Plan { release: ReleaseId::default(), desired, previous, memory };
        let evaluation = match self.wait_seconds() {
            seconds @ 1.. => {
                let began = ctx.clock.now();
                self.jobs(rendered, seconds).await?;
                let left = seconds.saturating_sub((ctx.clock.now() - began).as_secs()).max(1);
                waiting::until_ready(&self.job, &self.fence, &self.waits, &plan, left).await?
            }
            0 => plan::evaluate(ctx, &self.job.name, &self.job.object, &plan)
                .await
                .map_err(AttemptError::Observe)?,
        };
        Ok((plan, evaluation))
    }
}
