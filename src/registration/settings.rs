// SPDX-License-Identifier: Apache-2.0
//! What registration needs from its surroundings.

use std::{sync::Arc, time::Duration};

use crate::telemetry::{
    events::{self, EventType, Events},
    probes::Health,
};
use k8s_openapi::api::core::v1::ObjectReference;

/// Name of the readiness part.
pub const PART: &str = "registration";

/// Tells people: type, reason and note of an Event.
pub type Report = Arc<dyn Fn(EventType, &'static str, String) + Send + Sync>;

/// Where, for whom, how often.
#[derive(Clone)]
pub struct Settings {
    /// The agent's namespace in its own cluster.
    pub namespace: String,
    /// This replica's name; becomes the Cluster's label `fleet.cattle.io/created-by-agent-pod`.
    pub pod: String,
    /// A word of randomness.
    pub random: fn() -> u64,
    /// Between two looks for the credential Secret: 2 s, Fleet's.
    pub poll: Duration,
    /// Longest wait for it: 30 min, Fleet's.
    pub patience: Duration,
    /// Before the flow is tried again: 1 min, Fleet's.
    pub retry: Duration,
    /// What `/readyz` tells.
    pub health: Health,
    /// Events.
    pub report: Report,
}

impl Settings {
    /// Fleet's times.
    pub fn new(namespace: &str, pod: &str, random: fn() -> u64, health: Health, report: Report) -> Self {
        Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            random,
            poll: Duration::from_secs(2),
            patience: Duration::from_secs(30 * 60),
            retry: Duration::from_secs(60),
            health,
            report,
        }
    }

    /// Events about the agent's own Pod, or about its Secret where it runs in none.
    pub fn reporting(events: Events, home: ObjectReference) -> Report {
        Arc::new(move |kind, reason: &'static str, note| {
            events::Events::publish(&events, home.clone(), kind, reason, note);
        })
    }

    pub(super) fn well(&self) {
        self.health.set(PART, Ok(()));
    }

    pub(super) fn ill(&self, cause: String) {
        self.health.set(PART, Err(cause));
    }

    /// The wait before the next try, a little different in each replica.
    pub(super) fn pause(&self) -> Duration {
        let part = f64::from(u32::try_from((self.random)() % 250).unwrap_or(0)) / 1000.0;
        self.retry.mul_f64(1.0 + part)
    }
}
