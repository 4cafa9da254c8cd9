// SPDX-License-Identifier: Apache-2.0
//! The fence in front of every downstream write: is the claim behind this work still ours?
//!
//! A lease alone cannot protect the target, since its holder may stall between check and write. So every object
//! carries the epoch of the claim that wrote it last, and every write carries the uid and resourceVersion that were
//! read together with that epoch. Where the target carries no epoch of ours, epochs do not compare, and the claim
//! must have been seen live a short time ago.

use std::{error::Error, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::protocol::Stamp;

/// Why the claim could not be looked at.
pub type ProofError = Box<dyn Error + Send + Sync>;

/// What a live look at the BundleDeployment says about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimNow {
    /// It is ours, and what we deploy is still asked for.
    Ours,
    /// It is ours, but the BundleDeployment asks for another deployment by now.
    Outdated,
    /// Another replica has it, or nobody.
    Lost,
}

/// What knows whether the claim is still ours; the upstream side implements it.
pub trait ClaimProof: Send + Sync {
    /// Whether a live read or write showed the claim as ours within this time, by the monotonic clock.
    fn confirmed_within(&self, age: Duration) -> bool;
    /// Whether this replica renews its session: a holder that cannot, may have been taken over.
    fn session_healthy(&self) -> bool;
    /// Reads the BundleDeployment live: is its claim ours (uid and nonce), and does it ask for what we deploy?
    fn confirm(&self) -> BoxFuture<'_, Result<ClaimNow, ProofError>>;
}

/// The right to write under one claim.
#[derive(Clone)]
pub struct Fence {
    /// What is written on objects and records.
    pub stamp: Stamp,
    /// Whether the claim is still ours.
    pub proof: Arc<dyn ClaimProof>,
    /// A session's time to live.
    pub ttl: Duration,
    /// Stops the work between two writes: shutdown, deletion, another deployment id.
    pub cancelled: CancellationToken,
}

/// Why a write did not take place.
#[derive(Debug, thiserror::Error)]
pub enum Fenced {
    /// The target was written under a newer claim: this replica is the frozen one (S1).
    #[error("{object} was written under a newer claim ({stamped})")]
    Newer {
        /// The object or release record.
        object: String,
        /// The stamp found on it.
        stamped: Stamp,
    },
    /// Another replica has the claim, or nobody.
    #[error("the claim is no longer ours")]
    ClaimLost,
    /// The BundleDeployment asks for another deployment by now.
    #[error("the bundle asks for another deployment by now")]
    Outdated,
    /// The work was called off.
    #[error("the deployment was called off")]
    Cancelled,
    /// The claim could not be looked at.
    #[error("cannot confirm the claim")]
    Proof(#[source] ProofError),
}

impl Fence {
    /// Before a write to a target that carries an older (or our own) stamp of our uid: the resourceVersion guards
    /// it, so a healthy session is enough; without one the claim must be seen live.
    pub async fn compared(&self) -> Result<(), Fenced> {
        self.open()?;
        if self.proof.session_healthy() { Ok(()) } else { self.confirm().await }
    }

    /// Before a write to a target that carries no stamp of our uid: the claim must have been seen live at most a
    /// third of the session's time to live ago.
    pub async fn uncompared(&self) -> Result<(), Fenced> {
        self.open()?;
        if self.proof.confirmed_within(self.ttl / 3) { Ok(()) } else { self.confirm().await }
    }

    /// Before a write that takes or deletes what another unit wrote, and after the target was read: the claim is looked at
    /// now, however fresh. Whoever was to have the target got it after this unit was told to give it up, so a target that
    /// was read in the other's hands says that this claim may be about what is no longer asked for.
    pub async fn foreign(&self) -> Result<(), Fenced> {
        self.open()?;
        self.confirm().await
    }

    /// Before a write to a target on which `stamp` was read: refuses when it is newer (S1), else asks for the proof
    /// that its age calls for. `object` names the target for the error.
    pub async fn before(&self, stamp: Option<&Stamp>, object: impl FnOnce() -> String) -> Result<(), Fenced> {
        match stamp {
            Some(stamped) if stamped.uid == self.stamp.uid => {
                if stamped.epoch > self.stamp.epoch {
                    return Err(Fenced::Newer { object: object(), stamped: stamped.clone() });
                }
                self.compared().await
            }
            Some(_) | None => self.uncompared().await,
        }
    }

    fn open(&self) -> Result<(), Fenced> {
        if self.cancelled.is_cancelled() { Err(Fenced::Cancelled) } else { Ok(()) }
    }

    async fn confirm(&self) -> Result<(), Fenced> {
        match self.proof.confirm().await {
            Ok(ClaimNow::Ours) => self.open(),
            Ok(ClaimNow::Outdated) => Err(Fenced::Outdated),
            Ok(ClaimNow::Lost) => Err(Fenced::ClaimLost),
            Err(error) => Err(Fenced::Proof(error)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A proof whose answers are set by hand; counts the live reads.
    pub(crate) struct Proof {
        pub fresh: bool,
        pub healthy: bool,
        pub now: ClaimNow,
        pub reads: AtomicUsize,
    }

    impl ClaimProof for Proof {
        fn confirmed_within(&self, _: Duration) -> bool {
            self.fresh
        }
        fn session_healthy(&self) -> bool {
            self.healthy
        }
        fn confirm(&self) -> BoxFuture<'_, Result<ClaimNow, ProofError>> {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let now = self.now;
            Box::pin(async move { Ok(now) })
        }
    }

    pub(crate) fn proof(fresh: bool, healthy: bool, ours: bool) -> Arc<Proof> {
        let now = if ours { ClaimNow::Ours } else { ClaimNow::Lost };
        Arc::new(Proof { fresh, healthy, now, reads: AtomicUsize::new(0) })
    }

    /// One whose claim is still there, for what is asked for no more.
    pub(crate) fn outdated(fresh: bool) -> Arc<Proof> {
        Arc::new(Proof { fresh, healthy: true, now: ClaimNow::Outdated, reads: AtomicUsize::new(0) })
    }

    /// A fence of claim `<uid>/<epoch>` that holds.
    pub(crate) fn fence(stamp: &str) -> Fence {
        with(stamp, proof(true, true, true))
    }

    pub(crate) fn with(stamp: &str, proof: Arc<Proof>) -> Fence {
        Fence {
            stamp: Stamp::parse(stamp).expect("a stamp"),
            proof,
            ttl: Duration::from_secs(15),
            cancelled: CancellationToken::new(),
        }
    }

    #[tokio::test]
    async fn a_newer_stamp_of_our_uid_is_refused_and_another_uids_is_not_compared() {
        let fence = fence("u/20");
        let newer = Stamp::parse("u/100");
        let refused = fence.before(newer.as_ref(), || "x".into()).await.unwrap_err();
        assert!(matches!(refused, Fenced::Newer { object, .. } if object == "x"));
        for fine in ["u/20", "u/3", "other/100"] {
            let stamp = Stamp::parse(fine);
            assert!(fence.before(stamp.as_ref(), || "x".into()).await.is_ok(), "{fine}");
        }
        assert!(fence.before(None, || "x".into()).await.is_ok());
    }

    #[tokio::test]
    async fn the_claim_is_read_only_when_it_must_be() {
        // (fresh, healthy) → live reads of (compared, uncompared)
        for (fresh, healthy, compared, uncompared) in
            [(true, true, 0, 0), (false, true, 0, 1), (true, false, 1, 0), (false, false, 1, 1)]
        {
            let known = proof(fresh, healthy, true);
            let fence = with("u/1", known.clone());
            fence.compared().await.unwrap();
            assert_eq!(known.reads.swap(0, Ordering::SeqCst), compared);
            fence.uncompared().await.unwrap();
            assert_eq!(known.reads.load(Ordering::SeqCst), uncompared);
        }
    }

    #[tokio::test]
    async fn a_claim_for_what_is_asked_for_no_more_takes_nothing_from_another_unit_however_fresh() {
        let known = outdated(true);
        let fence = with("u/1", known.clone());
        assert!(fence.uncompared().await.is_ok(), "seen a moment ago");
        assert!(matches!(fence.foreign().await, Err(Fenced::Outdated)));
        assert!(matches!(with("u/1", outdated(false)).uncompared().await, Err(Fenced::Outdated)));
        assert_eq!(known.reads.load(Ordering::SeqCst), 1);
        assert!(with("u/1", proof(true, true, true)).foreign().await.is_ok());
    }

    #[tokio::test]
    async fn a_lost_claim_or_a_called_off_deployment_writes_nothing() {
        let lost = with("u/1", proof(false, false, false));
        assert!(matches!(lost.compared().await, Err(Fenced::ClaimLost)));
        assert!(matches!(lost.uncompared().await, Err(Fenced::ClaimLost)));
        let stopped = fence("u/1");
        stopped.cancelled.cancel();
        assert!(matches!(stopped.compared().await, Err(Fenced::Cancelled)));
        assert!(matches!(stopped.uncompared().await, Err(Fenced::Cancelled)));
    }
}
