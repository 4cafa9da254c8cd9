// SPDX-License-Identifier: Apache-2.0
//! Judges who held which claim when: taken only from the dead, and alone where that is promised.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::disturber::Done;
use super::faults::{Fault, Who};
use super::judgement::Promises;
use super::witness::{Beat, Evidence};
use crate::harness::units::{Claim, End};

/// Beyond TTL, from the end of a silence to the takeover it led to, when nothing is in the way: the live look and the claim,
/// on a busy machine.
const LOOK_AND_CLAIM: Duration = Duration::from_secs(2);
/// The same at the most, whatever is in the way: the limits of two requests.
const TWO_REQUESTS: Duration = Duration::from_secs(20);
/// How long an API server that was killed may take to come back, for its clients.
const RESTART: Duration = Duration::from_secs(15);
/// Lost attempts after which the next may be quarantine: the unit works alone in its replica.
const SUSPECT: u32 = 2;

/// S8: a claim is taken only from a session that was silent for TTL, is gone, or overran its budget.
///
/// Silence is judged by the Lease in the store. The look at it and the takeover are requests to two servers, so a
/// session may speak again between them; what counts is that it was silent a moment before. That moment is as long as
/// what was done to the taker meanwhile.
pub fn from_the_living(evidence: &Evidence, done: &Done, promises: Promises) -> Vec<String> {
    // Seen here, two writes may be closer to each other than they were made.
    let slack = Duration::from_millis(500);
    let (claims, beats) = (evidence.units.claims(), &evidence.beats);
    let by_nonce: BTreeMap<&str, &Claim> = claims.iter().map(|claim| (claim.nonce.as_str(), claim)).collect();
    let mut found = Vec::new();
    for claim in claims {
        let (Some(End::Replaced { by, takeover: true }), Some(at)) = (&claim.end, claim.ended) else {
            continue;
        };
        let next = by_nonce.get(by.as_str()).map_or("?", |next| next.holder.as_str());
        let moment = (promises.ttl + LOOK_AND_CLAIM + hindered(done, next, at)).min(TWO_REQUESTS);
        let before: Vec<&Beat> =
            beats.iter().filter(|beat| beat.session == claim.session && beat.at <= at).collect();
        let gone = before.iter().any(|beat| beat.gone);
        let ends = before.iter().skip(1).map(|beat| beat.at).chain([at]);
        let silent = before.is_empty()
            || before
                .iter()
                .zip(ends)
                .any(|(beat, end)| end + moment >= at && end.duration_since(beat.at) + slack >= promises.ttl);
        let overran = claim.since + claim.budget <= at + slack;
        let born = before.first().map(|beat| beat.at);
        let replaced = beats.iter().any(|beat| {
            beat.holder == claim.holder
                && beat.session != claim.session
                && born.is_some_and(|born| beat.at > born)
                && beat.at <= at + slack
        });
        if !(gone || silent || overran || replaced) {
            let age = before.last().map(|beat| (at - beat.at).as_secs_f64()).unwrap_or_default();
            found.push(format!(
                "{} by {next} from {}, whose session {} had renewed {age:.1} s before, and was not silent for {:.1} s",
                claim.unit,
                claim.holder,
                claim.session,
                moment.as_secs_f64()
            ));
        }
    }
    found
}

/// How much of what was done in the time before `at` may have held up this replica or its requests.
fn hindered(done: &Done, holder: &str, at: Instant) -> Duration {
    let Some(begun) = done.begun else { return Duration::ZERO };
    let is_hit = |number: usize| holder == format!("replica-{number}");
    let mut sum = Duration::ZERO;
    for (after, fault) in &done.faults {
        let time = match fault {
            Fault::Freeze { who, time } if is_hit(*who) => *time,
            Fault::Link { who: Who::All, time, .. } => *time,
            Fault::Link { who: Who::One(number), time, .. } if is_hit(*number) => *time,
            Fault::FreezeEtcd { time, .. } => *time,
            Fault::RestartApi { .. } => RESTART,
            _ => continue,
        };
        let from = begun + *after;
        if from <= at && from + time + TWO_REQUESTS >= at {
            sum += time;
        }
    }
    sum
}

/// S6: whoever may be what kills replicas works alone: no other claim of its session is at work meanwhile.
///
/// A claim is at work until it waits or ends. One that has left no stamp downstream began nothing: such as one whose answer
/// came too late.
pub fn company(evidence: &Evidence) -> Vec<String> {
    let marks = evidence.marks.iter().map(|mark| &mark.stamp);
    let sights = evidence.sights.iter().filter_map(|sight| sight.state.as_ref()?.stamp.as_ref());
    let worked: BTreeSet<(&str, &str)> =
        marks.chain(sights).map(|stamp| (stamp.uid.0.as_str(), stamp.epoch.0.as_str())).collect();
    let claims = evidence.units.claims();
    let at_work: Vec<&Claim> =
        claims.iter().filter(|claim| worked.contains(&(claim.uid.as_str(), claim.epoch.as_str()))).collect();
    let is_before = |a: &Claim, b: &Claim| a.waiting.or(a.ended).is_some_and(|end| end <= b.seen);
    let mut found = Vec::new();
    for lone in at_work.iter().filter(|claim| claim.lost >= SUSPECT) {
        for other in at_work.iter().filter(|other| other.session == lone.session && other.unit != lone.unit) {
            if !is_before(lone, other) && !is_before(other, lone) {
                found.push(format!(
                    "{} (epoch {}, lost {}) beside {} (epoch {}) in {}",
                    lone.unit, lone.epoch, lone.lost, other.unit, other.epoch, lone.holder
                ));
            }
        }
    }
    found
}
