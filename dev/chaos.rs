// SPDX-License-Identifier: Apache-2.0
//! The chaos behind `dev/chaos`: four replicas deploy bundles that never stop changing, while processes, servers,
//! connections and clocks go wrong; then the judge looks at everything the two stores saw.

#[path = "harness/mod.rs"]
mod harness;

#[path = "disorder/mod.rs"]
mod disorder;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use disorder::Settings;
use harness::world::{self, Downstream, World};
use harness::{Tools, program};

/// Real processes on two real control planes, with everything going wrong that can, and a judge at the end.
#[derive(Parser)]
struct Arguments {
    /// What faults and load are drawn from [default: drawn itself, and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// How long things go wrong.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Average time between two faults, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    gap: u64,
    /// Replicas.
    #[arg(long, default_value_t = 4)]
    replicas: usize,
    /// Worker slots of each.
    #[arg(long, default_value_t = 4)]
    slots: usize,
    /// Names of bundles.
    #[arg(long, default_value_t = 32)]
    bundles: usize,
    /// Within this many seconds after the last fault everything must be in order.
    #[arg(long, default_value_t = 240)]
    calm: u64,
    /// Where to write the report, too.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Instead of chaos: kill and stop this many holders each, with the times a release is shipped with, and tell how
    /// long their work lay there.
    #[arg(long, value_name = "ROUNDS")]
    measure_takeover: Option<usize>,
    /// Leave logs and audit logs on disk in any case, and say where.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    program::tell(tell(&Arguments::parse())).await
}

async fn tell(arguments: &Arguments) -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    if let Some(rounds) = arguments.measure_takeover {
        let world = World::start(&world::built_binary()?, tools, Downstream::Bare).await?;
        let measured = disorder::takeover::measure(&world, rounds).await;
        return world.conclude(measured.map(|text| println!("\n{text}")));
    }
    #[expect(clippy::disallowed_methods, reason = "the seed that a run without one is drawn from")]
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("seed {seed}");
    let settings = Settings {
        gap: Duration::from_millis(arguments.gap),
        replicas: arguments.replicas,
        slots: arguments.slots,
        bundles: arguments.bundles,
        calm: Duration::from_secs(arguments.calm),
        ..Settings::short(seed, Duration::from_secs(arguments.seconds))
    };
    let binary = world::built_binary()?;
    let mut world = World::start_with(&binary, tools, Downstream::Bare, disorder::options()).await?;
    println!("everything is in {}", world.dir().display());
    let result = disorder::run(&mut world, &settings).await.and_then(|report| {
        println!("\n{}", report.text);
        if let Some(path) = &arguments.report {
            std::fs::write(path, &report.text).with_context(|| path.display().to_string())?;
        }
        report.verdict()
    });
    if arguments.keep {
        world.keep();
    }
    world.conclude(result)
}
