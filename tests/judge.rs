// SPDX-License-Identifier: Apache-2.0
//! The judge of the higher rungs finds what it looks for: a judge that never objects proves nothing.

use std::time::Duration;

use flotilla::protocol::Stamp;
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::judge::{Ended, lost_claims, verdict};
use harness::records::Record;
use harness::units::{Claim, End};

fn claim(nonce: &str, epoch: &str, holder: &str, end: Option<End>) -> Claim {
    Claim {
        unit: "app".into(),
        uid: "uid".into(),
        epoch: epoch.into(),
        holder: holder.into(),
        session: format!("session-of-{holder}"),
        nonce: nonce.into(),
        attempt: 1,
        lost: 0,
        deployment: "s-1:2".into(),
        budget: Duration::from_secs(20),
        seen: Instant::now(),
        since: Instant::now(),
        waiting: None,
        ended: None,
        end,
    }
}

fn record(revision: u32, epoch: &str, states: &[&str]) -> Record {
    Record {
        namespace: "default".into(),
        release: "app".into(),
        revision,
        stamp: Some(Stamp { uid: "uid".into(), epoch: epoch.into() }),
        states: states.iter().map(|state| (*state).to_owned()).collect(),
        seen: Instant::now(),
    }
}

fn taken_over_by(nonce: &str) -> Option<End> {
    Some(End::Replaced { by: nonce.into(), takeover: true })
}

const DEPLOYED: &[&str] = &["pending-install", "deployed"];
const SUPERSEDED: &[&str] = &["pending-install", "deployed", "superseded"];

#[test]
fn one_claim_and_one_revision_is_as_it_should_be() {
    let judged = verdict(&[claim("a", "7", "one", Some(End::Finished))], &[record(1, "7", DEPLOYED)], &[]);
    assert!(judged.doubles.is_empty() && judged.repeats.is_empty() && judged.takeovers.is_empty());
    assert_eq!((judged.gates, judged.deployments["one"]), (1, 1));
}

#[test]
fn a_second_deployment_after_a_finished_one_is_double() {
    let claims = [claim("a", "7", "one", Some(End::Finished)), claim("b", "9", "two", Some(End::Finished))];
    let judged = verdict(&claims, &[record(1, "7", SUPERSEDED), record(2, "9", DEPLOYED)], &[]);
    assert_eq!(judged.doubles.len(), 1, "{judged:?}");
    assert!(judged.doubles[0].contains("default/app:2 by two repeats revision 1"), "{judged:?}");
}

#[test]
fn two_revisions_under_one_claim_are_double() {
    let claims = [claim("a", "7", "one", Some(End::Finished))];
    let records = [record(1, "7", &["pending-install", "failed"]), record(2, "7", DEPLOYED)];
    assert_eq!(verdict(&claims, &records, &[]).doubles.len(), 1);
}

#[test]
fn a_revision_under_no_claim_is_double() {
    let claims = [claim("a", "7", "one", Some(End::Finished))];
    assert_eq!(verdict(&claims, &[record(1, "8", DEPLOYED)], &[]).doubles.len(), 1);
    let unstamped = Record { stamp: None, ..record(1, "7", DEPLOYED) };
    assert_eq!(verdict(&claims, &[unstamped], &[]).doubles.len(), 1);
}

#[test]
fn a_repetition_after_a_lost_claim_is_excused_and_counted() {
    let claims = [claim("a", "7", "one", taken_over_by("b")), claim("b", "9", "two", Some(End::Finished))];
    let killed = [Ended { holder: "one".into(), at: Instant::now() }];
    for first in [&["pending-install", "failed"][..], SUPERSEDED] {
        let judged = verdict(&claims, &[record(1, "7", first), record(2, "9", DEPLOYED)], &killed);
        assert!(judged.doubles.is_empty(), "{judged:?}");
        assert_eq!((judged.repeats["app"], lost_claims(&claims, "app")), (1, 1));
        assert!(!judged.takeovers[0].from_the_living);
    }
}

#[test]
fn a_new_version_is_no_repetition() {
    let claims = [
        claim("a", "7", "one", Some(End::Finished)),
        Claim { deployment: "s-2:2".into(), ..claim("b", "9", "two", Some(End::Finished)) },
    ];
    let judged = verdict(&claims, &[record(1, "7", SUPERSEDED), record(2, "9", DEPLOYED)], &[]);
    assert!(judged.doubles.is_empty() && judged.repeats.is_empty(), "{judged:?}");
}

#[test]
fn a_rollback_is_no_repetition_even_when_what_it_takes_back_left_no_record() {
    let other = Claim { deployment: "s-2:2".into(), ..claim("b", "8", "two", Some(End::Released)) };
    let back = claim("c", "9", "two", Some(End::Finished));
    let records = [record(1, "7", DEPLOYED), record(2, "9", DEPLOYED)];
    let first = claim("a", "7", "one", Some(End::Finished));
    assert!(verdict(&[first.clone(), other, back.clone()], &records, &[]).doubles.is_empty());
    assert_eq!(verdict(&[first, back], &records, &[]).doubles.len(), 1);
}

#[test]
fn a_takeover_from_the_living_is_told() {
    let claims = [claim("a", "7", "one", taken_over_by("b")), claim("b", "9", "two", Some(End::Finished))];
    let other = [Ended { holder: "three".into(), at: Instant::now() }];
    let judged = verdict(&claims, &[record(2, "9", DEPLOYED)], &other);
    let taken = &judged.takeovers[0];
    assert_eq!((taken.from.as_str(), taken.to.as_str(), taken.from_the_living), ("one", "two", true));
}
