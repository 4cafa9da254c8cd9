// SPDX-License-Identifier: Apache-2.0
//! This replica's own Lease: created before the first claim, renewed by a task, deleted last of all.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    CALL, CallError, FREE_SLOTS, HOLDER, POD_UID, REPLICAS, Session, SessionError, VERSION, call, labels,
    lease_name,
};
use crate::protocol::{Holder, SessionId};

/// Who this replica is, and how it keeps its session.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The agent's namespace, downstream.
    pub namespace: String,
    /// This run. Lower-case letters, digits and `-`: it becomes part of the Lease's name.
    pub session: SessionId,
    /// The replica's name: its Pod's, where it runs in one. With `pod_uid` it makes the Pod the Lease's owner.
    pub holder: Holder,
    /// The Pod's uid, if known.
    pub pod_uid: Option<String>,
    /// The cluster namespace upstream that this agent serves.
    pub cluster_namespace: String,
    /// The agent's scope; often empty.
    pub scope: String,
    /// How long peers wait before they call a session silent: 15 s.
    pub ttl: Duration,
    /// Time between renewals: 5 s, so that two may be lost before the TTL is over.
    pub renew: Duration,
    /// This program's version, for people.
    pub version: String,
    /// How many replicas this one believes alive, for people.
    pub replicas: Arc<AtomicUsize>,
}

impl SessionConfig {
    /// Of one call: shorter than `renew`, so that renewals never queue up behind one that hangs.
    fn limit(&self) -> Duration {
        self.renew * 4 / 5
    }

    fn lease(&self, free: usize) -> Lease {
        let now = now();
        let mut notes = self.notes(free);
        notes.insert(HOLDER.to_owned(), self.holder.0.clone());
        notes.insert(VERSION.to_owned(), self.version.clone());
        notes.extend(self.pod_uid.clone().map(|uid| (POD_UID.to_owned(), uid)));
        let owner = self.pod_uid.clone().map(|uid| OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: self.holder.0.clone(),
            uid,
            ..OwnerReference::default()
        });
        Lease {
            metadata: ObjectMeta {
                name: Some(lease_name(&self.session)),
                namespace: Some(self.namespace.clone()),
                labels: Some(labels(&self.cluster_namespace, &self.scope)),
                annotations: Some(notes),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.0.clone()),
                lease_duration_seconds: Some(i32::try_from(self.ttl.as_secs().max(1)).unwrap_or(i32::MAX)),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                ..LeaseSpec::default()
            }),
        }
    }

    fn notes(&self, free: usize) -> BTreeMap<String, String> {
        let replicas = self.replicas.load(Ordering::Relaxed);
        BTreeMap::from([
            (FREE_SLOTS.to_owned(), free.to_string()),
            (REPLICAS.to_owned(), replicas.to_string()),
        ])
    }
}

/// A renewal that the API server confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// When the request was *sent*, by the monotonic clock: peers cannot have seen it earlier than that.
    pub sent: Instant,
    /// How many there were; the creation is the first.
    pub count: u64,
}

/// What a fence asks: is this session alive in the eyes of its peers? Cloning shares it.
#[derive(Clone, Debug)]
pub struct SessionHealth(watch::Receiver<Renewal>);

impl SessionHealth {
    /// Whether a renewal was sent within `span` and confirmed. Time in which the process was frozen counts.
    pub fn renewed_within(&self, span: Duration) -> bool {
        self.last_renewed().elapsed() <= span
    }

    /// When the last confirmed renewal was sent.
    pub fn last_renewed(&self) -> Instant {
        self.0.borrow().sent
    }

    /// Every confirmed renewal, as it comes; ends with the session.
    pub fn renewals(&self) -> watch::Receiver<Renewal> {
        self.0.clone()
    }
}

/// This replica's session. Dropping it stops the renewals and leaves the Lease, as a crash would.
#[derive(Debug)]
pub struct SessionLease {
    keeper: JoinHandle<Keeper>,
    stop: CancellationToken,
    renewals: watch::Receiver<Renewal>,
    news: Arc<Notify>,
}

impl SessionLease {
    /// Creates the Lease and begins to renew it. An error means: announce nothing, claim nothing.
    pub async fn start(
        client: Client,
        config: SessionConfig,
        free: Arc<AtomicUsize>,
    ) -> Result<Self, SessionError> {
        let api = Api::namespaced(client, &config.namespace);
        let news = Arc::new(Notify::new());
        let mut keeper = Keeper { api, config, free, known: Known::default(), news: news.clone() };
        let sent = Instant::now();
        keeper.create().await?;
        info!(session = %keeper.config.session, holder = %keeper.config.holder, "session started");
        let (renewed, renewals) = watch::channel(Renewal { sent, count: 1 });
        let stop = CancellationToken::new();
        Ok(Self { keeper: tokio::spawn(keeper.run(renewed, stop.clone())), stop, renewals, news })
    }

    /// What makes the next renewal come at once: peers shall learn how many slots are free now.
    pub fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    /// A view for fences and probes; outlives the session, which then simply grows old.
    pub fn health(&self) -> SessionHealth {
        SessionHealth(self.renewals.clone())
    }

    /// Stops renewing and deletes the Lease: the last step of a shutdown, when no write can follow.
    pub async fn end(mut self) -> Result<(), SessionError> {
        self.stop.cancel();
        // The task ends only by `stop`; if it panicked there is nothing more to say on its behalf.
        match (&mut self.keeper).await {
            Ok(keeper) => keeper.delete().await,
            Err(cause) => {
                warn!(%cause, "session task died; its Lease is left to expire");
                Ok(())
            }
        }
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What the API server last said of our Lease.
#[derive(Debug, Default)]
struct Known {
    uid: Option<String>,
    version: Option<String>,
    /// When it was last renewed, as the Lease says.
    renewed: Option<MicroTime>,
}

/// Now, no finer than a Lease keeps it: what was sent can be told from what stands.
fn now() -> MicroTime {
    let now = Timestamp::now();
    MicroTime(Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now))
}

#[derive(Debug)]
struct Keeper {
    api: Api<Lease>,
    config: SessionConfig,
    free: Arc<AtomicUsize>,
    known: Known,
    news: Arc<Notify>,
}

impl Keeper {
    async fn run(mut self, renewed: watch::Sender<Renewal>, stop: CancellationToken) -> Self {
        let mut wait = self.config.renew;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return self,
                () = tokio::time::sleep(wait) => {}
                () = self.news.notified() => {}
            }
            let begun = Instant::now();
            // Never dropped half-way by `stop`: an unknown outcome would make the last delete conflict.
            wait = match self.renew().await {
                Ok(sent) => {
                    renewed.send_modify(|last| *last = Renewal { sent, count: last.count + 1 });
                    self.config.renew.saturating_sub(begun.elapsed())
                }
                Err(error) => {
                    let cause = source_of(&error);
                    warn!(session = %self.config.session, %cause, "{error}");
                    // Sooner than usual: a lost request must not cost a third of the TTL.
                    self.config.renew / 5
                }
            };
        }
    }

    /// One renewal; returns when the request that succeeded was sent.
    async fn renew(&mut self) -> Result<Instant, SessionError> {
        let failed = |config: &SessionConfig, source| SessionError::Renew {
            name: lease_name(&config.session),
            source,
        };
        let sent = Instant::now();
        let time = now();
        match self.patch(&time).await {
            Ok(()) => Ok(sent),
            Err(error) if error.is_not_found() => self.recreate().await,
            Err(error) if error.is_conflict() => {
                // Somebody else wrote, or an earlier renewal of ours was carried out without our knowing.
                if !self.reread().await? {
                    return self.recreate().await;
                }
                // Or this very one was, and was sent again on its way.
                if self.known.renewed.as_ref() == Some(&time) {
                    return Ok(sent);
                }
                let sent = Instant::now();
                self.patch(&now()).await.map(|()| sent).map_err(|source| failed(&self.config, source))
            }
            Err(source) => Err(failed(&self.config, source)),
        }
    }

    async fn recreate(&mut self) -> Result<Instant, SessionError> {
        warn!(session = %self.config.session, "session Lease was removed by somebody; creating it again");
        let sent = Instant::now();
        self.create().await.map(|()| sent)
    }

    async fn create(&mut self) -> Result<(), SessionError> {
        let lease = self.config.lease(self.free.load(Ordering::Relaxed));
        let created = call(self.config.limit(), self.api.create(&PostParams::default(), &lease)).await;
        match created {
            Ok(lease) => {
                self.note(&lease);
                Ok(())
            }
            // An earlier create of ours, whose answer was lost, also ends here.
            Err(error) if error.is_conflict() && self.reread().await? => {
                let written = lease.spec.and_then(|spec| spec.renew_time);
                if self.known.renewed == written {
                    return Ok(()); // this one, sent again on its way
                }
                self.patch(&now()).await.map_err(|source| self.not_created(source))
            }
            Err(source) => Err(self.not_created(source)),
        }
    }

    fn not_created(&self, source: CallError) -> SessionError {
        SessionError::Create { name: lease_name(&self.config.session), source }
    }

    async fn patch(&mut self, time: &MicroTime) -> Result<(), CallError> {
        let free = self.free.load(Ordering::Relaxed);
        let patch = Patch::Merge(json!({
            "metadata": {
                "resourceVersion": self.known.version,
                "annotations": self.config.notes(free),
            },
            "spec": { "renewTime": time },
        }));
        let name = lease_name(&self.config.session);
        let lease = call(self.config.limit(), self.api.patch(&name, &PatchParams::default(), &patch)).await?;
        self.note(&lease);
        Ok(())
    }

    /// Looks at the Lease as it is now; `false` when there is none.
    async fn reread(&mut self) -> Result<bool, SessionError> {
        let name = lease_name(&self.config.session);
        let found = call(self.config.limit(), self.api.get_opt(&name)).await;
        let Some(lease) = found.map_err(|source| SessionError::Read { name: name.clone(), source })? else {
            return Ok(false);
        };
        match Session::read(&lease) {
            Some(found) if found.holder == self.config.holder && found.pod_uid == self.config.pod_uid => {
                self.note(&lease);
                Ok(true)
            }
            Some(Session { holder, .. }) => Err(SessionError::Taken { name, holder }),
            None => Ok(false),
        }
    }

    fn note(&mut self, lease: &Lease) {
        self.known = Known {
            uid: lease.metadata.uid.clone(),
            version: lease.metadata.resource_version.clone(),
            renewed: lease.spec.as_ref().and_then(|spec| spec.renew_time.clone()),
        };
    }

    async fn delete(mut self) -> Result<(), SessionError> {
        match self.try_delete().await {
            Err(error) if error.is_conflict() && self.reread().await? => self.try_delete().await,
            other => other,
        }
        .or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
        .map_err(|source| SessionError::Delete { name: lease_name(&self.config.session), source })?;
        info!(session = %self.config.session, "session ended");
        Ok(())
    }

    async fn try_delete(&self) -> Result<(), CallError> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: self.known.uid.clone(),
            resource_version: self.known.version.clone(),
        });
        call(CALL, self.api.delete(&lease_name(&self.config.session), &params)).await.map(drop)
    }
}

/// The innermost cause, for one log field.
fn source_of(error: &SessionError) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests;
