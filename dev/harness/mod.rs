// SPDX-License-Identifier: Apache-2.0
//! Real control planes, simulated nodes and agent processes, for the tests, the demonstration and the benchmarks.
//!
//! A test includes the whole tree with `#[path = "../dev/harness/mod.rs"] mod harness;`. Nothing here waits by
//! sleeping for a fixed time: conditions are polled with [`until`].

// Each test includes the whole tree and uses a part of it.
#![allow(dead_code, unused_imports)]
// The harness is an edge: time and randomness come in here.
#![allow(clippy::disallowed_methods)]

mod audit;
pub mod bundles;
pub mod chart;
pub mod charts;
mod control_plane;
pub mod crowd;
mod dns;
pub mod fleet;
mod follow;
pub mod guide;
pub mod judge;
mod kubeconfig;
pub mod mixed;
mod network;
pub mod node;
pub mod pki;
mod ports;
mod process;
pub mod program;
pub mod proxy;
pub mod records;
pub mod registrar;
pub mod registry;
pub mod repeater;
pub mod replica;
pub mod requests;
pub mod stage;
mod tools;
pub mod units;
mod until;
mod workloads;
pub mod world;

pub use audit::AuditEntry;
pub use control_plane::{ControlPlane, Options};
pub use ports::Port;
pub use process::{Lifetime, Process};
pub use tools::Tools;
pub use until::{GENEROUS, Wait, until};
