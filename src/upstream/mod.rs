// SPDX-License-Identifier: Apache-2.0
//! The management cluster: watch BundleDeployments, claim, finish, report, read contents.
//!
//! Every write is a PATCH of the status subresource that carries uid and resourceVersion; there is no other.

mod checkin;
mod connect;
mod copied;
pub mod fields;
mod healed;
mod link;
mod proxy;
mod secrets;
mod served;
mod snapshot;
pub mod sources;
mod values;
mod watch;
mod write;

use std::time::Duration;

use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::api::{BundleDeployment, Content};

pub use checkin::CheckIn;
pub use connect::{ConfigError, ConnectError, client, configuration, set_proxy};
pub use healed::{Healed, Jitter};
use link::Link;
pub use link::{Access, is_refusal};
pub use proxy::ProxyError;
pub use snapshot::snapshot;
pub use watch::{Event, watch, watch_in_pages};
pub use write::Answer;

pub use crate::telemetry::chain;

/// One request's limit. The API server's own for a mutating request is longer, so an expiry here is ambiguous.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a watch may stay silent before it is opened anew, in seconds. Finds half-open connections.
const WATCH_SECONDS: u32 = 60;

/// Why the management cluster could not be used.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The kubeconfig is of no use.
    #[error("cannot use the kubeconfig of the management cluster")]
    Kubeconfig(#[source] ConfigError),
    /// No client.
    #[error("cannot make a client for the management cluster")]
    Client(#[source] kube::Error),
    /// A read failed.
    #[error("cannot read {object} on the management cluster")]
    Read {
        /// Kind and name.
        object: String,
        /// The API's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// A write failed.
    #[error("cannot write {object} on the management cluster")]
    Write {
        /// Kind and name.
        object: String,
        /// The API's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// A call did not end in time.
    #[error("{object} on the management cluster: no answer in {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout {
        /// Kind and name.
        object: String,
    },
}

/// The management cluster under the agent's narrow rights. Cloning shares it, the exchange of credentials included.
#[derive(Clone)]
pub struct Upstream {
    link: Link,
    namespace: String,
}

impl Upstream {
    /// Connects with the kubeconfig of the registration; its context's namespace is the cluster namespace.
    pub async fn connect(kubeconfig: Kubeconfig) -> Result<Self, UpstreamError> {
        let config = configuration(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(UpstreamError::Kubeconfig)?;
        Self::with_config(config)
    }

    /// Connects with a ready configuration.
    pub fn with_config(config: Config) -> Result<Self, UpstreamError> {
        let namespace = config.default_namespace.clone();
        let client = connect::sending_once(config).map_err(UpstreamError::Client)?;
        Ok(Self::with_client(client, namespace))
    }

    /// For tests: any client.
    pub fn with_client(client: Client, namespace: String) -> Self {
        Self { link: Link::new(client), namespace }
    }

    /// The client as it is now, for the watch.
    pub fn client(&self) -> Client {
        self.link.client()
    }

    /// The cluster namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn bundle_deployments(&self) -> Api<BundleDeployment> {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Live read of a BundleDeployment; `None` is a 404 that names it.
    ///
    /// A removed CRD or group answers a 404, too, but a plain one: that is an error, not an absence.
    pub async fn read(&self, name: &str) -> Result<Option<BundleDeployment>, UpstreamError> {
        let object = || format!("bundledeployment {}/{name}", self.namespace);
        match self.noted(self.bundle_deployments().get(name)).await {
            Err(_) => Err(UpstreamError::Timeout { object: object() }),
            Ok(Ok(found)) => Ok(Some(found)),
            Ok(Err(kube::Error::Api(status))) if names_the_object(&status, name) => Ok(None),
            Ok(Err(source)) => Err(UpstreamError::Read { object: object(), source: Box::new(source) }),
        }
    }

    /// Live read of a Content.
    pub async fn content(&self, id: &str) -> Result<Content, UpstreamError> {
        let object = || format!("content {id}");
        let contents: Api<Content> = Api::all(self.client());
        match self.noted(contents.get(id)).await {
            Err(_) => Err(UpstreamError::Timeout { object: object() }),
            Ok(found) => {
                found.map_err(|source| UpstreamError::Read { object: object(), source: Box::new(source) })
            }
        }
    }

    /// One call in its time; a refusal of the credentials is made known to who keeps them.
    async fn noted<T>(
        &self,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<kube::Result<T>, tokio::time::error::Elapsed> {
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, call).await;
        if let Ok(Err(error)) = &answer {
            self.link.note(error);
        }
        answer
    }
}

fn names_the_object(status: &kube::core::Status, name: &str) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name)
}
