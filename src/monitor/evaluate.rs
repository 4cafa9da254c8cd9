// SPDX-License-Identifier: Apache-2.0
//! A release judged as a whole: lists, counts and the text of the Ready condition.

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use chrono::{DateTime, Utc};

use super::{Key, Observed};
use crate::api::{
    BundleDeploymentResource, BundleDeploymentStatus, ModifiedStatus, NonReadyStatus, ResourceCounts, Summary,
};

/// Entries kept of each list in the status; Fleet's figure.
pub const LIST_LIMIT: usize = 10;

/// What is known of one desired object.
#[derive(Clone, Debug)]
pub enum Live {
    /// It is there and carries our hash label.
    Ours(Arc<Observed>),
    /// The same, and it differs from what is wanted: with the patch that would restore it.
    Modified(Arc<Observed>, Arc<str>),
    /// It is there, but without our hash label.
    NotOurs,
    /// It is not there.
    Missing,
    /// It is not there and need not be: it has done its work, or the user overlooks it.
    Gone,
}

/// A release as it stands in the cluster, in the form the status wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Every live object is ready (missing ones do not count here).
    pub ready: bool,
    /// Nothing is missing, extra or changed.
    pub non_modified: bool,
    /// By uid, at most [`LIST_LIMIT`].
    pub non_ready: Vec<NonReadyStatus>,
    /// By version, kind, namespace and name, at most [`LIST_LIMIT`].
    pub modified: Vec<ModifiedStatus>,
    /// A list above was cut.
    pub incomplete: bool,
    /// Live objects, kind by kind in the order of the release.
    pub resources: Vec<BundleDeploymentResource>,
    /// Counts over everything, also what the lists no longer show.
    pub counts: ResourceCounts,
    /// Text of a false Ready condition; `None` when it is true.
    pub message: Option<String>,
    /// When the same objects will be judged differently by the mere passing of time.
    pub changes_at: Option<DateTime<Utc>>,
}

/// Judges a release.
///
/// `desired` are its objects with their namespaces filled in, `live` tells what is known of each, and `extra` are
/// the objects to report as no longer wanted (see [`extras`]).
pub fn evaluate(
    desired: &[Key],
    live: &dyn Fn(&Key) -> Live,
    extra: &[Arc<Observed>],
    now: DateTime<Utc>,
) -> Evaluation {
    let mut result = Evaluation::default();
    // What is neither modified nor not ready is ready; an object that is both counts as modified only.
    let (mut late, mut changed) = (0, 0);
    for key in plan(desired) {
        let live = live(key);
        match live {
            Live::Ours(ref object) | Live::Modified(ref object, _) => {
                result.resources.push(resource(object));
                result.changes_at = [result.changes_at, object.changes_at(now)].into_iter().flatten().min();
                let summary = object.summary_at(now);
                if !summary.is_ready() {
                    late += u32::from(matches!(live, Live::Ours(_)));
                    result.non_ready.push(non_ready(object, summary));
                }
                if let Live::Modified(_, patch) = &live {
                    changed += 1;
                    result.modified.push(ModifiedStatus { patch: patch.to_string(), ..modified(key) });
                }
            }
            Live::NotOurs => {
                result.modified.push(ModifiedStatus { missing: true, exist: true, ..modified(key) })
            }
            Live::Missing => result.modified.push(ModifiedStatus { missing: true, ..modified(key) }),
            Live::Gone => {}
        }
    }
    let missing = result.modified.len() - changed;
    result
        .modified
        .extend(extra.iter().map(|object| ModifiedStatus { delete: true, ..modified(&object.key) }));
    let number = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
    result.counts = ResourceCounts {
        desired_ready: number(result.resources.len() + missing),
        missing: number(missing),
        orphaned: number(extra.len()),
        modified: number(changed),
        not_ready: i64::from(late),
        ready: number(result.resources.len() - changed) - i64::from(late),
        ..ResourceCounts::default()
    };
    result.ready = result.non_ready.is_empty();
    result.non_modified = result.modified.is_empty();
    result.non_ready.sort_by(|one, other| one.uid.cmp(&other.uid));
    result
        .modified
        .sort_by_cached_key(|one| [one.api_version.as_str(), &one.kind, &one.namespace, &one.name].join("/"));
    result.message = result.text();
    result.incomplete = result.non_ready.len().max(result.modified.len()) > LIST_LIMIT;
    result.non_ready.truncate(LIST_LIMIT);
    result.modified.truncate(LIST_LIMIT);
    result
}

/// Which of the live objects with our hash label are to be reported as extra.
///
/// Not the desired ones, not those of the same group, kind and name desired under another version, not those kept
/// on purpose. Only what the `previous` revision contained: anyone may copy a label.
pub fn extras(labelled: &[Arc<Observed>], desired: &[Key], previous: &[Key]) -> Vec<Arc<Observed>> {
    fn place(key: &Key) -> (&str, &str, &str, &str) {
        (key.group(), &key.kind, &key.namespace, &key.name)
    }
    let wanted: HashSet<_> = desired.iter().map(place).collect();
    let before: HashSet<_> = previous.iter().map(|key| (&*key.kind, &*key.name)).collect();
    let is_extra = |object: &&Arc<Observed>| {
        let key = &object.key;
        !object.kept && !wanted.contains(&place(key)) && before.contains(&(&*key.kind, &*key.name))
    };
    labelled.iter().filter(is_extra).cloned().collect()
}

impl Evaluation {
    /// Writes lists, counts and flags into a status; conditions are the caller's.
    pub fn write(self, status: &mut BundleDeploymentStatus, sync_generation: Option<i64>) {
        status.ready = self.ready;
        status.non_modified = self.non_modified;
        status.non_ready_status = self.non_ready;
        status.modified_status = self.modified;
        status.incomplete_state = self.incomplete;
        status.resources = self.resources;
        // Fleet's agent leaves the counts of an empty release away; writing them would only cost a write.
        if status.resource_counts.is_some() || self.counts != ResourceCounts::default() {
            status.resource_counts = Some(self.counts);
        }
        status.sync_generation = sync_generation;
    }

    fn text(&self) -> Option<String> {
        if let Some(entry) = self.non_ready.first() {
            let object = reference(&entry.api_version, &entry.kind, &entry.namespace, &entry.name);
            return Some(format!("{object} {}", detail(&entry.summary)));
        }
        let entry = self.modified.first()?;
        let object = reference(&entry.api_version, &entry.kind, &entry.namespace, &entry.name);
        let detail = match entry {
            ModifiedStatus { missing: true, exist: true, .. } => "is not owned by us".to_owned(),
            ModifiedStatus { missing: true, .. } => "missing".to_owned(),
            ModifiedStatus { delete: true, .. } => "extra".to_owned(),
            ModifiedStatus { patch, .. } => format!("modified {patch}"),
        };
        Some(format!("{object} {detail}"))
    }
}

/// `<kind>.<group> [<namespace>/]<name>`; for the core group the version stands in for the group's empty name.
pub(super) fn reference(api_version: &str, kind: &str, namespace: &str, name: &str) -> String {
    let group = api_version.split('/').next().unwrap_or_default();
    let dot = if group.is_empty() { "" } else { "." };
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{}{dot}{group} {namespace}{slash}{name}", kind.to_lowercase())
}

fn detail(summary: &Summary) -> String {
    let mark = match (summary.transitioning, summary.error) {
        (true, false) => "[progressing]",
        (true, true) => "[progressing,error]",
        // Without its opening bracket, as Fleet's agent writes it: people and tools compare the text.
        (false, true) => "error]",
        (false, false) => return "not ready".into(),
    };
    if summary.message.is_empty() { mark.into() } else { format!("{mark} {}", summary.message.join(", ")) }
}

/// The desired keys, each once: kinds in the order of their first appearance, objects of a kind by name.
fn plan(desired: &[Key]) -> Vec<&Key> {
    let mut kinds: HashMap<(&str, &str), usize> = HashMap::new();
    let mut keys: Vec<(usize, &Key)> = Vec::with_capacity(desired.len());
    for key in desired {
        let next = kinds.len();
        keys.push((*kinds.entry((&key.api_version, &key.kind)).or_insert(next), key));
    }
    keys.sort_by(|(one_kind, one), (other_kind, other)| {
        one_kind.cmp(other_kind).then_with(|| by_path(one, other))
    });
    keys.dedup();
    keys.into_iter().map(|(_, key)| key).collect()
}

/// Order of the texts `namespace/name`.
fn by_path(one: &Key, other: &Key) -> Ordering {
    let path = |key: &'_ Key| -> Vec<u8> { [key.namespace.as_bytes(), b"/", key.name.as_bytes()].concat() };
    if one.namespace == other.namespace { one.name.cmp(&other.name) } else { path(one).cmp(&path(other)) }
}

fn resource(object: &Observed) -> BundleDeploymentResource {
    BundleDeploymentResource {
        kind: object.key.kind.to_string(),
        api_version: object.key.api_version.to_string(),
        namespace: object.key.namespace.to_string(),
        name: object.key.name.to_string(),
        created_at: object.created_at.clone(),
    }
}

fn non_ready(object: &Observed, summary: &Summary) -> NonReadyStatus {
    NonReadyStatus {
        uid: object.uid.clone(),
        kind: object.key.kind.to_string(),
        api_version: object.key.api_version.to_string(),
        namespace: object.key.namespace.to_string(),
        name: object.key.name.to_string(),
        summary: summary.clone(),
    }
}

fn modified(key: &Key) -> ModifiedStatus {
    ModifiedStatus {
        kind: key.kind.to_string(),
        api_version: key.api_version.to_string(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        ..ModifiedStatus::default()
    }
}

#[cfg(test)]
#[path = "evaluate/tests.rs"]
mod tests;
