// SPDX-License-Identifier: Apache-2.0
//! Foreign changes: when they call for a claim.

use super::*;

fn drift(deployment: &str, seen: bool) -> Input {
    Input::Drift { deployment: deployment.into(), seen }
}

fn at_rest(version: &str, corrects: bool) -> Snapshot {
    Snapshot { corrects, ..deployed(version) }
}

#[test]
fn drift_is_claimed_only_where_it_is_to_be_corrected_and_was_seen_for_what_is_deployed() {
    let paused = |snapshot| Snapshot { gate: Gate::Held, ..snapshot };
    for (name, snapshot, inputs, claims) in [
        ("seen", at_rest("10", true), vec![drift("d1", true)], true),
        ("not to be corrected", at_rest("10", false), vec![drift("d1", true)], false),
        ("paused", paused(at_rest("10", true)), vec![drift("d1", true)], false),
        ("of another deployment", at_rest("10", true), vec![drift("d0", true)], false),
        ("nothing there", at_rest("10", true), vec![drift("d1", false)], false),
    ] {
        let mut bench = Bench::new();
        bench.step(Input::Seen(snapshot));
        let effects: Vec<Effect> = inputs.into_iter().flat_map(|input| bench.step(input)).collect();
        assert_eq!(!writes(&effects).is_empty(), claims, "{name}: {effects:?}");
    }
}

#[test]
fn correction_switched_on_later_acts_on_what_was_seen_before() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(at_rest("10", false)));
    assert!(writes(&bench.step(drift("d1", true))).is_empty());
    assert_eq!(writes(&bench.step(Input::Seen(at_rest("11", true)))).len(), 1);
}

#[test]
fn a_correction_is_done_once_and_drift_that_went_away_asks_for_none() {
    let mut bench = Bench::new();
    bench.step(Input::Seen(at_rest("10", true)));
    bench.step(drift("d1", true));
    let claim = bench.claim();
    bench.step(Input::Written(Snapshot { corrects: true, ..held_at_rest("11", &claim) }));
    bench.done(Outcome::Deployed);
    let effects = bench.step(Input::Written(Snapshot { release: "ns/app:3".into(), ..at_rest("12", true) }));
    assert!(writes(&effects).is_empty() && bench.is_idle(), "{effects:?}");
    assert_eq!(bench.unit.drift, None);

    let mut bench = Bench::new();
    bench.step(Input::Seen(Snapshot { gate: Gate::Held, ..at_rest("10", true) }));
    bench.step(drift("d1", true));
    bench.step(drift("d1", false));
    assert!(writes(&bench.step(Input::Seen(at_rest("11", true)))).is_empty());
}

fn held_at_rest(version: &str, claim: &Claim) -> Snapshot {
    Snapshot { outdated: false, ..held(version, claim) }
}

#[test]
fn what_lives_may_be_told_while_a_refused_correction_backs_off() {
    for (state, outdated, settled) in [
        (ClaimState::BackingOff, false, true),
        (ClaimState::BackingOff, true, false),
        (ClaimState::Claimed, false, false),
        (ClaimState::Expired, false, false),
    ] {
        let mut bench = Bench::new();
        let claim = Claim { state, retry_in: Some(60), session: "b".into(), ..rival(state) };
        bench.lease("b", "1");
        bench.step(Input::Seen(Snapshot { outdated, corrects: true, ..held("10", &claim) }));
        assert_eq!(bench.unit.is_settled(), settled, "{state:?} {outdated}");
    }
}
