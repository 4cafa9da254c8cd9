// SPDX-License-Identifier: Apache-2.0
//! Tells which units to look at again, coalesced: a set that a slow reader finds fuller, never a queue that grows.

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::Notify;

/// Changes since the last look. One reader each; ends never.
#[derive(Debug, Default)]
pub struct Changes(Arc<Pending>);

#[derive(Debug, Default)]
struct Pending {
    hashes: Mutex<HashSet<Arc<str>>>,
    bell: Notify,
}

impl Changes {
    /// Waits for a change and returns the hash labels of all units changed so far. Loses nothing when cancelled.
    pub async fn next(&mut self) -> HashSet<Arc<str>> {
        loop {
            let hashes = mem::take(&mut *self.0.hashes.lock().unwrap_or_else(PoisonError::into_inner));
            if !hashes.is_empty() {
                return hashes;
            }
            self.0.bell.notified().await;
        }
    }
}

/// The readers that are told.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<Vec<Weak<Pending>>>);

impl Readers {
    pub fn add(&self) -> Changes {
        let changes = Changes::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&changes.0));
        changes
    }

    pub fn tell(&self, hashes: &[Arc<str>]) {
        if hashes.is_empty() {
            return;
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|reader| {
            let Some(reader) = reader.upgrade() else { return false };
            reader.hashes.lock().unwrap_or_else(PoisonError::into_inner).extend(hashes.iter().cloned());
            reader.bell.notify_one();
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn changes_told_before_the_reader_looks_are_found_once_and_each_once() {
        let readers = Readers::default();
        let (mut one, mut other) = (readers.add(), readers.add());
        readers.tell(&["a".into(), "b".into()]);
        readers.tell(&["a".into()]);
        assert_eq!(one.next().now_or_never(), Some(HashSet::from(["a".into(), "b".into()])));
        assert_eq!(one.next().now_or_never(), None);
        readers.tell(&["c".into()]);
        assert_eq!(one.next().now_or_never(), Some(HashSet::from(["c".into()])));
        assert_eq!(other.next().now_or_never().map(|hashes| hashes.len()), Some(3));
    }

    #[test]
    fn a_reader_that_went_away_is_forgotten() {
        let readers = Readers::default();
        drop(readers.add());
        readers.tell(&["a".into()]);
        assert!(readers.0.lock().unwrap().is_empty());
    }
}
