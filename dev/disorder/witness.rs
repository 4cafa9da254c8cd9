// SPDX-License-Identifier: Apache-2.0
//! What the two stores saw: claims upstream; release records, stamped objects and session Leases downstream.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla::api::keys;
use flotilla::protocol::Stamp;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::etcd::{self, Stream, Version};
use crate::harness::records::Record;
use crate::harness::units::Ledger;
use crate::harness::{ControlPlane, GENEROUS, until};

const UNITS: &str = "fleet.cattle.io/bundledeployments/";
/// Secrets: such as bundles copy. The others are the clusters' own, or release records.
const OBJECTS: [&str; 3] = ["configmaps/", "deployments/", "secrets/chaos-"];
const SESSIONS: &str = "leases/cattle-fleet-system/";

/// One version of a deployed object.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Of the store.
    pub revision: u64,
    /// `kind/namespace/name`.
    pub key: String,
    /// What was seen; `None`: deleted.
    pub state: Option<State>,
    /// When it was seen.
    pub at: Instant,
}

/// One version of a release record, in the same store as the objects.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Of the store.
    pub revision: u64,
    /// The claim that it says it was written under.
    pub stamp: Stamp,
    /// Helm's word for its state.
    pub status: String,
    /// When it was seen.
    pub at: Instant,
}

/// What an object shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Its uid.
    pub uid: String,
    /// The claim it was last written under.
    pub stamp: Option<Stamp>,
    /// Its content's version: the key `version` of a ConfigMap, an annotation of others.
    pub version: String,
    /// Whose it is: the hash label, or the bundle's name on what it copies.
    pub owner: String,
}

/// A sign of life of a session, or its end.
#[derive(Clone, Debug)]
pub struct Beat {
    /// When it was seen.
    pub at: Instant,
    /// The session.
    pub session: String,
    /// The replica's name.
    pub holder: String,
    /// Its Lease was deleted.
    pub gone: bool,
}

/// One release record, from creation to deletion.
#[derive(Clone, Debug)]
pub struct Kept {
    /// As the judge takes it.
    pub record: Record,
    /// It is still there.
    pub present: bool,
}

/// Everything seen so far.
#[derive(Default)]
pub struct Evidence {
    /// Units and their claims.
    pub units: Ledger,
    /// Names by uid.
    pub names: BTreeMap<String, String>,
    /// When which uid was seen deleted.
    pub gone: BTreeMap<String, Instant>,
    /// Records in the order of their creation.
    pub records: Vec<Kept>,
    /// Versions of records, in order.
    pub marks: Vec<Mark>,
    /// Versions of objects, in order.
    pub sights: Vec<Sight>,
    /// Objects as they are now.
    pub objects: BTreeMap<String, State>,
    /// Signs of life, in order.
    pub beats: Vec<Beat>,
    by_secret: BTreeMap<String, usize>,
    lease_sessions: BTreeMap<String, (String, String)>,
    revisions: BTreeMap<&'static str, u64>,
}

/// Reads along until it is dropped.
pub struct Witness {
    evidence: Arc<Mutex<Evidence>>,
    stores: Vec<(&'static str, String)>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Witness {
    /// Starts with the very first version in both stores.
    pub fn start(upstream: &ControlPlane, downstream: &ControlPlane, namespace: &str) -> Witness {
        let evidence = Arc::new(Mutex::new(Evidence::default()));
        let stores = vec![
            ("upstream", upstream.etcd_url().to_owned()),
            ("downstream", downstream.etcd_url().to_owned()),
        ];
        let tasks = stores
            .iter()
            .map(|(plane, url)| {
                tokio::spawn(follow(plane, url.clone(), units_of(namespace), evidence.clone()))
            })
            .collect();
        Witness { evidence, stores, tasks }
    }

    /// Looks at what was seen.
    pub fn look<T>(&self, look: impl FnOnce(&Evidence) -> T) -> T {
        look(&lock(&self.evidence))
    }

    /// Waits until everything written before this call was seen.
    pub async fn settled(&self) -> anyhow::Result<()> {
        for (plane, url) in &self.stores {
            let now =
                until("etcd to answer", GENEROUS, async || Ok(Some(etcd::revision(url).await?))).await?;
            until("the witness to have seen everything", GENEROUS, async || {
                let seen = self.look(|evidence| evidence.revisions.get(plane).copied().unwrap_or_default());
                Ok((seen >= now).then_some(()))
            })
            .await?;
        }
        Ok(())
    }
}

fn lock(evidence: &Mutex<Evidence>) -> MutexGuard<'_, Evidence> {
    evidence.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether the judge looks at what is at this path: units upstream, objects and release records downstream.
pub fn is_judged(plane: &str, units: &str, key: &str) -> bool {
    match plane {
        "upstream" => key.starts_with(units),
        _ => is_record(key) || OBJECTS.iter().any(|kind| key.starts_with(kind)),
    }
}

fn is_record(key: &str) -> bool {
    key.starts_with("secrets/") && key.contains("/sh.helm.release.v1.")
}

/// The path of the units of a namespace.
pub fn units_of(namespace: &str) -> String {
    format!("{UNITS}{namespace}/")
}

async fn follow(plane: &'static str, url: String, units: String, evidence: Arc<Mutex<Evidence>>) {
    let wanted =
        |key: &str| is_judged(plane, &units, key) || (plane == "downstream" && key.starts_with(SESSIONS));
    let mut last = 0;
    loop {
        if let Ok(mut stream) = Stream::open(&url, last + 1).await {
            loop {
                match stream.next(wanted).await {
                    Ok((revision, versions)) => {
                        let mut evidence = lock(&evidence);
                        versions.into_iter().for_each(|version| evidence.take(version, &units));
                        last = last.max(revision);
                        evidence.revisions.insert(plane, last);
                    }
                    Err(error) => {
                        eprintln!("the stream of {plane} is opened anew: {error:#}");
                        break;
                    }
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Evidence {
    /// Everything in lines, for those who look into a run that failed.
    pub fn timeline(&self, begun: Instant) -> String {
        let mut text = String::new();
        let time = |at: Instant| match at.checked_duration_since(begun) {
            Some(after) => format!("{:8.2}", after.as_secs_f64()),
            None => "  before".to_owned(),
        };
        for claim in self.units.claims() {
            let end = claim.ended.map(time).unwrap_or_default();
            let _ = writeln!(
                text,
                "claim {} {end} {} uid={} epoch={} {} session={} nonce={} attempt={} lost={} {} {:?}",
                time(claim.seen),
                claim.unit,
                claim.uid,
                claim.epoch,
                claim.holder,
                claim.session,
                claim.nonce,
                claim.attempt,
                claim.lost,
                claim.deployment,
                claim.end,
            );
        }
        for Kept { record, present } in &self.records {
            let _ = writeln!(
                text,
                "record {} {}/{}:{} {:?} {:?} present={present}",
                time(record.seen),
                record.namespace,
                record.release,
                record.revision,
                record.stamp,
                record.states,
            );
        }
        for Mark { revision, stamp, status, at } in &self.marks {
            let _ = writeln!(text, "mark {} {revision} {stamp} {status}", time(*at));
        }
        for (uid, at) in &self.gone {
            let _ = writeln!(text, "gone {} {uid}", time(*at));
        }
        for beat in &self.beats {
            let _ = writeln!(text, "beat {} {} {} {}", time(beat.at), beat.holder, beat.session, beat.gone);
        }
        for sight in &self.sights {
            let Sight { revision, key, state, at } = sight;
            let _ = writeln!(text, "object {} {revision} {key} {state:?}", time(*at));
        }
        text
    }

    /// One more version; `units` is the path of the units.
    pub fn take(&mut self, version: Version, units: &str) {
        if let Some(name) = version.key.strip_prefix(units) {
            let name = name.to_owned();
            self.take_unit(&name, version);
        } else if version.key.starts_with(SESSIONS) {
            self.take_beat(version);
        } else if is_record(&version.key) {
            self.take_record(version);
        } else {
            self.take_object(version);
        }
    }

    fn take_unit(&mut self, name: &str, version: Version) {
        let Some(mut object) = version.object else {
            let uid = self.units.live().get(name).and_then(|unit| unit.metadata.uid.clone());
            self.gone.extend(uid.map(|uid| (uid, Instant::now())));
            return self.units.deleted(name);
        };
        object["metadata"]["resourceVersion"] = version.revision.to_string().into();
        if let Some(uid) = object["metadata"]["uid"].as_str() {
            self.names.insert(uid.to_owned(), name.to_owned());
        }
        match serde_json::from_value(object) {
            Ok(unit) => self.units.applied(unit),
            Err(error) => eprintln!("{name} in the store is no BundleDeployment: {error}"),
        }
    }

    fn take_beat(&mut self, version: Version) {
        let at = Instant::now();
        let Some(object) = version.object else {
            if let Some((session, holder)) = self.lease_sessions.remove(&version.key) {
                self.beats.push(Beat { at, session, holder, gone: true });
            }
            return;
        };
        let name = text(&object, "/metadata/name");
        let session = name.rsplit_once('-').map_or(name, |(_, session)| session).to_owned();
        let holder = text(&object, "/spec/holderIdentity").to_owned();
        self.lease_sessions.insert(version.key, (session.clone(), holder.clone()));
        self.beats.push(Beat { at, session, holder, gone: false });
    }

    fn take_record(&mut self, version: Version) {
        let Some(object) = version.object else {
            if let Some(index) = self.by_secret.remove(&version.key) {
                self.records[index].present = false;
            }
            return;
        };
        let label = |key: &str| object["metadata"]["labels"][key].as_str().unwrap_or_default();
        let Ok(revision) = label("version").parse() else { return };
        let index = *self.by_secret.entry(version.key).or_insert_with(|| {
            self.records.push(Kept {
                present: true,
                record: Record {
                    namespace: text(&object, "/metadata/namespace").to_owned(),
                    release: label("name").to_owned(),
                    revision,
                    stamp: None,
                    states: Vec::new(),
                    seen: Instant::now(),
                },
            });
            self.records.len() - 1
        });
        let state = label("status").to_owned();
        if let Some(stamp) = stamp(&object) {
            let (revision, at) = (version.revision, Instant::now());
            self.marks.push(Mark { revision, stamp, status: state.clone(), at });
        }
        let record = &mut self.records[index].record;
        // The first stamp is the claim that created it; later ones are those that closed it.
        if record.stamp.is_none() {
            record.stamp = stamp(&object);
        }
        if record.states.last() != Some(&state) {
            record.states.push(state);
        }
    }

    fn take_object(&mut self, version: Version) {
        let state = version.object.as_ref().map(|object| State {
            uid: text(object, "/metadata/uid").to_owned(),
            stamp: stamp(object),
            version: match text(object, "/data/version") {
                "" => object["metadata"]["annotations"]["chaos/version"].as_str().unwrap_or_default(),
                version => version,
            }
            .to_owned(),
            owner: owner(&object["metadata"]["labels"]),
        });
        // Objects of the clusters' own have none.
        let ours = state.as_ref().is_none_or(|state| !state.owner.is_empty());
        if !ours && !self.objects.contains_key(&version.key) {
            return;
        }
        match &state {
            Some(state) => drop(self.objects.insert(version.key.clone(), state.clone())),
            None if self.objects.remove(&version.key).is_none() => return,
            None => {}
        }
        let (revision, key, at) = (version.revision, version.key, Instant::now());
        self.sights.push(Sight { revision, key, state, at });
    }
}

fn owner(labels: &Value) -> String {
    let labels = [&labels[keys::HASH_LABEL], &labels[keys::BUNDLE_DEPLOYMENT]];
    labels.iter().find_map(|label| label.as_str()).unwrap_or_default().to_owned()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn stamp(object: &Value) -> Option<Stamp> {
    Stamp::parse(object["metadata"]["annotations"][keys::EPOCH_ANNOTATION].as_str()?)
}
