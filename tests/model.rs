// SPDX-License-Identifier: Apache-2.0
//! Every interleaving of a few replicas, by the product's own `step` and reaper, checked against the invariants.
//!
//! `docs/design/model.md` says what is in it, what is not, and how large it is.

#[path = "model/actions.rs"]
mod actions;
#[path = "model/downstream.rs"]
mod downstream;
#[path = "model/fair.rs"]
mod fair;
#[path = "model/histories.rs"]
mod histories;
#[path = "model/replica.rs"]
mod replica;
#[path = "model/scenarios.rs"]
mod scenarios;
#[path = "model/searches.rs"]
mod searches;
#[path = "model/upstream.rs"]
mod upstream;
#[path = "model/world.rs"]
mod world;
