// SPDX-License-Identifier: Apache-2.0
//! What it amounted to, counted from the audit logs and the release records.

use std::process::Command;

use anyhow::{Context, bail};
use comfy_table::{Table, presets};

use super::disturb::Disturbances;
use crate::harness::bundles::Bundle;
use crate::harness::judge::{self, Verdict};
use crate::harness::records::Records;
use crate::harness::units::{Units, is_ready};
use crate::harness::world::{self, World};

/// The table, and whatever is not as promised.
pub struct Summary {
    /// The table as text.
    pub text: String,
    broken: Vec<String>,
}

impl Summary {
    /// Fails with everything that is not as promised.
    pub fn verdict(&self) -> anyhow::Result<()> {
        match self.broken.as_slice() {
            [] => Ok(()),
            broken => bail!("{}", broken.join("; ")),
        }
    }
}

/// Counts, and compares with what was promised.
pub async fn summarise(
    world: &World,
    units: &Units,
    records: &Records,
    disturbances: &Disturbances,
    bundles: &[Bundle],
    seconds: f64,
) -> anyhow::Result<Summary> {
    let registration = &world.registration;
    let upstream = world::settled_audit(&world.upstream, &world.upstream.admin().await?).await?;
    let downstream = world::settled_audit(&world.downstream, &world.downstream.admin().await?).await?;
    let ended = [disturbances.killed.clone(), disturbances.stopped.clone()];
    let (claims, seen) = (units.claims(), records.all());
    let verdict = judge::verdict(&claims, &seen, &ended);
    let ready = units.live().values().filter(|unit| is_ready(unit)).count();
    let conflicts = judge::conflicts(&upstream, &registration.upstream_user, &registration.cluster_namespace);
    let repeats: usize = verdict.repeats.values().sum();
    let releases = helm_releases(world)?;

    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["", "counted"]);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("bundles ready", format!("{ready} of {}", bundles.len()));
    row("releases that helm lists as deployed", releases.to_string());
    for (holder, count) in &verdict.deployments {
        let fate = match holder {
            holder if *holder == disturbances.killed.holder => " (SIGKILL)",
            holder if *holder == disturbances.stopped.holder => " (SIGTERM)",
            _ => "",
        };
        row(&format!("deployments by {holder}{fate}"), count.to_string());
    }
    row("conflicts on claims and results", conflicts.to_string());
    row("takeovers", takeovers(&verdict));
    row("revisions repeated because a holder vanished", repeats.to_string());
    row("double deployments", verdict.doubles.len().to_string());
    row("seconds", format!("{seconds:.1}"));

    let killed_at_work =
        claims.iter().any(|claim| claim.holder == disturbances.killed.holder && judge::was_lost(claim));
    let mut broken = verdict.doubles.clone();
    let mut promise = |kept: bool, text: &str| {
        if !kept {
            broken.push(text.to_owned());
        }
    };
    promise(ready == bundles.len(), "not every bundle is ready");
    promise(releases == bundles.len(), "helm does not list one deployed release for each bundle");
    promise(killed_at_work, "nothing was taken over from the killed replica");
    promise(verdict.takeovers.iter().all(|t| !t.from_the_living), "a claim was taken from a living replica");
    promise(claims.iter().all(|claim| claim.end.is_some()), "a claim is left open");
    promise(
        judge::created_records(&downstream) == judge::seen_records(&seen),
        "audit log and release records do not agree on the revisions created",
    );
    Ok(Summary { text: table.to_string(), broken })
}

/// How to look around while everything runs.
pub fn look_around(world: &World) -> String {
    let tool = |name: &str| world.tools.path(name).display().to_string();
    let (kubectl, helm) = (tool("kubectl"), tool("helm"));
    let upstream = world.upstream.admin_kubeconfig();
    let downstream = world.downstream.admin_kubeconfig();
    format!(
        "Look around, in another terminal:\n  \
         KUBECONFIG={up} {kubectl} get bundledeployments -A\n  \
         KUBECONFIG={down} {kubectl} get deployments -A\n  \
         KUBECONFIG={down} {helm} list -A\n  \
         KUBECONFIG={up} {flotilla} top -n {namespace} --downstream-kubeconfig {down}\n  \
         logs: {logs}",
        up = upstream.display(),
        down = downstream.display(),
        flotilla = world.binary.display(),
        namespace = world.registration.cluster_namespace,
        logs = world.dir().display(),
    )
}

fn takeovers(verdict: &Verdict) -> String {
    let list: Vec<String> =
        verdict.takeovers.iter().map(|t| format!("{}: {} → {}", t.unit, t.from, t.to)).collect();
    match list.as_slice() {
        [] => "0".into(),
        list => format!("{}\n{}", list.len(), list.join("\n")),
    }
}

fn helm_releases(world: &World) -> anyhow::Result<usize> {
    let output = Command::new(world.tools.path("helm"))
        .args(["list", "--all-namespaces", "--deployed", "--short", "--max", "0"])
        .env("KUBECONFIG", world.downstream.admin_kubeconfig())
        .output()
        .context("running helm list")?;
    if !output.status.success() {
        bail!("helm list failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}
