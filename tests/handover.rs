// SPDX-License-Identifier: Apache-2.0
//! A replica that is told to stop hands its work over: a peer goes on within a second.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, NEVER_READY};
use harness::proxy::{Mode, Proxy, Way};
use harness::units::{Claim, Units};
use harness::world::{Downstream, World, ready};
use harness::{GENEROUS, Tools, fleet};

const BOUND: Duration = Duration::from_secs(120);
/// From the end of the old claim to the new one.
const HAND_OVER: Duration = Duration::from_secs(1);
/// From SIGTERM to the end when nothing is answered: a grace of a second, and time to hand over and to leave; far less than
/// what requests that time out one after another would take.
const LAST: Duration = Duration::from_secs(15);
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

/// Its management cluster does not answer it any more; nobody else notices.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_requests_get_no_answer_stops_all_the_same() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = unanswered(&world).await;
    world.conclude(result)
}

async fn unanswered(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let proxy = Proxy::start(world.upstream.port).await?;
    fleet::register_through(&world.upstream, &proxy.url(), &world.downstream, "shop").await?;
    let start = async |name: &str, flags: &[&str]| {
        let mut replica = world.replica_with(name, 4, flags)?;
        proxy.introduce(name, replica.pid());
        ready(&mut replica).await.map(|()| replica)
    };
    for (round, mode) in
        [Mode::Stall(Way::Up), Mode::Stall(Way::Down), Mode::HalfOpen].into_iter().enumerate()
    {
        let (first, second, bundle) =
            (format!("first-{round}"), format!("second-{round}"), format!("large-{round}"));
        let mut stopped = start(&first, &["--shutdown-grace=1s"]).await?;
        publisher.publish(&[Bundle::config_maps(&bundle, &bundle, OBJECTS, "1")]).await?;
        let claim = units.until_claim("the first claim", GENEROUS, |claim| claim.unit == bundle).await?;
        let peer = start(&second, &[]).await?;
        ensure!(claim.end.is_none() && claim.holder == first, "{claim:?}");
        proxy.set(&first, mode);
        let asked = Instant::now();
        stopped.term()?;
        let status = tokio::time::timeout(GENEROUS, stopped.wait()).await.context("it did not end")??;
        eprintln!("{mode:?}: ended {:?} after SIGTERM", asked.elapsed());
        ensure!(status.success(), "it did not end well: {status}");
        ensure!(asked.elapsed() <= LAST, "it ended only {:?} after SIGTERM", asked.elapsed());
        // Its claim stayed, and with its Lease gone a peer need not wait for it to fall silent. Where only the answers
        // are held back, its last write may have ended the claim.
        units.until_ready([bundle.as_str()], BOUND).await?;
        let next = units.claims().into_iter().find(|next| is_next(next, &claim));
        match next {
            Some(next) => {
                assert_eq!(next.holder, second);
                eprintln!("{mode:?}: taken up {:?} after SIGTERM", next.seen - asked);
            }
            None => ensure!(mode == Mode::Stall(Way::Down), "{mode:?}: nobody took it up"),
        }
        drop(peer);
    }
    Ok(())
}

async fn next_claim(units: &Units, before: &Claim, holder: &str) -> anyhow::Result<Claim> {
    let next = units
        .until_claim("the hand-over", GENEROUS, |claim| is_next(claim, before))
        .await
        .context(before.unit.clone())?;
    assert_eq!(next.holder, holder);
    Ok(next)
}

fn is_next(claim: &Claim, before: &Claim) -> bool {
    claim.unit == before.unit && claim.nonce != before.nonce
}
