// SPDX-License-Identifier: Apache-2.0
//! What the peers do: their Leases, watched.

use futures::{Stream, StreamExt, future};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use tracing::warn;

use super::{Session, selector};
use crate::protocol::SessionId;

/// A change among the sessions of one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session is new, or was renewed.
    Seen(Session),
    /// A session's Lease was deleted: it ended, or somebody removed it.
    Gone {
        /// Which.
        session: SessionId,
    },
    /// The whole list, at the start and whenever the watch was lost: sessions that are not in it are gone.
    Relisted(Vec<Session>),
}

/// Seconds one watch call may last. kube notices a connection that died silently five seconds after that; sessions
/// matter within their TTL of 15 s, so not its default of almost five minutes.
pub(super) const CALL_SECONDS: u32 = 20;

/// The sessions of one agent, as they change, this replica's own included. Never ends; retries with back-off.
pub fn watch_sessions(
    client: Client,
    namespace: &str,
    cluster_namespace: &str,
    scope: &str,
) -> impl Stream<Item = SessionEvent> + Send + 'static {
    let config = watcher::Config::default().labels(&selector(cluster_namespace, scope)).timeout(CALL_SECONDS);
    let mut listed = Vec::new();
    watcher(Api::<Lease>::namespaced(client, namespace), config).default_backoff().filter_map(move |event| {
        future::ready(match event {
            Ok(event) => translate(event, &mut listed),
            Err(cause) => {
                warn!(%cause, "watch of session Leases broke; trying again");
                None
            }
        })
    })
}

fn translate(event: watcher::Event<Lease>, listed: &mut Vec<Session>) -> Option<SessionEvent> {
    match event {
        watcher::Event::Apply(lease) => Session::read(&lease).map(SessionEvent::Seen),
        watcher::Event::Delete(lease) => {
            Session::read(&lease).map(|gone| SessionEvent::Gone { session: gone.session })
        }
        watcher::Event::Init => {
            listed.clear();
            None
        }
        watcher::Event::InitApply(lease) => {
            listed.extend(Session::read(&lease));
            None
        }
        watcher::Event::InitDone => Some(SessionEvent::Relisted(std::mem::take(listed))),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use serde_json::{Value, json};

    use super::*;
    use crate::telemetry::scripted;

    fn lease(session: &str, version: &str) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": format!("flotilla-{session}"), "namespace": "fleet", "resourceVersion": version },
        })
    }

    fn list(leases: &[Value], version: &str) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList",
            "metadata": { "resourceVersion": version }, "items": leases,
        })
    }

    fn names(event: &SessionEvent) -> Vec<String> {
        match event {
            SessionEvent::Seen(session) => vec![session.session.0.clone()],
            SessionEvent::Gone { session } => vec![session.0.clone()],
            SessionEvent::Relisted(all) => all.iter().map(|session| session.session.0.clone()).collect(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_comes_first_then_changes_and_again_the_list_after_a_break() {
        let (client, mut server) = scripted::client();
        let script = tokio::spawn(async move {
            let call = server.next().await;
            assert_eq!(call.line(), "GET /apis/coordination.k8s.io/v1/namespaces/fleet/leases");
            assert!(call.query.contains("cluster-namespace%3Dcluster-a"), "{}", call.query);
            assert!(call.query.contains("agent-scope%3D"), "{}", call.query);
            call.answer(200, &list(&[lease("a", "1"), lease("b", "2")], "5"));

            let call = server.next().await;
            assert!(call.query.contains("watch=true"), "{}", call.query);
            call.lines(&[
                json!({ "type": "MODIFIED", "object": lease("a", "6") }),
                json!({ "type": "DELETED", "object": lease("b", "7") }),
                json!({ "type": "ERROR", "object": {
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "too old", "reason": "Expired", "code": 410,
                } }),
            ]);
            loop {
                let call = server.next().await;
                if !call.query.contains("watch=true") {
                    call.answer(200, &list(&[lease("a", "8")], "9"));
                    return server;
                }
                call.lines(&[]);
            }
        });
        let mut events = pin!(watch_sessions(client, "fleet", "cluster-a", ""));
        let mut next = async || tokio::time::timeout(std::time::Duration::from_secs(60), events.next()).await;
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(next().await.expect("an event was expected").expect("the stream never ends"));
        }
        assert!(matches!(&seen[0], SessionEvent::Relisted(_)) && names(&seen[0]) == ["a", "b"], "{seen:?}");
        assert!(matches!(&seen[1], SessionEvent::Seen(a) if a.version == "6".into()), "{seen:?}");
        assert!(matches!(&seen[2], SessionEvent::Gone { .. }) && names(&seen[2]) == ["b"], "{seen:?}");
        assert!(matches!(&seen[3], SessionEvent::Relisted(_)) && names(&seen[3]) == ["a"], "{seen:?}");
        drop(script.await.unwrap());
    }
}
