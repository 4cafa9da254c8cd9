// SPDX-License-Identifier: Apache-2.0
//! The replica: queue, worker slots, sessions, shutdown and continuous duties.
//!
//! `replica.rs` is the loop; `attempt.rs` is one deployment from claim to finish; `monitoring.rs` keeps the status
//! true afterwards. What is decided here is only *how* to do what `protocol` says.

mod again;
pub mod args;
mod around;
mod attempt;
mod census;
mod checkin;
mod collect;
mod context;
pub(crate) mod correction;
pub(crate) mod dependencies;
mod drift;
mod evidence;
mod execute;
mod history;
mod inbox;
mod kinds;
mod look;
mod mass;
mod memory;
mod monitoring;
mod notes;
mod outage;
mod patience;
mod plan;
mod proof;
mod refusal;
mod removal;
mod replica;
mod setbacks;
mod shutdown;
mod start;
mod surroundings;
mod waiting;

pub use attempt::{AttemptError, Files, Outlook, Prospect, foresee};
pub use start::{AgentError, run};
