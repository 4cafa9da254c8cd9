// SPDX-License-Identifier: Apache-2.0
//! Looks at one unit that failed in a row: when the next one is due, and whether they have failed for so long that
//! people are told. A server that fails every other request must not make `Monitored` come and go.

use std::time::Duration;

use super::{
    monitoring::{AGAIN, PACE},
    outage::OUTAGE,
};
use crate::protocol::Time;

/// The failed looks since the last good one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setbacks {
    count: u32,
    since: Option<Time>,
}

impl Setbacks {
    /// One more failed; returns how long to wait for the next, from [`PACE`] to [`AGAIN`].
    pub fn another(&mut self, now: Time) -> Duration {
        self.since.get_or_insert(now);
        let wait = PACE.saturating_mul(1 << self.count.min(16)).min(AGAIN);
        self.count = self.count.saturating_add(1);
        wait
    }

    /// Whether they have failed for so long that it is told.
    pub fn last(&self, now: Time) -> bool {
        self.since.is_some_and(|since| now.saturating_sub(since) >= OUTAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    #[test]
    fn the_next_look_comes_soon_and_then_less_often() {
        let mut setbacks = Setbacks::default();
        let waits: Vec<_> = (0..6).map(|_| setbacks.another(secs(0)).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn a_server_that_fails_every_other_request_is_never_told() {
        let (mut setbacks, mut now, mut told) = (Setbacks::default(), secs(0), 0);
        for look in 0..1000 {
            if look % 2 == 0 {
                told += u32::from(setbacks.last(now));
                now += setbacks.another(now);
            } else {
                setbacks = Setbacks::default();
                now += PACE;
            }
        }
        assert_eq!(told, 0);
        // One that fails them all is, after a minute.
        let began = now;
        while !setbacks.last(now) {
            now += setbacks.another(now);
        }
        assert!((OUTAGE..OUTAGE + AGAIN).contains(&(now - began)), "{:?}", now - began);
    }
}
