// SPDX-License-Identifier: Apache-2.0
//! The order of preference: the first claims at once, the others a delay later, and nobody waits for the dead or full.

use super::{
    scenarios::world,
    search::Scenario,
    world::{Budget, Bug, World},
};

/// The first in preference for `u1`.
fn first(world: &World) -> usize {
    let mut racing = world.clone();
    racing.setting.steal = 1;
    (0..racing.replicas.len())
        .find(|index| {
            let mut alone = racing.clone();
            alone.watch(*index, Bug::None);
            alone.replicas[*index].write.is_some()
        })
        .expect("one is the first")
}

fn with(
    replicas: usize,
    budget: Budget,
    name: &'static str,
    change: impl Fn(&mut World, usize),
) -> Scenario<World> {
    let mut world = world(replicas, 1, budget);
    world.setting.steal = 1;
    let first = first(&world);
    change(&mut world, first);
    Scenario::new(name, world)
}

fn in_turn() -> Scenario<World> {
    let budget = Budget { unrelated: 1, ..Budget::default() };
    with(3, budget, "preference", |world, first| world.setting.first = Some(first))
}

/// The first is full; the others know it only from its next renewal on.
fn full() -> Scenario<World> {
    with(3, Budget { time: 2, ..Budget::default() }, "preference, full", |world, first| {
        world.elsewhere[first] = 1;
    })
}

fn dead() -> Scenario<World> {
    with(2, Budget { time: 2, ..Budget::default() }, "preference, dead", |world, first| world.crash(first))
}

#[test]
fn only_the_first_in_preference_claims_while_it_has_a_slot() {
    in_turn().holds();
}

#[test]
fn a_full_replica_is_not_waited_for() {
    full().holds();
}

#[test]
fn a_dead_replica_is_not_waited_for() {
    dead().holds();
}

#[test]
fn a_claim_out_of_turn_is_seen() {
    in_turn().finds(Bug::NoPreference);
}
