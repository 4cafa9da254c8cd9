// SPDX-License-Identifier: Apache-2.0
//! What the cluster holds for a unit, decided from its history alone, before anything is changed.

use std::{
    collections::{BTreeSet, HashSet},
    hash::Hash,
};

use serde_json::{Map, Value};

use super::{
    codec::{Release, Status},
    store::{Guard, Record},
};
use crate::protocol::Stamp;

/// What the cluster holds for this unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseState {
    /// No revision in storage.
    Absent,
    /// The release belongs to another bundle, by its chart's annotation; never taken.
    OtherBundle {
        /// The bundle it names.
        bundle: String,
    },
    /// The newest revision cannot be read, nor can any before it tell whose the release is.
    Unreadable {
        /// The newest revision.
        revision: u32,
    },
    /// The newest revision is pending, written under a claim. Only the claim says whether its writer lives.
    Interrupted {
        /// The pending revision.
        revision: u32,
        /// The claim it was written under.
        by: Stamp,
    },
    /// The newest revision is pending and not ours: a person's Helm, or Fleet's agent.
    ForeignRun {
        /// The pending revision.
        revision: u32,
    },
    /// The release is being removed.
    Uninstalling {
        /// The revision that says so.
        revision: u32,
        /// By which replica; `None`: not by one of ours.
        guard: Option<Guard>,
    },
    /// Removed, its history kept.
    Uninstalled {
        /// The newest revision.
        revision: u32,
    },
    /// The newest revision is deployed and is what is wanted.
    InSync {
        /// The newest revision.
        revision: u32,
    },
    /// The newest usable revision is deployed (or was), but is not what is wanted.
    OutOfDate {
        /// The newest revision.
        revision: u32,
    },
    /// The newest attempt failed.
    Failed {
        /// The newest revision.
        revision: u32,
        /// Helm's own description.
        reason: String,
    },
}

/// Install or upgrade: which of the two the next attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing was ever deployed. An interrupted or failed first install stays one, so that its hooks run.
    Install,
    /// Something was.
    Upgrade,
    /// An upgrade failed, and what stood before is put back.
    Rollback {
        /// The revision it goes back to.
        to: u32,
    },
}

/// Decides. `wanted` says whether a deployed release is the one that is wanted.
pub fn state(history: &[Record], bundle: &str, wanted: impl FnOnce(&Release) -> bool) -> ReleaseState {
    let Some(newest) = history.last() else { return ReleaseState::Absent };
    let revision = newest.revision;
    match owner(history) {
        Owner::Bundle(other) if other != bundle => {
            return ReleaseState::OtherBundle { bundle: other.to_owned() };
        }
        Owner::Unreadable => return ReleaseState::Unreadable { revision },
        Owner::Bundle(_) | Owner::Nobody => {}
    }
    match &newest.status {
        status if status.is_pending() => match newest.stamp() {
            Some(by) => ReleaseState::Interrupted { revision, by },
            None => ReleaseState::ForeignRun { revision },
        },
        Status::Uninstalling => ReleaseState::Uninstalling { revision, guard: newest.guard() },
        Status::Uninstalled => ReleaseState::Uninstalled { revision },
        Status::Failed => {
            let description = newest.release.as_ref().map(|release| release.info.description.clone());
            ReleaseState::Failed { revision, reason: description.unwrap_or_default() }
        }
        Status::Deployed => match &newest.release {
            Ok(release) if wanted(release) => ReleaseState::InSync { revision },
            Ok(_) | Err(_) => ReleaseState::OutOfDate { revision },
        },
        _ => ReleaseState::OutOfDate { revision },
    }
}

/// Install or upgrade.
pub fn operation(history: &[Record]) -> Operation {
    let deployed = history.iter().any(|record| {
        matches!(
            record.status,
            Status::Deployed | Status::Superseded | Status::Uninstalling | Status::Uninstalled
        )
    });
    if deployed { Operation::Upgrade } else { Operation::Install }
}

/// The values that an upgrade without any reuses, as Helm does: those of the revision that it replaces.
pub fn standing_values(history: &[Record]) -> Option<&Map<String, Value>> {
    standing(history)?.release.as_ref().ok()?.config.as_ref()?.as_object()
}

/// The newest revision that is or was deployed.
pub fn standing(history: &[Record]) -> Option<&Record> {
    standing_at(history).map(|at| &history[at])
}

/// Helm supersedes the old revision before the new one is deployed; killed in between, it leaves no deployed one.
fn standing_at(history: &[Record]) -> Option<usize> {
    let last = |wanted: Status| history.iter().rposition(|record| record.status == wanted);
    last(Status::Deployed).or_else(|| last(Status::Superseded))
}

/// The records whose objects may be live and are not listed by an older one that is deployed: the last deployed
/// revision and every later attempt. What is in none of these was pruned before.
pub fn unaccounted(history: &[Record]) -> &[Record] {
    &history[standing_at(history).unwrap_or(0)..]
}

/// Those of [`unaccounted`] that were deployed once: what they list was this release's. A failed revision lists also what
/// it was refused.
pub fn deployed(history: &[Record]) -> impl Iterator<Item = &Record> {
    let once = |record: &&Record| matches!(record.status, Status::Deployed | Status::Superseded);
    unaccounted(history).iter().filter(once)
}

/// Of revisions, each with what it lists and the newest first, those that newer ones account for: all that they list is
/// listed again. Any of them may go, as long as the newest stays.
pub fn repeated<T: Eq + Hash>(listed: impl IntoIterator<Item = (u32, HashSet<T>)>) -> BTreeSet<u32> {
    let (mut repeated, mut newer) = (BTreeSet::new(), HashSet::new());
    for (count, (revision, lists)) in listed.into_iter().enumerate() {
        if count > 0 && lists.is_subset(&newer) {
            repeated.insert(revision);
        }
        newer.extend(lists);
    }
    repeated
}

pub(super) enum Owner<'a> {
    /// The bundle that the newest readable record names.
    Bundle(&'a str),
    /// The newest readable record names none: installed by a person's Helm.
    Nobody,
    /// No record can be read.
    Unreadable,
}

pub(super) fn owner(history: &[Record]) -> Owner<'_> {
    match history.iter().rev().find(|record| record.release.is_ok()) {
        None => Owner::Unreadable,
        Some(record) => record.bundle().map_or(Owner::Nobody, Owner::Bundle),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixtures::*, *};

    fn decided(history: &[Record]) -> ReleaseState {
        state(history, "b", |release| release.manifest == "wanted")
    }

    #[test]
    fn the_newest_record_decides() {
        let stamp = Stamp::parse("u/7").unwrap();
        let guard = Guard::parse("s/n").unwrap();
        let table = [
            (vec![], ReleaseState::Absent),
            (vec![record(1, "deployed").manifest("wanted")], ReleaseState::InSync { revision: 1 }),
            (vec![record(1, "deployed").manifest("old")], ReleaseState::OutOfDate { revision: 1 }),
            (vec![record(1, "superseded")], ReleaseState::OutOfDate { revision: 1 }),
            (vec![record(3, "other-word")], ReleaseState::OutOfDate { revision: 3 }),
            (
                vec![record(1, "deployed"), record(2, "failed").described("no")],
                ReleaseState::Failed { revision: 2, reason: "no".into() },
            ),
            (
                vec![record(1, "pending-install").stamped("u/7")],
                ReleaseState::Interrupted { revision: 1, by: stamp },
            ),
            (vec![record(1, "pending-install")], ReleaseState::ForeignRun { revision: 1 }),
            (
                vec![record(1, "deployed"), record(2, "pending-rollback")],
                ReleaseState::ForeignRun { revision: 2 },
            ),
            (
                vec![record(1, "uninstalling").guarded("s/n")],
                ReleaseState::Uninstalling { revision: 1, guard: Some(guard) },
            ),
            (vec![record(1, "uninstalling")], ReleaseState::Uninstalling { revision: 1, guard: None }),
            (vec![record(1, "uninstalled")], ReleaseState::Uninstalled { revision: 1 }),
            (vec![record(1, "deployed").of("other")], ReleaseState::OtherBundle { bundle: "other".into() }),
            (vec![record(1, "deployed").unreadable()], ReleaseState::Unreadable { revision: 1 }),
            (
                vec![record(1, "deployed"), record(2, "deployed").unreadable()],
                ReleaseState::OutOfDate { revision: 2 },
            ),
        ];
        for (history, expected) in table {
            let history: Vec<_> = history.into_iter().map(Draft::stored).collect();
            assert_eq!(decided(&history), expected);
        }
    }

    #[test]
    fn a_first_install_stays_an_install_until_something_was_deployed() {
        for (statuses, expected) in [
            (&[][..], Operation::Install),
            (&["failed"], Operation::Install),
            (&["pending-install"], Operation::Install),
            (&["failed", "failed", "pending-install"], Operation::Install),
            (&["deployed"], Operation::Upgrade),
            (&["superseded", "failed"], Operation::Upgrade),
            (&["uninstalled"], Operation::Upgrade),
        ] {
            assert_eq!(operation(&history(statuses)), expected, "{statuses:?}");
        }
    }

    #[test]
    fn a_revision_may_go_when_newer_ones_list_all_that_it_lists() {
        // Oldest first; every object a letter.
        for (listed, expected) in [
            (&[][..], &[][..]),
            (&[""], &[]),
            (&["a", "a", "a"], &[1, 2]),
            (&["ab", "a", "b"], &[1]),
            (&["abc", "a", "b"], &[]),
            (&["a", "b", "ab"], &[1, 2]),
            (&["a", "b", "c"], &[]),
            // The second accounts for the first, and the third for the second.
            (&["a", "ab", "abc"], &[1, 2]),
            (&["", "a"], &[1]),
        ] {
            let revisions =
                (1..).zip(listed).map(|(revision, letters)| (revision, letters.chars().collect()));
            let newest_first: Vec<_> = revisions.collect::<Vec<_>>().into_iter().rev().collect();
            assert_eq!(repeated::<char>(newest_first), expected.iter().copied().collect(), "{listed:?}");
        }
    }

    #[test]
    fn every_attempt_since_the_last_deployed_revision_is_accounted_for() {
        for (statuses, first) in [
            (&["failed", "failed"][..], 1),
            (&["superseded", "deployed", "failed", "failed"], 2),
            (&["deployed", "superseded", "pending-upgrade"], 1),
            (&["superseded", "superseded", "pending-upgrade"], 2),
            (&["failed", "uninstalling"], 1),
            (&["deployed", "deployed"], 2),
        ] {
            assert_eq!(unaccounted(&history(statuses))[0].revision, first, "{statuses:?}");
        }
        assert!(unaccounted(&[]).is_empty());
    }
}
