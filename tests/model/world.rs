// SPDX-License-Identifier: Apache-2.0
//! Everything there is: the BundleDeployment upstream, its objects downstream, the replicas, and who may do what.
//!
//! Time stands still at `NOW`: when it passes, all that is remembered moves back instead, so that equal situations
//! are equal states however long they took.

use std::time::Duration;

use flotilla::protocol::{
    Claim, ClaimSlot, End, Entering, Epoch, Gate, HealthyClock, Input, Nonce, Outcome, SessionId, Slots,
    Snapshot, Time, Uid, Unit, Work, reaper::Watched,
};

pub use super::{
    faults::{Budget, Bug},
    shared::Shared,
};

/// One step of time: a session is quiet after one without a renewal.
pub const STEP: Duration = Duration::from_secs(15);
/// Between two renewals of a Lease.
const RENEW: Duration = Duration::from_secs(5);
/// The time, for every replica, always.
pub const NOW: Time = Duration::from_secs(1000);
/// What lies further back than any limit is the same.
const OLDEST: Time = Duration::from_secs(100);

/// The BundleDeployment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bd {
    pub uid: Uid,
    pub version: u32,
    pub deployment: String,
    pub applied: String,
    pub release: String,
    pub held: bool,
    /// Its status says that it cannot be deployed.
    pub rejected: bool,
    pub slot: ClaimSlot,
}

impl Bd {
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            uid: self.uid.clone(),
            version: Epoch(self.version.to_string()),
            deployment: self.deployment.clone(),
            gate: if self.held { Gate::Held } else { Gate::Open },
            outdated: self.applied != self.deployment,
            corrects: false,
            release: self.release.clone(),
            slot: self.slot.clone(),
            rest: 0,
        }
    }
}

/// A status write, and whether it was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    pub uid: Uid,
    pub version: u32,
    pub change: Change,
    pub answer: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    Claim(Claim),
    End { nonce: Nonce, end: End, release: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Written(Box<Snapshot>),
    Conflict,
    Absent,
}

impl From<Answer> for Input {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Written(snapshot) => Input::Written(*snapshot),
            Answer::Conflict => Input::Conflict,
            Answer::Absent => Input::ReadAbsent,
        }
    }
}

/// A live read: asked, answered, to be asked again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Read {
    pub answer: Option<Option<Snapshot>>,
    pub again: bool,
}

/// What the watch tells, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Not in a list made anew.
    Vanished,
    Seen(Box<Snapshot>),
    Deleted(Uid),
}

/// What a replica knows of another session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    pub session: SessionId,
    pub pod: usize,
    pub version: u32,
    /// In healthy time.
    pub changed: Time,
    pub free: u8,
    /// Its Lease was deleted.
    pub gone: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    pub alive: bool,
    pub frozen: bool,
    /// Told to stop.
    pub draining: bool,
    /// Runs so far; the session is named after it.
    pub boots: u8,
    pub nonces: u64,
    pub unit: Unit,
    pub wake: Option<Time>,
    pub want_slot: bool,
    pub write: Option<Write>,
    /// Answers that come once more.
    pub doubled: Vec<Answer>,
    pub read: Option<Read>,
    pub verify: Option<(SessionId, Epoch)>,
    pub run: Option<Run>,
    pub removal: Option<Removing>,
    pub events: Vec<Event>,
    pub peers: Vec<Peer>,
    /// Since when it has not renewed its Lease.
    pub unrenewed: Time,
}

/// A running deployment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    pub uid: Uid,
    pub claim: Claim,
    pub epoch: u32,
    pub cancelled: bool,
    pub at: At,
    /// Checked, but not yet written: a freeze may come between.
    pub pending: Option<DownWrite>,
}

/// Where a deployment or removal is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum At {
    Gate,
    Object(usize),
    Close,
    Ended(Outcome),
}

/// A running removal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Removing {
    pub uid: Uid,
    pub dead_guard: Option<SessionId>,
    pub at: At,
    pub guarded_by: Option<SessionId>,
    pub pending: Option<DownWrite>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub session: SessionId,
    pub pod: usize,
    pub version: u32,
    /// Steps since which its replica renews without a break.
    pub steady: u8,
    /// Slots left at its last renewal.
    pub free: u8,
}

/// Downstream: the newest release record and the objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Down {
    pub record: Option<Thing>,
    pub objects: Vec<Option<Thing>>,
    pub uids: u32,
}

/// A record or an object downstream; `state` is the record's state or the object's content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Thing {
    pub uid: u32,
    pub version: u32,
    pub stamp: (Uid, u32),
    pub state: String,
}

/// A write downstream with its precondition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DownWrite {
    /// `None` is the record.
    pub object: Option<usize>,
    /// Uid and version of what was read; `None` creates only.
    pub found: Option<(u32, u32)>,
    pub by: (Uid, u32),
    /// `None` deletes.
    pub state: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub bd: Option<Bd>,
    pub version: u32,
    /// Steps of time since the slot changed.
    pub slot_age: u8,
    pub replicas: Vec<Shared<Replica>>,
    pub leases: Vec<Lease>,
    /// What each instance of the reaper watches.
    pub reapers: Vec<Option<Watched>>,
    /// Status writes that nobody waits for any more.
    pub ghosts: Vec<Write>,
    /// Writes downstream of processes that are dead.
    pub late: Vec<DownWrite>,
    pub down: Shared<Down>,
    pub budget: Budget,
    /// Uids whose removal is complete.
    pub removed: Vec<Uid>,
    /// Claims as they came to stand, with their version.
    pub landed: Shared<Vec<(Nonce, u32)>>,
    pub started: Shared<Vec<Nonce>>,
    /// Results of the current deployment id that came to stand.
    pub deployed: u8,
    /// A holder that had begun was taken over, and nothing was deployed since with a look for what it left.
    pub unswept: bool,
    /// A holder was lost or overran: an attempt may be repeated.
    pub disturbed: bool,
    /// The invariant that was broken.
    pub broken: Option<&'static str>,
    pub setting: Shared<Setting>,
    /// Slots that each replica holds in other units.
    pub elsewhere: Vec<u8>,
    /// Whether another unit works alone in each replica, or waits for that.
    pub reserved: Vec<bool>,
    /// The saved state of upstream.
    pub saved: Option<Bd>,
    /// Upstream was restored.
    pub restored: bool,
    /// And since then nothing was deployed: the status tells of what was lost.
    pub doubtful: bool,
    /// The downstream API server is away.
    pub outage: bool,
    /// Missing without a deletion; steps since then; together with everything else.
    pub absent: Option<Bd>,
    pub absent_age: u8,
    pub mass: bool,
    /// It is held: much is missing at once.
    pub held: bool,
    /// Replicas that list everything anew: so for all their units.
    pub relisting: Vec<usize>,
}

/// What does not change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Setting {
    /// The unit; its uids begin so.
    pub unit: char,
    /// Worker slots of each replica.
    pub slots: u8,
    /// Steps of time by which each next one in preference waits longer.
    pub steal: u8,
    /// It may take other units' objects.
    pub takes: bool,
    /// Objects that ids other than `d1` ask for.
    pub fewer: usize,
    /// The id it is made with.
    pub born: &'static str,
    /// Nobody but this replica is to claim.
    pub first: Option<usize>,
    /// Nobody but this replica freezes.
    pub freezes: Option<usize>,
    /// Distance of versions.
    pub stride: u32,
    /// Without faults, every watch is once begun anew: the periodic list of the agent's watches.
    pub resyncs: bool,
}

impl World {
    pub fn break_(&mut self, invariant: &'static str) {
        self.broken.get_or_insert(invariant);
    }

    pub fn now_is_late(&self, replica: usize) -> bool {
        self.replicas[replica].wake.is_some_and(|time| time <= NOW)
    }

    /// The objects a deployment id asks for: `d1` all of them, others the first ones only.
    pub fn wanted(&self, deployment: &str) -> usize {
        if deployment == "d1" { self.down.objects.len() } else { self.setting.fewer }
    }

    /// Whether it is this unit's, under whatever uid, by its marks of ownership.
    pub fn is_ours(&self, thing: &Thing) -> bool {
        thing.stamp.0.0.starts_with(self.setting.unit)
    }

    /// The worker slots of a replica.
    pub fn slots(&self, index: usize) -> Slots {
        let taken = u8::from(self.replicas[index].unit.holds_slot()) + self.elsewhere[index];
        Slots {
            free: self.setting.slots.saturating_sub(taken).into(),
            taken: taken.into(),
            reserved: self.reserved[index],
        }
    }

    /// One step of time for everybody. Those that are frozen or dead renew nothing and see nothing.
    pub fn advance(&mut self, bug: Bug) {
        self.absent_age = (self.absent_age + u8::from(self.absent.is_some())).min(9);
        self.slot_age = (self.slot_age + 1).min(9);
        let runs: Vec<bool> = self.replicas.iter().map(|replica| replica.alive && !replica.frozen).collect();
        for lease in &mut self.leases {
            let is_of = lease.session == self.replicas[lease.pod].session(lease.pod);
            if self.outage && runs[lease.pod] && is_of {
                continue; // not its fault
            }
            let renews = runs[lease.pod] && is_of;
            lease.version += u32::from(renews);
            if renews && self.setting.steal > 0 {
                let replica = &self.replicas[lease.pod];
                let held = u8::from(replica.unit.holds_slot()) + self.elsewhere[lease.pod];
                let begins = replica.unit.alone.is_none() && !self.reserved[lease.pod];
                lease.free = if begins { self.setting.slots.saturating_sub(held) } else { 0 };
            }
            lease.steady = if renews { (lease.steady + 1).min(3) } else { 0 };
        }
        for (index, replica) in self.replicas.iter_mut().enumerate() {
            replica.age(runs[index] && !self.outage, bug);
        }
        for (index, runs) in runs.into_iter().enumerate() {
            if runs && !self.outage {
                self.see_leases(index);
            }
        }
        self.reapers.iter_mut().flatten().for_each(|watched| back(&mut watched.since));
    }

    /// The downstream API server goes away, at the worst moment: right before the others would have renewed.
    pub fn lose_downstream(&mut self) {
        self.outage = true;
        let peers = self.replicas.iter_mut().flat_map(|replica| &mut replica.peers);
        // Not further, if it was away a moment ago: they have not missed two renewals in no time.
        peers.for_each(|peer| peer.changed = peer.changed.min(NOW - RENEW));
    }

    /// A running replica's watch of Leases is up to date.
    pub fn see_leases(&mut self, index: usize) {
        let leases = self.leases.clone();
        let replica = &mut self.replicas[index];
        for peer in &mut replica.peers {
            peer.gone |= !leases.iter().any(|lease| lease.session == peer.session);
        }
        for lease in leases {
            match replica.peers.iter_mut().find(|peer| peer.session == lease.session) {
                Some(peer) if peer.version == lease.version => {}
                Some(peer) => (peer.version, peer.changed, peer.free) = (lease.version, NOW, lease.free),
                None => replica.peers.push(Peer {
                    session: lease.session,
                    pod: lease.pod,
                    version: lease.version,
                    changed: NOW,
                    free: lease.free,
                    gone: false,
                }),
            }
        }
    }
}

impl Replica {
    pub fn new() -> Self {
        Self {
            alive: true,
            frozen: false,
            draining: false,
            boots: 0,
            nonces: 0,
            unit: Unit::default(),
            wake: None,
            want_slot: false,
            write: None,
            doubled: Vec::new(),
            read: None,
            verify: None,
            run: None,
            removal: None,
            events: Vec::new(),
            peers: Vec::new(),
            unrenewed: Time::ZERO,
        }
    }

    pub fn session(&self, index: usize) -> SessionId {
        SessionId(format!("{}.{}", ["a", "b", "c"][index], self.boots))
    }

    pub fn runs(&self) -> bool {
        self.alive && !self.frozen
    }

    /// How much of a step counts, by the product's own clock.
    fn healthy(&mut self, renews: bool, bug: Bug) -> Duration {
        let mut clock = HealthyClock::for_renewals(NOW - self.unrenewed, RENEW);
        let before = clock.at(NOW);
        self.unrenewed = if renews { Time::ZERO } else { (self.unrenewed + STEP).min(STEP * 3) };
        if renews {
            (1..=3).for_each(|time| clock.renewed(NOW + RENEW * time));
        }
        if bug == Bug::CountOutage { STEP } else { clock.at(NOW + STEP).saturating_sub(before) }
    }

    /// What it remembers becomes one step older.
    fn age(&mut self, renews: bool, bug: Bug) {
        let healthy = self.healthy(renews, bug);
        let unit = &mut self.unit;
        let Unit { wanted, pause_until, behind, alone, .. } = unit;
        let times = [wanted, pause_until, behind, alone, &mut self.wake];
        times.into_iter().flatten().for_each(back);
        if let Some(observed) = &mut unit.observed {
            back(&mut observed.now);
            back_by(&mut observed.healthy, healthy);
        }
        match &mut unit.work {
            Work::Claiming { since, .. } | Work::Finishing { since, .. } => back(since),
            Work::Running { deadline, entering, .. } => {
                back(deadline);
                if let Some(Entering { since, .. }) = entering {
                    back(since);
                }
            }
            Work::Removing { due, .. } => back(due),
            Work::Absent { since: Some(since), .. } => back(since),
            Work::Idle | Work::Verifying { .. } | Work::Absent { since: None, .. } => {}
        }
        self.peers.iter_mut().for_each(|peer| back_by(&mut peer.changed, healthy));
    }
}

fn back(time: &mut Time) {
    back_by(time, STEP);
}

fn back_by(time: &mut Time, by: Duration) {
    *time = time.saturating_sub(by).max(OLDEST);
}
