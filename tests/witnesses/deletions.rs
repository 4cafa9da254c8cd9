// SPDX-License-Identifier: Apache-2.0
//! Deletions, and what comes back after the end of its bundle.

use super::*;

/// `one` deployed under 10, then `bare` claimed at 20, then `one` once more at 30.
fn there_and_back() -> Vec<Version> {
    vec![
        version(10, UNIT, Some(unit("one", "", Some(("a", "left"))))),
        version(20, UNIT, Some(unit("bare", "one", Some(("b", "left"))))),
        version(30, UNIT, Some(unit("one", "one", Some(("c", "right"))))),
    ]
}

/// The ConfigMap of epoch 10, deleted at 40, and made anew under 30.
fn deleted_and_healed(records: Vec<Version>) -> Vec<Version> {
    let objects = vec![
        version(5, MAP, Some(map(10, "1"))),
        version(40, MAP, None),
        version(50, MAP, Some(map(30, "1"))),
    ];
    let mut all: Vec<Version> = records.into_iter().chain(objects).collect();
    all.sort_by_key(|version| version.revision);
    all
}

#[test]
fn a_deletion_of_what_is_wanted_is_found_although_the_next_write_heals_it() {
    let downstream = [
        records(&[(15, 1, 20, "pending-install")]),
        vec![
            version(16, MAP, Some(map(20, "2"))),
            version(17, MAP, None),
            version(18, MAP, Some(map(20, "2"))),
        ],
    ];
    let found = judged(units(), downstream.into_iter().flatten().collect());
    assert!(found.stale.len() == 1 && found.stale[0].contains("at 17 was deleted"), "{:?}", found.stale);
    assert_eq!(found.lost, Vec::<String>::new());
}

#[test]
fn a_prune_is_right_from_the_revision_of_its_claim_to_the_next_one_deployed() {
    let first = (3, 1, 10, "pending-install");
    let (pruning, next) = ((20, 2, 20, "pending-upgrade"), (30, 3, 30, "pending-upgrade"));
    for (records, found) in [
        (records(&[first]), 1),
        (records(&[first, pruning]), 0),
        // Sent before the next one stamped the object.
        (records(&[first, pruning, next]), 0),
        // A deployment whose stamp is not on all that it wants protects nothing.
        (records(&[first, pruning, next, (35, 3, 30, "deployed")]), 1),
        (records(&[first, pruning, next, (45, 3, 30, "deployed")]), 0),
    ] {
        let stale = judged(there_and_back(), deleted_and_healed(records)).stale;
        assert_eq!(stale.len(), found, "{stale:?}");
    }
}

/// The unit was deleted upstream, or is there.
fn removed(is_deleted: bool) -> Vec<Version> {
    let mut all = units();
    if is_deleted {
        all.push(version(25, UNIT, None));
    }
    all
}

/// The ConfigMap of `two`, whose record is guarded at 30 or not, and its deletion.
fn removal(is_guarded: bool) -> Vec<Version> {
    let mut all = records(&[(15, 1, 20, "deployed")]);
    all.push(version(16, MAP, Some(map(20, "2"))));
    if is_guarded {
        all.extend(records(&[(30, 1, 20, "uninstalling")]));
    }
    all.push(version(31, MAP, None));
    all
}

#[test]
fn a_removal_deletes_what_was_deleted_upstream_and_after_it_said_so() {
    for (is_deleted, is_guarded, found) in [(true, true, 0), (false, true, 1), (true, false, 1)] {
        let stale = judged(removed(is_deleted), removal(is_guarded)).stale;
        assert_eq!(stale.len(), found, "deleted {is_deleted}, guarded {is_guarded}: {stale:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_came_before_its_order_is_found() {
    for (early, found) in [(Duration::from_secs(1), 0), (Duration::from_secs(30), 1)] {
        let mut seen = Evidence::default();
        let mut take = |all: Vec<Version>| {
            all.into_iter().for_each(|version| seen.take(version, &units_of(NAMESPACE)));
        };
        take(units());
        take(removal(true));
        tokio::time::advance(early).await;
        take(vec![version(25, UNIT, None)]);
        let stale = by_story(&seen).stale;
        assert_eq!(stale.len(), found, "{early:?}: {stale:?}");
    }
}

#[test]
fn what_is_created_after_the_end_of_its_bundle_is_counted_although_it_goes_again() {
    let again = || vec![version(32, MAP, Some(map(20, "2"))), version(33, MAP, None)];
    let late = judged(removed(true), [removal(true), again()].into_iter().flatten().collect());
    assert!(late.after_end.len() == 1 && late.after_end[0].contains("at 32"), "{:?}", late.after_end);
    assert_eq!((late.stale, late.resurrected), (Vec::new(), Vec::new()));
    let in_time = judged(removed(true), removal(true));
    assert_eq!(in_time.after_end, Vec::<String>::new());
}
