// SPDX-License-Identifier: Apache-2.0
//! Keeps one engine running and hands requests to it.

use std::{collections::VecDeque, path::PathBuf, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tracing::{debug, info, warn};

use super::{
    EngineConfig, EngineError,
    process::Process,
    quarantine,
    session::{Call, End, Session, WINDOW},
};

/// Pause before a start that follows a failed one; doubled up to [`LONGEST_PAUSE`], short again once an answer came.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What is known of the process.
#[derive(Clone, Debug)]
pub enum State {
    /// Running, or let go for want of work. `starts` counts the starts so far, but for those out of such a rest.
    Up { pid: Option<u32>, starts: u64 },
    /// Not running, for this reason.
    Down { reason: String, starts: u64 },
}

/// Runs until all handles of the engine are gone.
pub async fn run(
    config: EngineConfig,
    binary: PathBuf,
    mut queue: mpsc::Receiver<Call>,
    report: watch::Sender<State>,
) {
    let (suspects, suspected) = mpsc::channel(config.queue.max(1) + WINDOW);
    tokio::spawn(quarantine::run(config.clone(), binary.clone(), suspected));
    let mut again = VecDeque::new();
    let mut pause = FIRST_PAUSE;
    let mut starts = 0;
    while !report.is_closed() {
        starts += 1;
        let reason = match Process::start(&binary, config.memory, config.deadline, WINDOW).await {
            Err(reason) => {
                report.send_replace(State::Down { reason: reason.clone(), starts });
                reason
            }
            Ok(mut process) => {
                let pid = process.pid();
                info!(pid, starts, "engine started");
                report.send_replace(State::Up { pid, starts });
                let mut session = Session::new(config.deadline, config.patience);
                let end =
                    session.serve(&mut process, &mut again, &mut queue, WINDOW, Some(config.idle)).await;
                if session.answered() > 0 {
                    pause = FIRST_PAUSE;
                }
                let reason = match &end {
                    End::Unused => {
                        drop(process);
                        debug!(pid, "engine let go, it has no work");
                        report.send_replace(State::Up { pid: None, starts });
                        let Some(call) = next(&mut queue, &report).await else { return };
                        again.push_back(call);
                        starts -= 1;
                        continue;
                    }
                    End::Died(ended) => format!("it died ({ended})"),
                    End::Overran => format!("it did not answer within {:?}", config.deadline),
                };
                report.send_replace(State::Down { reason: reason.clone(), starts });
                let left = session.left(&end);
                again.extend(left.innocent);
                left.suspects.into_iter().for_each(|call| suspect(&suspects, call));
                reason
            }
        };
        warn!(cause = reason, starts, "engine is down, starting it again");
        tokio::select! {
            () = sleep(pause) => {}
            () = report.closed() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The next request, or nothing when nobody is left to ask.
async fn next(queue: &mut mpsc::Receiver<Call>, report: &watch::Sender<State>) -> Option<Call> {
    tokio::select! {
        call = queue.recv() => call,
        () = report.closed() => None,
    }
}

fn suspect(suspects: &mpsc::Sender<Call>, call: Call) {
    if let Err(mpsc::error::TrySendError::Full(call) | mpsc::error::TrySendError::Closed(call)) =
        suspects.try_send(call)
    {
        let reason = "it died, and too many requests wait to be tried again".to_owned();
        let _ = call.reply.send(Err(EngineError::Unavailable { reason }));
    }
}
