// SPDX-License-Identifier: Apache-2.0
//! The state of one unit (one BundleDeployment) in one replica, and the words of `step`.

use std::time::Duration;

use super::{Claim, ClaimSlot, Epoch, Gate, Holder, Nonce, SessionId, Sessions, Snapshot, Time, Uid};

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
    /// Worker slots left.
    pub free_slots: usize,
    /// No new claims any more.
    pub draining: bool,
    /// Randomness of this step.
    pub entropy: u64,
    /// Settings.
    pub config: &'a Config,
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
        /// Whose place it takes.
        from: Option<SessionId>,
        /// Conflicts and failures so far.
        tries: u32,
        /// The answer was not clear: only the nonce can tell.
        unclear: bool,
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
    },
    /// The result was sent. Holds a slot.
    Finishing {
        /// The claim.
        claim: Claim,
        /// How it ends.
        end: End,
        /// Newest version on which the claim was seen as mine.
        version: Epoch,
        /// The release written, to recognise an own finish whose answer was lost.
        release: String,
        /// Conflicts and failures so far.
        tries: u32,
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
    },
    /// Not in a list any more, but no DELETED event was seen. Absence is not an order.
    Absent {
        /// The uid missed.
        uid: Uid,
        /// Since when a live read says so.
        since: Time,
    },
}

/// How a claim ends: always one PATCH.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Final status, claim removed.
    Deployed,
    /// Status of a failure decided by the content alone, claim removed.
    Permanent,
    /// The failure's message, claim replaced by this one.
    BackOff(Claim),
    /// Claim removed or given up, other fields stay.
    Release(Option<Claim>),
    /// Claim replaced by a fresh one on the new deployment id, other fields stay.
    Replace(Claim),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The watch or a list showed the object.
    Seen(Snapshot),
    /// A live read showed the object.
    Read(Snapshot),
    /// A live read says 404, naming the object.
    ReadAbsent,
    /// A live read failed: nothing is known.
    ReadFailed,
    /// The watch saw the deletion of this uid.
    Deleted(Uid),
    /// A relist no longer has it.
    Vanished,
    /// A claim, or the step into a wait, was written; this is the answered object.
    Written(Snapshot),
    /// The write was refused with a conflict.
    Conflict,
    /// No clear answer: timeout, 5xx, connection lost.
    Unclear,
    /// Refused for good: forbidden, invalid.
    Denied,
    /// The deployment ended.
    Done {
        /// With what.
        outcome: Outcome,
        /// `ns/name:revision` of the gate it opened, or empty.
        release: String,
    },
    /// The deployment waits for readiness, for this many seconds at most.
    Waiting {
        /// Its own budget in seconds.
        seconds: u64,
    },
    /// The live look at a quiet holder: whether its Lease stands unchanged (or is gone).
    Verified {
        /// Unchanged since last seen, or gone.
        quiet: bool,
    },
    /// The removal ended.
    Removed(Removal),
    /// Time passed, a slot is free, or somebody's session changed.
    Tick,
    /// The grace period is over: stop at a safe point.
    Stop,
    /// Deploy again although the status is up to date (its release record is gone).
    Redeploy,
}

/// How a deployment ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Everything stands.
    Deployed,
    /// Failed for a reason the cluster decides: again later.
    Failed {
        /// For people; no secrets.
        cause: String,
    },
    /// Failed for a reason the content alone decides: waits for a change.
    Permanent,
    /// Stopped at a safe point, as told.
    Stopped,
    /// The fence found a newer claim, or the claim not its own.
    Fenced,
}

/// How a removal ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Removal {
    /// Nothing of it is left.
    Complete,
    /// This session guards it.
    Guarded(SessionId),
    /// Failed: again later.
    Failed,
}

/// What the replica is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// PATCH of the status against `version`: this claim in place of what stands there.
    WriteClaim {
        /// Precondition.
        version: Epoch,
        /// The claim.
        claim: Claim,
    },
    /// Live GET of the object; answer with `Read`, `ReadAbsent` or `ReadFailed`.
    Reread {
        /// Not before this wait.
        after: Duration,
    },
    /// Live GET of that session's Lease, then of the object.
    Verify {
        /// The holder's session.
        session: SessionId,
        /// The Lease's version when last seen; empty when never seen.
        known: Epoch,
    },
    /// Run the deployment under this claim.
    Start {
        /// The claim.
        claim: Claim,
        /// Its epoch.
        epoch: Epoch,
        /// A session lost it before.
        taken_over: bool,
    },
    /// Stop the running deployment at the next safe point; it answers with `Done`.
    Cancel {
        /// Its claim.
        nonce: Nonce,
    },
    /// PATCH of the status against `version`: the end of this claim.
    Finish {
        /// Precondition.
        version: Epoch,
        /// The claim that ends.
        nonce: Nonce,
        /// How.
        end: End,
    },
    /// Ask again at this time.
    WakeAt(Time),
    /// Ask again when a slot is free.
    WantSlot,
    /// Remove the release of this uid.
    Remove {
        /// The uid removed.
        uid: Uid,
        /// A dead session's guard may be taken.
        dead_guard: Option<SessionId>,
    },
    /// Versions went backwards: upstream was restored. List everything anew.
    Relist,
    /// Nothing is left to know about it.
    Forget,
    /// For logs, metrics and Events.
    Note(Note),
}

/// What is worth telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A claim was won.
    Won {
        /// Which attempt.
        attempt: u32,
    },
    /// A write met a conflict.
    Conflict,
    /// Another replica was first.
    LostRace {
        /// It.
        holder: Holder,
    },
    /// A dead or stuck holder's claim was taken over.
    TakenOver {
        /// From this session.
        from: SessionId,
        /// Why.
        reason: TakeoverReason,
    },
    /// The result was thrown away: the claim is not ours any more.
    Discarded,
    /// Lost too often.
    Quarantined {
        /// How often.
        lost: u32,
    },
    /// It vanished without a DELETED event.
    AbsenceHeld,
    /// Upstream's versions went backwards.
    Restored,
}

/// Why a claim was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TakeoverReason {
    /// The session was quiet for TTL and a live look confirmed it.
    Quiet,
    /// Proof: the Lease is gone, or the pod runs another session.
    Dead,
    /// The claim's budget is spent.
    Overdue,
    /// An own claim from before.
    Own,
    /// An unreadable claim stood unchanged for the claim timeout.
    Unreadable,
}

impl Unit {
    /// Whether it counts against the worker slots.
    pub fn holds_slot(&self) -> bool {
        match &self.work {
            Work::Claiming { .. } | Work::Finishing { .. } => true,
            Work::Running { waiting, .. } => !waiting,
            Work::Idle | Work::Verifying { .. } | Work::Removing { .. } | Work::Absent { .. } => false,
        }
    }

    /// Whether a deployment, a claim or a finish of this replica is under way.
    pub fn is_busy(&self) -> bool {
        match &self.work {
            Work::Claiming { .. } | Work::Finishing { .. } | Work::Running { .. } => true,
            Work::Removing { running, .. } => *running,
            Work::Idle | Work::Verifying { .. } | Work::Absent { .. } => false,
        }
    }

    /// Whether monitoring may write now: nothing claimed, nothing to deploy, not held (S4).
    pub fn is_settled(&self) -> bool {
        let Some(latest) = &self.latest else { return false };
        matches!(self.work, Work::Idle)
            && !self.redeploy
            && !latest.slot.is_open()
            && !latest.outdated
            && matches!(latest.gate, Gate::Open | Gate::Blocked)
    }
}
