// SPDX-License-Identifier: Apache-2.0
//! Long random histories of three replicas and up to five units, beyond what can be searched whole. `FLOTILLA_SEED=<n>` replays one,
//! `FLOTILLA_HISTORIES=<n>` runs so many.

use std::env;

use super::{
    actions::Action,
    cluster::{Cluster, Step, cluster},
    fair::Orders,
    scenarios::world,
    search::Space,
    world::{Budget, Bug},
};

/// Histories in one run of the tests.
const HISTORIES: u64 = 1000;
/// Moments of each unit in one history before all faults stop.
const MOMENTS: usize = 400;

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

/// One to five units and three replicas with one to three slots. The last faults that may happen differ, too: an object
/// moves between units, or upstream is restored (which would move objects on its own).
fn start(random: &mut Random) -> Cluster {
    let count = 1 + random.below(5);
    let mut some = |most: usize| u8::try_from(random.below(most + 1)).expect("small");
    // What befalls a replica, or passes for all, is the same in each unit.
    let global = Budget {
        time: some(40),
        crashes: some(4),
        freezes: some(4),
        drains: some(2),
        outages: some(2),
        lag: some(2),
        ..Budget::default()
    };
    let (slots, steal, moved) = (1 + some(2), some(1), some(1) == 1);
    let units = (0..count).map(|_| {
        let restores = if moved { 0 } else { some(3).saturating_sub(2) };
        let budget = Budget {
            lost: some(6),
            doubled: some(3),
            failures: some(2),
            waits: some(3),
            unrelated: some(6),
            spec: if moved { 0 } else { some(4) },
            pauses: some(2),
            // A removal looks upstream once more before it begins, which is not in the model.
            deletions: some(1) * (1 - restores),
            recreations: some(1),
            slow_reads: some(6),
            strange: some(2),
            restores,
            absences: some(2) * (1 - restores),
            ..global
        };
        let mut unit = world(3, 2, budget);
        (unit.setting.slots, unit.setting.steal) = (slots, steal);
        (unit.setting.stride, unit.setting.takes) = (2, some(1) == 1);
        unit.reapers = vec![None; usize::from(some(1) == 0)];
        unit
    });
    let units = units.collect();
    let moves = moved.then(|| some(6));
    let mut cluster = cluster(units, moves);
    let restored = cluster.units.iter().any(|unit| unit.budget.restores > 0);
    cluster.losses = if restored { 0 } else { some(1) };
    cluster
}

/// Faults are rarer than work, or nothing would ever get done.
fn weight(step: Step) -> usize {
    use Action::*;
    match step {
        Step::Give(_) | Step::Kill(_) | Step::LoseAll | Step::FindAll => 1,
        Step::In(_, action) | Step::All(action) => match action {
            Crash(_) | Freeze(_) | Drain(_) | Pause | Delete | Spec | Strange | Save | Restore => 1,
            Outage | Lose | Miss(_) => 1,
            OutageEnds | Find => 2,
            Advance | Unrelated | Fail(_) | Recreate | Stop(_) | StrangeEnds => 2,
            LoseRequest(_) | LoseReply(_) | DelayRequest(_) | DoubleReply(_) => 2,
            Ghost(_) | Late(_) | Doubled(_) | Thaw(_) | Resume => 2,
            _ => 12,
        },
    }
}

fn history(seed: u64) -> Result<u32, String> {
    let mut random = Random(seed);
    let mut cluster = start(&mut random);
    let mut steps = Vec::new();
    let mut past = Vec::new();
    for _ in 0..MOMENTS * cluster.units.len() {
        steps.clear();
        cluster.moves(&mut steps);
        let total: usize = steps.iter().map(|step| weight(*step)).sum();
        if total == 0 {
            break;
        }
        let mut at = random.below(total);
        let step = steps.iter().find(|step| {
            let taken = at < weight(**step);
            at = at.saturating_sub(weight(**step));
            taken
        });
        let step = *step.expect("within the total");
        past.push(step);
        cluster.make(step, Bug::None);
        if let Some(broken) = cluster.broken() {
            return Err(format!("{broken} after {past:?}"));
        }
        if !cluster.is_true() {
            return Err(format!("S2 after {past:?}"));
        }
    }
    match cluster.stays_stuck(Orders::Some(3), Bug::None) {
        Some(why) => Err(format!("{why} after {past:?}")),
        None => Ok(cluster.units.iter().map(|unit| u32::from(unit.deployed)).sum()),
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

/// Histories that showed a hole once.
#[test]
fn histories_that_broke_an_earlier_protocol_hold() {
    // A step into a wait, answered with 404, was waited for without end (L1); a claim was sent against no version (S3).
    for seed in [5, 2079] {
        history(seed).unwrap_or_else(|why| panic!("FLOTILLA_SEED={seed}: {why}"));
    }
}
