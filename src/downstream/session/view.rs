// SPDX-License-Identifier: Apache-2.0
//! Sessions for people: what a Lease tells beyond what replicas decide on, times included.
//!
//! Nothing here takes part in a decision. A person's tool has only one look, so it compares the Lease's own times with
//! its own clock, which no replica ever does.

use futures::{Stream, StreamExt, future};
use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};

use super::{CALL, REPLICAS, Session, SessionError, VERSION, call, label_value, watch::CALL_SECONDS};
use crate::{
    api::keys::{AGENT_SCOPE_LABEL, CLUSTER_NAMESPACE_LABEL},
    protocol::SessionId,
};

/// A session as a person looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// What replicas see of it.
    pub session: Session,
    /// The Lease's namespace: the agent's.
    pub namespace: String,
    /// The agent's scope, as its label says; often empty.
    pub scope: String,
    /// The replica's version.
    pub version: String,
    /// How many replicas it believed alive.
    pub replicas: Option<usize>,
    /// When it renewed last, by its own clock.
    pub renewed: Option<Timestamp>,
    /// Seconds without a renewal after which its peers take it for dead.
    pub ttl: i32,
}

impl SessionView {
    fn read(lease: &Lease) -> Option<Self> {
        let session = Session::read(lease)?;
        let written = lease.annotations();
        let spec = lease.spec.as_ref();
        Some(Self {
            session,
            namespace: lease.namespace().unwrap_or_default(),
            scope: lease.labels().get(AGENT_SCOPE_LABEL).cloned().unwrap_or_default(),
            version: written.get(VERSION).cloned().unwrap_or_default(),
            replicas: written.get(REPLICAS).and_then(|text| text.parse().ok()),
            renewed: spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0),
            ttl: spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(15),
        })
    }
}

/// A change among the sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewEvent {
    /// New, or renewed.
    Seen(Box<SessionView>),
    /// Its Lease is gone.
    Gone(SessionId),
    /// All there are.
    Listed(Vec<SessionView>),
    /// The watch broke; it is opened anew after a wait. What the server said.
    Failed(String),
}

fn selector(cluster_namespace: &str) -> String {
    format!("{CLUSTER_NAMESPACE_LABEL}={}", label_value(cluster_namespace))
}

fn leases(client: Client, namespace: Option<&str>) -> Api<Lease> {
    match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    }
}

/// The sessions of all agents that serve a cluster namespace, in one namespace or in all, whatever their scope.
pub async fn list_views(
    client: Client,
    namespace: Option<&str>,
    cluster_namespace: &str,
) -> Result<Vec<SessionView>, SessionError> {
    let params = ListParams::default().labels(&selector(cluster_namespace));
    let list = call(CALL, leases(client, namespace).list(&params)).await.map_err(|source| {
        SessionError::List { namespace: namespace.unwrap_or("all namespaces").to_owned(), source }
    })?;
    Ok(list.items.iter().filter_map(SessionView::read).collect())
}

/// The same, as they change. Never ends.
pub fn watch_views(
    client: Client,
    namespace: Option<&str>,
    cluster_namespace: &str,
) -> impl Stream<Item = ViewEvent> + Send + use<> {
    let config = watcher::Config::default().labels(&selector(cluster_namespace)).timeout(CALL_SECONDS);
    let mut listed = Vec::new();
    watcher(leases(client, namespace), config).default_backoff().filter_map(move |event| {
        future::ready(match event {
            Ok(watcher::Event::Apply(lease)) => {
                SessionView::read(&lease).map(|view| ViewEvent::Seen(Box::new(view)))
            }
            Ok(watcher::Event::Delete(lease)) => {
                Session::read(&lease).map(|session| ViewEvent::Gone(session.session))
            }
            Ok(watcher::Event::Init) => {
                listed.clear();
                None
            }
            Ok(watcher::Event::InitApply(lease)) => {
                listed.extend(SessionView::read(&lease));
                None
            }
            Ok(watcher::Event::InitDone) => Some(ViewEvent::Listed(std::mem::take(&mut listed))),
            Err(error) => Some(ViewEvent::Failed(crate::telemetry::chain(&error))),
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::telemetry::scripted;

    #[tokio::test(start_paused = true)]
    async fn a_persons_look_shows_version_and_times() {
        let (client, mut server) = scripted::client();
        let listed = tokio::spawn(async move { list_views(client, None, "cluster-a").await });
        let asked = server.next().await;
        assert_eq!(asked.line(), "GET /apis/coordination.k8s.io/v1/leases");
        assert!(asked.uri.contains("labelSelector=flotilla.fleet%2Fcluster-namespace%3Dcluster-a"));
        let lease = |name: &str| {
            json!({
                "metadata": {"name": name, "namespace": "fleet", "labels": {"flotilla.fleet/agent-scope": "x"},
                    "annotations": {"flotilla.fleet/holder": "agent-0", "flotilla.fleet/free-slots": "3",
                        "flotilla.fleet/version": "0.1.0", "flotilla.fleet/replicas": "2"}},
                "spec": {"leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000000Z"},
            })
        };
        let list = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList", "metadata": {},
            "items": [lease("flotilla-b1"), lease("fleet-agent")]});
        asked.answer(200, &list);
        let views = listed.await.unwrap().unwrap();
        assert_eq!(views.len(), 1, "another program's Lease is no session");
        let view = &views[0];
        assert_eq!((&*view.namespace, &*view.scope, &*view.version), ("fleet", "x", "0.1.0"));
        assert_eq!((view.replicas, view.ttl, view.session.free_slots), (Some(2), 15, 3));
        assert_eq!(view.renewed.unwrap().to_string(), "2026-01-02T03:04:05Z");
    }
}
