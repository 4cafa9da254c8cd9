// SPDX-License-Identifier: Apache-2.0
//! SIGTERM: no new claims, what runs ends or is handed over, the Lease goes last.

use super::{
    scenarios::held,
    search::Scenario,
    world::{Budget, Bug, World},
};

fn drained() -> Scenario<World> {
    Scenario::new("draining", held(2, 1, Budget { drains: 1, unrelated: 1, ..Budget::default() }))
}

fn drained_while_claiming() -> Scenario<World> {
    let budget = Budget { drains: 1, lost: 1, ..Budget::default() };
    Scenario::new("draining, lost answer", held(2, 1, budget))
}

fn drained_in_a_wait() -> Scenario<World> {
    let budget = Budget { drains: 1, waits: 1, ..Budget::default() };
    Scenario::new("draining, wait", held(2, 1, budget))
}

#[test]
fn a_replica_on_its_way_out_claims_nothing_and_leaves_no_claim() {
    drained().holds();
}

#[test]
fn a_replica_told_to_stop_while_a_claim_is_on_its_way_leaves_none() {
    drained_while_claiming().holds();
}

#[test]
fn a_wait_is_handed_over_at_once() {
    drained_in_a_wait().holds();
}

#[test]
fn a_claim_by_a_replica_on_its_way_out_is_seen() {
    drained().finds(Bug::ClaimDraining);
}

#[test]
fn an_exit_with_a_claim_in_hand_is_seen() {
    drained().finds(Bug::ExitHolding);
}
