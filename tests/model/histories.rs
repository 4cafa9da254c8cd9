// SPDX-License-Identifier: Apache-2.0
//! Long random histories of three replicas, beyond what can be searched whole. `FLOTILLA_SEED=<n>` replays one,
//! `FLOTILLA_HISTORIES=<n>` runs so many.

use std::env;

use super::{
    actions::Action,
    scenarios::world,
    world::{Budget, Bug, World},
};

/// Histories in one run of the tests.
const HISTORIES: u64 = 300;
/// Moments of one history before all faults stop.
const MOMENTS: u32 = 400;

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((word ^ (word >> 31)) % bound as u64).expect("below the bound")
    }
}

fn start(random: &mut Random) -> World {
    let mut some = |most: usize| u8::try_from(random.below(most + 1)).expect("small");
    let budget = Budget {
        time: some(40),
        crashes: some(4),
        freezes: some(4),
        lost: some(6),
        doubled: some(3),
        failures: some(2),
        waits: some(3),
        unrelated: some(6),
        spec: some(4),
        pauses: some(2),
        deletions: some(1),
        recreations: some(1),
        slow_reads: some(6),
        lag: some(2),
    };
    let mut world = world(3, 2, budget);
    world.reaper = (random.below(2) == 0).then_some(None);
    world
}

/// Faults are rarer than work, or nothing would ever get done.
fn weight(action: Action) -> usize {
    match action {
        Action::Crash(_) | Action::Freeze(_) | Action::Pause | Action::Delete | Action::Spec => 1,
        Action::Advance | Action::Unrelated | Action::Fail(_) | Action::Recreate => 2,
        Action::LoseRequest(_) | Action::LoseReply(_) | Action::DelayRequest(_) | Action::DoubleReply(_) => 2,
        Action::Ghost(_) | Action::Late(_) | Action::Doubled(_) | Action::Thaw(_) | Action::Resume => 2,
        _ => 12,
    }
}

fn history(seed: u64) -> Result<u32, String> {
    let mut random = Random(seed);
    let mut world = start(&mut random);
    let mut actions = Vec::new();
    let mut past = Vec::new();
    for _ in 0..MOMENTS {
        actions.clear();
        world.actions(&mut actions);
        let total: usize = actions.iter().map(|action| weight(*action)).sum();
        if total == 0 {
            break;
        }
        let mut at = random.below(total);
        let action = actions.iter().find(|action| {
            let taken = at < weight(**action);
            at = at.saturating_sub(weight(**action));
            taken
        });
        let action = *action.expect("within the total");
        past.push(action);
        world.act(action, Bug::None);
        if let Some(broken) = world.broken {
            return Err(format!("{broken} after {past:?}"));
        }
        if !world.status_is_true() {
            return Err(format!("S2 after {past:?}"));
        }
    }
    match world.stuck(Bug::None) {
        Some(why) => Err(format!("{why} after {past:?}")),
        None => Ok(u32::from(world.deployed)),
    }
}

#[test]
fn random_histories_keep_the_invariants_and_come_to_rest() {
    let seeds = match env::var("FLOTILLA_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("FLOTILLA_SEED is a number");
            seed..seed + 1
        }
        Err(_) => {
            let asked = env::var("FLOTILLA_HISTORIES").ok();
            0..asked.map_or(HISTORIES, |count| count.parse().expect("FLOTILLA_HISTORIES is a number"))
        }
    };
    let mut deployed = 0;
    for seed in seeds.clone() {
        match history(seed) {
            Ok(results) => deployed += results,
            Err(why) => panic!("FLOTILLA_SEED={seed}: {why}"),
        }
    }
    println!("{} histories, {deployed} deployments before their faults stopped", seeds.count());
}
