// SPDX-License-Identifier: Apache-2.0
//! Deployments under a claim: their wait and their end.

use super::*;

#[test]
fn a_deployed_unit_is_finished_by_one_write_and_settled() {
    let mut bench = Bench::running();
    assert_eq!(finish(&bench.done(Outcome::Deployed)), Some((&"11".into(), &End::Deployed)));
    assert_eq!(bench.step(Input::Written(deployed("12"))), []);
    assert!(bench.unit.is_settled() && !bench.unit.holds_slot());
}

#[test]
fn a_failure_backs_off_with_its_attempt_and_cause() {
    let mut bench = Bench::running();
    let effects = bench.done(Outcome::Failed { cause: "quota".into() });
    let Some((_, End::BackOff(claim))) = finish(&effects) else { panic!("{effects:?}") };
    assert_eq!(
        (claim.state, claim.attempt, claim.cause.as_deref()),
        (ClaimState::BackingOff, 1, Some("quota"))
    );
    assert!(claim.retry_in.is_some_and(|seconds| (3..=5).contains(&seconds)));
}

#[test]
fn an_unrelated_write_moves_the_version_that_the_finish_builds_on() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    assert!(!cancels(&bench.step(Input::Seen(Snapshot { rest: 5, ..held("15", &claim) }))));
    assert_eq!(finish(&bench.done(Outcome::Deployed)).map(|(version, _)| version.0.as_str()), Some("15"));
}

#[test]
fn a_pause_during_the_deployment_lets_it_finish() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    assert!(!cancels(&bench.step(Input::Seen(Snapshot { gate: Gate::Held, ..held("15", &claim) }))));
    assert!(finish(&bench.done(Outcome::Deployed)).is_some());
}

#[test]
fn a_claim_replaced_by_another_cancels_the_deployment_and_its_result_is_discarded() {
    let mut bench = Bench::running();
    bench.lease("b", "1");
    assert!(cancels(&bench.step(Input::Seen(held("15", &rival(ClaimState::Claimed))))));
    assert!(bench.unit.holds_slot(), "until it has stopped");
    let effects = bench.done(Outcome::Deployed);
    assert!(finish(&effects).is_none() && effects.contains(&Effect::Note(Note::Discarded)), "S4");
    assert!(bench.is_idle());
}

#[test]
fn a_fenced_deployment_is_discarded_and_looked_at_before_it_is_tried_again() {
    let mut bench = Bench::running();
    let effects = bench.done(Outcome::Fenced);
    assert!(finish(&effects).is_none() && rereads(&effects));
    let until = wake(&effects).expect("no unit sleeps without a wake");
    assert!(until > bench.now);
    let effects = bench.step(Input::Read(held("15", &rival(ClaimState::Claimed))));
    assert!(writes(&effects).is_empty() && bench.is_idle());
}

#[test]
fn a_new_deployment_id_cancels_and_replaces_the_claim_by_a_fresh_one() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    let moved = Snapshot { deployment: "d2".into(), ..held("15", &claim) };
    assert!(cancels(&bench.step(Input::Seen(moved.clone()))));
    let effects = bench.done(Outcome::Deployed);
    let Some((version, End::Replace(next))) = finish(&effects) else { panic!("{effects:?}") };
    assert_eq!((version.0.as_str(), next.deployment.as_str(), next.attempt), ("15", "d2", 1));
    assert_ne!(next.nonce, claim.nonce);
    let answer = Snapshot { slot: ClaimSlot::Claim(next.clone()), version: "16".into(), ..moved };
    let effects = bench.step(Input::Written(answer));
    assert!(effects.contains(&Effect::Start { claim: next.clone(), epoch: "16".into() }));
}

#[test]
fn a_new_deployment_id_under_a_pause_leaves_the_mark_of_unfinished_work() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    let moved = Snapshot { deployment: "d2".into(), gate: Gate::Held, ..held("15", &claim) };
    bench.step(Input::Seen(moved));
    let effects = bench.done(Outcome::Stopped);
    assert!(
        matches!(finish(&effects), Some((_, End::Release(Some(left)))) if left.state == ClaimState::Expired)
    );
}

#[test]
fn work_half_done_for_another_deployment_id_is_repaired_though_the_status_names_the_one_asked_for() {
    for state in [ClaimState::Expired, ClaimState::BackingOff, ClaimState::Claimed] {
        let mut bench = Bench::new();
        bench.sessions.gone(&"b".into(), bench.now);
        let left = Claim { deployment: "d0".into(), ..rival(state) };
        let effects = bench.step(Input::Seen(Snapshot { outdated: false, ..held("10", &left) }));
        assert_eq!(writes(&effects).len(), 1, "S2: {state:?}");
        assert!(!bench.unit.is_settled());
    }
}

#[test]
fn an_object_on_its_way_out_is_let_go() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    assert!(cancels(&bench.step(Input::Seen(Snapshot { gate: Gate::Refused, ..held("15", &claim) }))));
    assert_eq!(finish(&bench.done(Outcome::Stopped)), Some((&"15".into(), &End::Release(None))));
}

#[test]
fn a_new_deployment_id_found_by_a_refused_finish_replaces_the_claim() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    bench.done(Outcome::Deployed);
    assert!(rereads(&bench.step(Input::Conflict)));
    let moved = Snapshot { deployment: "d2".into(), ..held("15", &claim) };
    let effects = bench.step(Input::Read(moved));
    assert!(matches!(finish(&effects), Some((_, End::Replace(next))) if next.deployment == "d2"));
}

#[test]
fn a_deployment_id_that_comes_back_before_the_finish_lands_ends_as_it_ended() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    bench.done(Outcome::Deployed);
    bench.step(Input::Conflict);
    bench.step(Input::Read(Snapshot { deployment: "d2".into(), ..held("15", &claim) }));
    bench.step(Input::Conflict);
    let effects = bench.step(Input::Read(held("17", &claim)));
    assert_eq!(finish(&effects), Some((&"17".into(), &End::Deployed)));
}

#[test]
fn an_unclear_finish_is_settled_by_the_result_itself() {
    let mut bench = Bench::running();
    bench.unit.redeploy = true;
    bench.done(Outcome::Deployed);
    assert!(rereads(&bench.step(Input::Unclear)));
    let effects = bench.step(Input::Read(deployed("12")));
    assert_eq!(effects, [], "S9");
    assert!(bench.is_idle() && !bench.unit.redeploy);
}

#[test]
fn an_unclear_finish_that_did_not_land_is_sent_again_and_never_given_up_while_the_claim_is_mine() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    bench.done(Outcome::Deployed);
    for _ in 0..20 {
        assert!(rereads(&bench.step(Input::Unclear)));
        assert!(rereads(&bench.step(Input::ReadFailed)));
        assert_eq!(
            finish(&bench.step(Input::Read(held("11", &claim)))),
            Some((&"11".into(), &End::Deployed))
        );
    }
}

#[test]
fn a_finish_whose_claim_was_taken_meanwhile_is_discarded() {
    let mut bench = Bench::running();
    bench.done(Outcome::Deployed);
    bench.step(Input::Conflict);
    let effects = bench.step(Input::Read(held("15", &rival(ClaimState::Claimed))));
    assert!(
        effects.contains(&Effect::Note(Note::Discarded)) && finish(&effects).is_none() && bench.is_idle()
    );
}

#[test]
fn a_doubled_answer_to_the_claim_does_not_end_the_finish() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    bench.done(Outcome::Deployed);
    bench.step(Input::Written(held("11", &claim)));
    assert!(matches!(bench.unit.work, Work::Finishing { .. }));
    bench.step(Input::Written(deployed("9")));
    assert!(matches!(bench.unit.work, Work::Finishing { .. }), "an old result is not this one");
}

#[test]
fn a_finish_answered_before_a_restore_that_was_seen_first_is_sent_again() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    bench.done(Outcome::Deployed);
    bench.step(Input::Seen(held("21", &claim)));
    let effects = bench.step(Input::Written(deployed("14")));
    assert!(rereads(&effects) && finish(&effects).is_none(), "{effects:?}");
    let effects = bench.step(Input::Read(held("21", &claim)));
    assert_eq!(
        finish(&effects).map(|(version, end)| (version.0.as_str(), end)),
        Some(("21", &End::Deployed))
    );
}

#[test]
fn the_end_of_an_earlier_run_is_nobodys() {
    let mut bench = Bench::running();
    assert_eq!(
        bench
            .step(Input::Done { nonce: "old".into(), outcome: Outcome::Deployed, release: String::new() })
            .iter()
            .filter(|effect| !matches!(effect, Effect::WakeAt(_)))
            .count(),
        0
    );
    assert!(matches!(bench.unit.work, Work::Running { .. }));
}

#[test]
fn a_second_end_of_the_same_run_is_harmless() {
    let mut bench = Bench::running();
    let nonce = bench.claim().nonce;
    bench.done(Outcome::Deployed);
    assert_eq!(bench.step(Input::Done { nonce, outcome: Outcome::Deployed, release: String::new() }), []);
}

#[test]
fn a_wait_is_entered_with_the_same_nonce_and_a_longer_budget_and_gives_the_slot_back() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    let effects = bench.step(Input::Waiting { nonce: claim.nonce.clone(), seconds: 300 });
    let [(version, next)] = writes(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((version.0.as_str(), &next.nonce, next.budget), ("11", &claim.nonce, 900));
    assert_eq!(next.state, ClaimState::Waiting);
    assert!(bench.unit.holds_slot(), "not before it stands");
    bench.step(Input::Written(held("12", next)));
    assert!(!bench.unit.holds_slot());
    assert_eq!(finish(&bench.done(Outcome::Deployed)), Some((&"12".into(), &End::Deployed)));
}

#[test]
fn a_replica_that_is_going_enters_no_wait() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    bench.draining = true;
    let effects = bench.step(Input::Waiting { nonce: claim.nonce, seconds: 300 });
    assert!(writes(&effects).is_empty() && cancels(&effects), "{effects:?}");
    let effects = bench.done(Outcome::Stopped);
    assert!(matches!(finish(&effects), Some((_, End::Release(_)))), "{effects:?}");
}

#[test]
fn a_step_into_a_wait_that_met_a_conflict_is_sent_again() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    bench.step(Input::Waiting { nonce: claim.nonce.clone(), seconds: 300 });
    assert!(rereads(&bench.step(Input::Conflict)));
    assert!(rereads(&bench.step(Input::ReadFailed)));
    let effects = bench.step(Input::Read(Snapshot { rest: 3, ..held("15", &claim) }));
    assert_eq!(writes(&effects)[0].0.0, "15");
}

#[test]
fn an_unclear_step_into_a_wait_is_settled_by_the_slot() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    let effects = bench.step(Input::Waiting { nonce: claim.nonce, seconds: 300 });
    let next = writes(&effects)[0].1.clone();
    bench.step(Input::Unclear);
    assert!(writes(&bench.step(Input::Read(held("12", &next)))).is_empty());
    assert!(!bench.unit.holds_slot());
}

#[test]
fn a_step_into_a_wait_of_an_object_that_is_missing_is_not_waited_for() {
    for done_before in [true, false] {
        let mut bench = Bench::running();
        let claim = bench.claim();
        bench.step(Input::Waiting { nonce: claim.nonce.clone(), seconds: 300 });
        let mut effects = Vec::new();
        if done_before {
            effects = bench.done(Outcome::Deployed);
            assert!(finish(&effects).is_none());
        }
        let absent = bench.step(Input::ReadAbsent);
        effects.extend(absent);
        if !done_before {
            assert!(cancels(&effects));
            assert!(writes(&bench.step(Input::Read(held("11", &claim)))).is_empty(), "it is told to stop");
            effects = bench.done(Outcome::Stopped);
        }
        assert!(finish(&effects).is_some(), "{effects:?}");
        bench.step(Input::ReadAbsent);
        assert!(!bench.unit.holds_slot());
    }
}

#[test]
fn a_run_that_ends_while_its_step_into_the_wait_is_unanswered_is_finished_after_the_answer() {
    let mut bench = Bench::running();
    let claim = bench.claim();
    let effects = bench.step(Input::Waiting { nonce: claim.nonce, seconds: 300 });
    let next = writes(&effects)[0].1.clone();
    assert!(finish(&bench.done(Outcome::Deployed)).is_none(), "one write at a time");
    assert_eq!(finish(&bench.step(Input::Written(held("12", &next)))), Some((&"12".into(), &End::Deployed)));
}

#[test]
fn the_holder_stops_at_its_own_budget_and_says_so() {
    let mut bench = Bench::running();
    assert!(!cancels(&bench.pass(599)));
    assert!(cancels(&bench.pass(1)));
    let effects = bench.done(Outcome::Stopped);
    let Some((_, End::BackOff(claim))) = finish(&effects) else { panic!("{effects:?}") };
    assert_eq!(claim.cause.as_deref(), Some("not finished within 600 s"));
}

#[test]
fn a_hand_over_keeps_the_record_and_counts_no_loss() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(held("10", &Claim { attempt: 3, lost: 1, ..rival(ClaimState::Expired) })));
    let claim = bench.claim();
    bench.step(Input::Written(held("11", &claim)));
    bench.step(Input::Stop);
    let effects = bench.done(Outcome::Stopped);
    let Some((_, End::Release(Some(left)))) = finish(&effects) else { panic!("{effects:?}") };
    assert_eq!((left.state, left.attempt, left.lost), (ClaimState::Expired, 4, 1));
}

#[test]
fn a_redeploy_that_failed_for_good_is_not_repeated() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(Snapshot { outdated: false, ..object("10") }));
    bench.step(Input::Redeploy { of: None });
    let claim = bench.claim();
    bench.step(Input::Written(Snapshot { outdated: false, ..held("11", &claim) }));
    bench.done(Outcome::Permanent);
    assert_eq!(bench.step(Input::Written(Snapshot { outdated: false, ..object("12") })), []);
}

#[test]
fn what_was_missed_of_a_release_that_is_history_deploys_nothing() {
    let mut bench = Bench::new();
    let stands = |version| Snapshot { outdated: false, release: "ns/app:4".into(), ..object(version) };
    bench.step(Input::Seen(stands("10")));
    assert_eq!(bench.step(Input::Redeploy { of: Some("ns/app:1".into()) }), []);
    assert!(!writes(&bench.step(Input::Redeploy { of: Some("ns/app:4".into()) })).is_empty());
}

#[test]
fn a_finish_after_which_the_status_still_asks_is_no_storm() {
    let mut bench = Bench::running();
    bench.done(Outcome::Deployed);
    let effects = bench.step(Input::Written(object("12")));
    assert!(
        writes(&effects).is_empty() && wake(&effects).is_some_and(|time| time > bench.now),
        "{effects:?}"
    );
}

#[test]
fn the_mark_of_a_takeover_goes_on_until_a_deployment_has_swept() {
    let vanished = || {
        let mut bench = Bench::new();
        bench.sessions.gone(&"b".into(), bench.now);
        bench.step(Input::Seen(held("10", &rival(ClaimState::Claimed))));
        let claim = bench.claim();
        (bench, claim)
    };
    let moved = |version: &str, claim: &Claim| Snapshot { deployment: "d2".into(), ..held(version, claim) };
    let replaced = |bench: &mut Bench, effects: &[Effect], deployment: &str| {
        let Some((_, End::Replace(next))) = finish(effects) else { panic!("{effects:?}") };
        let answer = Snapshot { deployment: deployment.into(), ..held("20", next) };
        assert!(starts(&bench.step(Input::Written(answer))));
        bench.claim().unswept
    };

    // It moves in the middle.
    for (outcome, unswept) in [(Outcome::Stopped, true), (Outcome::Deployed, false)] {
        let (mut bench, claim) = vanished();
        assert!(starts(&bench.step(Input::Written(held("11", &claim)))));
        bench.step(Input::Seen(moved("12", &claim)));
        let effects = bench.done(outcome);
        assert_eq!(replaced(&mut bench, &effects, "d2"), unswept);
    }

    // It moves before the answer: the claim is replaced at once, and again.
    let (mut bench, claim) = vanished();
    bench.step(Input::Unclear);
    let effects = bench.step(Input::Read(moved("12", &claim)));
    let Some((_, End::Replace(next))) = finish(&effects) else { panic!("{effects:?}") };
    let next = next.clone();
    bench.step(Input::Unclear);
    let effects = bench.step(Input::Read(Snapshot { deployment: "d3".into(), ..held("13", &claim) }));
    assert_ne!(finish(&effects), Some((&"13".into(), &End::Replace(next))));
    assert!(replaced(&mut bench, &effects, "d3"));

    // It cannot be deployed: the mark waits for the change, and nothing else does.
    for takes_over in [true, false] {
        let (mut bench, claim) = vanished();
        if takes_over {
            bench.step(Input::Written(held("11", &claim)));
        } else {
            bench = Bench::running();
        }
        let effects = bench.done(Outcome::Permanent);
        let Some((_, End::Permanent(left))) = finish(&effects) else { panic!("{effects:?}") };
        assert_eq!(left.is_some(), takes_over);
        let Some(left) = left.clone() else { continue };
        let rejected = |version: &str, deployment: &str| Snapshot {
            outdated: deployment != left.deployment,
            deployment: deployment.into(),
            ..held(version, &left)
        };
        assert_eq!(bench.step(Input::Written(rejected("12", &left.deployment))), []);
        let mut other = Bench::new();
        assert_eq!(other.step(Input::Seen(rejected("12", &left.deployment))), []);
        other.pass(100_000);
        assert_eq!(other.step(Input::Tick), []);
        other.step(Input::Seen(rejected("13", "d9")));
        assert_eq!((other.claim().unswept, other.claim().attempt), (true, 1));
    }

    // It fails, and another replica tries next; a failure of its own leaves no mark.
    for takes_over in [true, false] {
        let mut bench = if takes_over {
            let (mut bench, claim) = vanished();
            bench.step(Input::Written(held("11", &claim)));
            bench
        } else {
            Bench::running()
        };
        let effects = bench.done(Outcome::Failed { cause: "quota".into() });
        let Some((_, End::BackOff(left))) = finish(&effects) else { panic!("{effects:?}") };
        let mut other = Bench::new();
        other.step(Input::Seen(held("12", left)));
        other.pass(600);
        assert_eq!(other.claim().unswept, takes_over);
    }
}

#[test]
fn who_waited_goes_on_with_the_next_deployment_id_only_if_a_slot_is_free() {
    for free in [0, 1] {
        let mut bench = Bench::running();
        let nonce = bench.claim().nonce;
        let effects = bench.step(Input::Waiting { nonce, seconds: 60 });
        let waits = writes(&effects)[0].1.clone();
        bench.step(Input::Written(held("12", &waits)));
        bench.slots.free = free;
        bench.step(Input::Seen(Snapshot { deployment: "d2".into(), ..held("13", &waits) }));
        let effects = bench.done(Outcome::Stopped);
        let Some((_, end)) = finish(&effects) else { panic!("{effects:?}") };
        assert_eq!(matches!(end, End::Replace(_)), free == 1, "{end:?}");
        assert_eq!(matches!(end, End::Release(Some(_))), free == 0, "{end:?}");
    }
}
