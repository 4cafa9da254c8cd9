// SPDX-License-Identifier: Apache-2.0
//! A replica that is told to stop hands its work over: a peer goes on within a second.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::units::{Claim, Units};
use harness::world::{Downstream, World, ready};
use harness::{GENEROUS, Tools};

const BOUND: Duration = Duration::from_secs(120);
/// From the end of the old claim to the new one.
const HAND_OVER: Duration = Duration::from_secs(1);
/// A bundle large enough to be interrupted in the middle.
const OBJECTS: usize = 400;

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_replicas_deployments_are_taken_up_within_a_second() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);

    // In the middle of its objects.
    let mut first = world.replica_with("first", 4, &["--shutdown-grace=0s"])?;
    ready(&mut first).await?;
    publisher.publish(&[Bundle::config_maps("large", "large", OBJECTS, "1")]).await?;
    let claim = units.until_claim("the first claim", GENEROUS, |claim| claim.unit == "large").await?;
    let mut second = world.ready_replica("second", 4).await?;
    ensure!(units.claims().iter().all(|claim| claim.end.is_none()), "the first was done too soon");
    let asked = Instant::now();
    first.term()?;
    let next = next_claim(&units, &claim, "second").await?;
    let took = next.seen - asked;
    eprintln!("in the middle of {OBJECTS} objects: taken up {took:?} after SIGTERM");
    ensure!(took <= HAND_OVER, "taken up only after {took:?}");
    assert_eq!(next.lost, 0, "a hand-over is no loss");
    ensure!(tokio::time::timeout(GENEROUS, first.wait()).await??.success(), "it did not end well");
    units.until_ready(["large"], BOUND).await?;

    // While it waits for what never becomes ready.
    let waits =
        Bundle::new("waits", "waits").file("manifests/deployment.yaml", NEVER_READY).with(|options| {
            options.helm.get_or_insert_default().timeout_seconds = 300;
        });
    publisher.publish(&[waits]).await?;
    let claim = units.until_claim("the second claim", GENEROUS, |claim| claim.unit == "waits").await?;
    assert_eq!(claim.holder, "second");
    units
        .until("the wait", GENEROUS, |live| {
            let condition = live.get("waits")?.condition("InProgress")?.clone();
            (condition.reason == "Waiting").then_some(())
        })
        .await?;
    let _third = world.ready_replica("third", 4).await?;
    let asked = Instant::now();
    second.term()?;
    let next = next_claim(&units, &claim, "third").await?;
    let took = next.seen - asked;
    eprintln!("in a wait: taken up {took:?} after SIGTERM");
    ensure!(took <= HAND_OVER, "taken up only after {took:?}");
    Ok(())
}

async fn next_claim(units: &Units, before: &Claim, holder: &str) -> anyhow::Result<Claim> {
    let is_next = |claim: &Claim| claim.unit == before.unit && claim.nonce != before.nonce;
    let next = units.until_claim("the hand-over", GENEROUS, is_next).await.context(before.unit.clone())?;
    assert_eq!(next.holder, holder);
    Ok(next)
}

const NEVER_READY: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: idle}
spec:
  replicas: 1
  selector: {matchLabels: {app: idle}}
  template:
    metadata: {labels: {app: idle}}
    spec: {containers: [{name: idle, image: example.test/idle:1}]}
";
