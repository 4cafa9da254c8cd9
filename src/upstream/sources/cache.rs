// SPDX-License-Identifier: Apache-2.0
//! What was fetched lately, by digest: a retry, and another bundle of the same chart, fetch nothing anew.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::api::manifest::Manifest;

/// Bytes of all that is kept.
const LIMIT: usize = 64 << 20;

/// Manifests by what they are named after. Whoever asks for one that another is fetching waits for it.
pub(super) struct Cache {
    limit: usize,
    kept: Mutex<Kept>,
    fetching: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

#[derive(Default)]
struct Kept {
    entries: HashMap<String, Entry>,
    bytes: usize,
    /// Counts uses; the entry of the lowest is the one used longest ago.
    clock: u64,
}

struct Entry {
    manifest: Arc<Manifest>,
    bytes: usize,
    used: u64,
}

impl Cache {
    pub fn new() -> Self {
        Self::with_limit(LIMIT)
    }

    fn with_limit(limit: usize) -> Self {
        Self { limit, kept: Mutex::default(), fetching: Mutex::default() }
    }

    /// The manifest of this key, fetched if it is not kept.
    pub async fn get<E>(
        &self,
        key: &str,
        fetch: impl Future<Output = Result<Manifest, E>>,
    ) -> Result<Arc<Manifest>, E> {
        let turn = self.turn(key);
        let _turn = turn.lock().await;
        if let Some(manifest) = self.kept(key) {
            return Ok(manifest);
        }
        let manifest = Arc::new(fetch.await?);
        self.keep(key, &manifest);
        Ok(manifest)
    }

    fn turn(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = fetching.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        fetching.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        fetching.insert(key.to_owned(), Arc::downgrade(&turn));
        turn
    }

    fn kept(&self, key: &str) -> Option<Arc<Manifest>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let now = kept.clock;
        let entry = kept.entries.get_mut(key)?;
        entry.used = now;
        Some(entry.manifest.clone())
    }

    fn keep(&self, key: &str, manifest: &Arc<Manifest>) {
        let bytes = manifest.resources.iter().map(|file| file.name.len() + file.content.len()).sum();
        if bytes > self.limit {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.bytes + bytes > self.limit {
            let oldest = kept.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            let Some(gone) = oldest.and_then(|key| kept.entries.remove(&key)) else { break };
            kept.bytes -= gone.bytes;
        }
        kept.clock += 1;
        let entry = Entry { manifest: manifest.clone(), bytes, used: kept.clock };
        kept.bytes += bytes;
        if let Some(before) = kept.entries.insert(key.to_owned(), entry) {
            kept.bytes -= before.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::api::manifest::BundleResource;

    fn manifest(bytes: usize) -> Manifest {
        Manifest { resources: vec![BundleResource { content: "x".repeat(bytes), ..Default::default() }] }
    }

    /// Whether it was fetched.
    async fn asks(cache: &Cache, key: &str, bytes: usize) -> bool {
        let fetched = AtomicUsize::new(0);
        let fetch = async {
            fetched.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(manifest(bytes))
        };
        let Ok(got) = cache.get(key, fetch).await;
        assert_eq!(got.resources[0].content.len(), bytes);
        fetched.load(Ordering::Relaxed) == 1
    }

    #[tokio::test]
    async fn what_was_used_longest_ago_goes_first() {
        let cache = Cache::with_limit(10);
        assert!(asks(&cache, "a", 4).await && asks(&cache, "b", 4).await);
        assert!(!asks(&cache, "a", 4).await);
        assert!(asks(&cache, "c", 4).await);
        assert!(!asks(&cache, "a", 4).await);
        assert!(asks(&cache, "b", 4).await);
        assert!(asks(&cache, "huge", 11).await && asks(&cache, "huge", 11).await, "too large to be kept");
        assert!(!asks(&cache, "b", 4).await, "and pushes nothing out");
    }

    #[tokio::test]
    async fn two_at_once_fetch_once_and_a_failure_is_not_kept() {
        let cache = Cache::new();
        let failed = cache.get("a", async { Err::<Manifest, _>("down") }).await;
        assert_eq!(failed.unwrap_err(), "down");
        let fetched = AtomicUsize::new(0);
        let fetch = || async {
            tokio::task::yield_now().await;
            fetched.fetch_add(1, Ordering::Relaxed);
            Ok::<_, &str>(manifest(1))
        };
        let (one, two) = tokio::join!(cache.get("a", fetch()), cache.get("a", fetch()));
        assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
        assert_eq!(fetched.load(Ordering::Relaxed), 1);
    }
}
