// SPDX-License-Identifier: Apache-2.0
//! Keeps one engine running and hands requests to it.

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, info, warn};

use super::{
    EngineConfig, EngineError,
    process::{Ended, Process},
};

/// Requests given to one process at a time: enough that it never waits for the next, few enough that a crash touches
/// few of them.
const WINDOW: usize = 16;

/// Pause before a start that follows a failed one; doubled up to [`LONGEST_PAUSE`], short again once an answer came.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A request and who waits for it.
#[derive(Debug)]
pub struct Call {
    pub id: u64,
    pub frame: Arc<Vec<u8>>,
    pub reply: oneshot::Sender<Result<Vec<u8>, EngineError>>,
    /// It was in flight when a process died: it runs with nothing beside it, and if that process dies too, it is why.
    pub alone: bool,
}

/// What is known of the process.
#[derive(Clone, Debug)]
pub enum State {
    /// Running. `starts` counts all starts so far.
    Up { pid: Option<u32>, starts: u64 },
    /// Not running, for this reason.
    Down { reason: String, starts: u64 },
}

/// Why a process is no longer of use.
enum End {
    /// All handles are gone.
    Unused,
    /// It ended.
    Died(Ended),
    /// It did not answer in time and was killed.
    Overran,
}

struct Flight {
    call: Call,
    due: Instant,
}

/// Runs until all handles of the engine are gone.
pub async fn run(
    config: EngineConfig,
    binary: PathBuf,
    mut queue: mpsc::Receiver<Call>,
    report: watch::Sender<State>,
) {
    let mut suspects = VecDeque::new();
    let mut pause = FIRST_PAUSE;
    let mut starts = 0;
    while !report.is_closed() {
        starts += 1;
        let reason = match Process::start(&binary, config.memory, config.deadline, WINDOW).await {
            Err(reason) => reason,
            Ok(mut process) => {
                let pid = process.pid();
                info!(pid, starts, "engine started");
                report.send_replace(State::Up { pid, starts });
                let mut session = Session { deadline: config.deadline, flights: HashMap::new(), answered: 0 };
                let end = session.serve(&mut process, &mut queue, &mut suspects).await;
                if session.answered > 0 {
                    pause = FIRST_PAUSE;
                }
                let reason = match &end {
                    End::Unused => return,
                    End::Died(ended) => format!("it died ({ended})"),
                    End::Overran => format!("it did not answer within {:?}", config.deadline),
                };
                session.blame(&end, &mut suspects);
                reason
            }
        };
        warn!(cause = reason, starts, "engine is down, starting it again");
        report.send_replace(State::Down { reason, starts });
        tokio::select! {
            () = sleep(pause) => {}
            () = report.closed() => return,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

struct Session {
    deadline: Duration,
    flights: HashMap<u64, Flight>,
    answered: u64,
}

impl Session {
    async fn serve(
        &mut self,
        process: &mut Process,
        queue: &mut mpsc::Receiver<Call>,
        suspects: &mut VecDeque<Call>,
    ) -> End {
        loop {
            if self.flights.is_empty()
                && let Some(call) = suspects.pop_front()
            {
                self.send(process, call);
                continue;
            }
            let alone = !suspects.is_empty() || self.flights.values().any(|flight| flight.call.alone);
            let due = self.flights.values().map(|flight| flight.due).min();
            tokio::select! {
                biased;
                answer = process.answer() => match answer {
                    Some((id, answer)) => self.answered(id, answer),
                    None => return End::Died(process.ended().await),
                },
                () = wait_until(due) => {
                    process.kill().await;
                    return End::Overran;
                }
                call = queue.recv(), if !alone && self.flights.len() < WINDOW => match call {
                    Some(call) => self.send(process, call),
                    None => return End::Unused,
                },
            }
        }
    }

    fn send(&mut self, process: &Process, call: Call) {
        // Whoever asked may have lost patience meanwhile.
        if call.reply.is_closed() {
            return;
        }
        process.send(Arc::clone(&call.frame));
        self.flights.insert(call.id, Flight { call, due: Instant::now() + self.deadline });
    }

    fn answered(&mut self, id: u64, answer: Vec<u8>) {
        self.answered += 1;
        match self.flights.remove(&id) {
            // The asker may be gone, then nobody needs the answer.
            Some(flight) => drop(flight.call.reply.send(Ok(answer))),
            None => debug!(id, "the engine answered what was not asked"),
        }
    }

    /// Gives the requests in flight their second chance, alone; those that had it fail.
    fn blame(&mut self, end: &End, suspects: &mut VecDeque<Call>) {
        let mut calls: Vec<Call> = self.flights.drain().map(|(_, flight)| flight.call).collect();
        calls.sort_by_key(|call| call.id);
        for mut call in calls {
            if !call.alone {
                call.alone = true;
                suspects.push_back(call);
                continue;
            }
            let error = match end {
                End::Died(ended) => {
                    EngineError::Crashed { status: ended.to_string(), by_itself: ended.by_itself }
                }
                End::Overran | End::Unused => EngineError::Overran { deadline: self.deadline },
            };
            let _ = call.reply.send(Err(error));
        }
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
