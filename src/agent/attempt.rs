// SPDX-License-Identifier: Apache-2.0
//! One deployment: claim → load → render → gate → hooks → apply → prune → wait → hooks → observe → finish.
//!
//! The claim stands when `attempt` begins, and the loop writes the finish; in between are the steps of
//! [`Run::deploy`], each with an error of its own. The fence decides before every write downstream whether the
//! claim still allows it.

mod around;
mod error;
mod hooks;
mod late;
mod load;
mod opening;
mod outcome;
mod undo;

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use error::AttemptError;
pub(super) use hooks::stored as stored_hooks;
use late::Late;
pub use outcome::Ended;

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
        Downstream,
        apply::{self, Known, KnownObjects, Owner},
        completion,
        fence::Fence,
        kinds::Kind,
        live::LiveStore,
        objects::Identity,
        prune,
        release::{Gate, Operation, Record},
        removal::{Gone, Removed},
    },
    monitor::{self, Evaluation, Judge, Key},
    protocol::{Claim, Epoch, Stamp, Time},
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
    /// A session lost it before.
    pub taken_over: bool,
    /// When the request was sent that showed the claim as ours.
    pub confirmed: Time,
    /// Stops the work at the next safe point.
    pub cancelled: CancellationToken,
}

/// What stands after a deployment.
pub struct Deployed {
    release: ReleaseId,
    operation: Option<Operation>,
    plan: Plan,
    evaluation: Evaluation,
    /// Why the namespace is not as the bundle wants it.
    namespace: Option<String>,
}

/// Runs one deployment to its end, whatever that is.
pub async fn attempt(job: Job) -> Ended {
    let started = job.ctx.clock.now();
    let mut run = Run::new(job);
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
            if let Some(gate) = gate
                && let Err(cause) = gate.failed(&error.text()).await
            {
                info!(
                    cause = crate::upstream::chain(&cause),
                    "the record of the failed attempt stays pending"
                );
            }
            if run.is_lost(&error).await {
                Ended::discarded(&run.job, &error)
            } else {
                Ended::failed(&run.job, error)
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
    waits: Waits,
    /// This cluster as the bundle's account sees it; until that is known, as the agent does.
    downstream: Downstream,
    /// A copy from the management cluster is another one now.
    renewed: bool,
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
            job.claim.nonce.clone(),
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
        let waits = Waits::new(&job);
        let downstream = job.ctx.downstream.clone();
        let late = OnceLock::new();
        Self { job, fence, options, namespace, release, waits, downstream, renewed: false, late }
    }

    /// Whether the claim went to somebody else meanwhile. A replica that was frozen fails in many ways before it
    /// learns that it was taken over; its successor's success must not be followed by its failure's Event.
    async fn is_lost(&self, error: &AttemptError) -> bool {
        let failed = matches!(error.class(), error::Class::Retryable | error::Class::Permanent);
        failed && matches!(self.fence.proof.confirm().await, Ok(false))
    }

    /// The steps. A gate that comes back is open and to be failed.
    async fn deploy(&mut self) -> (Result<Deployed, AttemptError>, Option<Gate>) {
        if let Err(error) = self.begin().await {
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
                match gate.deployed(Some(&rendered.notes)).await {
                    Ok(revision) => {
                        let release = ReleaseId {
                            namespace: self.namespace.clone(),
                            name: self.release.clone(),
                            revision,
                        };
                        let plan = Plan { release: release.clone(), ..plan };
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

    async fn begin(&mut self) -> Result<(), AttemptError> {
        error::supported(&self.job.object.spec)?;
        self.surround().await
    }

    /// Everything before the release record: load, render, and what a chart wants before anything else.
    async fn prepare(&self) -> Result<Rendered, AttemptError> {
        let inputs = self.load().await?;
        let rendered = self.render(&inputs).await?;
        if rendered.crds.is_empty() || !inputs.is_install() {
            return self.checked(rendered).await;
        }
        let installed = apply::install_crds(&self.downstream, &self.fence, &rendered.crds).await;
        if installed.map_err(AttemptError::Apply)? {
            // Templates may ask for kinds that are served only from now on.
            let inputs = self.load().await?;
            return self.checked(self.render(&inputs).await?).await;
        }
        self.checked(rendered).await
    }

    async fn render(&self, inputs: &load::Inputs) -> Result<Rendered, AttemptError> {
        let job = inputs.job(self);
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
        let plan = Plan { release: ReleaseId::default(), desired, previous };
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

    /// Waits for the bundle's Jobs, if it asks for that.
    async fn jobs(&self, rendered: &Rendered, seconds: u64) -> Result<(), AttemptError> {
        let wanted = self.options.helm.as_ref().is_some_and(|helm| helm.wait_for_jobs);
        if !wanted || !rendered.objects.iter().any(completion::is_job) {
            return Ok(());
        }
        self.waits.begin().await;
        let (timeout, cancelled) = (Duration::from_secs(seconds), &self.fence.cancelled);
        let ctx = &self.job.ctx.downstream;
        completion::jobs_done(ctx, &self.namespace, &rendered.objects, timeout, cancelled)
            .await
            .map_err(AttemptError::Jobs)
    }

    async fn apply(
        &self,
        rendered: &Rendered,
        owned: &[render::Object],
        gate: &Gate,
    ) -> Result<(), AttemptError> {
        let ctx = &self.job.ctx;
        let ignore = self.options.ignore.clone().unwrap_or_default();
        // Before the objects are there: what the answers show is taken over only for kinds that are watched.
        ctx.live.ignore(&rendered.hash, &ignore);
        for object in &rendered.objects {
            if let Some(kind) = ctx.downstream.kinds.known(&object.api_version, &object.kind) {
                ctx.live.ensure(&kind.resource);
            }
        }
        let previous = Identity::of_all(owned, &ctx.downstream.kinds, &self.namespace);
        let owner = self.owner(gate.operation(), &previous);
        let known = KnownLive(&ctx.live);
        let applied =
            apply::apply_all(&self.downstream, &self.fence, &owner, &rendered.objects, Some(&known))
                .await
                .map_err(AttemptError::Apply)?;
        let judge = Judge { ignore: &ignore, errors: &ctx.errors, now: ctx.clock.wall() };
        for object in applied {
            ctx.live.upsert(monitor::observe(&object.live, &judge));
        }
        Ok(())
    }

    fn owner<'a>(&'a self, operation: Option<Operation>, previous: &'a HashSet<Identity>) -> Owner<'a> {
        let helm = self.options.helm.as_ref();
        Owner {
            namespace: &self.namespace,
            name: &self.release,
            upgrade: matches!(operation, Some(Operation::Upgrade)),
            replace: helm.is_some_and(|helm| helm.force),
            take_ownership: helm.is_some_and(|helm| helm.take_ownership),
            overwrites: &self.options.overwrites,
            previous,
        }
    }

    /// Removes what the bundle no longer has, and after a takeover what its late holder may have left.
    async fn prune(
        &self,
        rendered: &Rendered,
        before: &[render::Object],
        gate: &Gate,
    ) -> Result<(), AttemptError> {
        let ctx = &self.job.ctx;
        let blind = gate.is_blind() || self.lost_its_records(gate);
        if before.is_empty() && !self.job.taken_over && !blind {
            return Ok(());
        }
        let keep = Identity::of_all(&rendered.objects, &ctx.downstream.kinds, &self.namespace);
        let release = (self.namespace.as_str(), self.release.as_str());
        let mut removed = prune::prune(&self.downstream, &self.fence, release, before, &keep)
            .await
            .map_err(AttemptError::Prune)?;
        if self.job.taken_over {
            let kinds = kinds_of(ctx, before.iter().chain(&rendered.objects));
            let strays = prune::strays(&self.downstream, &self.fence, &kinds, &rendered.hash, &keep);
            removed.extend(strays.await.map_err(AttemptError::Prune)?);
            let (hash, stamp) = (rendered.hash.clone(), self.fence.stamp.clone());
            let _ = self.late.set(Late { kinds, hash, keep: keep.clone(), stamp });
        }
        if blind {
            warn!("a release record is lost: what it had is looked for by its labels");
            let unlisted = prune::unlisted(&self.downstream, &self.fence, release, &rendered.hash, &keep);
            removed.extend(unlisted.await.map_err(AttemptError::Prune)?);
        }
        self.forget(removed);
        Ok(())
    }

    /// Whether the status names this very release and there is no record of it: somebody deleted it.
    fn lost_its_records(&self, gate: &Gate) -> bool {
        let known =
            self.job.object.status.as_ref().and_then(|status| status.release.parse::<ReleaseId>().ok());
        gate.operation().is_some()
            && gate.before().is_empty()
            && known.is_some_and(|known| known.namespace == self.namespace && known.name == self.release)
    }

    /// What is gone for good must not show as extra until its event comes.
    fn forget(&self, removed: Vec<Removed>) {
        for removed in removed {
            if let Some(Gone { api_version, uid }) = removed.gone {
                let object = removed.object;
                let key = Key::new(&api_version, &object.kind, &object.namespace, &object.name);
                self.job.ctx.live.removed(&key, &uid);
            }
        }
    }

    /// The objects that these revisions list.
    async fn objects_of(
        &self,
        records: impl IntoIterator<Item = &Record>,
    ) -> Result<Vec<render::Object>, AttemptError> {
        let mut objects = Vec::new();
        for record in records {
            let Ok(release) = &record.release else { continue };
            let stored = render::parse_manifest(&self.job.ctx.engine, &release.manifest).await;
            objects.extend(stored.map_err(AttemptError::Render)?);
        }
        Ok(objects)
    }
}

/// The kinds of these objects, each once.
pub(super) fn kinds_of<'o>(
    ctx: &Context,
    objects: impl Iterator<Item = &'o render::Object>,
) -> Vec<Arc<Kind>> {
    let mut kinds: Vec<Arc<Kind>> = Vec::new();
    for object in objects {
        if let Some(kind) = ctx.downstream.kinds.known(&object.api_version, &object.kind)
            && !kinds.contains(&kind)
        {
            kinds.push(kind);
        }
    }
    kinds
}

/// The live store as the apply sees it: what is known with a stamp need not be read.
struct KnownLive<'a>(&'a LiveStore);

impl KnownObjects for KnownLive<'_> {
    fn known(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Known> {
        let key = Key::new(&kind.resource.api_version, &kind.resource.kind, namespace, name);
        let observed = self.0.get(&key)?;
        Some(Known {
            uid: observed.uid.clone(),
            resource_version: observed.version.0.clone(),
            stamp: observed.stamp.clone()?,
        })
    }
}
