// SPDX-License-Identifier: Apache-2.0
//! When no agent is left, the controllers expire each claim once, and new agents finish the work.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::judge::{self, Ended};
use harness::units::End;
use harness::world::{Downstream, World, counter};
use harness::{GENEROUS, Tools, until};

const BUNDLES: usize = 12;
/// The budget the agents write into their claims: enough for a bundle, little to wait for.
const CLAIM_TIMEOUT: &str = "--claim-timeout=20s";
/// How much later than that the controller acts.
const CLAIM_MARGIN: &str = "--claim-margin=2s";
const OBJECTS: usize = 60;
const BOUND: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_expire_what_dead_agents_held_once_and_new_ones_finish_it() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, records) = (world.units().await?, world.records().await?);
    let publisher = world.publisher().await?;
    let bundles: Vec<Bundle> = (0..BUNDLES)
        .map(|index| Bundle::config_maps(&format!("orphan-{index:02}"), "orphans", OBJECTS, "1"))
        .collect();
    let names = || bundles.iter().map(|bundle| bundle.name.as_str());

    let mut agent = world.ready_replica_with("first", 4, &[CLAIM_TIMEOUT]).await?;
    publisher.publish(&bundles).await?;
    until("the agent to be in the middle of several bundles", GENEROUS, async || {
        let open = units.claims().iter().filter(|claim| claim.end.is_none()).count();
        let pending = records.all().iter().filter(|record| record.is_pending()).count();
        Ok((open >= 2 && pending >= 2).then_some(()))
    })
    .await?;
    let ended = Ended { holder: "first".into(), at: Instant::now() };
    agent.kill()?;

    // Nobody but the controllers is left to see it; they begin to count at the same time.
    let mut controllers = [
        world.controller("controller-1", &[CLAIM_MARGIN])?,
        world.controller("controller-2", &[CLAIM_MARGIN])?,
    ];
    until("the claims to be expired", BOUND, async || {
        controllers.iter_mut().try_for_each(|controller| controller.check())?;
        Ok(units.claims().iter().all(|claim| claim.end.is_some()).then_some(()))
    })
    .await?;
    let expired = |end: &Option<End>| *end == Some(End::Closed("Expired".into()));
    let lost = units.claims().iter().filter(|claim| expired(&claim.end)).count();
    ensure!(lost >= 2, "only {lost} claims were expired");

    let _agents = (
        world.replica_with("second", 4, &[CLAIM_TIMEOUT])?,
        world.replica_with("third", 4, &[CLAIM_TIMEOUT])?,
    );
    units.until_ready(names(), BOUND).await?;
    let claims = units.claims();
    let judged = judge::verdict(&claims, &records.all(), &[ended]);
    assert_eq!(judged.doubles, Vec::<String>::new());
    assert_eq!(judged.takeovers, []);
    for (unit, repeats) in &judged.repeats {
        assert!(*repeats <= judge::lost_claims(&claims, unit), "{unit} was repeated {repeats} times");
    }
    for claim in claims.iter().filter(|claim| expired(&claim.end)) {
        let next = claims.iter().find(|next| next.unit == claim.unit && next.holder != "first");
        let counts = next.map(|next| (next.attempt, next.lost));
        assert_eq!(counts, Some((claim.attempt + 1, claim.lost + 1)), "{} forgot its counts", claim.unit);
    }

    let total = claims.iter().filter(|claim| expired(&claim.end)).count();
    let mut written = 0;
    for controller in &controllers {
        written += counter(controller, "flotilla_claims_expired_total").await?;
    }
    assert_eq!(written, u64::try_from(total)?, "each claim is expired by one of the two");
    let events: Api<Event> =
        Api::namespaced(world.upstream.admin().await?, &world.registration.cluster_namespace);
    let told = until("the Events to be written", GENEROUS, async || {
        let all = events.list(&ListParams::default()).await?.items;
        let told: Vec<Event> =
            all.into_iter().filter(|event| event.reason.as_deref() == Some("ClaimExpired")).collect();
        Ok((told.len() >= total).then_some(told))
    })
    .await?;
    let told: Vec<_> =
        told.iter().map(|event| (event.involved_object.name.as_deref(), event.count)).collect();
    assert_eq!(told.len(), total, "more Events than claims: {told:?}");
    assert!(told.iter().all(|(_, count)| count.is_none_or(|count| count == 1)), "told again: {told:?}");
    Ok(())
}
