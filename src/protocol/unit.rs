// SPDX-License-Identifier: Apache-2.0
//! The state of one unit (one BundleDeployment) in one replica.

use std::time::Duration;

use super::{
    Claim, ClaimSlot, End, Epoch, Gate, Holder, Nonce, Outcome, SessionId, Sessions, Snapshot, Time, Uid,
};

/// Fixed settings of the protocol.
#[derive(Clone, Debug)]
pub struct Config {
    /// A session is quiet after this long without a change.
    pub ttl: Duration,
    /// The budget written into a claim: how long one attempt may take.
    pub claim_timeout: Duration,
    /// Observers act this much later than the holder's own deadline.
    pub claim_margin: Duration,
    /// The k-th in preference claims k times this later.
    pub steal_delay: Duration,
    /// How long a missing BundleDeployment is kept without a DELETED event.
    pub absence_grace: Duration,
    /// How long a quarantined unit rests.
    pub quarantine: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(15),
            claim_timeout: Duration::from_secs(600),
            claim_margin: Duration::from_secs(30),
            steal_delay: Duration::from_millis(250),
            absence_grace: Duration::from_secs(300),
            quarantine: Duration::from_secs(3600),
        }
    }
}

/// The replica's surroundings at one step; read only.
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// Time since the replica's start.
    pub now: Time,
    /// The same, without the time in which it could not renew its own Lease.
    pub healthy: Time,
    /// This replica's run.
    pub session: &'a SessionId,
    /// This replica's name.
    pub holder: &'a Holder,
    /// The other replicas.
    pub sessions: &'a Sessions,
    /// The replica's worker slots.
    pub slots: Slots,
    /// No new claims any more.
    pub draining: bool,
    /// Randomness of this step.
    pub entropy: u64,
    /// Settings.
    pub config: &'a Config,
}

/// The worker slots of a replica, as one of its units finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Left.
    pub free: usize,
    /// Held.
    pub taken: usize,
    /// Another unit works alone here, or waits for that: nothing else begins.
    pub reserved: bool,
}

impl Slots {
    /// Whether a unit may begin; `alone`: only if it is the only one.
    pub fn admit(&self, alone: bool) -> bool {
        !self.reserved && self.free > 0 && (!alone || self.taken == 0)
    }
}

/// One unit in one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Newest known state; `None` before the first sight and after its end.
    pub latest: Option<Snapshot>,
    /// Newest version this replica wrote: older cached objects are ignored (rule 6).
    pub own: Epoch,
    /// Since when the slot has shown what it shows.
    pub observed: Option<Observation>,
    /// Since when it could have been claimed.
    pub wanted: Option<Time>,
    /// Not before this time: a refused write, a lost race.
    pub pause_until: Option<Time>,
    /// A redeploy was asked for although the status is up to date.
    pub redeploy: bool,
    /// The deployment id from which live objects differ, and are to be corrected if the unit asks for that.
    pub drift: Option<String>,
    /// Since when it works alone in its replica, or waits until nothing else does: meanwhile nothing else begins there.
    pub alone: Option<Time>,
    /// A run of an object that is gone, told to stop and not yet ended. Holds a slot; nothing else starts before.
    pub stopping: Option<Nonce>,
    /// Since when the watch has shown less than what is known.
    pub behind: Option<Time>,
    /// The last live read showed less than this, which was known. A read asked for since then that does so too means
    /// that upstream was restored.
    pub doubted: Option<Epoch>,
    /// What this replica does about it.
    pub work: Work,
}

/// The slot's content and when this replica first saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// The slot as first seen; a claim is the same as long as nonce and state are.
    pub slot: ClaimSlot,
    /// By the monotonic clock.
    pub now: Time,
    /// By the healthy clock.
    pub healthy: Time,
}

/// What this replica does about a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Work {
    /// Nothing.
    #[default]
    Idle,
    /// A claim was sent. Holds a slot.
    Claiming {
        /// The claim.
        claim: Claim,
        /// What it replaces: anything else found there is decided on anew.
        over: ClaimSlot,
        /// When it was made: its budget is counted from here, so that it ends before any observer's count.
        since: Time,
        /// Conflicts and failures so far.
        tries: u32,
        /// The write is not answered yet; otherwise a live read is on its way.
        sent: bool,
    },
    /// A quiet holder is being looked at, live.
    Verifying {
        /// The holder's session.
        session: SessionId,
    },
    /// A deployment runs under the claim. Holds a slot unless it waits.
    Running {
        /// The claim.
        claim: Claim,
        /// Its epoch.
        epoch: Epoch,
        /// Newest version on which the claim was seen as mine.
        version: Epoch,
        /// No slot is held.
        waiting: bool,
        /// It was told to stop.
        cancelled: bool,
        /// When its own budget is spent.
        deadline: Time,
        /// The step into a wait that is being written.
        entering: Option<Entering>,
        /// It ended while that write was not answered yet.
        ended: Option<(Outcome, String)>,
    },
    /// The result was sent. Holds a slot.
    Finishing {
        /// The claim.
        claim: Claim,
        /// How the deployment ended, leaving aside a new deployment id.
        result: End,
        /// What was sent last.
        end: End,
        /// Newest version on which the claim was seen as mine.
        version: Epoch,
        /// The release written, to recognise an own finish whose answer was lost.
        release: String,
        /// When the end was decided.
        since: Time,
        /// Conflicts and failures so far.
        tries: u32,
        /// The write is not answered yet; otherwise a live read is on its way.
        sent: bool,
    },
    /// The object is gone; its release is to be removed.
    Removing {
        /// The uid removed.
        uid: Uid,
        /// Not before this time.
        due: Time,
        /// A removal is under way here.
        running: bool,
        /// Failures so far.
        tries: u32,
        /// A guard that was not alive at the last look; still so at the next one, it may be taken.
        suspect: Option<SessionId>,
        /// To be removed after this one.
        then: Option<Uid>,
    },
    /// Not in a list any more, but no DELETED event was seen. Absence is not an order.
    Absent {
        /// The uid missed.
        uid: Uid,
        /// Since when live reads say so; `None` before the first one.
        since: Option<Time>,
    },
}

/// A step into a wait on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entering {
    /// The claim as it will stand.
    pub claim: Claim,
    /// When the wait began.
    pub since: Time,
    /// The write is not answered yet; otherwise a live read is on its way.
    pub sent: bool,
}

impl Unit {
    /// Whether it counts against the worker slots.
    pub fn holds_slot(&self) -> bool {
        if self.stopping.is_some() {
            return true;
        }
        match &self.work {
            Work::Claiming { .. } | Work::Finishing { .. } => true,
            Work::Running { waiting, .. } => !waiting,
            Work::Idle | Work::Verifying { .. } | Work::Removing { .. } | Work::Absent { .. } => false,
        }
    }

    /// Whether a deployment, a claim or a finish of this replica is under way.
    pub fn is_busy(&self) -> bool {
        if self.stopping.is_some() {
            return true;
        }
        match &self.work {
            Work::Claiming { .. } | Work::Finishing { .. } | Work::Running { .. } => true,
            Work::Removing { running, .. } => *running,
            Work::Idle | Work::Verifying { .. } | Work::Absent { .. } => false,
        }
    }

    /// Versions went backwards: none that is remembered means anything.
    pub fn forget_versions(&mut self) {
        self.own = Epoch::default();
        (self.behind, self.doubted) = (None, None);
        if let Some(latest) = &mut self.latest {
            latest.version = Epoch::default();
        }
    }

    /// Whether there is work although the status is up to date: asked for, or foreign changes to correct.
    pub fn wants(&self, latest: &Snapshot) -> bool {
        self.redeploy
            || (latest.corrects && self.drift.as_ref().is_some_and(|drift| *drift == latest.deployment))
    }

    /// Whether monitoring may write now: nobody at work, nothing to deploy, not held (S4). Also while a correction
    /// backs off: what lives is to be seen meanwhile.
    pub fn is_settled(&self) -> bool {
        let Some(latest) = &self.latest else { return false };
        matches!(self.work, Work::Idle)
            && !self.redeploy
            && self.stopping.is_none()
            && (latest.slot == ClaimSlot::Empty || latest.slot.is_backing_off())
            && !latest.outdated
            && matches!(latest.gate, Gate::Open | Gate::Blocked)
    }
}
