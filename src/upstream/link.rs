// SPDX-License-Identifier: Apache-2.0
//! The connection behind [`Upstream`]: exchanged as a whole when the credentials are, and the place where a refusal of
//! them is noticed.

use std::sync::{Arc, PoisonError, RwLock};

use kube::{Client, api::ListParams, runtime::watcher};
use tokio::sync::watch;

use super::{Upstream, UpstreamError};

/// Shared by all clones of one [`Upstream`].
#[derive(Clone)]
pub(super) struct Link(Arc<Shared>);

struct Shared {
    client: RwLock<Client>,
    exchanges: watch::Sender<u64>,
    refusals: watch::Sender<u64>,
}

impl Link {
    pub(super) fn new(client: Client) -> Self {
        Self(Arc::new(Shared {
            client: RwLock::new(client),
            exchanges: watch::Sender::new(0),
            refusals: watch::Sender::new(0),
        }))
    }

    pub(super) fn client(&self) -> Client {
        self.0.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, error: &kube::Error) {
        if is_refusal(error) {
            self.0.refusals.send_modify(|count| *count += 1);
        }
    }
}

/// Whether the answer says that who asks is unknown (401) or may not (403).
pub fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 401 | 403))
}

/// What a look at the cluster namespace with some credentials showed.
#[derive(Debug)]
pub enum Access {
    /// They can list BundleDeployments: what Fleet's agent takes for a valid registration.
    Granted,
    /// 401 or 403.
    Refused(UpstreamError),
    /// No answer, or one that says nothing about the credentials.
    Unknown(UpstreamError),
}

impl Upstream {
    /// Lists one BundleDeployment to see what the credentials are worth.
    pub async fn access(&self) -> Access {
        let object = || format!("bundledeployments in {}", self.namespace);
        let (first, bundle_deployments) = (ListParams::default().limit(1), self.bundle_deployments());
        let call = bundle_deployments.list_metadata(&first);
        match tokio::time::timeout(super::REQUEST_TIMEOUT, call).await {
            Err(_) => Access::Unknown(UpstreamError::Timeout { object: object() }),
            Ok(Ok(_)) => Access::Granted,
            Ok(Err(source)) if is_refusal(&source) => {
                Access::Refused(UpstreamError::Read { object: object(), source: Box::new(source) })
            }
            Ok(Err(source)) => {
                Access::Unknown(UpstreamError::Read { object: object(), source: Box::new(source) })
            }
        }
    }

    /// Takes over the connection of another one for the same cluster namespace. Calls under way end as they began;
    /// what they leave open is settled by the nonce, as after any lost answer (S9).
    pub fn exchange(&self, other: &Upstream) {
        debug_assert_eq!(self.namespace, other.namespace, "another namespace is another agent");
        let client = other.client();
        *self.link.0.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        self.link.0.exchanges.send_modify(|count| *count += 1);
    }

    /// Changes with every exchange.
    pub fn exchanges(&self) -> watch::Receiver<u64> {
        self.link.0.exchanges.subscribe()
    }

    /// Changes whenever the management cluster refused who asks.
    pub fn refusals(&self) -> watch::Receiver<u64> {
        self.link.0.refusals.subscribe()
    }

    /// A watch failed, perhaps for that reason.
    pub fn note_watch(&self, error: &watcher::Error) {
        match error {
            watcher::Error::InitialListFailed(cause)
            | watcher::Error::WatchStartFailed(cause)
            | watcher::Error::WatchFailed(cause) => self.link.note(cause),
            watcher::Error::WatchError(status) if matches!(status.code, 401 | 403) => {
                self.link.0.refusals.send_modify(|count| *count += 1);
            }
            watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::telemetry::scripted;

    #[tokio::test(start_paused = true)]
    async fn after_an_exchange_every_clone_uses_the_new_connection() {
        let ((old, mut old_server), (new, mut new_server)) = (scripted::client(), scripted::client());
        let upstream = Upstream::with_client(old, "c1".into());
        let clone = upstream.clone();
        let (mut exchanges, mut refusals) = (upstream.exchanges(), upstream.refusals());
        let asked = tokio::spawn(async move { clone.read("app").await.map(|_| clone) });
        old_server.next().await.refuse(401, "Unauthorized");
        assert!(asked.await.unwrap().is_err());
        assert!(refusals.has_changed().unwrap());
        refusals.mark_unchanged();

        upstream.exchange(&Upstream::with_client(new, "c1".into()));
        assert!(exchanges.has_changed().unwrap());
        exchanges.mark_unchanged();
        let clone = upstream.clone();
        let asked = tokio::spawn(async move { clone.access().await });
        let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "9"}, "items": []});
        new_server.next().await.answer(200, &list);
        assert!(matches!(asked.await.unwrap(), Access::Granted));
        assert!(!refusals.has_changed().unwrap());
    }
}
