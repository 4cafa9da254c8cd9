// SPDX-License-Identifier: Apache-2.0
//! The words that labels may take, each a closed enum.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, LabelValueEncoder};

/// Defines an enum that is the value of one label: its key, its words, and all of them for registration.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident as $key:literal { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$word_doc])* $variant,)+ }

        impl $name {
            /// Every value, in the order of the reference page.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The label's value as Prometheus sees it.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
                EncodeLabelValue::encode(&self.word(), encoder)
            }
        }

        impl EncodeLabelSet for $name {
            fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), std::fmt::Error> {
                EncodeLabelSet::encode(&[($key, self.word())], encoder)
            }
        }
    };
}

label! {
    /// How an attempt to claim ended.
    ClaimOutcome as "outcome" {
        /// The claim is ours.
        Won = "won",
        /// The write was refused; who wrote instead is not yet known.
        Conflict = "conflict",
        /// A rival holds the claim.
        Lost = "lost",
    }
}

label! {
    /// Why a claim was taken over; the same words as the protocol's.
    TakeoverReason as "reason" {
        /// The holder's session did not change for its TTL, and a live look confirmed it.
        Quiet = "quiet",
        /// The holder is known to be dead: its Lease is gone, or its pod runs another session.
        Dead = "dead",
        /// The claim's budget is spent although its holder lives.
        Overdue = "overdue",
        /// An own claim from before.
        Own = "own",
        /// A claim that cannot be read stood unchanged for the claim timeout.
        Unreadable = "unreadable",
    }
}

label! {
    /// What became of a sign of life.
    CheckInOutcome as "outcome" {
        /// It stands in the Cluster's status.
        Written = "written",
        /// It could not be written.
        Failed = "failed",
    }
}

label! {
    /// How a deployment ended.
    DeploymentOutcome as "outcome" {
        /// First revision of a release.
        Installed = "installed",
        /// A later revision.
        Upgraded = "upgraded",
        /// The release was already as wanted; objects were stamped only.
        Adopted = "adopted",
        /// Foreign changes were reverted.
        Corrected = "corrected",
        /// Failed in a way that is tried again.
        Failed = "failed",
        /// Failed in a way that only a spec change can mend.
        Rejected = "rejected",
        /// Given up because the claim was lost, the spec changed or the unit went away.
        Abandoned = "abandoned",
    }
}

label! {
    /// What a write to the upstream cluster was for.
    UpstreamWrite as "kind" {
        /// A claim, or a takeover.
        Claim = "claim",
        /// The final status, with the claim removed.
        Finish = "finish",
        /// A claim that entered a wait.
        Wait = "wait",
        /// A claim given back without a result.
        Release = "release",
        /// Status of an idle unit.
        Monitor = "monitor",
        /// The controller cleared a claim.
        Expire = "expire",
    }
}

label! {
    /// The verb of a write to the downstream cluster.
    DownstreamWrite as "verb" {
        /// Server-side apply.
        Apply = "apply",
        /// POST.
        Create = "create",
        /// PUT.
        Update = "update",
        /// A patch that is not an apply.
        Patch = "patch",
        /// DELETE.
        Delete = "delete",
    }
}

label! {
    /// Where a unit stands in this replica's eyes.
    UnitState as "state" {
        /// Deployed, nothing to do.
        Idle = "idle",
        /// Wants work; no slot or turn yet.
        Queued = "queued",
        /// This replica deploys it.
        Working = "working",
        /// This replica waits for its objects, without a slot.
        Waiting = "waiting",
        /// A peer holds its claim.
        Elsewhere = "elsewhere",
        /// Failed; its next try is due later.
        BackingOff = "backing_off",
        /// Paused, off schedule or waiting for a dependency.
        Held = "held",
        /// Lost too many attempts.
        Quarantined = "quarantined",
        /// Its BundleDeployment is missing without a deletion that was seen; what it deployed is kept.
        Absent = "absent",
    }
}

label! {
    /// What the claims say that the controller sees.
    FleetClaim as "state" {
        /// A replica is at work, or waits for readiness.
        Open = "open",
        /// Failed; its next try is due later.
        BackingOff = "backing_off",
        /// Ended by a controller, or handed over; anybody may claim.
        Expired = "expired",
        /// Lost too many attempts.
        Quarantined = "quarantined",
        /// Not a claim that this version knows.
        Unreadable = "unreadable",
    }
}
