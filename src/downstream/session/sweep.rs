// SPDX-License-Identifier: Apache-2.0
//! Removes Leases that nobody will: of earlier boots of this Pod, and ownerless ones that stand still.
//!
//! Leases with an owner are left to the cluster's garbage collector. Every delete names the uid and the version that
//! was judged, so that a session that renews at the same moment keeps its Lease (S8).

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
};
use tokio::time::Instant;
use tracing::info;

use super::{CALL, Session, SessionError, call, listing};
use crate::protocol::SessionId;

/// How long an ownerless Lease must stand still before it is removed; forty times the TTL.
pub const OWNERLESS_AFTER: Duration = Duration::from_secs(600);

/// One version of one Lease, and when this replica first saw it.
#[derive(Debug)]
struct Sighting {
    uid: Option<String>,
    version: Option<String>,
    first: Instant,
}

/// Remembers what it saw, so that age is counted by this replica's own monotonic clock.
#[derive(Debug)]
pub struct Sweeper {
    api: Api<Lease>,
    namespace: String,
    cluster_namespace: String,
    scope: String,
    own: SessionId,
    pod_uid: Option<String>,
    seen: HashMap<String, Sighting>,
}

impl Sweeper {
    /// A sweeper for the sessions beside `own`, which runs in the Pod `pod_uid`.
    pub fn new(
        client: Client,
        namespace: &str,
        cluster_namespace: &str,
        scope: &str,
        own: SessionId,
        pod_uid: Option<String>,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            cluster_namespace: cluster_namespace.to_owned(),
            scope: scope.to_owned(),
            own,
            pod_uid,
            seen: HashMap::new(),
        }
    }

    /// Looks once, removes what is due, and returns the sessions that were removed. A Lease that changed or vanished
    /// meanwhile is left; another failure ends the sweep, and the next one goes on.
    ///
    /// Own earlier boots go in the first sweep: take their claims over *before* calling this, while peers can still
    /// see whose they were.
    pub async fn sweep(&mut self) -> Result<Vec<SessionId>, SessionError> {
        let listed = call(CALL, self.api.list(&listing(&self.cluster_namespace, &self.scope))).await;
        let leases =
            listed.map_err(|source| SessionError::List { namespace: self.namespace.clone(), source })?.items;
        let now = Instant::now();
        let mut sightings = HashMap::with_capacity(leases.len());
        let mut due = Vec::new();
        for lease in &leases {
            let Some(session) = Session::read(lease) else { continue };
            if session.session == self.own {
                continue;
            }
            let name = lease.metadata.name.clone().unwrap_or_default();
            let sighting = self.sighting(&name, lease, now);
            let earlier_boot = self.pod_uid.is_some() && session.pod_uid == self.pod_uid;
            let ownerless = lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
            if earlier_boot || (ownerless && now.duration_since(sighting.first) >= OWNERLESS_AFTER) {
                due.push((name.clone(), session.session));
            }
            sightings.insert(name, sighting);
        }
        self.seen = sightings;
        let mut removed = Vec::new();
        for (name, session) in due {
            if self.remove(&name).await? {
                info!(%session, "removed the Lease of a session that is over");
                removed.push(session);
            }
        }
        Ok(removed)
    }

    fn sighting(&mut self, name: &str, lease: &Lease, now: Instant) -> Sighting {
        let (uid, version) = (lease.metadata.uid.clone(), lease.metadata.resource_version.clone());
        match self.seen.remove(name) {
            Some(known) if known.uid == uid && known.version == version => known,
            _ => Sighting { uid, version, first: now },
        }
    }

    async fn remove(&mut self, name: &str) -> Result<bool, SessionError> {
        let Some(judged) = self.seen.get(name) else { return Ok(false) };
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: judged.uid.clone(),
            resource_version: judged.version.clone(),
        });
        match call(CALL, self.api.delete(name, &params)).await {
            Ok(_) => {
                self.seen.remove(name);
                Ok(true)
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
            Err(source) => Err(SessionError::Delete { name: name.to_owned(), source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::telemetry::scripted::{self, Server};

    fn lease(session: &str, version: &str, pod: &str, owned: bool) -> Value {
        let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod }]);
        json!({
            "metadata": {
                "name": format!("flotilla-{session}"), "uid": format!("uid-{session}"), "resourceVersion": version,
                "annotations": { "flotilla.fleet/pod-uid": pod },
                "ownerReferences": if owned { owner } else { json!([]) },
            },
        })
    }

    async fn list(server: &mut Server, leases: &[Value]) {
        let call = server.next().await;
        assert_eq!(call.method, "GET");
        call.answer(200, &json!({ "metadata": {}, "items": leases }));
    }

    fn sweeper() -> (Sweeper, Server) {
        let (client, server) = scripted::client();
        (Sweeper::new(client, "fleet", "cluster-a", "", "own".into(), Some("pod-own".into())), server)
    }

    #[tokio::test(start_paused = true)]
    async fn an_ownerless_lease_goes_after_ten_minutes_without_change_by_our_own_clock() {
        let (mut sweeper, mut server) = sweeper();
        let moving = |version| lease("moving", version, "", false);
        let (still, owned) = (lease("still", "1", "", false), lease("owned", "1", "pod-b", true));
        for version in ["1", "2"] {
            let (removed, ()) = tokio::join!(sweeper.sweep(), async {
                list(&mut server, &[still.clone(), owned.clone(), moving(version)]).await;
            });
            assert_eq!(removed.unwrap(), []);
            tokio::time::advance(OWNERLESS_AFTER / 2).await;
        }
        let (removed, ()) = tokio::join!(sweeper.sweep(), async {
            list(&mut server, &[still.clone(), owned.clone(), moving("3")]).await;
            let call = server.next().await;
            assert_eq!(
                call.line(),
                "DELETE /apis/coordination.k8s.io/v1/namespaces/fleet/leases/flotilla-still"
            );
            assert_eq!(call.body["preconditions"], json!({ "uid": "uid-still", "resourceVersion": "1" }));
            call.answer(200, &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }));
        });
        assert_eq!(removed.unwrap(), ["still".into()]);
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_boots_of_this_pod_go_at_once_and_the_own_lease_never() {
        let (mut sweeper, mut server) = sweeper();
        let (removed, ()) = tokio::join!(sweeper.sweep(), async {
            list(&mut server, &[lease("own", "9", "pod-own", true), lease("old", "1", "pod-own", true)])
                .await;
            let call = server.next().await;
            assert!(call.path.ends_with("/flotilla-old"), "{}", call.path);
            call.answer(200, &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }));
        });
        assert_eq!(removed.unwrap(), ["old".into()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_renewed_at_the_last_moment_stays() {
        let (mut sweeper, mut server) = sweeper();
        let (removed, ()) = tokio::join!(sweeper.sweep(), async {
            list(&mut server, &[lease("old", "1", "pod-own", true)]).await;
            server.next().await.refuse(409, "Conflict");
        });
        assert_eq!(removed.unwrap(), []);
    }
}
