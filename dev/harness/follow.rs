// SPDX-License-Identifier: Apache-2.0
//! A watch with a memory: what was seen so far, and waiting for what comes.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::bail;
use futures::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What a watch has shown so far. The watch ends when this is dropped.
pub struct Memory<S> {
    state: Arc<Mutex<S>>,
    // Rises with each event once the first list is complete.
    version: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl<S: Default + Send + 'static> Memory<S> {
    /// Starts to watch, and waits for the first complete list. `note` takes each event into the memory.
    pub async fn start<K: Send + 'static>(
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
        mut note: impl FnMut(&mut S, Event<K>) + Send + 'static,
    ) -> anyhow::Result<Memory<S>> {
        let state = Arc::new(Mutex::new(S::default()));
        let (sender, version) = watch::channel(0);
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                // An error is followed by a new list.
                let Ok(event) = event else { continue };
                let listed = matches!(event, Event::InitDone);
                note(&mut lock(&shared), event);
                sender.send_modify(|version| *version += u64::from(listed || *version > 0));
            }
        });
        let memory = Memory { state, version, task };
        let mut listed = memory.version.clone();
        tokio::time::timeout(super::GENEROUS, listed.wait_for(|version| *version > 0)).await??;
        Ok(memory)
    }

    /// Looks into it.
    pub fn look<T>(&self, look: impl FnOnce(&mut S) -> T) -> T {
        look(&mut lock(&self.state))
    }

    /// Waits until `probe` gives a value; it is asked at each change.
    pub async fn until<T>(
        &self,
        what: &str,
        bound: Duration,
        mut probe: impl FnMut(&S) -> Option<T>,
    ) -> anyhow::Result<T> {
        let mut version = self.version.clone();
        let deadline = Instant::now() + bound;
        loop {
            version.mark_unchanged();
            if let Some(value) = probe(&lock(&self.state)) {
                return Ok(value);
            }
            match tokio::time::timeout_at(deadline, version.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => bail!("{what}: the watch ended"),
                Err(_) => bail!("{what}: not within {} s", bound.as_secs()),
            }
        }
    }
}

impl<S> Drop for Memory<S> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<S>(state: &Mutex<S>) -> MutexGuard<'_, S> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
