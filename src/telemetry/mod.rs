// SPDX-License-Identifier: Apache-2.0
//! What a running replica tells the outside: logs, metrics, probes and Kubernetes Events.
//!
//! Nothing here decides anything, and nothing here may slow the caller down: counters are atomics, Events go into a
//! bounded queue, probes read a small table. No secret value and no object name ever becomes a metric label.

mod causes;
pub mod events;
pub mod logs;
pub mod metrics;
pub mod probes;
#[cfg(test)]
pub(crate) mod scripted;

pub use causes::chain;
pub use metrics::Metrics;
