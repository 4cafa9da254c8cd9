// SPDX-License-Identifier: Apache-2.0
//! Other replicas' claims: left, taken over, rested on, quarantined.

use super::*;

fn watching(claim: &Claim) -> (Bench, Vec<Effect>) {
    let mut bench = Bench::new();
    bench.lease("b", "1");
    let effects = bench.step(Input::Seen(held("10", claim)));
    (bench, effects)
}

fn verified(bench: &mut Bench, quiet: bool) -> Vec<Effect> {
    bench.step(Input::Verified { session: "b".into(), quiet })
}

#[test]
fn a_living_holder_is_left_until_its_session_may_be_quiet() {
    let (_, effects) = watching(&rival(ClaimState::Claimed));
    assert_eq!(effects, [Effect::WakeAt(secs(115))]);
}

#[test]
fn a_quiet_holder_is_looked_at_live_and_only_then_taken_over_as_a_loss() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    let effects = bench.pass(15);
    assert_eq!(effects, [Effect::Verify { session: "b".into(), known: "1".into() }]);
    assert_eq!(bench.pass(1), [], "asked once");
    let effects = verified(&mut bench, true);
    let [(version, claim)] = writes(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((version.0.as_str(), claim.attempt, claim.lost, claim.by.join(",")), ("10", 2, 1, "b".into()));
}

#[test]
fn a_quiet_holder_is_not_looked_at_again_and_again_while_no_slot_is_free_or_before_its_turn() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.slots.free = 0;
    assert_eq!(bench.pass(15), [Effect::WantSlot]);
    bench.slots.free = 1;
    assert!(matches!(bench.step(Input::Tick)[..], [Effect::Verify { .. }]));
    bench.slots.free = 0;
    let effects = verified(&mut bench, true);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Verify { .. })), "{effects:?}");

    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.me = "b2".into();
    for other in 0..20 {
        bench.now = secs(100 + 14);
        bench.lease(&format!("o{other}"), "1");
    }
    let effects = bench.pass(1);
    assert!(matches!(effects[..], [Effect::WakeAt(turn)] if turn > bench.now), "{effects:?}");
}

#[test]
fn a_quiet_holder_is_not_taken_over_on_what_was_known_before_a_restore() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.pass(15);
    bench.unit.forget_versions();
    assert_eq!(writes(&verified(&mut bench, true)), []);
    assert!(bench.is_idle());
    bench.step(Input::Seen(held("7", &rival(ClaimState::Claimed))));
    assert_eq!(writes(&verified(&mut bench, true)).len(), 1);
}

#[test]
fn a_holder_whose_lease_moved_is_left_in_peace() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.pass(15);
    let effects = verified(&mut bench, false);
    assert!(writes(&effects).is_empty() && wake(&effects) == Some(secs(120)), "S8: {effects:?}");
}

#[test]
fn a_holder_that_renewed_during_the_live_look_is_left_in_peace() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.pass(15);
    bench.lease("b", "2");
    let effects = verified(&mut bench, true);
    assert!(writes(&effects).is_empty() && wake(&effects) == Some(secs(130)), "S8: {effects:?}");
}

#[test]
fn a_look_at_another_session_proves_nothing() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.pass(15);
    assert_eq!(bench.step(Input::Verified { session: "c".into(), quiet: true }), []);
}

#[test]
fn a_failed_look_is_repeated_after_a_rest() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.pass(15);
    assert_eq!(wake(&bench.step(Input::ReadFailed)), Some(secs(116)));
    assert!(matches!(bench.pass(1)[..], [Effect::Verify { .. }]));
}

#[test]
fn a_holder_with_a_deleted_lease_is_taken_over_at_once() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.sessions.gone(&"b".into(), bench.now);
    let effects = bench.step(Input::Tick);
    assert_eq!(writes(&effects).len(), 1);
    let from = Note::TakenOver { from: "b".into(), reason: TakeoverReason::Dead };
    assert!(effects.contains(&Effect::Note(from)));
    let claim = bench.claim();
    let effects = bench.step(Input::Written(held("11", &claim)));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Start { claim, .. } if claim.unswept)));
}

#[test]
fn a_session_never_seen_has_ttl_from_the_first_sight_of_its_claim() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(Input::Seen(held("10", &rival(ClaimState::Claimed)))), [Effect::WakeAt(secs(115))]);
    let effects = bench.pass(15);
    assert_eq!(effects, [Effect::Verify { session: "b".into(), known: Epoch::default() }]);
}

#[test]
fn a_living_holder_over_its_budget_is_taken_over_a_margin_later() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    for beat in 0..63 {
        bench.lease("b", &format!("{}", beat + 2));
        assert!(writes(&bench.pass(10)).is_empty() || beat == 62, "{beat}");
    }
    assert_eq!(bench.claim().lost, 1);
}

#[test]
fn entering_a_wait_starts_the_observers_count_anew_and_its_loss_does_not_count() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.now += secs(10);
    bench.step(Input::Seen(held("11", &Claim { budget: 900, ..rival(ClaimState::Waiting) })));
    bench.sessions.gone(&"b".into(), bench.now);
    let effects = bench.step(Input::Tick);
    assert_eq!((writes(&effects)[0].1.attempt, writes(&effects)[0].1.lost), (2, 0));
}

#[test]
fn a_status_write_of_another_party_is_no_sign_of_life() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.now += secs(14);
    bench.step(Input::Seen(Snapshot { rest: 9, ..held("12", &rival(ClaimState::Claimed)) }));
    assert!(matches!(bench.pass(1)[..], [Effect::Verify { .. }]));
}

#[test]
fn a_takeover_that_meets_an_unrelated_writer_is_sent_again() {
    let (mut bench, _) = watching(&rival(ClaimState::Claimed));
    bench.sessions.gone(&"b".into(), bench.now);
    bench.step(Input::Tick);
    bench.step(Input::Conflict);
    let effects = bench.step(Input::Read(Snapshot { rest: 3, ..held("12", &rival(ClaimState::Claimed)) }));
    assert_eq!(writes(&effects).len(), 1);
}

#[test]
fn the_third_loss_by_a_second_session_is_written_as_quarantine_and_starts_nothing() {
    let twice = Claim { lost: 2, by: vec!["a".into()], ..rival(ClaimState::Claimed) };
    let (mut bench, _) = watching(&twice);
    bench.sessions.gone(&"b".into(), bench.now);
    bench.step(Input::Tick);
    let claim = bench.claim();
    assert_eq!((claim.state, claim.lost), (ClaimState::Quarantined, 3));
    bench.step(Input::Unclear);
    let effects = bench.step(Input::Read(held("11", &claim)));
    assert!(!starts(&effects) && writes(&effects).is_empty() && bench.is_idle(), "{effects:?}");
    assert_eq!(wake(&effects), Some(secs(3700)));
    assert_eq!(writes(&bench.pass(3600))[0].1.state, ClaimState::Claimed, "S6: then it is tried again");
}

#[test]
fn a_proper_failure_after_a_quarantine_is_retried_as_any_other() {
    let failed = Claim {
        lost: 3,
        by: vec!["a".into(), "b".into()],
        retry_in: Some(5),
        ..rival(ClaimState::BackingOff)
    };
    let (mut bench, _) = watching(&failed);
    assert_eq!(writes(&bench.pass(5))[0].1.state, ClaimState::Claimed);
}

#[test]
fn a_new_deployment_id_frees_from_back_off_and_quarantine_with_a_new_count() {
    for state in [ClaimState::BackingOff, ClaimState::Quarantined] {
        let claim = Claim { attempt: 7, lost: 3, retry_in: Some(500), ..rival(state) };
        let (mut bench, effects) = watching(&claim);
        assert!(writes(&effects).is_empty());
        let effects = bench.step(Input::Seen(Snapshot { deployment: "d2".into(), ..held("11", &claim) }));
        let turn = wake(&effects).filter(|_| writes(&effects).is_empty());
        let effects = turn.map_or(effects, |time| {
            bench.now = time;
            bench.step(Input::Tick)
        });
        assert_eq!((writes(&effects)[0].1.attempt, writes(&effects)[0].1.lost), (1, 0));
    }
}

#[test]
fn a_claim_that_cannot_be_read_is_respected_for_the_claim_timeout() {
    let mut bench = Bench::new();
    let strange = Snapshot { slot: ClaimSlot::Unreadable { text: "True x".into() }, ..object("10") };
    assert_eq!(bench.step(Input::Seen(strange)), [Effect::WakeAt(secs(700))]);
    assert_eq!(writes(&bench.pass(600)).len(), 1);
}

#[test]
fn a_claim_that_cannot_be_read_does_not_stand_for_ever_on_what_is_up_to_date() {
    let mut bench = Bench::new();
    let strange = Snapshot { slot: ClaimSlot::Unreadable { text: "True x".into() }, ..deployed("10") };
    assert_eq!(bench.step(Input::Seen(strange)), [Effect::WakeAt(secs(700))]);
    assert!(writes(&bench.pass(599)).is_empty());
    assert_eq!(writes(&bench.pass(1))[0].1.attempt, 1);
    let claim = bench.claim();
    let effects = bench.step(Input::Written(Snapshot { outdated: false, ..held("11", &claim) }));
    assert!(
        effects.iter().any(|effect| matches!(effect, Effect::Start { claim, .. } if claim.unswept)),
        "{effects:?}"
    );
}

#[test]
fn the_second_in_preference_gives_the_first_its_turn() {
    let mut bench = Bench::new();
    (bench.me, bench.now) = ("b".into(), secs(100));
    bench.lease("me", "1");
    let rank = bench.sessions.rank(&bench.me, &"u".into(), bench.now);
    assert_eq!(rank, 1, "the hash must not change: versions must agree on the order");
    let effects = bench.step(Input::Seen(object("10")));
    assert_eq!(effects, [Effect::WakeAt(bench.now + bench.config.steal_delay * rank)]);
    bench.now += bench.config.steal_delay * rank;
    assert_eq!(writes(&bench.step(Input::Tick)).len(), 1);
}

#[test]
fn states_below_an_own_write_are_ignored_until_live_reads_insist() {
    let mut bench = Bench::running();
    bench.done(Outcome::Deployed);
    bench.step(Input::Written(deployed("12")));
    assert_eq!(bench.step(Input::Seen(object("10"))), [Effect::WakeAt(secs(130))], "rule 6");
    let effects = bench.pass(30);
    assert!(rereads(&effects), "a watch that stays behind is asked about: {effects:?}");
    assert!(rereads(&bench.step(Input::Read(object("5")))));
    let effects = bench.step(Input::Read(object("5")));
    assert!(effects.contains(&Effect::Note(Note::Restored)) && effects.contains(&Effect::Relist));
    assert_eq!(writes(&effects)[0].0.0, "5", "and the restored state is worked on");
}

#[test]
fn nothing_is_claimed_between_a_restore_and_the_list_it_asks_for() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(Snapshot { gate: Gate::Held, ..object("10") }));
    bench.unit.forget_versions();
    let effects = bench.step(Input::Gate(Gate::Open));
    assert!(writes(&effects).is_empty(), "no write has no version as its precondition: {effects:?}");
    assert_eq!(writes(&bench.step(Input::Seen(object("5"))))[0].0.0, "5");
}

#[test]
fn a_read_below_a_write_made_since_the_last_doubt_is_only_another_doubt() {
    let mut bench = Bench::running();
    bench.step(Input::Read(object("10")));
    bench.done(Outcome::Deployed);
    bench.step(Input::Written(deployed("12")));
    let effects = bench.step(Input::Read(object("11")));
    assert!(
        !effects.contains(&Effect::Relist) && rereads(&effects),
        "it may have been asked before the finish"
    );
    assert!(bench.step(Input::Read(object("11"))).contains(&Effect::Relist));
}
