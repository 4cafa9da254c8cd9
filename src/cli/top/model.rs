// SPDX-License-Identifier: Apache-2.0
//! What `flotilla top` knows: bundles and sessions as watches tell them. Pure; time comes with each call.

use std::collections::{BTreeMap, VecDeque};

use chrono::{DateTime, TimeDelta, Utc};
use kube::ResourceExt;

use crate::{
    agent::dependencies,
    api::{BundleDeployment, keys, state, state::State},
    cli::{
        age,
        claim_edit::slot,
        explain::{
            explain,
            facts::{Facts, Phase},
        },
    },
    downstream::session::{SessionView, ViewEvent},
    protocol::ClaimState,
    upstream,
};

/// Span over which bundles per second are counted.
const RATE: TimeDelta = TimeDelta::seconds(10);
/// Takeovers that are remembered; all are counted.
const TAKEOVERS: usize = 50;

/// What lists are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The longest first.
    #[default]
    Age,
    /// The most attempts first.
    Attempt,
    /// By name.
    Name,
}

impl Sort {
    /// The next one.
    pub fn next(self) -> Self {
        match self {
            Self::Age => Self::Attempt,
            Self::Attempt => Self::Name,
            Self::Name => Self::Age,
        }
    }

    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Attempt => "attempt",
            Self::Name => "name",
        }
    }

    fn order(self, lines: &mut [Line]) {
        match self {
            Self::Age => lines.sort_by(|a, b| (b.seconds, &a.name).cmp(&(a.seconds, &b.name))),
            Self::Attempt => lines.sort_by(|a, b| (b.attempt, &a.name).cmp(&(a.attempt, &b.name))),
            Self::Name => lines.sort_by(|a, b| a.name.cmp(&b.name)),
        }
    }
}

/// What is known of the sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Below {
    /// Nobody asked: there is no kubeconfig for that cluster.
    #[default]
    NotAsked,
    /// Not yet answered.
    Asked,
    /// Seen.
    Seen,
    /// Refused, or not reached.
    Failed(String),
}

/// A bundle in a lane or in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The bundle.
    pub name: String,
    /// The attempt; 0 where there was none.
    pub attempt: u32,
    /// Seconds since the claim, or the state, was written.
    pub seconds: i64,
    /// Waiting for readiness, or the reason it is in the queue.
    pub why: String,
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Its name.
    pub holder: String,
    /// Free slots, version and seconds of silence; `None`: no Lease is seen.
    pub seen: Option<(usize, String, i64)>,
    /// It renewed within its TTL.
    pub live: bool,
    /// What it works on.
    pub claims: Vec<Line>,
}

/// A claim that went from one session to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// When it was seen.
    pub at: DateTime<Utc>,
    /// The bundle.
    pub name: String,
    /// From this replica.
    pub from: String,
    /// To this one.
    pub to: String,
}

/// Everything that is shown.
#[derive(Debug, Default)]
pub struct Model {
    bundles: BTreeMap<(String, String), BundleDeployment>,
    sessions: BTreeMap<String, SessionView>,
    /// What is known of the sessions.
    pub below: Below,
    /// The first list is complete.
    pub listed: bool,
    /// Why the bundles are not seen, now.
    pub failed: Option<String>,
    takeovers: VecDeque<Takeover>,
    /// Takeovers seen so far.
    pub taken_over: u64,
    deployed: VecDeque<DateTime<Utc>>,
}

impl Model {
    /// Nothing is known yet.
    pub fn new(below: Below) -> Self {
        Self { below, ..Self::default() }
    }

    /// Takes in an event of the management cluster.
    pub fn bundle(&mut self, event: upstream::Event, now: DateTime<Utc>) {
        match event {
            upstream::Event::Seen(bd) | upstream::Event::ListItem(bd) => self.see(*bd, now),
            upstream::Event::Deleted(bd) => {
                self.bundles.remove(&key(&bd));
            }
            upstream::Event::Listed(all) => {
                self.bundles.retain(|key, _| all.contains(key));
                (self.listed, self.failed) = (true, None);
            }
            upstream::Event::Invalid { .. } => {}
            upstream::Event::Failed(error) => self.failed = Some(crate::telemetry::chain(&error)),
        }
    }

    /// Takes in an event of the sessions.
    pub fn session(&mut self, event: ViewEvent) {
        match event {
            ViewEvent::Seen(view) => {
                self.sessions.insert(view.session.session.0.clone(), *view);
            }
            ViewEvent::Gone(session) => {
                self.sessions.remove(&session.0);
            }
            ViewEvent::Listed(views) => {
                let all = views.into_iter().map(|view| (view.session.session.0.clone(), view));
                self.sessions = all.collect();
                self.below = Below::Seen;
            }
            ViewEvent::Failed(text) => self.below = Below::Failed(text),
        }
    }

    fn see(&mut self, mut bd: BundleDeployment, now: DateTime<Utc>) {
        // What is not shown is not kept: there may be thousands.
        bd.metadata.managed_fields = None;
        bd.spec.options = None;
        bd.spec.staged_options = None;
        if let Some(status) = &mut bd.status {
            status.resources.clear();
        }
        let before = self.bundles.get(&key(&bd));
        if let Some(before) = before {
            if is_deployed(&bd) && (!is_deployed(before) || release(before) != release(&bd)) {
                self.deployed.push_back(now);
            }
            if let (Some(old), Some(new)) = (slot(before).claim(), slot(&bd).claim())
                && old.state.is_open()
                && new.state.is_open()
                && old.session != new.session
            {
                self.taken_over += 1;
                self.takeovers.push_front(Takeover {
                    at: now,
                    name: bd.name_any(),
                    from: old.holder.0.clone(),
                    to: new.holder.0.clone(),
                });
                self.takeovers.truncate(TAKEOVERS);
            }
        }
        while self.deployed.front().is_some_and(|at| now - *at > RATE) {
            self.deployed.pop_front();
        }
        self.bundles.insert(key(&bd), bd);
    }

    /// Deployments that ended well in the last ten seconds, a second.
    pub fn rate(&self, now: DateTime<Utc>) -> f64 {
        let recent = self.deployed.iter().filter(|at| now - **at <= RATE).count();
        recent as f64 / RATE.num_seconds() as f64
    }

    /// How many bundles there are.
    pub fn len(&self) -> usize {
        self.bundles.len()
    }

    /// How many are in each state, the best first; states that none is in are left out.
    pub fn states(&self) -> Vec<(State, usize)> {
        let count = |wanted| self.bundles.values().filter(|bd| state::state(bd) == wanted).count();
        State::ALL.into_iter().map(|state| (state, count(state))).filter(|(_, count)| *count > 0).collect()
    }

    /// Takeovers, the newest first.
    pub fn takeovers(&self) -> impl Iterator<Item = &Takeover> {
        self.takeovers.iter()
    }

    /// Replicas, by name, each with its claims.
    pub fn lanes(&self, sort: Sort, now: DateTime<Utc>) -> Vec<Lane> {
        let mut lanes: BTreeMap<(String, String), Lane> = BTreeMap::new();
        for (id, view) in &self.sessions {
            let silent = view.renewed.map_or(i64::MAX, |at| (now.timestamp() - at.as_second()).max(0));
            let holder = view.session.holder.0.clone();
            let lane = Lane {
                holder: holder.clone(),
                seen: Some((view.session.free_slots, view.version.clone(), silent)),
                live: silent <= i64::from(view.ttl),
                claims: Vec::new(),
            };
            lanes.insert((holder, id.clone()), lane);
        }
        for bd in self.bundles.values() {
            let slot = slot(bd);
            let Some(claim) = slot.claim().filter(|claim| claim.state.is_open()) else { continue };
            let key = (claim.holder.0.clone(), claim.session.0.clone());
            let lane = lanes.entry(key).or_insert_with(|| Lane {
                holder: claim.holder.0.clone(),
                seen: None,
                live: false,
                claims: Vec::new(),
            });
            let waits = if claim.state == ClaimState::Waiting { "waiting" } else { "" };
            lane.claims.push(line(bd, claim.attempt, waits.to_owned(), now));
        }
        let mut lanes: Vec<Lane> = lanes.into_values().collect();
        for lane in &mut lanes {
            sort.order(&mut lane.claims);
        }
        lanes
    }

    /// Bundles that are not deployed as they should be and that nobody works on, each with its reason.
    pub fn queue(&self, sort: Sort, now: DateTime<Utc>) -> Vec<Line> {
        let mut queue = Vec::new();
        for bd in self.bundles.values() {
            let slot = slot(bd);
            if slot.claim().is_some_and(|claim| claim.state.is_open()) {
                continue;
            }
            let dependencies = match bd.spec.depends_on.is_empty() {
                true => Ok(()),
                false => dependencies::check(bd, self.bundles.values()),
            };
            let said = explain(&Facts { bd, dependencies: dependencies.clone(), below: None, now });
            let first = || said.waits_for.first().cloned().unwrap_or_default();
            let error = || said.last_error.clone().unwrap_or_default();
            let why = match said.phase {
                Phase::Ready | Phase::NotReady | Phase::Drifted | Phase::OutOfSync | Phase::Unseen => {
                    continue;
                }
                Phase::Held if is_deployed(bd) => continue,
                Phase::Held => format!("held, waits for {}", first()),
                Phase::Blocked => dependencies.err().unwrap_or_default(),
                Phase::Unclaimed | Phase::NoReplica => "next free replica".to_owned(),
                Phase::BackingOff => format!("{} {}", said.next, error()),
                Phase::Quarantined => "quarantined".to_owned(),
                Phase::Expired => "expired: next free replica".to_owned(),
                Phase::Failed => format!("failed: {}", error()),
                Phase::WentBack => "restored upstream: flotilla reset".to_owned(),
                Phase::Unreadable => "a claim that cannot be read".to_owned(),
                Phase::Refused => "carries Fleet's own agent".to_owned(),
                Phase::Deleting => "being deleted".to_owned(),
                Phase::Claimed | Phase::Waiting => continue,
            };
            let attempt = slot.claim().map_or(0, |claim| claim.attempt);
            queue.push(line(bd, attempt, why, now));
        }
        sort.order(&mut queue);
        queue
    }
}

fn line(bd: &BundleDeployment, attempt: u32, why: String, now: DateTime<Utc>) -> Line {
    let claimed = bd.condition(keys::CLAIM_CONDITION).map(|condition| &*condition.last_transition_time);
    let since = claimed.and_then(|text| text.parse::<DateTime<Utc>>().ok()).map(|time| time.timestamp());
    let created = || bd.creation_timestamp().map(|time| time.0.as_second());
    let seconds = since.or_else(created).map_or(0, |since| (now.timestamp() - since).max(0));
    Line { name: bd.name_any(), attempt, seconds, why }
}

impl Line {
    /// `web #2 12s`, as it stands in a lane.
    pub fn claim(&self) -> String {
        let waits = if self.why.is_empty() { String::new() } else { format!(" {}", self.why) };
        format!("{} #{} {}{waits}", self.name, self.attempt, age::text(self.seconds))
    }
}

fn key(bd: &BundleDeployment) -> (String, String) {
    (bd.namespace().unwrap_or_default(), bd.name_any())
}

fn release(bd: &BundleDeployment) -> &str {
    bd.status.as_ref().map_or("", |status| &status.release)
}

fn is_deployed(bd: &BundleDeployment) -> bool {
    let applied = bd.status.as_ref().map_or("", |status| &status.applied_deployment_id);
    applied == bd.spec.deployment_id && !release(bd).is_empty()
}
