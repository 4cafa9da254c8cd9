// SPDX-License-Identifier: Apache-2.0
//! Continuous duty: the status of a settled unit says what lives. One replica per unit has it, by preference.
//!
//! A unit is looked at when its objects change, when somebody rewrote its status, and when the duty comes to this
//! replica. Nothing is written when nothing changed for the reader, and at most once a second otherwise.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tracing::{debug, warn};

use super::{
    attempt::is_correctable,
    context::Context,
    correction::Corrections,
    drift, history,
    inbox::{Message, Name},
    notes,
    plan::{self, Plan, PlanError},
    refusal,
    replica::Replica,
};
use crate::{
    api::{self, BundleDeployment},
    monitor::Evaluation,
    monitor::conditions::{DEPLOYED, INSTALLED, MONITORED, READY},
    protocol::{Gate, Input, Time},
    telemetry::{
        events::{EventType, reason},
        metrics::UpstreamWrite,
    },
    upstream::{
        self, Answer,
        fields::{self, Fields},
    },
};

/// Least time between two writes about one unit; changes in between are told together.
const PACE: Duration = Duration::from_secs(1);
/// Wait before a look that failed is repeated.
const AGAIN: Duration = Duration::from_secs(10);

/// What this replica remembers of its duty for one unit.
#[derive(Default)]
pub struct Monitored {
    /// What the release should hold; read again when the release changes.
    pub plan: Option<Arc<Plan>>,
    /// The state that was last looked at; another one calls for a new look.
    seen: Option<(u64, String, Gate)>,
    /// Objects changed since the last look.
    dirty: bool,
    /// A look is under way.
    running: bool,
    /// Not before this time.
    not_before: Time,
    /// Time itself changes the judgement then.
    look_at: Option<Time>,
    /// Corrections that did not last.
    corrections: Corrections,
    /// Somebody contends, and people were told.
    contended: bool,
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
    /// The management cluster forgot what was deployed last: a new deployment will be refused, and that is told.
    HistoryLost,
    /// Somebody wrote meanwhile, or the look failed.
    Again(Option<String>),
}

/// Whether what was looked at differs from what was deployed.
#[derive(Debug)]
pub struct Seen {
    /// The deployment id it was compared with.
    deployment: String,
    /// There is something to correct.
    correctable: bool,
    /// An object is missing that another bundle gave up in favour of this one.
    given_up: bool,
    /// Who contends, once people are to be told.
    contention: Option<String>,
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
        let blocked = latest.gate == Gate::Blocked && latest.outdated && !latest.slot.is_open();
        let refused = refusal::applies(name, latest);
        let release = !latest.release.is_empty() && entry.unit.is_settled();
        let mine = (blocked || refused || release)
            && !entry.unit.is_busy()
            && !rests
            && self.is_assigned(&entry.unit);
        let state = (latest.rest, latest.release.clone(), latest.gate.clone());
        let Some(entry) = self.units.get_mut(name) else { return };
        if !mine {
            entry.monitored.seen = None;
            return;
        }
        let due = entry.monitored.look_at.is_some_and(|time| time <= now);
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
        let plan = entry.monitored.plan.clone();
        let corrections = entry.monitored.corrections;
        let waits_for = if blocked { self.dependencies(&object).err() } else { None };
        let (ctx, outbox, name) = (self.ctx.clone(), self.outbox.clone(), name.clone());
        tokio::spawn(async move {
            let outcome = match waits_for {
                _ if refused => refusal::tell(&ctx, &name, &object).await,
                Some(text) => tell_blocked(&ctx, &name, &object, text).await,
                None if blocked => Outcome::Again(None),
                None => look(&ctx, &name, &object, plan, corrections).await,
            };
            outbox.send(Message::Monitored { name, outcome }).await;
        });
    }

    /// Takes in what a look found.
    pub(super) fn on_monitored(&mut self, name: &Name, outcome: Outcome) {
        let now = self.ctx.clock.now();
        let Some(entry) = self.units.get_mut(name) else { return };
        entry.monitored.running = false;
        match outcome {
            Outcome::Same { plan, changes_in, drift } => {
                entry.monitored.plan = Some(plan);
                self.look_again_in(name, changes_in);
                self.on_drift(name, drift);
                self.monitor_if_due(name);
            }
            Outcome::Written { plan, object, changes_in, drift } => {
                if plan.is_some() {
                    entry.monitored.plan = plan;
                }
                entry.monitored.not_before = now + PACE;
                // What was just written needs no look of its own.
                let gate = entry.unit.latest.as_ref().map_or(Gate::Open, |latest| latest.gate.clone());
                let written = upstream::snapshot(&object, false);
                entry.monitored.seen = Some((written.rest, written.release, gate));
                self.look_again_in(name, changes_in);
                self.feed_object(name, *object, Input::Seen);
                self.on_drift(name, drift);
            }
            Outcome::RecordGone => {
                warn!(unit = %name, "its release record is gone: deploying again");
                entry.monitored.plan = None;
                self.feed(name, Input::Redeploy);
            }
            Outcome::HistoryLost => {
                warn!(unit = %name, "the management cluster does not know what was deployed last: trying to deploy what it wants");
                self.feed(name, Input::Redeploy);
            }
            Outcome::Again(cause) => {
                if let Some(cause) = cause {
                    warn!(unit = %name, cause, "cannot look at what was deployed; it is tried again");
                }
                entry.monitored.dirty = true;
                entry.monitored.not_before = now + AGAIN;
                self.monitor_if_due(name);
            }
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
        if seen.given_up && !corrects && entry.monitored.corrections.due(now) <= now {
            entry.monitored.corrected(now);
            return self.feed(name, Input::Redeploy);
        }
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

/// Compares what lives with what the status says, and writes the difference.
async fn look(
    ctx: &Arc<Context>,
    name: &Name,
    object: &Arc<BundleDeployment>,
    plan: Option<Arc<Plan>>,
    corrections: Corrections,
) -> Outcome {
    let Ok(_permit) = ctx.monitors.acquire().await else { return Outcome::Again(None) };
    let status = object.status.clone().unwrap_or_default();
    let plan = match plan.filter(|plan| plan.release.to_string() == status.release) {
        Some(plan) => plan,
        None => match plan::load(ctx, name, &status.release).await {
            Ok(plan) => Arc::new(plan),
            Err(PlanError::Gone { .. }) => return Outcome::RecordGone,
            Err(error) => return failed(ctx, name, object, upstream::chain(&error)).await,
        },
    };
    let changed = match compared(ctx, name, object, &plan).await {
        Ok(changed) => changed,
        Err(PlanError::Gone { .. }) => return Outcome::RecordGone,
        Err(error) => return failed(ctx, name, object, upstream::chain(&error)).await,
    };
    match plan::evaluate(ctx, name, object, &plan).await {
        Ok(_) if history::is_lost(ctx, object, &plan).await => Outcome::HistoryLost,
        Ok(evaluation) => {
            let changes_in =
                evaluation.changes_at.map(|moment| (moment - ctx.clock.wall()).to_std().unwrap_or_default());
            let changes_in = if changed { Some(PACE) } else { changes_in };
            let found = drift::found(ctx, &plan);
            let manager = found.as_ref().and_then(|(_, drift)| drift.manager.as_deref());
            let correctable = is_correctable(&evaluation);
            let drift = Some(Seen {
                deployment: object.spec.deployment_id.clone(),
                correctable,
                given_up: is_given_up(object, &evaluation),
                contention: corrections.contention(ctx.clock.now(), manager).filter(|_| correctable),
            });
            let fields = told(object, evaluation, drift.as_ref());
            match write(ctx, name, object, &fields).await {
                None => Outcome::Same { plan, changes_in, drift },
                Some(Ok(object)) => Outcome::Written { plan: Some(plan), object, changes_in, drift },
                Some(Err(cause)) => Outcome::Again(cause),
            }
        }
        Err(error) => failed(ctx, name, object, upstream::chain(&error)).await,
    }
}

/// Compares the objects that there is reason to compare.
async fn compared(
    ctx: &Context,
    name: &Name,
    object: &BundleDeployment,
    plan: &Plan,
) -> Result<bool, PlanError> {
    plan::watch(ctx, name, object, plan).await?;
    drift::look(ctx, name, object, plan).await
}

/// Whether an object is missing that Fleet's controller lists as given up by another bundle: its release took it along.
fn is_given_up(object: &BundleDeployment, evaluation: &Evaluation) -> bool {
    let options = object.options();
    evaluation.modified.iter().filter(|entry| entry.missing && !entry.exist).any(|entry| {
        let listed = |given: &api::OverwrittenResource| given.kind == entry.kind && given.name == entry.name;
        options.overwrites.iter().any(listed)
    })
}

/// What the status is to say. While a correction backs off, its error stays in `Ready` for as long as there is drift, and
/// so do the conditions that a failed deployment left.
fn told(object: &BundleDeployment, evaluation: Evaluation, drift: Option<&Seen>) -> Fields {
    let (changed, ready) = (is_correctable(&evaluation), evaluation.ready);
    let mut fields = plan::fields(evaluation, object);
    let resting = upstream::snapshot(object, false).slot.is_backing_off();
    if resting && changed && ready {
        fields.conditions.clear();
    } else if let Some(contention) = drift.and_then(|drift| drift.contention.as_deref())
        && let [(READY, Err(message))] = &mut fields.conditions[..]
    {
        *message += &format!("; {contention}");
    }
    if !resting {
        fields.conditions.insert(0, (DEPLOYED, Ok(())));
        fields.conditions.insert(0, (INSTALLED, Ok(())));
    }
    fields.conditions.push((MONITORED, Ok(())));
    fields
}

/// The cluster could not be looked at: `Monitored` says so, and what was known last stays.
async fn failed(ctx: &Arc<Context>, name: &Name, object: &Arc<BundleDeployment>, cause: String) -> Outcome {
    let fields = Fields { conditions: vec![(MONITORED, Err(cause.clone()))], ..Fields::default() };
    match write(ctx, name, object, &fields).await {
        Some(Ok(object)) => Outcome::Written { plan: None, object, changes_in: Some(AGAIN), drift: None },
        None | Some(Err(_)) => Outcome::Again(Some(cause)),
    }
}

/// Dependencies that are not ready are told without a claim: nothing is done that could be done twice.
async fn tell_blocked(
    ctx: &Arc<Context>,
    name: &Name,
    object: &Arc<BundleDeployment>,
    text: String,
) -> Outcome {
    let fields = Fields { conditions: vec![(DEPLOYED, Err(text))], ..Fields::default() };
    match write(ctx, name, object, &fields).await {
        Some(Ok(object)) => Outcome::Written { plan: None, object, changes_in: None, drift: None },
        Some(Err(cause)) => Outcome::Again(cause),
        None => {
            let plan = Arc::new(Plan::empty(api::ReleaseId::default()));
            Outcome::Same { plan, changes_in: None, drift: None }
        }
    }
}

/// Writes what differs, under the version that was judged (S4). `None`: nothing does.
pub(super) async fn write(
    ctx: &Context,
    name: &Name,
    object: &Arc<BundleDeployment>,
    fields: &Fields,
) -> Option<Result<Box<BundleDeployment>, Option<String>>> {
    let before = object.status.clone().unwrap_or_default();
    let mut after = fields.merged_into(&before, &ctx.clock.stamp());
    let version = object.metadata.resource_version.clone().unwrap_or_default();
    for cut in [false, true] {
        if cut {
            fields::cut(&mut after);
        }
        let patch = fields::patch(object, &version, &before, &after)?;
        ctx.metrics.upstream_write(UpstreamWrite::Monitor);
        match ctx.upstream.patch_status(name, &patch).await {
            Answer::Written(object) => {
                if let Some((_, Err(message))) = fields.conditions.iter().find(|(type_, _)| *type_ == READY) {
                    debug!(unit = %name, cause = message, "not ready");
                }
                return Some(Ok(object));
            }
            Answer::Conflict | Answer::Absent => return Some(Err(None)),
            Answer::TooLarge if !cut => {}
            Answer::TooLarge => return Some(Err(Some("the status is too large".into()))),
            Answer::Unclear(cause) | Answer::Denied(cause) => return Some(Err(Some(cause))),
        }
    }
    None
}
