// SPDX-License-Identifier: Apache-2.0
//! A management cluster that was restored from a backup: its versions went back, and with them the order of epochs.
//!
//! Objects may then carry stamps that no new claim can exceed for a long time. That is told apart from being the stale
//! one, and told to people: a person decides (`flotilla reset`), nothing is overwritten by guess.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use tracing::debug;

use super::{
    attempt::{AttemptError, Job},
    context::Context,
    inbox::Name,
    plan::Plan,
};
use crate::{api::BundleDeployment, downstream::fence::Fenced, protocol::Epoch, upstream};

/// The part of `/readyz` that tells of it.
const PART: &str = "upstream-history";

/// Units whose objects carry stamps of a future that was lost.
#[derive(Debug, Default)]
pub struct History(Mutex<HashSet<Name>>);

/// A refusal in favour of a newer claim may be one in favour of a claim that was lost with a restored upstream: while
/// the claim is still ours, and the newest version of the management cluster is older than the stamp.
pub(super) async fn explain(job: &Job, error: AttemptError) -> AttemptError {
    let Some(Fenced::Newer { object, stamped }) = error.fenced() else { return error };
    let (ctx, object, stamped) = (&job.ctx, object.clone(), stamped.epoch.clone());
    let newest = match ctx.upstream.newest_version().await {
        Ok(newest) if newest < stamped => newest,
        Ok(_) => return error,
        Err(cause) => {
            debug!(cause = upstream::chain(&cause), "cannot compare a stamp with the management cluster");
            return error;
        }
    };
    match ctx.upstream.read(&job.name).await {
        Ok(Some(live)) if upstream::snapshot(&live, false).slot.is_held_by(&job.claim.nonce) => {
            AttemptError::WentBack { object, stamped, newest, name: job.name.to_string() }
        }
        Ok(_) | Err(_) => error,
    }
}

/// Whether an object of a unit at rest was written under a claim that came after everything the management cluster knows:
/// then what is deployed is not what the unit's status says.
pub(super) async fn is_lost(ctx: &Context, unit: &BundleDeployment, plan: &Plan) -> bool {
    let (uid, version) = (unit.metadata.uid.as_deref(), unit.metadata.resource_version.as_deref());
    let (Some(uid), Some(version)) = (uid, version) else { return false };
    let version = Epoch::from(version);
    let stamps = plan.desired.iter().filter_map(|key| ctx.live.get(key)?.stamp.clone());
    let newest_stamp = stamps
        .filter(|stamp| stamp.uid.0 == uid && stamp.epoch > version)
        .max_by(|a, b| a.epoch.cmp(&b.epoch));
    // Usually the unit is only known at an older version than it has by now.
    let Some(stamped) = newest_stamp else { return false };
    match ctx.upstream.newest_version().await {
        Ok(newest) => newest < stamped.epoch,
        Err(cause) => {
            debug!(cause = upstream::chain(&cause), "cannot compare a stamp with the management cluster");
            false
        }
    }
}

/// Notes how a deployment ended: whether its unit waits for a reset.
pub(super) fn note(ctx: &Context, name: &Name, error: Option<&AttemptError>) {
    let went_back = matches!(error, Some(AttemptError::WentBack { .. }));
    let (changed, count) = {
        let mut units = ctx.history.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if went_back { units.insert(name.clone()) } else { units.remove(name) };
        (changed, units.len())
    };
    if !changed {
        return;
    }
    let state = if count == 0 {
        Ok(())
    } else {
        Err(format!(
            "the management cluster went back in time; {count} bundles wait for `flotilla reset` or for its versions \
             to come that far again"
        ))
    };
    ctx.health.set(PART, state);
}
