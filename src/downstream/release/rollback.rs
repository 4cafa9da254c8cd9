// SPDX-License-Identifier: Apache-2.0
//! Back to what was deployed before: a new revision made of an old one, as `helm rollback` makes it, under the same
//! claim and fence as the upgrade that failed.

use tracing::info;

use super::{
    Gate, Info, Operation, Record, Release, ReleaseError, Status, Store,
    gate::{DEFAULT_HISTORY, check_owner, fail_leftovers, newest_stamp},
};
use crate::downstream::fence::Fence;

impl Gate {
    /// The revision that a failed upgrade goes back to: the newest before it that is, or was, deployed and can be read.
    pub fn rollback_target(&self) -> Option<&Release> {
        let counts = |record: &&Record| matches!(record.status, Status::Deployed | Status::Superseded);
        self.history.iter().rfind(counts).and_then(|record| record.release.as_ref().ok())
    }

    /// Notes on the open revision which fields were ours when its objects were applied.
    pub fn note_fields(&mut self, digest: Option<u64>) {
        if let Some(digest) = digest {
            self.record.note_fields(digest);
        }
    }

    /// Opens the revision after the newest one with what revision `to` has, to put its objects right: as `helm rollback`
    /// to the revision that is deployed. Nothing is superseded before that has succeeded.
    ///
    /// # Errors
    /// Those of [`Gate::open`].
    pub async fn correct(
        store: &Store,
        fence: &Fence,
        bundle: &str,
        mut history: Vec<Record>,
        to: u32,
        max_history: usize,
    ) -> Result<Self, ReleaseError> {
        check_owner(&history, bundle)?;
        newest_stamp(&history, fence)?;
        fail_leftovers(store, fence, &mut history, false).await?;
        let lost = || ReleaseError::Raced { record: bundle.to_owned() };
        let newest = history.last().ok_or_else(lost)?;
        let target = history.iter().find(|record| record.revision == to).ok_or_else(lost)?;
        let target = target.release.as_ref().map_err(|_| lost())?;
        let mut release = renewed(target, newest, store);
        let labels = newest.custom_labels();
        fence.compared().await.map_err(ReleaseError::Fenced)?;
        let meta = store.create(&mut release, &labels, &fence.stamp).await?;
        info!(
            release = %format_args!("{}/{}", release.namespace, release.name),
            revision = release.version, to, "putting right what others changed"
        );
        let record = Record::created(meta, release);
        let max_history = if max_history == 0 { DEFAULT_HISTORY } else { max_history };
        let (store, fence) = (store.clone(), fence.clone());
        Ok(Self { store, fence, record, history, operation: Some(Operation::Rollback { to }), max_history })
    }

    /// Takes the open revision back: what it was to put right stays as it is, and the deployed one stays the last.
    pub async fn withdrawn(self) -> Result<(), ReleaseError> {
        self.store.delete(&self.record).await
    }

    /// The objects of the open revision, as its record has them.
    pub fn manifest(&self) -> &str {
        self.record.release.as_ref().map(|release| release.manifest.as_str()).unwrap_or_default()
    }

    /// Fails the open revision for `reason` and opens the next one with what `rollback_target` has. What the failed
    /// one lists is among the records of [`before`](Self::before) of the new gate, so that it is pruned.
    ///
    /// # Errors
    /// Those of a write. The failed revision then stays as it is: the next attempt closes it.
    pub async fn roll_back(mut self, reason: &str) -> Result<Option<Self>, ReleaseError> {
        let Some(target) = self.rollback_target() else { return Ok(None) };
        let to = target.version;
        let mut release = renewed(target, &self.record, &self.store);
        let labels = self.record.custom_labels();
        if let Ok(failed) = &mut self.record.release {
            failed.info.status = Status::Failed;
            failed.info.description = format!("Upgrade \"{}\" failed: {reason}", failed.name);
        }
        self.fence.compared().await.map_err(ReleaseError::Fenced)?;
        self.store.update(&mut self.record, None, None).await?;
        self.fence.compared().await.map_err(ReleaseError::Fenced)?;
        let meta = self.store.create(&mut release, &labels, &self.fence.stamp).await?;
        info!(
            release = %format_args!("{}/{}", release.namespace, release.name),
            revision = release.version, to, "rolling back"
        );
        let record = Record::created(meta, release);
        let failed = std::mem::replace(&mut self.record, record);
        self.history.push(failed);
        self.operation = Some(Operation::Rollback { to });
        Ok(Some(self))
    }
}

/// The old revision as a new one.
fn renewed(target: &Release, failed: &Record, store: &Store) -> Release {
    let (revision, to) = (failed.revision + 1, target.version);
    let first_deployed = match &failed.release {
        Ok(failed) => failed.info.first_deployed.clone(),
        Err(_) => target.info.first_deployed.clone(),
    };
    Release {
        info: Info {
            first_deployed,
            last_deployed: store.now(),
            description: format!("Rollback to {to}"),
            status: Status::PendingRollback,
            notes: target.info.notes.clone(),
            ..Info::default()
        },
        version: revision,
        ..target.clone()
    }
}
