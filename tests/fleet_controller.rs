// SPDX-License-Identifier: Apache-2.0
//! Our status through the eyes of Fleet's controller: a model of its rules reads the recordings and stands in for it on
//! real control planes. It knows nothing of an agent but spec and status.

#[allow(dead_code)]
#[path = "conformance/mod.rs"]
mod conformance;
#[path = "../dev/harness/mod.rs"]
mod harness;
#[path = "fleet_controller/ordered.rs"]
mod ordered;
#[path = "fleet_controller/recorded.rs"]
mod recorded;
#[path = "fleet_controller/rolling.rs"]
mod rolling;
#[path = "fleet_controller/rollout.rs"]
mod rollout;
#[path = "fleet_controller/rules.rs"]
mod rules;
#[path = "fleet_controller/situations.rs"]
mod situations;
#[path = "fleet_controller/summary.rs"]
mod summary;
