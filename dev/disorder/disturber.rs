// SPDX-License-Identifier: Apache-2.0
//! Does to the processes and connections what was drawn, and brings back what must come back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use tokio::time::Instant;

use super::Settings;
use super::clocks::Clocks;
use super::faults::{Fault, Plane, Who};
use crate::harness::proxy::{Mode, Proxy};
use crate::harness::replica::{Controller, Replica};
use crate::harness::world::{World, ready};

/// A replica that ended by itself is started anew after this long, as a Deployment would.
const BACK_OFF: Duration = Duration::from_secs(1);
/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The controller's name.
const CONTROLLER: &str = "controller";

/// One run of a replica's process.
#[derive(Clone, Debug)]
pub struct Run {
    /// The replica's name.
    pub name: String,
    /// When it was started.
    pub from: Instant,
    /// When it got SIGKILL from us.
    pub killed: Option<Instant>,
    /// When it got SIGTERM from us.
    pub terminated: Option<Instant>,
    /// When it was found ended.
    pub ended: Option<Instant>,
    /// When it was frozen, and until when.
    pub frozen: Vec<(Instant, Instant)>,
}

/// What was done, and how the processes fared.
#[derive(Debug, Default)]
pub struct Done {
    /// When it began.
    pub begun: Option<Instant>,
    /// Every fault, with the time since the beginning.
    pub faults: Vec<(Duration, Fault)>,
    /// Faults that were drawn and could not be done: nobody sound would have been left, or it was gone already.
    pub skipped: usize,
    /// Runs of replicas.
    pub runs: Vec<Run>,
    /// Processes that ended although nobody told them to, after they had started well.
    pub crashes: Vec<String>,
    /// Starts that failed, as they must while a server cannot be reached.
    pub failed_starts: usize,
}

struct Member {
    replica: Option<Replica>,
    run: usize,
    back: Option<Instant>,
    thaw: Option<Instant>,
    patience: Option<Instant>,
    links: BTreeMap<&'static str, Instant>,
    log_from: usize,
}

/// Owns the processes while things go wrong.
pub struct Disturber<'a> {
    world: &'a mut World,
    settings: &'a Settings,
    begun: Instant,
    upstream: Proxy,
    downstream: Proxy,
    agent_kubeconfig: PathBuf,
    controller_kubeconfig: PathBuf,
    members: BTreeMap<usize, Member>,
    controller: Option<Controller>,
    controller_back: Option<Instant>,
    controller_links: BTreeMap<&'static str, Instant>,
    controller_log_from: usize,
    thaw_etcd: BTreeMap<&'static str, Instant>,
    clocks: Clocks,
    /// What was done so far.
    pub done: Done,
}

fn key(plane: Plane) -> &'static str {
    match plane {
        Plane::Upstream => "upstream",
        Plane::Downstream => "downstream",
    }
}

fn name(number: usize) -> String {
    format!("replica-{number}")
}

impl<'a> Disturber<'a> {
    /// Puts a proxy before each server, and starts the replicas and the controller behind them.
    pub async fn start(world: &'a mut World, settings: &'a Settings) -> anyhow::Result<Disturber<'a>> {
        let upstream = Proxy::start_repeating(&world.upstream).await?;
        let downstream = Proxy::start_repeating(&world.downstream).await?;
        crate::harness::fleet::register_through(&world.upstream, &upstream.url(), &world.downstream, "shop")
            .await?;
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "fleet-agent", "namespace": world.registration.agent_namespace},
            // What is deleted while everybody looks away is found by this alone.
            "data": {"config": r#"{"garbageCollectionInterval":"10s"}"#},
        });
        crate::harness::fleet::apply(&world.downstream.admin().await?, config).await?;
        let agent_kubeconfig =
            readdress(&world.registration.agent_kubeconfig, &world.downstream.url(), &downstream.url())?;
        let controller_kubeconfig = world.dir().join("controller.kubeconfig");
        let token = crate::harness::fleet::master_token(&world.upstream, CONTROLLER).await?;
        let text = world.upstream.token_kubeconfig_at(&upstream.url(), &token, "default");
        crate::harness::pki::write_private(&controller_kubeconfig, &text)?;
        let (begun, clocks) = (Instant::now(), Clocks::new(world.dir()));
        let mut disturber = Disturber {
            world,
            settings,
            begun,
            upstream,
            downstream,
            agent_kubeconfig,
            controller_kubeconfig,
            members: BTreeMap::new(),
            controller: None,
            controller_back: None,
            controller_links: BTreeMap::new(),
            controller_log_from: 0,
            thaw_etcd: BTreeMap::new(),
            clocks,
            done: Done { begun: Some(begun), ..Done::default() },
        };
        disturber.start_controller()?;
        for number in 1..=settings.replicas {
            disturber.members.insert(
                number,
                Member {
                    replica: None,
                    run: 0,
                    back: None,
                    thaw: None,
                    patience: None,
                    links: BTreeMap::new(),
                    log_from: 0,
                },
            );
            disturber.spawn(number)?;
            if let Some(replica) = disturber.members.get_mut(&number).and_then(|m| m.replica.as_mut()) {
                ready(replica).await?;
            }
        }
        Ok(disturber)
    }

    /// Whether wall clocks can be stepped on this machine.
    pub fn can_step_clocks(&self) -> bool {
        self.clocks.can_step()
    }

    /// Connections, replies and requests that the proxies spoilt: a line for each server.
    pub fn describe_proxies(&self) -> Vec<String> {
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        [("upstream", &self.upstream), ("downstream", &self.downstream)]
            .map(|(plane, proxy)| {
                let counts = proxy.counts();
                let repeats = proxy.repeats().map_or((0, 0, 0), |repeats| {
                    let count = |count: &AtomicU64| count.load(Relaxed);
                    (count(&repeats.done), count(&repeats.refused), count(&repeats.unanswered))
                });
                format!(
                    "{plane}: {} connections, {} reset, {} half open, {} answers lost, {} delivered late, \
                     {} writes repeated ({} done again, {} refused, {} unanswered)",
                    counts.accepted.load(Relaxed),
                    counts.reset.load(Relaxed),
                    counts.half_open.load(Relaxed),
                    counts.lost_replies.load(Relaxed),
                    counts.late.load(Relaxed),
                    repeats.0 + repeats.1 + repeats.2,
                    repeats.0,
                    repeats.1,
                    repeats.2,
                )
            })
            .to_vec()
    }

    /// Does one thing; false when it cannot be done now.
    pub async fn disturb(&mut self, fault: Fault) -> anyhow::Result<bool> {
        let done = match fault {
            Fault::Kill { who, back_in } => self.kill(who, back_in)?,
            Fault::Term { who } => self.terminate(who)?,
            Fault::Freeze { who, time } => self.freeze(who, time)?,
            Fault::Link { plane, who, mode, time } => self.spoil(plane, who, mode, time),
            Fault::Reset { plane, who } => {
                for client in self.clients(who) {
                    self.proxy(plane).reset(&client);
                }
                true
            }
            Fault::RestartApi { plane } => {
                self.note(fault);
                self.thaw_etcds(true)?;
                let begun = Instant::now();
                match plane {
                    Plane::Upstream => self.world.upstream.restart_apiserver().await?,
                    Plane::Downstream => self.world.downstream.restart_apiserver().await?,
                }
                self.say(&format!("the API server is back after {:.1} s", begun.elapsed().as_secs_f64()));
                return Ok(true);
            }
            Fault::FreezeEtcd { plane, time } => {
                match plane {
                    Plane::Upstream => self.world.upstream.freeze_etcd(true)?,
                    Plane::Downstream => self.world.downstream.freeze_etcd(true)?,
                }
                self.thaw_etcd.insert(key(plane), Instant::now() + time);
                true
            }
            Fault::ControllerAway { time } => match self.controller.take() {
                Some(mut controller) => {
                    controller.kill()?;
                    self.controller_back = Some(Instant::now() + time);
                    true
                }
                None => false,
            },
            Fault::ClockStep { who, seconds } => self.step_clock(who, seconds)?,
        };
        if done {
            self.note(fault);
        } else {
            self.done.skipped += 1;
        }
        Ok(done)
    }

    /// Waits until `until`, bringing back meanwhile what is due.
    pub async fn wait(&mut self, until: Instant) -> anyhow::Result<()> {
        loop {
            self.tick()?;
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            tokio::time::sleep_until((now + LOOK).min(until)).await;
        }
    }

    /// Ends every fault at once and starts whoever is down.
    pub fn calm(&mut self) -> anyhow::Result<()> {
        self.say("calm: every fault ends");
        let now = Instant::now();
        self.thaw_etcds(true)?;
        self.controller_back = self.controller_back.map(|_| now);
        for links in
            self.members.values_mut().map(|member| &mut member.links).chain([&mut self.controller_links])
        {
            links.values_mut().for_each(|end| *end = now);
        }
        for member in self.members.values_mut() {
            member.back = member.back.map(|_| now);
            member.thaw = member.thaw.map(|_| now);
        }
        self.tick()
    }

    /// Ends every process; only the servers are left.
    pub fn end(&mut self) {
        self.controller = None;
        for member in self.members.values_mut() {
            member.replica = None;
        }
    }

    /// The servers.
    pub fn world(&self) -> &World {
        self.world
    }

    /// Brings back what is due.
    fn tick(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        self.thaw_etcds(false)?;
        if self.controller_back.is_some_and(|back| back <= now) {
            self.start_controller()?;
        }
        if let Some(controller) = &mut self.controller
            && let Some(status) = controller.exited()?
        {
            let log = controller.log();
            let log = log.get(self.controller_log_from..).unwrap_or_default();
            let text = if log.contains("controller started") {
                let text = format!("the controller ended by itself ({status})\n{}", tail(log));
                self.done.crashes.push(text.clone());
                text
            } else {
                // It cannot start without its server.
                self.done.failed_starts += 1;
                format!("the controller could not start ({status})")
            };
            self.say(&text);
            self.controller = None;
            self.controller_back = Some(now + BACK_OFF);
        }
        end_links(&mut self.controller_links, CONTROLLER, &self.upstream, &self.downstream, now);
        let numbers: Vec<usize> = self.members.keys().copied().collect();
        for number in numbers {
            self.tick_member(number, now)?;
        }
        Ok(())
    }

    fn tick_member(&mut self, number: usize, now: Instant) -> anyhow::Result<()> {
        let Some(member) = self.members.get_mut(&number) else { return Ok(()) };
        end_links(&mut member.links, &name(number), &self.upstream, &self.downstream, now);
        if member.thaw.is_some_and(|thaw| thaw <= now) {
            member.thaw = None;
            if let Some(last) = self.done.runs[member.run].frozen.last_mut() {
                last.1 = now;
            }
            if let Some(replica) = &mut member.replica {
                replica.cont()?;
            }
        }
        let told = self.done.runs[member.run].terminated;
        if let Some(replica) = &mut member.replica {
            if let Some(status) = replica.exited()? {
                self.done.runs[member.run].ended = Some(now);
                let log = replica.log();
                let log = log.get(member.log_from..).unwrap_or_default();
                let started = log.contains("replica started");
                let text = match told {
                    Some(at) if status.success() => {
                        format!("replica-{number} ended in order, {:.1} s", (now - at).as_secs_f64())
                    }
                    _ if !started => {
                        self.done.failed_starts += 1;
                        let cause = log.lines().last().unwrap_or_default();
                        format!("replica-{number} could not start ({status}): {cause}")
                    }
                    _ => {
                        let text = format!("replica-{number} ended by itself ({status})\n{}", tail(log));
                        self.done.crashes.push(text.clone());
                        text
                    }
                };
                member.replica = None;
                member.patience = None;
                member.back = Some(now + BACK_OFF.mul_f64(0.3));
                self.say(&text);
            } else if member.patience.is_some_and(|end| end <= now) {
                replica.kill()?;
                self.done.runs[member.run].killed = Some(now);
                self.done.runs[member.run].ended = Some(now);
                member.replica = None;
                member.patience = None;
                member.back = Some(now);
                self.say(&format!("SIGKILL replica-{number}: it did not end in time"));
            }
        }
        let Some(member) = self.members.get_mut(&number) else { return Ok(()) };
        if member.replica.is_none() && member.back.is_none_or(|back| back <= now) {
            self.spawn(number)?;
        }
        Ok(())
    }

    fn kill(&mut self, who: usize, back_in: Duration) -> anyhow::Result<bool> {
        let Some(member) = self.members.get_mut(&who) else { return Ok(false) };
        let Some(mut replica) = member.replica.take() else { return Ok(false) };
        let now = Instant::now();
        replica.kill()?;
        let run = &mut self.done.runs[member.run];
        run.killed = Some(now);
        run.ended = Some(now);
        member.thaw = None;
        member.patience = None;
        member.back = Some(now + back_in);
        Ok(true)
    }

    fn terminate(&mut self, who: usize) -> anyhow::Result<bool> {
        let grace = self.settings.shutdown_grace + Duration::from_secs(5);
        let Some(member) = self.members.get_mut(&who) else { return Ok(false) };
        if member.patience.is_some() || member.thaw.is_some() {
            return Ok(false);
        }
        let Some(replica) = &mut member.replica else { return Ok(false) };
        let now = Instant::now();
        replica.term()?;
        self.done.runs[member.run].terminated = Some(now);
        member.patience = Some(now + grace);
        Ok(true)
    }

    fn freeze(&mut self, who: usize, time: Duration) -> anyhow::Result<bool> {
        if !self.may_handicap(who) {
            return Ok(false);
        }
        let Some(member) = self.members.get_mut(&who) else { return Ok(false) };
        if member.patience.is_some() || member.thaw.is_some() {
            return Ok(false);
        }
        let Some(replica) = &mut member.replica else { return Ok(false) };
        let now = Instant::now();
        replica.stop_signal()?;
        self.done.runs[member.run].frozen.push((now, now + time));
        member.thaw = Some(now + time);
        Ok(true)
    }

    fn spoil(&mut self, plane: Plane, who: Who, mode: Mode, time: Duration) -> bool {
        let harmless = matches!(mode, Mode::Pass | Mode::Delay(_) | Mode::Repeat);
        if let Who::One(number) = who
            && !harmless
            && !self.may_handicap(number)
        {
            return false;
        }
        let end = Instant::now() + time;
        for client in self.clients(who) {
            self.proxy(plane).set(&client, mode);
        }
        match who {
            Who::One(number) => {
                if let Some(member) = self.members.get_mut(&number) {
                    member.links.insert(key(plane), end);
                }
            }
            Who::All => {
                for member in self.members.values_mut() {
                    member.links.insert(key(plane), end);
                }
                self.controller_links.insert(key(plane), end);
            }
        }
        true
    }

    /// Whether a sound replica would be left.
    fn may_handicap(&self, who: usize) -> bool {
        let sound = |member: &Member| {
            member.replica.is_some()
                && member.thaw.is_none()
                && member.patience.is_none()
                && member.links.is_empty()
        };
        self.members.iter().any(|(number, member)| *number != who && sound(member))
    }

    fn step_clock(&mut self, who: usize, seconds: i64) -> anyhow::Result<bool> {
        let process = if who == Fault::CONTROLLER { CONTROLLER.to_owned() } else { name(who) };
        self.clocks.step(&process, seconds)
    }

    fn clients(&self, who: Who) -> Vec<String> {
        match who {
            Who::One(number) => vec![name(number)],
            Who::All => self.members.keys().map(|number| name(*number)).chain([CONTROLLER.into()]).collect(),
        }
    }

    fn proxy(&self, plane: Plane) -> &Proxy {
        match plane {
            Plane::Upstream => &self.upstream,
            Plane::Downstream => &self.downstream,
        }
    }

    fn thaw_etcds(&mut self, all: bool) -> anyhow::Result<()> {
        let now = Instant::now();
        let due: Vec<&'static str> =
            self.thaw_etcd.iter().filter(|(_, end)| all || **end <= now).map(|(plane, _)| *plane).collect();
        for plane in due {
            self.thaw_etcd.remove(plane);
            match plane {
                "upstream" => self.world.upstream.freeze_etcd(false)?,
                _ => self.world.downstream.freeze_etcd(false)?,
            }
        }
        Ok(())
    }

    fn spawn(&mut self, number: usize) -> anyhow::Result<()> {
        let name = name(number);
        let log = self.world.dir().join(format!("{name}.log"));
        let log_from = std::fs::metadata(&log).map_or(0, |meta| meta.len() as usize);
        let slots = self.settings.slots.to_string();
        let clock = self.clocks.env(&name)?;
        let mut env: Vec<(&str, &str)> = vec![("BUNDLEDEPLOYMENT_RECONCILER_WORKERS", &slots)];
        // Half of them are known by their pod, so that a new run of it proves the death of the one before.
        let pod = format!("00000000-0000-4000-8000-00000000000{}", number % 10);
        if number.is_multiple_of(2) {
            env.push(("POD_UID", &pod));
        }
        env.extend(clock.iter().map(|(key, value)| (*key, value.as_str())));
        let arguments = self.settings.agent_arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let replica = Replica::spawn(
            &self.world.binary,
            &name,
            &self.agent_kubeconfig,
            &self.world.registration.agent_namespace,
            &arguments,
            &env,
            &log,
        )?;
        self.upstream.introduce(&name, replica.pid());
        self.downstream.introduce(&name, replica.pid());
        let run = Run {
            name,
            from: Instant::now(),
            killed: None,
            terminated: None,
            ended: None,
            frozen: Vec::new(),
        };
        self.done.runs.push(run);
        let run = self.done.runs.len() - 1;
        if let Some(member) = self.members.get_mut(&number) {
            member.replica = Some(replica);
            member.back = None;
            member.run = run;
            member.log_from = log_from;
        }
        Ok(())
    }

    fn start_controller(&mut self) -> anyhow::Result<()> {
        let arguments = self.settings.controller_arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let log = self.world.dir().join("controller.log");
        self.controller_log_from = std::fs::metadata(&log).map_or(0, |meta| meta.len() as usize);
        let env = self.clocks.env(CONTROLLER)?;
        let env: Vec<(&str, &str)> = env.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let controller = Controller::spawn(
            &self.world.binary,
            CONTROLLER,
            &self.controller_kubeconfig,
            &arguments,
            &env,
            &log,
        )?;
        self.upstream.introduce(CONTROLLER, controller.pid());
        self.controller = Some(controller);
        self.controller_back = None;
        Ok(())
    }

    fn note(&mut self, fault: Fault) {
        self.say(&fault.to_string());
        self.done.faults.push((self.begun.elapsed(), fault));
    }

    /// A line of the log of the run.
    pub fn say(&self, text: &str) {
        if self.settings.talk {
            println!("{:>8.2}s  {text}", self.begun.elapsed().as_secs_f64());
        }
    }
}

fn end_links(
    links: &mut BTreeMap<&'static str, Instant>,
    client: &str,
    upstream: &Proxy,
    downstream: &Proxy,
    now: Instant,
) {
    links.retain(|plane, end| {
        if *end > now {
            return true;
        }
        let proxy = if *plane == "upstream" { upstream } else { downstream };
        proxy.set(client, Mode::Pass);
        false
    });
}

fn readdress(kubeconfig: &Path, from: &str, to: &str) -> anyhow::Result<PathBuf> {
    let text = std::fs::read_to_string(kubeconfig).with_context(|| kubeconfig.display().to_string())?;
    let path = kubeconfig.with_extension("proxied.kubeconfig");
    std::fs::write(&path, text.replace(from, to))?;
    Ok(path)
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
