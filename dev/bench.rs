// SPDX-License-Identifier: Apache-2.0
//! The benchmark behind `dev/bench`: how near replicas come to the limit, which is a loop that only sends the
//! very same writes, on the same control planes in the same minute.

#[path = "harness/mod.rs"]
mod harness;

#[path = "benchmark/agents.rs"]
mod agents;
#[path = "benchmark/bare.rs"]
mod bare;
#[path = "benchmark/delay.rs"]
mod delay;
#[path = "benchmark/figures.rs"]
mod figures;
#[path = "benchmark/ground.rs"]
mod ground;
#[path = "benchmark/rest.rs"]
mod rest;
#[path = "benchmark/scale.rs"]
mod scale;
#[path = "benchmark/table.rs"]
mod table;

#[path = "disorder/etcd.rs"]
#[allow(dead_code)] // the chaos run uses the rest of it
mod etcd;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Parser, Subcommand, ValueEnum};
use flotilla::api::duration;

use figures::Figures;
use ground::Ground;
use harness::Tools;
use harness::world::{self, Downstream, World};

/// Measure replicas against a bare loop of the same writes.
#[derive(Clone, Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// How often everything is measured; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Instead of throughput: what three replicas write and answer once everything is deployed.
    #[arg(long)]
    steady: bool,
    /// How long nothing changes then.
    #[arg(long, value_parser = duration::parse, default_value = "5m")]
    rest: Duration,
    /// Instead of throughput: memory, lists and watches of replicas that start into a deployed fleet.
    #[arg(long, conflicts_with = "steady")]
    scale: bool,
    /// Bundles in each run [default: 200, or 300 with --steady, or 1000 with --scale].
    #[arg(long)]
    bundles: Option<usize>,
    /// ConfigMaps in each bundle.
    #[arg(long, default_value_t = 10)]
    objects: usize,
    /// Bundles are charts with a template for each ConfigMap; the bare loop sends the same writes, and renders nothing.
    #[arg(long)]
    chart: bool,
    /// Worker slots of a replica, and tasks of the bare loop [default: 16, or 2 with --delay].
    #[arg(long)]
    slots: Option<usize>,
    /// Numbers of replicas to measure [default: 1,3, or 1,3,5 with --delay].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    replicas: Vec<usize>,
    /// When the bundles come.
    #[arg(long, value_enum, default_value_t = Arrival::Waiting)]
    arrival: Arrival,
    /// Time between two bundles that come one by one.
    #[arg(long, value_parser = duration::parse, default_value = "200ms")]
    pace: Duration,
    /// Added to each request to the management cluster: how replicas add up when the machine is not the limit.
    /// No bare loop is run.
    #[arg(long, value_parser = duration::parse)]
    delay: Option<Duration>,
    /// Fail when the first bar is missed.
    #[arg(long)]
    check: bool,
}

/// When the bundles of a run come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Arrival {
    /// Before the replicas.
    Waiting,
    /// All at once, when the replicas are ready.
    Burst,
    /// One by one, when the replicas are ready.
    Single,
}

impl Arguments {
    fn bundles(&self) -> usize {
        self.bundles.unwrap_or(200)
    }

    fn slots(&self) -> usize {
        self.slots.unwrap_or(if self.delay.is_some() { 2 } else { 16 })
    }

    fn replicas(&self) -> Vec<usize> {
        match (&*self.replicas, self.delay) {
            ([], None) => vec![1, 3],
            ([], Some(_)) => vec![1, 3, 5],
            (given, _) => given.to_vec(),
        }
    }
}

#[derive(Clone, Subcommand)]
enum Role {
    /// The bare loop, in a process of its own so that its CPU and memory can be told.
    #[command(hide = true)]
    Bare(bare::Arguments),
}

/// What the first version must reach, as a share of the bare loop's throughput.
const FIRST_BAR: f64 = 0.40;
/// The same for charts.
const CHART_BAR: f64 = 0.30;
/// What the first version may use, in megabytes, the engine apart.
const MEMORY_BAR: f64 = 60.0;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(Role::Bare(bare)) = &arguments.role {
        return bare::run(bare).await;
    }
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(&world::built_binary()?, tools, Downstream::Bare).await?;
    let result = match &arguments {
        Arguments { steady: true, .. } => rest::run(&world, &arguments).await,
        Arguments { scale: true, .. } => scale::run(&world, &arguments).await,
        _ => measure(&world, &arguments).await,
    };
    world.conclude(result)
}

async fn measure(world: &World, arguments: &Arguments) -> anyhow::Result<()> {
    let what = if arguments.chart { "charts" } else { "bundles" };
    let size = format!("{} {what} of {} ConfigMaps", arguments.bundles(), arguments.objects);
    eprintln!("{size}, {} slots, {} rounds", arguments.slots(), arguments.rounds);
    // A bare loop knows nothing of bundles that come later, and has nothing to share a delay with.
    let with_bare = arguments.delay.is_none() && arguments.arrival == Arrival::Waiting;
    let mut bare = Vec::new();
    let mut all: Vec<(usize, Vec<Figures>)> =
        arguments.replicas().into_iter().map(|replicas| (replicas, Vec::new())).collect();
    for round in 1..=arguments.rounds {
        // Interleaved, so that a machine that grows slower or faster does it to all alike.
        if with_bare {
            let ground = Ground::prepare(world, &format!("bare-{round}"), arguments).await?;
            ground.publish().await?;
            bare.push(told(round, bare::spawn(world, &ground, arguments).await?));
            ground.clear().await?;
        }
        for (replicas, runs) in &mut all {
            let ground = Ground::prepare(world, &format!("agents-{replicas}-{round}"), arguments).await?;
            runs.push(told(round, agents::run(world, &ground, *replicas, arguments).await?));
            ground.clear().await?;
        }
    }
    let medians: Vec<Figures> = all.iter().map(|(_, runs)| Figures::median(runs)).collect();
    let bare = with_bare.then(|| Figures::median(&bare));
    println!("{}", figures::table(&size, bare.as_ref(), &medians));
    let met = match (&bare, all.iter().position(|(replicas, _)| *replicas == 1)) {
        (Some(bare), Some(one)) => {
            first_bar(bare, &medians[one], if arguments.chart { CHART_BAR } else { FIRST_BAR })
        }
        _ => true,
    };
    if arguments.check && !met {
        bail!("the first bar is missed");
    }
    Ok(())
}

fn first_bar(bare: &Figures, one: &Figures, bar: f64) -> bool {
    let (share, memory) = (one.bundles_per_second() / bare.bundles_per_second(), one.memory);
    let met = share >= bar && memory <= MEMORY_BAR;
    println!(
        "first bar, one replica: {:.0} % of the bare loop (at least {:.0} %), {memory:.0} MB (at most {MEMORY_BAR:.0} MB): {}",
        share * 100.0,
        bar * 100.0,
        if met { "met" } else { "missed" },
    );
    met
}

fn told(round: usize, figures: Figures) -> Figures {
    eprintln!("round {round}: {:<12} {:6.1} bundles/s", figures.name, figures.bundles_per_second());
    figures
}
