// SPDX-License-Identifier: Apache-2.0
//! Continuous duty: the status of a settled unit says what lives. One replica per unit has it, by preference.
//!
//! A unit is looked at when its objects change, when somebody rewrote its status, and when the duty comes to this
//! replica. Nothing is written when nothing changed for the reader, and at most once a second otherwise. Claim and finish
//! of a correction come besides: they do not wait, and drift is told before it is corrected, so that people see it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tracing::{info, warn};

use super::{
    correction::Corrections,
    inbox::{Message, Name},
    look::{Given, look, tell_blocked},
    notes, outage,
    plan::Plan,
    refusal,
    replica::Replica,
    setbacks::Setbacks,
};
use crate::{
    api::{BundleDeployment, ReleaseId},
    protocol::{Gate, Input, Time},
    telemetry::events::{EventType, reason},
    upstream,
};

/// Least time between two writes about one unit; changes in between are told together.
pub(super) const PACE: Duration = Duration::from_secs(1);
/// Longest wait before a look that failed is repeated.
pub(super) const AGAIN: Duration = Duration::from_secs(10);

/// What this replica remembers of its duty for one unit.
#[derive(Default)]
pub struct Monitored {
    /// What the release should hold; read again when the release changes.
    pub plan: Option<Arc<Plan>>,
    /// The state that was last looked at; another one calls for a new look.
    seen: Option<(u64, String, Gate)>,
    /// Objects changed since the last look.
    dirty: bool,
    /// The release record is to be read again.
    reread: bool,
    /// A look is under way.
    running: bool,
    /// Not before this time.
    not_before: Time,
    /// Time itself changes the judgement then.
    look_at: Option<Time>,
    /// What is to be put right is put right again not before this time.
    put_right_at: Time,
    /// Corrections that did not last.
    corrections: Corrections,
    /// Somebody contends, and people were told.
    contended: bool,
    /// That it cannot be seen was told, and it was not seen since.
    unseen: bool,
    /// Looks that failed in a row.
    setbacks: Setbacks,
}

impl Monitored {
    /// Whether a write may be under way.
    pub fn is_busy(&self) -> bool {
        self.running
    }

    /// A correction was done.
    pub fn corrected(&mut self, now: Time) {
        self.corrections.done(now);
    }

    /// There is a reason for a look that its own state does not show.
    pub fn look_anew(&mut self) {
        self.dirty = true;
    }

    /// A look was good.
    fn saw(&mut self, plan: Arc<Plan>) {
        self.plan = Some(plan);
        self.unseen = false;
        self.setbacks = Setbacks::default();
    }

    /// Somebody touched the unit: a look at everything, the release record included.
    pub fn touched(&mut self) {
        (self.dirty, self.reread) = (true, true);
    }
}

/// What a look found.
#[derive(Debug)]
pub enum Outcome {
    /// The status already says so.
    Same {
        /// The plan, for the next time.
        plan: Arc<Plan>,
        /// When the mere passing of time changes the judgement.
        changes_in: Option<Duration>,
        /// What there is to correct.
        drift: Option<Seen>,
    },
    /// The status was written.
    Written {
        /// The plan, for the next time.
        plan: Option<Arc<Plan>>,
        /// The object as it is now.
        object: Box<BundleDeployment>,
        /// When the mere passing of time changes the judgement.
        changes_in: Option<Duration>,
        /// What there is to correct.
        drift: Option<Seen>,
    },
    /// The release record is gone: deploy again.
    RecordGone,
    /// Something around the bundle is to be put right, under a claim. Not again before this time has passed.
    PutRight {
        /// What, for people.
        what: &'static str,
        /// How long it is left then.
        pace: Duration,
    },
    /// What lives could not be looked at, and will not be for a while.
    Unseen {
        /// The plan, for the next time.
        plan: Option<Arc<Plan>>,
        /// The object as it is now, if that was written.
        told: Option<Box<BundleDeployment>>,
    },
    /// The management cluster forgot what was deployed last: a new deployment will be refused, and that is told.
    HistoryLost,
    /// The look failed, which the status may or may not tell.
    Failed {
        /// The plan, for the next time.
        plan: Option<Arc<Plan>>,
        /// Why, for people.
        cause: String,
        /// The object as it is now, if that was written.
        told: Option<Box<BundleDeployment>>,
    },
    /// Somebody wrote meanwhile (`None`), or what was seen could not be written.
    Again(Option<String>),
}

/// Whether what was looked at differs from what was deployed.
#[derive(Debug)]
pub struct Seen {
    /// The deployment id it was compared with.
    pub deployment: String,
    /// There is something to correct.
    pub correctable: bool,
    /// Who contends, once people are to be told.
    pub contention: Option<String>,
}

impl Replica {
    /// Objects with these hash labels changed.
    pub(super) fn on_live_changes(&mut self, hashes: HashSet<Arc<str>>) {
        for hash in hashes {
            let Some(name) = self.by_hash.get(&hash).cloned() else { continue };
            if let Some(entry) = self.units.get_mut(&name) {
                entry.monitored.dirty = true;
                self.monitor_if_due(&name);
            }
        }
    }

    /// Starts a look at a unit if it is this replica's and there is a reason.
    pub(super) fn monitor_if_due(&mut self, name: &Name) {
        let rests = self.rests();
        let now = self.ctx.clock.now();
        let Some(entry) = self.units.get(name) else { return };
        let Some(latest) = &entry.unit.latest else { return };
        let gate = latest.gate.clone();
        let blocked = gate == Gate::Blocked && latest.outdated && !latest.slot.is_open();
        let refused = refusal::applies(name, latest);
        let release = !latest.release.is_empty() && entry.unit.is_settled();
        let mine = (blocked || refused || release)
            && !entry.unit.is_busy()
            && !rests
            && self.is_assigned(&entry.unit);
        let state = (latest.rest, latest.release.clone(), latest.gate.clone());
        let looked_at = latest.release.clone();
        let Some(entry) = self.units.get_mut(name) else { return };
        if !mine {
            entry.monitored.seen = None;
            entry.monitored.setbacks = Setbacks::default();
            return;
        }
        let due = entry.monitored.look_at.is_some_and(|time| time <= now);
        // Somebody touched a unit at rest: then the release record is looked for, too. A watch for that alone would hold
        // the metadata of all Secrets with records.
        let touched = entry.monitored.seen.as_ref().is_some_and(|seen| *seen != state);
        let changed = due || entry.monitored.dirty || entry.monitored.seen.as_ref() != Some(&state);
        if entry.monitored.running {
            return;
        }
        if !changed {
            if let Some(time) = entry.monitored.look_at {
                self.wake_at(name, time);
            }
            return;
        }
        if now < entry.monitored.not_before {
            let due = entry.monitored.not_before;
            return self.wake_at(name, due);
        }
        let Some(object) = entry.object.clone() else { return };
        entry.monitored.running = true;
        entry.monitored.dirty = false;
        entry.monitored.look_at = None;
        entry.monitored.seen = Some(state);
        if std::mem::take(&mut entry.monitored.reread) {
            entry.monitored.plan = None;
        }
        let plan = entry.monitored.plan.clone();
        let rest = entry.monitored.put_right_at.saturating_sub(now);
        let corrections = entry.monitored.corrections;
        let lasts = entry.monitored.setbacks.last(now);
        let contradicted = entry.monitored.unseen && !self.is_vouched_for(now)
            || self.outage.is_just_over(tokio::time::Instant::now());
        let outage = self.outage.cause();
        let waits_for = if gate == Gate::Blocked { self.dependencies(&object).err() } else { None };
        let (ctx, outbox, name) = (self.ctx.clone(), self.outbox.clone(), name.clone());
        tokio::spawn(async move {
            let outcome = match waits_for {
                _ if refused => refusal::tell(&ctx, &name, &object).await,
                Some(text) if blocked => tell_blocked(&ctx, &name, &object, text).await,
                None if blocked => Outcome::Again(None),
                waits_for => {
                    let given = Given { waits_for, rest, touched, corrections, outage, contradicted, lasts };
                    look(&ctx, &name, &object, plan, given).await
                }
            };
            outbox.send(Message::Monitored { name, release: looked_at, outcome }).await;
        });
    }

    /// Takes in what a look found when the status named `release`.
    pub(super) fn on_monitored(&mut self, name: &Name, release: String, outcome: Outcome) {
        let now = self.ctx.clock.now();
        let Some(entry) = self.units.get_mut(name) else { return };
        entry.monitored.running = false;
        match outcome {
            Outcome::Same { plan, changes_in, drift } => {
                entry.monitored.saw(plan);
                self.look_again_in(name, changes_in);
                self.on_drift(name, drift);
                self.monitor_if_due(name);
            }
            Outcome::Written { plan, object, changes_in, drift } => {
                if let Some(plan) = plan {
                    entry.monitored.saw(plan);
                }
                self.look_again_in(name, changes_in);
                self.on_written(name, *object);
                self.on_drift(name, drift);
            }
            Outcome::Unseen { plan, told } => {
                if plan.is_some() {
                    entry.monitored.plan = plan;
                }
                entry.monitored.unseen |= told.is_some();
                self.look_again_in(name, Some(outage::BLIND));
                match told {
                    Some(object) => self.on_written(name, *object),
                    None => self.monitor_if_due(name),
                }
            }
            Outcome::Failed { plan, cause, told } => {
                if plan.is_some() {
                    entry.monitored.plan = plan;
                }
                let wait = entry.monitored.setbacks.another(now);
                warn!(unit = %name, cause, "cannot look at what was deployed; it is tried again");
                match told {
                    Some(object) => {
                        self.look_again_in(name, Some(wait));
                        self.on_written(name, *object);
                    }
                    None => {
                        entry.monitored.dirty = true;
                        entry.monitored.not_before = now + wait;
                        self.monitor_if_due(name);
                    }
                }
            }
            Outcome::RecordGone => {
                warn!(unit = %name, "its release record is gone: deploying again");
                entry.monitored.plan = None;
                self.feed(name, Input::Redeploy { of: Some(release) });
            }
            Outcome::PutRight { what, pace } => {
                info!(unit = %name, "{what}: put right");
                entry.monitored.put_right_at = now + pace;
                self.feed(name, Input::Redeploy { of: Some(release) });
            }
            Outcome::HistoryLost => {
                warn!(unit = %name, "the management cluster does not know what was deployed last: trying to deploy what it wants");
                self.feed(name, Input::Redeploy { of: Some(release) });
            }
            Outcome::Again(cause) => {
                // Whoever wrote meanwhile, as a rule Fleet's controller, is done; a refusal is not over so soon.
                let wait = if cause.is_some() { AGAIN } else { PACE };
                if let Some(cause) = cause {
                    warn!(unit = %name, cause, "cannot write what was seen; it is tried again");
                }
                entry.monitored.dirty = true;
                entry.monitored.not_before = now + wait;
                self.monitor_if_due(name);
            }
        }
    }

    /// A look wrote the status.
    fn on_written(&mut self, name: &Name, object: BundleDeployment) {
        let now = self.ctx.clock.now();
        let Some(entry) = self.units.get_mut(name) else { return };
        entry.monitored.not_before = now + PACE;
        // What was just written needs no look of its own.
        let gate = entry.unit.latest.as_ref().map_or(Gate::Open, |latest| latest.gate.clone());
        let written = upstream::snapshot(&object, false);
        entry.monitored.seen = Some((written.rest, written.release, gate));
        self.feed_object(name, object, Input::Seen);
    }

    /// A look at all releases found none of this unit: what was so before it and is so now was so all the time.
    pub(super) fn on_lost_record(&mut self, name: &Name, release: &ReleaseId) {
        let Some(entry) = self.units.get(name) else { return };
        let stands = entry.unit.latest.as_ref().is_some_and(|latest| latest.release == release.to_string());
        if stands && entry.unit.is_settled() {
            warn!(unit = %name, release = %release, "its release record is gone: deploying again");
            self.feed(name, Input::Redeploy { of: Some(release.to_string()) });
        }
    }

    /// Tells the protocol what there is to correct, when its time has come.
    fn on_drift(&mut self, name: &Name, seen: Option<Seen>) {
        let now = self.ctx.clock.now();
        let (Some(seen), Some(entry)) = (seen, self.units.get_mut(name)) else { return };
        let known = entry.unit.drift.is_some();
        if !seen.correctable {
            if known {
                self.feed(name, Input::Drift { deployment: seen.deployment, seen: false });
            }
            return;
        }
        let corrects = entry.unit.latest.as_ref().is_some_and(|latest| latest.corrects);
        if known || !corrects {
            return;
        }
        let told = std::mem::replace(&mut entry.monitored.contended, seen.contention.is_some());
        if let Some(contention) = seen.contention.filter(|_| !told) {
            let note = format!("bundle {name}: {contention}");
            let object = entry.object.clone();
            notes::publish(&self.ctx, object.as_deref(), EventType::Warning, reason::DRIFT_CONTENDED, note);
        }
        let Some(entry) = self.units.get_mut(name) else { return };
        let due = entry.monitored.corrections.due(now);
        if due <= now {
            self.feed(name, Input::Drift { deployment: seen.deployment, seen: true });
        } else {
            self.look_again_in(name, Some(due - now));
            self.wake_at(name, due.max(now + PACE));
        }
    }

    fn look_again_in(&mut self, name: &Name, wait: Option<Duration>) {
        let (Some(wait), now) = (wait, self.ctx.clock.now()) else { return };
        if let Some(entry) = self.units.get_mut(name) {
            let time = now + wait.max(PACE);
            entry.monitored.look_at = Some(entry.monitored.look_at.map_or(time, |known| known.min(time)));
        }
    }
}
