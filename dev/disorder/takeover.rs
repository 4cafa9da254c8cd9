// SPDX-License-Identifier: Apache-2.0
//! How long work lies there after its holder was killed or told to stop, with the times a release is shipped with.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::HelmOptions;
use tokio::time::Instant;

use super::judgement::quantile;
use crate::harness::GENEROUS;
use crate::harness::bundles::{Bundle, Publisher};
use crate::harness::replica::Replica;
use crate::harness::units::{Claim, Units};
use crate::harness::world::{World, ready};

/// Replicas; one is always the victim.
const REPLICAS: usize = 3;
/// Deployments a replica has at once, all of which are lost with it.
const SLOTS: usize = 4;
/// Objects of each bundle: enough that the kill hits the middle.
const OBJECTS: usize = 150;
/// Takeover after SIGKILL: TTL of 15 s, and a look, and the turn.
const AFTER_KILL: Duration = Duration::from_secs(18);
/// Takeover after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(1);
/// A unit that waits and never becomes ready.
const NEVER: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: never}\nspec:\n  selector: \
                     {matchLabels: {app: never}}\n  template:\n    metadata: {labels: {app: never}}\n    spec:\n      \
                     containers: [{name: main, image: 'example.invalid/main:1'}]\n";

/// Kills and stops `rounds` holders each, and tells the quantiles.
pub async fn measure(world: &World, rounds: usize) -> anyhow::Result<String> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let mut replicas = BTreeMap::new();
    for replica in world.ready_replicas(REPLICAS, SLOTS).await? {
        replicas.insert(replica.name().to_owned(), replica);
    }
    let (mut killed, mut stopped) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let times = kill(world, &units, &publisher, &mut replicas, round).await?;
        println!("SIGKILL {round}: taken over after {}", list(&times));
        killed.extend(times);
    }
    for round in 1..=rounds {
        let time = stop(world, &units, &publisher, &mut replicas, round).await?;
        println!("SIGTERM {round}: taken over after {}", list(&[time]));
        stopped.push(time);
    }
    let mut text = String::from(
        "| takeover after | claims | p50 | p99 | longest | promised |\n|---|---|---|---|---|---|\n",
    );
    for (name, times, limit) in [
        ("SIGKILL of a holder at work", &mut killed, AFTER_KILL),
        ("SIGTERM of a holder that waits", &mut stopped, AFTER_TERM),
    ] {
        times.sort();
        let seconds = |part| quantile(times, part).unwrap_or_default().as_secs_f64();
        text += &format!(
            "| {name} | {} | {:.2} s | {:.2} s | {:.2} s | {} s |\n",
            times.len(),
            seconds(0.5),
            seconds(0.99),
            seconds(1.0),
            limit.as_secs()
        );
        ensure!(quantile(times, 0.99).is_some_and(|time| time <= limit), "too slow:\n{text}");
    }
    Ok(text)
}

fn list(times: &[Duration]) -> String {
    times.iter().map(|time| format!("{:.2} s", time.as_secs_f64())).collect::<Vec<_>>().join(", ")
}

async fn kill(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    replicas: &mut BTreeMap<String, Replica>,
    round: usize,
) -> anyhow::Result<Vec<Duration>> {
    let bundles: Vec<Bundle> = (0..SLOTS * REPLICAS)
        .map(|index| Bundle::config_maps(&format!("kill-{round}-{index}"), "kill", OBJECTS, "1"))
        .collect();
    publisher.publish(&bundles).await?;
    let is_ours = |claim: &Claim| claim.unit.starts_with(&format!("kill-{round}-")) && claim.end.is_none();
    let first = units.until_claim("a holder at work", GENEROUS, is_ours).await?;
    let mut replica = replicas.remove(&first.holder).context("a holder of ours")?;
    let at = Instant::now();
    replica.kill()?;
    let lost: Vec<Claim> = units
        .claims()
        .into_iter()
        .filter(|claim| is_ours(claim) && claim.holder == first.holder && claim.seen <= at)
        .collect();
    let mut times = Vec::new();
    for claim in lost {
        let next = units
            .until_claim("the takeover", GENEROUS, |next| {
                next.unit == claim.unit && next.seen > claim.seen && next.session != claim.session
            })
            .await?;
        times.push(next.seen - at);
    }
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), GENEROUS).await?;
    revive(world, replicas, &first.holder).await?;
    Ok(times)
}

async fn stop(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    replicas: &mut BTreeMap<String, Replica>,
    round: usize,
) -> anyhow::Result<Duration> {
    let name = format!("wait-{round}");
    let bundle = Bundle::new(&name, &name).file("manifests/never.yaml", NEVER).with(|options| {
        options.helm = Some(HelmOptions { timeout_seconds: 600, ..HelmOptions::default() });
    });
    publisher.publish(std::slice::from_ref(&bundle)).await?;
    let waiting = units
        .until("a holder that waits", GENEROUS, |live| {
            let unit = live.get(&name)?;
            let claim = unit.condition(flotilla::api::keys::CLAIM_CONDITION)?;
            (claim.reason == "Waiting").then(|| claim.message.clone())
        })
        .await?;
    let holder =
        crate::harness::units::word(&waiting, "holder").context("a claim names its holder")?.to_owned();
    let mut replica = replicas.remove(&holder).context("a holder of ours")?;
    let at = Instant::now();
    replica.term()?;
    let next = units
        .until_claim("the takeover", GENEROUS, |claim| claim.unit == name && claim.holder != holder)
        .await?;
    let status = tokio::time::timeout(GENEROUS, replica.wait()).await??;
    ensure!(status.success(), "{holder} ended with {status} after SIGTERM");
    publisher.withdraw(&name).await?;
    revive(world, replicas, &holder).await?;
    Ok(next.seen - at)
}

async fn revive(world: &World, replicas: &mut BTreeMap<String, Replica>, name: &str) -> anyhow::Result<()> {
    let mut replica = world.replica(name, SLOTS)?;
    ready(&mut replica).await?;
    replicas.insert(name.to_owned(), replica);
    Ok(())
}
