// SPDX-License-Identifier: Apache-2.0
//! Lease `fleet-agent`, by which Fleet's agents elect their leader: who holds it, this agent or Fleet's.
//!
//! Fleet's agent knows no claims. While it renews that Lease no replica of this agent works; while this agent runs, one
//! replica of it, any, holds the Lease, so that a Fleet agent that appears waits for it. Times are the observer's own:
//! a holder is alive as long as the Lease changes.

use std::time::Duration;

use futures::{Stream, StreamExt, future};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::PostParams,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    protocol::{Epoch, Holder},
    telemetry::chain,
};

/// Its name.
pub const NAME: &str = "fleet-agent";
/// Start of the holder's identity while it is one of this agent's replicas. No pod's name has a slash.
pub const OURS: &str = "flotilla/";
/// What Fleet's chart sets, in seconds: a Fleet agent waits this long for a holder that is silent.
const DURATION: i32 = 30;
/// Between renewals.
const RENEW: Duration = Duration::from_secs(10);
/// A peer that did not renew for this long is replaced: before a Fleet agent would.
const PEER: Duration = Duration::from_secs(20);
/// Wait after a call that failed.
const AGAIN: Duration = Duration::from_secs(2);
/// Of one call.
const CALL: Duration = Duration::from_secs(4);
/// Seconds one watch call may last.
const CALL_SECONDS: u32 = 20;

/// Who may work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Not known yet.
    Unknown,
    /// This agent: one of its replicas holds the Lease.
    Ours,
    /// Fleet's agent has the Lease, or had it a moment ago.
    Foreign {
        /// The pod.
        holder: String,
        /// It was seen renewing it; otherwise its time has still to run out.
        renewed: bool,
    },
}

impl Lead {
    /// One line for people; `None` where all is well.
    pub fn text(&self, namespace: &str) -> Option<String> {
        match self {
            Self::Ours => None,
            Self::Unknown => Some(format!("Lease {namespace}/{NAME} was not looked at yet")),
            Self::Foreign { holder, renewed: true } => Some(format!(
                "Fleet's agent still runs: pod {holder} renews Lease {namespace}/{NAME}. Nothing is claimed until it \
                 is stopped"
            )),
            Self::Foreign { holder, renewed: false } => Some(format!(
                "pod {holder} of Fleet's agent holds Lease {namespace}/{NAME}: waiting whether it renews it"
            )),
        }
    }
}

/// What is known of the Lease, and since when.
#[derive(Debug)]
struct Known {
    lease: Lease,
    since: Instant,
    changes: u32,
}

impl Known {
    fn holder(&self) -> &str {
        self.lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
    }

    /// When it may be taken from its holder, unless it changes before.
    fn ends(&self) -> Instant {
        let holder = self.holder();
        let named = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(DURATION);
        let span = match holder {
            "" => Duration::ZERO,
            _ if holder.starts_with(OURS) => PEER,
            _ => Duration::from_secs(u64::try_from(named).unwrap_or(0)),
        };
        self.since + span
    }
}

/// One replica's view and share of the Lease.
pub struct FleetLease {
    api: Api<Lease>,
    me: String,
    known: Option<Known>,
    /// No write before this moment: the last one failed.
    not_before: Option<Instant>,
    lead: watch::Sender<Lead>,
}

impl FleetLease {
    /// Nothing is known yet.
    pub fn new(client: Client, namespace: &str, holder: &Holder) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            me: format!("{OURS}{holder}"),
            known: None,
            not_before: None,
            lead: watch::Sender::new(Lead::Unknown),
        }
    }

    /// Who may work, as it changes.
    pub fn lead(&self) -> watch::Receiver<Lead> {
        self.lead.subscribe()
    }

    /// Watches the Lease and keeps it until `stop`; then leaves it to the peers, or to Fleet's agent.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut seen = Box::pin(watch(self.api.clone()));
        // The watch takes a moment to begin; work may begin sooner.
        self.look().await;
        loop {
            let wait = self.due();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = seen.next() => match event {
                    Some(Some(lease)) => self.note(lease, false),
                    // Deleted by somebody, or never there.
                    Some(None) => { self.known = None; self.look().await }
                    None => return,
                },
                () = tokio::time::sleep_until(wait) => self.act().await,
            }
        }
        self.leave().await;
    }

    /// When the next thing is to be done.
    fn due(&self) -> Instant {
        let due = match &self.known {
            None => Instant::now() + AGAIN,
            Some(known) if known.holder() == self.me => known.since + RENEW,
            Some(known) => known.ends(),
        };
        self.not_before.map_or(due, |moment| moment.max(due))
    }

    async fn act(&mut self) {
        match &self.known {
            None => self.look().await,
            Some(_) => self.take().await,
        }
    }

    /// Reads it, and takes it if it may.
    async fn look(&mut self) {
        match timed(self.api.get_opt(NAME)).await {
            Ok(Some(lease)) => {
                self.note(lease, true);
                if self.known.as_ref().is_some_and(|known| known.ends() <= Instant::now()) {
                    self.take().await;
                }
            }
            Ok(None) => self.take().await,
            Err(cause) => warn!(cause, "cannot look at Lease {NAME}"),
        }
    }

    /// Creates, renews or takes it, in exactly the version that was judged.
    async fn take(&mut self) {
        let params = PostParams::default();
        let lease = self.wanted();
        let renewal = self.known.as_ref().is_some_and(|known| known.holder() == self.me);
        let written = match &self.known {
            Some(_) => timed(self.api.replace(NAME, &params, &lease)).await,
            None => timed(self.api.create(&params, &lease)).await,
        };
        match written {
            Ok(lease) => {
                if !renewal {
                    info!(
                        holder = self.me,
                        "this replica holds Lease {NAME}: a Fleet agent that starts stands by"
                    );
                }
                self.not_before = None;
                self.note(lease, true);
            }
            Err(cause) => {
                debug!(cause, "Lease {NAME} was not written");
                self.not_before = Some(Instant::now() + AGAIN);
                // Somebody else's now, or gone: the truth decides what is next.
                match timed(self.api.get_opt(NAME)).await {
                    Ok(Some(lease)) => self.note(lease, true),
                    Ok(None) => self.known = None,
                    Err(cause) => debug!(cause, "cannot look at Lease {NAME}"),
                }
            }
        }
    }

    fn wanted(&self) -> Lease {
        let now = MicroTime(Timestamp::now());
        let known = self.known.as_ref();
        let before = known.and_then(|known| known.lease.spec.clone()).unwrap_or_default();
        let mine = known.is_some_and(|known| known.holder() == self.me);
        let spec = LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(DURATION),
            acquire_time: if mine { before.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(before.lease_transitions.unwrap_or(0).saturating_add(i32::from(!mine))),
            ..before
        };
        let metadata = known.map_or_else(
            || ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
            |known| known.lease.metadata.clone(),
        );
        Lease { metadata, spec: Some(spec) }
    }

    /// Takes in a state of the Lease. A watch may tell of one that was replaced since; a live read may not.
    fn note(&mut self, lease: Lease, live: bool) {
        let version = |lease: &Lease| Epoch(lease.metadata.resource_version.clone().unwrap_or_default());
        let next = version(&lease);
        let changes = match &self.known {
            None => 0,
            Some(known) => {
                let now = version(&known.lease);
                if next == now || (!live && next < now && lease.metadata.uid == known.lease.metadata.uid) {
                    return;
                }
                known.changes.saturating_add(1)
            }
        };
        self.known = Some(Known { lease, since: Instant::now(), changes });
        self.judge();
    }

    fn judge(&self) {
        let Some(known) = &self.known else { return };
        let holder = known.holder();
        let next = if holder.starts_with(OURS) {
            Lead::Ours
        } else if holder.is_empty() {
            return; // free: about to be taken
        } else {
            Lead::Foreign { holder: holder.to_owned(), renewed: known.changes > 0 }
        };
        self.lead.send_if_modified(|lead| {
            let changed = *lead != next;
            *lead = next;
            changed
        });
    }

    /// Gives it up in exactly the version held. Who is first has it.
    async fn leave(&self) {
        let Some(known) = self.known.as_ref().filter(|known| known.holder() == self.me) else { return };
        let mut lease = known.lease.clone();
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
        }
        if let Err(cause) = timed(self.api.replace(NAME, &PostParams::default(), &lease)).await {
            debug!(cause, "Lease {NAME} is left to run out");
        }
    }
}

async fn timed<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(CALL, call).await {
        Ok(answer) => answer.map_err(|error| chain(&error)),
        Err(_) => Err(format!("no answer within {} s", CALL.as_secs())),
    }
}

/// The Lease as it changes; `None` when it is not there.
fn watch(api: Api<Lease>) -> impl Stream<Item = Option<Lease>> + Send {
    let config = watcher::Config::default().fields(&format!("metadata.name={NAME}")).timeout(CALL_SECONDS);
    watcher(api, config).default_backoff().filter_map(|event| {
        future::ready(match event {
            Ok(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease)) => Some(Some(lease)),
            Ok(watcher::Event::Delete(_)) => Some(None),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => None,
            Err(cause) => {
                debug!(cause = chain(&cause), "the watch of Lease {NAME} failed");
                None
            }
        })
    })
}

#[cfg(test)]
mod tests;
