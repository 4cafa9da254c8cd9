// SPDX-License-Identifier: Apache-2.0
//! Waiting for a condition with a bound.

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
    let deadline = Instant::now() + bound;
    let mut last = None;
    loop {
        match tokio::time::timeout_at(deadline, probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => last = None,
            Ok(Err(error)) => last = Some(error),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            let text = format!("{what}: not within {} s", bound.as_secs());
            return Err(match last {
                Some(error) => error.context(text),
                None => anyhow::Error::msg(text),
            });
        }
        tokio::time::sleep(PERIOD).await;
    }
}
