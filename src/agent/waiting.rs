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

/// Waits until everything that is wanted is there and ready, for `seconds` at most. Ends at once when called off. What was
/// to go and is still there, held by a finalizer or a Pod, is not waited for, nor is a field that somebody changed: Helm
/// waits for its objects' readiness alone.
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
            Ok(evaluation) if is_complete(&evaluation) => return Ok(evaluation),
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

/// Whether everything that is wanted is there and ready.
fn is_complete(evaluation: &Evaluation) -> bool {
    evaluation.ready && evaluation.counts.missing == 0
}

fn not_ready(last: Option<Evaluation>) -> AttemptError {
    let Some(last) = last else {
        let message = "the objects could not be looked at".to_owned();
        return AttemptError::NotReady { object: String::new(), state: "Unknown".into(), message };
    };
    if let Some(entry) = last.non_ready.first() {
        return AttemptError::NotReady {
            object: format!("{}/{}/{}", entry.kind, entry.namespace, entry.name),
            // Helm's words for it, not the monitor's: people search for the whole sentence.
            state: if entry.summary.error { "Failed".into() } else { "InProgress".into() },
            message: entry.summary.message.join("; "),
        };
    }
    let (object, message) = match last.modified.iter().find(|entry| entry.missing) {
        Some(entry) => {
            let what = if entry.exist { "is not owned by us" } else { "missing" };
            (format!("{}/{}/{}", entry.kind, entry.namespace, entry.name), what.to_owned())
        }
        // Beyond the end of the list.
        None => (String::new(), format!("{} objects are missing", last.counts.missing)),
    };
    AttemptError::NotReady { object, state: "Unknown".into(), message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ModifiedStatus, NonReadyStatus, ResourceCounts, Summary};

    fn entry(name: &str) -> ModifiedStatus {
        ModifiedStatus {
            kind: "ConfigMap".into(),
            namespace: "ns".into(),
            name: name.into(),
            ..Default::default()
        }
    }

    fn missing(count: i64) -> ResourceCounts {
        ResourceCounts { missing: count, ..Default::default() }
    }

    #[test]
    fn only_what_is_wanted_is_waited_for() {
        let ready = Evaluation { ready: true, non_modified: true, ..Evaluation::default() };
        assert!(is_complete(&ready));
        let extra = ModifiedStatus { delete: true, ..entry("held") };
        let changed = ModifiedStatus { patch: "{}".into(), ..entry("changed") };
        let besides = Evaluation { non_modified: false, modified: vec![extra, changed], ..ready.clone() };
        assert!(is_complete(&besides), "what was to go, and what somebody changed");
        let incomplete = Evaluation { counts: missing(1), ..besides.clone() };
        assert!(!is_complete(&incomplete));
        assert!(!is_complete(&Evaluation { ready: false, ..besides }));
    }

    #[test]
    fn a_wait_that_ran_out_names_what_was_waited_for() {
        let text = |last| not_ready(last).to_string();
        let says = |object: &str, rest: &str| {
            format!("resource {object} not ready. status: {rest}\ncontext deadline exceeded")
        };
        let gone = ModifiedStatus { missing: true, ..entry("gone") };
        let extra = ModifiedStatus { delete: true, ..entry("a-held") };
        let last = Evaluation {
            ready: true,
            modified: vec![extra.clone(), gone],
            counts: missing(1),
            ..Default::default()
        };
        assert_eq!(text(Some(last.clone())), says("ConfigMap/ns/gone", "Unknown, message: missing"));
        let cut = Evaluation { modified: vec![extra], counts: missing(3), ..last.clone() };
        assert_eq!(text(Some(cut)), says("", "Unknown, message: 3 objects are missing"));
        let summary = Summary { error: true, message: vec!["no".into()], ..Default::default() };
        let broken = NonReadyStatus { kind: "Pod".into(), name: "p".into(), summary, ..Default::default() };
        let last = Evaluation { non_ready: vec![broken], ..last };
        assert_eq!(text(Some(last)), says("Pod//p", "Failed, message: no"));
        assert_eq!(text(None), says("", "Unknown, message: the objects could not be looked at"));
    }
}
