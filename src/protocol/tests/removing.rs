// SPDX-License-Identifier: Apache-2.0
//! Deletion, absence and re-creation.

use super::*;

fn again(version: &str) -> Snapshot {
    Snapshot { uid: "u2".into(), release: String::new(), ..object(version) }
}

fn settled() -> Bench {
    let mut bench = Bench::new();
    bench.step(Input::Seen(deployed("10")));
    bench
}

#[test]
fn a_deletion_is_an_order_and_a_deletion_seen_twice_is_one() {
    let mut bench = settled();
    assert_eq!(removes(&bench.step(Input::Deleted("u".into()))), Some("u"));
    assert_eq!(removes(&bench.step(Input::Deleted("u".into()))), None);
    assert_eq!(bench.step(Input::Removed(Removal::Complete)), [Effect::Forget]);
    assert_eq!(bench.unit, Unit::default());
}

#[test]
fn the_deletion_of_another_uid_touches_nothing() {
    let mut bench = settled();
    assert_eq!(bench.step(Input::Deleted("u0".into())), []);
    assert!(bench.unit.is_settled());
}

#[test]
fn a_deletion_while_running_first_waits_for_the_run_to_stop() {
    let mut bench = Bench::running();
    let nonce = bench.claim().nonce;
    let effects = bench.step(Input::Deleted("u".into()));
    assert!(cancels(&effects) && removes(&effects).is_none() && bench.unit.holds_slot(), "{effects:?}");
    let done = Input::Done { nonce, outcome: Outcome::Stopped, release: String::new() };
    assert_eq!(removes(&bench.step(done)), Some("u"));
    assert!(!bench.unit.holds_slot());
}

#[test]
fn a_deletion_while_claiming_ignores_the_claims_late_answer() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(object("10")));
    let claim = bench.claim();
    assert_eq!(removes(&bench.step(Input::Deleted("u".into()))), Some("u"));
    assert_eq!(bench.step(Input::Written(held("11", &claim))), []);
    assert_eq!(bench.step(Input::Read(held("11", &claim))), []);
    assert_eq!(bench.step(Input::Removed(Removal::Complete)), [Effect::Forget]);
}

#[test]
fn a_deletion_while_finishing_starts_the_removal() {
    let mut bench = Bench::running();
    bench.done(Outcome::Deployed);
    assert_eq!(removes(&bench.step(Input::Deleted("u".into()))), Some("u"));
    assert_eq!(bench.step(Input::ReadAbsent), [], "the finish meets nothing");
}

#[test]
fn a_re_creation_while_running_waits_for_the_old_run_and_does_not_take_its_end_for_the_new_ones() {
    let mut bench = Bench::running();
    let old = bench.claim().nonce;
    let effects = bench.step(Input::Seen(again("20")));
    assert!(cancels(&effects) && writes(&effects).is_empty(), "{effects:?}");
    let effects =
        bench.step(Input::Done { nonce: old.clone(), outcome: Outcome::Deployed, release: String::new() });
    assert_eq!(writes(&effects).len(), 1, "now the new one is claimed: {effects:?}");
    let claim = bench.claim();
    bench.step(Input::Written(Snapshot { slot: ClaimSlot::Claim(claim), ..again("21") }));
    let late = bench.step(Input::Done { nonce: old, outcome: Outcome::Deployed, release: String::new() });
    assert!(finish(&late).is_none());
}

#[test]
fn a_run_that_ended_before_the_deletion_is_not_waited_for() {
    let mut bench = Bench::running();
    let nonce = bench.claim().nonce;
    bench.step(Input::Waiting { nonce, seconds: 300 });
    bench.done(Outcome::Deployed);
    assert_eq!(removes(&bench.step(Input::Deleted("u".into()))), Some("u"));
}

#[test]
fn a_late_sight_of_the_old_uid_does_not_bring_it_back() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(again("20")));
    bench.step(Input::Seen(object("15")));
    bench.step(Input::Read(object("15")));
    assert_eq!(bench.unit.latest.as_ref().map(|latest| latest.uid.0.as_str()), Some("u2"));
}

#[test]
fn a_re_creation_before_the_removal_starts_leaves_all_to_the_new_ones_deployment() {
    let mut bench = Bench::running();
    bench.step(Input::Deleted("u".into()));
    let nonce = bench.unit.stopping.clone().expect("the old run");
    bench.step(Input::Seen(again("20")));
    let effects = bench.step(Input::Done { nonce, outcome: Outcome::Stopped, release: String::new() });
    assert!(removes(&effects).is_none() && writes(&effects).len() == 1, "{effects:?}");
}

#[test]
fn a_re_creation_during_the_removal_is_claimed_when_that_has_ended_however_it_ended() {
    for removal in [Removal::Complete, Removal::Failed, Removal::Guarded("b".into())] {
        let mut bench = settled();
        bench.step(Input::Deleted("u".into()));
        assert_eq!(bench.step(Input::Seen(again("20"))), []);
        assert_eq!(writes(&bench.step(Input::Removed(removal))).len(), 1);
    }
}

#[test]
fn a_second_deletion_during_the_first_removal_follows_it() {
    let mut bench = settled();
    bench.step(Input::Deleted("u".into()));
    bench.step(Input::Seen(again("20")));
    assert_eq!(removes(&bench.step(Input::Deleted("u2".into()))), None);
    assert_eq!(removes(&bench.step(Input::Removed(Removal::Complete))), Some("u2"));
    assert_eq!(bench.step(Input::Removed(Removal::Complete)), [Effect::Forget]);
}

#[test]
fn a_failed_removal_is_repeated_and_a_guarded_one_looked_at_after_ttl() {
    let mut bench = settled();
    bench.lease("b", "1");
    bench.step(Input::Deleted("u".into()));
    bench.now += bench.config.steal_delay;
    bench.step(Input::Tick);
    let due = wake(&bench.step(Input::Removed(Removal::Failed))).expect("a wake");
    bench.now = due;
    assert_eq!(removes(&bench.step(Input::Tick)), Some("u"));
    assert_eq!(wake(&bench.step(Input::Removed(Removal::Guarded("b".into())))), Some(due + secs(15)));
}

#[test]
fn a_guard_is_taken_at_once_when_dead_and_at_the_second_look_when_quiet() {
    let mut bench = settled();
    bench.step(Input::Deleted("u".into()));
    bench.sessions.gone(&"b".into(), bench.now);
    let effects = bench.step(Input::Removed(Removal::Guarded("b".into())));
    assert_eq!(effects, [Effect::Remove { uid: "u".into(), dead_guard: Some("b".into()) }]);
    let effects = bench.step(Input::Removed(Removal::Guarded("c".into())));
    assert!(removes(&effects).is_none());
    bench.pass(15);
    let effects = bench.step(Input::Removed(Removal::Guarded("c".into())));
    assert_eq!(effects, [Effect::Remove { uid: "u".into(), dead_guard: Some("c".into()) }]);
}

#[test]
fn absence_is_no_order_before_the_grace_period_of_answers_is_over() {
    let mut bench = settled();
    assert!(rereads(&bench.step(Input::Vanished)));
    for _ in 0..100 {
        bench.now += secs(10);
        let effects = bench.step(Input::ReadFailed);
        assert!(rereads(&effects) && removes(&effects).is_none(), "an outage proves nothing");
    }
    let effects = bench.step(Input::ReadAbsent);
    assert_eq!(wake(&effects), Some(bench.now + secs(300)));
    assert!(rereads(&bench.pass(300)), "asked once more at the end");
    assert_eq!(removes(&bench.step(Input::ReadAbsent)), Some("u"));
}

#[test]
fn an_object_that_is_seen_again_was_never_absent() {
    let mut bench = settled();
    bench.step(Input::Vanished);
    bench.step(Input::ReadAbsent);
    bench.step(Input::Seen(deployed("10")));
    assert!(bench.unit.is_settled());
}

#[test]
fn a_deleted_object_that_comes_back_under_its_uid_is_deployed_again() {
    let mut bench = settled();
    bench.step(Input::Deleted("u".into()));
    bench.step(Input::Seen(deployed("10")));
    assert_eq!(writes(&bench.step(Input::Removed(Removal::Complete))).len(), 1);
}

#[test]
fn the_deletion_of_what_was_never_seen_leaves_nothing_behind() {
    let mut bench = Bench::new();
    assert_eq!(bench.step(Input::Deleted("u".into())), [Effect::Forget]);
}

#[test]
fn a_draining_replica_starts_no_removal() {
    let mut bench = settled();
    bench.draining = true;
    assert_eq!(bench.step(Input::Deleted("u".into())), []);
}

#[test]
fn a_late_sight_of_what_was_deleted_does_not_deploy_its_successor_twice() {
    let mut bench = settled();
    assert_eq!(removes(&bench.step(Input::Deleted("u".into()))), Some("u"));
    bench.step(Input::Seen(again("20")));
    // A list from a lagging cache, after the watch was lost.
    bench.step(Input::Seen(deployed("15")));
    bench.step(Input::Removed(Removal::Failed));
    assert!(!bench.unit.redeploy, "only a deployment of its own asks for one");
    assert_eq!(bench.unit.latest.as_ref().map(|latest| latest.uid.clone()), Some("u2".into()));
}
