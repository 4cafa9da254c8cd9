// SPDX-License-Identifier: Apache-2.0
//! The live objects by key and by unit. Pure: fed by watches, deployments and tests alike.
//!
//! Two sources feed one entry: the watch of its kind, and the answers to this replica's own writes, which come
//! earlier. The newer resourceVersion wins. Deletions need no tombstones: a kind's watch shows everything in the
//! order of the versions, so an object that is not here and older than what the watch has shown is gone.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::Arc,
};

use crate::{
    monitor::{Key, Observed},
    protocol::Epoch,
};

/// `apiVersion` and kind, sharing the texts of the keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Group and version, as in manifests.
    pub api_version: Arc<str>,
    /// The kind.
    pub name: Arc<str>,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.api_version, self.name)
    }
}

impl Kind {
    /// The kind of that name.
    pub fn new(api_version: &str, name: &str) -> Self {
        Self { api_version: api_version.into(), name: name.into() }
    }

    /// The kind of an object.
    pub fn of(key: &Key) -> Self {
        Self { api_version: Arc::clone(&key.api_version), name: Arc::clone(&key.kind) }
    }
}

/// Objects of a kind of which it is kept that they went after their end, the latest ones. Jobs may have ever new names.
const ENDED: usize = 4096;

/// Hash labels of units to look at again.
pub(super) type Changed = Vec<Arc<str>>;

/// All live objects of the watched kinds that carry a hash label.
#[derive(Debug, Default)]
pub(super) struct Table {
    kinds: HashMap<Kind, Objects>,
    /// Index of `kinds`; has no empty sets.
    units: HashMap<Arc<str>, HashSet<Arc<Key>>>,
}

#[derive(Debug)]
struct Objects {
    /// The texts that its keys share.
    kind: Kind,
    by_key: HashMap<Arc<Key>, Arc<Observed>>,
    /// Everything up to here has been shown by the watch.
    shown: Epoch,
    listing: Option<Listing>,
    /// Jobs that had ended when they went, the latest last.
    ended: VecDeque<Arc<Key>>,
}

#[derive(Debug)]
struct Listing {
    version: Epoch,
    seen: HashSet<Arc<Key>>,
    /// The list is older than what the watch has shown: the cluster was restored from a backup, and versions known
    /// from before mean nothing.
    restored: bool,
}

impl Table {
    /// Starts to keep objects of a kind.
    pub fn open(&mut self, kind: &Kind) {
        self.kinds.entry(kind.clone()).or_insert_with_key(|kind| Objects {
            kind: kind.clone(),
            by_key: HashMap::new(),
            shown: Epoch::default(),
            listing: None,
            ended: VecDeque::new(),
        });
    }

    /// Forgets a kind and its objects.
    pub fn close(&mut self, kind: &Kind) {
        for object in self.kinds.remove(kind).into_iter().flat_map(|objects| objects.by_key.into_values()) {
            leave(&mut self.units, &object);
        }
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Observed>> {
        self.kinds.get(&Kind::of(key))?.by_key.get(key).cloned()
    }

    /// Whether it is a Job that is gone, and had ended before.
    pub fn has_ended(&self, key: &Key) -> bool {
        let objects = self.kinds.get(&Kind::of(key));
        objects.is_some_and(|objects| objects.ended.iter().any(|ended| **ended == *key))
    }

    /// The objects that carry a hash label, in no order.
    pub fn by_hash(&self, hash: &str) -> Vec<Arc<Observed>> {
        self.units.get(hash).into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    /// The kinds of which a unit has objects.
    pub fn kinds_of(&self, hash: &str) -> HashSet<Kind> {
        self.units.get(hash).into_iter().flatten().map(|key| Kind::of(key)).collect()
    }

    /// Takes what the answer to an own write shows, unless more is known already. Kinds not open are not kept:
    /// nothing would ever remove their objects.
    ///
    /// Returns the hash of the unit that it was taken from, if it was another's.
    pub fn upsert(&mut self, observed: Observed) -> Option<Arc<str>> {
        let objects = self.kinds.get_mut(&Kind::of(&observed.key))?;
        let stored = objects.by_key.get(&observed.key);
        if observed.version <= *stored.map_or(&objects.shown, |stored| &stored.version) {
            return None;
        }
        let before = stored.and_then(|stored| stored.hash.clone());
        let lost = before.filter(|hash| observed.hash.as_ref() != Some(hash));
        put(&mut self.units, objects, observed);
        lost
    }

    /// Drops an object that an own delete has just removed for good.
    pub fn removed(&mut self, key: &Key, uid: &str) {
        let Some(objects) = self.kinds.get_mut(&Kind::of(key)) else { return };
        if objects.by_key.get(key).is_some_and(|stored| stored.uid == uid) {
            drop_key(&mut self.units, objects, key);
            // It did not go by itself.
            objects.ended.retain(|ended| **ended != *key);
        }
    }

    /// The watch shows an object.
    pub fn shown(&mut self, kind: &Kind, observed: Observed, changed: &mut Changed) {
        let Some(objects) = self.kinds.get_mut(kind) else { return };
        advance(&mut objects.shown, &observed.version);
        let stored = objects.by_key.get(&observed.key);
        if stored.is_none_or(|stored| stored.version <= observed.version) {
            report(stored, &observed, changed);
            put(&mut self.units, objects, observed);
        }
    }

    /// The watch shows that an object is gone, or is no longer labelled; `finished` if it is a Job that had ended.
    pub fn deleted(
        &mut self,
        kind: &Kind,
        key: &Key,
        version: &Epoch,
        finished: bool,
        changed: &mut Changed,
    ) {
        let Some(objects) = self.kinds.get_mut(kind) else { return };
        advance(&mut objects.shown, version);
        if objects.by_key.get(key).is_some_and(|stored| stored.version <= *version) {
            changed.extend(drop_key(&mut self.units, objects, key));
            if finished && !objects.ended.iter().any(|ended| **ended == *key) {
                end(objects, Arc::new(key.clone()));
            }
        }
    }

    /// The watch has got to a version without anything to show.
    pub fn reached(&mut self, kind: &Kind, version: &Epoch) {
        if let Some(objects) = self.kinds.get_mut(kind) {
            advance(&mut objects.shown, version);
        }
    }

    /// A list of a kind as of `version` begins; an unfinished one is forgotten.
    pub fn list_begins(&mut self, kind: &Kind, version: Epoch) {
        if let Some(objects) = self.kinds.get_mut(kind) {
            let restored = version < objects.shown;
            objects.listing = Some(Listing { version, seen: HashSet::new(), restored });
        }
    }

    /// The list contains an object.
    pub fn listed(&mut self, kind: &Kind, observed: Observed, changed: &mut Changed) {
        let Some(objects) = self.kinds.get_mut(kind) else { return };
        let Some(listing) = &mut objects.listing else { return };
        let stored = objects.by_key.get(&observed.key);
        listing.seen.insert(stored.map_or(&observed.key, |stored| &stored.key).clone());
        if listing.restored || stored.is_none_or(|stored| stored.version <= observed.version) {
            report(stored, &observed, changed);
            put(&mut self.units, objects, observed);
        }
    }

    /// The list is complete: what it lacks is gone, except what is newer than it.
    pub fn list_ends(&mut self, kind: &Kind, changed: &mut Changed) {
        let Some(objects) = self.kinds.get_mut(kind) else { return };
        let Some(Listing { version, seen, restored }) = objects.listing.take() else { return };
        let gone: Vec<_> = objects
            .by_key
            .values()
            .filter(|object| !seen.contains(&object.key) && (restored || object.version <= version))
            .map(|object| Arc::clone(&object.key))
            .collect();
        for key in gone {
            changed.extend(drop_key(&mut self.units, objects, &key));
        }
        objects.shown = version;
    }
}

fn advance(shown: &mut Epoch, version: &Epoch) {
    if *version > *shown {
        shown.clone_from(version);
    }
}

/// Notes the units that have to look again: the one it belongs to, and the one it belonged to.
fn report(stored: Option<&Arc<Observed>>, observed: &Observed, changed: &mut Changed) {
    if stored.is_some_and(|stored| stored.tells_the_same_as(observed)) {
        return;
    }
    changed.extend(observed.hash.clone());
    let before = stored.and_then(|stored| stored.hash.clone());
    changed.extend(before.filter(|hash| observed.hash.as_ref() != Some(hash)));
}

fn put(units: &mut HashMap<Arc<str>, HashSet<Arc<Key>>>, objects: &mut Objects, mut observed: Observed) {
    let stored = objects.by_key.get(&observed.key).cloned();
    // Share the texts: ten thousand objects have a hundred kinds and a thousand units.
    observed.key = match &stored {
        Some(stored) => Arc::clone(&stored.key),
        None => {
            let Kind { api_version, name } = objects.kind.clone();
            Arc::new(Key { api_version, kind: name, ..(*observed.key).clone() })
        }
    };
    if let Some((known, _)) = observed.hash.as_ref().and_then(|hash| units.get_key_value(hash)) {
        observed.hash = Some(Arc::clone(known));
    }
    if let Some(stored) = stored.filter(|stored| stored.hash != observed.hash) {
        leave(units, &stored);
    }
    if let Some(hash) = &observed.hash {
        units.entry(Arc::clone(hash)).or_default().insert(Arc::clone(&observed.key));
    }
    objects.ended.retain(|ended| **ended != *observed.key);
    objects.by_key.insert(Arc::clone(&observed.key), Arc::new(observed));
}

/// Removes an object and returns its hash.
fn drop_key(
    units: &mut HashMap<Arc<str>, HashSet<Arc<Key>>>,
    objects: &mut Objects,
    key: &Key,
) -> Option<Arc<str>> {
    let object = objects.by_key.remove(key)?;
    leave(units, &object);
    if object.finished {
        end(objects, Arc::clone(&object.key));
    }
    object.hash.clone()
}

fn end(objects: &mut Objects, key: Arc<Key>) {
    objects.ended.push_back(key);
    if objects.ended.len() > ENDED {
        objects.ended.pop_front();
    }
}

fn leave(units: &mut HashMap<Arc<str>, HashSet<Arc<Key>>>, object: &Observed) {
    let Some(hash) = &object.hash else { return };
    if let Some(keys) = units.get_mut(hash) {
        keys.remove(&object.key);
        if keys.is_empty() {
            units.remove(hash);
        }
    }
}

#[cfg(test)]
#[path = "table/tests.rs"]
mod tests;
