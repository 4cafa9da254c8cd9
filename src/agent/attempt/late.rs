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
    agent::inbox::Message,
    downstream::{kinds::Kind, objects::Identity, prune},
    protocol::{Stamp, Uid},
    upstream,
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

impl Late {
    /// Looks once, later.
    pub fn look(self, job: &Job) {
        let (ctx, outbox, name) = (job.ctx.clone(), job.outbox.clone(), job.name.clone());
        tokio::spawn(async move {
            tokio::time::sleep(ctx.protocol.ttl + ctx.downstream.server.timeout()).await;
            let Self { kinds, hash, keep, stamp, earlier } = self;
            // What cannot be told to be gone is taken for living.
            let gone = ctx.upstream.gone(earlier).await.unwrap_or_default();
            let looked = prune::has_strays(&ctx.downstream, &stamp, &kinds, &hash, &keep, &gone).await;
            match looked {
                Ok(false) => debug!(unit = %name, "nothing landed late"),
                Ok(true) => {
                    warn!(unit = %name, "an object of a holder that was taken over landed late: sweeping again");
                    outbox.send(Message::Strays { name, earlier: gone }).await;
                }
                Err(error) => {
                    warn!(unit = %name, cause = upstream::chain(&error), "cannot look for objects that landed late");
                }
            }
        });
    }
}
