// SPDX-License-Identifier: Apache-2.0
//! What is seen downstream of release records and of stamped ConfigMaps, from beginning to end.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use flotilla::api::keys;
use flotilla::protocol::Stamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;

use super::follow::Memory;

/// One revision of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The release's namespace.
    pub namespace: String,
    /// The release's name.
    pub release: String,
    /// The revision.
    pub revision: u32,
    /// The claim that created it, where it says so: the stamp it had when it was first seen. A claim that takes over
    /// stamps the revision it fails.
    pub stamp: Option<Stamp>,
    /// The states it went through, in order: `pending-install`, `deployed`, …
    pub states: Vec<String>,
    /// When it was seen first.
    pub seen: Instant,
}

impl Record {
    /// Whether it was ever the deployed one.
    pub fn was_deployed(&self) -> bool {
        self.states.iter().any(|state| state == "deployed" || state == "superseded")
    }

    /// Whether its deployment has begun and not ended yet.
    pub fn is_pending(&self) -> bool {
        self.states.last().is_some_and(|state| state.starts_with("pending-"))
    }
}

/// The selector of Helm's release records.
const RECORDS: &str = "owner=helm";

/// Name and revision of every release record that a namespace holds now, by a list, in order.
pub async fn standing(downstream: &Client, namespace: &str) -> anyhow::Result<Vec<(String, u32)>> {
    let secrets: Api<Secret> = Api::namespaced(downstream.clone(), namespace);
    let list = secrets.list_metadata(&ListParams::default().labels(RECORDS)).await?;
    let label = |secret: &PartialObjectMeta<Secret>, key: &str| secret.labels().get(key).cloned();
    let mut records = Vec::new();
    for secret in &list.items {
        let revision = label(secret, "version").and_then(|text| text.parse().ok());
        let name = label(secret, "name").zip(revision);
        records.push(name.with_context(|| format!("{} has no labels of a record", secret.name_any()))?);
    }
    records.sort();
    Ok(records)
}

/// The names of the releases that a namespace holds now, each once, in order.
pub async fn releases(downstream: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    let mut names: Vec<String> =
        standing(downstream, namespace).await?.into_iter().map(|(name, _)| name).collect();
    names.dedup();
    Ok(names)
}

type Table = BTreeMap<(String, String, u32), Record>;

/// All release records of a cluster, deleted ones included.
pub struct Records(Memory<Table>);

impl Records {
    /// Starts to watch, and waits for the first complete list.
    pub async fn follow(downstream: Client) -> anyhow::Result<Records> {
        let secrets: Api<PartialObjectMeta<Secret>> = Api::all(downstream);
        let config = watcher::Config::default().labels(RECORDS);
        let events = watcher::watcher(secrets, config);
        let memory = Memory::start(events, |table: &mut Table, event| {
            if let Event::Apply(secret) | Event::InitApply(secret) = event {
                note_record(table, &secret);
            }
        });
        memory.await.map(Records)
    }

    /// Every revision ever seen, by namespace, release and number.
    pub fn all(&self) -> Vec<Record> {
        self.0.look(|table| table.values().cloned().collect())
    }

    /// The revisions of one release.
    pub fn of(&self, namespace: &str, release: &str) -> Vec<Record> {
        let is_its = |record: &&Record| record.namespace == namespace && record.release == release;
        self.0.look(|table| table.values().filter(is_its).cloned().collect())
    }

    /// Waits until a revision fulfils `probe`, and gives it.
    pub async fn until(
        &self,
        what: &str,
        bound: Duration,
        mut probe: impl FnMut(&Record) -> bool,
    ) -> anyhow::Result<Record> {
        self.0.until(what, bound, |table| table.values().find(|record| probe(record)).cloned()).await
    }
}

fn note_record(table: &mut Table, secret: &impl ResourceExt) {
    let label = |key: &str| secret.labels().get(key).cloned().unwrap_or_default();
    let Ok(revision) = label("version").parse() else { return };
    let (namespace, release) = (secret.namespace().unwrap_or_default(), label("name"));
    let record = table.entry((namespace.clone(), release.clone(), revision)).or_insert_with(|| Record {
        namespace,
        release,
        revision,
        stamp: secret.annotations().get(keys::EPOCH_ANNOTATION).and_then(|stamp| Stamp::parse(stamp)),
        states: Vec::new(),
        seen: Instant::now(),
    });
    let state = label("status");
    if record.states.last() != Some(&state) {
        record.states.push(state);
    }
}

/// What one ConfigMap went through.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Its stamps, in order, without repetitions.
    pub stamps: Vec<Stamp>,
    /// The values of its key `version`, or of another that was asked for, in order, without repetitions.
    pub versions: Vec<String>,
    /// Whether it is there now.
    pub present: bool,
}

/// The ConfigMaps of one namespace, deleted ones included.
pub struct Traces(Memory<BTreeMap<String, Trace>>);

impl Traces {
    /// Starts to watch, and waits for the first complete list.
    pub async fn follow(downstream: Client, namespace: &str) -> anyhow::Result<Traces> {
        Traces::follow_key(downstream, namespace, "version").await
    }

    /// The same with the values of another key than `version`.
    pub async fn follow_key(
        downstream: Client,
        namespace: &str,
        key: &'static str,
    ) -> anyhow::Result<Traces> {
        let api: Api<ConfigMap> = Api::namespaced(downstream, namespace);
        let events = watcher::watcher(api, watcher::Config::default());
        let memory = Memory::start(events, move |table, event| match event {
            Event::Apply(map) | Event::InitApply(map) => note_trace(table, &map, key, true),
            Event::Delete(map) => note_trace(table, &map, key, false),
            Event::Init | Event::InitDone => {}
        });
        memory.await.map(Traces)
    }

    /// All ConfigMaps ever seen, by name.
    pub fn all(&self) -> BTreeMap<String, Trace> {
        self.0.look(|table| table.clone())
    }

    /// Waits until `probe` gives a value; it is asked at each change.
    pub async fn until<T>(
        &self,
        what: &str,
        bound: Duration,
        probe: impl FnMut(&BTreeMap<String, Trace>) -> Option<T>,
    ) -> anyhow::Result<T> {
        self.0.until(what, bound, probe).await
    }
}

fn note_trace(table: &mut BTreeMap<String, Trace>, map: &ConfigMap, key: &str, present: bool) {
    let trace = table.entry(map.name_any()).or_default();
    trace.present = present;
    let stamp = map.annotations().get(keys::EPOCH_ANNOTATION).and_then(|text| Stamp::parse(text));
    if let Some(stamp) = stamp.filter(|stamp| trace.stamps.last() != Some(stamp)) {
        trace.stamps.push(stamp);
    }
    let version = map.data.as_ref().and_then(|data| data.get(key));
    if let Some(version) = version.filter(|version| trace.versions.last() != Some(version)) {
        trace.versions.push(version.clone());
    }
}
