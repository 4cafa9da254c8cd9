// SPDX-License-Identifier: Apache-2.0
//! What is kept of a live object: some short texts and how ready it is.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use serde_json::Value;

use super::{
    Judge,
    owners::{Entry, Owners},
    subject::{Rancher, Subject},
    summary,
};
use crate::{
    api::{IgnoreOptions, Summary, keys},
    protocol::{Epoch, Stamp},
};

/// Annotation with further conditions of an object, as JSON.
const STATUS_ANNOTATION: &str = "cattle.io/status";

/// Names an object. The namespace of a cluster-scoped one is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub struct Key {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// An object that a release wants, with its namespace filled in.
pub type Desired = Key;

impl Key {
    /// A key of these texts.
    pub fn new(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        Self {
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.rsplit_once('/').map_or("", |(group, _)| group)
    }
}

impl fmt::Display for Key {
    /// As in Fleet's texts: `deployment.apps ns/web`, with the version in place of the core group's empty name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::evaluate::reference(&self.api_version, &self.kind, &self.namespace, &self.name))
    }
}

/// A live object, reduced to what deploying and monitoring need of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Which object.
    pub key: Arc<Key>,
    /// Its uid.
    pub uid: String,
    /// The resourceVersion this was read at.
    pub version: Epoch,
    /// Rises with the spec, for kinds that count.
    pub generation: Option<i64>,
    /// creationTimestamp, RFC 3339.
    pub created_at: Option<String>,
    /// Which unit's it is: the hash label.
    pub hash: Option<Arc<str>>,
    /// The claim that wrote it last.
    pub stamp: Option<Stamp>,
    /// Who owns its fields: whether somebody took one of ours, and whether others wrote it.
    pub owners: Owners,
    /// A Job that has ended, well or not: one with a time to live goes by itself then.
    pub finished: bool,
    /// Never to be reported as extra: exempt from pruning, or given up on purpose by Helm's keep policy.
    pub kept: bool,
    /// Has a deletionTimestamp.
    pub deleting: bool,
    /// How ready it was at the time it was observed. All ready ones share one: its texts are written nowhere.
    pub summary: Arc<Summary>,
    /// How ready it is from a later moment on, if nobody changes it.
    later: Option<Box<(DateTime<Utc>, Arc<Summary>)>>,
}

static READY: LazyLock<Arc<Summary>> =
    LazyLock::new(|| Arc::new(Summary { state: "active".into(), ..Summary::default() }));

impl Observed {
    /// How ready it is now.
    pub fn summary_at(&self, now: DateTime<Utc>) -> &Summary {
        match &self.later {
            Some(later) if later.0 <= now => &later.1,
            _ => &self.summary,
        }
    }

    /// When an unchanged object will be judged differently, if that is after `now`.
    pub fn changes_at(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.later.as_ref().map(|later| later.0).filter(|&moment| moment > now)
    }

    /// Whether nothing but the resourceVersion differs, so that nobody needs to look again.
    pub fn tells_the_same_as(&self, other: &Self) -> bool {
        // Every field named, so that a new one is not forgotten here.
        let Self {
            key,
            uid,
            version: _,
            generation,
            created_at,
            hash,
            stamp,
            owners,
            finished,
            kept,
            deleting,
            summary,
            later,
        } = self;
        (key, uid, generation, created_at, hash, stamp)
            == (&other.key, &other.uid, &other.generation, &other.created_at, &other.hash, &other.stamp)
            && (owners, finished, kept, deleting, summary, later)
                == (
                    &other.owners,
                    &other.finished,
                    &other.kept,
                    &other.deleting,
                    &other.summary,
                    &other.later,
                )
    }
}

/// Reduces a full live object.
pub fn observe(object: &Value, judge: &Judge<'_>) -> Observed {
    Header::from(object).observed(&subject_of(object, judge.ignore), judge)
}

/// Who owns the fields of a full live object.
pub fn owners_of(object: &Value) -> Owners {
    Header::from(object).owners
}

/// A full live object as the readiness rules see it.
pub(super) fn subject_of<'a>(object: &'a Value, ignore: &IgnoreOptions) -> Subject<'a> {
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    let metadata = &object["metadata"];
    let finalizer = first(&metadata["finalizers"]).or_else(|| first(&object["spec"]["finalizers"]));
    let rancher = Rancher {
        created: text(&metadata["created"]),
        removed: text(&metadata["removed"]),
        finalizer: finalizer.unwrap_or_default(),
    };
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    Header::from(object).subject(api_version, kind, rancher, object, ignore)
}

/// Reduces a full live object that was read typed. Kind and version are given, since objects in lists lack them.
pub fn observe_dynamic(api_version: &str, kind: &str, object: &DynamicObject, judge: &Judge<'_>) -> Observed {
    let header = Header::from(&object.metadata);
    let subject = header.subject(api_version, kind, Rancher::default(), &object.data, judge.ignore);
    header.observed(&subject, judge)
}

/// Reduces an object of which only the metadata was read; right for kinds that are [ready by existing].
///
/// [ready by existing]: is_ready_by_existing
pub fn observe_metadata(api_version: &str, kind: &str, metadata: &ObjectMeta, judge: &Judge<'_>) -> Observed {
    let header = Header::from(metadata);
    let subject = header.subject(api_version, kind, Rancher::default(), &Value::Null, judge.ignore);
    header.observed(&subject, judge)
}

/// Whether an object of that kind is ready as soon as it exists, so that its metadata suffices.
///
/// Only built-in kinds without conditions, phase or observedGeneration that the readiness rules would look at.
pub fn is_ready_by_existing(api_version: &str, kind: &str) -> bool {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    match group {
        "" => matches!(
            kind,
            "ConfigMap"
                | "Secret"
                | "ServiceAccount"
                | "Namespace"
                | "Endpoints"
                | "LimitRange"
                | "ResourceQuota"
                | "PodTemplate"
                | "PersistentVolume"
        ),
        "rbac.authorization.k8s.io" => {
            matches!(kind, "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding")
        }
        "networking.k8s.io" => matches!(kind, "Ingress" | "IngressClass" | "NetworkPolicy"),
        "batch" => kind == "CronJob",
        "apps" => kind == "ControllerRevision",
        "scheduling.k8s.io" => kind == "PriorityClass",
        "node.k8s.io" => kind == "RuntimeClass",
        "coordination.k8s.io" => kind == "Lease",
        "discovery.k8s.io" => kind == "EndpointSlice",
        "storage.k8s.io" => matches!(kind, "StorageClass" | "CSIDriver" | "CSINode"),
        "admissionregistration.k8s.io" => matches!(
            kind,
            "MutatingWebhookConfiguration"
                | "ValidatingWebhookConfiguration"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
                | "ValidatingAdmissionPolicyBinding"
        ),
        _ => false,
    }
}

/// The metadata of interest, from JSON or typed.
#[derive(Debug, Default)]
struct Header<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    version: &'a str,
    generation: Option<i64>,
    created_at: Option<String>,
    deleting: bool,
    hash: Option<&'a str>,
    stamp: Option<&'a str>,
    status: Option<&'a str>,
    prune: &'a str,
    policy: &'a str,
    owners: Owners,
}

impl<'a> From<&'a Value> for Header<'a> {
    fn from(object: &'a Value) -> Self {
        let metadata = &object["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default();
        let label = |key: &str| metadata["labels"][key].as_str();
        let annotation = |key: &str| metadata["annotations"][key].as_str();
        let entries = metadata["managedFields"].as_array().into_iter().flatten().map(Entry::json);
        let marks = [&metadata["labels"], &metadata["annotations"]];
        let marks = marks.into_iter().filter_map(Value::as_object).flatten();
        let marks = marks.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
        let (generation, version) = (metadata["generation"].as_i64(), text("resourceVersion"));
        Self {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            version,
            generation,
            created_at: metadata["creationTimestamp"].as_str().map(str::to_owned),
            deleting: !text("deletionTimestamp").is_empty(),
            hash: label(keys::HASH_LABEL),
            stamp: annotation(keys::EPOCH_ANNOTATION),
            status: annotation(STATUS_ANNOTATION),
            prune: label(keys::PRUNE_LABEL).unwrap_or_default(),
            policy: annotation(keys::RESOURCE_POLICY).unwrap_or_default(),
            owners: Owners::of(entries, marks, generation, version),
        }
    }
}

impl<'a> From<&'a ObjectMeta> for Header<'a> {
    fn from(metadata: &'a ObjectMeta) -> Self {
        let label = |key: &str| metadata.labels.as_ref().and_then(|map| map.get(key)).map(String::as_str);
        let annotation =
            |key: &str| metadata.annotations.as_ref().and_then(|map| map.get(key)).map(String::as_str);
        let entries = metadata.managed_fields.iter().flatten().map(Entry::typed);
        let marks = metadata.labels.iter().chain(&metadata.annotations).flatten();
        let marks = marks.map(|(key, value)| (key.as_str(), value.as_str()));
        let version = metadata.resource_version.as_deref().unwrap_or_default();
        Self {
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            name: metadata.name.as_deref().unwrap_or_default(),
            uid: metadata.uid.as_deref().unwrap_or_default(),
            version,
            generation: metadata.generation,
            created_at: metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()),
            deleting: metadata.deletion_timestamp.is_some(),
            hash: label(keys::HASH_LABEL),
            stamp: annotation(keys::EPOCH_ANNOTATION),
            status: annotation(STATUS_ANNOTATION),
            prune: label(keys::PRUNE_LABEL).unwrap_or_default(),
            policy: annotation(keys::RESOURCE_POLICY).unwrap_or_default(),
            owners: Owners::of(entries, marks, metadata.generation, version),
        }
    }
}

impl Header<'_> {
    fn subject<'a>(
        &self,
        api_version: &'a str,
        kind: &'a str,
        rancher: Rancher<'a>,
        body: &'a Value,
        ignore: &IgnoreOptions,
    ) -> Subject<'a> {
        let created_at = self.created_at.as_deref().and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        let mut subject = Subject {
            api_version,
            kind,
            generation: self.generation,
            created_at: created_at.map(|time| time.to_utc()),
            deleting: self.deleting,
            rancher,
            conditions: Vec::new(),
            own_conditions: 0,
            has_conditions: false,
            malformed: false,
            body,
        };
        subject.read_conditions(self.status, ignore);
        subject
    }

    fn observed(self, subject: &Subject<'_>, judge: &Judge<'_>) -> Observed {
        let later = summary::next_change(subject, judge.now).map(|moment| {
            let then = shared(summary::summarize(subject, judge.errors, moment));
            Box::new((moment, then))
        });
        Observed {
            key: Arc::new(Key::new(subject.api_version, subject.kind, self.namespace, self.name)),
            uid: self.uid.to_owned(),
            version: self.version.into(),
            generation: self.generation,
            created_at: self.created_at,
            hash: self.hash.map(Arc::from),
            stamp: self.stamp.and_then(Stamp::parse),
            owners: self.owners,
            finished: is_finished(subject),
            kept: self.prune == "false" || self.policy.trim().eq_ignore_ascii_case("keep"),
            deleting: self.deleting,
            summary: shared(summary::summarize(subject, judge.errors, judge.now)),
            later,
        }
    }
}

fn shared(summary: Summary) -> Arc<Summary> {
    if summary.is_ready() { Arc::clone(&READY) } else { Arc::new(summary) }
}

fn first(list: &Value) -> Option<&str> {
    list.get(0).and_then(Value::as_str)
}

/// Whether it is a Job that has ended.
fn is_finished(subject: &Subject<'_>) -> bool {
    subject.kind == "Job"
        && subject.api_version.starts_with("batch/")
        && subject
            .conditions
            .iter()
            .any(|condition| condition.is("Complete", "True") || condition.is("Failed", "True"))
}

#[cfg(test)]
#[path = "observed/tests.rs"]
mod tests;
