// SPDX-License-Identifier: Apache-2.0
//! The cluster behind `dev/cluster up`: a real node, and Flotilla installed on it from its charts.
//!
//! `dev/cluster down` ends what this leaves running.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;

#[path = "harness/mod.rs"]
mod harness;

use harness::node::{Node, image};
use harness::{Lifetime, Tools, chart, fleet};

/// Start a cluster with a real node that stays until `dev/cluster down`.
#[derive(Parser)]
struct Arguments {
    /// Where data, logs and kubeconfigs go.
    #[arg(long)]
    dir: PathBuf,
    /// The flotilla binary, which becomes an image.
    #[arg(long)]
    binary: PathBuf,
    /// Replicas of the agent.
    #[arg(long, default_value_t = 3)]
    agents: usize,
    /// Worker slots of each.
    #[arg(long, default_value_t = 10)]
    slots: usize,
    /// Replicas of the controller.
    #[arg(long, default_value_t = 2)]
    controllers: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let tools = Tools::build(Tools::NODE)?;
    let node = Node::start(&tools, &arguments.dir, Lifetime::Detached).await?;
    let text = format!(
        "cluster      {}\nagents       namespace {}, bundles in {}\n\nexport KUBECONFIG={}\nexport PATH={}:{}:$PATH\n",
        node.plane.url(),
        fleet::AGENT_NAMESPACE,
        chart::LOCAL_NAMESPACE,
        node.plane.admin_kubeconfig().display(),
        tools.bin.display(),
        arguments.binary.parent().unwrap_or(Path::new(".")).display(),
    );
    std::fs::write(arguments.dir.join("summary"), &text).context("writing the summary")?;
    fleet::install_crds(&node.plane, &arguments.binary).await?;
    node.load(&image(&["--binary", &arguments.binary.display().to_string()])?)?;
    chart::install(&node, arguments.agents, arguments.slots, arguments.controllers, "dev")?;
    print!("{text}");
    Ok(())
}
