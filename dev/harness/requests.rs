// SPDX-License-Identifier: Apache-2.0
//! What an audit log tells of a fleet's requests: what is written at rest, what is listed, how fast one unit is told of.
//!
//! Pure functions.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::audit::AuditEntry;
use super::fleet::Registration;

/// Writes since `since` by `user` that a cluster at rest does not need: Leases and the cluster's sign of life are all it
/// needs.
pub fn beyond_rest<'a>(entries: &'a [AuditEntry], user: &str, since: DateTime<Utc>) -> Vec<&'a AuditEntry> {
    let needless = |entry: &&AuditEntry| {
        let lease = entry.resource == "leases";
        let check_in = entry.resource == "clusters" && entry.subresource == "status";
        entry.is_write() && entry.user == user && entry.received >= since && !lease && !check_in
    };
    entries.iter().filter(needless).collect()
}

/// What was listed with a token, and how often. The pages of one list count once.
pub fn lists(entries: &[AuditEntry], credential: &str) -> BTreeMap<String, usize> {
    let mut lists = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.verb == "list" && entry.credential == credential) {
        let (path, query) = entry.uri.split_once('?').unwrap_or((&entry.uri, ""));
        let mut selected = String::new();
        let mut continues = false;
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "labelSelector" | "fieldSelector" => selected += &format!("?{key}={value}"),
                "continue" => continues = true,
                _ => {}
            }
        }
        if !continues {
            *lists.entry(format!("{path}{selected}")).or_default() += 1;
        }
    }
    lists
}

/// How often the BundleDeployments were listed since `since` by the agent upstream, where all replicas share a token: each is
/// ready only after a list of its own. A look at one object (for the newest version, or whether the credentials are
/// any good) lists nothing.
pub fn whole_lists(entries: &[AuditEntry], registration: &Registration, since: DateTime<Utc>) -> usize {
    let first_pages = entries.iter().filter(|entry| {
        entry.verb == "list"
            && entry.resource == "bundledeployments"
            && entry.user == registration.upstream_user
            && entry.received >= since
            && !entry.uri.ends_with("limit=1")
            && !entry.uri.contains("continue=")
    });
    first_pages.count()
}

/// How many requests there were with a token, by verb and resource.
pub fn by_verb(entries: &[AuditEntry], credential: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.credential == credential) {
        *counts.entry(format!("{} {}", entry.verb, entry.resource)).or_default() += 1;
    }
    counts
}

/// The status writes of `user` that were carried out since `since`: for each unit when they were received, in order.
pub fn status_writes(
    entries: &[AuditEntry],
    user: &str,
    since: DateTime<Utc>,
) -> BTreeMap<String, Vec<DateTime<Utc>>> {
    let mut writes: BTreeMap<String, Vec<DateTime<Utc>>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.is_write() && entry.user == user && entry.code < 300) {
        if entry.resource == "bundledeployments" && entry.received >= since {
            writes.entry(entry.name.clone()).or_default().push(entry.received);
        }
    }
    writes.values_mut().for_each(|times| times.sort());
    writes
}

/// The shortest time between two writes in a row to the same unit.
pub fn closest(writes: &BTreeMap<String, Vec<DateTime<Utc>>>) -> Option<TimeDelta> {
    writes.values().flat_map(|times| times.windows(2)).map(|pair| pair[1] - pair[0]).min()
}

/// The most writes to one unit in any window of a second.
pub fn most_in_a_second(writes: &BTreeMap<String, Vec<DateTime<Utc>>>) -> usize {
    let within = |times: &[DateTime<Utc>], first: usize| {
        times[first..].iter().take_while(|time| **time - times[first] < TimeDelta::seconds(1)).count()
    };
    writes
        .values()
        .flat_map(|times| (0..times.len()).map(move |first| within(times, first)))
        .max()
        .unwrap_or_default()
}
