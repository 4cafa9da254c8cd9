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
        reaper::{self, Limits, Sight, Verdict},
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
    /// Not needed, or not yet: what the live look showed is what is watched now.
    Moot,
    /// Somebody wrote meanwhile: look again, for after a restore no event may be news.
    Overtaken,
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
                self.see(&object, Sight::Event);
            }
            Event::ListItem(object) => {
                self.progress.works(self.now());
                self.see(&object, Sight::Read);
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
        self.count();
    }

    fn see(&mut self, object: &BundleDeployment, sight: Sight) {
        let (state, healthy) = (snapshot(object, false), self.healthy());
        self.claims.see(key(object), sight, state.version, state.slot, &self.limits, healthy);
    }

    fn count(&self) {
        for sort in FleetClaim::ALL {
            self.metrics.set_fleet_claims(*sort, self.claims.count(*sort));
        }
    }

    async fn reap(&mut self) {
        let healthy = self.healthy();
        for key in self.claims.take_due(&self.limits, healthy) {
            let unit = format!("{}/{}", key.0, key.1);
            match self.expire(&key).await {
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
                Reaped::Overtaken => self.claims.retry(key, self.healthy() + RETRY),
                Reaped::Again(cause) => {
                    warn!(unit, cause, "cannot expire a claim now; it is looked at again");
                    self.claims.retry(key, self.healthy() + RETRY);
                }
            }
        }
        self.count();
    }

    /// One live look, one write under the version read.
    async fn expire(&mut self, key: &Key) -> Reaped {
        let api: Api<BundleDeployment> = Api::namespaced(self.client.clone(), &key.0);
        let object = match tokio::time::timeout(REQUEST_TIMEOUT, api.get_opt(&key.1)).await {
            Err(_) => return Reaped::Again("no answer in time".into()),
            Ok(Err(error)) => return Reaped::Again(upstream::chain(&error)),
            Ok(Ok(None)) => {
                self.claims.forget(key);
                return Reaped::Moot;
            }
            Ok(Ok(Some(object))) => object,
        };
        // Seen anew with the time counted so far: another nonce or state starts its own count, and is due in its turn.
        self.see(&object, Sight::Read);
        let Some(seen) = self.claims.known(key).cloned() else { return Reaped::Moot };
        let claim = match reaper::judge(&seen, &self.limits, self.healthy()) {
            Verdict::Leave(_) => return Reaped::Moot,
            Verdict::Replace(claim) => claim,
        };
        let before = object.status.clone().unwrap_or_default();
        let mut after: BundleDeploymentStatus = before.clone();
        fields::set_claim(&mut after.conditions, Some(&claim), &stamp());
        let Some(patch) = fields::patch(&object, &seen.version.0, &before, &after) else {
            return Reaped::Again("its expiry would change nothing".into());
        };
        self.metrics.upstream_write(UpstreamWrite::Expire);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        match tokio::time::timeout(REQUEST_TIMEOUT, api.patch_status(&key.1, &params, &patch)).await {
            Ok(Ok(written)) => {
                self.see(&written, Sight::Read);
                let known = seen.slot.claim().map(|claim| claim.holder.0.as_str());
                self.publish(&object, known, claim.state);
                Reaped::Expired(claim.state)
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Reaped::Overtaken,
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
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::telemetry::{
        events::EventsConfig,
        scripted::{self, Server},
    };

    const UNIT: &str = "/apis/fleet.cattle.io/v1alpha1/namespaces/ns/bundledeployments/app";

    fn reaper() -> (Reaper, Server) {
        let (client, server) = scripted::client();
        let limits = Limits { claim_timeout: Duration::from_secs(600), margin: Duration::from_secs(30) };
        let metrics = Metrics::new();
        let events = Events::disabled(metrics.clone());
        (Reaper::new(client, limits, metrics, events, Health::new(&["watch"])), server)
    }

    fn unit(version: &str, nonce: &str, reason: &str) -> Value {
        let status = if reason == "Claimed" { "True" } else { "False" };
        let message =
            format!("v1 holder=a session=s nonce={nonce} attempt=1 lost=0 by= budget=100 deployment=d");
        json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment", "spec": {},
            "metadata": {"namespace": "ns", "name": "app", "uid": "u", "resourceVersion": version},
            "status": {"conditions": [
                {"type": "InProgress", "status": status, "reason": reason, "message": message}
            ]},
        })
    }

    fn object(value: Value) -> Box<BundleDeployment> {
        Box::new(serde_json::from_value(value).unwrap())
    }

    /// Open, expired and quarantined claims, as the metrics tell.
    fn told(reaper: &Reaper) -> [u32; 3] {
        let text = reaper.metrics.encode();
        ["open", "expired", "quarantined"].map(|state| {
            let start = format!("flotilla_fleet_claims{{state=\"{state}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
        })
    }

    async fn expires(reaper: &mut Reaper, server: &mut Server, version: &str) {
        let script = async {
            server.next().await.answer(200, &unit(version, "past", "Claimed"));
            let call = server.next().await;
            assert_eq!(call.line(), format!("PATCH {UNIT}/status"));
            assert_eq!(call.body["metadata"]["resourceVersion"], version, "the one that was judged");
            call.answer(200, &unit("95", "past", "Expired"));
        };
        tokio::join!(reaper.reap(), script);
        assert_eq!((reaper.claims.next_due(), told(reaper)), (None, [0, 1, 0]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_a_restore_brought_back_is_expired_by_the_version_it_has_now() {
        let (mut reaper, mut server) = reaper();
        reaper.take(Event::Seen(object(unit("120", "lost", "Quarantined"))));
        reaper.take(Event::Seen(object(unit("90", "past", "Claimed"))));
        assert_eq!(told(&reaper), [0, 0, 1], "a late event");
        reaper.take(Event::ListItem(object(unit("90", "past", "Claimed"))));
        assert_eq!(told(&reaper), [1, 0, 0], "a list");
        tokio::time::advance(Duration::from_secs(131)).await;
        expires(&mut reaper, &mut server, "90").await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_live_look_shows_is_watched_at_whatever_version_and_due_in_its_turn() {
        let (mut reaper, mut server) = reaper();
        reaper.take(Event::Seen(object(unit("120", "lost", "Claimed"))));
        tokio::time::advance(Duration::from_secs(131)).await;
        let script = async { server.next().await.answer(200, &unit("90", "past", "Claimed")) };
        tokio::join!(reaper.reap(), script);
        assert_eq!(told(&reaper), [1, 0, 0]);
        assert_eq!(reaper.claims.next_due(), Some(Duration::from_secs(131 + 130)), "armed anew");
        tokio::time::advance(Duration::from_secs(131)).await;
        expires(&mut reaper, &mut server, "90").await;
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_was_overtaken_looks_again_and_what_is_gone_is_counted_no_more() {
        let (mut reaper, mut server) = reaper();
        reaper.take(Event::Seen(object(unit("120", "lost", "Claimed"))));
        tokio::time::advance(Duration::from_secs(131)).await;
        let script = async {
            server.next().await.answer(200, &unit("120", "lost", "Claimed"));
            server.next().await.refuse(409, "Conflict");
        };
        tokio::join!(reaper.reap(), script);
        assert_eq!(reaper.claims.next_due(), Some(Duration::from_secs(131) + RETRY));
        tokio::time::advance(RETRY).await;
        let script = async { server.next().await.refuse(404, "NotFound") };
        tokio::join!(reaper.reap(), script);
        assert_eq!((reaper.claims.next_due(), told(&reaper)), (None, [0, 0, 0]), "no ghost");
    }

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
            "metadata": {"name": "app", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
            "spec": {"deploymentID": "d"}, "status": {"conditions": [claim]}});
        reaper.take(Event::Seen(serde_json::from_value(unit.clone()).unwrap()));
        tokio::time::advance(Duration::from_secs(131)).await;
        let reaping = tokio::spawn(async move { reaper.reap().await });

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
        assert_eq!(event.line(), "POST /api/v1/namespaces/ns/events");
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
