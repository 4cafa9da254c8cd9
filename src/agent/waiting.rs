// SPDX-License-Identifier: Apache-2.0
//! Waiting for readiness: the claim is kept, the worker slot is not.

use std::time::Duration;

use super::{
    attempt::{AttemptError, Job},
    plan::{self, Plan},
};
use crate::{
    api,
    downstream::fence::{Fence, Fenced},
    monitor::Evaluation,
    protocol::Input,
};

/// An evaluation that could not be made is tried again after this long, within the wait.
const AGAIN: Duration = Duration::from_secs(2);

/// Waits until everything of the plan is ready, for `seconds` at most. Ends at once when called off.
pub(super) async fn until_ready(
    job: &Job,
    fence: &Fence,
    plan: &Plan,
    seconds: u64,
) -> Result<Evaluation, AttemptError> {
    let ctx = &job.ctx;
    let hash = api::names::object_hash(&api::names::set_id(&job.name, &ctx.scope));
    // Subscribed before the first look, so that no change falls between.
    let mut changes = ctx.live.subscribe();
    let deadline = ctx.clock.moment(ctx.clock.now() + Duration::from_secs(seconds));
    let mut told = false;
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
        if !told {
            // From here on the claim says `Waiting` and another unit may have the slot.
            told = true;
            let input = Input::Waiting { nonce: job.claim.nonce.clone(), seconds };
            job.outbox.input(&job.name, input).await;
        }
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
