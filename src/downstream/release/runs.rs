// SPDX-License-Identifier: Apache-2.0
//! What a release record says about its hooks: when each ran last, and how that ended.

use serde_json::{Value, json};

use super::{Gate, Release, ReleaseError};

/// How a hook's run stands, in Helm's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Begun.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly, or could not begin.
    Failed,
}

impl Phase {
    fn word(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

impl Release {
    /// The hooks, as the record has them.
    pub fn hooks(&self) -> &[Value] {
        self.hooks.as_ref().and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Writes down how the run of hook number `index` stands at `now` (RFC 3339). Helm writes the default policy into
    /// the record of a hook that names none, when it runs.
    pub(in crate::downstream) fn note_run(&mut self, index: usize, phase: Phase, now: String) {
        let hooks = self.hooks.as_mut().and_then(Value::as_array_mut);
        let Some(hook) = hooks.and_then(|hooks| hooks.get_mut(index)).and_then(Value::as_object_mut) else {
            return;
        };
        let named = hook.get("delete_policies").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if !named {
            hook.insert("delete_policies".into(), json!(["before-hook-creation"]));
        }
        let run = match (phase, hook.get("last_run").and_then(|run| run.get("started_at")).cloned()) {
            (Phase::Running, _) => json!({"started_at": now, "phase": phase.word()}),
            (_, Some(started)) => json!({"started_at": started, "completed_at": now, "phase": phase.word()}),
            (_, None) => json!({"completed_at": now, "phase": phase.word()}),
        };
        hook.insert("last_run".into(), run);
    }
}

impl Gate {
    /// The hooks of the open revision, as its record has them.
    pub fn hooks(&self) -> &[Value] {
        self.record.release.as_ref().map(Release::hooks).unwrap_or_default()
    }

    /// Notes how a hook's run stands. Kept in memory; the next write of the record stores it.
    pub fn note_run(&mut self, index: usize, phase: Phase) {
        let now = self.store.now();
        if let Ok(release) = &mut self.record.release {
            release.note_run(index, phase, now);
        }
    }

    /// Stores what was noted: before a wait, so that people see which hook it is for.
    pub async fn store_runs(&mut self) -> Result<(), ReleaseError> {
        self.fence.compared().await.map_err(ReleaseError::Fenced)?;
        self.store.update(&mut self.record, None, None).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_written_as_helm_writes_it() {
        let mut release =
            Release { hooks: Some(json!([{"name": "a", "last_run": {"phase": ""}}])), ..Release::default() };
        release.note_run(0, Phase::Running, "1".into());
        assert_eq!(release.hooks()[0]["last_run"], json!({"started_at": "1", "phase": "Running"}));
        release.note_run(0, Phase::Succeeded, "2".into());
        let last_run = json!({"started_at": "1", "completed_at": "2", "phase": "Succeeded"});
        let policies = json!(["before-hook-creation"]);
        assert_eq!(
            release.hooks()[0],
            json!({"name": "a", "last_run": last_run, "delete_policies": policies})
        );
        release.note_run(7, Phase::Failed, "3".into());
        assert_eq!(release.hooks().len(), 1, "one that is not there is nobody's");
    }
}
