// SPDX-License-Identifier: Apache-2.0
//! How long to wait, and when a unit is poison.

use std::time::Duration;

use super::Claim;

/// First wait after a failed attempt.
const FIRST: Duration = Duration::from_secs(5);
/// Longest wait after a failed attempt.
const LONGEST: Duration = Duration::from_secs(600);
/// Attempts lost with their holder before a unit is quarantined.
const LOST_LIMIT: u32 = 3;
/// Distinct sessions among those that lost them: one bad replica alone condemns no unit.
const SESSIONS_LIMIT: usize = 2;

/// Wait after the given failed attempt (1 is the first): doubles from 5 s to 10 min, plus up to a quarter of jitter
/// downwards, so that units that failed together do not come back together.
pub fn after_failure(attempt: u32, entropy: u64) -> Duration {
    let doubled = FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(10)).min(LONGEST);
    jittered(doubled, entropy)
}

/// Wait before asking an API server again: doubles from 100 ms to 10 s.
pub fn before_retry(tries: u32, entropy: u64) -> Duration {
    let doubled = Duration::from_millis(100).saturating_mul(1 << tries.min(10)).min(Duration::from_secs(10));
    jittered(doubled, entropy)
}

fn jittered(full: Duration, entropy: u64) -> Duration {
    let quarter = u64::try_from(full.as_millis() / 4).unwrap_or(u64::MAX).max(1);
    full - Duration::from_millis(entropy % quarter)
}

/// Whether after so many lost attempts one more may be quarantine: then the unit works alone in its replica, so that a
/// loss is its own, and never that of who happened to work beside it (S6).
pub fn is_suspect(lost: u32) -> bool {
    lost >= LOST_LIMIT - 1
}

/// Whether the claim's record says that no replica should try again now.
pub fn is_poison(claim: &Claim) -> bool {
    claim.lost >= LOST_LIMIT && claim.by.len() >= SESSIONS_LIMIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_within_their_bounds() {
        for (attempt, full) in [(1, 5), (2, 10), (3, 20), (7, 320), (8, 600), (4_000_000_000, 600)] {
            for entropy in [0, 1, 999_999, u64::MAX] {
                let wait = after_failure(attempt, entropy);
                assert!(wait <= Duration::from_secs(full) && wait > Duration::from_secs(full * 3 / 4));
            }
        }
        assert!(before_retry(99, 0) == Duration::from_secs(10));
    }
}
