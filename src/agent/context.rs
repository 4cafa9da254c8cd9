// SPDX-License-Identifier: Apache-2.0
//! Everything a replica needs from its surroundings.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use super::surroundings::Clock;
use crate::{
    downstream::{Downstream, live::LiveStore, session::SessionHealth},
    protocol::{Config, Holder, SessionId},
    render::engine::Engine,
    telemetry::{Metrics, events::Events, probes::Health},
    upstream::Upstream,
};

/// Shared by the loop and its tasks.
pub struct Context {
    /// The management cluster: claims and results, status subresource only.
    pub upstream: Upstream,
    /// This cluster: release records and objects.
    pub downstream: Downstream,
    /// What lives of what was deployed.
    pub live: LiveStore,
    /// Reads manifests.
    pub engine: Engine,
    /// This run.
    pub session_id: SessionId,
    /// This replica's name.
    pub holder: Holder,
    /// Whether the session Lease is renewed.
    pub session: SessionHealth,
    /// Time between its renewals.
    pub session_renew: Duration,
    /// Settings of the protocol.
    pub protocol: Config,
    /// Namespace of the agent.
    pub agent_namespace: String,
    /// Suffix of set ids; lets several agents share a cluster.
    pub scope: String,
    /// Deployments at once.
    pub slots: usize,
    /// How many of them are free; the session Lease tells the peers.
    pub free_slots: Arc<AtomicUsize>,
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
