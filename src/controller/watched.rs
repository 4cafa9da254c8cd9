// SPDX-License-Identifier: Apache-2.0
//! The claims under observation, and the clock that counts only while the watch works. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::{
    protocol::{
        ClaimSlot, ClaimState, Epoch, Time,
        reaper::{self, Limits, Sight, Verdict, Watched},
    },
    telemetry::metrics::FleetClaim,
};

/// Namespace and name of a BundleDeployment.
pub type Key = (String, String);

/// Counts the time in which the watch was known to work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    base: Time,
    since: Option<Time>,
}

impl Progress {
    /// The watch works.
    pub fn works(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// The watch is broken.
    pub fn broken(&mut self, now: Time) {
        self.base = self.at(now);
        self.since = None;
    }

    /// Time counted so far.
    pub fn at(&self, now: Time) -> Time {
        self.base + self.since.map_or(Time::ZERO, |since| now.saturating_sub(since))
    }
}

/// All claims under observation. Objects without one cost nothing.
#[derive(Debug, Default)]
pub struct Claims {
    claims: HashMap<Key, Entry>,
    due: BTreeSet<(Time, Key)>,
    counts: HashMap<FleetClaim, usize>,
}

#[derive(Debug)]
struct Entry {
    watched: Watched,
    due: Option<Time>,
}

impl Claims {
    /// An object was seen.
    pub fn see(
        &mut self,
        key: Key,
        sight: Sight,
        version: Epoch,
        slot: ClaimSlot,
        limits: &Limits,
        healthy: Time,
    ) {
        let before = self.forget(&key);
        let after = reaper::see(before, sight, version, slot, healthy);
        self.keep(key, after, limits, healthy);
    }

    fn keep(&mut self, key: Key, watched: Option<Watched>, limits: &Limits, healthy: Time) {
        let Some(watched) = watched else { return };
        let due = due(&watched, limits, healthy);
        if let Some(time) = due {
            self.due.insert((time, key.clone()));
        }
        if let Some(sort) = sort(&watched.slot) {
            *self.counts.entry(sort).or_default() += 1;
        }
        self.claims.insert(key, Entry { watched, due });
    }

    /// What is known of an object.
    pub fn known(&self, key: &Key) -> Option<&Watched> {
        self.claims.get(key).map(|entry| &entry.watched)
    }

    /// An object is gone, or its claim.
    pub fn forget(&mut self, key: &Key) -> Option<Watched> {
        let Entry { watched, due } = self.claims.remove(key)?;
        if let Some(time) = due {
            self.due.remove(&(time, key.clone()));
        }
        if let Some(count) = sort(&watched.slot).and_then(|sort| self.counts.get_mut(&sort)) {
            *count = count.saturating_sub(1);
        }
        Some(watched)
    }

    /// Only these objects exist.
    pub fn retain(&mut self, listed: &std::collections::HashSet<Key>) {
        let gone: Vec<Key> = self.claims.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        for key in gone {
            self.forget(&key);
        }
    }

    /// When the first one is due.
    pub fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(time, _)| *time)
    }

    /// Takes those that are due, to be looked at live. Until that is seen, or a retry asked for, they are due no more.
    pub fn take_due(&mut self, limits: &Limits, healthy: Time) -> Vec<Key> {
        let mut taken = Vec::new();
        while let Some((time, _)) = self.due.first()
            && *time <= healthy
        {
            let Some((_, key)) = self.due.pop_first() else { break };
            let Some(entry) = self.claims.get_mut(&key) else { continue };
            entry.due = None;
            match reaper::judge(&entry.watched, limits, healthy) {
                Verdict::Replace(_) => taken.push(key),
                Verdict::Leave(Some(later)) => self.retry(key, later),
                Verdict::Leave(None) => {}
            }
        }
        taken
    }

    /// Looks at it again later: the server could not be asked.
    pub fn retry(&mut self, key: Key, at: Time) {
        let Some(entry) = self.claims.get_mut(&key) else { return };
        if let Some(time) = entry.due.replace(at) {
            self.due.remove(&(time, key.clone()));
        }
        self.due.insert((at, key));
    }

    /// How many there are of a sort, for the metric.
    pub fn count(&self, sort: FleetClaim) -> usize {
        self.counts.get(&sort).copied().unwrap_or(0)
    }
}

fn sort(slot: &ClaimSlot) -> Option<FleetClaim> {
    Some(match slot {
        ClaimSlot::Empty => return None,
        ClaimSlot::Unreadable { .. } => FleetClaim::Unreadable,
        ClaimSlot::Claim(claim) => match claim.state {
            ClaimState::Claimed | ClaimState::Waiting => FleetClaim::Open,
            ClaimState::BackingOff => FleetClaim::BackingOff,
            ClaimState::Expired => FleetClaim::Expired,
            ClaimState::Quarantined => FleetClaim::Quarantined,
        },
    })
}

fn due(watched: &Watched, limits: &Limits, healthy: Time) -> Option<Time> {
    match reaper::judge(watched, limits, healthy) {
        Verdict::Leave(time) => time,
        Verdict::Replace(_) => Some(healthy),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    fn limits() -> Limits {
        Limits { claim_timeout: at(600), margin: at(30) }
    }

    fn slot(nonce: &str) -> ClaimSlot {
        let message =
            format!("v1 holder=a session=s nonce={nonce} attempt=1 lost=0 by= budget=100 deployment=d");
        ClaimSlot::parse("True", "Claimed", &message)
    }

    fn key() -> Key {
        ("ns".into(), "app".into())
    }

    #[test]
    fn a_broken_watch_counts_for_nothing() {
        let mut progress = Progress::default();
        progress.works(at(10));
        progress.works(at(15));
        progress.broken(at(20));
        assert_eq!(progress.at(at(500)), at(10));
        progress.works(at(500));
        assert_eq!(progress.at(at(505)), at(15));
    }

    #[test]
    fn a_claim_is_due_once_and_only_while_it_stands() {
        let mut claims = Claims::default();
        claims.see(key(), Sight::Event, "5".into(), slot("n"), &limits(), at(0));
        claims.see(key(), Sight::Event, "6".into(), slot("n"), &limits(), at(50));
        assert_eq!((claims.next_due(), claims.count(FleetClaim::Open)), (Some(at(130)), 1));
        assert!(claims.take_due(&limits(), at(129)).is_empty());
        assert_eq!(claims.take_due(&limits(), at(130)), [key()]);
        assert_eq!(claims.known(&key()).unwrap().version, "6".into());
        assert!(claims.take_due(&limits(), at(131)).is_empty());
        claims.retry(key(), at(135));
        claims.see(key(), Sight::Event, "7".into(), ClaimSlot::Empty, &limits(), at(132));
        assert_eq!((claims.next_due(), claims.count(FleetClaim::Open)), (None, 0));
    }

    #[test]
    fn a_new_nonce_has_its_whole_budget_and_a_late_event_changes_nothing() {
        let mut claims = Claims::default();
        claims.see(key(), Sight::Event, "5".into(), slot("n"), &limits(), at(0));
        claims.see(key(), Sight::Event, "8".into(), slot("m"), &limits(), at(100));
        assert_eq!(claims.next_due(), Some(at(230)));
        claims.see(key(), Sight::Event, "5".into(), slot("n"), &limits(), at(110));
        assert_eq!(claims.next_due(), Some(at(230)));
        claims.retain(&std::collections::HashSet::new());
        assert_eq!(claims.next_due(), None);
    }

    #[test]
    fn after_a_restore_what_is_listed_is_due_and_counted_and_what_was_known_is_not() {
        let mut claims = Claims::default();
        let resting = ClaimSlot::parse(
            "False",
            "Quarantined",
            "v1 holder=a session=s nonce=m attempt=3 lost=3 by= budget=100 deployment=d",
        );
        claims.see(key(), Sight::Event, "120".into(), resting, &limits(), at(0));
        let counts =
            |claims: &Claims| (claims.count(FleetClaim::Open), claims.count(FleetClaim::Quarantined));
        claims.see(key(), Sight::Event, "90".into(), slot("n"), &limits(), at(10));
        assert_eq!((claims.next_due(), counts(&claims)), (None, (0, 1)), "a late event");
        claims.see(key(), Sight::Read, "90".into(), slot("n"), &limits(), at(10));
        assert_eq!((claims.next_due(), counts(&claims)), (Some(at(140)), (1, 0)), "the list");
        // The live look shows another claim than the one that was due.
        assert_eq!(claims.take_due(&limits(), at(140)), [key()]);
        claims.see(key(), Sight::Read, "70".into(), slot("o"), &limits(), at(140));
        assert_eq!((claims.next_due(), counts(&claims)), (Some(at(270)), (1, 0)));
        claims.see(key(), Sight::Read, "60".into(), ClaimSlot::Empty, &limits(), at(150));
        assert_eq!((claims.next_due(), counts(&claims)), (None, (0, 0)), "no ghost");
    }

    #[test]
    fn claims_are_counted_by_what_they_say() {
        let mut claims = Claims::default();
        let resting = |reason: &str| {
            let message = "v1 holder=a session=s nonce=n attempt=3 lost=3 by= budget=100 deployment=d";
            ClaimSlot::parse("False", reason, message)
        };
        let other = ("ns".to_owned(), "other".to_owned());
        claims.see(key(), Sight::Event, "5".into(), resting("Quarantined"), &limits(), at(0));
        claims.see(other.clone(), Sight::Event, "5".into(), resting("Expired"), &limits(), at(0));
        let counts =
            |claims: &Claims| FleetClaim::ALL.iter().map(|sort| claims.count(*sort)).collect::<Vec<_>>();
        assert_eq!(counts(&claims), [0, 0, 1, 1, 0]);
        claims.see(
            key(),
            Sight::Event,
            "6".into(),
            ClaimSlot::Unreadable { text: "?".into() },
            &limits(),
            at(1),
        );
        assert_eq!(counts(&claims), [0, 0, 1, 0, 1]);
        claims.retain(&std::collections::HashSet::from([key()]));
        assert_eq!(counts(&claims), [0, 0, 0, 0, 1]);
        claims.forget(&key());
        assert_eq!(counts(&claims), [0; 5]);
    }
}
