// SPDX-License-Identifier: Apache-2.0
//! Everything a replica needs from its surroundings.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicUsize},
    time::Duration,
};

use tokio::sync::watch;

use super::{history::History, mass::Holds, surroundings::Clock};
use crate::{
    downstream::{Downstream, accounts::Accounts, live::LiveStore, session::SessionHealth},
    monitor::ErrorStatuses,
    protocol::{Config, Holder, SessionId, Time},
    registration::ClusterName,
    render::engine::Engine,
    telemetry::{Metrics, events::Events, probes::Health},
    upstream::{Upstream, sources::Sources},
};

/// Shared by the loop and its tasks.
pub struct Context {
    /// The management cluster: claims and results, status subresource only.
    pub upstream: Upstream,
    /// Its Cluster object, for the check-in.
    pub cluster: watch::Receiver<ClusterName>,
    /// Time between two check-ins.
    pub checkin_interval: Duration,
    /// This cluster: release records and objects.
    pub downstream: Downstream,
    /// As whom bundles are deployed.
    pub accounts: Accounts,
    /// What lives of what was deployed.
    pub live: LiveStore,
    /// Reads manifests.
    pub engine: Engine,
    /// Fetches bundles that are in no Content.
    pub sources: Sources,
    /// This run.
    pub session_id: SessionId,
    /// This replica's name.
    pub holder: Holder,
    /// Whether the session Lease is renewed.
    pub session: SessionHealth,
    /// Makes the next renewal come at once.
    pub session_news: Arc<tokio::sync::Notify>,
    /// Time between its renewals.
    pub session_renew: Duration,
    /// Settings of the protocol.
    pub protocol: Config,
    /// How long is waited when many units are absent at once.
    pub mass_grace: Duration,
    /// What is held because much disappeared at once.
    pub holds: Holds,
    /// Units that wait for a reset.
    pub history: History,
    /// Namespace of the agent.
    pub agent_namespace: String,
    /// Suffix of set ids; lets several agents share a cluster.
    pub scope: String,
    /// Deployments at once.
    pub slots: usize,
    /// How many of them are free; the session Lease tells the peers.
    pub free_slots: Arc<AtomicUsize>,
    /// Replicas believed alive; the session Lease tells people.
    pub replicas: Arc<AtomicUsize>,
    /// Which conditions are errors.
    pub errors: Arc<ErrorStatuses>,
    /// What was first seen when, to tell what stands still.
    pub still: Mutex<HashMap<String, Time>>,
    /// Looks at settled units at once: a start with thousands of them must not flood the API server.
    pub monitors: tokio::sync::Semaphore,
    /// Time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
    /// Kubernetes Events.
    pub events: Events,
    /// What `/readyz` tells.
    pub health: Health,
}

/// What was seen is forgotten after this many, the oldest first: each is a rare case.
const STILL_LIMIT: usize = 1000;

impl Context {
    /// Whether this very thing was first seen at least `time` ago by this replica's own clock.
    pub fn stood_still(&self, thing: String, time: Duration) -> bool {
        let now = self.clock.now();
        let mut still = self.still.lock().unwrap_or_else(PoisonError::into_inner);
        if still.len() >= STILL_LIMIT
            && let Some(oldest) =
                still.iter().min_by_key(|(_, since)| **since).map(|(thing, _)| thing.clone())
        {
            still.remove(&oldest);
        }
        let since = *still.entry(thing).or_insert(now);
        now.saturating_sub(since) >= time
    }
}
