// SPDX-License-Identifier: Apache-2.0
//! The bootstrap Secret: a token that may create ClusterRegistrations, and where.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::ManagedError;
use crate::api::hex;

/// Its name.
pub const NAME: &str = "fleet-agent-bootstrap";
/// The one key that holds all others as YAML, as in the Secret Fleet makes for a token.
const VALUES: &str = "values";

/// What it says.
#[derive(Clone)]
pub struct Bootstrap {
    uid: Option<String>,
    version: Option<String>,
    /// Where the controller leaves the credential Secret.
    pub system_registration_namespace: String,
    /// Where ClusterRegistrations are made.
    pub cluster_namespace: String,
    /// The bearer token.
    pub token: String,
    /// Name of the ClusterRegistrationToken: the controller grants access to the credentials by it.
    pub token_name: String,
    /// The management cluster.
    pub api_server_url: String,
    /// PEM; empty: none.
    pub api_server_ca: String,
}

impl Bootstrap {
    /// Reads the Secret; `None` when there is none.
    pub async fn read(client: &Client, namespace: &str) -> Result<Option<Self>, ManagedError> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let found =
            secrets.get_opt(NAME).await.map_err(|source| ManagedError::local("read", NAME, source))?;
        found.map(|secret| Self::parse(&secret)).transpose()
    }

    fn parse(secret: &Secret) -> Result<Self, ManagedError> {
        let text = |key: &str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(key));
            bytes.and_then(|bytes| std::str::from_utf8(&bytes.0).ok()).map(str::to_owned)
        };
        let values: BTreeMap<String, Value> = match text(VALUES) {
            // The parser's text is not repeated: the input holds a token.
            Some(yaml) => serde_saphyr::from_str(&yaml).map_err(|_| ManagedError::Values)?,
            None => BTreeMap::new(),
        };
        let optional = |key: &str| {
            let value = text(key).or_else(|| values.get(key)?.as_str().map(str::to_owned));
            value.map(|value| value.trim().to_owned()).unwrap_or_default()
        };
        let required = |key: &'static str| match optional(key) {
            value if value.is_empty() => Err(ManagedError::Key(key)),
            value => Ok(value),
        };
        Ok(Self {
            uid: secret.metadata.uid.clone(),
            version: secret.metadata.resource_version.clone(),
            system_registration_namespace: required("systemRegistrationNamespace")?,
            cluster_namespace: required("clusterNamespace")?,
            token: required("token")?,
            token_name: required("tokenName")?,
            api_server_url: required("apiServerURL")?,
            api_server_ca: optional("apiServerCA"),
        })
    }

    /// Tells one offer from another. A token that was only renewed is the same offer.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for part in [
            self.uid.as_deref().unwrap_or_default(),
            &self.api_server_url,
            &self.cluster_namespace,
            &self.system_registration_namespace,
            &self.token_name,
        ] {
            hash.update(part);
            hash.update([0]);
        }
        hex(&hash.finalize())
    }

    /// Deletes it, unless it was changed since it was read.
    pub async fn delete(&self, client: &Client, namespace: &str) -> Result<(), ManagedError> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let only_this = Preconditions { uid: self.uid.clone(), resource_version: self.version.clone() };
        match secrets.delete(NAME, &DeleteParams::default().preconditions(only_this)).await {
            Ok(_) => Ok(()),
            // Gone, by a peer; or another one by now, which was not used.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(ManagedError::local("delete", NAME, source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(data: Value) -> Secret {
        serde_json::from_value(json!({
            "metadata": {"name": NAME, "uid": "u", "resourceVersion": "7"}, "data": data,
        }))
        .unwrap()
    }

    fn encoded(text: &str) -> String {
        use base64::{Engine, engine::general_purpose::STANDARD};
        STANDARD.encode(text)
    }

    #[test]
    fn keys_of_their_own_and_one_key_with_all_of_them_say_the_same() {
        let apart = secret(json!({
            "systemRegistrationNamespace": encoded("clusters-system"), "clusterNamespace": encoded("fleet-default"),
            "token": encoded("t\n"), "tokenName": encoded("import"), "apiServerURL": encoded("https://up:6443"),
        }));
        let together = secret(json!({"values": encoded(
            "clusterNamespace: fleet-default\napiServerURL: https://up:6443\ntoken: t\ntokenName: import\n\
             systemRegistrationNamespace: clusters-system\napiServerCA: |\n  -----BEGIN\n  x\n"
        )}));
        let (apart, together) = (Bootstrap::parse(&apart).unwrap(), Bootstrap::parse(&together).unwrap());
        assert_eq!((&*apart.token, &*together.token), ("t", "t"));
        assert_eq!(apart.fingerprint(), together.fingerprint());
        assert_eq!(together.api_server_ca, "-----BEGIN\nx");
        assert!(apart.api_server_ca.is_empty());
    }

    #[test]
    fn what_is_missing_is_named() {
        let nothing = secret(json!({"values": encoded("token: t\nsystemRegistrationNamespace: s\n")}));
        assert!(matches!(Bootstrap::parse(&nothing), Err(ManagedError::Key("clusterNamespace"))));
        assert!(matches!(
            Bootstrap::parse(&secret(json!({"values": encoded("- [")}))),
            Err(ManagedError::Values)
        ));
    }
}
