// SPDX-License-Identifier: Apache-2.0
//! Garbage collection: releases of this agent that no BundleDeployment stands for any more.
//!
//! A duty of one replica, by preference; done twice it is harmless, since each removal is guarded and looks at the
//! live BundleDeployment first. It finds what was deleted while no replica ran, and what a change of the release's
//! name or namespace left behind.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tracing::{debug, info, warn};

use super::{
    context::Context,
    inbox::{Message, Name, Outbox},
    mass, notes,
    removal::{self, Order, Why},
    surroundings,
};
use crate::{
    api::{BundleDeployment, ReleaseId, duration, keys, names},
    downstream::{
        release::{Record, Standing},
        session,
    },
    protocol::{SessionId, Time, Uid},
    registration,
    telemetry::events::{EventType, reason},
    upstream,
};

/// Where nothing is set: Fleet's.
const INTERVAL: Duration = Duration::from_secs(15 * 60);
/// No shorter interval than this, whatever is set.
const SHORTEST: Duration = Duration::from_secs(1);
/// Between the first full list and the first pass.
const FIRST: Duration = Duration::from_secs(5);

/// Stands for a unit where the replica with this duty is chosen.
pub(super) const DUTY: &str = "garbage-collection";

/// A place of a release: namespace and name.
type Place = (String, String);

/// What one replica remembers from pass to pass. A new collector begins anew, and so waits its own grace.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Since when a release has had no BundleDeployment.
    missing: HashMap<Place, Time>,
    /// Releases that are not this agent's, at the version at which that was seen.
    foreign: HashMap<Place, String>,
}

/// The collector's timetable.
#[derive(Debug, Default)]
pub(super) struct Collector {
    /// When the next pass is due; `None` before the first full list, and while one runs.
    pub next: Option<Time>,
    listed: bool,
    memory: Memory,
}

impl Collector {
    /// Units are known.
    pub fn listed(&mut self, now: Time) {
        if !std::mem::replace(&mut self.listed, true) {
            self.next = Some(now + surroundings::jittered(FIRST));
        }
    }

    /// A pass is due. `mine` tells whether it is this replica's; `expected` are the places of all units' releases, and
    /// `standing` the releases of those at rest.
    pub fn start(
        &mut self,
        ctx: &Arc<Context>,
        outbox: &Outbox,
        mine: bool,
        expected: HashSet<Place>,
        standing: Vec<(Name, ReleaseId)>,
    ) {
        if !mine {
            self.memory = Memory::default();
            self.next =
                Some(ctx.clock.now() + surroundings::jittered(INTERVAL.min(ctx.protocol.absence_grace)));
            return;
        }
        self.next = None;
        let (ctx, outbox, memory) = (ctx.clone(), outbox.clone(), std::mem::take(&mut self.memory));
        tokio::spawn(async move {
            let mut pass = Pass { ctx: &ctx, memory, expected: &expected, lost: standing };
            let soon = pass.run().await;
            let (memory, lost) = (pass.memory, pass.lost);
            let interval = surroundings::jittered(interval(&ctx).await);
            let again = soon.map_or(interval, |soon| soon.min(interval)).max(SHORTEST);
            outbox.send(Message::Collected { memory, again, lost }).await;
        });
    }

    /// A pass ended.
    pub fn ended(&mut self, memory: Memory, now: Time, again: Duration) {
        self.memory = memory;
        self.next = Some(now + again);
    }
}

/// The interval as the agent's settings have it now.
async fn interval(ctx: &Context) -> Duration {
    let client = ctx.downstream.server.client();
    let text = match registration::agent_config(client, &ctx.agent_namespace).await {
        Ok(config) => config.garbage_collection_interval,
        Err(error) => {
            debug!(cause = upstream::chain(&error), "cannot read the interval of garbage collection");
            return INTERVAL;
        }
    };
    match duration::parse(&text) {
        Ok(interval) if !interval.is_zero() => interval,
        Ok(_) => INTERVAL,
        Err(_) if text.is_empty() => INTERVAL,
        Err(error) => {
            warn!(cause = upstream::chain(&error), "garbageCollectionInterval is no duration: 15m is used");
            INTERVAL
        }
    }
}

/// What is known of one release.
#[derive(Debug)]
struct Found {
    place: Place,
    bundle: String,
    uid: Uid,
    guard: Option<(SessionId, String)>,
}

/// One pass.
struct Pass<'a> {
    ctx: &'a Arc<Context>,
    memory: Memory,
    expected: &'a HashSet<Place>,
    /// Of the releases that units stand on, those without a record; all of them until it is looked.
    lost: Vec<(Name, ReleaseId)>,
}

impl Pass<'_> {
    /// Looks at every release that no unit expects. Returns when to come back early.
    async fn run(&mut self) -> Option<Duration> {
        let ctx = self.ctx;
        let all = match ctx.downstream.store.releases().await {
            Ok(all) => all,
            Err(error) => {
                warn!(cause = upstream::chain(&error), "cannot look for releases that nobody needs");
                self.lost.clear();
                return None;
            }
        };
        let places: HashSet<Place> = all.iter().map(place).collect();
        keep_lost(&mut self.lost, &all);
        self.memory.foreign.retain(|place, _| places.contains(place));
        let (mut missing, mut moved, mut ours) = (Vec::new(), Vec::new(), 0);
        let mut seen = HashSet::new();
        for standing in &all {
            if self.expected.contains(&place(standing)) {
                ours += 1;
                continue;
            }
            let Some(found) = self.look(standing).await else { continue };
            ours += 1;
            match ctx.upstream.read(&found.bundle).await {
                Ok(None) => {
                    seen.insert(found.place.clone());
                    missing.push(found);
                }
                Ok(Some(live)) if moved_away(&live, &found) => moved.push((found, live)),
                Ok(Some(_)) => {}
                Err(error) => {
                    // Not missing, not there: nothing is known, so what was known before stands.
                    seen.insert(found.place.clone());
                    debug!(
                        unit = found.bundle,
                        cause = upstream::chain(&error),
                        "cannot look at a BundleDeployment"
                    );
                }
            }
        }
        self.memory.missing.retain(|place, _| seen.contains(place));
        for (found, live) in moved {
            let uid = live.metadata.uid.as_deref().unwrap_or_default().into();
            self.remove(&Found { uid, ..found }, Why::Moved).await;
        }
        self.orphans(missing, ours).await
    }

    /// Removes what has been missing for the grace period, at two looks at least.
    async fn orphans(&mut self, missing: Vec<Found>, ours: usize) -> Option<Duration> {
        let ctx = self.ctx;
        // Every unit expects a place, whether anything stands there or not.
        let mass = mass::is_mass(missing.len(), ours, self.expected.len());
        mass::hold_releases(ctx, if mass { missing.len() } else { 0 }, ours);
        let grace = if mass { ctx.mass_grace } else { ctx.protocol.absence_grace };
        let mut soon: Option<Duration> = None;
        for found in missing {
            let now = ctx.clock.now();
            let first = !self.memory.missing.contains_key(&found.place);
            let since = *self.memory.missing.entry(found.place.clone()).or_insert(now);
            let rest = grace.saturating_sub(now - since);
            if first {
                info!(unit = found.bundle, release = %text(&found.place), "a release has no BundleDeployment");
            }
            if first || !rest.is_zero() {
                soon = Some(soon.map_or(rest, |soon| soon.min(rest)));
            } else if self.remove(&found, Why::Orphaned).await {
                self.memory.missing.remove(&found.place);
            }
        }
        soon
    }

    /// One failure does not keep the others waiting.
    async fn remove(&self, found: &Found, why: Why) -> bool {
        let (ctx, name) = (self.ctx, found.bundle.as_str());
        let (namespace, release) = (&*found.place.0, &*found.place.1);
        let dead = match &found.guard {
            Some((session, version)) if guard_is_dead(ctx, session, version).await => Some(session.clone()),
            Some(_) => return false,
            None => None,
        };
        let (account, keeps) = ("", false);
        let order = Order { name, uid: &found.uid, before: None, namespace, release, why, account, keeps };
        match removal::carry_out(ctx, &order, dead).await {
            Ok(true) => {
                let note = match why {
                    Why::Moved => format!(
                        "bundle {name}: release {} removed, it is deployed elsewhere",
                        text(&found.place)
                    ),
                    Why::Deleted | Why::Orphaned => {
                        format!(
                            "bundle {name}: release {} removed, it has no BundleDeployment",
                            text(&found.place)
                        )
                    }
                };
                info!(unit = name, release = %text(&found.place), why = ?why, "release removed that nobody needs");
                notes::publish(ctx, None, EventType::Normal, reason::UNINSTALLED, note);
                true
            }
            Ok(false) => true,
            Err(error) => {
                warn!(
                    unit = name,
                    release = %text(&found.place),
                    cause = upstream::chain(&error),
                    "a release that nobody needs is not removed yet"
                );
                false
            }
        }
    }

    /// Reads a release's records; `None` when it is not this agent's.
    async fn look(&mut self, standing: &Standing) -> Option<Found> {
        let place = place(standing);
        if self.memory.foreign.get(&place) == Some(&standing.resource_version) {
            return None;
        }
        let history = match self.ctx.downstream.store.history(&place.0, &place.1).await {
            Ok(history) => history,
            Err(error) => {
                debug!(release = %text(&place), cause = upstream::chain(&error), "cannot read a release");
                return None;
            }
        };
        let found = ours(&history, &self.ctx.agent_namespace, &self.ctx.scope)
            .map(|(bundle, uid, guard)| Found { place: place.clone(), bundle, uid, guard });
        if found.is_none() {
            self.memory.foreign.insert(place, standing.resource_version.clone());
        }
        found
    }
}

/// Of these releases, those of which there is no record, or only older ones.
fn keep_lost(standing: &mut Vec<(Name, ReleaseId)>, all: &[Standing]) {
    let newest: HashMap<(&str, &str), u32> =
        all.iter().map(|found| ((&*found.namespace, &*found.name), found.revision)).collect();
    standing.retain(|(_, release)| {
        newest.get(&(&*release.namespace, &*release.name)).is_none_or(|newest| *newest < release.revision)
    });
}

type Owned = (String, Uid, Option<(SessionId, String)>);

/// Whose release this is, by what its chart says: bundle, uid if stamped, and who removes it already. `None` when it
/// is not this agent's.
fn ours(history: &[Record], agent_namespace: &str, scope: &str) -> Option<Owned> {
    let newest = history.iter().rev().find_map(|record| record.release.as_ref().ok())?;
    let bundle = newest.chart_annotation(keys::BUNDLE_ID)?;
    let agent = newest.chart_annotation(keys::AGENT_NAMESPACE)?;
    // Agents that share a namespace are told apart by the label of their objects.
    let hash = names::object_hash(&names::set_id(bundle, scope));
    let labelled = newest.manifest.contains(keys::HASH_LABEL);
    let scoped = if labelled { newest.manifest.contains(&hash) } else { scope.is_empty() };
    if agent != agent_namespace || !scoped || names::is_agent_bundle(bundle) {
        return None;
    }
    let stamp = history.iter().rev().find_map(Record::stamp);
    let guard =
        history.last().and_then(|record| Some((record.guard()?.session, record.resource_version().into())));
    Some((bundle.to_owned(), stamp.map(|stamp| stamp.uid).unwrap_or_default(), guard))
}

fn moved_away(live: &BundleDeployment, found: &Found) -> bool {
    removal::has_moved(&found.bundle, live, (&found.place.0, &found.place.1))
}

/// A removal whose replica is gone, or was not heard of for TTL, may be taken over.
async fn guard_is_dead(ctx: &Context, session: &SessionId, version: &str) -> bool {
    if *session == ctx.session_id {
        return true; // an earlier try of this very run
    }
    let client = ctx.downstream.server.client().clone();
    match session::read_session(client, &ctx.agent_namespace, session).await {
        Ok(None) => true,
        Ok(Some(lease)) => {
            ctx.stood_still(format!("{session}@{}/{version}", lease.version), ctx.protocol.ttl)
        }
        Err(_) => false,
    }
}

/// The places at which units want their releases.
pub(super) fn expected<'a>(units: impl Iterator<Item = (&'a Name, &'a BundleDeployment)>) -> HashSet<Place> {
    units.map(|(name, object)| removal::expected_place(name, object)).collect()
}

fn place(standing: &Standing) -> Place {
    (standing.namespace.clone(), standing.name.clone())
}

fn text((namespace, name): &Place) -> String {
    format!("{namespace}/{name}")
}

#[cfg(test)]
mod tests;
