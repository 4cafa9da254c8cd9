// SPDX-License-Identifier: Apache-2.0
//! The audit log: who asked the API server for what, and what came of it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde::Deserialize;

/// Every request at metadata level, once it is answered; the servers' own health checks left out.
pub(super) const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  nonResourceURLs: ["/readyz*", "/livez*", "/healthz*", "/version", "/openapi/*"]
- level: Metadata
"#;

/// Where the API server says which token a service account used.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// `get`, `list`, `watch`, `create`, `update`, `patch` (server-side apply too), `delete` or `deletecollection`.
    pub verb: String,
    /// The authenticated user.
    pub user: String,
    /// Which of the user's tokens was used, as [`fleet::credential`](super::fleet::credential) tells it; or empty.
    pub credential: String,
    /// The API group; empty for the core group and for paths that are not a resource.
    pub group: String,
    /// The resource in plural; empty for paths that are not a resource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name, or empty.
    pub name: String,
    /// The path and query of the request.
    pub uri: String,
    /// The HTTP status of the answer; 0 when none was sent.
    pub code: u16,
    /// When the request arrived.
    pub received: DateTime<Utc>,
    /// When it was answered (for a watch: when that ended).
    pub completed: DateTime<Utc>,
    /// The client's own description of itself.
    pub user_agent: String,
}

impl AuditEntry {
    /// Whether the request asks for a change.
    pub fn is_write(&self) -> bool {
        let writes =
            matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
        // A dry run asks, and writes nothing.
        writes && !self.uri.contains("dryRun=")
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    #[serde(rename = "requestURI", default)]
    uri: String,
    verb: String,
    #[serde(default)]
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: Option<Reference>,
    #[serde(default)]
    response_status: Option<Status>,
    request_received_timestamp: DateTime<Utc>,
    stage_timestamp: DateTime<Utc>,
}

#[derive(Deserialize, Default)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Reference {
    resource: String,
    namespace: String,
    name: String,
    api_group: String,
    subresource: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

/// Reads the answered requests of an audit log, oldest answer first.
///
/// The server writes the line after it has sent the answer: wait for an entry with `until`.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<AuditEntry>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // No request yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let mut entries = Vec::new();
    // A last line without its end is still being written.
    for (number, line) in text.split_inclusive('\n').filter(|line| line.ends_with('\n')).enumerate() {
        let line: Line = serde_json::from_str(line)
            .with_context(|| format!("line {} of {}", number + 1, path.display()))?;
        if line.stage == "ResponseComplete" {
            entries.push(entry(line));
        }
    }
    Ok(entries)
}

fn entry(line: Line) -> AuditEntry {
    let object = line.object_ref.unwrap_or_default();
    let credential = line.user.extra.get(CREDENTIAL).and_then(|ids| ids.first().cloned()).unwrap_or_default();
    AuditEntry {
        verb: line.verb,
        user: line.user.username,
        credential,
        group: object.api_group,
        resource: object.resource,
        subresource: object.subresource,
        namespace: object.namespace,
        name: object.name,
        uri: line.uri,
        code: line.response_status.map_or(0, |status| status.code),
        received: line.request_received_timestamp,
        completed: line.stage_timestamp,
        user_agent: line.user_agent,
    }
}
