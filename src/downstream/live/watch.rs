// SPDX-License-Identifier: Apache-2.0
//! One shared watch of one kind: list, then follow, and heal whatever breaks.
//!
//! Own loop instead of kube's `watcher`: that one keeps a version that the server has called gone at the start of a
//! watch, and asks again without pause when a server ends watches at once.

use std::{
    fmt::Debug,
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource,
    api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams},
    core::DynamicObject,
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, error::Elapsed, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Failure, KindState, Shared,
    table::{Changed, Kind},
};
use crate::{
    api::keys,
    monitor::{Judge, Observed, observe_dynamic, observe_metadata},
    protocol::Epoch,
    telemetry::chain,
};

/// Objects a page of a list. Fewer than client-go's 500: with all their owners of fields they take a hundred times the room of
/// what is kept of them, the lists of all kinds run at once, and the allocator gives little of it back.
const PAGE: u32 = 100;
/// Watches in a row in which nothing was heard, not even a bookmark, before the kind is listed again. The server sends
/// a bookmark shortly before it ends a watch, so that silence means we are blind (for instance because the cluster
/// was restored to an older version). With a minute each: listed every five minutes at worst.
const SILENT_WATCHES: u32 = 5;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// First delay after a failure; doubles with each further one.
    pub delay: Duration,
    /// Longest delay.
    pub longest: Duration,
    /// One watch, in seconds. Short, so that a dead connection is noticed soon: the client waits little longer.
    pub watch: u32,
    /// What a list page or the start of a watch may take, and how much longer than it promised a watch may.
    pub answer: Duration,
    /// How long the connection may be lost before nothing is known any more. Longer than a restart of the server.
    pub lost: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(500),
            longest: Duration::from_secs(30),
            watch: 60,
            answer: Duration::from_secs(15),
            lost: Duration::from_secs(60),
        }
    }
}

/// What can be read by a watch and reduced.
pub(super) trait Reduce:
    Resource<DynamicType: Clone> + Clone + Debug + DeserializeOwned + Send + 'static
{
    fn reduce(&self, kind: &Kind, judge: &Judge<'_>) -> Observed;
}

impl Reduce for DynamicObject {
    fn reduce(&self, kind: &Kind, judge: &Judge<'_>) -> Observed {
        observe_dynamic(&kind.api_version, &kind.name, self, judge)
    }
}

impl Reduce for PartialObjectMeta<DynamicObject> {
    fn reduce(&self, kind: &Kind, judge: &Judge<'_>) -> Observed {
        observe_metadata(&kind.api_version, &kind.name, &self.metadata, judge)
    }
}

/// The watch of one kind. Dropping the future ends it.
pub(super) struct Follower<K> {
    pub api: Api<K>,
    pub kind: Kind,
    pub shared: Arc<Shared>,
    pub state: Arc<watch::Sender<KindState>>,
    pub failure: Failure,
    /// Rung when the kind must be listed again.
    pub relist: Arc<Notify>,
    pub timing: Timing,
}

#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("the request failed")]
    Request(#[source] kube::Error),
    #[error("no answer in time")]
    Silence(#[source] Elapsed),
    #[error("the server ended the watch with an error")]
    Refused(#[source] Box<kube::core::Status>),
    #[error("the server gave no resourceVersion")]
    NoVersion,
}

/// What a failure means for the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Try again from where we are.
    Resume,
    /// The version we are at is of no use any more.
    Relist,
    /// The kind is not served, or not to us.
    Unavailable,
}

impl WatchError {
    fn verdict(&self) -> Verdict {
        let code = match self {
            Self::Request(kube::Error::Api(status)) | Self::Refused(status) => status.code,
            Self::NoVersion => return Verdict::Relist,
            Self::Request(_) | Self::Silence(_) => return Verdict::Resume,
        };
        match code {
            403..=405 => Verdict::Unavailable,
            // 504: the server has not got to our version, and may never, having been restored.
            400 | 410 | 504 => Verdict::Relist,
            _ => Verdict::Resume,
        }
    }
}

/// What went wrong in a row.
#[derive(Default)]
struct Failures {
    /// How often, for the pause.
    count: u32,
    /// Since when no list and no watch began.
    since: Option<Instant>,
}

/// How a watch ended without an error, and whether anything was heard in it.
struct Ended {
    heard: bool,
    lasted: Duration,
}

impl<K: Reduce> Follower<K> {
    /// Follows the kind for ever.
    pub async fn run(self) {
        let mut failures = Failures::default();
        loop {
            match self.list().await {
                Ok(version) => {
                    failures.since = None;
                    self.enter(KindState::Synced);
                    self.watch_from(version, &mut failures).await;
                }
                Err(error) => self.failed(&error, &mut failures).await,
            }
        }
    }

    /// Reads all objects, page by page, and returns the version of the list.
    async fn list(&self) -> Result<Epoch, WatchError> {
        let mut params = ListParams::default().labels(keys::HASH_LABEL).limit(PAGE);
        let mut version: Option<Epoch> = None;
        loop {
            let page =
                timeout(self.timing.answer, self.api.list(&params)).await.map_err(WatchError::Silence)?;
            let page = page.map_err(WatchError::Request)?;
            let first = version.is_none();
            let text = page.metadata.resource_version.filter(|text| !text.is_empty());
            let at = version.get_or_insert(Epoch(text.ok_or(WatchError::NoVersion)?)).clone();
            let objects: Vec<_> = page.items.iter().map(|object| self.reduce(object)).collect();
            drop(page.items);
            let next = page.metadata.continue_.filter(|token| !token.is_empty());
            self.shared.change(|table, changed| {
                if first {
                    table.list_begins(&self.kind, at.clone());
                }
                for object in objects {
                    table.listed(&self.kind, object, changed);
                }
                if next.is_none() {
                    table.list_ends(&self.kind, changed);
                }
            });
            match next {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(at),
            }
        }
    }

    /// Watches until the kind has to be listed again.
    async fn watch_from(&self, mut version: Epoch, failures: &mut Failures) {
        let mut silent = 0;
        loop {
            let outcome = tokio::select! {
                outcome = self.watch(&mut version, failures) => outcome,
                () = self.relist.notified() => return,
            };
            match outcome {
                Ok(Ended { heard, lasted }) => {
                    silent = if heard { 0 } else { silent + 1 };
                    if heard || lasted >= Duration::from_secs(self.timing.watch.into()) / 2 {
                        failures.count = 0;
                    } else {
                        // Ended at once: without a pause we would ask as fast as the server answers.
                        self.pause(failures).await;
                    }
                    if silent >= SILENT_WATCHES {
                        debug!(object = %self.kind, "nothing heard for long, listing again");
                        return;
                    }
                }
                Err(error) => {
                    let verdict = error.verdict();
                    self.failed(&error, failures).await;
                    if verdict != Verdict::Resume {
                        return;
                    }
                }
            }
        }
    }

    /// One watch from a version, which moves on with what is heard.
    async fn watch(&self, version: &mut Epoch, failures: &mut Failures) -> Result<Ended, WatchError> {
        let began = Instant::now();
        // A quarter more or less: the watches of a hundred kinds shall not all end in the same second.
        let seconds = rand::random_range(self.timing.watch * 3 / 4..=self.timing.watch * 5 / 4);
        let params = WatchParams {
            bookmarks: true,
            ..WatchParams::default().labels(keys::HASH_LABEL).timeout(seconds)
        };
        let started = timeout(self.timing.answer, self.api.watch(&params, &version.0)).await;
        let mut events = started.map_err(WatchError::Silence)?.map_err(WatchError::Request)?.boxed();
        failures.since = None;
        self.enter(KindState::Synced);
        let patience = Duration::from_secs(seconds.into()) + self.timing.answer;
        let mut heard = false;
        loop {
            let event = match timeout(patience, events.next()).await {
                Ok(Some(event)) => event.map_err(WatchError::Request)?,
                Ok(None) | Err(_) => return Ok(Ended { heard, lasted: began.elapsed() }),
            };
            heard = true;
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    *version = version_of(object.meta())?;
                    let object = self.reduce(&object);
                    self.shared.change(|table, changed| table.shown(&self.kind, object, changed));
                }
                WatchEvent::Deleted(object) => {
                    *version = version_of(object.meta())?;
                    // What it was at its end counts: its last change and its deletion may come together.
                    let last = self.reduce(&object);
                    self.shared.change(|table, changed| {
                        table.deleted(&self.kind, &last.key, version, last.finished, changed);
                    });
                }
                WatchEvent::Bookmark(mark) => {
                    *version = Epoch(mark.metadata.resource_version);
                    self.shared.change(|table, _: &mut Changed| table.reached(&self.kind, version));
                }
                WatchEvent::Error(status) => return Err(WatchError::Refused(status)),
            }
        }
    }

    fn reduce(&self, object: &K) -> Observed {
        let labels = object.meta().labels.as_ref();
        let hash = labels.and_then(|labels| labels.get(keys::HASH_LABEL)).map_or("", String::as_str);
        self.shared.judged(hash, |judge| object.reduce(&self.kind, judge))
    }

    /// Notes a failure and waits before the next try.
    async fn failed(&self, error: &WatchError, failures: &mut Failures) {
        debug!(object = %self.kind, cause = error as &dyn std::error::Error, "watch failed");
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = chain(error).into();
        let since = *failures.since.get_or_insert_with(Instant::now);
        match error.verdict() {
            Verdict::Unavailable => self.enter(KindState::Unavailable),
            _ if since.elapsed() >= self.timing.lost => self.enter(KindState::Lost),
            Verdict::Resume => self.enter(KindState::Behind),
            Verdict::Relist => {}
        }
        self.pause(failures).await;
    }

    async fn pause(&self, failures: &mut Failures) {
        let delay = self.timing.delay.saturating_mul(1 << failures.count.min(16)).min(self.timing.longest);
        failures.count = failures.count.saturating_add(1);
        let share = rand::random_range(0.5..=1.0);
        tokio::time::sleep(delay.mul_f64(share)).await;
    }

    fn enter(&self, state: KindState) {
        let mut before = state;
        let entered = self.state.send_if_modified(|known| {
            before = *known;
            let state = match (*known, state) {
                // A kind that was never listed is not behind: it has still to begin.
                (KindState::Listing, KindState::Behind | KindState::Lost) => *known,
                (KindState::Lost, KindState::Behind) => *known,
                // Nor is one that was refused to be had again because the next try brought no answer.
                (KindState::Unavailable, KindState::Behind | KindState::Lost) => *known,
                _ => state,
            };
            let differs = *known != state;
            *known = state;
            differs
        });
        if entered {
            let unseen = |state| matches!(state, KindState::Lost | KindState::Unavailable);
            if unseen(before) || unseen(state) {
                // No object changed, but what can be said of all of them.
                self.shared.kinds.tell(std::slice::from_ref(&self.kind));
            }
            match state {
                KindState::Unavailable => warn!(object = %self.kind, "kind cannot be watched"),
                KindState::Lost => warn!(object = %self.kind, "watch lost for long, nothing is known"),
                KindState::Behind => info!(object = %self.kind, "watch lost, trying to resume"),
                KindState::Synced | KindState::Listing => {
                    debug!(object = %self.kind, "watch is up to date")
                }
            }
        }
    }
}

fn version_of(metadata: &ObjectMeta) -> Result<Epoch, WatchError> {
    let version = metadata.resource_version.as_deref().filter(|version| !version.is_empty());
    version.map(Epoch::from).ok_or(WatchError::NoVersion)
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
