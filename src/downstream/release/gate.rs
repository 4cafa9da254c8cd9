// SPDX-License-Identifier: Apache-2.0
//! The gate: the release record written before the first object and closed after the last.
//!
//! Whoever creates revision N+1 has the right to apply it. A first deployment costs one POST here and one PUT at the
//! end; an upgrade one PUT more for the revision it supersedes and one DELETE for the history.

use serde_json::Value;
use tracing::info;

use super::{
    ReleaseError,
    codec::{Info, Release, Status},
    state::{Operation, Owner, deployed, operation, owner, unaccounted},
    store::{Record, Store},
};
use crate::downstream::fence::{Fence, Fenced};

/// Revisions kept when the bundle does not say: Fleet's default.
pub(super) const DEFAULT_HISTORY: usize = 2;
/// How often a leftover record that changes under our hands is looked at again (L5).
const LEFTOVER_ROUNDS: usize = 3;

/// What is to be deployed, and what there is.
pub struct GateInput<'a> {
    /// Release namespace.
    pub namespace: &'a str,
    /// Release name.
    pub name: &'a str,
    /// The bundle: the BundleDeployment's name.
    pub bundle: &'a str,
    /// The chart's part of the record.
    pub chart: Value,
    /// The objects, as Helm's manifest text.
    pub manifest: String,
    /// The values given by the user.
    pub values: Option<Value>,
    /// The hooks, as Helm's record has them; `None` when there are none.
    pub hooks: Option<Value>,
    /// Objects are replaced (PUT) instead of applied.
    pub replaces: bool,
    /// Objects of others are taken. With Helm that is not server-side apply either, at an install.
    pub takes: bool,
    /// The history, just read.
    pub history: Vec<Record>,
    /// The metadata with which to create the release namespace when it is missing; `None`: it is not to be created.
    pub create_namespace: Option<Value>,
    /// A foreign pending record was seen unchanged for the claim timeout: fail it.
    pub fail_foreign: bool,
    /// The replica that removes the release is dead: deploy over its removal.
    pub over_removal: bool,
    /// Revisions to keep; 0 means Fleet's default.
    pub max_history: usize,
}

/// An open gate: revision N+1 is pending and ours.
pub struct Gate {
    pub(super) store: Store,
    pub(super) fence: Fence,
    pub(super) record: Record,
    pub(super) history: Vec<Record>,
    pub(super) operation: Option<Operation>,
    pub(super) max_history: usize,
}

impl Gate {
    /// Opens the gate: fails what earlier attempts left pending, then creates the next revision.
    pub async fn open(store: &Store, fence: &Fence, input: GateInput<'_>) -> Result<Self, ReleaseError> {
        let GateInput { namespace, name, bundle, chart, manifest, values, hooks, mut history, .. } = input;
        match owner(&history) {
            Owner::Bundle(other) if other != bundle => {
                return Err(ReleaseError::OtherBundle {
                    release: format!("{namespace}/{name}"),
                    other: other.to_owned(),
                    bundle: bundle.to_owned(),
                });
            }
            // Whose it is, only our own stamp can tell: nobody else writes our uid.
            Owner::Unreadable if !history.is_empty() && !is_stamped(&history, fence) => {
                let record = history.last().map(|record| record.name().to_owned()).unwrap_or_default();
                return Err(ReleaseError::Unreadable { record });
            }
            Owner::Bundle(_) | Owner::Nobody | Owner::Unreadable => {}
        }
        if let Some(removal) = history.last().filter(|record| record.status == Status::Uninstalling)
            && !input.over_removal
        {
            return Err(ReleaseError::Uninstalling {
                record: removal.name().to_owned(),
                guard: removal.guard(),
            });
        }
        let newest_stamp = newest_stamp(&history, fence)?;
        fail_leftovers(store, fence, &mut history, input.fail_foreign).await?;

        let operation = operation(&history);
        let revision = history.last().map_or(0, |record| record.revision) + 1;
        let previous = unaccounted(&history).iter().find_map(|record| record.release.as_ref().ok());
        let now = store.now();
        let (status, description, first_deployed) = match operation {
            Operation::Install => (Status::PendingInstall, "Initial install underway", now.clone()),
            Operation::Upgrade | Operation::Rollback { .. } => {
                let first = previous.map(|previous| previous.info.first_deployed.clone());
                (Status::PendingUpgrade, "Preparing upgrade", first.unwrap_or_else(|| now.clone()))
            }
        };
        let mut release = Release {
            name: name.to_owned(),
            info: Info {
                first_deployed,
                last_deployed: now,
                description: description.to_owned(),
                status,
                ..Info::default()
            },
            chart,
            config: values,
            manifest,
            hooks,
            version: revision,
            namespace: namespace.to_owned(),
            apply_method: apply_method(&history, operation, input.replaces, input.takes).to_owned(),
            ..Release::default()
        };
        let labels = history.last().map(Record::custom_labels).unwrap_or_default();
        let proof = if newest_stamp { fence.compared().await } else { fence.uncompared().await };
        proof.map_err(ReleaseError::Fenced)?;
        let created = store.create(&mut release, &labels, &fence.stamp).await;
        let meta = match (created, input.create_namespace) {
            (Err(ReleaseError::NoNamespace { .. }), Some(metadata)) => {
                store.create_namespace(namespace, metadata).await?;
                fence.uncompared().await.map_err(ReleaseError::Fenced)?;
                store.create(&mut release, &labels, &fence.stamp).await?
            }
            (created, _) => created?,
        };
        let record = Record::created(meta, release);
        info!(release = %format_args!("{namespace}/{name}"), revision, epoch = %fence.stamp.epoch, "release opened");
        let max_history = if input.max_history == 0 { DEFAULT_HISTORY } else { input.max_history };
        let (store, fence) = (store.clone(), fence.clone());
        Ok(Self { store, fence, record, history, operation: Some(operation), max_history })
    }

    /// Adopts a deployed revision that is already what is wanted: stamps its record, makes no new one. The objects
    /// are then stamped by applying them; no content changes.
    pub async fn adopt(
        store: &Store,
        fence: &Fence,
        bundle: &str,
        mut history: Vec<Record>,
    ) -> Result<Self, ReleaseError> {
        check_owner(&history, bundle)?;
        newest_stamp(&history, fence)?;
        let Some(mut record) = history.pop().filter(|record| record.status == Status::Deployed) else {
            return Err(ReleaseError::Raced { record: bundle.to_owned() });
        };
        fence
            .before(record.stamp().as_ref(), || record.name().to_owned())
            .await
            .map_err(ReleaseError::Fenced)?;
        store.update(&mut record, Some(&fence.stamp), None).await?;
        let (store, fence) = (store.clone(), fence.clone());
        Ok(Self { store, fence, record, history, operation: None, max_history: usize::MAX })
    }

    /// The revision that is open.
    pub fn revision(&self) -> u32 {
        self.record.revision
    }

    /// Install or upgrade; `None` when a deployed revision was adopted.
    pub fn operation(&self) -> Option<Operation> {
        self.operation
    }

    /// Whether a record whose objects may be live cannot be read: then only their labels tell which they are.
    pub fn is_blind(&self) -> bool {
        self.before().iter().any(|record| record.release.is_err())
    }

    /// The records whose objects may be live: what prune compares with the new manifest.
    pub fn before(&self) -> &[Record] {
        unaccounted(&self.history)
    }

    /// Whether a revision before this one was found pending: its writer did not end it, and what that one had sent may
    /// land late. The claim says so, too, unless somebody put an old status over it.
    pub fn follows_interrupted(&self) -> bool {
        let mut releases = self.before().iter().filter_map(|record| record.release.as_ref().ok());
        releases.any(|release| release.info.description == INTERRUPTED)
    }

    /// Those of [`Gate::before`] that were deployed once: what they list was this release's. A failed revision lists
    /// also what it was refused.
    pub fn deployed_before(&self) -> impl Iterator<Item = &Record> {
        deployed(&self.history)
    }
}

/// Describes a revision whose writer lost its claim before it had ended.
const INTERRUPTED: &str = "Interrupted: its claim was taken over";

/// What the record says of how its objects are written, for Helm's next upgrade: server-side apply (`ssa`) unless they
/// are replaced or taken at an install, and then as the last revision said.
fn apply_method(history: &[Record], operation: Operation, replaces: bool, takes: bool) -> &'static str {
    let last = history.iter().rev().find_map(|record| record.release.as_ref().ok());
    let server_side = match (operation, last) {
        _ if replaces => false,
        (Operation::Install, _) | (_, None) => !takes,
        (_, Some(last)) => last.apply_method == "ssa",
    };
    if server_side { "ssa" } else { "csa" }
}

/// Refuses the release of another bundle.
pub(super) fn check_owner(history: &[Record], bundle: &str) -> Result<(), ReleaseError> {
    match owner(history) {
        Owner::Bundle(other) if other != bundle => Err(ReleaseError::OtherBundle {
            release: history.last().map(|record| record.name().to_owned()).unwrap_or_default(),
            other: other.to_owned(),
            bundle: bundle.to_owned(),
        }),
        Owner::Bundle(_) | Owner::Nobody | Owner::Unreadable => Ok(()),
    }
}

/// Whether any record carries our uid.
fn is_stamped(history: &[Record], fence: &Fence) -> bool {
    history.iter().filter_map(Record::stamp).any(|stamp| stamp.uid == fence.stamp.uid)
}

/// Whether any record carries our uid; refuses when one was written under a newer claim (S1).
pub(super) fn newest_stamp(history: &[Record], fence: &Fence) -> Result<bool, ReleaseError> {
    let mut ours = false;
    for record in history {
        let Some(stamped) = record.stamp().filter(|stamp| stamp.uid == fence.stamp.uid) else { continue };
        if stamped.epoch > fence.stamp.epoch {
            let object = record.name().to_owned();
            return Err(ReleaseError::Fenced(Fenced::Newer { object, stamped }));
        }
        ours = true;
    }
    Ok(ours)
}

/// Fails every pending record, each with the resourceVersion that was read. Only the claim says that its writer is
/// dead; for a foreign one, the caller's patience does.
pub(super) async fn fail_leftovers(
    store: &Store,
    fence: &Fence,
    history: &mut [Record],
    fail_foreign: bool,
) -> Result<(), ReleaseError> {
    for record in history.iter_mut() {
        let mut rounds = 0;
        while record.status.is_pending() {
            let stamp = record.stamp();
            if stamp.is_none() && !fail_foreign {
                return Err(ReleaseError::ForeignRun {
                    record: record.name().to_owned(),
                    status: record.status.clone(),
                    resource_version: record.resource_version().to_owned(),
                });
            }
            let proof = fence.before(stamp.as_ref(), || record.name().to_owned()).await;
            proof.map_err(ReleaseError::Fenced)?;
            // One that cannot be read cannot be written either; it goes when all is accounted for.
            if record.release.is_err() {
                break;
            }
            if let Ok(release) = &mut record.release {
                release.info.status = Status::Failed;
                release.info.description = match &stamp {
                    Some(_) => INTERRUPTED.to_owned(),
                    None => "Interrupted: found pending and unchanged".to_owned(),
                };
            }
            // Another uid's stays: it says whose objects there may be.
            let stamp = stamp.is_none_or(|found| found.uid == fence.stamp.uid).then_some(&fence.stamp);
            match store.update(record, stamp, None).await {
                Ok(()) => {
                    info!(release = record.name(), revision = record.revision, "leftover revision failed");
                }
                // The old holder may just have closed it: then it counts as it stands now.
                Err(ReleaseError::Raced { record: name }) => {
                    rounds += 1;
                    match store.reread(record).await? {
                        Some(fresh) if rounds < LEFTOVER_ROUNDS => *record = fresh,
                        Some(_) | None => return Err(ReleaseError::Raced { record: name }),
                    }
                    newest_stamp(std::slice::from_ref(record), fence)?;
                }
                Err(other) => return Err(other),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
