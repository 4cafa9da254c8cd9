// SPDX-License-Identifier: Apache-2.0
//! Focused spaces, each small enough to be searched whole, and the planted bugs that each must find.

use std::hash::{DefaultHasher, Hash, Hasher};

use flotilla::protocol::{ClaimSlot, Unit, Work};
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::{
    actions::Action,
    world::{Bd, Budget, Bug, Down, Event, Lease, Replica, World},
};

const LIMIT: usize = 1_500_000;

/// A start, a planted bug, and how often a fair continuation is tried.
pub struct Scenario {
    name: &'static str,
    start: World,
    bug: Bug,
    /// One state of so many is continued fairly.
    sample: u64,
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        state.actions(actions);
    }

    fn next_state(&self, state: &World, action: Action) -> Option<World> {
        let mut next = state.clone();
        next.act(action, self.bug);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S1, S3–S10", |_, state: &World| state.broken.is_none()),
            Property::always("S2", |_, state: &World| state.status_is_true()),
            Property::always("L1–L5", |scenario: &Scenario, state: &World| {
                state.broken.is_some() || !scenario.is_sampled(state) || state.stuck(scenario.bug).is_none()
            }),
        ]
    }
}

impl Scenario {
    fn is_sampled(&self, state: &World) -> bool {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish().is_multiple_of(self.sample)
    }

    /// Searches it whole; what was found, by name, with the way there.
    fn search(self) -> Vec<(String, String)> {
        #[expect(clippy::disallowed_methods, reason = "only to tell how long the search took")]
        let begun = std::time::Instant::now();
        let name = self.name;
        let checker =
            self.checker().target_state_count(LIMIT).finish_when(HasDiscoveries::Any).spawn_bfs().join();
        let (unique, all) = (checker.unique_state_count(), checker.state_count());
        println!("{name}: {unique} states of {all} reached, {:.1?}", begun.elapsed());
        assert!(all < LIMIT, "{name} is not searched whole");
        checker
            .discoveries()
            .into_iter()
            .map(|(property, path)| {
                let end = path.last_state();
                let why = end.broken.map(str::to_owned).or_else(|| end.stuck(checker.model().bug));
                (property.to_owned(), format!("{:?}\n{:?}", path.into_actions(), why))
            })
            .collect()
    }

    /// No invariant is broken.
    pub fn holds(self) {
        let name = self.name;
        let found = self.search();
        for (property, path) in &found {
            println!("{name} breaks {property}: {path}");
        }
        assert!(found.is_empty(), "{name}");
    }

    /// The planted bug is seen.
    pub fn finds(mut self, bug: Bug) {
        self.bug = bug;
        let name = self.name;
        let found = self.search();
        for (property, path) in &found {
            println!("{bug:?} is caught by {property}: {}", &path[..path.len().min(600)]);
        }
        assert!(!found.is_empty(), "{name} does not see {bug:?}");
    }
}

/// Two replicas that know each other, an object to deploy.
pub fn world(replicas: usize, objects: usize, budget: Budget) -> World {
    let mut world = World {
        bd: None,
        version: 10,
        slot_age: 0,
        replicas: (0..replicas).map(|_| Replica::new()).collect(),
        leases: Vec::new(),
        reaper: None,
        ghosts: Vec::new(),
        late: Vec::new(),
        down: Down { record: None, objects: vec![None; objects], uids: 0 },
        budget,
        removed: Vec::new(),
        landed: Vec::new(),
        started: Vec::new(),
        deployed: 0,
        disturbed: false,
        broken: None,
    };
    for pod in 0..replicas {
        let session = world.replicas[pod].session(pod);
        world.leases.push(Lease { session, pod, version: 0, steady: 3 });
    }
    (0..replicas).for_each(|index| world.see_leases(index));
    world.create("u1");
    world
}

fn scenario(name: &'static str, start: World, sample: u64) -> Scenario {
    Scenario { name, start, bug: Bug::None, sample }
}

/// The first replica holds the claim, as all have seen, and is about to open the gate.
fn held(replicas: usize, objects: usize, budget: Budget) -> World {
    let mut world = world(replicas, objects, budget);
    for action in [Action::Watch(0), Action::Serve(0), Action::Reply(0)] {
        world.act(action, Bug::None);
    }
    (0..replicas).for_each(|index| world.act(Action::Watch(index), Bug::None));
    world
}

/// The first replica has deployed `d1`; nobody has anything to do.
fn deployed(objects: usize, budget: Budget) -> World {
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

pub fn races() -> Scenario {
    let budget = Budget { unrelated: 2, ..Budget::default() };
    scenario("races", world(2, 1, budget), 16)
}

pub fn crash() -> Scenario {
    scenario("crash", held(2, 1, Budget { crashes: 1, time: 1, ..Budget::default() }), 64)
}

pub fn freeze() -> Scenario {
    scenario("freeze", held(2, 1, Budget { freezes: 1, time: 2, ..Budget::default() }), 64)
}

pub fn frozen_through_two_changes() -> Scenario {
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
    scenario("changes", world, 512)
}

pub fn lost_answers() -> Scenario {
    scenario("lost answers", world(2, 1, Budget { lost: 2, ..Budget::default() }), 64)
}

pub fn late_answers() -> Scenario {
    let budget = Budget { lost: 1, doubled: 1, slow_reads: 1, lag: 1, unrelated: 1, ..Budget::default() };
    scenario("late answers", held(2, 1, budget), 64)
}

pub fn recreation() -> Scenario {
    scenario("re-creation", held(2, 1, Budget { deletions: 1, recreations: 1, ..Budget::default() }), 64)
}

pub fn frozen_removal() -> Scenario {
    scenario("removal, frozen", held(2, 1, Budget { deletions: 1, freezes: 1, ..Budget::default() }), 64)
}

pub fn crashed_removal() -> Scenario {
    scenario("removal, crashed", held(2, 1, Budget { deletions: 1, crashes: 1, ..Budget::default() }), 64)
}

pub fn reaped() -> Scenario {
    let mut world = held(1, 1, Budget { freezes: 1, time: 4, ..Budget::default() });
    world.reaper = Some(None);
    scenario("reaper", world, 64)
}

pub fn wait() -> Scenario {
    let budget = Budget { waits: 1, lost: 1, unrelated: 1, ..Budget::default() };
    scenario("wait", held(2, 1, budget), 64)
}

pub fn pause() -> Scenario {
    let budget = Budget { pauses: 1, spec: 1, ..Budget::default() };
    scenario("pause", held(2, 1, budget), 64)
}

pub fn poison() -> Scenario {
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
    scenario("poison", world, 512)
}

pub fn three() -> Scenario {
    scenario("three", world(3, 1, Budget::default()), 64)
}
