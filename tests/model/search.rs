// SPDX-License-Identifier: Apache-2.0
//! A space searched whole: its start, what may happen in it, what must hold everywhere.

use std::{collections::BTreeMap, fmt::Debug, hash::Hash};

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::{
    actions::Action,
    fair::{Moment, Orders, Rests},
    world::{Bug, World},
};

const LIMIT: usize = 1_500_000;

/// One unit, or several.
pub trait Space: Clone + Debug + Hash + Eq + Send + Sync + 'static {
    type Move: Copy + Debug + PartialEq + Send + Sync + 'static;
    fn moves(&self, moves: &mut Vec<Self::Move>);
    fn make(&mut self, step: Self::Move, bug: Bug);
    fn broken(&self) -> Option<&'static str>;
    /// S2.
    fn is_true(&self) -> bool;
    /// From here on nothing goes wrong.
    fn calmed(&self, bug: Bug) -> Self;
    /// How much can happen now, where nothing goes wrong any more.
    fn width(&self) -> usize;
    /// Of what can happen now, this happens; if nothing can, time passes.
    fn moment(&mut self, choice: usize, round: &mut u8, bug: Bug) -> Moment;
    /// Why it does not come to rest when all faults stop.
    fn stays_stuck(&self, orders: Orders, bug: Bug) -> Option<String> {
        Rests::new(orders).stuck(self, bug)
    }
}

impl Space for World {
    type Move = Action;
    fn moves(&self, moves: &mut Vec<Action>) {
        self.actions(moves);
    }
    fn make(&mut self, action: Action, bug: Bug) {
        self.act(action, bug);
    }
    fn broken(&self) -> Option<&'static str> {
        self.broken
    }
    fn is_true(&self) -> bool {
        self.status_is_true()
    }
    fn calmed(&self, bug: Bug) -> Self {
        self.without_faults(bug)
    }
    fn width(&self) -> usize {
        self.calm_actions().len()
    }
    fn moment(&mut self, choice: usize, round: &mut u8, bug: Bug) -> Moment {
        self.go_on(choice, round, bug)
    }
}

/// A start and a planted bug.
pub struct Scenario<S> {
    name: &'static str,
    pub start: S,
    bug: Bug,
    orders: Orders,
    rests: Rests,
}

impl<S: Space> Model for Scenario<S> {
    type State = S;
    type Action = S::Move;

    fn init_states(&self) -> Vec<S> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &S, actions: &mut Vec<S::Move>) {
        state.moves(actions);
    }

    fn next_state(&self, state: &S, action: S::Move) -> Option<S> {
        let mut next = state.clone();
        next.make(action, self.bug);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S1, S3–S10", |_, state: &S| state.broken().is_none()),
            Property::always("S2", |_, state: &S| state.is_true()),
            Property::always("L1–L5", |scenario: &Scenario<S>, state: &S| {
                state.broken().is_some() || scenario.rests.stuck(state, scenario.bug).is_none()
            }),
        ]
    }
}

impl<S: Space> Scenario<S> {
    pub fn new(name: &'static str, start: S) -> Self {
        Self { name, start, bug: Bug::None, orders: Orders::All, rests: Rests::new(Orders::All) }
    }

    /// Its runs without faults are too many: only these are gone through.
    pub fn in_orders(mut self, orders: Orders) -> Self {
        (self.orders, self.rests) = (orders, Rests::new(orders));
        self
    }

    /// Searches it whole; its states, and what was found, by name, with the way there.
    fn search(self) -> (usize, Vec<(String, String)>) {
        #[expect(clippy::disallowed_methods, reason = "only to tell how long the search took")]
        let begun = std::time::Instant::now();
        let name = self.name;
        let checker =
            self.checker().target_state_count(LIMIT).finish_when(HasDiscoveries::Any).spawn_bfs().join();
        let (unique, all) = (checker.unique_state_count(), checker.state_count());
        let rests = checker.model().rests.looked_at();
        println!("{name}: {unique} states of {all} reached, {rests} without faults, {:.1?}", begun.elapsed());
        assert!(all < LIMIT, "{name} is not searched whole");
        let found = checker
            .discoveries()
            .into_iter()
            .map(|(property, path)| {
                let end = path.last_state();
                let why = end
                    .broken()
                    .map(str::to_owned)
                    .or_else(|| end.stays_stuck(checker.model().orders, checker.model().bug));
                (property.to_owned(), format!("{:?}\n{:?}", path.into_actions(), why))
            })
            .collect();
        (unique, found)
    }

    /// No invariant is broken, and the space is as large as documented.
    pub fn holds(self) {
        let name = self.name;
        let (states, found) = self.search();
        for (property, path) in &found {
            println!("{name} breaks {property}: {path}");
        }
        assert!(found.is_empty(), "{name}");
        assert_eq!(documented().get(name), Some(&states), "docs/design/model.md: {name}");
    }

    /// The planted bug is seen.
    pub fn finds(mut self, bug: Bug) {
        self.bug = bug;
        let name = self.name;
        let (_, found) = self.search();
        for (property, path) in &found {
            let end = path.char_indices().nth(600).map_or(path.len(), |(at, _)| at);
            println!("{bug:?} is caught by {property}: {}", &path[..end]);
        }
        assert!(!found.is_empty(), "{name} does not see {bug:?}");
    }
}

/// The table of `docs/design/model.md`: each scenario's states.
fn documented() -> BTreeMap<&'static str, usize> {
    let rows = include_str!("../../docs/design/model.md").lines();
    rows.filter_map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let &["", name, _, states, ""] = &cells[..] else { return None };
        Some((name, states.replace(',', "").parse().ok()?))
    })
    .collect()
}

#[test]
fn the_documented_sum_of_all_spaces_is_that_of_the_table() {
    let table = documented();
    let (sum, largest) = (table.values().sum(), table.values().max().copied().unwrap_or_default());
    let sum = format!("{} spaces, {} states,", table.len(), with_commas(sum));
    let largest = format!("the largest {}.", with_commas(largest));
    let text = include_str!("../../docs/protocol.md").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&sum) && text.contains(&largest), "docs/protocol.md: {sum} {largest}");
}

fn with_commas(number: usize) -> String {
    if number < 1000 {
        return number.to_string();
    }
    format!("{},{:03}", with_commas(number / 1000), number % 1000)
}
