// SPDX-License-Identifier: Apache-2.0
//! Release records in their cluster: Secrets named `sh.helm.release.v1.<name>.v<revision>`.
//!
//! Always read live: a lagging cache can make a replica believe that no release exists. Written with POST (create
//! only) and PUT (uid and resourceVersion), since those are the verbs that Helm's own users are granted.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, SecondsFormat, Utc};
use http::Method;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::{Value, json};

use super::{
    ReleaseError,
    codec::{self, CodecError, Release, Status},
};
use crate::{
    api::{ReleaseId, keys},
    downstream::{
        apply::CREATE_ONLY,
        server::{ListOf, RequestError, Server, push_segment},
    },
    protocol::{Nonce, SessionId, Stamp},
};

const TYPE: &str = "helm.sh/release.v1";
const KEY: &str = "release";
/// Labels that Helm writes itself; all others are carried into the next revision.
const OWN_LABELS: [&str; 6] = ["name", "owner", "status", "version", "createdAt", "modifiedAt"];

/// Tells the time of day; for people and Helm, never compared with another machine's.
pub type Clock = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

/// Who removes a release: the session and the nonce of its attempt. Text: `<session>/<nonce>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The replica's run.
    pub session: SessionId,
    /// The removal's own random word.
    pub nonce: Nonce,
}

/// In the place of a session: the removal failed, and nobody is at it.
const NOBODY: &str = "nobody";

impl Guard {
    /// What a removal leaves that failed and has ended.
    pub fn given_up(nonce: Nonce) -> Self {
        Self { session: NOBODY.into(), nonce }
    }

    /// Whether nobody is at it: its place may be taken at once.
    pub fn is_given_up(&self) -> bool {
        self.session.0 == NOBODY
    }

    /// Reads a guard; `None` when the text is not one of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let (session, nonce) = text.split_once('/')?;
        let whole = !session.is_empty() && !nonce.is_empty();
        whole.then(|| Self { session: session.into(), nonce: nonce.into() })
    }
}

impl std::fmt::Display for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.session, self.nonce)
    }
}

/// One revision of a release, as it was read.
#[derive(Debug)]
pub struct Record {
    /// The Secret's metadata, whole, so that writing it back drops nothing.
    meta: ObjectMeta,
    /// The revision, from 1.
    pub revision: u32,
    /// Where it stands: as the payload says, or the label of one that cannot be read.
    pub status: Status,
    /// The release; an error when this record cannot be read (the others may).
    pub release: Result<Release, CodecError>,
}

impl Record {
    pub(super) fn read(secret: Secret) -> Option<Self> {
        let Secret { mut metadata, data, type_, .. } = secret;
        metadata.managed_fields = None;
        let labels = metadata.labels.as_ref();
        if type_.as_deref().is_some_and(|type_| type_ != TYPE) {
            return None;
        }
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        let from_name = || metadata.name.as_deref()?.rsplit_once(".v")?.1.parse().ok();
        let revision = label("version").and_then(|text| text.parse().ok()).or_else(from_name)?;
        let stored = data.as_ref().and_then(|data| data.get(KEY)).map_or(&[][..], |bytes| &bytes.0);
        let release = codec::decode(stored);
        let status = match &release {
            Ok(release) => release.info.status.clone(),
            Err(_) => Status::from(label("status").unwrap_or_default()),
        };
        Some(Self { meta: metadata, revision, status, release })
    }

    /// The record of a release that was just created.
    pub(super) fn created(meta: ObjectMeta, release: Release) -> Self {
        Self { meta, revision: release.version, status: release.info.status.clone(), release: Ok(release) }
    }

    /// The Secret's name.
    pub fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    /// The Secret's namespace.
    pub fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    /// The Secret's uid.
    pub fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    /// The version that was read, or that the last write returned.
    pub fn resource_version(&self) -> &str {
        self.meta.resource_version.as_deref().unwrap_or_default()
    }

    /// The claim under which it was written; `None` for a record of Helm or of Fleet's agent.
    pub fn stamp(&self) -> Option<Stamp> {
        Stamp::parse(self.annotation(keys::EPOCH_ANNOTATION)?)
    }

    /// Who removes the release.
    pub fn guard(&self) -> Option<Guard> {
        Guard::parse(self.annotation(keys::GUARD_ANNOTATION)?)
    }

    /// The digest of the fields that were ours when its objects were applied.
    pub fn fields(&self) -> Option<u64> {
        u64::from_str_radix(self.annotation(keys::FIELDS_ANNOTATION)?, 16).ok()
    }

    /// Notes that digest, for the next write.
    pub(super) fn note_fields(&mut self, digest: u64) {
        let annotations = self.meta.annotations.get_or_insert_default();
        annotations.insert(keys::FIELDS_ANNOTATION.into(), format!("{digest:016x}"));
    }

    /// The bundle the release was made from (the BundleDeployment's name), when the record says so.
    pub fn bundle(&self) -> Option<&str> {
        self.release.as_ref().ok()?.chart_annotation(keys::BUNDLE_ID)
    }

    /// Labels that somebody gave the release, and that Helm carries on.
    pub(super) fn custom_labels(&self) -> BTreeMap<String, String> {
        let labels = self.meta.labels.iter().flatten();
        labels
            .filter(|(key, _)| !OWN_LABELS.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

/// Access to the release records of a cluster.
#[derive(Clone)]
pub struct Store {
    server: Server,
    /// Reads the history; the agent's own.
    reader: Server,
    clock: Clock,
}

impl Store {
    /// A store that dates its writes by `clock`.
    pub fn new(server: Server, clock: Clock) -> Self {
        Self { reader: server.clone(), server, clock }
    }

    /// The same records, written through another identity. They are read as before.
    pub(in crate::downstream) fn written_through(&self, server: Server) -> Self {
        Self { server, ..self.clone() }
    }

    /// Reads, for the rest of this module.
    pub(super) fn reader(&self) -> &Server {
        &self.reader
    }

    /// All revisions of a release, live, newest last. A record that cannot be decoded is an error on that record
    /// alone. One request.
    pub async fn history(&self, namespace: &str, name: &str) -> Result<Vec<Record>, ReleaseError> {
        let mut path = collection(namespace);
        path.push_str("?labelSelector=name%3D");
        push_segment(&mut path, name);
        path.push_str("%2Cowner%3Dhelm");
        let attempt = || format!("{namespace}/{name}");
        let list = self.reader.get::<ListOf<Secret>>(&path).await;
        let list = list.map_err(|source| ReleaseError::Read { release: attempt(), source })?;
        let mut records: Vec<_> = list.items.into_iter().filter_map(Record::read).collect();
        records.sort_by_key(|record| record.revision);
        Ok(records)
    }

    /// One revision; `None` when it is gone. One request, and no more than that record: the server looks through all
    /// Secrets of a namespace for a history, and sends every revision whole.
    pub async fn revision(&self, release: &ReleaseId) -> Result<Option<Record>, ReleaseError> {
        let mut path = collection(&release.namespace);
        path.push('/');
        push_segment(&mut path, &secret_name(&release.name, release.revision));
        match self.reader.get::<Secret>(&path).await {
            Ok(secret) => Ok(Record::read(secret)),
            // Something on the way that answers 404 is no API server: it would say so in its words.
            Err(error) if error.status().is_some_and(|status| status.reason == "NotFound") => Ok(None),
            Err(source) => Err(ReleaseError::Read { release: release.to_string(), source }),
        }
    }

    /// Helm's spelling of now.
    pub(in crate::downstream) fn now(&self) -> String {
        (self.clock)().to_rfc3339_opts(SecondsFormat::Nanos, true)
    }

    fn unix_time(&self) -> String {
        (self.clock)().timestamp().to_string()
    }

    /// Creates a revision; refused when it exists. What comes back makes a [`Record`] of the release.
    pub(super) async fn create(
        &self,
        release: &mut Release,
        labels: &BTreeMap<String, String>,
        stamp: &Stamp,
    ) -> Result<ObjectMeta, ReleaseError> {
        let name = secret_name(&release.name, release.version);
        let payload =
            codec::encode(release).map_err(|source| ReleaseError::Encode { record: name.clone(), source })?;
        let mut labels = labels.clone();
        labels.insert("name".into(), release.name.clone());
        labels.insert("owner".into(), "helm".into());
        labels.insert("status".into(), release.info.status.to_string());
        labels.insert("version".into(), release.version.to_string());
        labels.insert("createdAt".into(), self.unix_time());
        let meta = ObjectMeta {
            name: Some(name),
            namespace: Some(release.namespace.clone()),
            labels: Some(labels),
            annotations: Some([(keys::EPOCH_ANNOTATION.into(), stamp.to_string())].into()),
            ..ObjectMeta::default()
        };
        let path = collection(&release.namespace);
        let stored = self.send(Method::POST, &path, &meta, payload).await;
        stored.map_err(|source| ReleaseError::from_write(&meta, source))
    }

    /// Writes a record back as it stands in memory, if nobody wrote it since it was read. `stamp` and `guard` are
    /// laid over when given.
    pub(in crate::downstream) async fn update(
        &self,
        record: &mut Record,
        stamp: Option<&Stamp>,
        guard: Option<&Guard>,
    ) -> Result<(), ReleaseError> {
        let mut meta = record.meta.clone();
        let release = match &mut record.release {
            Ok(release) => release,
            Err(_) => return Err(ReleaseError::Unreadable { record: meta.name.unwrap_or_default() }),
        };
        let payload = codec::encode(release).map_err(|source| ReleaseError::Encode {
            record: meta.name.clone().unwrap_or_default(),
            source,
        })?;
        let labels = meta.labels.get_or_insert_default();
        labels.remove("createdAt");
        labels.insert("modifiedAt".into(), self.unix_time());
        labels.insert("status".into(), release.info.status.to_string());
        let annotations = meta.annotations.get_or_insert_default();
        if let Some(stamp) = stamp {
            annotations.insert(keys::EPOCH_ANNOTATION.into(), stamp.to_string());
        }
        if let Some(guard) = guard {
            annotations.insert(keys::GUARD_ANNOTATION.into(), guard.to_string());
        }
        let path = path(&meta);
        let stored = self.send(Method::PUT, &path, &meta, payload).await;
        record.meta = stored.map_err(|source| ReleaseError::from_write(&meta, source))?;
        record.status = release.info.status.clone();
        Ok(())
    }

    /// Reads one record again; `None` when it is gone.
    pub(super) async fn reread(&self, record: &Record) -> Result<Option<Record>, ReleaseError> {
        match self.reader.get::<Secret>(&path(&record.meta)).await {
            Ok(secret) => Ok(Record::read(secret)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(ReleaseError::Read { release: record.name().to_owned(), source }),
        }
    }

    /// Deletes a record if nobody wrote it since it was read. A missing one is fine.
    pub(in crate::downstream) async fn delete(&self, record: &Record) -> Result<(), ReleaseError> {
        match self.server.delete(&path(&record.meta), record.uid(), record.resource_version()).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(source) => Err(ReleaseError::from_write(&record.meta, source)),
        }
    }

    /// Creates a namespace with these labels and annotations; one that exists is fine.
    ///
    /// By apply, so that a Namespace object in the bundle, applied by the same manager, can take them off again.
    pub(super) async fn create_namespace(
        &self,
        namespace: &str,
        mut metadata: Value,
    ) -> Result<(), ReleaseError> {
        let mut path = String::from("/api/v1/namespaces/");
        push_segment(&mut path, namespace);
        path.push_str("?fieldManager=");
        path.push_str(keys::FIELD_MANAGER);
        path.push_str("&force=true");
        metadata["name"] = json!(namespace);
        metadata["resourceVersion"] = json!(CREATE_ONLY);
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        let body = serde_json::to_vec(&body).map_err(RequestError::Unwritable);
        let created = match body {
            Ok(body) => self.server.patch::<serde::de::IgnoredAny>(&path, APPLY, body).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match created {
            Ok(()) => Ok(()),
            Err(error) if error.is_conflict() => Ok(()),
            Err(source) => Err(ReleaseError::CreateNamespace { namespace: namespace.to_owned(), source }),
        }
    }

    /// Sends a record; what comes back replaces its metadata.
    ///
    /// A conflict is looked at: where what stands is what was sent, word for word, something on the way repeated the
    /// request, and this is the answer to the second (S9). Stamp, guard and times make it no other replica's.
    async fn send(
        &self,
        method: Method,
        path: &str,
        meta: &ObjectMeta,
        payload: Vec<u8>,
    ) -> Result<ObjectMeta, RequestError> {
        let body = Secret {
            metadata: meta.clone(),
            type_: Some(TYPE.to_owned()),
            data: Some([(KEY.to_owned(), ByteString(payload))].into()),
            ..Secret::default()
        };
        #[derive(serde::Deserialize)]
        struct Stored {
            metadata: ObjectMeta,
        }
        let stored = self.server.write::<Stored>(method, path, &body).await;
        let mut stored = match stored {
            Ok(stored) => stored.metadata,
            Err(error) if error.is_conflict() => {
                self.carried_out(&body).await.ok_or_else(|| error.without_values())?
            }
            Err(error) => return Err(error.without_values()),
        };
        stored.managed_fields = None;
        Ok(stored)
    }

    /// The metadata of what stands, if it is what was sent; more of it than that was added by the server.
    async fn carried_out(&self, sent: &Secret) -> Option<ObjectMeta> {
        let found = self.reader.get::<Secret>(&path(&sent.metadata)).await.ok()?;
        let whole = |sent: &Option<BTreeMap<String, String>>, found: &Option<BTreeMap<String, String>>| {
            sent.iter()
                .flatten()
                .all(|(key, value)| found.as_ref().and_then(|map| map.get(key)) == Some(value))
        };
        let (meta, stands) = (&sent.metadata, &found.metadata);
        let same = found.data == sent.data
            && whole(&meta.labels, &stands.labels)
            && whole(&meta.annotations, &stands.annotations)
            && (meta.uid.is_none() || meta.uid == stands.uid);
        same.then_some(found.metadata)
    }
}

/// Content type of a server-side apply whose body is JSON (a subset of YAML).
pub(in crate::downstream) const APPLY: &str = "application/apply-patch+yaml";

pub(super) fn secret_name(release: &str, revision: u32) -> String {
    format!("sh.helm.release.v1.{release}.v{revision}")
}

pub(super) fn collection(namespace: &str) -> String {
    let mut path = String::from("/api/v1/namespaces/");
    push_segment(&mut path, namespace);
    path.push_str("/secrets");
    path
}

fn path(meta: &ObjectMeta) -> String {
    let mut path = collection(meta.namespace.as_deref().unwrap_or_default());
    path.push('/');
    push_segment(&mut path, meta.name.as_deref().unwrap_or_default());
    path
}
