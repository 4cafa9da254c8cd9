// SPDX-License-Identifier: Apache-2.0
//! Session Leases: how replicas know of each other (design: sessions, preference, takeover).
//!
//! Each run of a replica keeps one Lease, `flotilla-<session>`, in the agent's namespace of its own cluster. Peers do
//! not read its times: they watch whether its resourceVersion moves, by their own monotonic clocks. A Lease is a
//! hint; what protects objects is the fence (S1).

mod lease;
mod pods;
mod sweep;
mod view;
mod watch;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, ResourceExt, api::ListParams};
use sha2::{Digest, Sha256};

pub use lease::{Renewal, SessionConfig, SessionHealth, SessionLease, Silence};
pub use pods::{PodEvent, watch_pods};
pub use sweep::{OWNERLESS_AFTER, Sweeper};
pub use view::{SessionView, ViewEvent, list_views, watch_views};
pub use watch::{SessionEvent, watch_sessions};

use crate::{
    api::{
        hex,
        keys::{AGENT_SCOPE_LABEL, CLUSTER_NAMESPACE_LABEL},
    },
    protocol::{Epoch, Holder, SessionId},
};

/// Start of a session Lease's name.
const PREFIX: &str = "flotilla-";
/// Annotation: the replica's name.
const HOLDER: &str = "flotilla.fleet/holder";
/// Annotation: uid of the Pod the replica runs in.
const POD_UID: &str = "flotilla.fleet/pod-uid";
/// Annotation: the replica's version.
pub const VERSION: &str = "flotilla.fleet/version";
/// Annotation: how many replicas it believed alive at the last renewal, itself included.
const REPLICAS: &str = "flotilla.fleet/replicas";
/// Annotation: free worker slots at the last renewal.
const FREE_SLOTS: &str = "flotilla.fleet/free-slots";

/// A session as its Lease tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The run of the replica.
    pub session: SessionId,
    /// The replica's name.
    pub holder: Holder,
    /// The Pod it runs in; the same uid under another session means that this one is dead.
    pub pod_uid: Option<String>,
    /// The Lease's resourceVersion: a session whose version does not move is silent.
    pub version: Epoch,
    /// Worker slots that were free at the last renewal.
    pub free_slots: usize,
    /// When the API server first stored the Lease, by the server's clock. Orders the boots of one Pod, to the second.
    pub since_boot: Option<Timestamp>,
}

impl Session {
    /// Reads a Lease; `None` when it is not a session's.
    fn read(lease: &Lease) -> Option<Self> {
        let name = lease.metadata.name.as_deref()?;
        let session = name.strip_prefix(PREFIX).filter(|session| !session.is_empty())?;
        let written = lease.annotations();
        let holder = written
            .get(HOLDER)
            .map(String::as_str)
            .or_else(|| lease.spec.as_ref()?.holder_identity.as_deref())
            .unwrap_or(session);
        Some(Self {
            session: session.into(),
            holder: holder.into(),
            pod_uid: written.get(POD_UID).filter(|uid| !uid.is_empty()).cloned(),
            version: Epoch(lease.metadata.resource_version.clone().unwrap_or_default()),
            free_slots: written.get(FREE_SLOTS).and_then(|text| text.parse().ok()).unwrap_or(0),
            since_boot: lease.metadata.creation_timestamp.as_ref().map(|time| time.0),
        })
    }
}

/// What was attempted with a session Lease, and on which.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A new session could not announce itself: the replica must not claim.
    #[error("cannot create session Lease {name}")]
    Create {
        /// Of the Lease.
        name: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// Somebody else's Lease has our name.
    #[error("session Lease {name} belongs to {holder}")]
    Taken {
        /// Of the Lease.
        name: String,
        /// Who holds it.
        holder: Holder,
    },
    /// A renewal failed; peers will soon believe us dead.
    #[error("cannot renew session Lease {name}")]
    Renew {
        /// Of the Lease.
        name: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// A live read failed.
    #[error("cannot read session Lease {name}")]
    Read {
        /// Of the Lease.
        name: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// The sessions could not be listed.
    #[error("cannot list session Leases in {namespace}")]
    List {
        /// Where.
        namespace: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// A Lease could not be removed.
    #[error("cannot delete session Lease {name}")]
    Delete {
        /// Of the Lease.
        name: String,
        /// Why.
        #[source]
        source: CallError,
    },
}

impl SessionError {
    /// No answer, an overloaded server or a broken one: it may pass by itself. A refusal does not.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Create { source, .. }
            | Self::Renew { source, .. }
            | Self::Read { source, .. }
            | Self::List { source, .. }
            | Self::Delete { source, .. } => {
                source.status().is_none_or(|status| status.code == 429 || status.code >= 500)
            }
            Self::Taken { .. } => false,
        }
    }
}

/// How one call to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No answer in time. Whether it was carried out is unknown.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The call was refused, or broke.
    #[error("the call to the API server failed")]
    Api(#[source] Box<kube::Error>),
}

impl CallError {
    fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Api(error) => match &**error {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Timeout(_) => None,
        }
    }

    fn is_not_found(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    /// Any 409, "already exists" included.
    fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.is_conflict() || status.code == 409)
    }
}

/// One call with its own time limit.
async fn call<T>(limit: Duration, request: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(limit, request).await {
        Err(_) => Err(CallError::Timeout(limit)),
        Ok(result) => result.map_err(|error| CallError::Api(Box::new(error))),
    }
}

/// Of a read or a delete outside the renewal loop.
const CALL: Duration = Duration::from_secs(5);

/// A live read of one session, past every cache; `None` when it has no Lease (any more).
pub async fn read_session(
    client: kube::Client,
    namespace: &str,
    session: &SessionId,
) -> Result<Option<Session>, SessionError> {
    let name = lease_name(session);
    let api = Api::<Lease>::namespaced(client, namespace);
    match call(CALL, api.get_opt(&name)).await {
        Ok(lease) => Ok(lease.as_ref().and_then(Session::read)),
        Err(source) => Err(SessionError::Read { name, source }),
    }
}

fn lease_name(session: &SessionId) -> String {
    format!("{PREFIX}{session}")
}

/// Labels of a session: replicas of one agent find each other by both, two agents on one cluster never mix.
fn labels(cluster_namespace: &str, scope: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (CLUSTER_NAMESPACE_LABEL.to_owned(), label_value(cluster_namespace)),
        (AGENT_SCOPE_LABEL.to_owned(), label_value(scope)),
    ])
}

/// Selects the sessions of one agent.
fn selector(cluster_namespace: &str, scope: &str) -> String {
    let pairs: Vec<_> =
        labels(cluster_namespace, scope).iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

fn listing(cluster_namespace: &str, scope: &str) -> ListParams {
    ListParams::default().labels(&selector(cluster_namespace, scope))
}

/// The text itself where Kubernetes takes it as a label's value (63 characters of a small alphabet), else a digest.
fn label_value(text: &str) -> String {
    let edge = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if bytes.len() <= 63 && bytes.iter().all(inner) && edge(bytes.first()) && edge(bytes.last()) {
        return text.to_owned();
    }
    format!("sha256-{}", hex(&Sha256::digest(bytes)[..20]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::telemetry::scripted;

    #[test]
    fn a_label_keeps_what_it_can_and_digests_the_rest() {
        assert_eq!(label_value("cluster-fleet-default-a-1"), "cluster-fleet-default-a-1");
        assert_eq!(label_value(""), "");
        let long = label_value(&"n".repeat(64));
        assert_eq!(long.len(), 47);
        assert_ne!(long, label_value(&"n".repeat(65)));
        assert!(label_value("team a").starts_with("sha256-"));
        assert!(label_value("-a").starts_with("sha256-"));
    }

    #[test]
    fn a_lease_of_another_program_is_no_session() {
        let mut lease = Lease::default();
        lease.metadata.name = Some("fleet-agent".into());
        assert_eq!(Session::read(&lease), None);
        lease.metadata.name = Some("flotilla-".into());
        assert_eq!(Session::read(&lease), None);
        lease.metadata.name = Some("flotilla-b1".into());
        let session = Session::read(&lease).unwrap();
        assert_eq!((session.holder.0.as_str(), session.free_slots), ("b1", 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_read_tells_absence_from_failure() {
        let (client, mut server) = scripted::client();
        let read = tokio::spawn(async move { read_session(client, "fleet", &"b1".into()).await });
        let call = server.next().await;
        assert_eq!(call.line(), "GET /apis/coordination.k8s.io/v1/namespaces/fleet/leases/flotilla-b1");
        call.refuse(404, "NotFound");
        assert_eq!(read.await.unwrap().unwrap(), None);

        let (client, mut server) = scripted::client();
        let read = tokio::spawn(async move { read_session(client, "fleet", &"b1".into()).await });
        server.next().await.refuse(500, "InternalError");
        assert!(matches!(read.await.unwrap(), Err(SessionError::Read { .. })));

        let (client, mut server) = scripted::client();
        let read = tokio::spawn(async move { read_session(client, "fleet", &"b1".into()).await });
        server.next().await.answer(
            200,
            &json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {
                    "name": "flotilla-b1", "resourceVersion": "12", "creationTimestamp": "2026-01-02T03:04:05Z",
                    "annotations": {
                        "flotilla.fleet/holder": "agent-0", "flotilla.fleet/pod-uid": "p-1",
                        "flotilla.fleet/free-slots": "3",
                    },
                },
            }),
        );
        let session = read.await.unwrap().unwrap().unwrap();
        assert_eq!(session.version, "12".into());
        assert_eq!((session.holder, session.pod_uid.as_deref()), ("agent-0".into(), Some("p-1")));
        assert_eq!(session.free_slots, 3);
        assert_eq!(session.since_boot.unwrap().to_string(), "2026-01-02T03:04:05Z");
    }
}
