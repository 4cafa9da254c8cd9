// SPDX-License-Identifier: Apache-2.0
//! An existing registration: Secret and ConfigMap `fleet-agent` in the agent's namespace, as Fleet's agent has them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, config::Kubeconfig};
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};

use super::managed::ManagedError;
use crate::upstream::UpstreamError;

/// Name of both objects.
pub const NAME: &str = "fleet-agent";
/// Annotation of a Secret that the managed flow wrote: the ClusterRegistration it comes from.
pub(super) const REQUEST: &str = "flotilla.fleet/registration";

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// Not there: the cluster was never registered.
    #[error(
        "{kind} {namespace}/{NAME} does not exist: this cluster is not registered \
         (the agent needs the Secret with its kubeconfig and the ConfigMap with its settings)"
    )]
    Missing {
        /// Secret or ConfigMap.
        kind: &'static str,
        /// The agent's namespace.
        namespace: String,
    },
    /// It could not be read.
    #[error("cannot read {kind} {namespace}/{NAME}")]
    Read {
        /// Secret or ConfigMap.
        kind: &'static str,
        /// The agent's namespace.
        namespace: String,
        /// The API's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// A key is missing or empty.
    #[error("{kind} {namespace}/{NAME} has no key {key:?}")]
    Key {
        /// Secret or ConfigMap.
        kind: &'static str,
        /// The agent's namespace.
        namespace: String,
        /// The key.
        key: &'static str,
    },
    /// The management cluster refuses the credentials, and there is no bootstrap Secret to get new ones with.
    #[error(
        "the management cluster refuses the credentials of Secret {namespace}/{NAME}, and there is no Secret \
         {namespace}/fleet-agent-bootstrap to register anew with: create that one, or replace the credentials"
    )]
    Refused {
        /// The agent's namespace.
        namespace: String,
        /// The management cluster's answer.
        #[source]
        source: UpstreamError,
    },
    /// The flow with the bootstrap Secret did not end well; it is tried again.
    #[error("cannot register this cluster")]
    Managed(#[source] ManagedError),
    /// The kubeconfig is not one. Its text is not repeated: it holds a token.
    #[error("key \"kubeconfig\" of Secret {namespace}/{NAME} is not a kubeconfig")]
    Kubeconfig {
        /// The agent's namespace.
        namespace: String,
    },
    /// The settings are not JSON of the expected form.
    #[error("key \"config\" of ConfigMap {namespace}/{NAME} is not valid")]
    Config {
        /// The agent's namespace.
        namespace: String,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
}

/// What the Secret says.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Access to the management cluster; the namespace of its current context is the cluster namespace.
    pub kubeconfig: Kubeconfig,
    /// Name of the Cluster.
    pub cluster_name: String,
    /// Namespace of the Cluster.
    pub cluster_registration_namespace: String,
    /// The ClusterRegistration it comes from; `None` for one that Fleet or a person made.
    pub request: Option<String>,
    /// Hash of all that the Secret says.
    pub fingerprint: [u8; 32],
}

/// The agent's settings; other keys are accepted and ignored, as Fleet's agent does.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentConfig {
    /// Labels the Cluster gets at its registration.
    #[serde(deserialize_with = "null_default")]
    pub labels: BTreeMap<String, String>,
    /// Identity of the cluster at its registration; empty: the uid of namespace `kube-system`.
    #[serde(rename = "clientID", deserialize_with = "null_default")]
    pub client_id: String,
    /// Go duration text.
    pub garbage_collection_interval: String,
    /// `system-store` or `strict`.
    #[serde(rename = "agentTLSMode")]
    pub agent_tls_mode: String,
}

/// Reads the Secret.
pub async fn existing(client: &Client, namespace: &str) -> Result<Registration, RegistrationError> {
    match secret(client, namespace).await? {
        Some(secret) => read(&secret, namespace),
        None => Err(missing(namespace)),
    }
}

/// The Secret as it is now; `None` when there is none.
pub(super) async fn secret(client: &Client, namespace: &str) -> Result<Option<Secret>, RegistrationError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    secrets.get_opt(NAME).await.map_err(|source| RegistrationError::Read {
        kind: "Secret",
        namespace: namespace.to_owned(),
        source: Box::new(source),
    })
}

/// The error of a cluster without the Secret.
pub(super) fn missing(namespace: &str) -> RegistrationError {
    RegistrationError::Missing { kind: "Secret", namespace: namespace.to_owned() }
}

/// What the Secret says.
pub(super) fn read(secret: &Secret, namespace: &str) -> Result<Registration, RegistrationError> {
    let kind = "Secret";
    let text = |key: &'static str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
        bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).filter(|text| !text.is_empty())
    };
    let missing = |key| RegistrationError::Key { kind, namespace: namespace.to_owned(), key };
    let yaml = text("kubeconfig").ok_or_else(|| missing("kubeconfig"))?;
    let kubeconfig = Kubeconfig::from_yaml(yaml)
        .map_err(|_| RegistrationError::Kubeconfig { namespace: namespace.to_owned() })?;
    let mut hash = Sha256::new();
    for key in ["kubeconfig", "clusterNamespace", "clusterName"] {
        hash.update(text(key).unwrap_or_default());
        hash.update([0]);
    }
    let request = secret.metadata.annotations.as_ref().and_then(|notes| notes.get(REQUEST)).cloned();
    Ok(Registration {
        kubeconfig,
        cluster_name: text("clusterName").unwrap_or_default().to_owned(),
        cluster_registration_namespace: text("clusterNamespace").unwrap_or_default().to_owned(),
        request,
        fingerprint: hash.finalize().into(),
    })
}

/// Reads the ConfigMap; it is required.
pub async fn agent_config(client: &Client, namespace: &str) -> Result<AgentConfig, RegistrationError> {
    let kind = "ConfigMap";
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = found(maps.get_opt(NAME).await, kind, namespace)?;
    let text = map
        .data
        .as_ref()
        .and_then(|data| data.get("config"))
        .ok_or_else(|| RegistrationError::Key { kind, namespace: namespace.to_owned(), key: "config" })?;
    serde_json::from_str(text)
        .map_err(|source| RegistrationError::Config { namespace: namespace.to_owned(), source })
}

fn found<T>(
    read: Result<Option<T>, kube::Error>,
    kind: &'static str,
    namespace: &str,
) -> Result<T, RegistrationError> {
    let namespace = namespace.to_owned();
    match read {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Err(RegistrationError::Missing { kind, namespace }),
        Err(source) => Err(RegistrationError::Read { kind, namespace, source: Box::new(source) }),
    }
}

/// Go writes an empty map or text as null.
fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
