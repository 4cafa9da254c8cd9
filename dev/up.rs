// SPDX-License-Identifier: Apache-2.0
//! The two clusters behind `dev/up`: an upstream, and a downstream with simulated nodes and a registered agent.
//!
//! `dev/down` ends what this leaves running.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;

#[path = "harness/mod.rs"]
mod harness;

use harness::{ControlPlane, Lifetime, Options, Tools, fleet};

/// Start an upstream and a downstream cluster that stay until `dev/down`.
#[derive(Parser)]
struct Arguments {
    /// Where data, logs and kubeconfigs go.
    #[arg(long)]
    dir: PathBuf,
    /// The flotilla binary; it prints the CRDs.
    #[arg(long)]
    binary: PathBuf,
    /// The name under which the downstream cluster is registered.
    #[arg(long, default_value = "demo")]
    cluster: String,
    /// Simulated nodes downstream.
    #[arg(long, default_value_t = 2)]
    nodes: usize,
    /// Milliseconds until a scheduled pod is ready.
    #[arg(long, default_value_t = 500)]
    pod_delay: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    #[expect(clippy::disallowed_methods, reason = "a measurement, for the reader")]
    let started = Instant::now();
    let tools = Tools::build(&[])?;
    let (up, down) = (fresh(&arguments.dir, "upstream")?, fresh(&arguments.dir, "downstream")?);
    let options = Options { lifetime: Lifetime::Detached, ..Options::default() };
    let (mut upstream, mut downstream) = tokio::try_join!(
        ControlPlane::start(&tools, &up, "upstream", options.clone()),
        ControlPlane::start(&tools, &down, "downstream", options),
    )?;
    // No nodes upstream, but deleted namespaces and owned objects go away there as in any cluster.
    upstream.start_workloads(&tools, 0, Duration::ZERO).await?;
    downstream.start_workloads(&tools, arguments.nodes, Duration::from_millis(arguments.pod_delay)).await?;
    fleet::install_crds(&upstream, &arguments.binary).await?;
    let registration = fleet::register(&upstream, &downstream, &arguments.cluster).await?;

    let text = summary(&arguments, &tools, &upstream, &downstream, &registration);
    fs::write(arguments.dir.join("summary"), &text).context("writing the summary")?;
    eprintln!("up in {:.1} s", started.elapsed().as_secs_f32());
    print!("{text}");
    Ok(())
}

/// An empty directory for a cluster; what an earlier run left there is removed.
fn fresh(base: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let dir = base.join(name);
    if dir.exists() {
        // Only ever a directory of ours, of which no process is left (dev/up has looked at the pids).
        if !dir.join("pids").exists() && !dir.join("ca.pem").exists() {
            bail!("{} exists and is not a cluster's directory", dir.display());
        }
        fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    Ok(dir)
}

fn summary(
    arguments: &Arguments,
    tools: &Tools,
    upstream: &ControlPlane,
    downstream: &ControlPlane,
    registration: &fleet::Registration,
) -> String {
    format!(
        "upstream    {}   (BundleDeployments in {})
downstream  {}
agent       {}   (namespace {})

export PATH={}:$PATH

Start a replica by hand, as many as you like, each with its own POD_NAME:

NAMESPACE={} POD_NAME=replica-a \\
FLEET_AGENT_METRICS_BIND_ADDRESS=127.0.0.1:0 FLEET_AGENT_PROBE_BIND_ADDRESS=127.0.0.1:0 \\
{} agent --kubeconfig {}
",
        upstream.admin_kubeconfig().display(),
        registration.cluster_namespace,
        downstream.admin_kubeconfig().display(),
        registration.agent_kubeconfig.display(),
        registration.agent_namespace,
        tools.bin.display(),
        registration.agent_namespace,
        arguments.binary.display(),
        registration.agent_kubeconfig.display(),
    )
}
