// SPDX-License-Identifier: Apache-2.0
//! The words of `step`: what happens to a unit and what is to be done.

use std::time::Duration;

use super::{Claim, Epoch, Gate, Holder, Nonce, SessionId, Snapshot, Time, Uid};

/// How a claim ends: always one PATCH.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Final status, claim removed.
    Deployed,
    /// Status of a failure decided by the content alone; claim removed, or this one kept for its mark, which rests
    /// until the deployment id changes.
    Permanent(Option<Claim>),
    /// The failure's message, claim replaced by this one.
    BackOff(Claim),
    /// Claim given up (removed, if the object is on its way out), other fields stay.
    Release(Option<Claim>),
    /// Claim replaced by a fresh one on the new deployment id, other fields stay.
    Replace(Claim),
}

/// What happened. Every write is answered by `Written`, `Conflict`, `Unclear`, `Denied` or `ReadAbsent`.
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
    /// No clear answer: timeout, 5xx, connection lost. (A write answered with 404 is `ReadAbsent`.)
    Unclear,
    /// Refused for good: forbidden, invalid.
    Denied,
    /// The deployment ended.
    Done {
        /// Its claim: the end of an earlier run must not be taken for that of the current one.
        nonce: Nonce,
        /// With what.
        outcome: Outcome,
        /// `ns/name:revision` of the gate it opened, or empty.
        release: String,
    },
    /// The deployment waits for readiness, for this many seconds at most.
    Waiting {
        /// Its claim.
        nonce: Nonce,
        /// Its own budget in seconds.
        seconds: u64,
    },
    /// The gate changed though the object did not: a dependency became ready, or is not any more.
    Gate(Gate),
    /// The live look at a quiet holder: whether its Lease stands unchanged (or is gone).
    Verified {
        /// The session looked at.
        session: SessionId,
        /// Unchanged since last seen, or gone.
        quiet: bool,
    },
    /// The removal ended.
    Removed(Removal),
    /// Time passed, a slot is free, or somebody's session changed.
    Tick,
    /// The grace period is over: stop at a safe point.
    Stop,
    /// Deploy again although the status is up to date, for instance because its release record is gone.
    Redeploy {
        /// The release that the status named when that was found: under another one it is history. `None`: whatever
        /// stands.
        of: Option<String>,
    },
    /// What was deployed was looked at: whether objects of it differ from this deployment.
    Drift {
        /// The deployment id they were compared with.
        deployment: String,
        /// There is something to correct.
        seen: bool,
    },
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
    /// Live GET of the object; answer with `Read`, `ReadAbsent` or `ReadFailed`. Live reads of one unit run one
    /// after another; one asked for while another is on its way starts after it.
    Reread {
        /// Not before this wait.
        after: Duration,
    },
    /// Live GET of that session's Lease, then of the object; answer with `Read` and `Verified`, or `ReadFailed`.
    Verify {
        /// The holder's session.
        session: SessionId,
        /// The Lease's version when last seen; empty when never seen.
        known: Epoch,
    },
    /// Run the deployment under this claim; if it is `unswept`, with a look for strays.
    Start {
        /// The claim.
        claim: Claim,
        /// Its epoch.
        epoch: Epoch,
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
    /// Ask again at this time. Every step tells it anew: only the last one counts.
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
