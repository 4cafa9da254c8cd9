// SPDX-License-Identifier: Apache-2.0
//! Two accidents: SIGKILL of a replica in the middle of a deployment, and SIGTERM of another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::Instant;

use super::BOUND;
use super::progress::Clock;
use crate::harness::judge::Ended;
use crate::harness::records::Records;
use crate::harness::replica::Replica;
use crate::harness::units::{Units, is_applied};
use crate::harness::until;
use crate::harness::world::World;

/// How long a stopped replica may take to bring its work to a safe point.
const GRACE: Duration = Duration::from_secs(30);

/// What was done to whom.
#[derive(Debug)]
pub struct Disturbances {
    /// The replica that got SIGKILL, and when.
    pub killed: Ended,
    /// The replica that got SIGTERM, and when.
    pub stopped: Ended,
}

/// Kills one busy replica, stops another, and starts a fresh one as a Deployment would.
pub async fn disturb(
    world: &World,
    units: &Units,
    records: &Records,
    replicas: &mut BTreeMap<String, Replica>,
    bundles: usize,
    clock: Clock,
) -> anyhow::Result<Disturbances> {
    units
        .until("a few bundles to be deployed", BOUND, |live| {
            (live.values().filter(|unit| is_applied(unit)).count() >= bundles / 5).then_some(())
        })
        .await?;

    let (victim, unit) = busy_replica(units, records, &[]).await?;
    let mut replica = replicas.remove(&victim).with_context(|| format!("{victim} is not ours"))?;
    let killed = Ended { holder: victim.clone(), at: Instant::now() };
    replica.kill()?;
    println!("{:>7}  >>> SIGKILL {victim}, in the middle of {unit}", clock.label());

    let (victim, unit) = busy_replica(units, records, &[&victim]).await?;
    let mut replica = replicas.remove(&victim).with_context(|| format!("{victim} is not ours"))?;
    let stopped = Ended { holder: victim.clone(), at: Instant::now() };
    replica.term()?;
    println!("{:>7}  >>> SIGTERM {victim}, in the middle of {unit}", clock.label());
    let ended = tokio::time::timeout(GRACE, replica.wait());
    let status = ended.await.with_context(|| format!("{victim} ignores SIGTERM"))??;
    if !status.success() {
        bail!("{victim} ended with {status} after SIGTERM");
    }
    let seconds = stopped.at.elapsed().as_secs_f64();
    println!("{:>7}  >>> {victim} ended in order after {seconds:.1} s", clock.label());

    let name = "replica-4";
    replicas.insert(name.into(), world.replica(name, super::SLOTS)?);
    println!("{:>7}  >>> {name} starts, as a Deployment would have it", clock.label());
    Ok(Disturbances { killed, stopped })
}

/// Waits for a replica that has opened a release and not finished it: its name, and the bundle.
async fn busy_replica(units: &Units, records: &Records, gone: &[&str]) -> anyhow::Result<(String, String)> {
    // Claims and records come from two servers, so neither watch alone would tell the moment.
    until("a replica in the middle of a deployment", BOUND, async || {
        let claims = units.claims();
        let pending = records.all().into_iter().filter(|record| record.is_pending());
        let epochs: BTreeSet<String> =
            pending.filter_map(|record| record.stamp).map(|stamp| stamp.epoch.0).collect();
        let busy = claims.iter().find(|claim| {
            claim.end.is_none() && epochs.contains(&claim.epoch) && !gone.contains(&claim.holder.as_str())
        });
        Ok(busy.map(|claim| (claim.holder.clone(), claim.unit.clone())))
    })
    .await
}
