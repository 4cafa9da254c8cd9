// SPDX-License-Identifier: Apache-2.0
//! The result: what the controller granted, as Secret `fleet-agent`.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};

use super::ManagedError;
use crate::registration::existing::{NAME, REQUEST};

/// What the credential Secret says.
pub struct Credentials {
    /// Bearer token of the cluster's account.
    pub token: String,
    /// The cluster namespace.
    pub deployment_namespace: String,
    /// The registration namespace.
    pub cluster_namespace: String,
    /// Name of the Cluster.
    pub cluster_name: String,
}

impl Credentials {
    /// Reads it; `place` is its namespace and name.
    pub fn read(secret: &Secret, place: &str) -> Result<Self, ManagedError> {
        let text = |key: &'static str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(key));
            bytes
                .and_then(|bytes| String::from_utf8(bytes.0.clone()).ok())
                .filter(|text| !text.is_empty())
                .ok_or_else(|| ManagedError::GrantedKey { secret: place.to_owned(), key })
        };
        Ok(Self {
            token: text("token")?,
            deployment_namespace: text("deploymentNamespace")?,
            cluster_namespace: text("clusterNamespace")?,
            cluster_name: text("clusterName")?,
        })
    }
}

/// Writes Secret `fleet-agent`: creates it where there was none, replaces it in exactly the version `judged`
/// otherwise (an immutable one by deletion and creation). False when somebody else was faster.
pub async fn write(
    local: &Client,
    namespace: &str,
    judged: Option<&Secret>,
    credentials: &Credentials,
    kubeconfig: String,
    request: &str,
) -> Result<bool, ManagedError> {
    let data = [
        ("kubeconfig", kubeconfig),
        ("deploymentNamespace", credentials.deployment_namespace.clone()),
        ("clusterNamespace", credentials.cluster_namespace.clone()),
        ("clusterName", credentials.cluster_name.clone()),
    ];
    let mut secret = judged.cloned().unwrap_or_else(|| Secret {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
        ..Secret::default()
    });
    secret.metadata.managed_fields = None;
    secret.metadata.annotations.get_or_insert_default().insert(REQUEST.to_owned(), request.to_owned());
    let data = data.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
    secret.data = Some(BTreeMap::from(data));
    let secrets: Api<Secret> = Api::namespaced(local.clone(), namespace);
    let params = PostParams::default();
    let written = match judged {
        None => secrets.create(&params, &secret).await,
        Some(old) if old.immutable == Some(true) => {
            // It can only be replaced as a whole. A kill in between leaves the words and the bootstrap Secret.
            let only_this = Preconditions {
                uid: old.metadata.uid.clone(),
                resource_version: old.metadata.resource_version.clone(),
            };
            match secrets.delete(NAME, &DeleteParams::default().preconditions(only_this)).await {
                Ok(_) => create_anew(&secrets, secret).await,
                Err(kube::Error::Api(status)) if status.code == 404 => create_anew(&secrets, secret).await,
                Err(source) => Err(source),
            }
        }
        Some(_) => match secrets.replace(NAME, &params, &secret).await {
            // What was found wanting was deleted meanwhile: nothing stands in the way of a new one.
            Err(kube::Error::Api(status)) if status.code == 404 => create_anew(&secrets, secret).await,
            written => written,
        },
    };
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(source) => Err(ManagedError::local("write", NAME, source)),
    }
}

async fn create_anew(secrets: &Api<Secret>, mut secret: Secret) -> kube::Result<Secret> {
    secret.metadata.uid = None;
    secret.metadata.resource_version = None;
    secrets.create(&PostParams::default(), &secret).await
}
