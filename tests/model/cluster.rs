// SPDX-License-Identifier: Apache-2.0
//! Several units of the same replicas: they share slots, sessions, what befalls a replica, and perhaps one object.
//!
//! Each unit is a world of its own; what they share is kept equal. The shared object is the last one of each, which
//! the deployment id `d1` asks for and others do not; it moves when its owner stops asking and another one begins.

use flotilla::protocol::{ClaimSlot, ClaimState, Mass, Work};

use super::{
    actions::Action,
    fair::Moment,
    search::Space,
    upstream::CLAIM_TIMEOUT,
    world::{Bd, Bug, NOW, STEP, World},
};

/// Moments within one step of time, for each unit; more is a unit that spins.
const MOMENTS: usize = 2000;

/// So many processes may die of one unit: one more before its quarantine, and one at the end of each.
const KILLS: u8 = 6;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    pub units: Vec<World>,
    /// How often the shared object may still move; `None` when none is shared.
    pub moves: Option<u8>,
    /// Whether replicas' watches of units other than their own are left out: replica k works on unit k alone, until all
    /// faults have stopped. Keeps a search small.
    pub apart: bool,
    /// How often everything may be missing at once.
    pub losses: u8,
    /// The first unit kills whoever runs it.
    pub poison: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// In one unit.
    In(usize, Action),
    /// For all of them.
    All(Action),
    /// The shared object is given to this unit.
    Give(usize),
    /// Running the first unit is the end of this replica.
    Kill(usize),
    /// All objects are missing at once, and are back.
    LoseAll,
    FindAll,
}

impl Cluster {
    /// Whether a unit may be given the object: it is done with everything before, or the object would have been taken
    /// from it and given back under one and the same deployment (`docs/limits.md`).
    fn may_take(unit: &World) -> bool {
        let done = |bd: &Bd| bd.deployment != "d1" && bd.applied != "d1" && bd.slot == ClaimSlot::Empty;
        unit.bd.as_ref().is_some_and(done)
    }

    fn give(&mut self, to: usize) {
        self.moves = self.moves.map(|moves| moves.saturating_sub(1));
        for (index, unit) in self.units.iter_mut().enumerate() {
            let Some(bd) = unit.bd.clone() else { continue };
            let deployment = if index == to { "d1" } else { "d2" };
            if bd.deployment != deployment {
                unit.deployed = 0;
                unit.store(Bd { deployment: deployment.into(), ..bd });
            }
        }
    }

    /// Everything is missing; whether that is much is for the product to say, with a bound that fits.
    fn lose(&mut self, bug: Bug) {
        self.losses -= 1;
        let missing = self.units.iter().filter(|unit| unit.bd.is_some()).count();
        let held = Mass { many: 1, ..Mass::USUAL }.is(missing, self.units.len()) && bug != Bug::NoMass;
        for unit in &mut self.units {
            unit.lose(missing > 1);
            unit.held = held;
        }
    }

    /// L3: only the first unit kills.
    fn judge_quarantine(&mut self) {
        let condemned = |unit: &World| {
            let claim = unit.bd.as_ref().and_then(|bd| bd.slot.claim());
            claim.is_some_and(|claim| claim.state == ClaimState::Quarantined)
        };
        if self.poison && self.units.iter().skip(1).any(condemned) {
            self.units[0].break_("L3: condemned for what another unit did");
        }
    }

    /// A process dies of the unit that it runs, and with it what it does for the others.
    fn kill(&mut self, replica: usize) {
        self.units.iter_mut().for_each(|unit| unit.crash(replica));
        let killed: u8 = self.units[0].replicas.iter().map(|replica| replica.boots).sum();
        if killed > KILLS {
            self.units[0].break_("L3: one unit kills its replicas on and on");
        }
        self.count();
    }

    /// What can happen where nothing goes wrong.
    fn calm_steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        self.moves(&mut steps);
        // What is missing stays so.
        steps.retain(|step| !matches!(step, Step::FindAll | Step::In(_, Action::Find)));
        steps
    }

    /// What was done in one unit is known to the others.
    fn share(&mut self, from: usize) {
        if self.moves.is_some() {
            let (object, uids) = (self.units[from].down.objects.last().cloned(), self.units[from].down.uids);
            for unit in &mut self.units {
                unit.down.uids = uids;
                if let (Some(own), Some(object)) = (unit.down.objects.last_mut(), &object) {
                    own.clone_from(object);
                }
            }
        }
        for replica in std::mem::take(&mut self.units[from].relisting) {
            let others = (0..self.units.len()).filter(|other| *other != from);
            others.for_each(|other| self.units[other].relist(replica));
        }
        self.count();
    }

    pub fn count(&mut self) {
        let held = |unit: &World, index: usize| u8::from(unit.replicas[index].unit.holds_slot());
        for index in 0..self.units[0].replicas.len() {
            let all: u8 = self.units.iter().map(|unit| held(unit, index)).sum();
            let alone = self.units.iter().position(|unit| unit.replicas[index].unit.alone.is_some());
            for (at, unit) in self.units.iter_mut().enumerate() {
                unit.elsewhere[index] = all - held(unit, index);
                unit.reserved[index] = alone.is_some_and(|alone| alone != at);
            }
            // Where one kills, what comes of it is looked at instead.
            if !self.poison {
                self.judge_company(index);
            }
        }
        self.judge_quarantine();
    }

    /// S6: a unit whose next loss may be its last works alone in its replica, and so no other is condemned for it.
    fn judge_company(&mut self, replica: usize) {
        // What still has a slot when all work must have ended is waited for no longer.
        let patience = STEP * u32::from(CLAIM_TIMEOUT + 1);
        let alone = self.units.iter().find_map(|unit| unit.replicas[replica].unit.alone);
        let patient = alone.is_none_or(|since| NOW < since + patience);
        let claims = |unit: &World| match &unit.replicas[replica].unit.work {
            Work::Claiming { claim, .. } | Work::Running { claim, .. } | Work::Finishing { claim, .. } => {
                (claim.state == ClaimState::Claimed).then_some(claim.lost)
            }
            _ => None,
        };
        let at_work: Vec<u32> = self.units.iter().filter_map(claims).collect();
        if patient && at_work.len() > 1 && at_work.iter().any(|lost| *lost >= 2) {
            self.units[0].break_("S6: one that may be poison works beside another");
        }
        if at_work.len() > usize::from(self.units[0].setting.slots) {
            self.units[0].break_("more units at work than there are slots");
        }
    }

    fn is_idle(&self, replica: usize) -> bool {
        self.units.iter().all(|unit| !unit.replicas[replica].unit.is_busy())
    }

    fn all(&mut self, action: Action, bug: Bug) {
        for index in 0..self.units.len() {
            match action {
                Action::Stop(replica) if !self.units[index].replicas[replica].unit.is_busy() => {}
                _ => self.units[index].act(action, bug),
            }
            self.share(index);
        }
    }

    fn settle(&mut self, bug: Bug) -> bool {
        let mut steps = Vec::new();
        for _ in 0..MOMENTS * self.units.len() {
            steps.clear();
            self.moves(&mut steps);
            let Some(step) = steps.first() else { return true };
            self.make(*step, bug);
        }
        false
    }

    /// One step in one unit until nothing is left to do there; for the way to a start.
    pub fn finish(&mut self) {
        assert!(self.settle(Bug::None), "a start that spins");
    }
}

impl Space for Cluster {
    type Move = Step;

    fn moves(&self, steps: &mut Vec<Step>) {
        if self.broken().is_some() {
            return;
        }
        let mut actions = Vec::new();
        for (index, unit) in self.units.iter().enumerate() {
            actions.clear();
            unit.actions(&mut actions);
            for action in &actions {
                match action {
                    Action::Exit(replica) if index > 0 || !self.is_idle(*replica) => {}
                    // Of a unit that has something to stop.
                    Action::Stop(_) => steps.push(Step::All(*action)),
                    Action::Run(replica) if self.poison && index == 0 => steps.push(Step::Kill(*replica)),
                    Action::Watch(replica) if self.apart && *replica != index => {}
                    action if !action.is_global() => steps.push(Step::In(index, *action)),
                    action if index == 0 => steps.push(Step::All(*action)),
                    _ => {}
                }
            }
        }
        let lost = |unit: &World| unit.mass && unit.absent_age < unit.grace();
        if self.units.iter().all(lost) {
            steps.push(Step::FindAll);
        } else if self.losses > 0 && self.units.iter().all(|unit| unit.bd.is_some() && unit.absent_age == 0) {
            steps.push(Step::LoseAll);
        }
        // What may come back must not come back with what another one was given meanwhile.
        let may_return = |unit: &World| unit.absent.is_some() && unit.absent_age < unit.grace();
        if self.moves.is_some_and(|moves| moves > 0) && !self.units.iter().any(may_return) {
            let takers = (0..self.units.len()).filter(|index| Self::may_take(&self.units[*index]));
            steps.extend(takers.map(Step::Give));
        }
    }

    fn make(&mut self, step: Step, bug: Bug) {
        match step {
            Step::In(index, action) => {
                self.units[index].act(action, bug);
                self.share(index);
            }
            Step::All(action) => self.all(action, bug),
            Step::Give(index) => self.give(index),
            Step::Kill(replica) => self.kill(replica),
            Step::LoseAll => self.lose(bug),
            Step::FindAll => self.units.iter_mut().for_each(World::find),
        }
    }

    fn broken(&self) -> Option<&'static str> {
        self.units.iter().find_map(|unit| unit.broken)
    }

    fn is_true(&self) -> bool {
        self.units.iter().all(World::status_is_true)
    }

    fn calmed(&self, bug: Bug) -> Self {
        let mut cluster = self.clone();
        cluster.apart = false;
        cluster.moves = cluster.moves.map(|_| 0);
        cluster.losses = 0;
        for index in 0..cluster.units.len() {
            cluster.units[index].calm();
            cluster.share(index);
        }
        for index in 0..cluster.units[0].replicas.len() {
            if !cluster.units[0].replicas[index].alive {
                cluster.all(Action::Restart(index), bug);
            }
            if cluster.units[0].replicas[index].frozen {
                cluster.all(Action::Thaw(index), bug);
            }
        }
        cluster
    }

    fn width(&self) -> usize {
        self.calm_steps().len()
    }

    fn moment(&mut self, choice: usize, round: &mut u8, bug: Bug) -> Moment {
        if let Some(step) = self.calm_steps().get(choice) {
            self.make(*step, bug);
        } else if self.broken().is_none() {
            for index in 0..self.units.len() {
                if *round > 2 {
                    self.units[index].sweep();
                }
                if *round > 10 {
                    self.units[index].collect();
                }
                self.share(index);
            }
            // A unit that kills its replicas is never done; the others must be.
            if *round > 3 && self.units.iter().skip(usize::from(self.poison)).all(World::is_at_rest) {
                return if self.is_true() {
                    Moment::Rest
                } else {
                    Moment::Broken("S2: at rest, and not as told")
                };
            }
            self.units.iter_mut().for_each(|unit| unit.advance(bug));
            *round += 1;
        }
        self.broken().map_or(Moment::Moved, Moment::Broken)
    }
}

/// Units `u`, `v`, … of the same replicas, the first of which has the shared object when there is one.
pub fn cluster(mut units: Vec<World>, moves: Option<u8>) -> Cluster {
    for (index, unit) in units.iter_mut().enumerate() {
        let setting = &mut unit.setting;
        setting.unit = char::from(b'u' + u8::try_from(index).expect("few units"));
        if moves.is_some() {
            setting.fewer = unit.down.objects.len() - 1;
            setting.born = "d2";
        }
        unit.bd = None;
        for replica in &mut unit.replicas {
            replica.events.clear();
        }
        let uid = format!("{}1", unit.setting.unit);
        unit.create(&uid);
    }
    let mut cluster = Cluster { units, moves, apart: false, losses: 0, poison: false };
    if moves.is_some() {
        cluster.give(0);
        cluster.moves = moves;
    }
    cluster
}
