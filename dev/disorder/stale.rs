// SPDX-License-Identifier: Apache-2.0
//! Judges every version of an object, and every deletion, by the claims that had shown themselves in the same store.
//!
//! Two stores have no common clock. But a claim shows itself downstream before it deletes anything: its revision is opened
//! first, and a removal puts its guard on the record first. So what a deletion may be the work of is told by the order of
//! one store alone, to the version.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flotilla::protocol::{Epoch, Stamp};
use tokio::time::Instant;

use super::load::{COPY, Story, Wanted};
use super::witness::{Evidence, Mark, Sight, State};
use crate::harness::units::Claim;

/// A store that stands still tells its versions late: the longest freeze of an etcd is 5 s, and as much for a busy machine.
const LATE: Duration = Duration::from_secs(10);

/// What the history of the objects shows.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Writes of an older claim over a newer one, contents that are not the claim's, and deletions of what every claim
    /// that may have made them wants.
    pub stale: Vec<String>,
    /// Objects that an older claim created after a newer one had removed them.
    pub late_creates: Vec<String>,
    /// Objects created when the removal of their bundle had begun.
    pub after_end: Vec<String>,
}

/// S1 and S7, version by version.
pub fn judge(evidence: &Evidence, story: &Story) -> Found {
    let mut shown = Shown::new(evidence, story);
    let mut found = Found::default();
    let mut marks = evidence.marks.iter().peekable();
    for sight in &evidence.sights {
        while let Some(mark) = marks.next_if(|mark| mark.revision < sight.revision) {
            shown.take_mark(mark);
        }
        match &sight.state {
            Some(state) => shown.take_version(sight, state, &mut found),
            None => shown.take_deletion(sight, &mut found.stale),
        }
    }
    found
}

/// What has shown itself downstream so far.
struct Shown<'a> {
    evidence: &'a Evidence,
    story: &'a Story,
    claims: BTreeMap<(&'a str, &'a str), &'a Claim>,
    hooks: BTreeSet<&'a str>,
    /// Epochs by uid of the BundleDeployment.
    epochs: BTreeMap<&'a str, BTreeSet<&'a Epoch>>,
    /// The newest epoch by uid whose revision was deployed: every object that it wants carries it, or a newer one.
    deployed: BTreeMap<&'a str, &'a Epoch>,
    /// The newest claim by the BundleDeployment's name.
    newest: BTreeMap<&'a str, (&'a Epoch, &'a str)>,
    /// Uids whose release was guarded for removal, and when that was seen.
    guarded: BTreeMap<&'a str, Instant>,
    /// The highest epoch by key and uid of the BundleDeployment, and the object that carried it.
    highest: BTreeMap<(&'a str, &'a str), (&'a Epoch, &'a str)>,
    /// Objects as they stand.
    objects: BTreeMap<&'a str, &'a State>,
}

impl<'a> Shown<'a> {
    fn new(evidence: &'a Evidence, story: &'a Story) -> Shown<'a> {
        let claims = evidence.units.claims().iter();
        let wanted = story.deployments.values();
        Shown {
            evidence,
            story,
            claims: claims.map(|claim| ((claim.uid.as_str(), claim.epoch.as_str()), claim)).collect(),
            hooks: wanted.flat_map(|wanted| wanted.hooks.keys().map(String::as_str)).collect(),
            epochs: BTreeMap::new(),
            deployed: BTreeMap::new(),
            newest: BTreeMap::new(),
            guarded: BTreeMap::new(),
            highest: BTreeMap::new(),
            objects: BTreeMap::new(),
        }
    }

    fn take_mark(&mut self, mark: &'a Mark) {
        self.take_stamp(&mark.stamp);
        let uid = mark.stamp.uid.0.as_str();
        match mark.status.as_str() {
            "deployed" => {
                let newest = self.deployed.entry(uid).or_insert(&mark.stamp.epoch);
                *newest = (*newest).max(&mark.stamp.epoch);
            }
            "uninstalling" => drop(self.guarded.entry(uid).or_insert(mark.at)),
            _ => {}
        }
    }

    fn take_stamp(&mut self, stamp: &'a Stamp) {
        let Stamp { uid, epoch } = stamp;
        self.epochs.entry(&uid.0).or_default().insert(epoch);
        if let Some(name) = self.evidence.names.get(&uid.0) {
            let newest = self.newest.entry(name).or_insert((epoch, &uid.0));
            *newest = (*newest).max((epoch, &uid.0));
        }
    }

    fn take_version(&mut self, sight: &'a Sight, state: &'a State, found: &mut Found) {
        let Sight { key, revision, .. } = sight;
        let is_new = self.objects.insert(key, state).is_none();
        let Some(stamp @ Stamp { uid, epoch }) = &state.stamp else {
            found.stale.push(format!("{key} at {revision} has no stamp"));
            return;
        };
        if is_new && !self.hooks.contains(key.as_str()) && self.is_ended(stamp, sight.at) {
            let text = format!("{key} at {revision}, under epoch {epoch} of {uid}, which was being removed");
            found.after_end.push(text);
        }
        self.take_stamp(stamp);
        if let Some((before, object)) = self.highest.get(&(key.as_str(), uid.0.as_str()))
            && *before > epoch
        {
            let text =
                format!("{key} at {revision}: epoch {epoch} (version {}) after {before}", state.version);
            // The very object that was written under the newer claim: that no precondition may let pass.
            if *object == state.uid { found.stale.push(text) } else { found.late_creates.push(text) }
        }
        let top = self.highest.entry((key, &uid.0)).or_insert((epoch, &state.uid));
        if epoch >= top.0 {
            *top = (epoch, &state.uid);
        }
        let Some(claim) = self.claims.get(&(uid.0.as_str(), epoch.0.as_str())) else {
            found.stale.push(format!("{key} at {revision} was written under no claim: {epoch}"));
            return;
        };
        let wanted = self.wanted(claim);
        let version = wanted.and_then(|wanted| wanted.objects.get(key).or_else(|| wanted.hooks.get(key)));
        if version != Some(&state.version) {
            found.stale.push(format!(
                "{key} at {revision} has version {}, and {epoch} was for version {version:?}",
                state.version
            ));
        }
    }

    /// Only a claim at least as new as the stamp may delete, and only what it does not want. One that an already deployed
    /// one came after is out: that one's stamp is on all it wants, so nothing that names a version from before gets through.
    fn take_deletion(&mut self, sight: &'a Sight, stale: &mut Vec<String>) {
        let Sight { key, revision, .. } = sight;
        let Some(state) = self.objects.remove(key.as_str()) else { return };
        let Some(stamp @ Stamp { uid, epoch }) = &state.stamp else { return };
        // A hook goes by its own policy.
        if self.hooks.contains(key.as_str()) || self.may_go(key, stamp) {
            return;
        }
        let floor = self.deployed.get(uid.0.as_str()).map_or(epoch, |deployed| epoch.max(deployed));
        let able = self.epochs.get(uid.0.as_str()).into_iter().flatten().filter(|shown| **shown >= floor);
        let able: Vec<&Claim> =
            able.filter_map(|shown| self.claims.get(&(uid.0.as_str(), shown.0.as_str())).copied()).collect();
        let wants = |claim: &&Claim| self.wanted(claim).is_none_or(|wanted| wanted.objects.contains_key(key));
        if able.iter().all(wants) {
            let able: Vec<String> =
                able.iter().map(|claim| format!("{} on {}", claim.epoch, claim.deployment)).collect();
            stale.push(format!(
                "{key} at {revision} was deleted, of epoch {epoch} of {uid}, and who may have done it wants it: {}",
                able.join(", ")
            ));
        }
    }

    fn wanted(&self, claim: &Claim) -> Option<&'a Wanted> {
        self.story.deployments.get(&claim.deployment)
    }

    /// Whether the removal of this bundle had shown itself: a guard on its record, or a claim of its successor.
    fn has_shown_its_end(&self, stamp: &Stamp) -> bool {
        let Stamp { uid, epoch } = stamp;
        let name = self.evidence.names.get(&uid.0);
        let newest = name.and_then(|name| self.newest.get(name.as_str()));
        let replaced = newest.is_some_and(|(newest, by)| *by != uid.0 && *newest > epoch);
        self.guarded.contains_key(uid.0.as_str()) || replaced
    }

    /// The same, or it was gone upstream for so long that both stores must have told.
    fn is_ended(&self, stamp: &Stamp, at: Instant) -> bool {
        let gone = self.evidence.gone.get(&stamp.uid.0);
        self.has_shown_its_end(stamp) || gone.is_some_and(|gone| *gone + LATE < at)
    }

    /// Whether a removal accounts for a deletion: one that has shown itself, of a bundle that was deleted, before it began.
    fn may_go(&self, key: &str, stamp: &Stamp) -> bool {
        let uid = stamp.uid.0.as_str();
        let Some(gone) = self.evidence.gone.get(uid) else { return false };
        let in_order = self.guarded.get(uid).is_none_or(|guarded| *gone <= *guarded + LATE);
        // What is copied comes before the first revision: without one, nothing of the removal is seen.
        let unseen = key.ends_with(COPY);
        in_order && (unseen || self.has_shown_its_end(stamp))
    }
}
