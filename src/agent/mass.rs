// SPDX-License-Identifier: Apache-2.0
//! When much disappears at once: absence is no order, and many deletions may be one removed CRD.
//!
//! What is held is held until it is back, until a person deletes it properly, or until the long grace is over.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tracing::warn;

use super::{context::Context, inbox::Name, notes};
use crate::{
    protocol::{Mass, Time, Uid},
    telemetry::events::{EventType, reason},
    upstream::UpstreamError,
};

/// Between a deletion and the look whether the kind itself is being removed: the API server marks the kind before it
/// deletes the objects, and its discovery follows within this time.
const SETTLE: Duration = Duration::from_secs(2);
/// The part of `/readyz` that tells what is held.
pub(super) const PART: &str = "absence";

/// Whether so many of so many vanished that something else than a wish is behind it. When nothing at all is `left`,
/// however little there was, the namespace was wiped, or this is another management cluster.
pub(super) fn is_mass(missing: usize, known: usize, left: usize) -> bool {
    Mass::USUAL.is(missing, known) || (missing > 0 && left == 0)
}

/// What is held.
#[derive(Debug, Default)]
pub struct Holds(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    /// Missing from a list, together with many others.
    units: HashSet<Name>,
    /// Deleted while the kind was being removed; not uninstalled before this time.
    removals: HashMap<Uid, (Name, Time)>,
    /// Releases without a BundleDeployment, too many at once.
    releases: usize,
}

impl Holds {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this unit has the long grace.
    pub(super) fn has(&self, name: &Name) -> bool {
        self.lock().units.contains(name)
    }

    /// What is held, as a part of readiness: people must be able to find it.
    fn state(&self) -> Result<(), String> {
        let held = self.lock();
        match held.units.len() + held.removals.len() + held.releases {
            0 => Ok(()),
            count => Err(format!(
                "{count} BundleDeployments vanished at once; what they deployed is kept until they are back, are \
                 deleted properly, or the long grace is over"
            )),
        }
    }
}

/// Many units are missing from one list.
pub(super) fn hold_units(ctx: &Context, missing: &[Name], known: usize) {
    let news = {
        let mut held = ctx.holds.lock();
        let news = held.units.is_empty();
        held.units.extend(missing.iter().cloned());
        news
    };
    if news {
        let count = missing.len();
        warn!(missing = count, known, "many BundleDeployments are missing at once: nothing is uninstalled");
        let note = format!(
            "{count} of {known} BundleDeployments are missing without a DELETED event; nothing is removed before \
             they were missing for {} s",
            ctx.mass_grace.as_secs()
        );
        notes::publish(ctx, None, EventType::Warning, reason::ABSENCE_HELD, note);
    }
    ctx.health.set(PART, ctx.holds.state());
}

/// A unit is back, or gone for good.
pub(super) fn settle_unit(ctx: &Context, name: &Name) {
    let was_held = {
        let mut held = ctx.holds.lock();
        let before = held.removals.len();
        held.removals.retain(|_, (held, _)| held != name);
        held.units.remove(name) || held.removals.len() != before
    };
    if was_held {
        ctx.health.set(PART, ctx.holds.state());
    }
}

/// Releases without a BundleDeployment are held.
pub(super) fn hold_releases(ctx: &Context, count: usize, known: usize) {
    let before = std::mem::replace(&mut ctx.holds.lock().releases, count);
    if count > 0 && before == 0 {
        warn!(count, known, "many releases have no BundleDeployment: nothing is uninstalled");
        let note = format!(
            "{count} of {known} releases have no BundleDeployment; nothing is removed before that was so for {} s",
            ctx.mass_grace.as_secs()
        );
        notes::publish(ctx, None, EventType::Warning, reason::ABSENCE_HELD, note);
    }
    if before != count {
        ctx.health.set(PART, ctx.holds.state());
    }
}

/// Why a removal has to wait.
#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    /// The kind is going or gone.
    #[error("BundleDeployments as a kind are not (fully) served: that is no wish to uninstall")]
    NotServed,
    /// It was so when this one vanished.
    #[error("it vanished together with its kind: held for {0:?} more")]
    Held(Duration),
    /// It could not be found out.
    #[error("cannot tell whether BundleDeployments are served")]
    Unknown(#[source] UpstreamError),
}

/// Before anything of `uid` is uninstalled: deletions behind a removed CRD are no order.
pub(super) async fn allow_removal(ctx: &Context, name: &str, uid: &Uid) -> Result<(), HoldError> {
    tokio::time::sleep(SETTLE).await;
    if !ctx.upstream.serves_units().await.map_err(HoldError::Unknown)? {
        let until = ctx.clock.now() + ctx.mass_grace;
        let news = {
            let mut held = ctx.holds.lock();
            let news = held.removals.is_empty();
            held.removals.insert(uid.clone(), (name.into(), until));
            news
        };
        if news {
            let note = "BundleDeployments vanish because their kind is being removed; nothing is uninstalled";
            warn!("{note}");
            notes::publish(ctx, None, EventType::Warning, reason::ABSENCE_HELD, note.to_owned());
        }
        ctx.health.set(PART, ctx.holds.state());
        return Err(HoldError::NotServed);
    }
    let until = ctx.holds.lock().removals.get(uid).map(|(_, until)| *until).unwrap_or_default();
    match until.saturating_sub(ctx.clock.now()) {
        Duration::ZERO => {
            settle_removal(ctx, uid);
            Ok(())
        }
        rest => Err(HoldError::Held(rest)),
    }
}

/// A removal ended, or is not needed: the unit was made anew.
pub(super) fn settle_removal(ctx: &Context, uid: &Uid) {
    let was_held = ctx.holds.lock().removals.remove(uid).is_some();
    if was_held {
        ctx.health.set(PART, ctx.holds.state());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_or_a_small_share_is_an_ordinary_day() {
        for (missing, known, left, mass) in [
            (0, 0, 0, false),
            (10, 11, 1, false),
            (11, 12, 1, true),
            (11, 54, 43, true),
            (11, 55, 44, false),
            (20, 100, 80, false),
            (21, 100, 79, true),
            // All there was.
            (1, 1, 0, true),
            (10, 10, 0, true),
        ] {
            assert_eq!(is_mass(missing, known, left), mass, "{missing} of {known}, {left} left");
        }
    }

    #[test]
    fn what_is_held_is_told_and_forgotten_when_it_is_back() {
        let holds = Holds::default();
        assert_eq!(holds.state(), Ok(()));
        holds.lock().units.insert("web".into());
        holds.lock().removals.insert("u".into(), ("db".into(), Time::ZERO));
        assert!(holds.state().unwrap_err().starts_with("2 BundleDeployments vanished"));
        assert!(holds.has(&"web".into()) && !holds.has(&"db".into()));
    }
}
