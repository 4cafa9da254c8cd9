// SPDX-License-Identifier: Apache-2.0
//! Gives back to the system what the allocator keeps.
//!
//! Lists and release records pass through memory in pieces a hundred times the size of what is kept of them. glibc's
//! allocator returns by itself only what lies at the end of its heaps.

use std::time::Duration;

/// A start into a large fleet is over within a minute, and a round costs a few milliseconds of one thread.
const EVERY: Duration = Duration::from_secs(15);

/// Does so from time to time, for ever.
pub async fn give_back() {
    loop {
        tokio::time::sleep(EVERY).await;
        // It fails only when the runtime ends.
        let _ = tokio::task::spawn_blocking(trim).await;
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // SAFETY: it has no preconditions and may run beside any other use of the allocator.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
