// SPDX-License-Identifier: Apache-2.0
//! What upstream shows, and what it means for units that depend on others.

use std::collections::HashSet;

use tracing::warn;

use super::{Entry, Replica};
use crate::{
    agent::{inbox::Name, mass},
    api::{self, BundleDeployment},
    protocol::{Gate, Input, Snapshot},
    upstream::{self, snapshot},
};

impl Replica {
    pub(super) fn on_event(&mut self, event: upstream::Event) {
        match event {
            upstream::Event::Seen(object) | upstream::Event::ListItem(object) => {
                let Some(name) = object.metadata.name.as_deref().map(Name::from) else { return };
                self.feed_object(&name, *object, Input::Seen);
            }
            upstream::Event::Deleted(object) => {
                let Some(name) = object.metadata.name.as_deref().map(Name::from) else { return };
                let uid = object.metadata.uid.as_deref().unwrap_or_default().into();
                self.dependents.remove(&name);
                self.feed(&name, Input::Deleted(uid));
                self.states_changed = true;
            }
            upstream::Event::Listed(all) => {
                self.ctx.health.set("watch", Ok(()));
                self.collector.listed(self.ctx.clock.now());
                let listed: HashSet<&str> = all.iter().map(|(_, name)| name.as_str()).collect();
                let known = self.units.iter().filter(|(_, entry)| entry.unit.latest.is_some());
                let (known, names) = (known.clone().count(), known.map(|(name, _)| name));
                let missing: Vec<Name> = names.filter(|name| !listed.contains(&***name)).cloned().collect();
                if mass::is_mass(missing.len(), known, listed.len()) {
                    mass::hold_units(&self.ctx, &missing, known);
                }
                for name in missing {
                    self.feed(&name, Input::Vanished);
                }
            }
            upstream::Event::Invalid { name, error, .. } => {
                warn!(unit = %name, cause = %error, "this BundleDeployment cannot be read; others go on");
            }
            upstream::Event::Failed(error) => {
                self.ctx.upstream.note_watch(&error);
                let cause = upstream::chain(&error);
                warn!(cause, "the watch of BundleDeployments failed and is opened anew");
                self.ctx.health.set("watch", Err(cause));
            }
        }
    }

    /// Feeds a sight of the object, in the form that `input` gives it, and returns what it was reduced to.
    pub(in crate::agent) fn feed_object(
        &mut self,
        name: &Name,
        mut object: BundleDeployment,
        input: fn(Snapshot) -> Input,
    ) -> Snapshot {
        // Of no use here, and much of its size: a replica keeps thousands of units.
        object.metadata.managed_fields = None;
        object.spec.staged_options = None;
        if !object.spec.depends_on.is_empty() {
            self.dependents.insert(name.clone());
        }
        let snapshot = snapshot(&object, self.is_blocked(&object));
        let scope = &self.ctx.scope;
        self.units.entry(name.clone()).or_insert_with(|| {
            let hash = api::names::object_hash(&api::names::set_id(name, scope));
            self.by_hash.insert(hash.into(), name.clone());
            Entry::default()
        });
        if let Some(entry) = self.units.get_mut(name)
            && let Some(known) = &entry.object
        {
            let (before, after) = (&known.metadata, &object.metadata);
            if before.labels != after.labels || before.annotations != after.annotations {
                entry.monitored.touched();
                // Others may select it now, or no longer.
                self.states_changed = true;
            }
        }
        self.step(name, input(snapshot.clone()), Some(object));
        snapshot
    }

    fn is_blocked(&self, object: &BundleDeployment) -> bool {
        !object.spec.depends_on.is_empty() && self.dependencies(object).is_err()
    }

    /// Whether the dependencies are in accepted states; else the text for the condition.
    pub(in crate::agent) fn dependencies(&self, object: &BundleDeployment) -> Result<(), String> {
        let all = self.units.values().filter_map(|entry| entry.object.as_deref());
        crate::agent::dependencies::check(object, all)
    }

    pub(super) fn look_at_dependents(&mut self) {
        for name in self.dependents.clone() {
            let Some(object) = self.units.get(&name).and_then(|entry| entry.object.clone()) else { continue };
            let gate = snapshot(&object, self.is_blocked(&object)).gate;
            let Some(entry) = self.units.get_mut(&name) else { continue };
            if entry.unit.latest.as_ref().is_some_and(|latest| latest.gate != gate) {
                self.feed(&name, Input::Gate(gate));
            } else if gate == Gate::Blocked {
                // Still blocked, but by others perhaps: the condition names them.
                entry.monitored.look_anew();
                self.monitor_if_due(&name);
            }
        }
    }

    /// Upstream was restored from a backup: no version known means anything any more.
    pub(in crate::agent) fn relist(&mut self) {
        for entry in self.units.values_mut() {
            entry.unit.forget_versions();
            if !entry.unit.is_busy() {
                entry.object = None;
            }
        }
        self.relist = true;
    }

    /// Forgets a unit that is no more.
    pub(in crate::agent) fn forget(&mut self, name: &Name) {
        if let Some(entry) = self.units.remove(name) {
            let hash = api::names::object_hash(&api::names::set_id(name, &self.ctx.scope));
            self.by_hash.remove(hash.as_str());
            self.ctx.live.ignore(&hash, &api::IgnoreOptions::default());
            self.census.moved(&self.ctx.metrics, &self.ctx.clock, entry.counted, None);
            if let Some(turn) = entry.queued {
                self.want_slot.remove(&turn);
            }
            debug_assert!(!entry.unit.holds_slot(), "a unit is forgotten while it holds a slot");
            self.alone.take_if(|alone| alone == name);
        }
        mass::settle_unit(&self.ctx, name);
        self.dependents.remove(name);
    }
}
