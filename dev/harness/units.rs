// SPDX-License-Identifier: Apache-2.0
//! What is seen of the BundleDeployments upstream: their state now, and every claim there ever was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flotilla::api::{BundleDeployment, Condition, keys};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::follow::Memory;

/// One claim, from the write that made it to the one that ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The BundleDeployment's name.
    pub unit: String,
    /// The BundleDeployment's uid.
    pub uid: String,
    /// The resourceVersion of the write that made it.
    pub epoch: String,
    /// Who holds it.
    pub holder: String,
    /// The holder's session.
    pub session: String,
    /// The claim's own word.
    pub nonce: String,
    /// Counts the tries.
    pub attempt: u32,
    /// Counts the tries whose holder vanished.
    pub lost: u32,
    /// The deployment id worked on, as the claim says it.
    pub deployment: String,
    /// Its time, as the claim says it; a wait has one of its own.
    pub budget: Duration,
    /// When it was seen first.
    pub seen: Instant,
    /// Since when its time runs: from the claim, or from its wait.
    pub since: Instant,
    /// When it went to wait.
    pub waiting: Option<Instant>,
    /// When its end was seen.
    pub ended: Option<Instant>,
    /// How it ended; `None` while it is open.
    pub end: Option<End>,
}

/// How a claim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The condition is gone and the status names the claimed deployment: finished.
    Finished,
    /// The condition is gone without that: given back.
    Released,
    /// The condition became `False` with this reason: an expiry, a quarantine or a back-off.
    Closed(String),
    /// Another claim stands in its place.
    Replaced {
        /// The nonce of the other claim.
        by: String,
        /// Whether that one belongs to another session: a takeover.
        takeover: bool,
    },
    /// The BundleDeployment was deleted.
    Deleted,
}

/// A change of a unit, for those who want each one.
#[derive(Clone, Debug)]
pub struct Change {
    /// Before; `None` when it is new.
    pub before: Option<Arc<BundleDeployment>>,
    /// After; `None` when it is gone.
    pub after: Option<Arc<BundleDeployment>>,
    /// When it was seen.
    pub at: Instant,
}

/// The units by name.
pub type Live = BTreeMap<String, Arc<BundleDeployment>>;

#[derive(Default)]
struct State {
    live: Live,
    claims: Vec<Claim>,
    listeners: Vec<mpsc::UnboundedSender<Change>>,
    // Names met since a relist began; whatever it did not name is gone.
    relisted: Option<BTreeSet<String>>,
}

/// The claims as another witness than a watch saw them, in order.
#[derive(Default)]
pub struct Ledger(State);

impl Ledger {
    /// A version of a unit.
    pub fn applied(&mut self, unit: BundleDeployment) {
        self.0.applied(unit);
    }

    /// A unit is gone.
    pub fn deleted(&mut self, name: &str) {
        self.0.deleted(name);
    }

    /// Every claim seen, oldest first.
    pub fn claims(&self) -> &[Claim] {
        &self.0.claims
    }

    /// The units as they are now.
    pub fn live(&self) -> &Live {
        &self.0.live
    }
}

/// The units of one cluster namespace, and all their claims.
pub struct Units(Memory<State>);

impl Units {
    /// Starts to watch, and waits for the first complete list.
    pub async fn follow(api: Api<BundleDeployment>) -> anyhow::Result<Units> {
        let events = watcher::watcher(api, watcher::Config::default());
        Memory::start(events, State::take).await.map(Units)
    }

    /// The units as they are now.
    pub fn live(&self) -> Live {
        self.0.look(|state| state.live.clone())
    }

    /// Every claim seen, oldest first.
    pub fn claims(&self) -> Vec<Claim> {
        self.0.look(|state| state.claims.clone())
    }

    /// Every change from now on, one by one.
    pub fn changes(&self) -> mpsc::UnboundedReceiver<Change> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.look(|state| state.listeners.push(sender));
        receiver
    }

    /// Waits until `probe` gives a value; it is asked at each change.
    pub async fn until<T>(
        &self,
        what: &str,
        bound: Duration,
        mut probe: impl FnMut(&Live) -> Option<T>,
    ) -> anyhow::Result<T> {
        let waited = self.0.until(what, bound, |state| probe(&state.live)).await;
        waited.with_context(|| self.describe())
    }

    /// Waits until a claim fulfils `probe`, and gives it.
    pub async fn until_claim(
        &self,
        what: &str,
        bound: Duration,
        mut probe: impl FnMut(&Claim) -> bool,
    ) -> anyhow::Result<Claim> {
        let found =
            self.0.until(what, bound, |state| state.claims.iter().find(|claim| probe(claim)).cloned());
        found.await.with_context(|| self.describe())
    }

    /// Waits until each of `names` is applied and ready, and nobody holds a claim on it.
    pub async fn until_ready<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        bound: Duration,
    ) -> anyhow::Result<()> {
        let names: Vec<&str> = names.into_iter().collect();
        self.until("the bundles to be ready", bound, |live| {
            let ready = |name: &&str| live.get(*name).is_some_and(|unit| is_ready(unit));
            names.iter().all(ready).then_some(())
        })
        .await
    }

    /// The units that are not ready, one a line: for an error text.
    pub fn describe(&self) -> String {
        let live = self.live();
        let unready: Vec<&Arc<BundleDeployment>> = live.values().filter(|unit| !is_ready(unit)).collect();
        let mut text = format!("{} of {} bundles are not ready", unready.len(), live.len());
        for unit in unready.iter().take(10) {
            text += &format!("\n  {}:", unit.name_any());
            let conditions = unit.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
            for Condition { type_, status, reason, message, .. } in conditions {
                text += &format!(" {type_}={status} {reason} {message:?}");
            }
        }
        text
    }
}

impl State {
    fn take(&mut self, event: Event<BundleDeployment>) {
        match event {
            Event::Init => self.relisted = Some(BTreeSet::new()),
            Event::InitApply(unit) => {
                if let Some(names) = &mut self.relisted {
                    names.insert(unit.name_any());
                }
                self.applied(unit);
            }
            Event::InitDone => {
                let names = self.relisted.take().unwrap_or_default();
                let gone: Vec<String> =
                    self.live.keys().filter(|name| !names.contains(*name)).cloned().collect();
                for name in gone {
                    self.deleted(&name);
                }
            }
            Event::Apply(unit) => self.applied(unit),
            Event::Delete(unit) => self.deleted(&unit.name_any()),
        }
    }

    fn applied(&mut self, unit: BundleDeployment) {
        let name = unit.name_any();
        let now = Instant::now();
        self.note_claim(&name, &unit, now);
        let unit = Arc::new(unit);
        let before = self.live.insert(name, unit.clone());
        self.tell(Change { before, after: Some(unit), at: now });
    }

    fn deleted(&mut self, name: &str) {
        if let Some(claim) = self.open_claim(name) {
            claim.ended = Some(Instant::now());
            claim.end = Some(End::Deleted);
        }
        let before = self.live.remove(name);
        self.tell(Change { before, after: None, at: Instant::now() });
    }

    fn note_claim(&mut self, name: &str, unit: &BundleDeployment, now: Instant) {
        let condition = unit.condition(keys::CLAIM_CONDITION);
        let fresh = condition.filter(|condition| condition.status == "True").map(|condition| {
            let word = |key| word(&condition.message, key).unwrap_or_default().to_owned();
            Claim {
                unit: name.into(),
                uid: unit.uid().unwrap_or_default(),
                epoch: unit.resource_version().unwrap_or_default(),
                holder: word("holder"),
                session: word("session"),
                nonce: word("nonce"),
                attempt: word("attempt").parse().unwrap_or_default(),
                lost: word("lost").parse().unwrap_or_default(),
                deployment: word("deployment"),
                budget: Duration::from_secs(word("budget").parse().unwrap_or_default()),
                seen: now,
                since: now,
                waiting: (condition.reason == "Waiting").then_some(now),
                ended: None,
                end: None,
            }
        });
        if let Some(open) = self.open_claim(name) {
            if fresh.as_ref().is_none_or(|fresh| fresh.nonce != open.nonce) {
                open.ended = Some(now);
            }
            match (&fresh, condition) {
                (Some(fresh), _) if fresh.nonce == open.nonce => {
                    if open.waiting.is_none() && fresh.waiting.is_some() {
                        (open.budget, open.since, open.waiting) = (fresh.budget, now, Some(now));
                    }
                    return;
                }
                (Some(fresh), _) => {
                    let takeover = fresh.session != open.session;
                    open.end = Some(End::Replaced { by: fresh.nonce.clone(), takeover });
                }
                (None, Some(condition)) => open.end = Some(End::Closed(condition.reason.clone())),
                (None, None) => {
                    let done = unit.status.as_ref().is_some_and(|status| {
                        !status.release.is_empty() && status.applied_deployment_id == unit.spec.deployment_id
                    });
                    open.end = Some(if done { End::Finished } else { End::Released });
                }
            }
        }
        self.claims.extend(fresh);
    }

    fn open_claim(&mut self, name: &str) -> Option<&mut Claim> {
        self.claims.iter_mut().rev().find(|claim| claim.unit == name).filter(|claim| claim.end.is_none())
    }

    fn tell(&mut self, change: Change) {
        self.listeners.retain(|listener| listener.send(change.clone()).is_ok());
    }
}

/// Applied and ready as Fleet's controller would judge it, with no claim of any kind left.
pub fn is_ready(unit: &BundleDeployment) -> bool {
    is_applied(unit) && unit.status.as_ref().is_some_and(|status| status.ready && status.non_modified)
}

/// The wanted deployment is applied, and no claim of any kind is left.
pub fn is_applied(unit: &BundleDeployment) -> bool {
    let applied = unit.status.as_ref().is_some_and(|status| {
        !status.release.is_empty() && status.applied_deployment_id == unit.spec.deployment_id
    });
    applied && unit.condition(keys::CLAIM_CONDITION).is_none()
}

/// The value of a `key=value` word of a claim's message.
pub fn word<'a>(message: &'a str, key: &str) -> Option<&'a str> {
    message.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}
