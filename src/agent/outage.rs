// SPDX-License-Identifier: Apache-2.0
//! Whether this cluster can be looked at at all. Where it cannot, `Monitored` says so, once, and all else stays as it
//! was known last.
//!
//! Two things tell: the own session Lease, which gets an answer every few seconds from a server that gives any, and the
//! watch of a kind. The first counts for all units, the second for those with objects of that kind.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{info, warn};

use super::{context::Context, inbox::Name, look::write, monitoring::Outcome, plan::Plan, replica::Replica};
use crate::{
    api::BundleDeployment, downstream::session::Silence, monitor::conditions::MONITORED, protocol::Time,
    upstream::fields::Fields,
};

/// How long the API server may give no answer, or looks at a unit may fail, before units say so. Longer than its restart
/// takes.
pub(super) const OUTAGE: Duration = Duration::from_secs(60);
/// Wait before a unit that cannot be seen is looked at again although nothing called for it.
pub(super) const BLIND: Duration = Duration::from_secs(60);

/// What is to be said of a unit that cannot be seen.
pub(super) struct Unseen {
    /// What was tried, and what came of it.
    pub cause: String,
    /// Somebody who sees has contradicted already.
    pub contradicted: bool,
}

/// What this replica knows of an outage.
#[derive(Default)]
pub struct Outage {
    silence: Option<Silence>,
    /// The outage has lasted long enough to be told.
    out: bool,
    /// When the last silence ended.
    ended: Option<Instant>,
}

impl Outage {
    /// When the silence will have lasted long enough.
    pub fn due(&self) -> Option<Instant> {
        self.silence.as_ref().filter(|_| !self.out).map(|silence| silence.since + OUTAGE)
    }

    /// Why nothing can be seen.
    pub fn cause(&self) -> Option<String> {
        let silence = self.silence.as_ref().filter(|_| self.out)?;
        Some(format!("cannot reach the API server of the downstream cluster: {}", silence.cause))
    }

    /// The server answers again, but watches that wait for their next try need not know it yet: what they do not see, peers
    /// may see.
    pub fn is_just_over(&self, now: Instant) -> bool {
        self.silence.is_none() && self.ended.is_some_and(|ended| now < ended + OUTAGE)
    }

    /// Takes in what the session says; `true` when units are to be looked at.
    fn note(&mut self, silence: Option<Silence>, now: Instant) -> bool {
        let out = silence.as_ref().is_some_and(|silence| now >= silence.since + OUTAGE);
        if self.silence.is_some() && silence.is_none() {
            self.ended = Some(now);
        }
        self.silence = silence;
        std::mem::replace(&mut self.out, out) != out
    }
}

impl Replica {
    /// The API server fell silent, has been for long, or answers again.
    pub(super) fn on_silence(&mut self, silence: Option<Silence>) {
        if !self.outage.note(silence, Instant::now()) {
            return;
        }
        match self.outage.cause() {
            Some(cause) => warn!(cause, "the cluster cannot be looked at"),
            None => info!("the cluster can be looked at again"),
        }
        let names: Vec<Name> = self.units.keys().cloned().collect();
        for name in names {
            if let Some(entry) = self.units.get_mut(&name) {
                entry.monitored.look_anew();
            }
            self.monitor_if_due(&name);
        }
    }

    /// Whether what this replica says of what it cannot see counts: peers that took over its duties may see.
    pub(super) fn is_vouched_for(&self, now: Time) -> bool {
        self.healthy.vouches(now)
    }
}

/// Says that a unit cannot be seen. Said once: in an outage of hours thousands of units would be written over and over.
pub(super) async fn tell(
    ctx: &Arc<Context>,
    name: &Name,
    object: &Arc<BundleDeployment>,
    plan: Option<Arc<Plan>>,
    unseen: Unseen,
) -> Outcome {
    let said = object.condition(MONITORED).is_some_and(|condition| condition.status == "False");
    if said || unseen.contradicted {
        return Outcome::Unseen { plan, told: None };
    }
    let fields = Fields { conditions: vec![(MONITORED, Err(unseen.cause))], ..Fields::default() };
    match write(ctx, name, object, &fields).await {
        Some(Ok(object)) => Outcome::Unseen { plan, told: Some(object) },
        None => Outcome::Unseen { plan, told: None },
        Some(Err(cause)) => Outcome::Again(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_when_it_has_lasted_and_when_it_ends() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let silence = |cause: &str| Some(Silence { since: start, cause: cause.into() });
        assert!(!outage.note(None, start) && outage.due().is_none());
        assert!(!outage.note(silence("refused"), start + OUTAGE / 2), "a restart of the server is no outage");
        assert_eq!((outage.due(), outage.cause()), (Some(start + OUTAGE), None));
        assert!(outage.note(silence("no answer"), start + OUTAGE));
        assert!(outage.due().is_none() && outage.cause().is_some_and(|cause| cause.ends_with(": no answer")));
        assert!(!outage.note(silence("no answer"), start + OUTAGE * 2));
        assert!(!outage.is_just_over(start + OUTAGE * 2));
        assert!(outage.note(None, start + OUTAGE * 3) && outage.cause().is_none());
        assert!(outage.is_just_over(start + OUTAGE * 3) && !outage.is_just_over(start + OUTAGE * 4));
    }
}
