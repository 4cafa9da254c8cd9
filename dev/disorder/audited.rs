// SPDX-License-Identifier: Apache-2.0
//! The second witness: what an API server's audit log says was asked and answered, against what its store has.
//!
//! Each log has every write with its answer. A version in the store must be the answer to a request, and what was answered
//! must be in the store. Only a request whose outcome the log does not tell (the server was killed, or gave up on its
//! store) may have left a version without an answer: such a one is taken from the store, and counted. Pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

use super::etcd::Version;
use super::witness::Evidence;

/// Every write to what the judge looks at, with its answer, and every arrival; nothing else.
pub const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [ResponseStarted]
omitManagedFields: true
rules:
- level: RequestResponse
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - {group: "", resources: [configmaps, secrets]}
  - {group: apps, resources: [deployments, deployments/status]}
  - {group: fleet.cattle.io, resources: [bundledeployments, bundledeployments/status]}
- level: None
"#;

/// A write that the log tells.
#[derive(Debug)]
struct Write {
    key: String,
    /// The object as it was answered; none for deletions, and where the client wanted less.
    object: Option<Value>,
}

/// What one log tells.
#[derive(Debug, Default)]
pub struct Log {
    /// Writes that made or changed an object, by its version.
    written: BTreeMap<u64, Write>,
    /// Deletions that were carried out, by object.
    deleted: BTreeMap<String, usize>,
    /// Requests without a clear outcome: by object, or by its collection where they do not name it.
    unclear: BTreeMap<String, usize>,
    /// Writes refused for their precondition.
    pub refused: usize,
    /// Requests without a clear outcome.
    pub unanswered: usize,
}

/// How two witnesses of one server compare.
#[derive(Debug, Default)]
pub struct Compared {
    /// The history as the log tells it.
    pub versions: Vec<Version>,
    /// Versions that only requests without a clear outcome account for.
    pub unanswered: usize,
    /// What one of them tells and the other does not. There must be none.
    pub disagreements: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(rename = "auditID")]
    id: String,
    stage: String,
    verb: String,
    #[serde(rename = "requestURI", default)]
    uri: String,
    #[serde(default)]
    object_ref: Reference,
    #[serde(default)]
    response_status: Option<Status>,
    #[serde(default)]
    response_object: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Reference {
    resource: String,
    namespace: String,
    name: String,
    api_group: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl Reference {
    /// The store's path of the collection.
    fn collection(&self) -> String {
        match self.api_group.as_str() {
            "" | "apps" => format!("{}/{}/", self.resource, self.namespace),
            group => format!("{group}/{}/{}/", self.resource, self.namespace),
        }
    }
}

impl Log {
    /// Reads a log. `wanted` chooses by the store's paths.
    pub fn read(lines: impl BufRead, wanted: impl Fn(&str) -> bool) -> anyhow::Result<Log> {
        let mut log = Log::default();
        let mut under_way: BTreeMap<String, String> = BTreeMap::new();
        for (number, line) in lines.lines().enumerate() {
            let line: Line = serde_json::from_str(&line?)
                .with_context(|| format!("line {} of an audit log", number + 1))?;
            if line.uri.contains("dryRun=") {
                continue; // it asks, and writes nothing
            }
            let collection = line.object_ref.collection();
            let mut key = format!("{collection}{}", line.object_ref.name);
            if line.stage == "RequestReceived" {
                under_way.insert(line.id, key);
                continue;
            }
            under_way.remove(&line.id);
            let object = line.response_object;
            if let Some(name) = object.as_ref().and_then(|object| object["metadata"]["name"].as_str()) {
                key = format!("{collection}{name}");
            }
            match line.response_status.map_or(0, |status| status.code) {
                200..300 if !wanted(&key) => {}
                200..300 if line.verb == "delete" => *log.deleted.entry(key).or_default() += 1,
                200..300 => {
                    let object = object.context("a write was answered without an object")?;
                    let version = object["metadata"]["resourceVersion"].as_str();
                    let version =
                        version.and_then(|text| text.parse().ok()).context("an answer's version")?;
                    let whole = object["kind"] != "PartialObjectMetadata";
                    // A write that changes nothing is answered with the version that stands.
                    let known = log.written.entry(version).or_insert(Write { key, object: None });
                    if whole {
                        known.object = Some(trimmed(object));
                    }
                }
                409 => log.refused += 1,
                // The server's own word: it was not carried out.
                400..=498 => {}
                _ => *log.unclear.entry(key).or_default() += 1,
            }
        }
        for key in under_way.into_values() {
            *log.unclear.entry(key).or_default() += 1;
        }
        log.unanswered = log.unclear.values().sum();
        Ok(log)
    }

    /// Compares with the whole history of the store: every version of what is `wanted`, in order.
    pub fn compare(mut self, history: Vec<Version>) -> Compared {
        let mut compared = Compared::default();
        for version in history {
            let Version { revision, key, object } = version;
            let told = match object {
                Some(_) => self.written.remove(&revision),
                None => self.take_deletion(&key).then(|| Write { key: key.clone(), object: None }),
            };
            let object = match told {
                Some(write) if write.key != key => {
                    let text =
                        format!("version {revision} is {key} in the store, and {} in the log", write.key);
                    compared.disagreements.push(text);
                    object
                }
                Some(write) => write.object.or(object),
                None => {
                    if self.excuse(&key) {
                        compared.unanswered += 1;
                    } else {
                        let text =
                            format!("version {revision} of {key} is in the store, and nobody asked for it");
                        compared.disagreements.push(text);
                    }
                    object
                }
            };
            compared.versions.push(Version { revision, key, object });
        }
        for (revision, write) in self.written {
            let text = format!("version {revision} of {} was answered, and is not in the store", write.key);
            compared.disagreements.push(text);
        }
        for (key, count) in self.deleted.into_iter().filter(|(_, count)| *count > 0) {
            let text = format!("{key} was deleted {count} times more than it went");
            compared.disagreements.push(text);
        }
        compared
    }

    fn take_deletion(&mut self, key: &str) -> bool {
        take_one(&mut self.deleted, key)
    }

    fn excuse(&mut self, key: &str) -> bool {
        let collection = key.rsplit_once('/').map(|(collection, _)| format!("{collection}/"));
        take_one(&mut self.unclear, key)
            || collection.is_some_and(|collection| take_one(&mut self.unclear, &collection))
    }
}

fn take_one(counts: &mut BTreeMap<String, usize>, key: &str) -> bool {
    match counts.get_mut(key) {
        Some(count @ 1..) => {
            *count -= 1;
            true
        }
        _ => false,
    }
}

/// Without what nobody judges and much of the memory is for.
fn trimmed(mut object: Value) -> Value {
    if object["type"] == "helm.sh/release.v1"
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("data");
    }
    object
}

/// What the two accounts say differently of claims, release records and objects.
pub fn differences(store: &Evidence, log: &Evidence) -> Vec<String> {
    let claims = |evidence: &Evidence| -> BTreeSet<String> {
        let claims = evidence.units.claims().iter();
        claims
            .map(|claim| {
                format!(
                    "claim {} {} of {} by {} on {}: {:?}",
                    claim.epoch, claim.nonce, claim.unit, claim.session, claim.deployment, claim.end
                )
            })
            .collect()
    };
    let records = |evidence: &Evidence| -> BTreeSet<String> {
        let records = evidence.records.iter().map(|kept| (&kept.record, kept.present));
        records
            .map(|(record, present)| {
                format!(
                    "record {}/{}:{} {:?} {:?} present={present}",
                    record.namespace, record.release, record.revision, record.stamp, record.states
                )
            })
            .collect()
    };
    let sights = |evidence: &Evidence| -> BTreeSet<String> {
        let sights = evidence.sights.iter();
        sights.map(|sight| format!("object {} {} {:?}", sight.revision, sight.key, sight.state)).collect()
    };
    let mut found = Vec::new();
    for (store, log) in
        [(claims(store), claims(log)), (records(store), records(log)), (sights(store), sights(log))]
    {
        found.extend(store.difference(&log).map(|text| format!("only in the store: {text}")));
        found.extend(log.difference(&store).map(|text| format!("only in the log: {text}")));
    }
    found
}
