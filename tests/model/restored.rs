// SPDX-License-Identifier: Apache-2.0
//! Upstream restored from a backup: versions go back, what is remembered is dropped, and nothing older overwrites.

use super::{
    scenarios::held,
    search::Scenario,
    world::{Budget, World},
};

fn restored() -> Scenario<World> {
    let mut world = held(2, 1, Budget { restores: 1, ..Budget::default() });
    world.setting.stride = 2;
    Scenario::new("restored", world)
}

fn restored_after_a_change() -> Scenario<World> {
    let mut world = held(1, 1, Budget { restores: 1, spec: 1, time: 2, ..Budget::default() });
    world.setting.stride = 2;
    world.saved = world.bd.clone();
    // In other orders a unit may keep an answer of the future that was lost until the watch shows the object again.
    Scenario::new("restored, one replica", world).in_orders(super::fair::Orders::Some(1))
}

#[test]
fn a_restored_upstream_is_noticed_and_nothing_older_overwrites() {
    restored().holds();
}

#[test]
fn a_change_around_a_restore_is_harmless() {
    restored_after_a_change().holds();
}
