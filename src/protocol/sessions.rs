// SPDX-License-Identifier: Apache-2.0
//! Which replicas live, judged only by the observer's own monotonic clock.

use std::{collections::BTreeMap, time::Duration};

use sha2::{Digest, Sha256};

use super::{Epoch, Holder, SessionId, Uid};

/// Time since this replica started, by its own monotonic clock.
pub type Time = Duration;

/// Counts only the time in which this replica could renew its own Lease.
///
/// After an outage of the downstream cluster nobody's Lease has moved; without this everybody would be suspected
/// (S8: expiry never hits a session that renewed within TTL).
#[derive(Clone, Debug)]
pub struct HealthyClock {
    allowance: Duration,
    base: Duration,
    last_renewal: Time,
}

impl HealthyClock {
    /// `allowance` is the time one renewal vouches for: the renewal interval and one request.
    pub fn new(now: Time, allowance: Duration) -> Self {
        Self { allowance, base: Duration::ZERO, last_renewal: now }
    }

    /// For a Lease renewed that often. What is vouched for and one interval, in which another's renewal may have been due
    /// when an outage began, are less than the TTL of three intervals.
    pub fn for_renewals(now: Time, renew: Duration) -> Self {
        Self::new(now, renew * 3 / 2)
    }

    /// A renewal of the own Lease succeeded. After an outage only half of what was vouched for counts, which is about one
    /// renewal interval: the others were as long away, and are given the rest of their TTL to renew in their turn.
    /// So this clock may go back a little.
    pub fn renewed(&mut self, now: Time) {
        let outage = now.saturating_sub(self.last_renewal) > self.allowance;
        self.base = if outage { self.base + self.allowance / 2 } else { self.at(now) };
        self.last_renewal = now;
    }

    /// Whether the last renewal still vouches for this replica.
    pub fn vouches(&self, now: Time) -> bool {
        now.saturating_sub(self.last_renewal) <= self.allowance
    }

    /// Healthy time at `now`.
    pub fn at(&self, now: Time) -> Time {
        self.base + now.saturating_sub(self.last_renewal).min(self.allowance)
    }
}

/// What one session's Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSeen {
    /// The run.
    pub session: SessionId,
    /// The replica.
    pub holder: Holder,
    /// Its pod; `None` outside a cluster.
    pub pod_uid: Option<String>,
    /// The Lease's resourceVersion: any change is a sign of life.
    pub version: Epoch,
    /// Worker slots it has left.
    pub free_slots: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    seen: SessionSeen,
    changed: Time,
    /// Whether it gave a sign of life while this replica looked on. A list also shows what the dead left behind, which
    /// may live as far as anybody's claims go, but which nobody should let go first.
    proven: bool,
}

/// Whether a session's claims stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Its Lease changed within TTL. It turns quiet at the given healthy time.
    Live(Time),
    /// Not changed for TTL: to be confirmed by a live read.
    Quiet,
    /// Proof of death: its Lease is gone, its pod runs another session, or nothing runs in its pod any more.
    Dead,
    /// No Lease was ever seen; the caller counts from when it saw the claim.
    Unknown,
}

/// The session Leases as this replica sees them. All times are healthy time.
#[derive(Clone, Debug)]
pub struct Sessions {
    ttl: Duration,
    entries: BTreeMap<SessionId, Entry>,
    ended: BTreeMap<SessionId, Time>,
    /// By pod uid: the newest version at which nothing ran in it, and when that was learned.
    ended_pods: BTreeMap<String, (Epoch, Time)>,
}

/// Ended sessions and pods are remembered this many TTLs, so that their claims are known to be dead.
const REMEMBER_ENDED: u32 = 240;

/// Sessions only ever seen in a list that count as peers: a replica that has just started knows no others.
const LISTED: usize = 3;

impl Sessions {
    /// An empty table.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, entries: BTreeMap::new(), ended: BTreeMap::new(), ended_pods: BTreeMap::new() }
    }

    /// A Lease was seen to be written; returns whether it is news about who lives.
    pub fn seen(&mut self, seen: SessionSeen, healthy: Time) -> bool {
        self.put(seen, true, healthy)
    }

    fn put(&mut self, seen: SessionSeen, written: bool, healthy: Time) -> bool {
        match self.entries.get_mut(&seen.session) {
            Some(entry) if entry.seen.version == seen.version => false,
            Some(entry) => {
                let woke = healthy.saturating_sub(entry.changed) >= self.ttl;
                *entry = Entry { seen, changed: healthy, proven: true };
                woke
            }
            None => {
                self.ended.remove(&seen.session);
                let session = seen.session.clone();
                self.entries.insert(session, Entry { seen, changed: healthy, proven: written });
                true
            }
        }
    }

    /// A Lease was deleted; returns whether it was known.
    pub fn gone(&mut self, session: &SessionId, healthy: Time) -> bool {
        let horizon = healthy.saturating_sub(self.ttl * REMEMBER_ENDED);
        self.ended.retain(|_, at| *at >= horizon);
        self.ended.insert(session.clone(), healthy);
        self.entries.remove(session).is_some()
    }

    /// A full list replaced what was known.
    pub fn relisted(&mut self, list: Vec<SessionSeen>, healthy: Time) -> bool {
        let missing: Vec<SessionId> =
            self.entries.keys().filter(|id| !list.iter().any(|seen| seen.session == **id)).cloned().collect();
        let mut news = false;
        for session in missing {
            news |= self.gone(&session, healthy);
        }
        for seen in list {
            news |= self.put(seen, false, healthy);
        }
        news
    }

    /// Nothing ran in the pod any more at `at`, a version of the pod; returns whether a known session died of it.
    ///
    /// Sessions of that pod whose Lease was last written before are dead. One that is written later lives: the
    /// container was started again, or the pod's object went while its process stayed (S8). Without a version, what
    /// is known of its sessions now is taken to be from before.
    pub fn pod_ended(&mut self, pod_uid: &str, at: Option<Epoch>, healthy: Time) -> bool {
        let horizon = healthy.saturating_sub(self.ttl * REMEMBER_ENDED);
        self.ended_pods.retain(|_, (_, learned)| *learned >= horizon);
        let of_pod = |entry: &&Entry| entry.seen.pod_uid.as_deref() == Some(pod_uid);
        let newest = || self.entries.values().filter(of_pod).map(|entry| entry.seen.version.clone()).max();
        let Some(at) = at.or_else(newest) else { return false };
        let before = self.ended_pods.get(pod_uid).map(|(before, _)| before);
        let mut of_pod = self.entries.values().filter(of_pod).map(|entry| &entry.seen.version);
        let news = of_pod.any(|version| *version <= at && before.is_none_or(|before| version > before));
        if before.is_none_or(|before| at > *before) {
            self.ended_pods.insert(pod_uid.to_owned(), (at, healthy));
        }
        news
    }

    /// Whether that session's claims stand.
    pub fn life(&self, session: &SessionId, healthy: Time) -> Life {
        let Some(entry) = self.entries.get(session) else {
            return if self.ended.contains_key(session) { Life::Dead } else { Life::Unknown };
        };
        // The same pod under another, later session: its container was restarted. The dead one's Lease was last
        // written before the other's was created, in whatever order this observer saw them.
        let replaced = entry.seen.pod_uid.is_some()
            && self.entries.values().any(|other| {
                other.seen.pod_uid == entry.seen.pod_uid
                    && other.seen.session != *session
                    && other.seen.version > entry.seen.version
            });
        let pod = entry.seen.pod_uid.as_ref().and_then(|pod| self.ended_pods.get(pod));
        let outlived = pod.is_some_and(|(at, _)| entry.seen.version <= *at);
        if replaced || outlived {
            return Life::Dead;
        }
        let quiet_at = entry.changed + self.ttl;
        if healthy < quiet_at { Life::Live(quiet_at) } else { Life::Quiet }
    }

    /// When the next session that lives will be quiet unless it renews.
    pub fn next_quiet(&self, healthy: Time) -> Option<Time> {
        let quiet = |id| match self.life(id, healthy) {
            Life::Live(quiet_at) => Some(quiet_at),
            Life::Quiet | Life::Dead | Life::Unknown => None,
        };
        self.entries.keys().filter_map(quiet).min()
    }

    /// The version last seen of a session's Lease.
    pub fn version(&self, session: &SessionId) -> Option<&Epoch> {
        self.entries.get(session).map(|entry| &entry.seen.version)
    }

    /// Sessions that live, `me` among them.
    pub fn live<'a>(&'a self, me: &'a SessionId, healthy: Time) -> impl Iterator<Item = &'a SessionId> {
        let others = self
            .entries
            .keys()
            .filter(move |id| *id != me && matches!(self.life(id, healthy), Life::Live(_)));
        std::iter::once(me).chain(others)
    }

    /// Live sessions that `me` lets go first for this unit.
    fn before<'a>(&'a self, me: &'a SessionId, uid: &Uid, healthy: Time) -> impl Iterator<Item = &'a Entry> {
        let mine = weight(me, uid);
        let entries = self.entries.iter().filter(move |(id, _)| *id != me && weight(id, uid) > mine);
        entries.filter(move |(id, _)| matches!(self.life(id, healthy), Life::Live(_))).map(|(_, entry)| entry)
    }

    /// How many live sessions with a free slot come before `me` for this unit (highest random weight).
    ///
    /// A dead or full one is not waited for, nor one that was only ever seen in a list. It is only a preference: being
    /// wrong costs one conflict.
    pub fn rank(&self, me: &SessionId, uid: &Uid, healthy: Time) -> u32 {
        let before = self.before(me, uid, healthy).filter(|entry| entry.proven && entry.seen.free_slots > 0);
        u32::try_from(before.count()).unwrap_or(u32::MAX)
    }

    /// How many live sessions, full ones too, come before `me` for this unit; and how much it is `me`'s, to put an
    /// order of its own on units that others are preferred for. Of those only ever listed a few count: after a crash
    /// loop they may be many and all dead.
    pub fn preference(&self, me: &SessionId, uid: &Uid, healthy: Time) -> (u32, u64) {
        let (proven, listed): (Vec<_>, Vec<_>) =
            self.before(me, uid, healthy).partition(|entry| entry.proven);
        let before = proven.len() + listed.len().min(LISTED);
        (u32::try_from(before).unwrap_or(u32::MAX), weight(me, uid))
    }

    /// Whether the continuous duties for this unit are mine.
    pub fn is_assigned(&self, me: &SessionId, uid: &Uid, healthy: Time) -> bool {
        let mine = weight(me, uid);
        !self.live(me, healthy).any(|id| id != me && weight(id, uid) > mine)
    }
}

/// The hash must be the same in every version: SHA-256 of `session NUL uid`, first eight bytes, big endian.
fn weight(session: &SessionId, uid: &Uid) -> u64 {
    let mut hash = Sha256::new();
    hash.update(session.0.as_bytes());
    hash.update([0]);
    hash.update(uid.0.as_bytes());
    let bytes = hash.finalize();
    let mut first = [0u8; 8];
    first.copy_from_slice(&bytes[..8]);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    fn lease(session: &str, pod: Option<&str>, version: &str, free: usize) -> SessionSeen {
        SessionSeen {
            session: session.into(),
            holder: format!("pod-{session}").as_str().into(),
            pod_uid: pod.map(str::to_owned),
            version: version.into(),
            free_slots: free,
        }
    }

    #[test]
    fn a_session_is_quiet_only_after_ttl_without_a_change() {
        let mut sessions = Sessions::new(TTL);
        sessions.seen(lease("a", None, "1", 1), at(0));
        sessions.seen(lease("a", None, "1", 1), at(10));
        assert_eq!(sessions.life(&"a".into(), at(14)), Life::Live(at(15)));
        assert_eq!(sessions.life(&"a".into(), at(15)), Life::Quiet);
        sessions.seen(lease("a", None, "2", 1), at(16));
        assert_eq!(sessions.life(&"a".into(), at(30)), Life::Live(at(31)));
        assert_eq!(sessions.life(&"b".into(), at(30)), Life::Unknown);
    }

    #[test]
    fn a_deleted_lease_and_a_restarted_pod_are_proof_of_death() {
        let mut sessions = Sessions::new(TTL);
        sessions.seen(lease("a", Some("pod"), "1", 1), at(0));
        sessions.seen(lease("b", Some("pod"), "2", 1), at(1));
        assert_eq!(sessions.life(&"a".into(), at(1)), Life::Dead);
        assert_eq!(sessions.life(&"b".into(), at(1)), Life::Live(at(16)));
        sessions.gone(&"b".into(), at(2));
        assert_eq!(sessions.life(&"b".into(), at(2)), Life::Dead);
        sessions.relisted(vec![], at(3));
        assert_eq!(sessions.life(&"a".into(), at(3)), Life::Dead);
    }

    #[test]
    fn the_later_session_of_a_pod_is_the_one_written_later_whichever_is_listed_first() {
        let mut sessions = Sessions::new(TTL);
        sessions.relisted(vec![lease("new", Some("pod"), "9", 1), lease("old", Some("pod"), "5", 1)], at(0));
        assert_eq!(sessions.life(&"old".into(), at(1)), Life::Dead);
        assert_eq!(sessions.life(&"new".into(), at(1)), Life::Live(at(15)));
    }

    #[test]
    fn a_session_that_was_not_written_since_its_pod_ended_is_dead() {
        let (live, dead) = (Life::Live(at(15)), Life::Dead);
        // Version of the Lease before, version of the pod's end, version of the Lease after.
        for (lease_before, pod, lease_after, expected) in [
            ("5", Some("7"), None, dead),
            ("9", Some("10"), None, dead),
            ("9", Some("7"), None, live),
            ("5", Some("7"), Some("6"), dead),
            ("5", Some("7"), Some("8"), live),
            ("5", None, None, dead),
            ("5", None, Some("6"), live),
        ] {
            let mut sessions = Sessions::new(TTL);
            sessions.seen(lease("a", Some("pod"), lease_before, 1), at(0));
            sessions.seen(lease("b", Some("other"), "1", 1), at(0));
            sessions.seen(lease("c", None, "1", 1), at(0));
            let news = sessions.pod_ended("pod", pod.map(Into::into), at(0));
            assert_eq!(news, sessions.life(&"a".into(), at(0)) == dead);
            assert!(!sessions.pod_ended("pod", pod.map(Into::into), at(0)), "told before");
            if let Some(version) = lease_after {
                sessions.seen(lease("a", Some("pod"), version, 1), at(0));
            }
            let case = format!("{lease_before} {pod:?} {lease_after:?}");
            assert_eq!(sessions.life(&"a".into(), at(1)), expected, "{case}");
            assert_eq!(sessions.life(&"b".into(), at(1)), live);
            assert_eq!(sessions.life(&"c".into(), at(1)), live);
        }
    }

    #[test]
    fn a_pods_end_may_be_seen_before_its_lease_and_older_reports_change_nothing() {
        let mut sessions = Sessions::new(TTL);
        assert!(!sessions.pod_ended("pod", Some("7".into()), at(0)));
        assert!(!sessions.pod_ended("pod", Some("4".into()), at(0)));
        assert!(!sessions.pod_ended("unknown", None, at(0)));
        sessions.seen(lease("a", Some("pod"), "5", 1), at(1));
        sessions.seen(lease("b", Some("pod"), "8", 1), at(1));
        assert_eq!(sessions.life(&"a".into(), at(1)), Life::Dead);
        assert_eq!(sessions.life(&"b".into(), at(1)), Life::Live(at(16)));
    }

    #[test]
    fn what_the_dead_left_behind_is_not_let_go_first() {
        let mut sessions = Sessions::new(TTL);
        let dead: Vec<_> = (0..20).map(|id| lease(&format!("dead-{id}"), None, "1", 4)).collect();
        sessions.relisted(dead.clone(), at(0));
        for unit in 0..20 {
            let uid = Uid(format!("uid-{unit}"));
            assert_eq!(sessions.rank(&"me".into(), &uid, at(1)), 0);
            assert!(sessions.preference(&"me".into(), &uid, at(1)).0 <= 3);
        }
        // Their claims stand for TTL all the same (S8), and one that renews is a peer.
        assert_eq!(sessions.life(&"dead-0".into(), at(1)), Life::Live(at(15)));
        for mut renewed in dead {
            renewed.version = "2".into();
            sessions.seen(renewed, at(2));
        }
        assert!((0..20).any(|unit| sessions.rank(&"me".into(), &Uid(format!("uid-{unit}")), at(3)) > 0));
    }

    #[test]
    fn an_observer_that_could_not_renew_suspects_nobody() {
        let mut clock = HealthyClock::new(at(0), at(6));
        clock.renewed(at(5));
        assert_eq!(clock.at(at(8)), at(8));
        assert_eq!(clock.at(at(600)), at(11));
        assert!(clock.vouches(at(11)) && !clock.vouches(at(12)));
        clock.renewed(at(600));
        assert_eq!(clock.at(at(601)), at(9), "the others have time to renew in their turn");
    }

    #[test]
    fn every_unit_has_one_first_choice_and_the_full_and_the_dead_are_skipped() {
        let mut sessions = Sessions::new(TTL);
        for id in ["a", "b", "c"] {
            sessions.seen(lease(id, None, "1", 4), at(0));
        }
        let mut share = BTreeMap::new();
        for unit in 0..300 {
            let uid = Uid(format!("uid-{unit}"));
            let mut ranks: Vec<(u32, &str)> =
                ["a", "b", "c"].iter().map(|id| (sessions.rank(&(*id).into(), &uid, at(1)), *id)).collect();
            ranks.sort_unstable();
            assert_eq!(ranks.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1, 2]);
            assert!(sessions.is_assigned(&ranks[0].1.into(), &uid, at(1)));
            assert!(!sessions.is_assigned(&ranks[1].1.into(), &uid, at(1)));
            *share.entry(ranks[0].1).or_insert(0) += 1;
            let mut full = sessions.clone();
            full.seen(lease(ranks[0].1, None, "2", 0), at(1));
            assert_eq!(full.rank(&ranks[1].1.into(), &uid, at(1)), 0);
            assert_eq!(full.preference(&ranks[1].1.into(), &uid, at(1)).0, 1);
            full.gone(&ranks[1].1.into(), at(1));
            assert_eq!(full.rank(&ranks[2].1.into(), &uid, at(1)), 0);
        }
        assert!(share.values().all(|units| *units > 60), "{share:?}");
    }
}
