// SPDX-License-Identifier: Apache-2.0
//! Waiting for readiness: the claim is kept, the worker slot is not.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use super::{
    attempt::{AttemptError, Job},
    inbox::{Name, Outbox},
    plan::{self, Plan},
};
use crate::{
    api,
    downstream::fence::{Fence, Fenced},
    monitor::Evaluation,
    protocol::{Input, Nonce},
};

/// An evaluation that could not be made is tried again after this long, within the wait.
const AGAIN: Duration = Duration::from_secs(2);

/// Where a deployment tells that it waits. Told once, for all of its waits together: from then on the claim says
/// `Waiting` and another unit may have the slot.
pub(super) struct Waits {
    outbox: Outbox,
    name: Name,
    nonce: Nonce,
    seconds: AtomicU64,
    told: AtomicBool,
}

impl Waits {
    /// Of one claim.
    pub fn new(job: &Job) -> Self {
        Self {
            outbox: job.outbox.clone(),
            name: job.name.clone(),
            nonce: job.claim.nonce.clone(),
            seconds: AtomicU64::new(0),
            told: AtomicBool::new(false),
        }
    }

    /// How long all waits may take together, in seconds. Counts when it is set before the first begins.
    pub fn last(&self, seconds: u64) {
        self.seconds.store(seconds, Ordering::Relaxed);
    }

    /// A wait begins.
    pub async fn begin(&self) {
        if !self.told.swap(true, Ordering::Relaxed) {
            let (nonce, seconds) = (self.nonce.clone(), self.seconds.load(Ordering::Relaxed));
            self.outbox.input(&self.name, Input::Waiting { nonce, seconds }).await;
        }
    }
}

/// Waits until everything of the plan is ready, for `seconds` at most. Ends at once when called off.
pub(super) async fn until_ready(
    job: &Job,
    fence: &Fence,
    waits: &Waits,
    plan: &Plan,
    seconds: u64,
) -> Result<Evaluation, AttemptError> {
    let ctx = &job.ctx;
    let hash = api::names::object_hash(&api::names::set_id(&job.name, &ctx.scope));
    // Subscribed before the first look, so that no change falls between.
    let mut changes = ctx.live.subscribe();
    let deadline = ctx.clock.moment(ctx.clock.now() + Duration::from_secs(seconds));
    let mut last = None;
    loop {
        let look = plan::evaluate(ctx, &job.name, &job.object, plan);
        let evaluation = tokio::select! {
            evaluation = look => evaluation,
            () = fence.cancelled.cancelled() => return Err(AttemptError::Fenced(Fenced::Cancelled)),
            () = tokio::time::sleep_until(deadline) => return Err(not_ready(last)),
        };
        let again = match evaluation {
            Ok(evaluation) if evaluation.ready && evaluation.non_modified => return Ok(evaluation),
            Ok(evaluation) => {
                let again = evaluation
                    .changes_at
                    .and_then(|moment| (moment - ctx.clock.wall()).to_std().ok())
                    .unwrap_or(Duration::from_secs(seconds));
                last = Some(evaluation);
                again
            }
            Err(_) => AGAIN,
        };
        waits.begin().await;
        let changed = async { while !changes.next().await.contains(hash.as_str()) {} };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(again) => {}
            () = fence.cancelled.cancelled() => return Err(AttemptError::Fenced(Fenced::Cancelled)),
            () = tokio::time::sleep_until(deadline) => return Err(not_ready(last)),
        }
    }
}

fn not_ready(last: Option<Evaluation>) -> AttemptError {
    let last = last.unwrap_or_default();
    if let Some(entry) = last.non_ready.first() {
        return AttemptError::NotReady {
            object: format!("{}/{}/{}", entry.kind, entry.namespace, entry.name),
            // Helm's words for it, not the monitor's: people search for the whole sentence.
            state: if entry.summary.error { "Failed".into() } else { "InProgress".into() },
            message: entry.summary.message.join("; "),
        };
    }
    let (object, message) = last.modified.first().map_or_else(
        || ("".to_owned(), "the objects could not be looked at".to_owned()),
        |entry| (format!("{}/{}/{}", entry.kind, entry.namespace, entry.name), "missing".to_owned()),
    );
    AttemptError::NotReady { object, state: "Unknown".into(), message }
}
