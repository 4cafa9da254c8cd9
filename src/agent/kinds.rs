// SPDX-License-Identifier: Apache-2.0
//! Which kinds are watched: those that the units' plans name, and for a while what was used by others.

use std::collections::HashSet;

use tracing::info;

use super::{inbox::Name, plan::Plan, replica::Replica};
use crate::downstream::live::{LiveStore, WatchedKind};

impl Replica {
    /// These kinds can be watched no longer, or can again. Units are found by their plans: the objects of a kind go
    /// before the kind itself does, so that none is left to tell whose it was.
    pub(super) fn on_kinds(&mut self, kinds: &HashSet<WatchedKind>) {
        let named = self.units.iter().filter(|(_, entry)| {
            entry.monitored.plan.as_ref().is_some_and(|plan| desired(plan).any(|kind| kinds.contains(&kind)))
        });
        let names: Vec<Name> = named.map(|(name, _)| name.clone()).collect();
        for name in names {
            if let Some(entry) = self.units.get_mut(&name) {
                entry.monitored.look_anew();
            }
            self.monitor_if_due(&name);
        }
    }

    /// Ends the watches of kinds that no plan in force names any more.
    pub(super) fn forget_kinds(&self) {
        let plans = self.units.values().filter_map(|entry| {
            let (plan, latest) = (entry.monitored.plan.as_deref()?, entry.unit.latest.as_ref()?);
            (plan.release.to_string() == latest.release).then_some(plan)
        });
        let used = plans.flat_map(|plan| used(plan, &self.ctx.live)).collect();
        for kind in self.ctx.live.forget_unused(&used) {
            info!(object = %kind, "kind no longer watched: no bundle here has any of it");
        }
    }
}

fn desired(plan: &Plan) -> impl Iterator<Item = WatchedKind> {
    plan.desired.iter().map(WatchedKind::of)
}

/// With the kinds of what an earlier revision left behind, which is told as long as it is there.
fn used(plan: &Plan, live: &LiveStore) -> impl Iterator<Item = WatchedKind> {
    let left = plan.previous.iter().filter(|key| live.get(key).is_some());
    desired(plan).chain(left.map(WatchedKind::of))
}
