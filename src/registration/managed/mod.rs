// SPDX-License-Identifier: Apache-2.0
//! The managed flow, as Fleet's agent and controller speak it (`fleet-agent-bootstrap` → ClusterRegistration →
//! credential Secret → `fleet-agent`), for any number of replicas at once.
//!
//! No step needs the one before to have been this process's: a flow that was cut off anywhere is gone through again, and
//! what is already there is found. Nothing is deleted before what replaces it was tried and written.

mod bootstrap;
mod error;
mod intent;
mod request;
mod result;
mod tls;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, Client};
use tokio::time::Instant;
use tracing::{debug, info};

use self::{intent::Intent, request::Upstreams, result::Credentials};
use super::{
    AgentConfig, Registration,
    existing::{self, REQUEST},
    settings::Settings,
};
use crate::{
    telemetry::{
        chain,
        events::{EventType, reason},
    },
    upstream::{Access, Upstream},
};

pub use bootstrap::{Bootstrap, NAME as BOOTSTRAP};
pub use error::ManagedError;
pub use intent::NAME as INTENT;
pub(super) use tls::text as kubeconfig_text;

/// How the flow ended: either way, Secret `fleet-agent` is to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This replica wrote the Secret.
    Registered,
    /// Somebody else did meanwhile.
    Superseded,
}

/// Goes through the flow. `judged` is Secret `fleet-agent` as it was found wanting, `None` where there was none: it is
/// replaced in exactly that version, or not at all.
pub async fn register(
    local: &Client,
    settings: &Settings,
    config: &AgentConfig,
    bootstrap: &Bootstrap,
    judged: Option<&Secret>,
) -> Result<Outcome, ManagedError> {
    let namespace = settings.namespace.as_str();
    let client_id = client_id(local, config).await?;

    // 1. The words, once for all replicas. A request whose credentials were used up is not made again.
    let used =
        judged.and_then(|secret| secret.metadata.annotations.as_ref()?.get(REQUEST)).map(String::as_str);
    let used: Vec<&str> = used.into_iter().collect();
    let agree = |spent: Vec<String>| {
        let client_id = client_id.clone();
        async move {
            let spent: Vec<&str> = spent.iter().map(String::as_str).collect();
            Intent::agree(local, namespace, &client_id, bootstrap, &spent, settings.random).await
        }
    };
    let intent = agree(used.iter().map(|&request| request.to_owned()).collect()).await?;
    // Only now: a peer that ended the flow meanwhile wrote the Secret before it deleted its intent.
    if is_superseded(local, settings, judged).await? {
        drop_own(local, namespace, &intent, judged).await?;
        return Ok(Outcome::Superseded);
    }

    // 2. The request. One that exists is a peer's, or an earlier try's: the same.
    let authority =
        tls::authority(&bootstrap.api_server_url, &bootstrap.api_server_ca, &config.agent_tls_mode).await?;
    let upstreams = Upstreams::connect(bootstrap, authority.as_deref()).await?;
    let made = upstreams.create(&intent, bootstrap, config, &settings.pod).await?;
    if made {
        info!(request = intent.request, "registration requested: waiting for the controller to grant it");
    }
    settings.ill(format!(
        "registering: ClusterRegistration {}/{} waits for Fleet's controller",
        bootstrap.cluster_namespace, intent.request
    ));

    // 3. What the controller grants, once it is good for what it is for.
    let deadline = Instant::now() + settings.patience;
    let credentials = loop {
        if let Some(granted) = upstreams.granted(&intent, bootstrap).await? {
            let kubeconfig = granted.kubeconfig(bootstrap, authority.as_deref());
            let upstream = Upstream::connect(kubeconfig).await.map_err(ManagedError::Upstream)?;
            match upstream.access().await {
                Access::Granted => break granted,
                // The rights may come after the Secret.
                Access::Refused(cause) | Access::Unknown(cause) => {
                    debug!(cause = chain(&cause), "the new credentials do not work yet");
                }
            }
        }
        if Instant::now() >= deadline {
            agree(vec![intent.request.clone()]).await?;
            return Err(ManagedError::NotGranted {
                request: format!("{}/{}", bootstrap.cluster_namespace, intent.request),
                minutes: settings.patience.as_secs() / 60,
            });
        }
        tokio::time::sleep(settings.poll).await;
        if is_superseded(local, settings, judged).await? {
            return Ok(Outcome::Superseded);
        }
    };

    // 4. The result, in place of exactly what was found wanting.
    let text = credentials.text(bootstrap, authority.as_deref());
    if !result::write(local, namespace, judged, &credentials, text, &intent.request).await? {
        return Ok(Outcome::Superseded);
    }
    let cluster = format!("{}/{}", credentials.cluster_namespace, credentials.cluster_name);
    info!(cluster, request = intent.request, "this cluster is registered");
    let note = format!("registered as Cluster {cluster}");
    (settings.report)(EventType::Normal, reason::REGISTERED, note);

    // 5. What led there: the bootstrap Secret first, so that an intent without one is known to be spent.
    bootstrap.delete(local, namespace).await?;
    intent.delete(local, namespace).await?;
    Ok(Outcome::Registered)
}

/// The end of a flow that was cut off after its result was written. A bootstrap Secret that was not used stays.
pub async fn tidy(local: &Client, namespace: &str, registration: &Registration) -> Result<(), ManagedError> {
    let Some(intent) = Intent::read(local, namespace).await? else { return Ok(()) };
    if registration.request.as_deref() == Some(intent.request.as_str())
        && let Some(bootstrap) = Bootstrap::read(local, namespace).await?
        && bootstrap.fingerprint() == intent.bootstrap
    {
        bootstrap.delete(local, namespace).await?;
    }
    intent.delete(local, namespace).await
}

/// The intent of a replica that came too late: where the peer's flow had ended, it asked for nothing and goes.
async fn drop_own(
    local: &Client,
    namespace: &str,
    intent: &Intent,
    judged: Option<&Secret>,
) -> Result<(), ManagedError> {
    debug!(had_secret = judged.is_some(), "another replica has registered this cluster");
    let now = existing::secret(local, namespace).await.map_err(ManagedError::existing)?;
    match now {
        Some(secret) => match existing::read(&secret, namespace) {
            Ok(registration) if registration.request.as_deref() != Some(intent.request.as_str()) => {
                intent.delete(local, namespace).await
            }
            Ok(_) | Err(_) => Ok(()),
        },
        None => Ok(()),
    }
}

async fn is_superseded(
    local: &Client,
    settings: &Settings,
    judged: Option<&Secret>,
) -> Result<bool, ManagedError> {
    let now = existing::secret(local, &settings.namespace).await.map_err(ManagedError::existing)?;
    let version = |secret: &Secret| (secret.metadata.uid.clone(), secret.metadata.resource_version.clone());
    Ok(match now {
        // A Secret that was deleted does not stand in the way of a new one.
        None => false,
        Some(now) => judged.map(version) != Some(version(&now)),
    })
}

async fn client_id(local: &Client, config: &AgentConfig) -> Result<String, ManagedError> {
    const NAMESPACE: &str = "kube-system";
    if !config.client_id.is_empty() {
        return Ok(config.client_id.clone());
    }
    let namespaces: Api<Namespace> = Api::all(local.clone());
    let found = namespaces.get(NAMESPACE).await.map_err(|source| ManagedError::Identity(Box::new(source)))?;
    Ok(found.metadata.uid.unwrap_or_default())
}

impl Credentials {
    fn kubeconfig(&self, bootstrap: &Bootstrap, authority: Option<&str>) -> kube::config::Kubeconfig {
        tls::kubeconfig(&bootstrap.api_server_url, authority, &self.token, &self.deployment_namespace)
    }

    fn text(&self, bootstrap: &Bootstrap, authority: Option<&str>) -> String {
        tls::text(&bootstrap.api_server_url, authority, &self.token, &self.deployment_namespace)
    }
}
