// SPDX-License-Identifier: Apache-2.0
//! The intent: what this cluster asks for, written down in its own cluster before it is asked for.
//!
//! However many replicas start together, and however often one is killed on the way, all of them ask with the same
//! words: the first to *create* the intent chooses them. The ClusterRegistration's name is among them, so that upstream
//! the second create is refused as existing; the bootstrap token may create, and not read.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, Preconditions},
};

use super::{Bootstrap, ManagedError};

/// Its name. A Secret, since the credentials' name follows from its words.
pub const NAME: &str = "flotilla-registration";
/// Fleet's alphabet for tokens: no vowels, and nothing that is read as something else.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Fleet's length of `clientRandom`.
const RANDOM: usize = 54;
/// Tries until a peer that replaces the intent at the same time is agreed with.
const TRIES: usize = 5;

/// The words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Identity of the cluster.
    pub client_id: String,
    /// What tells this registration from the cluster's others.
    pub client_random: String,
    /// Name of the ClusterRegistration.
    pub request: String,
    /// Fingerprint of the bootstrap Secret it is made with.
    pub bootstrap: String,
    uid: Option<String>,
    version: Option<String>,
}

impl Intent {
    fn draft(client_id: &str, bootstrap: &Bootstrap, random: fn() -> u64) -> Self {
        Self {
            client_id: client_id.to_owned(),
            client_random: word(RANDOM, random),
            // As the server would make of generateName, but long enough never to meet another cluster's.
            request: format!("request-{}", word(12, random)),
            bootstrap: bootstrap.fingerprint(),
            uid: None,
            version: None,
        }
    }

    /// Reads it; `None` when there is none, or nothing of use in it.
    pub async fn read(client: &Client, namespace: &str) -> Result<Option<Self>, ManagedError> {
        let found = api(client, namespace).get_opt(NAME).await;
        Ok(found
            .map_err(|source| ManagedError::local("read", NAME, source))?
            .map(|secret| Self::parse(&secret)))
    }

    /// The intent all replicas share; a new one where there is none, or where `spent` says that it led nowhere.
    pub async fn agree(
        client: &Client,
        namespace: &str,
        client_id: &str,
        bootstrap: &Bootstrap,
        spent: &[&str],
        random: fn() -> u64,
    ) -> Result<Self, ManagedError> {
        let secrets = api(client, namespace);
        for _ in 0..TRIES {
            let found = Self::read(client, namespace).await?;
            let is_spent = |intent: &Self| {
                intent.client_id != client_id
                    || intent.bootstrap != bootstrap.fingerprint()
                    || intent.client_random.is_empty()
                    || intent.request.is_empty()
                    || spent.contains(&intent.request.as_str())
            };
            let draft = Self::draft(client_id, bootstrap, random);
            let written = match found {
                Some(intent) if !is_spent(&intent) => return Ok(intent),
                Some(old) => {
                    let next = Self { uid: old.uid, version: old.version, ..draft };
                    secrets.replace(NAME, &PostParams::default(), &next.secret()).await
                }
                None => secrets.create(&PostParams::default(), &draft.secret()).await,
            };
            match written {
                Ok(secret) => return Ok(Self::parse(&secret)),
                // A peer was first, with words of its own: they count.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(source) => return Err(ManagedError::local("write", NAME, source)),
            }
        }
        Err(ManagedError::Busy)
    }

    /// Deletes it, unless it was replaced.
    pub async fn delete(&self, client: &Client, namespace: &str) -> Result<(), ManagedError> {
        let only_this = Preconditions { uid: self.uid.clone(), resource_version: self.version.clone() };
        let params = DeleteParams::default().preconditions(only_this);
        match api(client, namespace).delete(NAME, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(ManagedError::local("delete", NAME, source)),
        }
    }

    fn secret(&self) -> Secret {
        let data = [
            ("clientID", &self.client_id),
            ("clientRandom", &self.client_random),
            ("request", &self.request),
            ("bootstrap", &self.bootstrap),
        ];
        Secret {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                uid: self.uid.clone(),
                resource_version: self.version.clone(),
                ..ObjectMeta::default()
            },
            data: Some(
                data.into_iter()
                    .map(|(key, value)| (key.to_owned(), ByteString(value.clone().into_bytes())))
                    .collect::<BTreeMap<_, _>>(),
            ),
            ..Secret::default()
        }
    }

    fn parse(secret: &Secret) -> Self {
        let text = |key: &str| {
            let bytes = secret.data.as_ref().and_then(|data| data.get(key));
            bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok()).unwrap_or_default()
        };
        Self {
            client_id: text("clientID"),
            client_random: text("clientRandom"),
            request: text("request"),
            bootstrap: text("bootstrap"),
            uid: secret.metadata.uid.clone(),
            version: secret.metadata.resource_version.clone(),
        }
    }
}

fn api(client: &Client, namespace: &str) -> Api<Secret> {
    Api::namespaced(client.clone(), namespace)
}

fn word(length: usize, random: fn() -> u64) -> String {
    let letters = ALPHABET.len() as u64;
    // The remainder of 64 bits by 27 is even enough.
    (0..length).map(|_| char::from(ALPHABET[usize::try_from(random() % letters).unwrap_or(0)])).collect()
}
