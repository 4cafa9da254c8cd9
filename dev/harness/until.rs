// SPDX-License-Identifier: Apache-2.0
//! Waiting for a condition with a bound.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// A bound for conditions that normally hold within seconds, but on a machine that is busy with other things.
pub const GENEROUS: Duration = Duration::from_secs(120);

/// How often a condition is looked at: small against what is waited for, large against the cost of a request.
const PERIOD: Duration = Duration::from_millis(50);

/// Polls `probe` until it gives a value, and fails after `bound` with the last error it met.
///
/// An error of the probe counts as "not yet": the thing waited for may be just starting.
pub async fn until<T>(
    what: &str,
    bound: Duration,
    mut probe: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let wait = Wait::new(what, bound);
    loop {
        if let Some(value) = wait.attempt(probe()).await? {
            return Ok(value);
        }
    }
}

/// The loop of [`until`] to write oneself, on tasks that move between threads: the compiler cannot yet see that
/// the futures of an async closure may.
pub struct Wait<'a> {
    what: &'a str,
    bound: Duration,
    deadline: Instant,
}

impl Wait<'_> {
    /// Waiting for `what` begins now.
    pub fn new(what: &str, bound: Duration) -> Wait<'_> {
        Wait { what, bound, deadline: Instant::now() + bound }
    }

    /// Looks once; pauses when there is nothing yet, and fails when the time is over.
    pub async fn attempt<T>(
        &self,
        probe: impl Future<Output = anyhow::Result<Option<T>>>,
    ) -> anyhow::Result<Option<T>> {
        let last = match tokio::time::timeout_at(self.deadline, probe).await {
            Ok(Ok(Some(value))) => return Ok(Some(value)),
            Ok(Ok(None)) | Err(_) => None,
            Ok(Err(error)) => Some(error),
        };
        if Instant::now() >= self.deadline {
            let text = format!("{}: not within {} s", self.what, self.bound.as_secs());
            return Err(match last {
                Some(error) => error.context(text),
                None => anyhow::Error::msg(text),
            });
        }
        tokio::time::sleep(PERIOD).await;
        Ok(None)
    }
}
