// SPDX-License-Identifier: Apache-2.0
//! L3: a unit that kills every replica that runs it, beside an ordinary one, and replicas with a slot for one of them.

use flotilla::protocol::{Claim, ClaimSlot, Work};

use super::{
    actions::Action,
    cluster::{Cluster, Step, cluster},
    scenarios::world,
    search::{Scenario, Space},
    world::{Bd, Budget, Bug, Event},
};

/// The first replica is about to run the unit, for the third time that somebody does; nobody has looked at the other one.
fn beside_another() -> Scenario<Cluster> {
    let units = (0..2).map(|_| world(2, 1, Budget::default())).collect();
    let mut cluster = cluster(units, None);
    for action in [Action::Watch(0), Action::Serve(0), Action::Reply(0)] {
        cluster.make(Step::In(0, action), Bug::None);
    }
    let unit = &mut cluster.units[0];
    let Some(bd) = &mut unit.bd else { unreachable!("just made") };
    let ClaimSlot::Claim(claim) = &mut bd.slot else { unreachable!("just claimed") };
    (claim.attempt, claim.lost, claim.by) = (3, 2, vec!["x".into()]);
    let held = claim.clone();
    let Work::Running { claim, .. } = &mut unit.replicas[0].unit.work else { unreachable!("just won") };
    *claim = held;
    let seen = Event::Seen(Box::new(unit.bd.as_ref().map(Bd::snapshot).expect("just made")));
    unit.replicas.iter_mut().for_each(|replica| replica.events = vec![seen.clone()]);
    cluster.poison = true;
    Scenario::new("poison, beside another", cluster)
}

/// Units with that many attempts lost before, all to be claimed; so many replicas, with two slots each.
fn together(name: &'static str, replicas: usize, lost: &[u32]) -> Scenario<Cluster> {
    let unit = || {
        let mut unit = world(replicas, 1, Budget::default());
        unit.setting.slots = 2;
        unit
    };
    let mut cluster = cluster(lost.iter().map(|_| unit()).collect(), None);
    for (unit, lost) in cluster.units.iter_mut().zip(lost) {
        let words = format!("attempt={} lost={lost} by=x budget=600 deployment=d1", lost + 1);
        let text = format!("v1 holder=pod-x session=x nonce=x {words}");
        let claim = Claim::parse("False", "Expired", &text).expect("a claim");
        let slot = if *lost > 0 { ClaimSlot::Claim(claim) } else { ClaimSlot::Empty };
        let bd = unit.bd.clone().expect("just made");
        unit.replicas.iter_mut().for_each(|replica| replica.events.clear());
        unit.store(Bd { slot, ..bd });
    }
    cluster.poison = true;
    Scenario::new(name, cluster)
}

/// One kills whoever runs it; the other one was at work beside it when it did so before, each time.
fn beside_a_bystander() -> Scenario<Cluster> {
    together("poison, beside a bystander", 2, &[2, 2])
}

/// Likewise with one replica, and a third unit that nothing befell.
fn among_others() -> Scenario<Cluster> {
    together("poison, among others", 1, &[2, 2, 0])
}

#[test]
fn who_was_beside_a_unit_that_kills_its_replicas_is_not_condemned_for_it() {
    beside_a_bystander().holds();
}

#[test]
fn a_unit_that_must_work_alone_neither_starves_nor_stops_the_others() {
    among_others().holds();
}

#[test]
fn a_unit_that_may_kill_its_replica_and_works_beside_others_is_seen() {
    beside_a_bystander().finds(Bug::NeverAlone);
    among_others().finds(Bug::NeverAlone);
}

#[test]
fn a_unit_that_kills_its_replicas_does_not_stop_another() {
    beside_another().holds();
}

#[test]
fn a_unit_that_is_tried_on_and_on_is_seen() {
    beside_another().finds(Bug::NoQuarantine);
}
