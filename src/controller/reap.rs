// SPDX-License-Identifier: Apache-2.0
//! The reaper: watches, and writes what the protocol's reaper step says.

use std::time::Duration;

use futures::StreamExt;
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    REQUEST_TIMEOUT,
    watched::{Claims, Key, Progress},
};
use crate::{
    api::{BundleDeployment, BundleDeploymentStatus},
    protocol::{
        ClaimState,
        reaper::{self, Limits, Verdict, Watched},
    },
    telemetry::{
        Metrics,
        events::{EventType, Events, reason},
        metrics::{FleetClaim, UpstreamWrite},
        probes::Health,
    },
    upstream::{self, Event, Healed, fields, snapshot},
};

/// Objects a list request asks for: a fleet's statuses are large, and only their claims are kept.
const PAGE: u32 = 100;
/// How long to wait before a claim is looked at again that could not be.
const RETRY: Duration = Duration::from_secs(10);

/// One reaper.
pub struct Reaper {
    client: Client,
    limits: Limits,
    metrics: Metrics,
    events: Events,
    health: Health,
    claims: Claims,
    progress: Progress,
    start: Instant,
}

/// What became of one expiry.
enum Reaped {
    /// Written, by us.
    Expired(ClaimState),
    /// Not needed any more, or somebody else was first.
    Moot,
    /// Nobody knows: look again.
    Again(String),
}

impl Reaper {
    /// A reaper that has seen nothing.
    pub fn new(client: Client, limits: Limits, metrics: Metrics, events: Events, health: Health) -> Self {
        Self {
            client,
            limits,
            metrics,
            events,
            health,
            claims: Claims::default(),
            progress: Progress::default(),
            start: Instant::now(),
        }
    }

    /// Runs for ever.
    pub async fn run(mut self, namespace: Option<&str>) {
        let (client, namespace) = (self.client.clone(), namespace.map(str::to_owned));
        let open = move || upstream::watch_in_pages(client.clone(), namespace.as_deref(), PAGE).boxed();
        let mut events = Healed::new(open, jittered);
        loop {
            let wait = self.claims.next_due().map(|due| due.saturating_sub(self.healthy()));
            tokio::select! {
                event = events.next() => self.take(event),
                () = sleep(wait) => self.reap().await,
            }
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn healthy(&self) -> Duration {
        self.progress.at(self.now())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Seen(object) => {
                self.progress.works(self.now());
                let (key, state) = (key(&object), snapshot(&object, false));
                let healthy = self.healthy();
                self.claims.see(key, state.version, state.slot, &self.limits, healthy);
            }
            Event::Deleted(object) => {
                self.claims.forget(&key(&object));
            }
            Event::Listed(listed) => {
                self.progress.works(self.now());
                self.claims.retain(&listed);
                self.health.set("watch", Ok(()));
            }
            Event::Invalid { namespace, name, error } => {
                warn!(unit = %format!("{namespace}/{name}"), cause = %error, "this BundleDeployment cannot be read");
            }
            Event::Failed(error) => {
                self.progress.broken(self.now());
                let cause = upstream::chain(&error);
                warn!(cause, "the watch of BundleDeployments failed and is opened anew");
                self.health.set("watch", Err(cause));
            }
        }
        for sort in FleetClaim::ALL {
            self.metrics.set_fleet_claims(*sort, self.claims.count(*sort));
        }
    }

    async fn reap(&mut self) {
        let healthy = self.healthy();
        for (key, watched) in self.claims.take_due(&self.limits, healthy) {
            let unit = format!("{}/{}", key.0, key.1);
            match self.expire(&key, &watched).await {
                Reaped::Expired(state) => {
                    self.metrics.claims_expired();
                    if state == ClaimState::Quarantined {
                        self.metrics.claims_quarantined();
                    }
                    info!(
                        unit,
                        state = state.reason(),
                        "claim expired: nobody took it over within its budget"
                    );
                }
                Reaped::Moot => {}
                Reaped::Again(cause) => {
                    warn!(unit, cause, "cannot expire a claim now; it is looked at again");
                    self.claims.retry(key, self.healthy() + RETRY);
                }
            }
        }
    }

    /// One live look, one write under the version read.
    async fn expire(&self, key: &Key, watched: &Watched) -> Reaped {
        let api: Api<BundleDeployment> = Api::namespaced(self.client.clone(), &key.0);
        let object = match tokio::time::timeout(REQUEST_TIMEOUT, api.get_opt(&key.1)).await {
            Err(_) => return Reaped::Again("no answer in time".into()),
            Ok(Err(error)) => return Reaped::Again(upstream::chain(&error)),
            Ok(Ok(None)) => return Reaped::Moot,
            Ok(Ok(Some(object))) => object,
        };
        let live = snapshot(&object, false);
        // Seen anew with the time counted so far: another nonce or state starts its own count.
        let seen = reaper::see(Some(watched.clone()), live.version.clone(), live.slot, self.healthy());
        let Some(seen) = seen else { return Reaped::Moot };
        let claim = match reaper::judge(&seen, &self.limits, self.healthy()) {
            Verdict::Leave(_) => return Reaped::Moot,
            Verdict::Replace(claim) => claim,
        };
        let before = object.status.clone().unwrap_or_default();
        let mut after: BundleDeploymentStatus = before.clone();
        fields::set_claim(&mut after.conditions, Some(&claim), &stamp());
        let Some(patch) = fields::patch(&object, &live.version.0, &before, &after) else {
            return Reaped::Moot;
        };
        self.metrics.upstream_write(UpstreamWrite::Expire);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        match tokio::time::timeout(REQUEST_TIMEOUT, api.patch_status(&key.1, &params, &patch)).await {
            Ok(Ok(_)) => {
                let known = seen.slot.claim().map(|claim| claim.holder.0.as_str());
                self.publish(&object, known, claim.state);
                Reaped::Expired(claim.state)
            }
            // Somebody wrote meanwhile: the watch shows what.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Reaped::Moot,
            Ok(Err(error)) => Reaped::Again(upstream::chain(&error)),
            Err(_) => Reaped::Again("no answer in time".into()),
        }
    }

    fn publish(&self, object: &BundleDeployment, holder: Option<&str>, state: ClaimState) {
        let (reason, note) = match state {
            ClaimState::Quarantined => (
                reason::QUARANTINED,
                "lost with its holder too often; it is tried again after its rest or a change".to_owned(),
            ),
            _ => (
                reason::CLAIM_EXPIRED,
                format!(
                    "claim of {} expired: not finished within its budget",
                    holder.unwrap_or("an unknown holder")
                ),
            ),
        };
        self.events.publish(object.object_ref(&()), EventType::Warning, reason, note);
    }
}

fn key(object: &BundleDeployment) -> Key {
    (object.metadata.namespace.clone().unwrap_or_default(), object.metadata.name.clone().unwrap_or_default())
}

#[expect(clippy::disallowed_methods, reason = "the edge where time comes in")]
fn stamp() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

/// Several controllers that started together list at different times.
#[expect(clippy::disallowed_methods, reason = "the edge where randomness comes in")]
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(1.0 + rand::random::<f64>() / 4.0)
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::telemetry::{events::EventsConfig, scripted};

    #[tokio::test(start_paused = true)]
    async fn a_quarantine_is_written_under_the_version_read_and_told_once() {
        let (client, mut server) = scripted::client();
        let (metrics, stop) = (Metrics::new(), CancellationToken::new());
        let config = EventsConfig { component: super::super::COMPONENT, instance: "one".into(), home: None };
        let events = Events::start(client.clone(), config, metrics.clone(), stop.clone());
        let limits = Limits { claim_timeout: Duration::from_secs(600), margin: Duration::from_secs(30) };
        let health = Health::new(&["watch"]);
        let mut reaper = Reaper::new(client, limits, metrics.clone(), events, health);
        let claim = json!({"type": "InProgress", "status": "True", "reason": "Claimed", "message":
            "v1 holder=a session=s3 nonce=n attempt=3 lost=2 by=s1,s2 budget=100 deployment=d"});
        let unit = json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": "app", "namespace": "c", "uid": "u", "resourceVersion": "7"},
            "spec": {"deploymentID": "d"}, "status": {"conditions": [claim]}});
        reaper.take(Event::Seen(serde_json::from_value(unit.clone()).unwrap()));
        tokio::time::advance(Duration::from_secs(131)).await;
        let reaping = tokio::spawn(async move { reaper.reap().await });

        const UNIT: &str = "/apis/fleet.cattle.io/v1alpha1/namespaces/c/bundledeployments/app";
        let read = server.next().await;
        assert_eq!(read.line(), format!("GET {UNIT}"));
        read.answer(200, &unit);
        let write = server.next().await;
        assert_eq!(write.line(), format!("PATCH {UNIT}/status"));
        assert_eq!(write.body["metadata"]["resourceVersion"], "7");
        let written = &write.body["status"]["conditions"][0];
        assert_eq!((&written["status"], &written["reason"]), (&json!("False"), &json!("Quarantined")));
        let words = "lost=3 by=s1,s2,s3";
        assert!(written["message"].as_str().unwrap().contains(words), "{written}");
        write.answer(200, &unit);
        reaping.await.unwrap();

        let event = server.next().await;
        assert_eq!(event.line(), "POST /api/v1/namespaces/c/events");
        let about = &event.body["involvedObject"];
        assert_eq!((&about["kind"], &about["name"]), (&json!("BundleDeployment"), &json!("app")));
        assert_eq!((&event.body["type"], &event.body["reason"]), (&json!("Warning"), &json!("Quarantined")));
        assert_eq!(event.body["reportingComponent"], "flotilla-controller");
        event.accept("1");
        stop.cancel();
        assert!(server.try_next().await.is_none(), "told again");
        assert!(metrics.encode().contains("flotilla_claims_expired_total 1"));
    }
}
