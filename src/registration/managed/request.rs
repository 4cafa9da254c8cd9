// SPDX-License-Identifier: Apache-2.0
//! The upstream side, under the bootstrap token: ask, and look for what was granted.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
};
use serde_json::json;
use tracing::debug;

use super::{Bootstrap, ManagedError, intent::Intent, result::Credentials, tls};
use crate::{api::names, registration::AgentConfig, telemetry::chain};

/// Label of a ClusterRegistration: by it the controller grants the token's account access to the credentials.
const TOKEN_LABEL: &str = "fleet.cattle.io/registration-token";
/// Label the Cluster gets: the one key of a reserved prefix that an agent may assert.
const POD_LABEL: &str = "fleet.cattle.io/created-by-agent-pod";

/// The management cluster with the bootstrap token.
pub struct Upstreams(Client);

impl Upstreams {
    /// Makes the client; nothing is sent yet.
    pub async fn connect(bootstrap: &Bootstrap, authority: Option<&str>) -> Result<Self, ManagedError> {
        let (url, namespace) = (&bootstrap.api_server_url, &bootstrap.cluster_namespace);
        tls::client(&tls::kubeconfig(url, authority, &bootstrap.token, namespace)).await.map(Self)
    }

    /// Creates the ClusterRegistration; false when it exists.
    pub async fn create(
        &self,
        intent: &Intent,
        bootstrap: &Bootstrap,
        config: &AgentConfig,
        pod: &str,
    ) -> Result<bool, ManagedError> {
        let resource = ApiResource {
            group: "fleet.cattle.io".into(),
            version: "v1alpha1".into(),
            api_version: "fleet.cattle.io/v1alpha1".into(),
            kind: "ClusterRegistration".into(),
            plural: "clusterregistrations".into(),
        };
        let requests: Api<DynamicObject> =
            Api::namespaced_with(self.0.clone(), &bootstrap.cluster_namespace, &resource);
        let mut labels: BTreeMap<&str, &str> =
            config.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        labels.insert(POD_LABEL, pod);
        let object = DynamicObject::new(&intent.request, &resource).data(json!({"spec": {
            "clientID": intent.client_id,
            "clientRandom": intent.client_random,
            "clusterLabels": labels,
        }}));
        let mut object = object.within(&bootstrap.cluster_namespace);
        object.metadata.labels =
            Some(BTreeMap::from([(TOKEN_LABEL.to_owned(), bootstrap.token_name.clone())]));
        match requests.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(false),
            Err(source) => {
                let request = format!("{}/{}", bootstrap.cluster_namespace, intent.request);
                let (refused, source) = (crate::upstream::is_refusal(&source), Box::new(source));
                Err(if refused {
                    ManagedError::TokenRefused { request, source }
                } else {
                    ManagedError::Create { request, source }
                })
            }
        }
    }

    /// What the controller granted; `None` as long as there is nothing. The right to read it comes with it.
    pub async fn granted(
        &self,
        intent: &Intent,
        bootstrap: &Bootstrap,
    ) -> Result<Option<Credentials>, ManagedError> {
        let name = names::registration_secret(&intent.client_id, &intent.client_random);
        let secret = format!("{}/{name}", bootstrap.system_registration_namespace);
        let secrets: Api<Secret> = Api::namespaced(self.0.clone(), &bootstrap.system_registration_namespace);
        match secrets.get(&name).await {
            Ok(found) => Credentials::read(&found, &secret).map(Some),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 401 => Err(ManagedError::TokenRefused {
                request: format!("{}/{}", bootstrap.cluster_namespace, intent.request),
                source: Box::new(kube::Error::Api(status)),
            }),
            // It passes, or the wait ends.
            Err(kube::Error::Api(status)) if status.code != 429 && status.code < 500 => {
                Err(ManagedError::Granted { secret, source: Box::new(kube::Error::Api(status)) })
            }
            Err(cause) => {
                debug!(cause = chain(&cause), "cannot look for the credentials now");
                Ok(None)
            }
        }
    }
}
