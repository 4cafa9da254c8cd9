// SPDX-License-Identifier: Apache-2.0
//! Chaos: real processes on two real control planes, with everything going wrong that can, and a judge.

pub mod audited;
mod clocks;
pub mod disturber;
pub mod etcd;
mod examine;
pub mod faults;
pub mod judgement;
mod living;
pub mod load;
pub mod report;
mod stale;
pub mod takeover;
pub mod witness;

use std::time::Duration;

use anyhow::Context;
use tokio::time::Instant;

use crate::harness::Options;
use crate::harness::world::World;
use disturber::Disturber;
use faults::Faults;
use judgement::Promises;
use load::{Load, lock};
use report::Report;
use witness::Witness;

/// How a run is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What faults and load are drawn from.
    pub seed: u64,
    /// How long faults happen.
    pub time: Duration,
    /// Average time between two faults.
    pub gap: Duration,
    /// Replicas.
    pub replicas: usize,
    /// Worker slots of each.
    pub slots: usize,
    /// Names of bundles.
    pub bundles: usize,
    /// Average time between two changes.
    pub change: Duration,
    /// A session's time to live.
    pub ttl: Duration,
    /// A claim's budget.
    pub claim_timeout: Duration,
    /// Time after SIGTERM.
    pub shutdown_grace: Duration,
    /// How long a bundle must be absent.
    pub absence_grace: Duration,
    /// Within this everything must be in order once the faults have ended.
    pub calm: Duration,
    /// Print every fault.
    pub talk: bool,
}

impl Settings {
    /// Short times of everything, so that a minute shows what else takes ten.
    pub fn short(seed: u64, time: Duration) -> Settings {
        Settings {
            seed,
            time,
            gap: Duration::from_millis(1000),
            replicas: 4,
            slots: 4,
            bundles: 32,
            change: Duration::from_millis(400),
            ttl: Duration::from_secs(3),
            claim_timeout: Duration::from_secs(20),
            shutdown_grace: Duration::from_secs(5),
            absence_grace: Duration::from_secs(20),
            calm: Duration::from_secs(180),
            talk: true,
        }
    }

    fn agent_arguments(&self) -> Vec<String> {
        let seconds = |time: Duration| format!("{}ms", time.as_millis());
        [
            ("--session-ttl", seconds(self.ttl)),
            ("--session-renew", seconds(self.ttl / 3)),
            ("--claim-timeout", seconds(self.claim_timeout)),
            ("--steal-delay", "100ms".to_owned()),
            ("--shutdown-grace", seconds(self.shutdown_grace)),
            ("--absence-grace", seconds(self.absence_grace)),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    }

    fn controller_arguments(&self) -> Vec<String> {
        let budget = format!("{}ms", self.claim_timeout.as_millis());
        ["--claim-timeout", &budget, "--claim-margin", "5s"].map(str::to_owned).to_vec()
    }
}

/// What the control planes must be told.
pub fn options() -> Options {
    Options {
        apiserver_args: etcd::APISERVER_ARGUMENTS.map(str::to_owned).to_vec(),
        audit_policy: Some(audited::POLICY),
        ..Options::default()
    }
}

/// Runs it: load and faults for a time, then calm, then the judge.
pub async fn run(world: &mut World, settings: &Settings) -> anyhow::Result<Report> {
    let namespace = world.registration.cluster_namespace.clone();
    let witness = Witness::start(&world.upstream, &world.downstream, &namespace);
    let publisher = world.publisher().await?;
    let downstream = world.downstream.admin().await?;
    let mut load = Load::new(publisher, downstream, settings.bundles, settings.seed);
    let story = load.story();
    let ripening = tokio::spawn(load.ripen());
    let mut disturber = Disturber::start(world, settings).await?;
    let begun = Instant::now();
    let deadline = begun + settings.time;

    let loading = async {
        load.begin().await?;
        load.run(settings.change, deadline).await;
        anyhow::Ok(())
    };
    let disturbing = async {
        let mut faults = Faults::new(settings.seed, settings.replicas, settings.ttl, settings.gap);
        loop {
            let (pause, fault) = faults.draw();
            let next = Instant::now() + pause;
            if next >= deadline {
                return disturber.wait(deadline).await;
            }
            disturber.wait(next).await?;
            disturber.disturb(fault).await?;
        }
    };
    let (loaded, disturbed) = tokio::join!(loading, disturbing);
    loaded.and(disturbed)?;
    disturber.calm()?;

    let calm = Instant::now();
    let mut settled = None;
    let mut renewed: Vec<String> = Vec::new();
    while calm.elapsed() < settings.calm {
        disturber.wait(Instant::now() + Duration::from_millis(500)).await?;
        // A quarantine is right, and waits an hour or for a person.
        let resting = witness.look(judgement::in_quarantine);
        let resting: Vec<String> = resting.into_iter().filter(|name| !renewed.contains(name)).collect();
        if !resting.is_empty() {
            load.renew(&resting).await;
            renewed.extend(resting);
        }
        let good = witness.look(|evidence| judgement::is_settled(evidence, &lock(&story)));
        match (good, settled) {
            (true, None) => settled = Some(calm.elapsed()),
            (false, _) => settled = None,
            (true, Some(_)) => {}
        }
        // Once more after everything that was under way has landed.
        if settled.is_some_and(|at| calm.elapsed() > at + settings.ttl * 2) {
            break;
        }
    }
    disturber.say(&match settled {
        Some(time) => format!("everything in order {:.1} s after the last fault", time.as_secs_f64()),
        None => format!("not in order {} s after the last fault", settings.calm.as_secs()),
    });
    witness.settled().await?;
    ripening.abort();

    let promises = Promises { ttl: settings.ttl };
    let story = lock(&story).clone();
    let mut judgement =
        witness.look(|evidence| judgement::judge(evidence, &story, &disturber.done, promises));
    // Nobody writes any more.
    disturber.end();
    witness.settled().await?;
    examine::examine(disturber.world(), &witness, &story, promises, &mut judgement).await?;
    let report = Report::new(settings, &disturber, story, judgement, settled, renewed.len());
    drop(disturber);
    if report.verdict().is_err() {
        leave(world, "timeline.txt", &witness.look(|evidence| evidence.timeline(begun)))?;
    }
    leave(world, "report.md", &report.text)?;
    Ok(report)
}

fn leave(world: &World, name: &str, text: &str) -> anyhow::Result<()> {
    let path = world.dir().join(name);
    std::fs::write(&path, text).with_context(|| path.display().to_string())
}
