// SPDX-License-Identifier: Apache-2.0
//! The companion controller's step: claims that nobody is left to take over are expired.
//!
//! A claim is judged by what this observer saw with its own clock: nonce and state unchanged for budget and margin.
//! Several reapers may run; the same precondition decides between them.

use std::time::Duration;

use super::{Claim, ClaimSlot, ClaimState, Epoch, HealthyClock, Time, backoff};

/// Settings.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a claim that cannot be read: how long it may stand.
    pub claim_timeout: Duration,
    /// How much later than the claim's own budget the reaper acts.
    pub margin: Duration,
}

/// What the reaper remembers of one BundleDeployment: little, since there may be thousands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watched {
    /// Newest version seen.
    pub version: Epoch,
    /// The slot as last seen.
    pub slot: ClaimSlot,
    /// When this reaper first saw this nonce and state, in healthy time.
    pub since: Time,
}

/// How an object came to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// An event of the watch: it may be late.
    Event,
    /// In a list, by a live look, or as the answer to a write: that is what stands. At a lower version than what is known
    /// it is upstream that went back (it was restored), or a list that the events of its own watch follow.
    Read,
}

/// What to write in place of the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to do; open claims are to be looked at again at this healthy time.
    Leave(Option<Time>),
    /// Replace it, with the object's version as precondition.
    Replace(Claim),
}

/// Whether a sight says nothing, for more than that is known.
fn is_old(known: &Watched, sight: Sight, version: &Epoch) -> bool {
    sight == Sight::Event && *version < known.version
}

/// Takes in a sight of the object, unless it is old. Other status fields are no change of the claim.
pub fn see(
    before: Option<Watched>,
    sight: Sight,
    version: Epoch,
    slot: ClaimSlot,
    healthy: Time,
) -> Option<Watched> {
    if before.as_ref().is_some_and(|known| is_old(known, sight, &version)) {
        return before;
    }
    if slot == ClaimSlot::Empty {
        return None;
    }
    let since = before.filter(|watched| watched.slot.is_same(&slot)).map_or(healthy, |seen| seen.since);
    Some(Watched { version, slot, since })
}

/// Judges what is watched.
pub fn judge(watched: &Watched, limits: &Limits, healthy: Time) -> Verdict {
    let budget = match &watched.slot {
        ClaimSlot::Empty => return Verdict::Leave(None),
        ClaimSlot::Unreadable { .. } => limits.claim_timeout,
        ClaimSlot::Claim(claim) if !claim.state.is_open() => return Verdict::Leave(None),
        ClaimSlot::Claim(claim) => Duration::from_secs(claim.budget),
    };
    let end = watched.since.saturating_add(budget).saturating_add(limits.margin);
    if healthy < end {
        return Verdict::Leave(Some(end));
    }
    let claim = match &watched.slot {
        ClaimSlot::Claim(claim) => claim,
        // S2: never just removed. It may have been written over a claim of ours, and then the target is half done: the
        // next claimer is to see a takeover.
        ClaimSlot::Unreadable { text } => return Verdict::Replace(Claim::unreadable(text, &watched.version)),
        ClaimSlot::Empty => return Verdict::Leave(None),
    };
    let mut next = Claim { state: ClaimState::Expired, retry_in: None, ..claim.clone() };
    // A loss while waiting for readiness is no sign of poison.
    let counts = claim.state == ClaimState::Claimed;
    if counts {
        next.lose(&claim.session);
    }
    if counts && backoff::is_poison(&next) {
        next.state = ClaimState::Quarantined;
        next.cause = Some(format!("lost {} times by {}", next.lost, next.by.join(",")));
    } else {
        next.cause = Some(format!("holder {} was not heard of within its budget", claim.holder));
    }
    Verdict::Replace(next)
}

/// Healthy time of a reaper: the time in which its watch was known to work.
pub type WatchClock = HealthyClock;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    fn limits() -> Limits {
        Limits { claim_timeout: at(600), margin: at(30) }
    }

    fn claim(nonce: &str, state: ClaimState) -> Claim {
        let message = format!(
            "v1 holder=a session=s-{nonce} nonce={nonce} attempt=1 lost=0 by= budget=100 deployment=d"
        );
        let mut claim = Claim::parse("True", "Claimed", &message).unwrap();
        claim.state = state;
        claim
    }

    #[test]
    fn a_claim_is_expired_after_budget_and_margin_unchanged() {
        let slot = ClaimSlot::Claim(claim("n", ClaimState::Claimed));
        let seen = see(None, Sight::Event, "1".into(), slot.clone(), at(10));
        let seen = see(seen, Sight::Event, "9".into(), slot, at(100)).unwrap();
        assert_eq!(judge(&seen, &limits(), at(139)), Verdict::Leave(Some(at(140))));
        let Verdict::Replace(next) = judge(&seen, &limits(), at(140)) else { panic!() };
        assert_eq!((next.state, next.lost, next.by.join(",")), (ClaimState::Expired, 1, "s-n".into()));
        assert_eq!(seen.version, "9".into());
    }

    #[test]
    fn another_nonce_or_state_starts_the_count_anew() {
        let slot = |nonce: &str, state| ClaimSlot::Claim(claim(nonce, state));
        let seen = see(None, Sight::Event, "1".into(), slot("n", ClaimState::Claimed), at(0));
        let waiting = see(seen.clone(), Sight::Event, "2".into(), slot("n", ClaimState::Waiting), at(50));
        assert_eq!(waiting.as_ref().unwrap().since, at(50));
        let Verdict::Replace(next) = judge(&waiting.unwrap(), &limits(), at(180)) else { panic!() };
        assert_eq!(next.lost, 0, "a loss while waiting does not count");
        let other = see(seen, Sight::Event, "2".into(), slot("m", ClaimState::Claimed), at(50));
        assert_eq!(other.unwrap().since, at(50));
    }

    #[test]
    fn a_late_event_undoes_nothing_and_what_is_read_stands_at_whatever_version() {
        let slot = |nonce: &str| ClaimSlot::Claim(claim(nonce, ClaimState::Claimed));
        let known = see(None, Sight::Event, "120".into(), slot("n"), at(0));
        for late in [slot("m"), ClaimSlot::Empty] {
            assert_eq!(see(known.clone(), Sight::Event, "99".into(), late, at(50)), known);
        }
        let back = see(known.clone(), Sight::Read, "99".into(), slot("m"), at(50)).unwrap();
        let expected = Watched { version: "99".into(), slot: slot("m"), since: at(50) };
        assert_eq!(back, expected, "it is judged by its own version, from now on");
        assert!(!is_old(&back, Sight::Event, &"100".into()), "what follows is news again");
        let same = see(known.clone(), Sight::Read, "99".into(), slot("n"), at(50)).unwrap();
        assert_eq!((same.version, same.since), ("99".into(), at(0)), "seen unchanged all the time");
        assert_eq!(see(known, Sight::Read, "99".into(), ClaimSlot::Empty, at(50)), None);
    }

    #[test]
    fn the_third_loss_by_a_second_session_is_quarantine() {
        let mut lost = claim("n", ClaimState::Claimed);
        lost.lose(&"x".into());
        lost.lose(&"x".into());
        let seen = see(None, Sight::Event, "1".into(), ClaimSlot::Claim(lost), at(0)).unwrap();
        let Verdict::Replace(next) = judge(&seen, &limits(), at(130)) else { panic!() };
        assert_eq!((next.state, next.lost), (ClaimState::Quarantined, 3));
    }

    #[test]
    fn what_is_not_open_stays_and_what_cannot_be_read_is_marked_as_unfinished_in_the_end() {
        let resting = ClaimSlot::Claim(claim("n", ClaimState::BackingOff));
        let resting = see(None, Sight::Event, "1".into(), resting, at(0));
        assert_eq!(judge(&resting.unwrap(), &limits(), at(9999)), Verdict::Leave(None));
        let strange = ClaimSlot::Unreadable { text: "True Claimed v2 x=\ny".into() };
        let seen = see(None, Sight::Event, "1".into(), strange, at(0)).unwrap();
        assert_eq!(judge(&seen, &limits(), at(629)), Verdict::Leave(Some(at(630))));
        let Verdict::Replace(next) = judge(&seen, &limits(), at(630)) else { panic!() };
        assert_eq!(
            ClaimSlot::parse(next.status(), next.state.reason(), &next.message()).claim(),
            Some(&next)
        );
        assert_eq!((next.state, next.attempt, next.lost), (ClaimState::Expired, 0, 0));
        let later = Claim::unreadable("True Claimed v2 x=\ny", &"2".into());
        assert_ne!(next.nonce, later.nonce, "each is another claim");
        assert_eq!(see(None, Sight::Event, "1".into(), ClaimSlot::Empty, at(0)), None);
    }
}
