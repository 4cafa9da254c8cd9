// SPDX-License-Identifier: Apache-2.0
//! What is missing is not gone: a list without the object, an absence shorter than the grace, much missing at once. And a
//! downstream API server that is away: nobody could renew, so nobody is suspected.

use super::{
    cluster::{Cluster, cluster},
    scenarios::{deployed, held, world},
    search::{Scenario, Space},
    world::{Budget, Bug, World},
};

fn missing() -> Scenario<World> {
    Scenario::new("absent", deployed(1, Budget { absences: 2, time: 3, ..Budget::default() }))
}

fn missing_at_work() -> Scenario<World> {
    Scenario::new("absent, at work", held(1, 1, Budget { absences: 1, time: 2, ..Budget::default() }))
}

/// Whether it is removed after its grace is left to the fair continuation: a second step of time is too large.
fn missing_at_work_beside_a_peer() -> Scenario<World> {
    Scenario::new("absent, beside a peer", held(2, 1, Budget { absences: 1, time: 1, ..Budget::default() }))
}

/// All units of one replica are missing at once.
fn mass() -> Scenario<Cluster> {
    let units = (0..2).map(|_| world(1, 1, Budget::default())).collect();
    let mut cluster = cluster(units, None);
    cluster.finish();
    for unit in &mut cluster.units {
        unit.budget.time = 5;
    }
    cluster.losses = 1;
    Scenario::new("absent, many", cluster)
}

fn outage() -> Scenario<World> {
    Scenario::new("outage", held(2, 1, Budget { outages: 1, time: 3, ..Budget::default() }))
}

fn outage_and_freeze() -> Scenario<World> {
    let budget = Budget { outages: 1, time: 1, freezes: 1, ..Budget::default() };
    Scenario::new("outage, freeze", held(2, 1, budget))
}

#[test]
fn what_is_missing_for_less_than_its_grace_is_not_removed() {
    missing().holds();
}

#[test]
fn a_holder_whose_object_is_missing_stops_and_goes_on_when_it_is_back() {
    missing_at_work().holds();
}

#[test]
fn a_holder_whose_object_is_missing_and_its_peer_go_on_when_it_is_back() {
    missing_at_work_beside_a_peer().holds();
}

#[test]
fn what_is_missing_with_much_else_has_the_long_grace() {
    assert!(mass().start.units.iter().all(Space::is_true));
    mass().holds();
}

#[test]
fn an_outage_of_the_own_lease_makes_nobody_suspect() {
    outage().holds();
}

#[test]
fn who_froze_in_an_outage_is_replaced_after_it() {
    outage_and_freeze().holds();
}

#[test]
fn an_absence_taken_for_an_order_is_a_hole() {
    missing().finds(Bug::NoGrace);
}

#[test]
fn much_missing_at_once_taken_for_an_ordinary_day_is_a_hole() {
    mass().finds(Bug::NoMass);
}

#[test]
fn an_outage_that_counts_is_a_hole() {
    outage().finds(Bug::CountOutage);
}
