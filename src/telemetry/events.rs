// SPDX-License-Identifier: Apache-2.0
//! Kubernetes Events, written behind the caller's back: `publish` never waits, never fails and never blocks.
//!
//! A full queue drops (counted), a refused write is counted, and a denial is logged once, since missing rights for
//! Events are normal: Fleet's agent role has none upstream. Objects of another cluster get their Events through a
//! *home* object of this one (see [`EventsConfig::home`]).

mod series;
mod writer;

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Metrics;

/// Every reason an Event of ours can have. `docs/reference.md` explains each; a test holds the two together.
pub mod reason {
    /// A unit was deployed for the first time.
    pub const FIRST_DEPLOYED: &str = "FirstDeployed";
    /// A deployment failed; the note has the cause.
    pub const DEPLOY_FAILED: &str = "DeployFailed";
    /// A unit that had failed is deployed again.
    pub const RECOVERED: &str = "Recovered";
    /// A dead or stuck peer's claim was taken over.
    pub const TAKEN_OVER: &str = "TakenOver";
    /// The controller cleared a claim that nobody was left to finish.
    pub const CLAIM_EXPIRED: &str = "ClaimExpired";
    /// A unit lost too many attempts and is left alone.
    pub const QUARANTINED: &str = "Quarantined";
    /// A write under an old claim was refused.
    pub const STALE_WRITE_REFUSED: &str = "StaleWriteRefused";
    /// Many units vanished at once; nothing is uninstalled until a person looks or the long grace ends.
    pub const ABSENCE_HELD: &str = "AbsenceHeld";
    /// The management cluster was restored from a backup.
    pub const UPSTREAM_RESTORED: &str = "UpstreamRestored";
    /// A unit's objects were removed.
    pub const UNINSTALLED: &str = "Uninstalled";
    /// A removal does not come to its end: a finalizer or a delete hook is in the way.
    pub const REMOVAL_HELD: &str = "RemovalHeld";
    /// Something is too large to be stored.
    pub const SIZE_EXCEEDED: &str = "SizeExceeded";
    /// The cluster was registered, or registered anew.
    pub const REGISTERED: &str = "Registered";
    /// The registration cannot go on; the note says what it waits for.
    pub const REGISTRATION_FAILED: &str = "RegistrationFailed";
    /// The management cluster refuses the agent's credentials, and nothing is there to replace them.
    pub const CREDENTIALS_REFUSED: &str = "CredentialsRefused";
    /// New credentials of Secret `fleet-agent` are in use.
    pub const CREDENTIALS_CHANGED: &str = "CredentialsChanged";
    /// A bundle that carries Fleet's own agent is not deployed.
    pub const AGENT_BUNDLE_REFUSED: &str = "AgentBundleRefused";
    /// Fleet's agent runs in this cluster: this one stands by.
    pub const STANDING_BY: &str = "StandingBy";
    /// Foreign changes were reverted; the note names the object, the field and who had changed it.
    pub const DRIFT_CORRECTED: &str = "DriftCorrected";
    /// Foreign changes could not be reverted; the note has the API server's answer.
    pub const CORRECTION_FAILED: &str = "CorrectionFailed";
    /// What is corrected is changed again and again; the note says by whom.
    pub const DRIFT_CONTENDED: &str = "DriftContended";

    /// All of them.
    pub const ALL: [&str; 21] = [
        FIRST_DEPLOYED,
        DEPLOY_FAILED,
        RECOVERED,
        TAKEN_OVER,
        CLAIM_EXPIRED,
        QUARANTINED,
        STALE_WRITE_REFUSED,
        ABSENCE_HELD,
        UPSTREAM_RESTORED,
        UNINSTALLED,
        REMOVAL_HELD,
        SIZE_EXCEEDED,
        REGISTERED,
        REGISTRATION_FAILED,
        CREDENTIALS_REFUSED,
        CREDENTIALS_CHANGED,
        AGENT_BUNDLE_REFUSED,
        STANDING_BY,
        DRIFT_CORRECTED,
        CORRECTION_FAILED,
        DRIFT_CONTENDED,
    ];
}

/// The two types that Kubernetes knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something went as it should.
    Normal,
    /// A person may need to look.
    Warning,
}

impl EventType {
    const fn word(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// `reportingComponent` of every Event that an agent writes.
pub const AGENT: &str = "flotilla-agent";

/// Events that may wait for the API server. A burst of first deployments is one each; at 50 a second this is 20 s of
/// an API server that does not answer, and about 0.5 MB at worst.
const QUEUE: usize = 1024;

/// Who reports.
#[derive(Clone, Debug)]
pub struct EventsConfig {
    /// `reportingComponent`, [`AGENT`] for agents.
    pub component: &'static str,
    /// `reportingInstance`: this replica's name.
    pub instance: String,
    /// When the objects reported on live in another cluster: the object of *this* cluster (say, the agent's Pod) that
    /// each Event is about; the real object then stands in `related` and before the note.
    pub home: Option<ObjectReference>,
}

/// One thing to report.
#[derive(Debug)]
struct Report {
    regarding: ObjectReference,
    kind: EventType,
    reason: &'static str,
    note: String,
}

/// Publishes Events. Cloning shares the queue.
#[derive(Clone, Debug)]
pub struct Events {
    queue: Option<mpsc::Sender<Report>>,
    metrics: Metrics,
}

impl Events {
    /// Starts the task that writes; it ends with `stop`, after a last look at what is queued.
    pub fn start(
        client: kube::Client,
        config: EventsConfig,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Self {
        let (queue, reports) = mpsc::channel(QUEUE);
        tokio::spawn(writer::run(client, config, reports, metrics.clone(), stop));
        Self { queue: Some(queue), metrics }
    }

    /// Publishes nothing: for tools and tests.
    pub fn disabled(metrics: Metrics) -> Self {
        Self { queue: None, metrics }
    }

    /// Reports something about an object. Returns at once; `note` is for people and must hold no secret value.
    pub fn publish(&self, regarding: ObjectReference, kind: EventType, reason: &'static str, note: String) {
        let Some(queue) = &self.queue else { return };
        if queue.try_send(Report { regarding, kind, reason, note }).is_err() {
            self.metrics.event_dropped();
        }
    }
}

#[cfg(test)]
mod tests;
