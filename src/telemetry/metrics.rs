// SPDX-License-Identifier: Apache-2.0
//! Counters, gauges and histograms.
//!
//! Labels are closed enums, never names of objects: the number of series is fixed when the process starts, and every
//! series is present, at zero, from the first scrape on.

mod labels;

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};
use tokio::time::Instant;

pub use labels::*;

/// All metrics of one process. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    claims: Family<ClaimOutcome, Counter>,
    takeovers: Family<TakeoverReason, Counter>,
    deployments: Family<DeploymentOutcome, Counter>,
    upstream_writes: Family<UpstreamWrite, Counter>,
    downstream_writes: Family<DownstreamWrite, Counter>,
    stale_writes_refused: Counter,
    monitor_writes: Counter,
    garbage_collections: Counter,
    engine_restarts: Counter,
    check_ins: Family<CheckInOutcome, Counter>,
    events_written: Counter,
    events_dropped: Counter,
    events_failed: Counter,
    claims_expired: Counter,
    claims_quarantined: Counter,
    slots: Gauge,
    slots_free: Gauge,
    sessions_live: Gauge,
    open_claims: Gauge,
    fleet_claims: Family<FleetClaim, Gauge>,
    units: Family<UnitState, Gauge>,
    oldest_waiting: Gauge<f64, AtomicU64>,
    /// The gauge is an age: made from this when it is read.
    waiting_since: Mutex<Option<Instant>>,
    deploy_seconds: Histogram,
    claim_seconds: Histogram,
}

/// From 10 ms (a one-object bundle takes about 20) to the 10 minutes of a long wait.
const DEPLOY_BUCKETS: [f64; 13] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 180.0, 600.0];
/// A claim is one write: 1 ms beside the API server, seconds only when something is wrong.
const CLAIM_BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers everything, at zero.
    pub fn new() -> Self {
        let mut metrics = Inner {
            registry: Registry::with_prefix("flotilla"),
            claims: filled(ClaimOutcome::ALL),
            takeovers: filled(TakeoverReason::ALL),
            deployments: filled(DeploymentOutcome::ALL),
            upstream_writes: filled(UpstreamWrite::ALL),
            downstream_writes: filled(DownstreamWrite::ALL),
            stale_writes_refused: Counter::default(),
            monitor_writes: Counter::default(),
            garbage_collections: Counter::default(),
            engine_restarts: Counter::default(),
            check_ins: filled(CheckInOutcome::ALL),
            events_written: Counter::default(),
            events_dropped: Counter::default(),
            events_failed: Counter::default(),
            claims_expired: Counter::default(),
            claims_quarantined: Counter::default(),
            slots: Gauge::default(),
            slots_free: Gauge::default(),
            sessions_live: Gauge::default(),
            open_claims: Gauge::default(),
            fleet_claims: filled(FleetClaim::ALL),
            units: filled(UnitState::ALL),
            oldest_waiting: Gauge::default(),
            waiting_since: Mutex::default(),
            deploy_seconds: Histogram::new(DEPLOY_BUCKETS),
            claim_seconds: Histogram::new(CLAIM_BUCKETS),
        };
        metrics.register();
        Self(Arc::new(metrics))
    }

    /// The Prometheus text format, version 0.0.4 (every scraper reads it); see [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let since = *self.0.waiting_since.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.oldest_waiting.set(since.map_or(0.0, |since| since.elapsed().as_secs_f64()));
        let mut text = String::with_capacity(8 * 1024);
        // Writing into a String fails only when an encoder of ours does, and those only forward.
        if prometheus_client::encoding::prometheus_text::encode(&mut text, &self.0.registry).is_err() {
            tracing::error!("metrics could not be encoded");
        }
        text
    }

    /// A claim was written and is ours.
    pub fn claim_won(&self) {
        self.0.claims.get_or_create(&ClaimOutcome::Won).inc();
    }

    /// How long winning a claim took, from deciding to try to knowing that it is ours.
    pub fn claim_took(&self, took: Duration) {
        self.0.claim_seconds.observe(took.as_secs_f64());
    }

    /// A claim's write was refused with 409.
    pub fn claim_conflict(&self) {
        self.0.claims.get_or_create(&ClaimOutcome::Conflict).inc();
    }

    /// A claim went to a rival.
    pub fn claim_lost(&self) {
        self.0.claims.get_or_create(&ClaimOutcome::Lost).inc();
    }

    /// A claim was replaced by a new one of ours.
    pub fn takeover(&self, reason: TakeoverReason) {
        self.0.takeovers.get_or_create(&reason).inc();
    }

    /// A deployment ended after `took`, from winning the claim to the finish write.
    pub fn deployment(&self, outcome: DeploymentOutcome, took: Duration) {
        self.0.deployments.get_or_create(&outcome).inc();
        self.0.deploy_seconds.observe(took.as_secs_f64());
    }

    /// A write to the upstream cluster was sent.
    pub fn upstream_write(&self, kind: UpstreamWrite) {
        self.0.upstream_writes.get_or_create(&kind).inc();
        if kind == UpstreamWrite::Monitor {
            self.0.monitor_writes.inc();
        }
    }

    /// The status of an idle unit was written; the same as `upstream_write(Monitor)`.
    pub fn monitor_write(&self) {
        self.upstream_write(UpstreamWrite::Monitor);
    }

    /// A write to the downstream cluster was sent.
    pub fn downstream_write(&self, verb: DownstreamWrite) {
        self.0.downstream_writes.get_or_create(&verb).inc();
    }

    /// A deployment whose claim was lost was given up: a write of it was refused, or would have been (S1).
    pub fn stale_write_refused(&self) {
        self.0.stale_writes_refused.inc();
    }

    /// A pass of garbage collection ended.
    pub fn garbage_collection(&self) {
        self.0.garbage_collections.inc();
    }

    /// The engine process was started again.
    pub fn engine_restart(&self) {
        self.0.engine_restarts.inc();
    }

    /// A sign of life was written to the Cluster's status, or could not be.
    pub fn checked_in(&self, outcome: CheckInOutcome) {
        self.0.check_ins.get_or_create(&outcome).inc();
    }

    /// An Event reached the API server.
    pub fn event_written(&self) {
        self.0.events_written.inc();
    }

    /// An Event was dropped because its queue was full.
    pub fn event_dropped(&self) {
        self.0.events_dropped.inc();
    }

    /// An Event could not be written.
    pub fn event_failed(&self) {
        self.0.events_failed.inc();
    }

    /// The controller cleared a claim that nobody was left to finish.
    pub fn claims_expired(&self) {
        self.0.claims_expired.inc();
    }

    /// A unit was put into quarantine, by the controller or by the replica that counted its last loss.
    pub fn claims_quarantined(&self) {
        self.0.claims_quarantined.inc();
    }

    /// Worker slots: how many there are and how many are free.
    pub fn set_slots(&self, total: usize, free: usize) {
        self.0.slots.set(signed(total));
        self.set_free_slots(free);
    }

    /// Free worker slots.
    pub fn set_free_slots(&self, free: usize) {
        self.0.slots_free.set(signed(free));
    }

    /// Claims of one sort in the controller's eyes.
    pub fn set_fleet_claims(&self, sort: FleetClaim, claims: usize) {
        self.0.fleet_claims.get_or_create(&sort).set(signed(claims));
        if sort == FleetClaim::Open {
            self.0.open_claims.set(signed(claims));
        }
    }

    /// Replicas whose session lives, in this replica's eyes.
    pub fn set_live_sessions(&self, live: usize) {
        self.0.sessions_live.set(signed(live));
    }

    /// Units in one state.
    pub fn set_units(&self, state: UnitState, units: usize) {
        self.0.units.get_or_create(&state).set(signed(units));
    }

    /// Since when the unit waits that could have been claimed longest; `None` when none does.
    pub fn set_oldest_waiting(&self, since: Option<Instant>) {
        *self.0.waiting_since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = prometheus_client::encoding::prometheus_text::CONTENT_TYPE;

fn filled<L, M>(words: &[L]) -> Family<L, M>
where
    L: Copy + std::hash::Hash + Eq,
    M: Default,
{
    let family = Family::default();
    for word in words {
        drop(family.get_or_create(word));
    }
    family
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Inner {
    /// Names get the prefix `flotilla_`; counters get `_total` when they are encoded, so it is not written here.
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("build", "Version of this process", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        r.register("claims", "Attempts to claim a unit, by how they ended", self.claims.clone());
        r.register("takeovers", "Claims taken over, by reason", self.takeovers.clone());
        r.register("deployments", "Deployments that ended, by how", self.deployments.clone());
        r.register(
            "upstream_writes",
            "Writes to the upstream cluster, by purpose",
            self.upstream_writes.clone(),
        );
        r.register("downstream_writes", "Writes to this cluster, by verb", self.downstream_writes.clone());
        r.register(
            "stale_writes_refused",
            "Deployments that went on after their claim was lost: what they still had to write was refused",
            self.stale_writes_refused.clone(),
        );
        r.register("monitor_writes", "Status writes of idle units", self.monitor_writes.clone());
        r.register(
            "garbage_collections",
            "Looks at all releases for those that nobody needs",
            self.garbage_collections.clone(),
        );
        r.register("engine_restarts", "Restarts of the rendering engine", self.engine_restarts.clone());
        r.register("check_ins", "Signs of life for the Cluster's status, by outcome", self.check_ins.clone());
        r.register("events_written", "Kubernetes Events written", self.events_written.clone());
        r.register(
            "events_dropped",
            "Kubernetes Events dropped from a full queue",
            self.events_dropped.clone(),
        );
        r.register(
            "events_failed",
            "Kubernetes Events that could not be written",
            self.events_failed.clone(),
        );
        r.register("claims_expired", "Claims the controller cleared", self.claims_expired.clone());
        r.register("claims_quarantined", "Units put into quarantine", self.claims_quarantined.clone());
        r.register("worker_slots", "Worker slots of this replica", self.slots.clone());
        r.register("worker_slots_free", "Worker slots free now", self.slots_free.clone());
        r.register("claims_open", "Open claims the controller observes", self.open_claims.clone());
        r.register(
            "fleet_claims",
            "Claims the controller observes, by what they say",
            self.fleet_claims.clone(),
        );
        r.register("sessions_live", "Replicas believed alive, this one included", self.sessions_live.clone());
        r.register("units", "Units, by what this replica knows of them", self.units.clone());
        r.register(
            "oldest_waiting_seconds",
            "How long the unit has waited that could have been claimed longest",
            self.oldest_waiting.clone(),
        );
        r.register(
            "deploy_seconds",
            "Time from winning a claim to writing its result",
            self.deploy_seconds.clone(),
        );
        r.register(
            "claim_seconds",
            "Time from deciding to claim to holding the claim",
            self.claim_seconds.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_there_before_anything_happened() {
        let text = Metrics::new().encode();
        for line in [
            r#"flotilla_claims_total{outcome="won"} 0"#,
            r#"flotilla_takeovers_total{reason="overdue"} 0"#,
            r#"flotilla_deployments_total{outcome="abandoned"} 0"#,
            r#"flotilla_upstream_writes_total{kind="finish"} 0"#,
            r#"flotilla_downstream_writes_total{verb="apply"} 0"#,
            r#"flotilla_units{state="backing_off"} 0"#,
            "flotilla_stale_writes_refused_total 0",
            "flotilla_worker_slots_free 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn what_happened_is_counted_once_and_clones_share_it() {
        let metrics = Metrics::new();
        metrics.clone().claim_won();
        metrics.claim_took(Duration::from_millis(3));
        metrics.deployment(DeploymentOutcome::Installed, Duration::from_millis(30));
        metrics.monitor_write();
        metrics.set_slots(4, 3);
        let text = metrics.encode();
        for line in [
            r#"flotilla_claims_total{outcome="won"} 1"#,
            r#"flotilla_claim_seconds_bucket{le="0.005"} 1"#,
            r#"flotilla_deployments_total{outcome="installed"} 1"#,
            "flotilla_deploy_seconds_count 1",
            r#"flotilla_upstream_writes_total{kind="monitor"} 1"#,
            "flotilla_monitor_writes_total 1",
            "flotilla_worker_slots 4",
            "flotilla_worker_slots_free 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn names_carry_the_prefix_and_are_snake_case() {
        let text = Metrics::new().encode();
        let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert!(names.len() >= 20, "{names:?}");
        for name in names {
            let name = name.split(' ').next().unwrap();
            assert!(name.starts_with("flotilla_"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(!name.contains("total_total"), "{name}");
        }
    }
}
