// SPDX-License-Identifier: Apache-2.0
//! One deployment: claim → load → render → gate → apply → prune → wait → observe → finish.
//!
//! The claim stands when `attempt` begins, and the loop writes the finish; in between are the steps of
//! [`Run::deploy`], each with an error of its own. The fence decides before every write downstream whether the
//! claim still allows it.

mod error;
mod foresee;
mod late;
mod load;
mod opening;
mod outcome;

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use error::AttemptError;
pub use foresee::{Outlook, Prospect, foresee};
use late::Late;
pub use outcome::Ended;

use super::{
    context::Context,
    history,
    inbox::{Name, Outbox},
    plan::{self, Plan},
    proof::Proof,
    waiting,
};
use crate::{
    api::{self, BundleDeployment, BundleDeploymentOptions, ReleaseId},
    downstream::{
        apply::{self, Known, KnownObjects, Owner},
        fence::{ClaimNow, Fence},
        kinds::Kind,
        live::LiveStore,
        objects::Identity,
        prune,
        release::{Gate, Operation, Record},
        removal::Gone,
    },
    monitor::{self, Evaluation, Judge, Key},
    protocol::{Claim, Epoch, Stamp, Time, Uid},
    render::{self, Rendered},
    upstream,
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
    plan: Plan,
    evaluation: Evaluation,
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
    /// Earlier BundleDeployments of this name whose release this was.
    earlier: OnceLock<BTreeSet<Uid>>,
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
        Self { job, fence, options, namespace, release, earlier, late }
    }

    /// Whether the claim went to somebody else meanwhile. A replica that was frozen fails in many ways before it
    /// learns that it was taken over; its successor's success must not be followed by its failure's Event.
    async fn is_lost(&self, error: &AttemptError) -> bool {
        let failed = matches!(error.class(), error::Class::Retryable | error::Class::Permanent);
        failed && matches!(self.fence.proof.confirm().await, Ok(ClaimNow::Lost))
    }

    /// The steps. A gate that comes back is open and to be failed.
    async fn deploy(&self) -> (Result<Deployed, AttemptError>, Option<Gate>) {
        let rendered = match self.prepare().await {
            Ok(rendered) => rendered,
            Err(error) => return (Err(error), None),
        };
        let gate = match self.gate(&rendered).await {
            Ok(gate) => gate,
            Err(error) => return (Err(error), None),
        };
        match self.put_in_place(&rendered, &gate).await {
            Ok((plan, evaluation)) => {
                let operation = gate.operation();
                match gate.deployed(None).await {
                    Ok(revision) => {
                        let release = ReleaseId {
                            namespace: self.namespace.clone(),
                            name: self.release.clone(),
                            revision,
                        };
                        let plan = Plan { release: release.clone(), ..plan };
                        (Ok(Deployed { release, operation, plan, evaluation }), None)
                    }
                    Err(source) => (Err(AttemptError::Release(source)), None),
                }
            }
            Err(error) => (Err(error), Some(gate)),
        }
    }

    /// Everything before the first write: load, render.
    async fn prepare(&self) -> Result<Rendered, AttemptError> {
        error::supported(&self.job.object.spec, &self.options)?;
        let inputs = self.load().await?;
        let job = inputs.job(self);
        let mut rendered = render::render(&self.job.ctx.engine, job).await.map_err(AttemptError::Render)?;
        let kinds = &self.job.ctx.downstream.kinds;
        if !self.options.target_namespace.is_empty() {
            let hooks = rendered.hooks.iter().map(|hook| &hook.object);
            let all = rendered.objects.iter().chain(hooks);
            let wanted = all.map(|object| (&*object.api_version, &*object.kind));
            kinds.prepare(wanted).await.map_err(AttemptError::Kinds)?;
            rendered.force_namespace(&self.options.target_namespace, kinds).map_err(AttemptError::Render)?;
        }
        // A bundle that cannot be applied as a whole makes no revision.
        apply::check(&self.job.ctx.downstream, &rendered.objects).await.map_err(AttemptError::Apply)?;
        Ok(rendered)
    }

    /// Apply, prune, wait, observe: everything under the open gate.
    async fn put_in_place(
        &self,
        rendered: &Rendered,
        gate: &Gate,
    ) -> Result<(Plan, Evaluation), AttemptError> {
        let ctx = &self.job.ctx;
        let before = self.objects_of(gate.before()).await?;
        let owned = self.objects_of(gate.deployed_before()).await?;
        self.apply(rendered, &owned).await?;
        self.prune(rendered, &before).await?;
        let desired =
            plan::keys(ctx, &rendered.objects, &self.namespace).await.map_err(AttemptError::Observe)?;
        let previous = plan::keys(ctx, &before, &self.namespace).await.unwrap_or_default();
        let plan = Plan { release: ReleaseId::default(), desired, previous };
        let wait = self.options.helm.as_ref().map_or(0, |helm| helm.timeout_seconds);
        let evaluation = match u64::try_from(wait) {
            Ok(seconds @ 1..) => waiting::until_ready(&self.job, &self.fence, &plan, seconds).await?,
            Ok(0) | Err(_) => plan::evaluate(ctx, &self.job.name, &self.job.object, &plan)
                .await
                .map_err(AttemptError::Observe)?,
        };
        Ok((plan, evaluation))
    }

    async fn apply(&self, rendered: &Rendered, owned: &[render::Object]) -> Result<(), AttemptError> {
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
        let owner = Owner {
            namespace: &self.namespace,
            name: &self.release,
            take_ownership: self.options.helm.as_ref().is_some_and(|helm| helm.take_ownership),
            overwrites: &self.options.overwrites,
            previous: &previous,
        };
        let known = KnownLive(&ctx.live);
        let applied = apply::apply_all(&ctx.downstream, &self.fence, &owner, &rendered.objects, Some(&known))
            .await
            .map_err(AttemptError::Apply)?;
        let judge = Judge { ignore: &ignore, errors: &ctx.errors, now: ctx.clock.wall() };
        for object in applied {
            ctx.live.upsert(monitor::observe(&object.live, &judge));
        }
        Ok(())
    }

    /// Removes what the bundle no longer has, and after a takeover what its late holder may have left.
    async fn prune(&self, rendered: &Rendered, before: &[render::Object]) -> Result<(), AttemptError> {
        let ctx = &self.job.ctx;
        let mut earlier = self.earlier.get().cloned().unwrap_or_default();
        earlier.extend(self.job.earlier.iter().cloned());
        let sweeps = self.job.taken_over || !earlier.is_empty();
        if before.is_empty() && !sweeps {
            return Ok(());
        }
        let keep = Identity::of_all(&rendered.objects, &ctx.downstream.kinds, &self.namespace);
        let release = (self.namespace.as_str(), self.release.as_str());
        let mut removed = prune::prune(&ctx.downstream, &self.fence, release, before, &keep)
            .await
            .map_err(AttemptError::Prune)?;
        if sweeps {
            let kinds = kinds_of(ctx, before.iter().chain(&rendered.objects));
            let gone = ctx.upstream.gone(earlier.clone()).await.unwrap_or_else(|error| {
                warn!(
                    cause = upstream::chain(&error),
                    "cannot tell which earlier BundleDeployments are gone"
                );
                BTreeSet::new()
            });
            let strays = prune::strays(&ctx.downstream, &self.fence, &kinds, &rendered.hash, &keep, &gone);
            removed.extend(strays.await.map_err(AttemptError::Prune)?);
            let (hash, stamp) = (rendered.hash.clone(), self.fence.stamp.clone());
            let _ = self.late.set(Late { kinds, hash, keep, stamp, earlier });
        }
        // What is gone for good must not show as extra until its event comes.
        for removed in removed {
            if let Some(Gone { api_version, uid }) = removed.gone {
                let object = removed.object;
                ctx.live
                    .removed(&Key::new(&api_version, &object.kind, &object.namespace, &object.name), &uid);
            }
        }
        Ok(())
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
