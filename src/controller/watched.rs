// SPDX-License-Identifier: Apache-2.0
//! The claims under observation, and the clock that counts only while the watch works. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::protocol::{
    ClaimSlot, Epoch, Time,
    reaper::{self, Limits, Verdict, Watched},
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
    claims: HashMap<Key, Watched>,
    due: BTreeSet<(Time, Key)>,
}

impl Claims {
    /// An object was seen.
    pub fn see(&mut self, key: Key, version: Epoch, slot: ClaimSlot, limits: &Limits, healthy: Time) {
        let before = self.forget(&key);
        if before.as_ref().is_some_and(|before| before.version > version) {
            // Older than what is known: a list from a lagging cache.
            self.keep(key, before, limits, healthy);
            return;
        }
        let after = reaper::see(before, version, slot, healthy);
        self.keep(key, after, limits, healthy);
    }

    fn keep(&mut self, key: Key, watched: Option<Watched>, limits: &Limits, healthy: Time) {
        let Some(watched) = watched else { return };
        if let Some(time) = due(&watched, limits, healthy) {
            self.due.insert((time, key.clone()));
        }
        self.claims.insert(key, watched);
    }

    /// An object is gone, or its claim.
    pub fn forget(&mut self, key: &Key) -> Option<Watched> {
        let watched = self.claims.remove(key)?;
        self.due.retain(|(_, other)| other != key);
        Some(watched)
    }

    /// Only these objects exist.
    pub fn retain(&mut self, listed: &std::collections::HashSet<Key>) {
        self.claims.retain(|key, _| listed.contains(key));
        self.due.retain(|(_, key)| listed.contains(key));
    }

    /// When the first one is due.
    pub fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(time, _)| *time)
    }

    /// Takes those that are due, to be looked at live; they are seen again by the watch or a retry.
    pub fn take_due(&mut self, limits: &Limits, healthy: Time) -> Vec<(Key, Watched)> {
        let mut taken = Vec::new();
        while let Some((time, _)) = self.due.first()
            && *time <= healthy
        {
            let Some((_, key)) = self.due.pop_first() else { break };
            if let Some(watched) = self.claims.get(&key)
                && !matches!(reaper::judge(watched, limits, healthy), Verdict::Leave(_))
            {
                taken.push((key, watched.clone()));
            }
        }
        taken
    }

    /// Looks at it again later: the server could not be asked.
    pub fn retry(&mut self, key: Key, at: Time) {
        if self.claims.contains_key(&key) {
            self.due.insert((at, key));
        }
    }

    /// How many claims are open, for the metric.
    pub fn open(&self) -> usize {
        self.claims.values().filter(|watched| watched.slot.is_open()).count()
    }
}

fn due(watched: &Watched, limits: &Limits, healthy: Time) -> Option<Time> {
    match reaper::judge(watched, limits, healthy) {
        Verdict::Leave(time) => time,
        Verdict::Replace(_) | Verdict::Clear => Some(healthy),
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
        claims.see(key(), "5".into(), slot("n"), &limits(), at(0));
        claims.see(key(), "6".into(), slot("n"), &limits(), at(50));
        assert_eq!((claims.next_due(), claims.open()), (Some(at(130)), 1));
        assert!(claims.take_due(&limits(), at(129)).is_empty());
        assert_eq!(claims.take_due(&limits(), at(130))[0].1.version, "6".into());
        assert!(claims.take_due(&limits(), at(131)).is_empty());
        claims.retry(key(), at(135));
        claims.see(key(), "7".into(), ClaimSlot::Empty, &limits(), at(132));
        assert_eq!((claims.next_due(), claims.open()), (None, 0));
    }

    #[test]
    fn a_new_nonce_has_its_whole_budget_and_an_old_list_changes_nothing() {
        let mut claims = Claims::default();
        claims.see(key(), "5".into(), slot("n"), &limits(), at(0));
        claims.see(key(), "8".into(), slot("m"), &limits(), at(100));
        assert_eq!(claims.next_due(), Some(at(230)));
        claims.see(key(), "5".into(), slot("n"), &limits(), at(110));
        assert_eq!(claims.next_due(), Some(at(230)));
        claims.retain(&std::collections::HashSet::new());
        assert_eq!(claims.next_due(), None);
    }
}
