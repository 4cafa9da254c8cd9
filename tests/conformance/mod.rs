// SPDX-License-Identifier: Apache-2.0
//! Plays the golden recordings of Fleet's agent against ours, on a real API server.
//!
//! A case goes through here: [`case`] reads it, [`actions`] does to the cluster what its steps say, [`record`] looks at
//! the cluster as the recording did, [`canonical`] brings both into one shape, [`compare`] tells the differences, and
//! [`play`] decides. [`lists`] holds what is known to differ and what is still to be built.

pub mod actions;
pub mod canonical;
pub mod case;
pub mod compare;
pub mod ground;
pub mod lists;
pub mod play;
pub mod record;
pub mod server;
pub mod table;
