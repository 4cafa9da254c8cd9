// SPDX-License-Identifier: Apache-2.0
//! L3: a unit that kills every replica that runs it, beside an ordinary one, and replicas with a slot for one of them.

use flotilla::protocol::{ClaimSlot, Work};

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

#[test]
fn a_unit_that_kills_its_replicas_does_not_stop_another() {
    beside_another().holds();
}

#[test]
fn a_unit_that_is_tried_on_and_on_is_seen() {
    beside_another().finds(Bug::NoQuarantine);
}
