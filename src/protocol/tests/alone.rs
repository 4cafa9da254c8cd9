// SPDX-License-Identifier: Apache-2.0
//! Units whose next loss may be quarantine: each works alone in its replica, or waits until it can.

use super::*;

fn lost(times: u32, state: ClaimState) -> Claim {
    Claim { lost: times, by: vec!["a".into()], ..rival(state) }
}

/// A replica with two slots left and one taken sees what was lost twice.
fn beside_another() -> (Bench, Vec<Effect>) {
    let mut bench = Bench::new();
    bench.slots = Slots { free: 2, taken: 1, reserved: false };
    let effects = bench.step(Input::Seen(held("10", &lost(2, ClaimState::Expired))));
    (bench, effects)
}

/// And has it to itself.
fn alone() -> Bench {
    let (mut bench, _) = beside_another();
    bench.slots.taken = 0;
    bench.step(Input::Tick);
    let claim = bench.claim();
    bench.step(Input::Written(held("11", &claim)));
    bench
}

#[test]
fn what_was_lost_twice_waits_until_nothing_else_works_here_and_keeps_others_from_beginning() {
    let (mut bench, effects) = beside_another();
    let patience = bench.config.claim_timeout + bench.config.claim_margin;
    assert_eq!(effects, [Effect::WantSlot, Effect::WakeAt(bench.now + patience)], "S6");
    assert!(bench.unit.alone.is_some());
    bench.slots.taken = 0;
    assert_eq!(writes(&bench.step(Input::Tick))[0].1.lost, 2);
    assert!(bench.unit.alone.is_some(), "until its slot is free again");
    let claim = bench.claim();
    assert!(starts(&bench.step(Input::Written(held("11", &claim)))));
    bench.done(Outcome::Deployed);
    assert!(bench.unit.alone.is_some());
    bench.step(Input::Written(deployed("12")));
    assert!(bench.unit.alone.is_none());
}

#[test]
fn a_slot_that_is_never_given_back_is_not_waited_for_without_end() {
    let (mut bench, _) = beside_another();
    assert!(writes(&bench.pass(629)).is_empty(), "other work may last for its budget");
    assert_eq!(writes(&bench.pass(1)).len(), 1, "L1");
    assert!(bench.unit.alone.is_some(), "nothing new begins beside it all the same");

    let (mut bench, _) = beside_another();
    bench.slots.free = 0;
    let again = bench.now + secs(630) + bench.config.claim_margin;
    assert_eq!(bench.pass(630), [Effect::WantSlot, Effect::WakeAt(again)]);
    bench.slots.free = 1;
    assert_eq!(writes(&bench.pass(30)).len(), 1, "and then any slot will do");
}

#[test]
fn patience_counts_from_when_nothing_else_began_any_more() {
    let mut bench = Bench::new();
    bench.slots = Slots { free: 2, taken: 1, reserved: true };
    bench.step(Input::Seen(held("10", &lost(2, ClaimState::Expired))));
    bench.pass(700);
    bench.slots.reserved = false; // and others may have begun by now
    assert!(writes(&bench.step(Input::Tick)).is_empty());
    assert!(writes(&bench.pass(629)).is_empty());
    assert_eq!(writes(&bench.pass(1)).len(), 1);
}

#[test]
fn a_record_of_any_number_of_losses_is_understood() {
    let mut bench = Bench::new();
    bench.slots.taken = 1;
    let effects = bench.step(Input::Seen(held("10", &lost(u32::MAX, ClaimState::Expired))));
    assert!(writes(&effects).is_empty() && bench.unit.alone.is_some());
}

#[test]
fn what_was_lost_once_works_beside_others() {
    let mut bench = Bench::new();
    bench.slots.taken = 3;
    assert_eq!(writes(&bench.step(Input::Seen(held("10", &lost(1, ClaimState::Expired))))).len(), 1);
    assert!(bench.unit.alone.is_none());
}

#[test]
fn nothing_begins_where_another_unit_works_alone() {
    for slot in [ClaimSlot::Empty, ClaimSlot::Claim(lost(2, ClaimState::Expired))] {
        let mut bench = Bench::new();
        bench.slots.reserved = true;
        assert_eq!(bench.step(Input::Seen(Snapshot { slot, ..object("10") })), [Effect::WantSlot]);
        assert!(bench.unit.alone.is_none(), "one at a time");
    }
}

#[test]
fn the_retry_after_a_quarantine_is_alone_whoever_ordered_that() {
    for times in [0, 3] {
        let mut bench = Bench::new();
        bench.slots.taken = 1;
        bench.step(Input::Seen(held("10", &lost(times, ClaimState::Quarantined))));
        assert!(bench.unit.alone.is_none(), "not before its time");
        assert_eq!(bench.pass(3600)[0], Effect::WantSlot);
        assert!(bench.unit.alone.is_some());
        bench.slots.taken = 0;
        assert_eq!(writes(&bench.step(Input::Tick)).len(), 1);
    }
}

#[test]
fn a_new_deployment_id_works_beside_others() {
    let (mut bench, _) = beside_another();
    let moved = Snapshot { deployment: "d2".into(), ..held("11", &lost(2, ClaimState::Expired)) };
    assert_eq!(writes(&bench.step(Input::Seen(moved)))[0].1.lost, 0);
    assert!(bench.unit.alone.is_none());

    let mut bench = alone();
    let claim = bench.claim();
    bench.step(Input::Seen(Snapshot { deployment: "d2".into(), ..held("12", &claim) }));
    let effects = bench.done(Outcome::Stopped);
    let Some((_, End::Replace(next))) = finish(&effects) else { panic!("{effects:?}") };
    assert!(bench.unit.alone.is_some(), "not before the new claim stands");
    bench.step(Input::Written(Snapshot { deployment: "d2".into(), ..held("13", &next.clone()) }));
    assert!(matches!(bench.unit.work, Work::Running { .. }) && bench.unit.alone.is_none());
}

#[test]
fn who_waits_for_readiness_lets_others_begin() {
    let mut bench = alone();
    let nonce = bench.claim().nonce;
    let effects = bench.step(Input::Waiting { nonce, seconds: 60 });
    let waits = writes(&effects)[0].1.clone();
    bench.step(Input::Written(held("12", &waits)));
    assert!(bench.unit.alone.is_none(), "a loss while waiting does not count");
}

#[test]
fn who_ends_where_another_one_is_to_work_alone_does_not_begin_with_the_next_deployment_id() {
    let mut bench = Bench::running();
    bench.slots.reserved = true;
    let claim = bench.claim();
    bench.step(Input::Seen(Snapshot { deployment: "d2".into(), ..held("12", &claim) }));
    let effects = bench.done(Outcome::Stopped);
    let Some((_, End::Release(Some(mark)))) = finish(&effects) else { panic!("{effects:?}") };
    let mark = mark.clone();
    let effects = bench.step(Input::Written(Snapshot { deployment: "d2".into(), ..held("13", &mark) }));
    assert_eq!(effects, [Effect::WantSlot]);
}

#[test]
fn a_re_created_object_lets_others_begin_when_the_lone_run_has_ended() {
    let mut bench = alone();
    let nonce = bench.claim().nonce;
    bench.step(Input::Seen(Snapshot { uid: "u2".into(), gate: Gate::Held, ..object("20") }));
    assert!(bench.unit.alone.is_some());
    bench.step(Input::Done { nonce, outcome: Outcome::Stopped, release: String::new() });
    assert!(bench.unit.alone.is_none());
}

#[test]
fn who_no_longer_may_claim_lets_others_begin() {
    for seen in [
        Snapshot { gate: Gate::Held, ..held("11", &lost(2, ClaimState::Expired)) },
        held("11", &rival(ClaimState::Claimed)),
        deployed("11"),
    ] {
        let (mut bench, _) = beside_another();
        bench.step(Input::Seen(seen));
        assert!(bench.unit.alone.is_none(), "{:?}", bench.unit);
    }
    let (mut bench, _) = beside_another();
    bench.step(Input::Deleted("u".into()));
    assert!(bench.unit.alone.is_none());
}

#[test]
fn a_holder_of_what_was_lost_once_is_verified_and_replaced_when_nothing_else_works_here() {
    let mut bench = Bench::new();
    bench.lease("b", "1");
    bench.slots.taken = 1;
    bench.step(Input::Seen(held("10", &lost(1, ClaimState::Claimed))));
    assert_eq!(bench.pass(15)[0], Effect::WantSlot, "its loss is the second");
    bench.slots.taken = 0;
    assert!(matches!(bench.step(Input::Tick)[..], [Effect::Verify { .. }]));
    bench.step(Input::Tick);
    assert!(bench.unit.alone.is_some(), "nothing begins during the look");
    let effects = bench.step(Input::Verified { session: "b".into(), quiet: true });
    assert_eq!(writes(&effects)[0].1.lost, 2);
}

#[test]
fn the_loss_that_condemns_needs_nobody_to_be_alone() {
    let mut bench = Bench::new();
    bench.slots.taken = 1;
    bench.lease("b", "1");
    bench.sessions.gone(&"b".into(), bench.now);
    let effects = bench.step(Input::Seen(held("10", &lost(2, ClaimState::Claimed))));
    assert_eq!(writes(&effects)[0].1.state, ClaimState::Quarantined);
    assert!(bench.unit.alone.is_none());
}

#[test]
fn the_next_in_preference_leaves_the_first_a_ttl_to_get_empty_though_it_is_full() {
    let mut bench = Bench::new();
    (bench.me, bench.slots.taken) = ("b".into(), 1);
    for version in ["1", "2"] {
        let full = SessionSeen {
            session: "me".into(),
            holder: "pod-me".into(),
            pod_uid: None,
            version: version.into(),
            free_slots: 0,
        };
        bench.sessions.seen(full, bench.now);
    }
    let effects = bench.step(Input::Seen(held("10", &lost(2, ClaimState::Expired))));
    assert_eq!(effects, [Effect::WakeAt(bench.now + bench.config.ttl)]);
    assert!(bench.unit.alone.is_none(), "others begin meanwhile");
}
