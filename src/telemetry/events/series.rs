// SPDX-License-Identifier: Apache-2.0
//! Which Event already tells the same story: repeated reports raise its count instead of making a new one.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use tokio::time::Instant;

use super::Report;

/// How long a report continues an Event; client-go's own recorders use the same ten minutes.
pub(super) const WINDOW: Duration = Duration::from_secs(600);

/// Stories remembered at most; the oldest is forgotten first, which costs a second Event and nothing else.
const REMEMBERED: usize = 1024;

/// An Event that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub namespace: String,
    pub name: String,
    /// How often it was reported so far.
    pub count: i32,
    last: Instant,
}

/// Identity of a story: object, type, reason and note, hashed so that notes are not kept.
pub(super) type Story = u64;

pub(super) fn story(report: &Report) -> Story {
    let mut hasher = DefaultHasher::new();
    let object = &report.regarding;
    (&object.api_version, &object.kind, &object.namespace, &object.name, &object.uid).hash(&mut hasher);
    (report.kind, report.reason, &report.note).hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug, Default)]
pub(super) struct Series(HashMap<Story, Written>);

impl Series {
    /// The Event to continue, if one is young enough.
    pub fn find(&self, story: Story, now: Instant) -> Option<&Written> {
        self.0.get(&story).filter(|written| now.duration_since(written.last) < WINDOW)
    }

    pub fn remember(&mut self, story: Story, namespace: String, name: String, count: i32, now: Instant) {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&story) {
            self.0.retain(|_, written| now.duration_since(written.last) < WINDOW);
            if self.0.len() >= REMEMBERED
                && let Some(oldest) =
                    self.0.iter().min_by_key(|(_, written)| written.last).map(|(story, _)| *story)
            {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(story, Written { namespace, name, count, last: now });
    }

    pub fn forget(&mut self, story: Story) {
        self.0.remove(&story);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_the_oldest_goes_first() {
        let mut series = Series::default();
        for story in 0..2 * REMEMBERED as u64 {
            series.remember(story, "ns".into(), format!("e{story}"), 1, Instant::now());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(series.0.len(), REMEMBERED);
        assert!(series.find(0, Instant::now()).is_none());
        assert!(series.find(2 * REMEMBERED as u64 - 1, Instant::now()).is_some());
        tokio::time::advance(WINDOW).await;
        assert!(series.find(2 * REMEMBERED as u64 - 1, Instant::now()).is_none());
    }
}
