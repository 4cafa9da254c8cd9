// SPDX-License-Identifier: Apache-2.0
//! What one run of the engine has in hand: which requests are in flight, how long each has computed, and what they ask.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::{
    EngineError,
    ask::{self, Oracle, Question},
    process::{Ended, Process},
    wire::Message,
};

/// Requests given to one process at a time: enough that it never waits for the next, few enough that a crash touches
/// few of them.
pub const WINDOW: usize = 16;

/// Bytes of requests given to one process at a time, save for one: it holds them all in memory.
const WINDOW_BYTES: usize = 32 << 20;

/// The engine says so when a request has computed for so long; `slowAfter` in `frame.go`.
pub const SLOW: Duration = Duration::from_millis(250);

/// A request and who waits for it.
#[derive(Debug)]
pub struct Call {
    pub id: u64,
    pub frame: Arc<Vec<u8>>,
    pub reply: oneshot::Sender<Result<Vec<u8>, EngineError>>,
    /// Answers what it asks meanwhile.
    pub oracle: Option<Arc<Oracle>>,
}

/// Why a process is no longer of use.
#[derive(Debug)]
pub enum End {
    /// Nobody needs it any more.
    Unused,
    /// It ended.
    Died(Ended),
    /// It did not answer in time and was killed.
    Overran,
}

/// What was in flight at the end, each in the order of its asking.
#[derive(Debug, Default)]
pub struct Left {
    /// Any of these may be why.
    pub suspects: Vec<Call>,
    /// These are not.
    pub innocent: VecDeque<Call>,
}

struct Flight {
    call: Call,
    clock: Clock,
}

/// How much of a request's time is used up.
#[derive(Clone, Copy)]
enum Clock {
    /// It waits for its turn, or has just begun.
    Fresh,
    /// It computes, until then at the longest.
    Due(Instant),
    /// It waits for a reply and has so much left; nothing is used up of `None`.
    Stopped(Option<Duration>),
}

/// One run.
pub struct Session {
    deadline: Duration,
    patience: Duration,
    flights: HashMap<u64, Flight>,
    questions: FuturesUnordered<BoxFuture<'static, (u64, Vec<u8>)>>,
    /// When the engine last said or was told anything.
    sign: Instant,
    answered: u64,
}

impl Session {
    /// Of a process that has just started. `patience` bounds each look-up.
    pub fn new(deadline: Duration, patience: Duration) -> Self {
        Self {
            deadline,
            patience,
            flights: HashMap::new(),
            questions: FuturesUnordered::new(),
            sign: Instant::now(),
            answered: 0,
        }
    }

    /// How many requests it has answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Serves `again`, then the queue, with at most `window` requests in flight, until the process is of no use or the
    /// queue is closed; with `idle`, also when there was nothing to do for so long.
    pub async fn serve(
        &mut self,
        process: &mut Process,
        again: &mut VecDeque<Call>,
        queue: &mut mpsc::Receiver<Call>,
        window: usize,
        idle: Option<Duration>,
    ) -> End {
        loop {
            while self.has_room(window)
                && let Some(call) = again.pop_front()
            {
                self.send(process, call);
            }
            let due = self.due();
            let unused = idle.filter(|_| self.flights.is_empty()).map(|idle| self.sign + idle);
            tokio::select! {
                biased;
                message = process.message() => match message {
                    Some(message) => self.hear(message),
                    None => return End::Died(process.ended().await),
                },
                Some((id, frame)) = self.questions.next() => self.reply(process, id, frame),
                () = wait_until(due) => {
                    process.kill().await;
                    return End::Overran;
                }
                call = queue.recv(), if self.has_room(window) => match call {
                    Some(call) => self.send(process, call),
                    None => return End::Unused,
                },
                () = wait_until(unused) => return End::Unused,
            }
        }
    }

    /// What is in flight after `end`.
    pub fn left(&mut self, end: &End) -> Left {
        let now = Instant::now();
        let overdue = |flight: &Flight| matches!(flight.clock, Clock::Due(due) if due <= now);
        let anyone_overdue = self.flights.values().any(overdue);
        let mut flights: Vec<Flight> = self.flights.drain().map(|(_, flight)| flight).collect();
        flights.sort_by_key(|flight| flight.call.id);
        let mut left = Left::default();
        for flight in flights {
            let suspect = match end {
                End::Overran if anyone_overdue => overdue(&flight),
                End::Overran => !matches!(flight.clock, Clock::Stopped(_)),
                End::Died(_) | End::Unused => true,
            };
            if suspect {
                left.suspects.push(flight.call);
            } else {
                left.innocent.push_back(flight.call);
            }
        }
        left
    }

    fn has_room(&self, window: usize) -> bool {
        let bytes: usize = self.flights.values().map(|flight| flight.call.frame.len()).sum();
        self.flights.len() < window && bytes < WINDOW_BYTES
    }

    /// When to give up: on a request that has computed for too long; or, while none is known to compute, on an engine
    /// that shows no sign of life although it has something to do.
    fn due(&self) -> Option<Instant> {
        let clocks = || self.flights.values().map(|flight| flight.clock);
        let slow = clocks().filter_map(|clock| if let Clock::Due(due) = clock { Some(due) } else { None });
        let hung =
            || clocks().any(|clock| matches!(clock, Clock::Fresh)).then_some(self.sign + self.deadline);
        slow.min().or_else(hung)
    }

    fn send(&mut self, process: &Process, call: Call) {
        // Whoever asked may have lost patience meanwhile.
        if call.reply.is_closed() {
            return;
        }
        if self.flights.is_empty() {
            self.sign = Instant::now();
        }
        process.send(Arc::clone(&call.frame));
        self.flights.insert(call.id, Flight { call, clock: Clock::Fresh });
    }

    fn hear(&mut self, message: Message) {
        self.sign = Instant::now();
        match message {
            Message::Answer(id, answer) => {
                self.answered += 1;
                match self.flights.remove(&id) {
                    // The asker may be gone, then nobody needs the answer.
                    Some(flight) => drop(flight.call.reply.send(Ok(answer))),
                    None => debug!(id, "the engine answered what was not asked"),
                }
            }
            Message::Slow(id) => {
                let left = self.deadline.saturating_sub(SLOW);
                if let Some(flight) = self.flights.get_mut(&id) {
                    flight.clock = match flight.clock {
                        Clock::Stopped(_) => Clock::Stopped(Some(left)),
                        Clock::Fresh | Clock::Due(_) => Clock::Due(self.sign + left),
                    };
                }
            }
            Message::Asks(id, question) => self.asked(id, question),
        }
    }

    fn asked(&mut self, id: u64, question: Question) {
        let Some(flight) = self.flights.get_mut(&id) else {
            debug!(id, "the engine asks for a request that is none");
            return;
        };
        flight.clock = match flight.clock {
            Clock::Due(due) => Clock::Stopped(Some(due.saturating_duration_since(self.sign))),
            Clock::Fresh => Clock::Stopped(None),
            stopped @ Clock::Stopped(_) => stopped,
        };
        // A template that asks for ever would else go on when nobody waits for it any more.
        let oracle = flight.call.oracle.clone().filter(|_| !flight.call.reply.is_closed());
        let reply = ask::reply(id, question, oracle, self.patience);
        self.questions.push(reply.map(move |frame| (id, frame)).boxed());
    }

    fn reply(&mut self, process: &Process, id: u64, frame: Vec<u8>) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        self.sign = Instant::now();
        flight.clock = match flight.clock {
            Clock::Stopped(Some(left)) => Clock::Due(self.sign + left),
            Clock::Stopped(None) => Clock::Fresh,
            running => running,
        };
        process.send(Arc::new(frame));
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
