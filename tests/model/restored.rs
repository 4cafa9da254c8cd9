// SPDX-License-Identifier: Apache-2.0
//! Upstream restored from a backup: versions go back, what is remembered is dropped, and nothing older overwrites.

use super::{
    actions::Action,
    scenarios::held,
    search::Scenario,
    world::{Budget, Bug, World},
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
    // An answer of the lost future that comes after the first list of the past is put right by the next list only.
    world.setting.resyncs = true;
    Scenario::new("restored, one replica", world)
}

/// The only replica is frozen, and its claim overdue. The reaper may have expired it in the time that is lost.
fn restored_under_a_reaper() -> Scenario<World> {
    let mut world = held(1, 1, Budget { restores: 1, freezes: 1, time: 4, ..Budget::default() });
    world.setting.stride = 2;
    world.setting.resyncs = true;
    world.saved = world.bd.clone();
    world.reapers = vec![None];
    let way = [Action::Run(0), Action::Run(0), Action::Freeze(0), Action::ReaperLook(0)];
    way.into_iter().for_each(|action| world.act(action, Bug::None));
    (0..4).for_each(|_| world.act(Action::Advance, Bug::None));
    Scenario::new("restored, reaper", world)
}

#[test]
fn a_restored_upstream_is_noticed_and_nothing_older_overwrites() {
    restored().holds();
}

#[test]
fn a_change_around_a_restore_is_harmless() {
    restored_after_a_change().holds();
}

#[test]
fn a_reaper_that_knows_more_than_a_restored_upstream_goes_on_with_what_stands() {
    restored_under_a_reaper().holds();
}

#[test]
fn a_reaper_that_believes_nothing_older_is_a_hole() {
    restored_under_a_reaper().finds(Bug::ReaperNeverBack);
}
