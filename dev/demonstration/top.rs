// SPDX-License-Identifier: Apache-2.0
//! What `flotilla top` shows in the middle of it: printed once, since this is no terminal to draw on.

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::BOUND;
use super::progress::Clock;
use crate::harness::units::{Units, is_applied};
use crate::harness::world::World;

/// Prints it when a third of the bundles is deployed.
pub async fn show(world: &World, units: &Units, bundles: usize, clock: Clock) -> anyhow::Result<()> {
    units
        .until("a third of the bundles to be deployed", BOUND, |live| {
            (live.values().filter(|unit| is_applied(unit)).count() >= bundles / 3).then_some(())
        })
        .await?;
    let output = Command::new(&world.binary)
        .args(["top", "--once", "--namespace", &world.registration.cluster_namespace])
        .arg("--downstream-kubeconfig")
        .arg(world.downstream.admin_kubeconfig())
        .env("KUBECONFIG", world.upstream.admin_kubeconfig())
        .output()
        .await
        .context("running flotilla top")?;
    ensure!(output.status.success(), "flotilla top failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: String = text.lines().map(|line| format!("{:>7}  │ {line}\n", "")).collect();
    print!("{:>7}  >>> flotilla top\n{lines}", clock.label());
    Ok(())
}
