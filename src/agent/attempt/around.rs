// SPDX-License-Identifier: Apache-2.0
//! What surrounds a deployment: whether it may go to its namespace, as whom, with which copies beside it, and what the
//! namespace then carries.

use tracing::{info, warn};

use super::{AttemptError, Run};
use crate::{
    agent::around,
    downstream::{
        copies::{self, Copied, Placed},
        namespace,
    },
    upstream,
};

impl Run {
    /// Everything before the bundle is loaded, in Fleet's order. From here on this run acts as the bundle's account.
    pub(super) async fn surround(&mut self) -> Result<(), AttemptError> {
        let ctx = self.job.ctx.clone();
        if let Some(selector) = &self.options.allowed_target_namespace_selector {
            let permitted = namespace::permit(&ctx.downstream.agent, &self.namespace, selector).await;
            permitted.map_err(AttemptError::Target)?;
        }
        self.renewed = self.copy_sources().await?;
        self.act_as_account().await
    }

    /// From here on this run acts as the bundle's account.
    pub(super) async fn act_as_account(&mut self) -> Result<(), AttemptError> {
        let ctx = &self.job.ctx;
        let acting = ctx.accounts.acting(&ctx.downstream, &self.options.service_account).await;
        self.downstream = acting.map_err(AttemptError::Account)?;
        Ok(())
    }

    /// Copies what the bundle wants from the management cluster; whether a copy that was there is another one now.
    async fn copy_sources(&self) -> Result<bool, AttemptError> {
        let ctx = &self.job.ctx;
        let mut renewed = false;
        for wanted in &self.options.downstream_resources {
            let Some(kind) = Copied::parse(&wanted.kind) else {
                return Err(AttemptError::CopyKind(wanted.kind.clone()));
            };
            let source = ctx.upstream.source(kind, &wanted.name).await;
            let source = source.map_err(|source| AttemptError::CopySource {
                kind,
                namespace: ctx.upstream.namespace().to_owned(),
                name: wanted.name.clone(),
                source,
            })?;
            let new = around::made_for_copies(&self.options, &self.namespace);
            let placed =
                copies::put(&ctx.downstream, &self.fence, &self.namespace, &new, &self.job.name, &source);
            renewed |= placed.await.map_err(AttemptError::Copy)? == Placed::Updated;
        }
        if renewed {
            info!("a copied resource is another one now: the bundle is deployed once more");
        }
        Ok(renewed)
    }

    /// Whether nothing about the bundle calls for a new revision, if the one that is deployed is as it should be.
    ///
    /// Not after an attempt that did not end, whoever made it: what that one knew to be due is not known any more.
    pub(super) fn is_settled(&self) -> bool {
        let Some(status) = &self.job.object.status else { return true };
        let never_applied = status.applied_deployment_id.is_empty();
        let force = self.options.force_sync_generation;
        let forced = force > 0 && status.sync_generation.is_some_and(|done| done < force);
        let applied = status.applied_deployment_id == self.job.claim.deployment
            && self.job.claim.attempt == 1
            && !self.job.taken_over
            && !self.renewed
            && !forced;
        never_applied || applied
    }

    /// Labels and annotates the namespace as the bundle asks for. What keeps that from being done is no failure of the
    /// deployment, which stands by now: the status tells it, and it is tried again.
    pub(super) async fn mark_namespace(&self) -> Result<Option<String>, AttemptError> {
        let forced = around::forced(&self.options);
        if forced.is_nothing() {
            return Ok(None);
        }
        match forced.put(&self.downstream, &self.fence, &self.namespace).await {
            Ok(written) => {
                if written {
                    info!(object = self.namespace, "namespace labelled and annotated as the bundle says");
                }
                Ok(None)
            }
            Err(error) if error.fenced().is_some() => Err(AttemptError::Namespace(error)),
            Err(error) => {
                let text = upstream::chain(&error);
                warn!(cause = text, "the namespace is not as the bundle wants it");
                Ok(Some(text))
            }
        }
    }
}
