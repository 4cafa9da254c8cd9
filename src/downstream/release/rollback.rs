// SPDX-License-Identifier: Apache-2.0
//! Back to what was deployed before: a new revision made of an old one, as `helm rollback` makes it, under the same
//! claim and fence as the upgrade that failed.

use tracing::info;

use super::{Gate, Info, Operation, Record, Release, ReleaseError, Status, Store};

impl Gate {
    /// The revision that a failed upgrade goes back to: the newest before it that is, or was, deployed and can be read.
    pub fn rollback_target(&self) -> Option<&Release> {
        let counts = |record: &&Record| matches!(record.status, Status::Deployed | Status::Superseded);
        self.history.iter().rfind(counts).and_then(|record| record.release.as_ref().ok())
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
