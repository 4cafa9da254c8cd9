// SPDX-License-Identifier: Apache-2.0
//! The bundle's objects put in place: applied, the rest pruned, Jobs waited for.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, PoisonError},
    time::Duration,
};

use tracing::warn;

use super::{AttemptError, Late, Run};
use crate::{
    agent::{context::Context, drift::Memory},
    api::ReleaseId,
    downstream::{
        apply::{self, Known, KnownObjects, Owner},
        completion,
        kinds::Kind,
        live::LiveStore,
        objects::Identity,
        prune,
        release::{self, Gate, Operation, Record},
        removal::{Gone, Removed},
    },
    monitor::{self, Judge, Key, Owners},
    render::{self, Rendered},
    upstream,
};

impl Run {
    /// Waits for the bundle's Jobs, if it asks for that.
    pub(super) async fn jobs(&self, rendered: &Rendered, seconds: u64) -> Result<(), AttemptError> {
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

    pub(super) async fn apply(
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
        let mut owners = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        for object in applied {
            let observed = monitor::observe(&object.live, &judge);
            // When the autoscaler goes, no owner of a field changes: such an object is compared again and again.
            let managed = observed.owners.managed.filter(|_| !object.left);
            owners.insert((*observed.key).clone(), Owners { managed, ..observed.owners });
            ctx.live.upsert(observed);
        }
        Ok(())
    }

    /// For which release objects are written, and what it may take.
    pub(super) fn owner<'a>(
        &'a self,
        operation: Option<Operation>,
        previous: &'a HashSet<Identity>,
    ) -> Owner<'a> {
        Owner {
            namespace: &self.namespace,
            name: &self.release,
            upgrade: matches!(operation, Some(Operation::Upgrade)),
            replace: self.replaces(),
            take_ownership: self.options.helm.as_ref().is_some_and(|helm| helm.take_ownership),
            overwrites: &self.options.overwrites,
            previous,
        }
    }

    /// Whether a deployment is forced; either option says so to Fleet's agent.
    pub(super) fn forces(&self) -> bool {
        self.options.helm.as_ref().is_some_and(|helm| helm.force)
            || self.options.correct_drift.as_ref().is_some_and(|drift| drift.force)
    }

    /// Whether objects are replaced whole.
    fn replaces(&self) -> bool {
        if self.job.correction {
            return self.job.object.spec.correct_drift.as_ref().is_some_and(|correct| correct.force);
        }
        self.forces()
    }

    /// What drift is compared with from now on: the objects as they have just been applied.
    pub(super) fn memory(&self, objects: &[render::Object], desired: &[Key]) -> Memory {
        Memory::applied(objects, desired, &self.applied.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes what the bundle no longer has, and after a takeover what its late holder may have left.
    pub(super) async fn prune(
        &self,
        rendered: &Rendered,
        before: &[render::Object],
        gate: &Gate,
    ) -> Result<(), AttemptError> {
        let ctx = &self.job.ctx;
        let blind = gate.is_blind() || self.lost_its_records(gate);
        let mut earlier = self.earlier.get().cloned().unwrap_or_default();
        earlier.extend(self.job.earlier.iter().cloned());
        let sweeps = self.job.taken_over || gate.follows_interrupted() || !earlier.is_empty();
        if before.is_empty() && !sweeps && !blind {
            return Ok(());
        }
        let keep = Identity::of_all(&rendered.objects, &ctx.downstream.kinds, &self.namespace);
        let release = (self.namespace.as_str(), self.release.as_str());
        let mut removed = prune::prune(&self.downstream, &self.fence, release, before, &keep)
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
            let strays = prune::strays(&self.downstream, &self.fence, &kinds, &rendered.hash, &keep, &gone);
            removed.extend(strays.await.map_err(AttemptError::Prune)?);
            let (hash, stamp) = (rendered.hash.clone(), self.fence.stamp.clone());
            let _ = self.late.set(Late { kinds, hash, keep: keep.clone(), stamp, earlier });
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
    pub(super) fn forget(&self, removed: Vec<Removed>) {
        for removed in removed {
            if let Some(Gone { api_version, uid }) = removed.gone {
                let object = removed.object;
                let key = Key::new(&api_version, &object.kind, &object.namespace, &object.name);
                self.job.ctx.live.removed(&key, &uid);
            }
        }
    }

    /// The revisions whose objects newer ones list, too, when there are more than are to be kept: those that failed need
    /// not stay. A chart that renders otherwise each time would leave one record for each try.
    pub(super) async fn repeated(&self, gate: &Gate) -> BTreeSet<u32> {
        let mut listed = Vec::new();
        if gate.surplus() > 0 {
            for record in gate.revisions().rev() {
                // What cannot be read now stays, and so does all before it.
                let Ok(objects) = self.objects_of([record]).await else { break };
                let kinds = &self.downstream.kinds;
                listed.push((record.revision, Identity::of_all(&objects, kinds, &self.namespace)));
            }
        }
        release::repeated(listed)
    }

    /// The objects that these revisions list.
    pub(super) async fn objects_of(
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
pub(in crate::agent) fn kinds_of<'o>(
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
pub(super) struct KnownLive<'a>(pub(super) &'a LiveStore);

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
