// SPDX-License-Identifier: Apache-2.0
//! Judges a run by what the API servers saw, not by what the agents say of themselves.
//!
//! The witnesses are the claims seen by a watch upstream, the release records seen by a watch downstream, and the
//! audit logs of both servers. All functions are pure; `tests/judge.rs` shows that they find what they look for.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::audit::AuditEntry;
use super::records::Record;
use super::units::{Claim, End};

/// A process of ours that was ended by us.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The name it ran under.
    pub holder: String,
    /// When the signal was sent.
    pub at: Instant,
}

/// A claim that another session replaced while it was open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// The BundleDeployment.
    pub unit: String,
    /// The former holder.
    pub from: String,
    /// The new one.
    pub to: String,
    /// Whether the former holder was never ended by us: then nobody had reason to take it.
    pub from_the_living: bool,
}

/// What a run amounted to.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Revisions that became the deployed one, by the holder whose claim created them.
    pub deployments: BTreeMap<String, usize>,
    /// Revisions created in all.
    pub gates: usize,
    /// Takeovers, oldest first.
    pub takeovers: Vec<Takeover>,
    /// Revisions beyond the first for one deployment id, by unit; all of them explained.
    pub repeats: BTreeMap<String, usize>,
    /// Deployments done twice without need, each told in a sentence. There must be none.
    pub doubles: Vec<String>,
}

/// Judges the release records by the claims they were made under. `ended` lists the processes that were killed.
///
/// A second revision for the same deployment id is explained only if the claim of the one before was lost (taken
/// over, expired), given back, or reported a failure. One claim never makes two revisions.
pub fn verdict(claims: &[Claim], records: &[Record], ended: &[Ended]) -> Verdict {
    let mut verdict = Verdict { takeovers: takeovers(claims, ended), ..Verdict::default() };
    let by_epoch: BTreeMap<(&str, &str), &Claim> =
        claims.iter().map(|claim| ((claim.uid.as_str(), claim.epoch.as_str()), claim)).collect();
    let mut before: BTreeMap<(&str, &str), Vec<(&Record, &Claim)>> = BTreeMap::new();
    for record in records {
        verdict.gates += 1;
        let name = format!("{}/{}:{}", record.namespace, record.release, record.revision);
        let claim = record
            .stamp
            .as_ref()
            .and_then(|stamp| by_epoch.get(&(stamp.uid.0.as_str(), stamp.epoch.0.as_str())).copied());
        let Some(claim) = claim else {
            verdict.doubles.push(format!("{name} was created under no claim that was ever seen"));
            continue;
        };
        if record.was_deployed() {
            *verdict.deployments.entry(claim.holder.clone()).or_default() += 1;
        }
        let earlier = before.entry((record.namespace.as_str(), record.release.as_str())).or_default();
        // A rollback is new work: another deployment may have changed something in between, also one without a record.
        let same = earlier
            .last()
            .filter(|(_, other)| is_same_work(other, claim) && !is_interrupted(claims, other, claim));
        if let Some((other_record, other)) = same {
            let other_name = other_record.revision;
            if other.nonce == claim.nonce {
                verdict.doubles.push(format!("{name} and revision {other_name} share one claim"));
            } else if other_record.was_deployed() && !was_lost(other) {
                verdict.doubles.push(format!(
                    "{name} by {} repeats revision {other_name}, which {} had deployed without losing its claim",
                    claim.holder, other.holder
                ));
            } else {
                *verdict.repeats.entry(claim.unit.clone()).or_default() += 1;
            }
        }
        earlier.push((record, claim));
    }
    verdict
}

/// Claims of `unit` that were open when their holder was killed: each excuses one more revision.
pub fn lost_claims(claims: &[Claim], unit: &str) -> usize {
    claims.iter().filter(|claim| claim.unit == unit && was_lost(claim)).count()
}

fn is_same_work(a: &Claim, b: &Claim) -> bool {
    (&a.uid, &a.deployment) == (&b.uid, &b.deployment)
}

/// Whether the unit was claimed for another deployment between two claims.
fn is_interrupted(claims: &[Claim], first: &Claim, second: &Claim) -> bool {
    let between = claims.iter().skip_while(|claim| claim.nonce != first.nonce);
    let mut between = between.take_while(|claim| claim.nonce != second.nonce);
    between.any(|claim| claim.uid == first.uid && claim.deployment != first.deployment)
}

/// Whether somebody else than its holder ended the claim.
pub fn was_lost(claim: &Claim) -> bool {
    match &claim.end {
        Some(End::Replaced { takeover, .. }) => *takeover,
        Some(End::Closed(reason)) => reason == "Expired" || reason == "Quarantined",
        Some(End::Finished | End::Released | End::Deleted) | None => false,
    }
}

fn takeovers(claims: &[Claim], ended: &[Ended]) -> Vec<Takeover> {
    let by_nonce: BTreeMap<&str, &Claim> = claims.iter().map(|claim| (claim.nonce.as_str(), claim)).collect();
    let mut found = Vec::new();
    for claim in claims {
        let Some(End::Replaced { by, takeover: true }) = &claim.end else { continue };
        let Some(next) = by_nonce.get(by.as_str()) else { continue };
        // A claim is seen a moment after it was made, and its holder may be killed within that moment.
        let slack = std::time::Duration::from_secs(2);
        let excused = |ended: &Ended| ended.holder == claim.holder && ended.at + slack >= claim.seen;
        found.push(Takeover {
            unit: claim.unit.clone(),
            from: claim.holder.clone(),
            to: next.holder.clone(),
            from_the_living: !ended.iter().any(excused),
        });
    }
    found
}

/// Successful writes of BundleDeployment status by `user` in `namespace`, by unit.
pub fn status_writes(audit: &[AuditEntry], user: &str, namespace: &str) -> BTreeMap<String, usize> {
    let mut writes = BTreeMap::new();
    for entry in audit.iter().filter(|entry| is_status_write(entry, user, namespace) && entry.code < 300) {
        *writes.entry(entry.name.clone()).or_default() += 1;
    }
    writes
}

/// Writes of BundleDeployment status by `user` in `namespace` that were refused with a conflict.
pub fn conflicts(audit: &[AuditEntry], user: &str, namespace: &str) -> usize {
    audit.iter().filter(|entry| is_status_write(entry, user, namespace) && entry.code == 409).count()
}

fn is_status_write(entry: &AuditEntry, user: &str, namespace: &str) -> bool {
    entry.is_write()
        && entry.user == user
        && entry.namespace == namespace
        && (entry.resource.as_str(), entry.subresource.as_str()) == ("bundledeployments", "status")
}

/// Release records that the server says were created, as `namespace/name-of-secret`.
pub fn created_records(audit: &[AuditEntry]) -> BTreeSet<String> {
    audit
        .iter()
        .filter(|entry| entry.resource == "secrets" && entry.code == 201)
        .filter(|entry| entry.name.starts_with("sh.helm.release.v1."))
        .map(|entry| format!("{}/{}", entry.namespace, entry.name))
        .collect()
}

/// The same as the watch saw it; a difference means that a witness missed something.
pub fn seen_records(records: &[Record]) -> BTreeSet<String> {
    let name = |record: &Record| {
        format!("{}/sh.helm.release.v1.{}.v{}", record.namespace, record.release, record.revision)
    };
    records.iter().map(name).collect()
}
