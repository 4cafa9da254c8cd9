// SPDX-License-Identifier: Apache-2.0
//! Counters, gauges and histograms, and the words their labels may take.
//!
//! Labels are closed enums, never names of objects: the number of series is fixed when the process starts, and every
//! series is present, at zero, from the first scrape on.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

/// Defines an enum that is the value of one label: its key, its words, and all of them for registration.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident as $key:literal { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$word_doc])* $variant,)+ }

        impl $name {
            /// Every value, in the order of the reference page.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The label's value as Prometheus sees it.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
                EncodeLabelValue::encode(&self.word(), encoder)
            }
        }

        impl EncodeLabelSet for $name {
            fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), std::fmt::Error> {
                EncodeLabelSet::encode(&[($key, self.word())], encoder)
            }
        }
    };
}

label! {
    /// How an attempt to claim ended.
    ClaimOutcome as "outcome" {
        /// The claim is ours.
        Won = "won",
        /// The write was refused; who wrote instead is not yet known.
        Conflict = "conflict",
        /// A rival holds the claim.
        Lost = "lost",
    }
}

label! {
    /// Why a peer's claim was taken over.
    TakeoverReason as "reason" {
        /// The holder's session did not change for its TTL.
        Silent = "silent",
        /// The holder's pod or container is known to be dead.
        Terminated = "terminated",
        /// The same pod runs under a new boot id.
        Restarted = "restarted",
        /// The claim's budget is spent although its holder lives.
        Overrun = "overrun",
    }
}

label! {
    /// How a deployment ended.
    DeploymentOutcome as "outcome" {
        /// First revision of a release.
        Installed = "installed",
        /// A later revision.
        Upgraded = "upgraded",
        /// The release was already as wanted; objects were stamped only.
        Adopted = "adopted",
        /// Failed in a way that is tried again.
        Failed = "failed",
        /// Failed in a way that only a spec change can mend.
        Rejected = "rejected",
        /// Given up because the claim was lost, the spec changed or the unit went away.
        Abandoned = "abandoned",
    }
}

label! {
    /// What a write to the upstream cluster was for.
    UpstreamWrite as "kind" {
        /// A claim, or a takeover.
        Claim = "claim",
        /// The final status, with the claim removed.
        Finish = "finish",
        /// A claim that entered a wait.
        Wait = "wait",
        /// A claim given back without a result.
        Release = "release",
        /// Status of an idle unit.
        Monitor = "monitor",
        /// The cluster's check-in.
        Checkin = "checkin",
        /// The controller cleared a claim.
        Expire = "expire",
    }
}

label! {
    /// The verb of a write to the downstream cluster.
    DownstreamWrite as "verb" {
        /// Server-side apply.
        Apply = "apply",
        /// POST.
        Create = "create",
        /// PUT.
        Update = "update",
        /// A patch that is not an apply.
        Patch = "patch",
        /// DELETE.
        Delete = "delete",
    }
}

label! {
    /// Where a unit stands in this replica's eyes.
    UnitState as "state" {
        /// Deployed, nothing to do.
        Idle = "idle",
        /// Wants work; no slot or turn yet.
        Queued = "queued",
        /// This replica deploys it.
        Working = "working",
        /// This replica waits for its objects, without a slot.
        Waiting = "waiting",
        /// A peer holds its claim.
        Elsewhere = "elsewhere",
        /// Failed; its next try is due later.
        BackingOff = "backing_off",
        /// Paused, off schedule or waiting for a dependency.
        Held = "held",
        /// Lost too many attempts.
        Quarantined = "quarantined",
    }
}

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
    engine_restarts: Counter,
    events_written: Counter,
    events_dropped: Counter,
    events_failed: Counter,
    claims_expired: Counter,
    claims_quarantined: Counter,
    slots: Gauge,
    slots_free: Gauge,
    sessions_live: Gauge,
    units: Family<UnitState, Gauge>,
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
            engine_restarts: Counter::default(),
            events_written: Counter::default(),
            events_dropped: Counter::default(),
            events_failed: Counter::default(),
            claims_expired: Counter::default(),
            claims_quarantined: Counter::default(),
            slots: Gauge::default(),
            slots_free: Gauge::default(),
            sessions_live: Gauge::default(),
            units: filled(UnitState::ALL),
            deploy_seconds: Histogram::new(DEPLOY_BUCKETS),
            claim_seconds: Histogram::new(CLAIM_BUCKETS),
        };
        metrics.register();
        Self(Arc::new(metrics))
    }

    /// The Prometheus text format, version 0.0.4 (every scraper reads it); see [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
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

    /// A peer's claim was replaced by ours.
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

    /// A downstream write was refused because the target carries a newer claim's stamp, or changed meanwhile (S1).
    pub fn stale_write_refused(&self) {
        self.0.stale_writes_refused.inc();
    }

    /// The engine process was started again.
    pub fn engine_restart(&self) {
        self.0.engine_restarts.inc();
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

    /// The controller put a unit into quarantine.
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

    /// Sessions this replica believes alive, itself included.
    pub fn set_live_sessions(&self, live: usize) {
        self.0.sessions_live.set(signed(live));
    }

    /// Units in one state.
    pub fn set_units(&self, state: UnitState, units: usize) {
        self.0.units.get_or_create(&state).set(signed(units));
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
        r.register("takeovers", "Claims taken over from a peer, by reason", self.takeovers.clone());
        r.register("deployments", "Deployments that ended, by how", self.deployments.clone());
        r.register(
            "upstream_writes",
            "Writes to the upstream cluster, by purpose",
            self.upstream_writes.clone(),
        );
        r.register("downstream_writes", "Writes to this cluster, by verb", self.downstream_writes.clone());
        r.register(
            "stale_writes_refused",
            "Writes refused because a newer claim or another writer had touched the object",
            self.stale_writes_refused.clone(),
        );
        r.register("monitor_writes", "Status writes of idle units", self.monitor_writes.clone());
        r.register("engine_restarts", "Restarts of the rendering engine", self.engine_restarts.clone());
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
        r.register("claims_quarantined", "Units the controller quarantined", self.claims_quarantined.clone());
        r.register("worker_slots", "Worker slots of this replica", self.slots.clone());
        r.register("worker_slots_free", "Worker slots free now", self.slots_free.clone());
        r.register("sessions_live", "Replicas believed alive, this one included", self.sessions_live.clone());
        r.register("units", "Units, by what this replica knows of them", self.units.clone());
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
            r#"flotilla_takeovers_total{reason="overrun"} 0"#,
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
