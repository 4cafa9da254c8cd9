// SPDX-License-Identifier: Apache-2.0
//! The gate closed: the revision is deployed, or it failed, and history is tidied up.

use std::{collections::BTreeSet, time::Duration};

use tracing::{debug, warn};

use super::{Gate, Operation, Record, ReleaseError, Status};
use crate::telemetry::chain;

/// Waits before each look at a record whose closing write was not answered: a server that restarts is back by the last.
const SETTLE_PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];

impl Gate {
    /// Closes the gate: everything is applied and pruned.
    ///
    /// The new revision is deployed *before* the old one is superseded, so that a crash in between leaves two deployed
    /// ones, of which the newer counts, and never none. What fails after that is tidied up by the next deployment.
    pub async fn deployed(mut self, notes: Option<&str>) -> Result<u32, ReleaseError> {
        if let Some(operation) = self.operation {
            self.fence.compared().await.map_err(ReleaseError::Fenced)?;
            if let Ok(release) = &mut self.record.release {
                release.info.status = Status::Deployed;
                match operation {
                    Operation::Install => release.info.description = "Install complete".to_owned(),
                    Operation::Upgrade => release.info.description = "Upgrade complete".to_owned(),
                    // Says already to what, and has the notes of that.
                    Operation::Rollback { .. } => {}
                }
                if let Some(notes) = notes {
                    release.info.notes = notes.to_owned();
                }
            }
            if let Err(error) = self.store.update(&mut self.record, None, None).await {
                self.settle(error).await?;
            }
        }
        let revision = self.record.revision;
        // Prune has run over all of these: nothing in them is unaccounted for any more.
        let surplus = (self.history.len() + 1).saturating_sub(self.max_history).min(self.history.len());
        for (index, old) in self.history.iter_mut().enumerate() {
            // What cannot be read is of no use to anybody, and Helm stumbles over it.
            let tidied = if index < surplus || old.release.is_err() {
                self.store.delete(old).await
            } else if old.status == Status::Deployed
                && let Ok(release) = &mut old.release
            {
                release.info.status = Status::Superseded;
                self.store.update(old, None, None).await
            } else {
                Ok(())
            };
            if let Err(error) = tidied {
                warn!(release = old.name(), cause = %chain(&error), "history not tidied up; the next deployment will");
            }
        }
        Ok(revision)
    }

    /// The answer to the closing write was lost: the record itself tells whether it was carried out. Taking it for a
    /// failure would deploy the same thing once more (S9).
    async fn settle(&mut self, error: ReleaseError) -> Result<(), ReleaseError> {
        if !matches!(&error, ReleaseError::Write { source, .. } if source.is_unclear()) {
            return Err(error);
        }
        for pause in SETTLE_PAUSES {
            tokio::time::sleep(pause).await;
            match self.store.reread(&self.record).await {
                Ok(Some(found))
                    if found.status == Status::Deployed && found.stamp() == self.record.stamp() =>
                {
                    self.record = found;
                    return Ok(());
                }
                Ok(_) => break,
                Err(again) => {
                    debug!(
                        release = self.record.name(),
                        cause = %chain(&again),
                        "cannot read back whether the revision counts as deployed"
                    );
                }
            }
        }
        Err(error)
    }

    /// Closes the gate without a trace: everything that any revision lists was removed. The open one goes last, so that
    /// what is cut short is found again.
    pub async fn forgotten(self) -> Result<(), ReleaseError> {
        for record in self.revisions() {
            self.fence.compared().await.map_err(ReleaseError::Fenced)?;
            self.store.delete(record).await?;
        }
        Ok(())
    }

    /// How many more revisions there are than are to be kept, this one included.
    pub fn surplus(&self) -> usize {
        (self.history.len() + 1).saturating_sub(self.max_history)
    }

    /// All revisions, oldest first, the open one last.
    pub fn revisions(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.history.iter().chain([&self.record])
    }

    /// Closes the gate: the attempt failed, for this reason.
    ///
    /// No proof of the claim is asked for: the record is ours, and its resourceVersion says whether a newer claim has
    /// failed it already. So an abandoned attempt can always be closed. Of the failed attempts before it, those among
    /// the `repeated` revisions leave history when there are too many: newer records account for them. One of another
    /// BundleDeployment's stays: it says whose objects there may be.
    pub async fn failed(mut self, reason: &str, repeated: &BTreeSet<u32>) -> Result<(), ReleaseError> {
        let Some(operation) = self.operation else { return Ok(()) };
        let Ok(release) = &mut self.record.release else { return Ok(()) };
        release.info.status = Status::Failed;
        release.info.description = match operation {
            Operation::Install => format!("Release \"{}\" failed: {reason}", release.name),
            Operation::Upgrade => format!("Upgrade \"{}\" failed: {reason}", release.name),
            Operation::Rollback { .. } => format!("Rollback \"{}\" failed: {reason}", release.name),
        };
        self.store.update(&mut self.record, None, None).await?;
        let ours = &self.fence.stamp.uid;
        let dispensable = self.history.iter().filter(|old| {
            old.status == Status::Failed
                && old.release.is_ok()
                && repeated.contains(&old.revision)
                && old.stamp().is_none_or(|stamp| stamp.uid == *ours)
        });
        for old in dispensable.take(self.surplus()) {
            if let Err(error) = self.store.delete(old).await {
                warn!(release = old.name(), cause = %chain(&error), "history not tidied up; the next deployment will");
            }
        }
        Ok(())
    }
}
