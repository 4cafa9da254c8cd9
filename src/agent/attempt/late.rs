// SPDX-License-Identifier: Apache-2.0
//! The second look for strays after a takeover.
//!
//! A create that a frozen holder sent just before it was taken over can land after the first sweep. When every request
//! of that holder must have ended, one read-only look tells; only if it finds something, the unit is claimed again and
//! swept under that claim.

use std::{collections::HashSet, sync::Arc};

use tracing::{debug, warn};

use super::Job;
use crate::{
    agent::inbox::Message,
    downstream::{kinds::Kind, objects::Identity, prune},
    protocol::Stamp,
    upstream,
};

/// What is to be looked for, and where.
#[derive(Debug)]
pub(super) struct Late {
    pub kinds: Vec<Arc<Kind>>,
    pub hash: String,
    pub keep: HashSet<Identity>,
    pub stamp: Stamp,
}

impl Late {
    /// Looks once, later.
    pub fn look(self, job: &Job) {
        let (ctx, outbox, name) = (job.ctx.clone(), job.outbox.clone(), job.name.clone());
        tokio::spawn(async move {
            tokio::time::sleep(ctx.protocol.ttl + ctx.downstream.server.timeout()).await;
            let looked =
                prune::has_strays(&ctx.downstream, &self.stamp, &self.kinds, &self.hash, &self.keep).await;
            match looked {
                Ok(false) => debug!(unit = %name, "nothing landed late"),
                Ok(true) => {
                    warn!(unit = %name, "an object of a holder that was taken over landed late: sweeping again");
                    outbox.send(Message::Strays { name }).await;
                }
                Err(error) => {
                    warn!(unit = %name, cause = upstream::chain(&error), "cannot look for objects that landed late");
                }
            }
        });
    }
}
