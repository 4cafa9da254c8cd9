// SPDX-License-Identifier: Apache-2.0
//! The demonstration behind `dev/demo`: two control planes, three replicas, the bundles of `dev/bundles`; one busy
//! replica is killed and another stopped in the middle. Fails unless everything is as promised.

#[path = "harness/mod.rs"]
mod harness;

#[path = "demonstration/disturb.rs"]
mod disturb;
#[path = "demonstration/progress.rs"]
mod progress;
#[path = "demonstration/summary.rs"]
mod summary;
#[path = "demonstration/top.rs"]
mod top;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use harness::bundles::Bundle;
use harness::replica::Replica;
use harness::world::{self, Downstream, World};
use harness::{Tools, fleet, program};
use progress::Clock;

/// Worker slots of each replica: few, so that the bundles are spread in time and the claims can be watched.
const SLOTS: usize = 4;
/// Simulated nodes.
const NODES: usize = 3;
/// Longer than any run on a loaded machine: a takeover alone takes 18 s.
const BOUND: Duration = Duration::from_secs(240);
/// What the clusters are made of, and what the visitor looks around with.
const PROGRAMS: [&str; 7] =
    ["etcd", "helm", "kwok", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

/// Three replicas deploy 74 bundles to a simulated cluster, while one is killed and one is stopped.
#[derive(Parser)]
struct Arguments {
    /// Leave everything running at the end, until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    program::tell(tell(&Arguments::parse())).await
}

async fn tell(arguments: &Arguments) -> anyhow::Result<()> {
    let setup = Clock::start();
    let bundles = Bundle::read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("dev/bundles"))?;
    println!("building the cluster programs where needed …");
    let tools = Tools::build(&PROGRAMS)?;
    println!("starting two control planes and {NODES} simulated nodes …");
    let world = World::start(&world::built_binary()?, tools, Downstream::Nodes(NODES)).await?;
    let result = run(&world, &bundles, &setup).await;
    if arguments.keep && result.is_ok() {
        let replicas = result?;
        println!(
            "{}\nTo stop everything: Ctrl-C here, or kill -INT {}.",
            summary::look_around(&world),
            std::process::id()
        );
        tokio::signal::ctrl_c().await?;
        drop(replicas);
        println!("\nEverything is stopped.");
        return Ok(());
    }
    if result.is_ok() {
        println!("Everything is stopped again. `dev/demo --keep` leaves it running, to look around.");
    }
    world.conclude(result.map(drop))
}

/// The processes at the end, by name; dropping them ends them.
type Running = (BTreeMap<String, Replica>, harness::replica::Controller);

async fn run(world: &World, bundles: &[Bundle], setup: &Clock) -> anyhow::Result<Running> {
    let controller = world.controller("controller", &[])?;
    let replicas = world.ready_replicas(3, SLOTS).await?;
    let mut replicas: BTreeMap<String, Replica> =
        replicas.into_iter().map(|replica| (replica.name().to_owned(), replica)).collect();
    println!(
        "ready after {:.1} s: agent of cluster {}/{} with Fleet's own narrow rights, {} replicas of {SLOTS} slots{}",
        setup.seconds(),
        fleet::REGISTRATION_NAMESPACE,
        world.registration.cluster,
        replicas.len(),
        // Honest about the times below: `dev/bench` measures the optimised build.
        if cfg!(debug_assertions) { " (debug build)" } else { "" },
    );

    let (units, records) = (world.units().await?, world.records().await?);
    let clock = Clock::start();
    let progress = progress::print(units.changes(), clock);
    println!("\n{:>7}  publishing {} bundles", clock.label(), bundles.len());
    let publisher = world.publisher().await?;
    let publishing = publisher.publish(bundles);
    let disturbing = disturb::disturb(world, &units, &records, &mut replicas, bundles.len(), clock);
    let showing = top::show(world, &units, bundles.len(), clock);
    let (published, disturbances, shown) = tokio::join!(publishing, disturbing, showing);
    published?;
    shown?;
    let disturbances = disturbances?;
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;
    let seconds = clock.seconds();
    drop(progress);

    let table = summary::summarise(world, &units, &records, &disturbances, bundles, seconds).await?;
    println!("\n{}", table.text);
    for replica in replicas.values_mut() {
        replica.check()?;
    }
    table.verdict()?;
    Ok((replicas, controller))
}
