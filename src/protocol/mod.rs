// SPDX-License-Identifier: Apache-2.0
//! The claim protocol, pure: no tokio, no kube, no clock, no randomness. Time, entropy and identity are inputs.
//!
//! The agent executes the effects that come out of here; the model checker and the property tests drive the very
//! same functions.

mod ids;

pub use ids::*;
