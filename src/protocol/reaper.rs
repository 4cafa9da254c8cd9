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

/// What to write in place of the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to do; open claims are to be looked at again at this healthy time.
    Leave(Option<Time>),
    /// Replace it, with the object's version as precondition.
    Replace(Claim),
}

/// Takes in a newer sight of the object. Other status fields are no change of the claim.
pub fn see(before: Option<Watched>, version: Epoch, slot: ClaimSlot, healthy: Time) -> Option<Watched> {
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
        let seen = see(None, "1".into(), slot.clone(), at(10));
        let seen = see(seen, "9".into(), slot, at(100)).unwrap();
        assert_eq!(judge(&seen, &limits(), at(139)), Verdict::Leave(Some(at(140))));
        let Verdict::Replace(next) = judge(&seen, &limits(), at(140)) else { panic!() };
        assert_eq!((next.state, next.lost, next.by.join(",")), (ClaimState::Expired, 1, "s-n".into()));
        assert_eq!(seen.version, "9".into());
    }

    #[test]
    fn another_nonce_or_state_starts_the_count_anew() {
        let seen = see(None, "1".into(), ClaimSlot::Claim(claim("n", ClaimState::Claimed)), at(0));
        let waiting =
            see(seen.clone(), "2".into(), ClaimSlot::Claim(claim("n", ClaimState::Waiting)), at(50));
        assert_eq!(waiting.as_ref().unwrap().since, at(50));
        let Verdict::Replace(next) = judge(&waiting.unwrap(), &limits(), at(180)) else { panic!() };
        assert_eq!(next.lost, 0, "a loss while waiting does not count");
        let other = see(seen, "2".into(), ClaimSlot::Claim(claim("m", ClaimState::Claimed)), at(50));
        assert_eq!(other.unwrap().since, at(50));
    }

    #[test]
    fn the_third_loss_by_a_second_session_is_quarantine() {
        let mut lost = claim("n", ClaimState::Claimed);
        lost.lose(&"x".into());
        lost.lose(&"x".into());
        let seen = see(None, "1".into(), ClaimSlot::Claim(lost), at(0)).unwrap();
        let Verdict::Replace(next) = judge(&seen, &limits(), at(130)) else { panic!() };
        assert_eq!((next.state, next.lost), (ClaimState::Quarantined, 3));
    }

    #[test]
    fn what_is_not_open_stays_and_what_cannot_be_read_is_marked_as_unfinished_in_the_end() {
        let resting = see(None, "1".into(), ClaimSlot::Claim(claim("n", ClaimState::BackingOff)), at(0));
        assert_eq!(judge(&resting.unwrap(), &limits(), at(9999)), Verdict::Leave(None));
        let strange = ClaimSlot::Unreadable { text: "True Claimed v2 x=\ny".into() };
        let seen = see(None, "1".into(), strange, at(0)).unwrap();
        assert_eq!(judge(&seen, &limits(), at(629)), Verdict::Leave(Some(at(630))));
        let Verdict::Replace(next) = judge(&seen, &limits(), at(630)) else { panic!() };
        assert_eq!(
            ClaimSlot::parse(next.status(), next.state.reason(), &next.message()).claim(),
            Some(&next)
        );
        assert_eq!((next.state, next.attempt, next.lost), (ClaimState::Expired, 0, 0));
        let later = Claim::unreadable("True Claimed v2 x=\ny", &"2".into());
        assert_ne!(next.nonce, later.nonce, "each is another claim");
        assert_eq!(see(None, "1".into(), ClaimSlot::Empty, at(0)), None);
    }
}
