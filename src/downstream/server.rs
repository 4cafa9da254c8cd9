// SPDX-License-Identifier: Apache-2.0
//! Requests to the downstream API server: one timeout around each call, one error type that tells a refusal from
//! silence, metadata-only reads.
//!
//! Nothing here retries. Whether a request may be repeated is for the caller to judge, since every write carries a
//! precondition that a blind repetition would trip over.

use std::{collections::BTreeMap, time::Duration};

use http::{Method, Request, header};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{Client, core::Status};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

use crate::{
    api::keys,
    protocol::{Epoch, Stamp},
};

/// Asks for an object's metadata alone, in place of the object.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same for a list.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const JSON: &str = "application/json";

/// The downstream API server, and how long to wait for each of its answers.
#[derive(Clone)]
pub struct Server {
    client: Client,
    timeout: Duration,
}

/// Why a request brought no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The server answered, and refused. Its own message is the text.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// No answer in time. The request may have been carried out.
    #[error("no answer from the API server within {} s", .0.as_secs())]
    Silent(Duration),
    /// The request could not be sent or its answer not be read. It may have been carried out.
    #[error("the API server cannot be asked")]
    Transport(#[source] Box<kube::Error>),
    /// The request could not be built: a name or namespace that fits no URL.
    #[error("no request can be made of this name")]
    Unaskable(#[source] http::Error),
    /// The body could not be written as JSON.
    #[error("the request body cannot be written")]
    Unwritable(#[source] serde_json::Error),
}

impl RequestError {
    /// The server's refusal, when it is one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused(status) => Some(status),
            Self::Silent(_) | Self::Transport(_) | Self::Unaskable(_) | Self::Unwritable(_) => None,
        }
    }

    /// Whether the request may have been carried out all the same: no answer, a broken one, or a server error.
    pub fn is_unclear(&self) -> bool {
        match self {
            Self::Silent(_) | Self::Transport(_) => true,
            Self::Refused(status) => status.code >= 500,
            Self::Unaskable(_) | Self::Unwritable(_) => false,
        }
    }

    /// 404 for the object (or its kind, or its namespace).
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(Status::is_not_found)
    }

    /// 409, for whichever reason.
    pub fn is_conflict(&self) -> bool {
        self.status()
            .is_some_and(|status| status.code == 409 || status.is_conflict() || status.is_already_exists())
    }

    /// 409 because something of this name exists.
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(Status::is_already_exists)
    }

    /// 409 because other managers own fields that this apply sets; only without force.
    pub fn is_field_conflict(&self) -> bool {
        self.has_cause("FieldManagerConflict")
    }

    /// The namespace is being deleted: nothing new may be made in it.
    pub fn is_namespace_terminating(&self) -> bool {
        self.has_cause("NamespaceTerminating")
    }

    /// The refusal is that this very namespace does not exist.
    pub fn is_missing_namespace(&self, namespace: &str) -> bool {
        self.is_not_found()
            && self.status().is_some_and(|status| {
                let named = status
                    .details
                    .as_ref()
                    .is_some_and(|details| details.kind == "namespaces" && details.name == namespace);
                named || status.message.contains(&format!("namespaces \"{namespace}\" not found"))
            })
    }

    /// Whether the content alone decided this, so that only another content can help.
    ///
    /// 422 is the API server's validation (schema, immutable fields). 400 is its decoder (strict decoding, wrong
    /// types). A wrongly typed or unknown field of a server-side apply comes as a plain 500 (Kubernetes 1.36).
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Refused(status) => {
                let untyped = status.message.starts_with("failed to create typed patch object");
                // An admission policy's or webhook's verdict comes in these codes, too, and so does a port or address
                // that is taken: another cluster, or another day, may see it differently.
                let decided = ["denied the request", "denied request", "already allocated"]
                    .iter()
                    .any(|words| status.message.contains(words));
                !decided && (status.is_invalid() || status.code == 400 || (status.code == 500 && untyped))
            }
            Self::Unaskable(_) | Self::Unwritable(_) => true,
            Self::Silent(_) | Self::Transport(_) => false,
        }
    }

    /// The same error with every value that the server quotes left out; for objects that hold secrets.
    pub fn without_values(self) -> Self {
        match self {
            Self::Refused(mut status) => {
                status.message = masked(&status.message);
                if let Some(details) = &mut status.details {
                    for cause in &mut details.causes {
                        cause.message = masked(&cause.message);
                    }
                }
                Self::Refused(status)
            }
            other => other,
        }
    }

    fn has_cause(&self, reason: &str) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        details.is_some_and(|details| details.causes.iter().any(|cause| cause.reason == reason))
    }
}

/// Replaces what stands after the two words with which the API server introduces a value it quotes.
fn masked(message: &str) -> String {
    let mut kept = String::with_capacity(message.len());
    for (number, line) in message.split('\n').enumerate() {
        if number > 0 {
            kept.push('\n');
        }
        let cut = ["Value:", "value:", "value ", "string \"", "literal "]
            .iter()
            .filter_map(|word| line.find(word).map(|at| at + word.len()))
            .min();
        match cut {
            Some(at) => {
                kept.push_str(&line[..at]);
                kept.push_str("(hidden)");
            }
            None => kept.push_str(line),
        }
    }
    kept
}

/// What stands in the metadata of a live object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiveMeta {
    /// Its name.
    pub name: String,
    /// Its namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty only in an object that was never stored.
    pub uid: String,
    /// The version read; the precondition of the next write.
    pub resource_version: String,
    /// As they are.
    pub labels: BTreeMap<String, String>,
    /// As they are.
    pub annotations: BTreeMap<String, String>,
    /// Set while finalizers hold a deleted object.
    pub deletion_timestamp: Option<String>,
    /// Who owns which field.
    pub managed_fields: Vec<ManagedFieldsEntry>,
}

impl LiveMeta {
    /// The claim under which the object was last written; `None` when it carries no stamp of ours.
    pub fn stamp(&self) -> Option<Stamp> {
        self.annotations.get(keys::EPOCH_ANNOTATION).and_then(|text| Stamp::parse(text))
    }

    /// The resourceVersion as something to compare.
    pub fn version(&self) -> Epoch {
        Epoch(self.resource_version.clone())
    }

    /// The Helm release it says it belongs to: namespace and name.
    pub fn release(&self) -> Option<(&str, &str)> {
        let namespace = self.annotations.get(keys::RELEASE_NAMESPACE)?;
        let name = self.annotations.get(keys::RELEASE_NAME)?;
        Some((namespace, name))
    }

    /// Helm's keep policy.
    pub fn is_kept(&self) -> bool {
        self.annotations
            .get(keys::RESOURCE_POLICY)
            .is_some_and(|policy| policy.trim().eq_ignore_ascii_case("keep"))
    }
}

/// An object of which only the metadata is read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct MetaOnly {
    /// Its metadata.
    #[serde(default)]
    pub metadata: LiveMeta,
}

/// A list of objects of which only some part is read.
#[derive(Clone, Debug, Deserialize)]
pub struct ListOf<T> {
    /// The objects. An empty list of metadata comes as `null`.
    #[serde(
        default = "Vec::new",
        deserialize_with = "null_is_empty",
        bound(deserialize = "T: Deserialize<'de>")
    )]
    pub items: Vec<T>,
}

fn null_is_empty<'de, T: Deserialize<'de>, D: Deserializer<'de>>(reader: D) -> Result<Vec<T>, D::Error> {
    Option::deserialize(reader).map(Option::unwrap_or_default)
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
        Self { client, timeout }
    }

    /// The client, for watches.
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

    async fn send<T: DeserializeOwned>(&self, request: Request<Vec<u8>>) -> Result<T, RequestError> {
        match tokio::time::timeout(self.timeout, self.client.request::<T>(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) => Err(RequestError::Refused(status)),
            Ok(Err(error)) => Err(RequestError::Transport(Box::new(error))),
            Err(_) => Err(RequestError::Silent(self.timeout)),
        }
    }
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
pub(super) fn push_segment(path: &mut String, segment: &str) {
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

    fn refused(code: u16, reason: &str, message: &str) -> RequestError {
        RequestError::Refused(Status::failure(message, reason).with_code(code).boxed())
    }

    #[test]
    fn an_empty_list_is_read_in_each_form_in_which_servers_send_it() {
        for text in [r#"{"items":null}"#, r#"{"items":[]}"#, "{}"] {
            assert!(serde_json::from_str::<ListOf<MetaOnly>>(text).unwrap().items.is_empty(), "{text}");
        }
        let one = r#"{"items":[{"metadata":{"name":"a"}}]}"#;
        assert_eq!(serde_json::from_str::<ListOf<MetaOnly>>(one).unwrap().items[0].metadata.name, "a");
    }

    #[test]
    fn only_what_the_content_alone_decides_is_permanent() {
        let untyped = "failed to create typed patch object (a/b; apps/v1, Kind=Deployment): .spec.x: field not declared";
        for (error, permanent) in [
            (refused(422, "Invalid", "field is immutable"), true),
            (refused(400, "BadRequest", "strict decoding error: unknown field \"x\""), true),
            (refused(500, "", untyped), true),
            (
                refused(422, "Invalid", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"),
                false,
            ),
            (
                refused(422, "Invalid", "spec.ports[0].nodePort: Invalid value: 30000: already allocated"),
                false,
            ),
            (refused(500, "InternalError", "failed calling webhook"), false),
            (refused(403, "Forbidden", "exceeded quota"), false),
            (refused(404, "NotFound", "the server could not find the requested resource"), false),
            (refused(429, "TooManyRequests", "slow down"), false),
            (refused(409, "Conflict", "the object has been modified"), false),
            (RequestError::Silent(Duration::from_secs(1)), false),
        ] {
            assert_eq!(error.is_permanent(), permanent, "{error}");
        }
    }

    #[test]
    fn a_value_quoted_by_the_server_does_not_pass() {
        for message in [
            "errors:\n  .stringData.pin: expected string, got &value.valueUnstructured{Value:4711}\n  .x: not declared",
            "Secret \"s\" is invalid: metadata.labels: Invalid value: \"4711\": a label is wrong",
        ] {
            let shown = refused(422, "Invalid", message).without_values().to_string();
            assert!(!shown.contains("4711"), "{shown}");
            assert!(shown.contains("(hidden)"));
        }
    }

    #[test]
    fn a_missing_namespace_is_told_from_a_missing_object() {
        assert!(refused(404, "NotFound", "namespaces \"x\" not found").is_missing_namespace("x"));
        assert!(!refused(404, "NotFound", "secrets \"x\" not found").is_missing_namespace("x"));
        assert!(!refused(404, "NotFound", "namespaces \"y\" not found").is_missing_namespace("x"));
    }

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        let mut path = String::from("/api/v1/configmaps/");
        push_segment(&mut path, "a/../b?x#y z");
        assert_eq!(path, "/api/v1/configmaps/a%2F..%2Fb%3Fx%23y%20z");
    }
}
