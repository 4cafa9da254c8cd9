// SPDX-License-Identifier: Apache-2.0
use chrono::Utc;
use serde_json::json;

use super::*;
use crate::{
    api::{IgnoreOptions, keys},
    monitor::{ErrorStatuses, Judge, observe},
};

fn object(name: &str, version: &str, hash: &str) -> Observed {
    let (ignore, errors) = (IgnoreOptions::default(), ErrorStatuses::default());
    let judge = Judge { ignore: &ignore, errors: &errors, now: chrono::DateTime::<Utc>::UNIX_EPOCH };
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "n", "name": name, "uid": format!("uid-{name}"), "resourceVersion": version,
            "labels": {keys::HASH_LABEL: hash},
        },
    });
    observe(&object, &judge)
}

/// The same object with something to tell: another claim's stamp.
fn stamped(name: &str, version: &str, hash: &str) -> Observed {
    let stamp = crate::protocol::Stamp { uid: "bd".into(), epoch: version.into() };
    let mut observed = object(name, version, hash);
    observed.stamp = Some(stamp);
    observed
}

fn key(name: &str) -> Key {
    Key::new("v1", "ConfigMap", "n", name)
}

fn kind() -> Kind {
    Kind::new("v1", "ConfigMap")
}

fn table() -> Table {
    let mut table = Table::default();
    table.open(&kind());
    table
}

fn list(table: &mut Table, version: &str, objects: Vec<Observed>) -> Vec<String> {
    let mut changed = Changed::new();
    table.list_begins(&kind(), version.into());
    for object in objects {
        table.listed(&kind(), object, &mut changed);
    }
    table.list_ends(&kind(), &mut changed);
    told(changed)
}

fn show(table: &mut Table, object: Observed) -> Vec<String> {
    let mut changed = Changed::new();
    table.shown(&kind(), object, &mut changed);
    told(changed)
}

fn delete(table: &mut Table, name: &str, version: &str) -> Vec<String> {
    let mut changed = Changed::new();
    table.deleted(&kind(), &key(name), &version.into(), false, &mut changed);
    told(changed)
}

fn told(changed: Changed) -> Vec<String> {
    changed.iter().map(ToString::to_string).collect()
}

fn version(table: &Table, name: &str) -> Option<String> {
    table.get(&key(name)).map(|object| object.version.0.clone())
}

#[test]
fn a_first_list_fills_the_table_and_tells_every_unit() {
    let mut table = table();
    let changed = list(&mut table, "10", vec![object("a", "3", "h1"), object("b", "4", "h2")]);
    assert_eq!(changed, ["h1", "h2"]);
    assert_eq!(table.by_hash("h1").len(), 1);
    assert!(table.by_hash("h3").is_empty());
}

#[test]
fn the_newer_resource_version_wins_whichever_way_it_comes() {
    let mut table = table();
    list(&mut table, "5", vec![object("a", "3", "h")]);
    table.upsert(object("a", "9", "h"));
    assert_eq!(version(&table, "a").unwrap(), "9");
    table.upsert(object("a", "8", "h"));
    assert_eq!(version(&table, "a").unwrap(), "9");
    show(&mut table, object("a", "7", "h"));
    assert_eq!(version(&table, "a").unwrap(), "9", "an event from before our write");
    show(&mut table, object("a", "10", "h"));
    assert_eq!(version(&table, "a").unwrap(), "10", "ten is newer than nine");
}

#[test]
fn a_deletion_seen_by_the_watch_is_not_undone_by_an_older_answer() {
    let mut table = table();
    list(&mut table, "5", vec![object("a", "3", "h")]);
    assert_eq!(delete(&mut table, "a", "8"), ["h"]);
    table.upsert(object("a", "7", "h"));
    assert_eq!(version(&table, "a"), None);
    table.upsert(object("a", "9", "h"));
    assert_eq!(version(&table, "a").unwrap(), "9", "created anew");
    assert!(delete(&mut table, "a", "8").is_empty(), "a deletion from before");
    assert_eq!(version(&table, "a").unwrap(), "9");
}

#[test]
fn the_answer_to_an_own_write_is_kept_through_a_list_that_is_older() {
    let mut table = table();
    table.list_begins(&kind(), "10".into());
    table.upsert(object("early", "8", "h"));
    table.upsert(object("late", "12", "h"));
    let mut changed = Changed::new();
    table.list_ends(&kind(), &mut changed);
    assert_eq!(version(&table, "early"), None, "the list would have shown it");
    assert_eq!(version(&table, "late").unwrap(), "12");
}

#[test]
fn a_list_removes_what_it_does_not_show_and_tells_only_those_units() {
    let mut table = table();
    list(&mut table, "5", vec![object("a", "1", "h1"), object("b", "2", "h2"), object("c", "3", "h3")]);
    let changed = list(&mut table, "9", vec![object("a", "1", "h1"), stamped("c", "8", "h3")]);
    assert_eq!(changed, ["h3", "h2"]);
    assert_eq!(version(&table, "b"), None);
    assert!(table.by_hash("h2").is_empty());
}

#[test]
fn a_list_that_broke_off_removes_nothing() {
    let mut table = table();
    list(&mut table, "5", vec![object("a", "1", "h"), object("b", "2", "h")]);
    table.list_begins(&kind(), "7".into());
    assert_eq!(list(&mut table, "8", vec![object("a", "1", "h"), object("b", "2", "h")]), [""; 0]);
    assert_eq!(table.by_hash("h").len(), 2);
}

#[test]
fn after_a_restore_the_older_list_is_the_truth() {
    let mut table = table();
    list(&mut table, "50", vec![object("a", "40", "h"), object("b", "41", "h")]);
    show(&mut table, object("a", "60", "h"));
    list(&mut table, "20", vec![object("a", "15", "h")]);
    assert_eq!(version(&table, "a").unwrap(), "15");
    assert_eq!(version(&table, "b"), None);
    table.upsert(object("new", "21", "h"));
    assert_eq!(version(&table, "new").unwrap(), "21");
}

#[test]
fn an_event_that_only_moves_the_version_tells_nobody() {
    let mut table = table();
    list(&mut table, "5", vec![object("a", "3", "h")]);
    assert!(show(&mut table, object("a", "6", "h")).is_empty());
    assert_eq!(version(&table, "a").unwrap(), "6");
    assert_eq!(show(&mut table, stamped("a", "7", "h")), ["h"]);
}

#[test]
fn the_echo_of_an_own_write_tells_nobody() {
    let mut table = table();
    list(&mut table, "5", vec![]);
    table.upsert(stamped("a", "8", "h"));
    assert!(show(&mut table, stamped("a", "8", "h")).is_empty());
}

#[test]
fn an_object_that_changes_hands_tells_both_units() {
    let mut table = table();
    list(&mut table, "5", vec![object("a", "3", "h1")]);
    assert_eq!(show(&mut table, object("a", "6", "h2")), ["h2", "h1"]);
    assert!(table.by_hash("h1").is_empty());
    assert_eq!(table.by_hash("h2").len(), 1);
}

#[test]
fn a_bookmark_counts_as_shown() {
    let mut table = table();
    list(&mut table, "5", vec![]);
    table.reached(&kind(), &"20".into());
    table.upsert(object("a", "18", "h"));
    assert_eq!(version(&table, "a"), None);
}

#[test]
fn a_job_that_ended_before_it_went_is_remembered_until_it_is_there_again() {
    let ended = |version: &str| {
        let mut observed = object("a", version, "h");
        observed.finished = true;
        observed
    };
    let mut table = table();
    list(&mut table, "5", vec![object("a", "3", "h")]);
    delete(&mut table, "a", "6");
    assert!(!table.has_ended(&key("a")), "it was taken away");
    // Its end was seen by itself, by the deletion only, or before a list that lacks it.
    show(&mut table, ended("7"));
    delete(&mut table, "a", "8");
    assert!(table.has_ended(&key("a")));
    show(&mut table, object("a", "9", "h"));
    assert!(!table.has_ended(&key("a")), "made anew");
    table.deleted(&kind(), &key("a"), &"10".into(), true, &mut Changed::new());
    assert!(table.has_ended(&key("a")));
    show(&mut table, ended("11"));
    list(&mut table, "12", Vec::new());
    assert!(table.has_ended(&key("a")) && !table.has_ended(&key("b")));
    show(&mut table, ended("13"));
    table.removed(&key("a"), "uid-a");
    assert!(!table.has_ended(&key("a")), "we took it away ourselves");
}

#[test]
fn an_own_delete_removes_that_very_object_only() {
    let mut table = table();
    list(&mut table, "5", vec![object("a", "3", "h")]);
    table.removed(&key("a"), "uid-other");
    assert!(table.get(&key("a")).is_some());
    table.removed(&key("a"), "uid-a");
    assert!(table.get(&key("a")).is_none());
    assert!(table.by_hash("h").is_empty());
}

#[test]
fn kinds_that_are_not_open_are_not_kept() {
    let mut table = Table::default();
    table.upsert(object("a", "3", "h"));
    assert!(table.get(&key("a")).is_none());
    table.open(&kind());
    table.upsert(object("a", "3", "h"));
    assert_eq!(table.kinds_of("h"), HashSet::from([kind()]));
    table.close(&kind());
    assert!(table.get(&key("a")).is_none());
    assert!(table.by_hash("h").is_empty());
}

#[test]
fn a_write_that_takes_an_object_from_another_unit_tells_which() {
    let mut table = table();
    list(&mut table, "9", vec![object("a", "1", "h")]);
    assert_eq!(table.upsert(object("a", "10", "h")), None);
    assert_eq!(table.upsert(object("new", "11", "h")), None);
    assert_eq!(table.upsert(object("a", "5", "other")), None, "older than what is known");
    assert_eq!(table.upsert(object("a", "12", "other")).as_deref(), Some("h"));
}

#[test]
fn objects_of_a_kind_and_of_a_unit_share_their_texts() {
    let mut table = table();
    list(&mut table, "9", vec![object("a", "1", "h"), object("b", "2", "h")]);
    let (a, b) = (table.get(&key("a")).unwrap(), table.get(&key("b")).unwrap());
    assert!(Arc::ptr_eq(&a.key.kind, &b.key.kind) && Arc::ptr_eq(&a.key.api_version, &b.key.api_version));
    assert!(Arc::ptr_eq(a.hash.as_ref().unwrap(), b.hash.as_ref().unwrap()));
}

/// What happens to one object in a cluster, and when this replica hears of it.
#[derive(Clone, Debug)]
enum Happening {
    /// This replica writes it; the answer is taken over at once or after that many further happenings.
    Written {
        name: u8,
        late: usize,
    },
    /// Somebody else writes it.
    Foreign {
        name: u8,
    },
    Deleted {
        name: u8,
    },
    /// The watch delivers that many of the outstanding events.
    Heard(usize),
    /// The watch breaks, and the kind is listed again as it was that many events ago.
    Listed {
        behind: usize,
    },
}

fn happening() -> impl proptest::strategy::Strategy<Value = Happening> {
    use proptest::prelude::*;
    prop_oneof![
        (0..4u8, 0..4usize).prop_map(|(name, late)| Happening::Written { name, late }),
        (0..4u8).prop_map(|name| Happening::Foreign { name }),
        (0..4u8).prop_map(|name| Happening::Deleted { name }),
        (1..5usize).prop_map(Happening::Heard),
        (0..3usize).prop_map(|behind| Happening::Listed { behind }),
    ]
}

/// A cluster with one history, and how far the watch has heard of it.
#[derive(Default)]
struct Cluster {
    /// Version (index + 100), name, and whether it was a deletion.
    history: Vec<(u8, bool)>,
    heard: usize,
    answers: Vec<(usize, Observed)>,
}

impl Cluster {
    fn version(at: usize) -> String {
        (at + 100).to_string()
    }

    fn event(&self, at: usize) -> Observed {
        object(&self.history[at].0.to_string(), &Self::version(at), "h")
    }

    /// The objects after that many events.
    fn objects(&self, events: usize) -> Vec<Observed> {
        let last = |name| (0..events).rev().find(|&at| self.history[at].0 == name);
        (0..4).filter_map(last).filter(|&at| !self.history[at].1).map(|at| self.event(at)).collect()
    }

    fn happens(&mut self, table: &mut Table, happening: &Happening) {
        match *happening {
            Happening::Written { name, late } => {
                self.history.push((name, false));
                self.answers.push((late, self.event(self.history.len() - 1)));
            }
            Happening::Foreign { name } => self.history.push((name, false)),
            Happening::Deleted { name } => {
                if self.objects(self.history.len()).iter().any(|one| *one.key.name == *name.to_string()) {
                    self.history.push((name, true));
                }
            }
            Happening::Heard(number) => {
                for _ in 0..number.min(self.history.len() - self.heard) {
                    self.hear(table);
                }
            }
            Happening::Listed { behind } => {
                self.heard = (self.history.len().saturating_sub(behind)).max(self.heard);
                let version = if self.heard == 0 { "99".into() } else { Self::version(self.heard - 1) };
                list(table, &version, self.objects(self.heard));
            }
        }
        for (late, answer) in std::mem::take(&mut self.answers) {
            match late.checked_sub(1) {
                Some(late) => self.answers.push((late, answer)),
                None => drop(table.upsert(answer)),
            }
        }
    }

    fn hear(&mut self, table: &mut Table) {
        let (name, deletion) = self.history[self.heard];
        if deletion {
            delete(table, &name.to_string(), &Self::version(self.heard));
        } else {
            show(table, self.event(self.heard));
        }
        self.heard += 1;
    }
}

proptest::proptest! {
    #[test]
    fn once_all_was_heard_the_table_is_the_cluster_in_whatever_order_it_came(
        happenings in proptest::collection::vec(happening(), 1..40),
    ) {
        let (mut table, mut cluster) = (table(), Cluster::default());
        list(&mut table, "99", vec![]);
        for one in &happenings {
            cluster.happens(&mut table, one);
        }
        while cluster.heard < cluster.history.len() {
            cluster.hear(&mut table);
        }
        for (_, answer) in std::mem::take(&mut cluster.answers) {
            table.upsert(answer);
        }
        let known = |objects: Vec<(String, String)>| -> std::collections::BTreeMap<_, _> { objects.into_iter().collect() };
        let pair = |one: &Observed| (one.key.name.to_string(), one.version.0.clone());
        let ours = known(table.by_hash("h").iter().map(|one| pair(one)).collect());
        let theirs = known(cluster.objects(cluster.history.len()).iter().map(pair).collect());
        proptest::prop_assert_eq!(ours, theirs);
    }
}
