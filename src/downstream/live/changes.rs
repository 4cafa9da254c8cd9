// SPDX-License-Identifier: Apache-2.0
//! Tells which units, or kinds, to look at again, coalesced: a set that a slow reader finds fuller, never a queue that grows.

use std::{
    collections::HashSet,
    hash::Hash,
    mem,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::Notify;

/// What changed since the last look; units go by their hash labels. One reader each; ends never.
#[derive(Debug)]
pub struct Changes<T = Arc<str>>(Arc<Pending<T>>);

#[derive(Debug)]
struct Pending<T> {
    changed: Mutex<HashSet<T>>,
    bell: Notify,
}

impl<T> Changes<T> {
    /// Waits for a change and returns all that changed so far. Loses nothing when cancelled.
    pub async fn next(&mut self) -> HashSet<T> {
        loop {
            let changed = mem::take(&mut *self.0.changed.lock().unwrap_or_else(PoisonError::into_inner));
            if !changed.is_empty() {
                return changed;
            }
            self.0.bell.notified().await;
        }
    }
}

/// The readers that are told.
#[derive(Debug)]
pub(super) struct Readers<T>(Mutex<Vec<Weak<Pending<T>>>>);

impl<T> Default for Readers<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Eq + Hash> Readers<T> {
    pub fn add(&self) -> Changes<T> {
        let changes = Changes(Arc::new(Pending { changed: Mutex::default(), bell: Notify::new() }));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&changes.0));
        changes
    }

    pub fn tell(&self, changed: &[T]) {
        if changed.is_empty() {
            return;
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|reader| {
            let Some(reader) = reader.upgrade() else { return false };
            reader.changed.lock().unwrap_or_else(PoisonError::into_inner).extend(changed.iter().cloned());
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
        let readers = Readers::<Arc<str>>::default();
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
        let readers = Readers::<Arc<str>>::default();
        drop(readers.add());
        readers.tell(&["a".into()]);
        assert!(readers.0.lock().unwrap().is_empty());
    }
}
