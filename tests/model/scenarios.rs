// SPDX-License-Identifier: Apache-2.0
//! Focused spaces, each small enough to be searched whole, and the planted bugs that each must find.

use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::{Checker, Model, Property};

use super::{
    actions::Action,
    world::{Budget, Bug, Down, Lease, Replica, World},
};

/// A start, a planted bug, and how often a fair continuation is tried.
struct Scenario {
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
        hasher.finish() % self.sample == 0
    }

    /// Searches it whole; what was found, by name, with the way there.
    fn search(self) -> Vec<(String, String)> {
        let begun = std::time::Instant::now();
        let name = self.name;
        let checker = self.checker().spawn_bfs().join();
        println!("{name}: {} states, {:.1?}", checker.unique_state_count(), begun.elapsed());
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

    fn holds(self) {
        let name = self.name;
        let found = self.search();
        for (property, path) in &found {
            println!("{name} breaks {property}: {path}");
        }
        assert!(found.is_empty(), "{name}");
    }

    fn finds(mut self, bug: Bug) {
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
fn world(replicas: usize, objects: usize, budget: Budget) -> World {
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

fn races() -> Scenario {
    let budget = Budget { unrelated: 2, ..Budget::default() };
    scenario("races with unrelated writers", world(2, 1, budget), 16)
}

#[test]
fn two_replicas_race_beside_an_unrelated_writer() {
    races().holds();
}
