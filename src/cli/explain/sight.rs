// SPDX-License-Identifier: Apache-2.0
//! Replicas as they are seen from here, and times.

use chrono::{DateTime, SecondsFormat, Utc};

use super::facts::{Facts, Held, Life, SessionFact};
use crate::{
    api::{Condition, keys},
    cli::age,
    protocol::Claim,
};

/// The sessions that live, if they are seen.
pub(super) fn live<'a>(facts: &Facts<'a>) -> Option<Vec<&'a SessionFact>> {
    let sessions = facts.below?.sessions.as_ref().ok()?;
    Some(sessions.iter().filter(|session| is_live(session)).collect())
}

fn is_live(session: &SessionFact) -> bool {
    session.silent.is_some_and(|silent| silent <= session.ttl)
}

pub(super) fn held(facts: &Facts<'_>, claim: &Claim) -> Held {
    let life = match facts.below.map(|below| &below.sessions) {
        None | Some(Err(_)) => Life::Unknown,
        Some(Ok(sessions)) => match sessions.iter().find(|session| session.session == claim.session.0) {
            None => Life::Ended,
            Some(session) if is_live(session) => Life::Live,
            Some(_) => Life::Silent,
        },
    };
    Held {
        reason: claim.state.reason(),
        holder: claim.holder.0.clone(),
        session: claim.session.0.clone(),
        life,
        attempt: claim.attempt,
        lost: claim.lost,
        lost_by: claim.by.clone(),
        since: written(facts).map(stamp).unwrap_or_default(),
    }
}

pub(super) fn renewed(facts: &Facts<'_>, claim: &Claim) -> String {
    let sessions = facts.below.and_then(|below| below.sessions.as_ref().ok());
    let session = sessions.and_then(|all| all.iter().find(|session| session.session == claim.session.0));
    match session.and_then(|session| session.silent) {
        Some(silent) => format!("session {} was renewed {} ago", claim.session, age::text(silent)),
        None => format!("session {} was never renewed", claim.session),
    }
}

pub(super) fn replicas(count: usize) -> String {
    if count == 1 { "1 replica is".into() } else { format!("{count} replicas are") }
}

/// When the claim's condition was written.
pub(super) fn written(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    facts.bd.condition(keys::CLAIM_CONDITION)?.last_transition_time.parse().ok()
}

/// When a condition's status or message last changed.
pub(super) fn changed(condition: &Condition) -> Option<DateTime<Utc>> {
    condition.last_update_time.parse().ok()
}

pub(super) fn ago(now: DateTime<Utc>, since: Option<DateTime<Utc>>) -> String {
    since.map_or_else(|| "some time".to_owned(), |since| age::text((now - since).num_seconds()))
}

pub(super) fn stamp(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}
