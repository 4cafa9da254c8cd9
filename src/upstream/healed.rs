// SPDX-License-Identifier: Apache-2.0
//! A watch that heals: whatever a stream of events loses, a new list finds.
//!
//! A stream that failed, and every stream after a while, is followed by a new one that begins with a full list. The old
//! one runs on for a moment, so that no DELETED event falls between the two.

use std::time::Duration;

use futures::{
    StreamExt,
    stream::{BoxStream, SelectAll},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Event;

/// Time between two lists when nothing fails: finds whatever a watch missed.
const RESYNC: Duration = Duration::from_secs(600);
/// Wait for the new list after a failure; doubles with each further one.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Longest wait after failures.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a list may bring nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an old stream runs on beside its successor.
const OVERLAP: Duration = Duration::from_secs(30);

/// Spreads a wait, so that replicas that failed together do not list together.
pub type Jitter = fn(Duration) -> Duration;

type Open = Box<dyn Fn() -> BoxStream<'static, Event> + Send>;

/// Events of one watch after the other.
pub struct Healed {
    open: Open,
    jitter: Jitter,
    streams: SelectAll<BoxStream<'static, (u64, Event)>>,
    /// Of the newest stream; the older ones' failures and lists mean nothing.
    generation: u64,
    current: CancellationToken,
    failures: u32,
    /// The newest stream has brought its list.
    listed: bool,
    /// When the next stream is opened.
    next: Instant,
}

impl Healed {
    /// Opens the first stream. `open` makes one that begins with a full list.
    pub fn new(open: impl Fn() -> BoxStream<'static, Event> + Send + 'static, jitter: Jitter) -> Self {
        let mut healed = Self {
            open: Box::new(open),
            jitter,
            streams: SelectAll::new(),
            generation: 0,
            current: CancellationToken::new(),
            failures: 0,
            listed: false,
            next: after(jitter(PATIENCE)),
        };
        healed.push();
        healed
    }

    /// The next event. Dropping the future loses none.
    pub async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.next) => self.renew(),
                event = self.streams.next() => match event {
                    Some((generation, event)) => {
                        if self.is_news(generation, &event) {
                            return event;
                        }
                    }
                    // A watch never ends by itself; one that does is followed like one that failed.
                    None => {
                        self.failed();
                        tokio::time::sleep_until(self.next).await;
                    }
                },
            }
        }
    }

    /// Nothing known of the past means anything any more: begins with a new list, at once.
    pub fn reopen(&mut self) {
        self.streams.clear();
        self.push();
    }

    /// What was known stands, but the way to the server has changed: a new stream, the old one for a moment beside it.
    pub fn follow_up(&mut self) {
        self.failures = 0;
        self.renew();
    }

    fn is_news(&mut self, generation: u64, event: &Event) -> bool {
        let current = generation == self.generation;
        match event {
            Event::Failed(_) if current => self.failed(),
            Event::Listed(_) if current => {
                (self.failures, self.listed) = (0, true);
                self.next = after((self.jitter)(RESYNC));
            }
            Event::Failed(_) | Event::Listed(_) => return false,
            // A long list is under way.
            Event::Seen(_) | Event::ListItem(_) if current && !self.listed => {
                self.next = self.next.max(after((self.jitter)(PATIENCE)));
            }
            Event::Seen(_) | Event::ListItem(_) | Event::Deleted(_) | Event::Invalid { .. } => {}
        }
        true
    }

    fn failed(&mut self) {
        let wait = AFTER_FAILURE.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.next = self.next.min(after((self.jitter)(wait)));
    }

    fn renew(&mut self) {
        if self.listed {
            let old = std::mem::take(&mut self.current);
            tokio::spawn(async move {
                tokio::time::sleep(OVERLAP).await;
                old.cancel();
            });
        } else {
            self.streams.clear();
        }
        self.push();
    }

    fn push(&mut self) {
        self.generation += 1;
        self.listed = false;
        // Unless its list comes first, it is given up in turn.
        self.next = after((self.jitter)(PATIENCE));
        self.current = CancellationToken::new();
        let generation = self.generation;
        let stream = (self.open)().map(move |event| (generation, event));
        self.streams.push(stream.take_until(self.current.clone().cancelled_owned()).boxed());
    }
}

fn after(wait: Duration) -> Instant {
    Instant::now() + wait
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures::channel::mpsc;
    use kube::runtime::watcher;

    use super::*;

    type Streams = Arc<Mutex<Vec<mpsc::UnboundedSender<Event>>>>;

    fn healed() -> (Healed, Streams) {
        let streams = Streams::default();
        let opened = streams.clone();
        let open = move || {
            let (sender, stream) = mpsc::unbounded();
            opened.lock().unwrap().push(sender);
            stream.boxed()
        };
        (Healed::new(open, |wait| wait), streams)
    }

    fn send(streams: &Streams, which: usize, event: Event) {
        let _ = streams.lock().unwrap()[which].unbounded_send(event);
    }

    fn opened(streams: &Streams) -> usize {
        streams.lock().unwrap().len()
    }

    fn listed() -> Event {
        Event::Listed(std::collections::HashSet::new())
    }

    fn failed() -> Event {
        Event::Failed(watcher::Error::NoResourceVersion)
    }

    fn seen() -> Event {
        Event::Seen(Box::default())
    }

    /// Polls for this long; what comes is returned as words.
    async fn within(healed: &mut Healed, time: Duration) -> Vec<&'static str> {
        let end = after(time);
        let mut words = Vec::new();
        while let Ok(event) = tokio::time::timeout_at(end, healed.next()).await {
            words.push(match event {
                Event::Seen(_) | Event::ListItem(_) => "seen",
                Event::Deleted(_) => "deleted",
                Event::Listed(_) => "listed",
                Event::Invalid { .. } => "invalid",
                Event::Failed(_) => "failed",
            });
        }
        words
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_failed_is_followed_by_a_new_list_soon_and_again_more_slowly() {
        let (mut healed, streams) = healed();
        send(&streams, 0, listed());
        send(&streams, 0, failed());
        assert_eq!(within(&mut healed, SECOND).await, ["listed", "failed"]);
        assert_eq!(opened(&streams), 1);
        within(&mut healed, SECOND * 2).await;
        assert_eq!(opened(&streams), 2, "listed anew after two seconds");
        send(&streams, 1, failed());
        within(&mut healed, SECOND * 3).await;
        assert_eq!(opened(&streams), 2);
        within(&mut healed, SECOND * 2).await;
        assert_eq!(opened(&streams), 3, "the second failure waits four seconds");
        send(&streams, 2, listed());
        assert_eq!(within(&mut healed, RESYNC - SECOND).await, ["listed"]);
        assert_eq!(opened(&streams), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_listed_from_time_to_time_and_no_deletion_falls_between() {
        let (mut healed, streams) = healed();
        send(&streams, 0, listed());
        within(&mut healed, RESYNC + SECOND).await;
        assert_eq!(opened(&streams), 2);
        send(&streams, 1, listed());
        send(&streams, 0, Event::Deleted(Box::default()));
        send(&streams, 0, failed());
        let words = within(&mut healed, SECOND).await;
        assert!(words.contains(&"deleted") && words.contains(&"listed"), "{words:?}");
        assert!(!words.contains(&"failed"), "an old stream may fail");
        within(&mut healed, OVERLAP).await;
        send(&streams, 0, seen());
        assert!(within(&mut healed, SECOND).await.is_empty(), "the old stream is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_or_says_nothing_is_replaced() {
        let (mut healed, streams) = healed();
        streams.lock().unwrap()[0].close_channel();
        within(&mut healed, SECOND * 3).await;
        assert_eq!(opened(&streams), 2);
        within(&mut healed, PATIENCE + SECOND).await;
        assert_eq!(opened(&streams), 3, "no list came");
        healed.reopen();
        assert_eq!(opened(&streams), 4);
    }
}
