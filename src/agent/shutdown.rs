// SPDX-License-Identifier: Apache-2.0
//! Stopping in three phases, each visible to every task.
//!
//! On SIGTERM the replica stops claiming (`Draining`) and finishes what it started. When the grace period is over
//! it brings deployments to their next safe point and hands their claims over (`Stop`). The session Lease goes
//! last: as long as it stands, no peer takes this replica for dead.

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

/// How far the shutdown is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Claim freely.
    Open,
    /// No new claims.
    Draining,
    /// Reach a safe point now.
    Stop,
}

/// Listens for SIGTERM and SIGINT; a second signal ends the grace period. `leave` is as good as a signal.
pub fn listen(grace: Duration, leave: CancellationToken) -> std::io::Result<watch::Receiver<Phase>> {
    let (sender, phase) = watch::channel(Phase::Open);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = leave.cancelled() => {}
        }
        sender.send_replace(Phase::Draining);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = tokio::time::sleep(grace) => {}
        }
        sender.send_replace(Phase::Stop);
        sender.closed().await;
    });
    Ok(phase)
}
