// SPDX-License-Identifier: Apache-2.0
//! Stopping in three phases, each visible to every task.
//!
//! On SIGTERM the replica stops claiming (`Draining`) and finishes what it started. When the grace period is over
//! it brings deployments to their next safe point and hands their claims over (`Stop`). What is still under way a
//! moment later waits for a server that does not answer: it is given up (`Leave`), as if the replica had been killed,
//! and as after a kill the fence guards what may still land. The session Lease goes last: as long as it stands, no peer
//! takes this replica for dead; without it a peer takes up at once what was left.

use std::time::Duration;

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// How far the shutdown is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Claim freely.
    Open,
    /// No new claims.
    Draining,
    /// Reach a safe point now.
    Stop,
    /// Wait for nothing any more.
    Leave,
}

/// From the end of the grace period on: time to reach a safe point and to hand over. With the default grace, and the time
/// to delete the Lease, it fits into the 30 s that a Pod has.
const HAND_OVER: Duration = Duration::from_secs(3);

/// Listens for SIGTERM and SIGINT; a second signal ends the grace period, and a third one the hand-over.
pub fn listen(grace: Duration) -> std::io::Result<watch::Receiver<Phase>> {
    let (sender, phase) = watch::channel(Phase::Open);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        for (phase, time) in
            [(Phase::Draining, None), (Phase::Stop, Some(grace)), (Phase::Leave, Some(HAND_OVER))]
        {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = tokio::time::sleep(time.unwrap_or_default()), if time.is_some() => {}
            }
            sender.send_replace(phase);
        }
        sender.closed().await;
    });
    Ok(phase)
}
