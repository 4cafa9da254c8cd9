// SPDX-License-Identifier: Apache-2.0
//! Looks that nothing else would take once more: tried until they are answered.

use std::time::Duration;

use tracing::warn;

use super::surroundings;
use crate::upstream;

/// First wait; doubles up to `LONGEST`.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Tries until it works. Nothing of it is a duty that a shutdown waits for: the task ends with the process.
pub(super) async fn until_done<T, E, F>(unit: &str, mut attempt: impl FnMut() -> F) -> T
where
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let mut wait = FIRST;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => {
                let cause = upstream::chain(&error);
                warn!(unit, cause, "cannot look for what landed late; it is tried again");
            }
        }
        tokio::time::sleep(surroundings::jittered(wait)).await;
        wait = (wait * 2).min(LONGEST);
    }
}
