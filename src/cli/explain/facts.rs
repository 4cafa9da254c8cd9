// SPDX-License-Identifier: Apache-2.0
//! What is known when a bundle is explained, and what it comes to. Plain data: whoever reads clusters fills in the one,
//! whoever prints takes the other.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::api::BundleDeployment;

/// Everything that was looked at.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The object.
    pub bd: &'a BundleDeployment,
    /// Whether its dependencies are ready; an error says which are not.
    pub dependencies: Result<(), String>,
    /// What the cluster below shows; `None` without access to it.
    pub below: Option<&'a Below>,
    /// The time of day here; compared with what others wrote only for people.
    pub now: DateTime<Utc>,
}

/// What the cluster that is deployed to shows. Each part may be refused by itself; an error says why.
#[derive(Debug)]
pub struct Below {
    /// The replicas.
    pub sessions: Result<Vec<SessionFact>, String>,
    /// The release's revisions, newest last.
    pub history: Result<Vec<Revision>, String>,
    /// Who wrote the objects that differ.
    pub writers: Vec<Writers>,
}

/// A replica's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFact {
    /// The run.
    pub session: String,
    /// The replica.
    pub holder: String,
    /// Seconds since it renewed last, by two clocks; may be negative.
    pub silent: Option<i64>,
    /// Seconds of silence after which its peers take it for dead.
    pub ttl: i64,
    /// Free worker slots.
    pub free_slots: usize,
}

/// One revision of the release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// From 1.
    pub revision: u32,
    /// In Helm's words.
    pub status: String,
    /// Helm's description.
    pub description: String,
    /// A claim of ours stands on it.
    pub ours: bool,
}

/// Who owns fields of a live object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writers {
    /// `Kind namespace/name`.
    pub object: String,
    /// Field managers other than the agent, `name (operation, when)`, newest first.
    pub managers: Vec<String>,
}

/// Where a bundle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Deployed, ready, as it should be.
    Ready,
    /// Deployed; objects are not ready.
    NotReady,
    /// Deployed; objects differ.
    Drifted,
    /// Deployed; the objects cannot be looked at, and the rest of the status is as last seen.
    Unseen,
    /// Deployed; a newer version is staged and not rolled out.
    OutOfSync,
    /// No replica may begin: paused, off schedule, without values, without a deployment id.
    Held,
    /// Others must be ready first.
    Blocked,
    /// To be claimed by the next free replica.
    Unclaimed,
    /// To be claimed, and no replica lives.
    NoReplica,
    /// A replica works on it.
    Claimed,
    /// A replica waits until it is ready.
    Waiting,
    /// Failed; tried again after a while.
    BackingOff,
    /// A claim was ended; any replica may go on.
    Expired,
    /// Lost too often, or set aside by command.
    Quarantined,
    /// A claim that this version cannot read.
    Unreadable,
    /// The content cannot be deployed.
    Failed,
    /// The management cluster was restored from a backup.
    WentBack,
    /// It carries Fleet's own agent.
    Refused,
    /// It is being deleted.
    Deleting,
}

/// Whether the session behind a claim lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Life {
    /// It renewed within its TTL.
    Live,
    /// It did not.
    Silent,
    /// It has no Lease any more.
    Ended,
    /// Not seen from here.
    Unknown,
}

/// Who holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The condition's reason.
    pub reason: &'static str,
    /// The replica.
    pub holder: String,
    /// Its run.
    pub session: String,
    /// Whether that run lives.
    pub life: Life,
    /// The attempt.
    pub attempt: u32,
    /// Attempts lost with their replicas.
    pub lost: u32,
    /// Sessions that lost them.
    pub lost_by: Vec<String>,
    /// Since when, RFC 3339.
    pub since: String,
}

/// An object that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// `Kind namespace/name`.
    pub object: String,
    /// How.
    pub what: String,
    /// Its other field managers; empty when not seen.
    pub managers: Vec<String>,
}

/// A command that helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// To be typed.
    pub command: String,
    /// What it does.
    pub effect: String,
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The bundle.
    pub name: String,
    /// The cluster namespace.
    pub namespace: String,
    /// Fleet's state.
    pub state: &'static str,
    /// Where it is.
    pub phase: Phase,
    /// The same as a sentence.
    pub summary: String,
    /// Why, one sentence each.
    pub why: Vec<String>,
    /// The claim, if there is one that can be read.
    pub claim: Option<Held>,
    /// What it waits for.
    pub waits_for: Vec<String>,
    /// What happens next.
    pub next: String,
    /// When, RFC 3339, where that can be said.
    pub next_at: Option<String>,
    /// The last error.
    pub last_error: Option<String>,
    /// What differs from the release.
    pub drift: Vec<Drift>,
    /// The release in force, `namespace/name:revision`.
    pub release: Option<String>,
    /// What cannot be seen from here, and what would show it.
    pub unseen: Vec<String>,
    /// What would help.
    pub advice: Vec<Advice>,
}
