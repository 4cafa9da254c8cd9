// SPDX-License-Identifier: Apache-2.0
//! `helm.atomic`: a failed install is removed again, a failed upgrade goes back to what was deployed before, under the
//! same claim and fence. Once, and then the bundle waits for a change.

use std::collections::HashSet;

use tracing::info;

use super::{AttemptError, Deployed, Run, error::Class, hooks::moments};
use crate::{
    downstream::{
        prune,
        release::{Gate, Operation},
    },
    render::{self, HookEvent, Rendered},
};

impl Run {
    /// Whether a failure under the open gate is to be undone. Not what was called off or taken over: whoever is next
    /// begins anew.
    pub(super) fn undoes(&self, error: &AttemptError) -> bool {
        // What could not be looked at has not failed.
        let failed = matches!(error.class(), Class::Retryable | Class::Permanent)
            && !matches!(error, AttemptError::Observe(_));
        failed && self.options.helm.as_ref().is_some_and(|helm| helm.atomic)
    }

    /// Undoes it, and says what became of that. A gate that comes back is open and to be failed.
    pub(super) async fn undo(
        &self,
        rendered: &Rendered,
        gate: Gate,
        error: AttemptError,
    ) -> (Result<Deployed, AttemptError>, Option<Gate>) {
        info!(cause = error.text(), "the deployment failed and is undone: atomic is set");
        match gate.operation() {
            Some(Operation::Install) => self.uninstall(rendered, gate, error).await,
            Some(Operation::Upgrade) => self.roll_back(&rendered.hash, gate, error).await,
            Some(Operation::Rollback { .. }) | None => (Err(error), Some(gate)),
        }
    }

    async fn uninstall(
        &self,
        rendered: &Rendered,
        mut gate: Gate,
        error: AttemptError,
    ) -> (Result<Deployed, AttemptError>, Option<Gate>) {
        let removed = async {
            self.run_hooks(&mut gate, &rendered.hash, &rendered.hooks, HookEvent::PreDelete).await?;
            let mut objects = self.objects_of(gate.before()).await?;
            objects.extend(rendered.objects.iter().cloned());
            let (release, nothing) = ((self.namespace.as_str(), self.release.as_str()), HashSet::new());
            let removed = prune::prune(&self.downstream, &self.fence, release, &objects, &nothing).await;
            self.forget(removed.map_err(AttemptError::Prune)?);
            self.run_hooks(&mut gate, &rendered.hash, &rendered.hooks, HookEvent::PostDelete).await
        };
        let original = error.text();
        if let Err(source) = removed.await {
            let source = Box::new(source);
            return (
                Err(AttemptError::NotUndone { what: "uninstalling", which: "install", original, source }),
                Some(gate),
            );
        }
        match gate.forgotten().await {
            Ok(()) => {
                let (release, source) = (self.release.clone(), Box::new(error));
                (Err(AttemptError::Undone { release, what: "uninstalled", source }), None)
            }
            Err(source) => {
                let source = Box::new(AttemptError::Release(source));
                (
                    Err(AttemptError::NotUndone { what: "uninstalling", which: "install", original, source }),
                    None,
                )
            }
        }
    }

    async fn roll_back(
        &self,
        hash: &str,
        gate: Gate,
        error: AttemptError,
    ) -> (Result<Deployed, AttemptError>, Option<Gate>) {
        let original = error.text();
        let not_undone = |source: AttemptError, original| {
            let source = Box::new(source);
            AttemptError::NotUndone { what: "rolling back", which: "upgrade", original, source }
        };
        if gate.rollback_target().is_none() {
            return (Err(AttemptError::NoWayBack(Box::new(error))), Some(gate));
        }
        let mut gate = match gate.roll_back(&original).await {
            Ok(Some(gate)) => gate,
            Ok(None) => return (Err(AttemptError::NoWayBack(Box::new(error))), None),
            Err(source) => return (Err(not_undone(AttemptError::Release(source), original)), None),
        };
        if let Err(source) = self.put_back(hash, &mut gate).await {
            return (Err(not_undone(source, original)), Some(gate));
        }
        match gate.deployed(None).await {
            Ok(_) => {
                let (release, source) = (self.release.clone(), Box::new(error));
                (Err(AttemptError::Undone { release, what: "rolled back", source }), None)
            }
            Err(source) => (Err(not_undone(AttemptError::Release(source), original)), None),
        }
    }

    /// Everything that the revision gone back to has, as it stands in its record.
    async fn put_back(&self, hash: &str, gate: &mut Gate) -> Result<(), AttemptError> {
        let ctx = &self.job.ctx;
        let objects =
            render::parse_manifest(&ctx.engine, gate.manifest()).await.map_err(AttemptError::Render)?;
        let hooks = render::parse_hooks(&ctx.engine, gate.hooks()).await.map_err(AttemptError::Render)?;
        let old = Rendered { objects, hooks, hash: hash.to_owned(), ..Rendered::default() };
        let [before, after] = gate.operation().map(moments).unwrap_or(moments(Operation::Upgrade));
        self.run_hooks(gate, hash, &old.hooks, before).await?;
        self.place(&old, gate).await?;
        self.run_hooks(gate, hash, &old.hooks, after).await?;
        Ok(())
    }
}
