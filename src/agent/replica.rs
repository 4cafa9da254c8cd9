// SPDX-License-Identifier: Apache-2.0
//! The replica: one loop that owns every unit, feeds the protocol and executes what it decides.
//!
//! The loop itself never waits for an API server: each effect is a task that answers with a message.

mod peers;
mod sights;
mod turns;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
};

use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::turns::{Queue, Turn};

use super::{
    attempt::Ended,
    census::{self, Census},
    checkin,
    collect::{self, Collector},
    context::Context,
    inbox::{Message, Name, Outbox, Source},
    mass,
    monitoring::Monitored,
    notes,
    outage::Outage,
    proof,
    shutdown::Phase,
    surroundings,
};
use crate::{
    api::{self, BundleDeployment},
    downstream::{
        fleet_lease::Lead,
        session::{PodEvent, SessionEvent},
    },
    protocol::{
        self, Effect, Env, HealthyClock, Input, Nonce, Outcome, SessionId, Sessions, Slots, Snapshot, Time,
        Uid, Unit, Work, step,
    },
    upstream::{self, Healed},
};

/// One unit and what belongs to its work here.
#[derive(Default)]
pub(super) struct Entry {
    /// The protocol's state.
    pub unit: Unit,
    /// The object at the version the protocol knows.
    pub object: Option<Arc<BundleDeployment>>,
    /// The deployment that runs here.
    pub running: Option<(Nonce, CancellationToken)>,
    /// Its result, until the finish is written.
    pub ended: Option<Box<Ended>>,
    /// The earliest armed timer.
    wake: Option<Time>,
    /// Its place in the queue for a slot.
    queued: Option<Turn>,
    /// Its state as Fleet names it, to notice when dependents must look again.
    state: Option<api::state::State>,
    /// Live reads of one unit run one after another, so that their answers come in order.
    read_turn: Arc<tokio::sync::Mutex<()>>,
    /// When the last request that may have confirmed a claim was sent.
    pub asked: Time,
    /// Continuous duty.
    pub monitored: Monitored,
    /// The next deployment sweeps, as after a takeover; `sweeping`: the one that runs does.
    pub sweep: bool,
    pub sweeping: bool,
    /// Earlier BundleDeployments of its name whose strays it is to sweep, too.
    pub earlier: BTreeSet<Uid>,
    /// Where the census has it.
    counted: Option<census::Place>,
}

/// All units of this replica.
pub struct Replica {
    pub(super) ctx: Arc<Context>,
    pub(super) units: HashMap<Name, Entry>,
    pub(super) outbox: Outbox,
    inbox: mpsc::Receiver<Message>,
    sessions: Sessions,
    /// The peers' sessions were listed once.
    knows_peers: bool,
    /// Who lived at the last look.
    live: Vec<SessionId>,
    pub(super) healthy: HealthyClock,
    timers: BinaryHeap<Reverse<(Time, Name)>>,
    want_slot: Queue,
    held_slots: usize,
    /// The unit that works alone, or waits until no other has a slot.
    alone: Option<Name>,
    /// Units with dependencies: looked at again when another unit's state changes.
    dependents: BTreeSet<Name>,
    /// Units by the hash label of their objects.
    pub(super) by_hash: HashMap<Arc<str>, Name>,
    /// Some unit's state changed: those that depend on others look again.
    states_changed: bool,
    draining: bool,
    relist: bool,
    /// The protocol's settings for units that went missing together with many others.
    patient: protocol::Config,
    census: Census,
    collector: Collector,
    check_ins: checkin::Timetable,
    /// Fleet's agent has the turn, or may have it: nothing is begun.
    standby: bool,
    /// Whether the cluster can be looked at.
    pub(super) outage: Outage,
}

impl Replica {
    /// A replica that knows nothing yet.
    pub fn new(ctx: Arc<Context>) -> Self {
        let (outbox, inbox) = Outbox::new();
        let healthy = HealthyClock::for_renewals(ctx.clock.now(), ctx.session_renew);
        let sessions = Sessions::new(ctx.protocol.ttl);
        Self {
            units: HashMap::new(),
            outbox,
            inbox,
            sessions,
            knows_peers: false,
            live: Vec::new(),
            healthy,
            timers: BinaryHeap::new(),
            want_slot: Queue::default(),
            held_slots: 0,
            alone: None,
            dependents: BTreeSet::new(),
            by_hash: HashMap::new(),
            states_changed: false,
            draining: false,
            relist: false,
            patient: protocol::Config { absence_grace: ctx.mass_grace, ..ctx.protocol.clone() },
            census: Census::default(),
            collector: Collector::default(),
            check_ins: checkin::Timetable::default(),
            standby: true,
            outage: Outage::default(),
            ctx,
        }
    }

    /// Works until told to stop; returns when nothing of this replica is under way any more.
    pub async fn run(
        mut self,
        sessions: impl Stream<Item = SessionEvent> + Send,
        pods: impl Stream<Item = PodEvent> + Send,
        mut lead: tokio::sync::watch::Receiver<Lead>,
        mut phase: tokio::sync::watch::Receiver<Phase>,
    ) {
        let ctx = self.ctx.clone();
        let source = ctx.upstream.clone();
        let open = move || upstream::watch(source.client(), Some(source.namespace())).boxed();
        let mut exchanges = ctx.upstream.exchanges();
        lead.mark_changed();
        let mut bundle_deployments = Healed::new(open, surroundings::jittered);
        let mut sessions = Box::pin(sessions);
        let mut pods = Box::pin(pods);
        let mut renewals = ctx.session.renewals();
        let mut changes = ctx.live.subscribe();
        let mut kinds = ctx.live.subscribe_to_kinds();
        let mut silence = ctx.session.silence();
        loop {
            let timer = self.timers.peek().map(|Reverse((time, _))| ctx.clock.moment(*time));
            let quiet = self.next_quiet().map(|time| ctx.clock.moment(time));
            let check_in = self.check_ins.next.map(|time| ctx.clock.moment(time));
            let outage = self.outage.due();
            let collection = self.collector.next.map(|time| ctx.clock.moment(time));
            tokio::select! {
                biased;
                Ok(()) = phase.changed() => {
                    let now = *phase.borrow_and_update();
                    if self.enter(now) { return }
                }
                Ok(()) = renewals.changed() => {
                    let sent = ctx.clock.at(renewals.borrow_and_update().sent);
                    self.healthy.renewed(sent);
                }
                Ok(()) = lead.changed() => {
                    let now = lead.borrow_and_update().clone();
                    self.on_lead(&now);
                }
                Ok(()) = exchanges.changed() => bundle_deployments.follow_up(),
                Some(message) = self.inbox.recv() => self.take(message),
                Some(event) = sessions.next() => self.on_session(event),
                Some(event) = pods.next() => self.on_pod(event),
                hashes = changes.next() => self.on_live_changes(hashes),
                kinds = kinds.next() => self.on_kinds(&kinds),
                Ok(()) = silence.changed() => {
                    let now = silence.borrow_and_update().clone();
                    self.on_silence(now);
                }
                () = sleep_until(outage) => {
                    let now = silence.borrow_and_update().clone();
                    self.on_silence(now);
                }
                // Whoever does not know its peers would claim what is theirs.
                event = bundle_deployments.next(), if self.knows_peers => self.on_event(event),
                () = sleep_until(timer) => self.on_timer(),
                () = sleep_until(quiet) => {}
                () = sleep_until(collection) => self.collect(),
                () = sleep_until(check_in) => self.check_ins.start(&ctx, &self.outbox),
            }
            self.notice_who_lives();
            if std::mem::take(&mut self.states_changed) {
                self.look_at_dependents();
            }
            self.serve_queue();
            if std::mem::take(&mut self.relist) {
                bundle_deployments.reopen();
            }
            if self.draining && self.is_quiet() {
                return;
            }
        }
    }

    /// A new phase of the shutdown; true when there is nothing to wait for.
    fn enter(&mut self, phase: Phase) -> bool {
        match phase {
            Phase::Open => false,
            Phase::Draining => {
                info!("no new claims: stopping");
                self.draining = true;
                // Told before anything is handed over: no peer then leaves this replica a head start.
                self.offer_slots();
                self.ctx.session_news.notify_one();
                self.assign_check_in();
                // A wait for readiness has no end in sight: handed over at once, also one just being entered.
                let waits = |unit: &Unit| {
                    matches!(
                        unit.work,
                        Work::Running { waiting: true, .. } | Work::Running { entering: Some(_), .. }
                    )
                };
                self.feed_where(waits, Input::Stop);
                self.is_quiet()
            }
            Phase::Stop => {
                warn!("grace period over: stopping deployments at their next safe point");
                self.feed_where(|unit| matches!(unit.work, Work::Running { .. }), Input::Stop);
                self.is_quiet()
            }
            Phase::Leave => {
                let left = self.units.values().filter(|entry| !is_quiet(entry)).count();
                warn!(left, "no answer to the last requests: leaving without");
                true
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.units.values().all(is_quiet)
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Unit { name, input } => self.feed(&name, *input),
            Message::Object { name, object, from } => {
                let input = match from {
                    Source::Read => Input::Read,
                    Source::Written => Input::Written,
                };
                self.feed_object(&name, *object, input);
            }
            Message::Ended { name, ended } => {
                let Some(entry) = self.units.get_mut(&name) else { return };
                if entry.running.as_ref().is_some_and(|(nonce, _)| *nonce == ended.nonce) {
                    entry.running = None;
                }
                if ended.met_newer() || proof::is_lost(&entry.unit, &ended.nonce) {
                    notes::tell_late(&self.ctx, &name, entry.object.as_deref());
                }
                let input = Input::Done {
                    nonce: ended.nonce.clone(),
                    outcome: ended.outcome.clone(),
                    release: ended.release.clone(),
                };
                if std::mem::take(&mut entry.sweeping) && ended.outcome != Outcome::Deployed {
                    entry.sweep = true;
                }
                if ended.is_correction() {
                    entry.monitored.corrected(self.ctx.clock.now());
                }
                if ended.plan.is_some() {
                    entry.monitored.plan.clone_from(&ended.plan);
                }
                entry.ended = Some(ended);
                self.feed(&name, input);
            }
            Message::Monitored { name, release, outcome } => self.on_monitored(&name, release, outcome),
            Message::Strays { name, earlier } => {
                if let Some(entry) = self.units.get_mut(&name) {
                    entry.sweep = true;
                    entry.earlier = earlier;
                    self.feed(&name, Input::Redeploy { of: None });
                }
            }
            Message::CheckedIn { result } => self.check_ins.ended(&self.ctx, result),
            Message::Collected { memory, again, lost } => {
                self.ctx.metrics.garbage_collection();
                self.collector.ended(memory, self.ctx.clock.now(), again);
                for (name, release) in lost {
                    self.on_lost_record(&name, &release);
                }
            }
        }
    }

    /// A pass of garbage collection is due; one replica has that duty.
    fn collect(&mut self) {
        self.forget_kinds();
        let healthy = self.healthy.at(self.ctx.clock.now());
        let duty = collect::DUTY.into();
        let mine = !self.rests() && self.sessions.is_assigned(&self.ctx.session_id, &duty, healthy);
        let units = self.units.iter().filter_map(|(name, entry)| Some((name, entry.object.as_deref()?)));
        let expected = if mine { collect::expected(units) } else { HashSet::new() };
        let settled = self.units.iter().filter(|(_, entry)| mine && entry.unit.is_settled());
        let standing = settled.filter_map(|(name, entry)| {
            Some((name.clone(), entry.unit.latest.as_ref()?.release.parse().ok()?))
        });
        let standing = standing.collect();
        self.collector.start(&self.ctx, &self.outbox, mine, expected, standing);
    }

    fn feed_where(&mut self, which: impl Fn(&Unit) -> bool, input: Input) {
        let names: Vec<Name> =
            self.units.iter().filter(|(_, entry)| which(&entry.unit)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.feed(&name, input.clone());
        }
    }

    fn free_slots(&self) -> usize {
        self.ctx.slots.saturating_sub(self.held_slots)
    }

    /// The worker slots, as this unit finds them.
    fn slots(&self, name: &Name) -> Slots {
        Slots {
            free: self.free_slots(),
            taken: self.held_slots,
            reserved: self.alone.as_ref().is_some_and(|alone| alone != name),
        }
    }

    /// One step of one unit, and its effects.
    pub(super) fn feed(&mut self, name: &Name, input: Input) {
        self.step(name, input, None);
    }

    fn step(&mut self, name: &Name, input: Input, object: Option<BundleDeployment>) {
        let now = self.ctx.clock.now();
        let env = Env {
            now,
            healthy: self.healthy.at(now),
            session: &self.ctx.session_id,
            holder: &self.ctx.holder,
            sessions: &self.sessions,
            slots: self.slots(name),
            draining: self.rests(),
            entropy: surroundings::entropy(),
            config: if self.ctx.holds.has(name) { &self.patient } else { &self.ctx.protocol },
        };
        let Some(entry) = self.units.get_mut(name) else { return };
        let held = entry.unit.holds_slot();
        let effects = step(&mut entry.unit, input, &env);
        if let Some(object) = object
            && entry.unit.latest.as_ref().is_some_and(|latest| is_at(&object, latest))
        {
            // Only what the protocol took in: the base of a write must be the object at exactly its precondition.
            let state = api::state::state(&object);
            self.states_changed |= entry.state.replace(state) != Some(state);
            entry.object = Some(Arc::new(object));
            mass::settle_unit(&self.ctx, name);
        }
        let (holds, alone) = (entry.unit.holds_slot(), entry.unit.alone.is_some());
        let stood = std::mem::replace(&mut entry.counted, census::place(&entry.unit));
        self.census.moved(&self.ctx.metrics, &self.ctx.clock, stood, entry.counted);
        let was_alone = self.alone.as_ref() == Some(name);
        if held != holds || was_alone != alone {
            self.held_slots = self.held_slots + usize::from(holds) - usize::from(held);
            if was_alone != alone {
                match alone {
                    true => info!(unit = %name, "lost too often to work beside others: nothing else begins"),
                    false => info!(unit = %name, "others may begin again"),
                }
                self.alone = alone.then(|| name.clone());
            }
            self.offer_slots();
        }
        for effect in effects {
            self.execute(name, effect);
        }
        self.monitor_if_due(name);
    }

    pub(super) fn read_turn(&self, name: &Name) -> Arc<tokio::sync::Mutex<()>> {
        self.units.get(name).map(|entry| entry.read_turn.clone()).unwrap_or_default()
    }

    /// A replica that begins nothing, or nothing but one unit, is no choice for others: peers do not leave it a head start.
    fn offer_slots(&self) {
        let begins = !self.rests() && self.alone.is_none();
        let free = if begins { self.free_slots() } else { 0 };
        self.ctx.free_slots.store(free, Ordering::Relaxed);
        self.ctx.metrics.set_free_slots(free);
    }

    /// Whether nothing new is begun: it stops, or Fleet's agent works here.
    pub(super) fn rests(&self) -> bool {
        self.draining || self.standby
    }
}

/// Executes the effects of the protocol; in its own file.
impl Replica {
    fn execute(&mut self, name: &Name, effect: Effect) {
        super::execute::execute(self, name, effect);
    }
}

/// Nothing of a unit is under way.
fn is_quiet(entry: &Entry) -> bool {
    !entry.unit.is_busy() && !entry.monitored.is_busy()
}

fn is_at(object: &BundleDeployment, latest: &Snapshot) -> bool {
    object.metadata.resource_version.as_deref() == Some(latest.version.0.as_str())
        && object.metadata.uid.as_deref() == Some(latest.uid.0.as_str())
}

async fn sleep_until(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
