// SPDX-License-Identifier: Apache-2.0
//! Every interleaving of a few replicas, by the product's own `step` and reaper, checked against the invariants.
//!
//! `docs/design/model.md` says what is in it, what is not, and how large it is.

#[path = "model/absent.rs"]
mod absent;
#[path = "model/actions.rs"]
mod actions;
#[path = "model/cluster.rs"]
mod cluster;
#[path = "model/downstream.rs"]
mod downstream;
#[path = "model/draining.rs"]
mod draining;
#[path = "model/fair.rs"]
mod fair;
#[path = "model/faults.rs"]
mod faults;
#[path = "model/histories.rs"]
mod histories;
#[path = "model/moved.rs"]
mod moved;
#[path = "model/outside.rs"]
mod outside;
#[path = "model/poison.rs"]
mod poison;
#[path = "model/preference.rs"]
mod preference;
#[path = "model/replica.rs"]
mod replica;
#[path = "model/restored.rs"]
mod restored;
#[path = "model/scenarios.rs"]
mod scenarios;
#[path = "model/search.rs"]
mod search;
#[path = "model/searches.rs"]
mod searches;
#[path = "model/shared.rs"]
mod shared;
#[path = "model/unreadable.rs"]
mod unreadable;
#[path = "model/upstream.rs"]
mod upstream;
#[path = "model/world.rs"]
mod world;
