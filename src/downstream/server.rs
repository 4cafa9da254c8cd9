// SPDX-License-Identifier: Apache-2.0
//! Requests to the downstream API server: one timeout around each call, one error type that tells a refusal from
//! silence, metadata-only reads.
//!
//! Nothing here retries, except what an overloaded server has turned away. Whether a request may be repeated is for the caller to judge, since every write carries a
//! precondition that a blind repetition would trip over.

mod metadata;
mod refusal;

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use http::{HeaderValue, Method, Request, header};
use kube::{Client, core::Status};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::time::Instant;

pub use metadata::{ListOf, LiveMeta, MetaOnly};
pub use refusal::RequestError;

/// Asks for an object's metadata alone, in place of the object.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same for a list.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const JSON: &str = "application/json";
/// Says as whom the API server is to take a request.
const IMPERSONATE: &str = "impersonate-user";

/// The downstream API server, and how long to wait for each of its answers.
#[derive(Clone)]
pub struct Server {
    client: Client,
    timeout: Duration,
    /// As whom every request is made; `None`: as the agent itself.
    user: Option<HeaderValue>,
}

/// What an accepted delete did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The object is gone.
    Gone,
    /// It has a deletionTimestamp; finalizers or a grace period hold it.
    Held,
}

#[derive(Deserialize)]
struct TypeOnly {
    #[serde(default)]
    kind: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions<'a> {
    api_version: &'static str,
    kind: &'static str,
    preconditions: Preconditions<'a>,
    propagation_policy: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions<'a> {
    uid: &'a str,
    resource_version: &'a str,
}

impl Server {
    /// A server behind `client`; every call waits for at most `timeout`.
    pub fn new(client: Client, timeout: Duration) -> Self {
        Self { client, timeout, user: None }
    }

    /// The same server, asked as this user; `None` when no header can hold the name.
    ///
    /// The header works with whatever credentials the client has, inside the cluster and outside. The API server itself
    /// adds the groups of a service account.
    pub fn acting_as(&self, user: &str) -> Option<Self> {
        let user = HeaderValue::from_str(user).ok()?;
        Some(Self { user: Some(user), ..self.clone() })
    }

    /// Whether requests are made as somebody else than the agent.
    pub fn acts_as_another(&self) -> bool {
        self.user.is_some()
    }

    /// The client, for watches. Always the agent itself, whoever the requests are made as.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// How long each call waits for its answer.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Reads what `path` names.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, RequestError> {
        self.send(request(Method::GET, path, JSON, None, Vec::new())?).await
    }

    /// Reads the metadata of the object at `path`; `None` when it is not there.
    pub async fn metadata(&self, path: &str) -> Result<Option<LiveMeta>, RequestError> {
        match self.send::<MetaOnly>(request(Method::GET, path, METADATA_ONLY, None, Vec::new())?).await {
            Ok(found) => Ok(Some(found.metadata)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the metadata of the objects in the collection at `path`.
    pub async fn metadata_list(&self, path: &str) -> Result<Vec<LiveMeta>, RequestError> {
        let list: ListOf<MetaOnly> =
            self.send(request(Method::GET, path, METADATA_LIST, None, Vec::new())?).await?;
        Ok(list.items.into_iter().map(|item| item.metadata).collect())
    }

    /// Writes with POST or PUT.
    pub async fn write<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, RequestError> {
        let body = serde_json::to_vec(body).map_err(RequestError::Unwritable)?;
        self.send(request(method, path, JSON, Some(JSON), body)?).await
    }

    /// Replaces what is at `path`; `body` is JSON already.
    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> Result<T, RequestError> {
        self.send(request(Method::PUT, path, JSON, Some(JSON), body)?).await
    }

    /// Writes with PATCH; `content_type` says which sort of patch `body` is.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<T, RequestError> {
        self.send(request(Method::PATCH, path, JSON, Some(content_type), body)?).await
    }

    /// Deletes the object if it is still the one that was read.
    ///
    /// Dependents go in the background, as with Helm.
    pub async fn delete(
        &self,
        path: &str,
        uid: &str,
        resource_version: &str,
    ) -> Result<Deleted, RequestError> {
        let body = DeleteOptions {
            api_version: "v1",
            kind: "DeleteOptions",
            preconditions: Preconditions { uid, resource_version },
            propagation_policy: "Background",
        };
        // A status answers for what is gone, the object itself for what finalizers or a grace period still hold.
        let answer: TypeOnly = self.write(Method::DELETE, path, &body).await?;
        Ok(if answer.kind == "Status" { Deleted::Gone } else { Deleted::Held })
    }

    /// Sends it; an overloaded server is asked again when it says so, within the same time limit. It has not begun to
    /// carry out what it turns away like that, so that this is no blind repetition.
    async fn send<T: DeserializeOwned>(&self, mut request: Request<Vec<u8>>) -> Result<T, RequestError> {
        if let Some(user) = &self.user {
            request.headers_mut().insert(IMPERSONATE, user.clone());
        }
        let deadline = Instant::now() + self.timeout;
        let mut tries = 0;
        loop {
            match tokio::time::timeout_at(deadline, self.client.request::<T>(request.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(kube::Error::Api(status))) => {
                    let pause = pause(&request, &status, tries);
                    if status.code != 429 || Instant::now() + pause >= deadline {
                        return Err(RequestError::Refused(status));
                    }
                    tokio::time::sleep(pause).await;
                    tries += 1;
                }
                Ok(Err(error)) => return Err(RequestError::Transport(Box::new(error))),
                Err(_) => return Err(RequestError::Silent(self.timeout)),
            }
        }
    }
}

/// How long a server that has too much to do is left alone: as long as it says, or a second, and up to as much again,
/// by request, so that those that were turned away together do not come back together.
fn pause(request: &Request<Vec<u8>>, status: &Status, tries: u32) -> Duration {
    let asked = status.details.as_ref().map_or(0, |details| details.retry_after_seconds).max(1);
    let mut hasher = DefaultHasher::new();
    (request.uri().path(), tries).hash(&mut hasher);
    Duration::from_secs(asked.into()).mul_f64(1.0 + (hasher.finish() % 1000) as f64 / 1000.0)
}

fn request(
    method: Method,
    path: &str,
    accept: &str,
    content_type: Option<&str>,
    body: Vec<u8>,
) -> Result<Request<Vec<u8>>, RequestError> {
    let mut builder = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
    if let Some(content_type) = content_type {
        builder = builder.header(header::CONTENT_TYPE, content_type);
    }
    builder.body(body).map_err(RequestError::Unaskable)
}

/// Appends one segment of a path, escaped.
pub(crate) fn push_segment(path: &mut String, segment: &str) {
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@!$&'()*+,;=".contains(&byte) {
            path.push(byte as char);
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::scripted;

    #[tokio::test(start_paused = true)]
    async fn an_overloaded_server_is_asked_again_within_the_time_of_one_request() {
        let (client, mut cluster) = scripted::client();
        let server = Server::new(client, Duration::from_secs(10));
        let asking = server.clone();
        let asked = tokio::spawn(async move { asking.metadata("/api/v1/namespaces/a").await });
        for _ in 0..2 {
            cluster.next().await.refuse(429, "TooManyRequests");
        }
        cluster.next().await.answer(200, &serde_json::json!({ "metadata": { "name": "a" } }));
        assert_eq!(asked.await.unwrap().unwrap().unwrap().name, "a");

        let start = Instant::now();
        let asked = tokio::spawn(async move { server.metadata("/api/v1/namespaces/a").await });
        let refusals = tokio::spawn(async move {
            loop {
                cluster.next().await.refuse(429, "TooManyRequests");
            }
        });
        let error = asked.await.unwrap().unwrap_err();
        refusals.abort();
        assert_eq!(error.status().map(|status| status.code), Some(429));
        assert!(start.elapsed() <= Duration::from_secs(10));
    }

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        let mut path = String::from("/api/v1/configmaps/");
        push_segment(&mut path, "a/../b?x#y z");
        assert_eq!(path, "/api/v1/configmaps/a%2F..%2Fb%3Fx%23y%20z");
    }
}
