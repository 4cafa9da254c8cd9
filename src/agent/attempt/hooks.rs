// SPDX-License-Identifier: Apache-2.0
//! A deployment's hooks: which of them run when, what the release record says of them, and for how long the claim has
//! to last.

use std::time::Duration;

use futures::future::BoxFuture;

use super::{AttemptError, Run};
use crate::{
    agent::waiting::Waits,
    downstream::{
        hooks::{self, Diary, Runner},
        release::{Gate, Operation, Phase, ReleaseError},
    },
    render::{Hook, HookEvent},
};

/// How long readiness is waited for where `atomic` asks for it and nothing says how long: Helm's own limit.
const ATOMIC_WAIT: u64 = 30;

/// The moments before and after what an operation does.
pub(super) fn moments(operation: Operation) -> [HookEvent; 2] {
    match operation {
        Operation::Install => [HookEvent::PreInstall, HookEvent::PostInstall],
        Operation::Upgrade => [HookEvent::PreUpgrade, HookEvent::PostUpgrade],
        Operation::Rollback { .. } => [HookEvent::PreRollback, HookEvent::PostRollback],
    }
}

impl Run {
    /// For how long readiness is waited for; 0 does not wait.
    pub(super) fn wait_seconds(&self) -> u64 {
        let Some(helm) = &self.options.helm else { return 0 };
        match u64::try_from(helm.timeout_seconds) {
            Ok(seconds @ 1..) => seconds,
            _ if helm.atomic => ATOMIC_WAIT,
            _ => 0,
        }
    }

    /// Each hook's time.
    fn hook_timeout(&self) -> Duration {
        let seconds = self.options.helm.as_ref().map_or(0, |helm| helm.timeout_seconds);
        match u64::try_from(seconds) {
            Ok(seconds @ 1..) => Duration::from_secs(seconds),
            _ => hooks::TIMEOUT,
        }
    }

    /// The longest that all waits of this deployment can take together, in seconds: the budget of its claim grows by
    /// that much when the first begins.
    pub(super) fn longest_wait(&self, operation: Option<Operation>, hooks: &[Hook]) -> u64 {
        let Some(operation) = operation else { return self.wait_seconds() };
        let atomic = self.options.helm.as_ref().is_some_and(|helm| helm.atomic);
        let mut moments = moments(operation).to_vec();
        if atomic {
            moments.extend(match operation {
                Operation::Install => [HookEvent::PreDelete, HookEvent::PostDelete],
                Operation::Upgrade | Operation::Rollback { .. } => {
                    [HookEvent::PreRollback, HookEvent::PostRollback]
                }
            });
        }
        let runs = hooks
            .iter()
            .filter(|hook| Runner::waits(hook))
            .map(|hook| hook.events.iter().filter(|event| moments.contains(event)).count());
        let hooks = u64::try_from(runs.sum::<usize>()).unwrap_or(u64::MAX);
        let readiness = self.wait_seconds().saturating_mul(if atomic { 2 } else { 1 });
        hooks.saturating_mul(self.hook_timeout().as_secs()).saturating_add(readiness)
    }

    /// Runs the hooks of one moment; how many there were.
    pub(super) async fn run_hooks(
        &self,
        gate: &mut Gate,
        hash: &str,
        hooks: &[Hook],
        event: HookEvent,
    ) -> Result<usize, AttemptError> {
        if !hooks.iter().any(|hook| hook.events.contains(&event)) {
            return Ok(0);
        }
        let runner = Runner::claimed(
            &self.downstream,
            &self.fence,
            (&self.namespace, hash),
            self.hook_timeout(),
            self.options.helm.as_ref().is_some_and(|helm| helm.take_ownership),
        );
        let mut book = Book { gate, waits: &self.waits };
        let ran = runner.run(hooks, event, &mut book).await;
        ran.map_err(|source| AttemptError::Hook { event, source: Box::new(source) })
    }
}

/// The open revision's record, and the claim.
struct Book<'a> {
    gate: &'a mut Gate,
    waits: &'a Waits,
}

impl Diary for Book<'_> {
    fn note(&mut self, index: usize, phase: Phase) {
        self.gate.note_run(index, phase);
    }

    fn waits(&mut self) -> BoxFuture<'_, Result<(), ReleaseError>> {
        Box::pin(async {
            self.waits.begin().await;
            self.gate.store_runs().await
        })
    }
}
