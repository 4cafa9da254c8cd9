// SPDX-License-Identifier: Apache-2.0
//! Deciding and claiming.

use super::*;

#[test]
fn what_is_outdated_is_claimed_against_its_version_with_the_first_attempt() {
    let mut bench = Bench::new();
    let effects = bench.step(Input::Seen(object("10")));
    let [(version, claim)] = writes(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((version.0.as_str(), claim.attempt, claim.lost), ("10", 1, 0));
    assert_eq!(claim.deployment, "d1");
}

#[test]
fn what_is_paused_blocked_refused_up_to_date_or_without_a_deployment_id_is_never_claimed() {
    for snapshot in [
        Snapshot { gate: Gate::Held, ..object("10") },
        Snapshot { gate: Gate::Blocked, ..object("10") },
        Snapshot { gate: Gate::Refused, ..object("10") },
        Snapshot { outdated: false, ..object("10") },
        Snapshot { deployment: String::new(), ..object("10") },
    ] {
        let mut bench = Bench::new();
        assert_eq!(bench.step(Input::Seen(snapshot)), []);
    }
}

#[test]
fn a_gate_that_opens_without_a_new_version_lets_the_unit_be_claimed() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(Snapshot { gate: Gate::Blocked, ..object("10") }));
    assert_eq!(writes(&bench.step(Input::Seen(object("10")))).len(), 1);
    let mut bench = Bench::new();
    bench.step(Input::Seen(Snapshot { gate: Gate::Blocked, ..object("10") }));
    assert_eq!(writes(&bench.step(Input::Gate(Gate::Open))).len(), 1);
}

#[test]
fn without_a_free_slot_a_slot_is_asked_for_and_nothing_is_claimed() {
    let mut bench = Bench::new();
    bench.slots.free = 0;
    assert_eq!(bench.step(Input::Seen(object("10"))), [Effect::WantSlot]);
    bench.slots.free = 1;
    assert_eq!(writes(&bench.step(Input::Tick)).len(), 1);
}

#[test]
fn a_draining_replica_claims_nothing() {
    let mut bench = Bench::new();
    bench.draining = true;
    assert_eq!(bench.step(Input::Seen(object("10"))), []);
}

#[test]
fn a_win_starts_the_deployment_with_the_answered_version_as_epoch() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    let effects = bench.step(Input::Written(held("11", &claim)));
    assert!(effects.contains(&Effect::Start { claim, epoch: "11".into() }), "{effects:?}");
    assert_eq!(wake(&effects), Some(secs(700)), "and wakes at its own budget");
}

#[test]
fn a_conflict_is_not_a_lost_race_the_object_is_read_again_and_the_same_claim_sent_again() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    assert!(rereads(&bench.step(Input::Conflict)));
    let effects = bench.step(Input::Read(Snapshot { rest: 1, ..object("12") }));
    assert_eq!(writes(&effects), [(&"12".into(), &claim)]);
}

#[test]
fn the_own_nonce_behind_a_conflict_is_a_win() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    bench.step(Input::Conflict);
    assert!(starts(&bench.step(Input::Read(held("11", &claim)))));
}

#[test]
fn an_unclear_answer_is_settled_by_the_nonce() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    assert!(rereads(&bench.step(Input::Unclear)));
    assert!(starts(&bench.step(Input::Read(held("11", &claim)))));
}

#[test]
fn a_claim_seen_by_the_watch_before_its_answer_starts_once() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    assert!(starts(&bench.step(Input::Seen(held("11", &claim)))));
    let late = bench.step(Input::Written(held("11", &claim)));
    assert!(!starts(&late) && !cancels(&late), "{late:?}");
    assert!(
        matches!(bench.unit.work, Work::Running { waiting: false, .. }),
        "a late answer is no step into a wait"
    );
}

#[test]
fn a_live_read_from_before_the_own_write_neither_cancels_nor_counts_as_a_restore() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    bench.step(Input::Unclear);
    bench.step(Input::Seen(held("11", &claim)));
    let effects = bench.step(Input::Read(object("10")));
    assert!(!cancels(&effects) && !effects.contains(&Effect::Relist) && rereads(&effects), "{effects:?}");
}

#[test]
fn a_rivals_claim_ends_the_try_and_is_left_alone() {
    let mut bench = Bench::new();
    bench.lease("b", "1");
    bench.step(Input::Seen(object("10")));
    bench.step(Input::Conflict);
    let effects = bench.step(Input::Read(held("11", &rival(ClaimState::Claimed))));
    assert!(effects.contains(&Effect::Note(Note::LostRace { holder: "pod-b".into() })));
    assert!(bench.is_idle() && writes(&effects).is_empty());
    assert_eq!(wake(&effects), Some(secs(115)), "looked at again when its session may be quiet");
}

#[test]
fn a_rivals_failure_behind_a_conflict_keeps_its_rest_and_its_count() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    bench.step(Input::Conflict);
    let failed = Claim { retry_in: Some(40), ..rival(ClaimState::BackingOff) };
    let effects = bench.step(Input::Read(held("12", &failed)));
    assert!(writes(&effects).is_empty(), "S5: a first attempt must not be written over it");
    assert_eq!(wake(&effects), Some(secs(140)));
    let effects = bench.pass(40);
    assert_eq!(writes(&effects)[0].1.attempt, 2);
}

#[test]
fn a_quarantine_behind_a_conflict_is_respected() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    bench.step(Input::Conflict);
    let effects = bench.step(Input::Read(held("12", &rival(ClaimState::Quarantined))));
    assert!(writes(&effects).is_empty(), "S6");
    assert_eq!(wake(&effects), Some(secs(3700)));
}

#[test]
fn after_three_conflicts_with_unrelated_writers_the_unit_rests_and_is_tried_anew() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let first = bench.claim().nonce;
    for version in ["11", "12", "13"] {
        bench.step(Input::Conflict);
        assert_eq!(writes(&bench.step(Input::Read(object(version)))).len(), 1);
    }
    bench.step(Input::Conflict);
    let effects = bench.step(Input::Read(object("14")));
    assert!(writes(&effects).is_empty() && wake(&effects) == Some(secs(101)), "{effects:?}");
    bench.pass(1);
    assert_ne!(bench.claim().nonce, first, "another try is another claim");
}

#[test]
fn unclear_answers_are_counted_like_conflicts_and_are_no_storm() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    for _ in 0..3 {
        bench.step(Input::Unclear);
        bench.step(Input::Read(object("10")));
    }
    assert!(!bench.is_idle());
    let effects = bench.step(Input::Unclear);
    let rests = |effect: &Effect| matches!(effect, Effect::Reread { after } if *after > secs(0));
    assert!(effects.iter().any(rests), "{effects:?}");
    let effects = bench.step(Input::Read(object("10")));
    assert_eq!(wake(&effects), Some(secs(101)));
}

#[test]
fn a_pause_seen_behind_a_conflict_ends_the_try() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    bench.step(Input::Conflict);
    let effects = bench.step(Input::Read(Snapshot { gate: Gate::Held, ..object("12") }));
    assert!(bench.is_idle() && effects.is_empty(), "S10: {effects:?}");
}

#[test]
fn a_new_deployment_id_behind_a_conflict_is_claimed_by_a_fresh_claim() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let first = bench.claim().nonce;
    bench.step(Input::Conflict);
    let effects = bench.step(Input::Read(Snapshot { deployment: "d2".into(), ..object("12") }));
    let [(_, claim)] = writes(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(claim.deployment, "d2");
    assert_ne!(claim.nonce, first);
}

#[test]
fn a_read_while_the_claim_is_not_answered_sends_nothing() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    assert!(rereads(&bench.step(Input::Vanished)));
    assert!(writes(&bench.step(Input::Read(object("10")))).is_empty());
}

#[test]
fn a_refused_claim_rests_before_the_next_try() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let until = wake(&bench.step(Input::Denied)).expect("a wake");
    assert!(until > secs(103) && bench.is_idle());
    bench.now = until;
    assert_eq!(writes(&bench.step(Input::Tick)).len(), 1);
}

#[test]
fn a_claim_won_and_lost_again_before_its_answer_starts_nothing() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    bench.step(Input::Seen(held("30", &Claim { state: ClaimState::Expired, ..claim.clone() })));
    let effects = bench.step(Input::Written(held("11", &claim)));
    assert!(!starts(&effects), "{effects:?}");
    assert_eq!(writes(&effects)[0].1.attempt, 2, "the expired one is continued");
}

#[test]
fn a_claim_whose_answer_comes_after_a_new_deployment_id_is_replaced_without_a_start() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    bench.step(Input::Unclear);
    let claim = bench.claim();
    let moved = Snapshot { deployment: "d2".into(), ..held("12", &claim) };
    let effects = bench.step(Input::Seen(moved));
    assert!(!starts(&effects));
    assert!(
        matches!(finish(&effects), Some((_, End::Replace(next))) if next.deployment == "d2"),
        "{effects:?}"
    );
}

#[test]
fn an_own_claim_that_nobody_works_on_is_replaced_without_counting_a_loss() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let late = bench.claim();
    bench.step(Input::Denied);
    let effects = bench.step(Input::Seen(held("11", &late)));
    let [(_, claim)] = writes(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((claim.attempt, claim.lost), (2, 0));
    assert_ne!(claim.nonce, late.nonce);
}

#[test]
fn a_claim_on_an_object_that_is_gone_waits_for_proof() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    assert!(rereads(&bench.step(Input::ReadAbsent)));
    let effects = bench.step(Input::ReadAbsent);
    assert_eq!(wake(&effects), Some(secs(400)));
    assert!(writes(&bench.step(Input::Seen(object("12")))).len() == 1, "it is back");
}

#[test]
fn a_replica_that_drains_while_its_claim_is_on_its_way_releases_it() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    bench.draining = true;
    let effects = bench.step(Input::Written(held("11", &claim)));
    assert!(!starts(&effects));
    assert!(
        matches!(finish(&effects), Some((_, End::Release(Some(left)))) if left.state == ClaimState::Expired)
    );
}
