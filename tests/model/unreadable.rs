// SPDX-License-Identifier: Apache-2.0
//! Claims of another program: respected for the claim timeout as long as they stand unchanged, then taken over.

use super::{
    actions::Action,
    scenarios::{deployed, held, world},
    search::Scenario,
    world::{Budget, Bug, World},
};

fn before_the_claim() -> Scenario<World> {
    Scenario::new("unreadable", world(1, 1, Budget { strange: 2, time: 3, ..Budget::default() }))
}

fn over_a_claim() -> Scenario<World> {
    let budget = Budget { strange: 1, time: 2, ..Budget::default() };
    Scenario::new("unreadable, over a claim", held(2, 1, budget))
}

fn on_what_is_up_to_date() -> Scenario<World> {
    let budget = Budget { strange: 1, time: 3, ..Budget::default() };
    Scenario::new("unreadable, up to date", deployed(1, budget))
}

fn cleared() -> Scenario<World> {
    let mut world = world(1, 1, Budget { strange: 1, ..Budget::default() });
    world.reapers = vec![None];
    world.act(Action::Strange, Bug::None);
    world.replicas[0].frozen = true; // it wakes at any time
    world.budget = Budget { time: 4, ..Budget::default() };
    Scenario::new("unreadable, reaper", world)
}

/// Written over a claim under which the target was touched, and nobody but the reaper is left to end it; meanwhile the
/// spec goes back to the id that the status names.
fn marked() -> Scenario<World> {
    let mut world = deployed(1, Budget { spec: 1, ..Budget::default() });
    world.replicas.truncate(1);
    world.leases.truncate(1);
    world.replicas[0].peers.retain(|peer| peer.pod == 0);
    for action in [Action::Spec, Action::Watch(0), Action::Serve(0), Action::Reply(0), Action::Watch(0)] {
        world.act(action, Bug::None);
    }
    while world.down.objects[0].as_ref().is_some_and(|thing| thing.state == "d1") {
        world.act(Action::Run(0), Bug::None);
    }
    world.reapers = vec![None];
    world.budget.strange = 1;
    world.act(Action::Strange, Bug::None);
    world.act(Action::ReaperLook(0), Bug::None);
    world.replicas[0].frozen = true; // it wakes at any time
    world.budget.time = 2;
    (0..2).for_each(|_| world.act(Action::Advance, Bug::None));
    world.budget = Budget { spec: 1, time: 2, ..Budget::default() };
    Scenario::new("unreadable, over work", world)
}

#[test]
fn the_mark_of_unfinished_work_outlives_a_claim_that_cannot_be_read() {
    marked().holds();
}

#[test]
fn a_reaper_that_removes_what_it_cannot_read_is_a_hole() {
    marked().finds(Bug::ReaperClears);
}

#[test]
fn a_claim_that_cannot_be_read_is_respected_and_then_taken_over() {
    before_the_claim().holds();
}

#[test]
fn a_holder_whose_claim_was_overwritten_stops() {
    over_a_claim().holds();
}

#[test]
fn what_is_up_to_date_does_not_stay_under_a_claim_that_nobody_ends() {
    on_what_is_up_to_date().holds();
}

#[test]
fn the_reaper_clears_it_not_before_the_claim_timeout() {
    cleared().holds();
}

#[test]
fn a_claim_that_is_taken_for_none_is_a_hole() {
    before_the_claim().finds(Bug::ClaimUnreadable);
}
