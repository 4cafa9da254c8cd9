// SPDX-License-Identifier: Apache-2.0
//! The second look for strays after a takeover.
//!
//! A create that a frozen holder sent just before it was taken over can land after the first sweep. When every request
//! of that holder must have ended, one read-only look tells; only if it finds something, the unit is claimed again and
//! swept under that claim.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use tracing::{debug, warn};

use super::Job;
use crate::{
    agent::{again, inbox::Message},
    downstream::{Downstream, kinds::Kind, objects::Identity, prune, removal::RemovalError},
    protocol::{Stamp, Uid},
    upstream::{Upstream, UpstreamError},
};

/// What is to be looked for, and where.
#[derive(Debug)]
pub(super) struct Late {
    pub kinds: Vec<Arc<Kind>>,
    pub hash: String,
    pub keep: HashSet<Identity>,
    pub stamp: Stamp,
    /// Earlier BundleDeployments of this name.
    pub earlier: BTreeSet<Uid>,
}

/// Why it is not known whether anything landed late.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("cannot tell which BundleDeployments are gone")]
    Gone(#[source] UpstreamError),
    #[error(transparent)]
    Strays(RemovalError),
}

impl Late {
    /// Looks once, later.
    pub fn look(self, job: &Job) {
        let (ctx, outbox, name) = (job.ctx.clone(), job.outbox.clone(), job.name.clone());
        tokio::spawn(async move {
            tokio::time::sleep(ctx.protocol.ttl + ctx.downstream.server.timeout()).await;
            let found = again::until_done(&name, || self.found(&ctx.upstream, &ctx.downstream)).await;
            match found {
                None => debug!(unit = %name, "nothing landed late"),
                Some(gone) => {
                    warn!(unit = %name, "an object of a holder that was taken over landed late: sweeping again");
                    outbox.send(Message::Strays { name, earlier: gone }).await;
                }
            }
        });
    }

    /// If there are strays: the earlier BundleDeployments that are gone.
    async fn found(
        &self,
        upstream: &Upstream,
        downstream: &Downstream,
    ) -> Result<Option<BTreeSet<Uid>>, LookError> {
        let Self { kinds, hash, keep, stamp, earlier } = self;
        let gone = upstream.gone(earlier.clone()).await.map_err(LookError::Gone)?;
        let found = prune::has_strays(downstream, stamp, kinds, hash, keep, &gone).await;
        Ok(found.map_err(LookError::Strays)?.then_some(gone))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        api::keys,
        downstream::testing::{Exchange, context, scripted},
        telemetry,
    };

    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_not_answered_is_taken_again() {
        const MAPS: &str = "/api/v1/configmaps";
        let stray = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "x", "resourceVersion": "7",
            "annotations": {keys::EPOCH_ANNOTATION: "old/9"}}});
        let (server, script) = scripted(vec![
            Exchange::get(MAPS).refuses(503, "ServiceUnavailable", "no"),
            Exchange::get(MAPS).answers(json!({"items": [stray]})),
        ]);
        let (client, mut management) = telemetry::scripted::client();
        let upstream = Upstream::with_client(client, "c1".into());
        let downstream = context(server);
        let late = Late {
            kinds: vec![downstream.kinds.resolve("v1", "ConfigMap").await.unwrap()],
            hash: "h".into(),
            keep: HashSet::new(),
            stamp: Stamp::parse("u/20").unwrap(),
            earlier: BTreeSet::from(["old".into()]),
        };
        let looked =
            tokio::spawn(
                async move { again::until_done("web", || late.found(&upstream, &downstream)).await },
            );
        // Not "none is gone": what stands on that answer would be left for ever.
        management.next().await.refuse(503, "ServiceUnavailable");
        for _ in 0..2 {
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": "9"}, "items": []});
            management.next().await.answer(200, &list);
        }
        assert_eq!(looked.await.unwrap(), Some(BTreeSet::from(["old".into()])));
        script.finished().await;
    }
}
