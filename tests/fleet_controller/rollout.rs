// SPDX-License-Identifier: Apache-2.0
//! How Fleet's controller promotes what is staged: by partitions, and never more at once than may be unavailable.

use serde_json::Value;

use super::rules::{is_applied, text};

/// A limit as a rollout strategy gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many; below zero is none.
    Count(i64),
    /// Of all, rounded down, but one at least.
    Percent(usize),
}

impl Limit {
    /// How many of `all`.
    pub fn of(self, all: usize) -> usize {
        match self {
            Limit::Count(count) => usize::try_from(count).unwrap_or_default(),
            Limit::Percent(percent) => (all * percent / 100).max(1),
        }
    }
}

/// BundleDeployments that are rolled out together.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Which, by their place among all.
    pub members: Vec<usize>,
    /// How many of them may be unavailable.
    pub max_unavailable: Limit,
}

/// How a bundle is rolled out.
#[derive(Clone, Debug)]
pub struct Strategy {
    /// How many of all may be unavailable.
    pub max_unavailable: Limit,
    /// How many partitions may be unavailable before those after them wait.
    pub max_unavailable_partitions: Limit,
    /// In the order in which they are rolled out.
    pub partitions: Vec<Partition>,
}

/// Nobody is served by it: what it should run is not there, or is not ready.
pub fn is_unavailable(unit: &Value) -> bool {
    !is_applied(unit) || unit.pointer("/status/ready") != Some(&Value::Bool(true))
}

/// It runs what the bundle wants.
pub fn is_up_to_date(unit: &Value, wanted: &str) -> bool {
    let ids = ["/spec/stagedDeploymentID", "/spec/deploymentID", "/status/appliedDeploymentID"];
    ids.iter().all(|pointer| text(unit, pointer) == wanted)
}

fn may_be_promoted(unit: &Value) -> bool {
    let staged = text(unit, "/spec/stagedDeploymentID");
    unit["spec"]["paused"] != true && !staged.is_empty() && staged != text(unit, "/spec/deploymentID")
}

/// One reconcile: which are promoted now, in order. `wanted` is what the bundle wants of each.
pub fn promoted(units: &[Value], wanted: &[String], strategy: &Strategy) -> Vec<usize> {
    let unavailable = |members: &[usize]| members.iter().filter(|one| is_unavailable(&units[**one])).count();
    let all: Vec<usize> = (0..units.len()).collect();
    let (mut down, most) = (unavailable(&all), strategy.max_unavailable.of(units.len()));
    let most_partitions = strategy.max_unavailable_partitions.of(strategy.partitions.len());
    let (mut found, mut partitions_down) = (Vec::new(), 0);
    for Partition { members, max_unavailable } in &strategy.partitions {
        let (mut down_here, most_here) = (unavailable(members), max_unavailable.of(members.len()));
        for &one in members {
            let is_down = is_unavailable(&units[one]);
            if !may_be_promoted(&units[one]) || !is_down && (down >= most || down_here >= most_here) {
                continue;
            }
            found.push(one);
            if !is_down {
                (down, down_here) = (down + 1, down_here + 1);
            }
        }
        let behind = |one: &&usize| {
            is_unavailable(&units[**one])
                || found.contains(*one)
                || !is_up_to_date(&units[**one], &wanted[**one])
        };
        if members.iter().filter(behind).count() > most_here {
            partitions_down += 1;
        }
        if partitions_down > most_partitions {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rules::unit;

    fn at(current: &str, staged: &str, applied: &str, ready: bool) -> Value {
        unit(
            json!({"deploymentID": current, "stagedDeploymentID": staged}),
            json!({"appliedDeploymentID": applied, "ready": ready}),
        )
    }

    fn old() -> Value {
        at("1", "2", "1", true)
    }

    fn strategy(most: Limit, partitions: &[&[usize]]) -> Strategy {
        let partitions = partitions
            .iter()
            .map(|members| Partition { members: members.to_vec(), max_unavailable: Limit::Percent(100) });
        Strategy {
            max_unavailable: most,
            max_unavailable_partitions: Limit::Count(0),
            partitions: partitions.collect(),
        }
    }

    fn round(units: &[Value], strategy: &Strategy) -> Vec<usize> {
        promoted(units, &vec!["2".to_owned(); units.len()], strategy)
    }

    #[test]
    fn limits_round_down_and_a_percentage_is_one_at_least() {
        for (limit, all, expected) in [
            (Limit::Count(2), 9, 2),
            (Limit::Count(-1), 9, 0),
            (Limit::Percent(50), 9, 4),
            (Limit::Percent(1), 9, 1),
            (Limit::Percent(100), 9, 9),
        ] {
            assert_eq!(limit.of(all), expected);
        }
    }

    #[test]
    fn what_is_not_applied_or_not_ready_is_unavailable() {
        assert!(!is_unavailable(&old()) && !is_up_to_date(&old(), "2"));
        assert!(is_unavailable(&at("2", "2", "1", true)) && is_unavailable(&at("2", "2", "2", false)));
        assert!(is_up_to_date(&at("2", "2", "2", false), "2"));
    }

    #[test]
    fn no_more_are_promoted_than_may_be_unavailable() {
        let one = strategy(Limit::Count(1), &[&[0, 1, 2, 3]]);
        assert_eq!(round(&vec![old(); 4], &one), [0]);
        let under_way = [at("2", "2", "1", true), old(), old(), old()];
        assert!(round(&under_way, &one).is_empty());
        let done = [at("2", "2", "2", true), old(), old(), old()];
        assert_eq!(round(&done, &one), [1]);
        // What is down anyway costs nothing.
        let down = [at("2", "2", "1", true), old(), at("1", "2", "1", false), old()];
        assert_eq!(round(&down, &one), [2]);
        assert_eq!(round(&vec![old(); 4], &strategy(Limit::Percent(50), &[&[0, 1, 2, 3]])), [0, 1]);
        let mut paused = vec![old(); 4];
        paused[0]["spec"]["paused"] = true.into();
        assert_eq!(round(&paused, &one), [1]);
    }

    #[test]
    fn partitions_wait_for_those_before_them() {
        let all = Limit::Percent(100);
        let mut two = strategy(all, &[&[0, 1], &[2, 3]]);
        two.partitions[0].max_unavailable = Limit::Count(0);
        assert!(round(&vec![old(); 4], &two).is_empty(), "none may be down");
        two.partitions[0].max_unavailable = Limit::Count(1);
        let mut units = vec![old(); 4];
        assert_eq!(round(&units, &two), [0], "two are not up to date, one may be");
        units[0] = at("2", "2", "2", true);
        assert_eq!(round(&units, &two), [1, 2, 3], "one may be behind while those after it go on");
        two.max_unavailable_partitions = Limit::Count(1);
        assert_eq!(round(&vec![old(); 4], &two), [0, 2, 3]);
    }
}
