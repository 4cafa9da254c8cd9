// SPDX-License-Identifier: Apache-2.0
//! Time and randomness: the only places of the agent that read a clock or draw a number.

use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::Time;

/// The replica's monotonic clock, counted from its start, and the wall clock for what people read.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at zero.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Time since the start.
    pub fn now(&self) -> Time {
        self.start.elapsed()
    }

    /// A moment, as time since the start; zero for one before it.
    pub fn at(&self, moment: Instant) -> Time {
        moment.saturating_duration_since(self.start)
    }

    /// The moment of a time.
    pub fn moment(&self, time: Time) -> Instant {
        self.start + time
    }

    /// The wall clock.
    pub fn wall(&self) -> chrono::DateTime<chrono::Utc> {
        wall()
    }

    /// The wall clock as conditions have it: RFC 3339, UTC, seconds.
    pub fn stamp(&self) -> String {
        self.wall().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
    }
}

/// The wall clock, for those that take it as a function.
#[expect(clippy::disallowed_methods, reason = "the edge where time comes in")]
pub fn wall() -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now()
}

/// A word of randomness.
#[expect(clippy::disallowed_methods, reason = "the edge where randomness comes in")]
pub fn entropy() -> u64 {
    rand::random()
}

/// A new session's id: ten hex digits, unique among the runs of one agent.
pub fn session_id() -> String {
    format!("{:010x}", entropy() >> 24)
}

/// A wait with up to a quarter of jitter, so that replicas that started together do not act together.
pub fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(1.0 + f64::from(u32::try_from(entropy() % 250).unwrap_or(0)) / 1000.0)
}
