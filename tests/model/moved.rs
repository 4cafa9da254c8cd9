// SPDX-License-Identifier: Apache-2.0
//! An object moves from one unit to another: who owns it is asked before any epoch, and epochs of two uids never compare.

use super::{
    actions::Action,
    cluster::{Cluster, Step, cluster},
    fair::Orders,
    scenarios::world,
    search::{Scenario, Space},
    world::{Budget, Bug},
};

/// Two units side by side have too many runs to go through all of them from every state.
const ORDERS: Orders = Orders::Some(3);

/// The first unit has the object, deployed or under way as `done` says; the second one may take it if it `takes`.
fn two(done: bool, takes: bool, budget: Budget) -> Cluster {
    let units = (0..2).map(|_| world(2, 1, Budget::default())).collect();
    let mut cluster = cluster(units, Some(1));
    cluster.units[1].setting.takes = takes;
    // The second one's epochs are far lower: compared with the first one's, it would never get the object.
    cluster.units[0].version = 500;
    let way = [Action::Watch(0), Action::Serve(0), Action::Reply(0), Action::Watch(0)];
    cluster.apart = true;
    if let Some(bd) = cluster.units[0].bd.clone() {
        cluster.units[0].store(bd);
    }
    for action in way {
        cluster.make(Step::In(0, action), Bug::None);
    }
    let mut second = cluster.clone();
    second.moves = Some(0);
    second.finish();
    cluster.units[1] = second.units[1].clone();
    if done {
        cluster.units[0] = second.units[0].clone();
    }
    let object = cluster.units[0].down.objects.clone();
    cluster.units[1].down.objects = object;
    cluster.units[1].down.uids = cluster.units[0].down.uids;
    for unit in &mut cluster.units {
        unit.landed.retain(|(nonce, _)| {
            !done && unit.replicas[0].run.as_ref().is_some_and(|run| run.claim.nonce == *nonce)
        });
        unit.deployed = 0;
        unit.budget = budget;
    }
    cluster.count();
    cluster
}

fn frozen_first(takes: bool) -> Scenario<Cluster> {
    let mut cluster = two(false, takes, Budget { freezes: 1, ..Budget::default() });
    cluster.moves = Some(1);
    // The first one gives it up in the middle of its deployment.
    cluster.units[1].setting.takes = takes;
    Scenario::new(if takes { "moved, taken" } else { "moved, given up" }, cluster).in_orders(ORDERS)
}

/// Both may take what they list: the giver must not take it back for what it is asked for no more.
fn both_take() -> Scenario<Cluster> {
    let mut cluster = two(false, true, Budget { freezes: 1, ..Budget::default() });
    cluster.moves = Some(1);
    cluster.units[0].setting.takes = true;
    Scenario::new("moved, both take", cluster).in_orders(ORDERS)
}

fn crashed() -> Scenario<Cluster> {
    let budget = Budget { crashes: 1, ..Budget::default() };
    Scenario::new("moved, crash", two(true, true, budget)).in_orders(ORDERS)
}

fn removed() -> Scenario<Cluster> {
    let mut cluster = two(true, true, Budget { freezes: 1, ..Budget::default() });
    cluster.units[0].budget.deletions = 1;
    Scenario::new("moved, owner removed", cluster).in_orders(ORDERS)
}

#[test]
fn a_frozen_owner_neither_deletes_nor_overwrites_what_another_unit_took() {
    frozen_first(true).holds();
}

#[test]
fn a_giver_that_may_take_does_not_take_back_what_it_gave_up() {
    both_take().holds();
}

#[test]
fn a_look_at_the_claim_that_does_not_ask_for_the_deployment_id_is_a_hole() {
    both_take().finds(Bug::ConfirmNonceOnly);
}

#[test]
fn what_may_not_be_taken_is_waited_for_until_its_owner_has_pruned_it() {
    frozen_first(false).holds();
}

#[test]
fn a_move_survives_the_crash_of_either_side() {
    crashed().holds();
}

#[test]
fn the_removal_of_the_former_owner_does_not_undo_the_new_one() {
    removed().holds();
}

#[test]
fn a_prune_that_does_not_ask_whose_object_it_is_is_a_hole() {
    frozen_first(true).finds(Bug::PruneForeign);
}

#[test]
fn an_apply_that_does_not_ask_whose_object_it_is_is_a_hole() {
    frozen_first(false).finds(Bug::ApplyForeign);
}
