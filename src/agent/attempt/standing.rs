// SPDX-License-Identifier: Apache-2.0
//! What stands when a deployment failed for good: the revision that was deployed before, or put back.

use tracing::warn;

use super::{Deployed, Run};
use crate::{agent::plan, api::ReleaseId, downstream::release::Status, upstream};

impl Run {
    /// The deployed revision of this release, else of the one that the status names, and how its objects are.
    pub(super) async fn standing(&self) -> Option<Deployed> {
        let release = match self.newest_deployed().await {
            Some(release) => release,
            None => self.job.object.status.as_ref()?.release.parse().ok()?,
        };
        let (ctx, object) = (&self.job.ctx, &self.job.object);
        let text = release.to_string();
        let looked = async {
            let plan = plan::load(ctx, &self.job.name, &text).await?;
            let evaluation = plan::evaluate(ctx, &self.job.name, object, &plan).await?;
            Ok::<_, plan::PlanError>(Deployed {
                release,
                operation: None,
                plan: plan.into(),
                evaluation,
                namespace: None,
            })
        };
        match looked.await {
            Ok(standing) => Some(standing),
            Err(plan::PlanError::Gone { .. }) => None,
            Err(error) => {
                warn!(release = text, cause = upstream::chain(&error), "cannot look at what stands");
                None
            }
        }
    }

    async fn newest_deployed(&self) -> Option<ReleaseId> {
        let history = self.job.ctx.downstream.store.history(&self.namespace, &self.release).await.ok()?;
        let newest = history.iter().rfind(|record| record.status == Status::Deployed)?;
        if newest.bundle().is_some_and(|bundle| bundle != &*self.job.name) {
            return None;
        }
        let (namespace, name) = (self.namespace.clone(), self.release.clone());
        Some(ReleaseId { namespace, name, revision: newest.revision })
    }
}
