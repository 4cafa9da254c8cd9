// SPDX-License-Identifier: Apache-2.0
//! Focused spaces, each small enough to be searched whole.

use flotilla::protocol::{ClaimSlot, Unit, Work};

use super::{
    actions::Action,
    search::Scenario,
    world::{Bd, Budget, Bug, Down, Event, Lease, Replica, Setting, World},
};

/// Two replicas that know each other, an object to deploy.
pub fn world(replicas: usize, objects: usize, budget: Budget) -> World {
    let mut world = World {
        bd: None,
        version: 10,
        slot_age: 0,
        replicas: (0..replicas).map(|_| Replica::new().into()).collect(),
        leases: Vec::new(),
        reapers: Vec::new(),
        ghosts: Vec::new(),
        late: Vec::new(),
        down: Down { record: None, objects: vec![None; objects], uids: 0 }.into(),
        budget,
        removed: Vec::new(),
        landed: Vec::new().into(),
        started: Vec::new().into(),
        deployed: 0,
        unswept: false,
        disturbed: false,
        broken: None,
        setting: Setting {
            unit: 'u',
            slots: 1,
            steal: 0,
            takes: false,
            fewer: 1,
            born: "d1",
            first: None,
            freezes: None,
            stride: 1,
            resyncs: false,
        }
        .into(),
        elsewhere: vec![0; replicas],
        reserved: vec![false; replicas],
        saved: None,
        restored: false,
        doubtful: false,
        outage: false,
        absent: None,
        absent_age: 0,
        mass: false,
        held: false,
        relisting: Vec::new(),
    };
    for pod in 0..replicas {
        let session = world.replicas[pod].session(pod);
        world.leases.push(Lease { session, pod, version: 0, steady: 3, free: 1 });
    }
    (0..replicas).for_each(|index| world.see_leases(index));
    world.create("u1");
    world
}

fn scenario(name: &'static str, start: World) -> Scenario<World> {
    Scenario::new(name, start)
}

/// The first replica holds the claim, as all have seen, and is about to open the gate.
pub fn held(replicas: usize, objects: usize, budget: Budget) -> World {
    let mut world = world(replicas, objects, budget);
    for action in [Action::Watch(0), Action::Serve(0), Action::Reply(0)] {
        world.act(action, Bug::None);
    }
    (0..replicas).for_each(|index| world.act(Action::Watch(index), Bug::None));
    world
}

/// The first replica has deployed `d1`; nobody has anything to do.
pub fn deployed(objects: usize, budget: Budget) -> World {
    let mut world = held(2, objects, Budget::default());
    while let Some(action) = {
        let mut actions = Vec::new();
        world.actions(&mut actions);
        actions.first().copied()
    } {
        world.act(action, Bug::None);
    }
    world.landed.clear();
    world.started.clear();
    world.deployed = 0;
    world.budget = budget;
    world
}

pub fn races() -> Scenario<World> {
    let budget = Budget { unrelated: 2, ..Budget::default() };
    scenario("races", world(2, 1, budget))
}

pub fn crash() -> Scenario<World> {
    scenario("crash", held(2, 1, Budget { crashes: 1, time: 1, ..Budget::default() }))
}

pub fn freeze() -> Scenario<World> {
    scenario("freeze", held(2, 1, Budget { freezes: 1, time: 2, ..Budget::default() }))
}

pub fn frozen_through_two_changes() -> Scenario<World> {
    let mut world = deployed(1, Budget { spec: 1, ..Budget::default() });
    let way = [
        Action::Spec,
        Action::Watch(0),
        Action::Serve(0),
        Action::Reply(0),
        Action::Watch(0),
        Action::Watch(1),
    ];
    way.into_iter().for_each(|action| world.act(action, Bug::None));
    world.budget = Budget { freezes: 1, time: 1, spec: 1, ..Budget::default() };
    world.setting.freezes = Some(0);
    scenario("changes", world)
}

pub fn lost_answers() -> Scenario<World> {
    scenario("lost answers", world(2, 1, Budget { lost: 2, ..Budget::default() }))
}

pub fn late_answers() -> Scenario<World> {
    let budget = Budget { lost: 1, doubled: 1, slow_reads: 1, lag: 1, unrelated: 1, ..Budget::default() };
    scenario("late answers", held(2, 1, budget))
}

pub fn recreation() -> Scenario<World> {
    scenario("re-creation", held(2, 1, Budget { deletions: 1, recreations: 1, ..Budget::default() }))
}

pub fn frozen_removal() -> Scenario<World> {
    scenario("removal, frozen", held(2, 1, Budget { deletions: 1, freezes: 1, ..Budget::default() }))
}

pub fn crashed_removal() -> Scenario<World> {
    scenario("removal, crashed", held(2, 1, Budget { deletions: 1, crashes: 1, ..Budget::default() }))
}

pub fn reaped() -> Scenario<World> {
    let mut world = held(1, 1, Budget { freezes: 1, time: 4, ..Budget::default() });
    world.reapers = vec![None];
    scenario("reaper", world)
}

/// The first replica froze in the middle of its work; its budget and all margins are over, as the reapers have seen. It
/// may wake at any moment.
fn overdue(replicas: usize, reapers: usize) -> World {
    let mut world = held(replicas, 1, Budget { freezes: 1, time: 4, ..Budget::default() });
    world.reapers = vec![None; reapers];
    let way = [Action::Run(0), Action::Run(0), Action::Freeze(0)];
    way.into_iter().for_each(|action| world.act(action, Bug::None));
    (0..reapers).for_each(|index| world.act(Action::ReaperLook(index), Bug::None));
    (0..4).for_each(|_| world.act(Action::Advance, Bug::None));
    world
}

/// Whoever of the reaper and the other replica is first, ends the claim.
pub fn reaped_or_taken_over() -> Scenario<World> {
    scenario("reaper, beside a peer", overdue(2, 1))
}

/// Whichever reaper is first.
pub fn reaped_twice() -> Scenario<World> {
    scenario("reaper, twice", overdue(1, 2))
}

pub fn wait() -> Scenario<World> {
    let budget = Budget { waits: 1, lost: 1, unrelated: 1, ..Budget::default() };
    scenario("wait", held(2, 1, budget))
}

pub fn wait_and_crash() -> Scenario<World> {
    let budget = Budget { waits: 1, crashes: 1, time: 1, ..Budget::default() };
    scenario("wait, crash", held(2, 1, budget))
}

pub fn pause() -> Scenario<World> {
    let budget = Budget { pauses: 1, spec: 1, ..Budget::default() };
    scenario("pause", held(2, 1, budget))
}

pub fn poison() -> Scenario<World> {
    let mut world = held(2, 1, Budget { crashes: 1, time: 2, ..Budget::default() });
    let Some(bd) = &mut world.bd else { unreachable!("just made") };
    let ClaimSlot::Claim(claim) = &mut bd.slot else { unreachable!("just claimed") };
    (claim.attempt, claim.lost, claim.by) = (3, 2, vec!["x".into()]);
    let held = claim.clone();
    let Work::Running { claim, .. } = &mut world.replicas[0].unit.work else { unreachable!("just won") };
    claim.clone_from(&held);
    world.replicas[1].unit = Unit::default();
    world.replicas[1].events =
        vec![Event::Seen(Box::new(world.bd.as_ref().map(Bd::snapshot).expect("just made")))];
    scenario("poison", world)
}

/// The holder is gone, and the spec moves while its claim is taken over.
pub fn taken_over_and_moved() -> Scenario<World> {
    let mut world = held(2, 1, Budget::default());
    (0..2).for_each(|_| world.act(Action::Run(0), Bug::None));
    world.crash(0);
    world.budget = Budget { spec: 1, ..Budget::default() };
    scenario("taken over, moved", world)
}

/// Somebody puts an old status over the claim, in the middle of its work; the spec may change.
pub fn wiped() -> Scenario<World> {
    scenario("wiped", held(2, 2, Budget { wipes: 1, spec: 1, ..Budget::default() }))
}

/// The holder is gone, and what it deployed turns out to be undeployable; then the spec changes.
pub fn taken_over_and_rejected() -> Scenario<World> {
    let mut world = taken_over_and_moved().start;
    world.budget = Budget { rejections: 1, spec: 1, ..Budget::default() };
    scenario("taken over, rejected", world)
}

/// The deployment fails, as the cluster decides, and is tried again.
pub fn failure() -> Scenario<World> {
    scenario("failure", held(2, 1, Budget { failures: 1, lost: 1, ..Budget::default() }))
}

pub fn three() -> Scenario<World> {
    scenario("three", world(3, 1, Budget::default()))
}
