// SPDX-License-Identifier: Apache-2.0
//! The benchmark behind `dev/bench`: how near replicas come to the limit, which is a loop that only sends the
//! very same writes, on the same control planes in the same minute.

#[path = "harness/mod.rs"]
mod harness;

#[path = "benchmark/agents.rs"]
mod agents;
#[path = "benchmark/bare.rs"]
mod bare;
#[path = "benchmark/figures.rs"]
mod figures;
#[path = "benchmark/ground.rs"]
mod ground;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Parser, Subcommand};

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
    /// Bundles in each run.
    #[arg(long, default_value_t = 200)]
    bundles: usize,
    /// ConfigMaps in each bundle.
    #[arg(long, default_value_t = 10)]
    objects: usize,
    /// Worker slots of a replica, and tasks of the bare loop.
    #[arg(long, default_value_t = 16)]
    slots: usize,
    /// Fail when the first bar is missed.
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Subcommand)]
enum Role {
    /// The bare loop, in a process of its own so that its CPU and memory can be told.
    #[command(hide = true)]
    Bare(bare::Arguments),
}

/// What the first version must reach, as a share of the bare loop's throughput.
const FIRST_BAR: f64 = 0.40;
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
    let result = measure(&world, &arguments).await;
    world.conclude(result)
}

async fn measure(world: &World, arguments: &Arguments) -> anyhow::Result<()> {
    let size = format!("{} bundles of {} ConfigMaps", arguments.bundles, arguments.objects);
    eprintln!("{size}, {} slots, {} rounds", arguments.slots, arguments.rounds);
    let (mut bare, mut one, mut three) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=arguments.rounds {
        // Interleaved, so that a machine that grows slower or faster does it to all alike.
        let ground = Ground::prepare(world, &format!("bare-{round}"), arguments).await?;
        bare.push(told(round, bare::spawn(world, &ground, arguments).await?));
        ground.clear().await?;
        for (replicas, runs) in [(1, &mut one), (3, &mut three)] {
            let ground = Ground::prepare(world, &format!("agents-{replicas}-{round}"), arguments).await?;
            runs.push(told(round, agents::run(world, &ground, replicas, arguments).await?));
            ground.clear().await?;
        }
    }
    let (bare, one, three) = (Figures::median(&bare), Figures::median(&one), Figures::median(&three));
    println!("{}", figures::table(&size, &bare, &[&one, &three]));
    let (share, memory) = (one.bundles_per_second() / bare.bundles_per_second(), one.memory);
    let met = share >= FIRST_BAR && memory <= MEMORY_BAR;
    println!(
        "first bar, one replica: {:.0} % of the bare loop (at least {:.0} %), {memory:.0} MB (at most {MEMORY_BAR:.0} MB): {}",
        share * 100.0,
        FIRST_BAR * 100.0,
        if met { "met" } else { "missed" },
    );
    if arguments.check && !met {
        bail!("the first bar is missed");
    }
    Ok(())
}

fn told(round: usize, figures: Figures) -> Figures {
    eprintln!("round {round}: {:<12} {:6.1} bundles/s", figures.name, figures.bundles_per_second());
    figures
}
