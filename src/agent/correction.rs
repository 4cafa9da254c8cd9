// SPDX-License-Identifier: Apache-2.0
//! When a unit that drifted is corrected: at once, unless somebody changes it back again and again.
//!
//! A correction that lasted is forgotten. One that did not makes the next wait, longer each time: the success of the
//! write says nothing, only that the object stays in line.

use std::time::Duration;

use crate::protocol::{Time, backoff};

/// From this many corrections in a row on, people are told that somebody contends.
const CONTENDED: u32 = 3;
/// A correction that lasted twice the next wait, and this long besides, is forgotten.
const LASTED: Duration = Duration::from_secs(30);

/// The corrections of one unit that did not last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corrections {
    /// In a row.
    count: u32,
    last: Time,
}

impl Corrections {
    /// One was done now.
    pub fn done(&mut self, now: Time) {
        self.count = if self.lasted(now) { 1 } else { self.count.saturating_add(1) };
        self.last = now;
    }

    /// Not before this time is drift that is seen now to be corrected.
    pub fn due(&self, now: Time) -> Time {
        if self.lasted(now) { now } else { self.last + self.wait() }
    }

    /// What to tell of somebody who contends, and whether it is new; `manager` is who is on record.
    pub fn contention(&self, now: Time, manager: Option<&str>) -> Option<String> {
        if self.count < CONTENDED || self.lasted(now) {
            return None;
        }
        let by = manager.map_or("somebody".to_owned(), |manager| format!("manager \"{manager}\""));
        Some(format!(
            "corrected {} times, and {by} changes it back: corrected again after {} s",
            self.count,
            self.wait().as_secs()
        ))
    }

    fn wait(&self) -> Duration {
        // Without jitter: the text of the condition must not change with every look.
        backoff::after_failure(self.count.max(1), 0)
    }

    fn lasted(&self, now: Time) -> bool {
        self.count == 0 || now.saturating_sub(self.last) > self.wait() * 2 + LASTED
    }
}

/// What [`Corrections::contention`] said, found again in a condition's message, and the wait that it names.
pub(crate) fn contention_in(message: &str) -> Option<(&str, Duration)> {
    let told = &message[message.rfind("; corrected ")? + 2..];
    let (_, wait) = told.rsplit_once("corrected again after ")?;
    let seconds = wait.strip_suffix(" s")?.parse().ok()?;
    Some((told, Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contention_is_found_again_in_the_message_that_tells_it() {
        let mut corrections = Corrections::default();
        (0..4).for_each(|time| corrections.done(secs(time)));
        let told = corrections.contention(secs(4), Some("other; corrected ")).unwrap();
        let message = format!("configmap.v1 a/b modified {{\"data\":{{\"x\":\"; corrected \"}}}}; {told}");
        let manager = corrections.contention(secs(4), Some("other")).unwrap();
        assert_eq!(contention_in(&message).map(|(_, wait)| wait), Some(corrections.wait()));
        let message = format!("configmap.v1 a/b missing; {manager}");
        assert_eq!(contention_in(&message), Some((manager.as_str(), corrections.wait())));
        assert_eq!(contention_in("configmap.v1 a/b modified; corrected nothing"), None);
    }

    fn secs(seconds: u64) -> Time {
        Time::from(Duration::from_secs(seconds))
    }

    #[test]
    fn the_first_correction_comes_at_once_and_a_fight_slows_down() {
        let mut corrections = Corrections::default();
        assert_eq!(corrections.due(secs(100)), secs(100));
        corrections.done(secs(100));
        assert_eq!(corrections.due(secs(101)), secs(105));
        assert_eq!(corrections.due(secs(105 + 60)), secs(105 + 60), "it lasted");
        let mut now = 105;
        for wait in [10, 20, 40, 80, 160, 320, 600, 600] {
            corrections.done(secs(now));
            assert_eq!(corrections.due(secs(now + 1)), secs(now + wait));
            now += wait;
        }
        assert_eq!(corrections.due(secs(now + 2000)), secs(now + 2000));
    }

    #[test]
    fn who_contends_is_named_from_the_third_correction_on() {
        let mut corrections = Corrections::default();
        corrections.done(secs(0));
        corrections.done(secs(5));
        assert_eq!(corrections.contention(secs(6), Some("other")), None);
        corrections.done(secs(15));
        let told = corrections.contention(secs(16), Some("other")).unwrap();
        assert_eq!(
            told,
            "corrected 3 times, and manager \"other\" changes it back: corrected again after 20 s"
        );
        assert_eq!(corrections.contention(secs(16), None).map(|told| told.contains("somebody")), Some(true));
        assert_eq!(corrections.contention(secs(5000), Some("other")), None);
    }
}
