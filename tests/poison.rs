// SPDX-License-Identifier: Apache-2.0
//! A bundle that kills whoever deploys it, on real control planes: it ends in quarantine, and who was at work beside it
//! does not.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use flotilla::api::keys;
use flotilla::telemetry::events::reason;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::Tools;
use harness::bundles::Bundle;
use harness::judge;
use harness::records::Records;
use harness::units::{Claim, Units, word};
use harness::world::{Downstream, World};

const POISON: &str = "poison";
const SLOTS: usize = 8;
/// As many as two replicas work on beside it.
const BYSTANDERS: usize = 12;
/// So large that each is still at work when its replica is killed.
const OBJECTS: usize = 200;
/// Losses that lead to quarantine.
const KILLS: u32 = 3;
/// Longer than a takeover from a dead session (18 s) and the work itself; the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn who_works_beside_a_unit_that_kills_its_replicas_is_not_quarantined_for_it() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, records) = (world.units().await?, world.records().await?);
    let names: Vec<String> = (0..BYSTANDERS).map(|index| format!("bystander-{index:02}")).collect();
    let all = names.iter().map(String::as_str).chain([POISON]);
    let bundles: Vec<Bundle> = all.map(|name| Bundle::config_maps(name, name, OBJECTS, "1")).collect();
    // Before anybody is there to work on them, so that they are worked on together.
    world.publisher().await?.publish(&bundles).await?;
    let mut replicas = BTreeMap::new();
    for replica in world.ready_replicas(2, SLOTS).await? {
        replicas.insert(replica.name().to_owned(), replica);
    }
    for attempt in 1..=KILLS {
        let is_it = |claim: &Claim| claim.unit == POISON && claim.attempt == attempt;
        let claim = units.until_claim("the next attempt", BOUND, is_it).await?;
        ensure!(claim.end.is_none() && claim.lost == attempt - 1, "{claim:?}");
        let Some(mut killed) = replicas.remove(&claim.holder) else { anyhow::bail!("who is {claim:?}") };
        killed.kill()?;
        replicas.insert(claim.holder.clone(), world.replica(&claim.holder, SLOTS)?);
    }
    let told = units
        .until("the quarantine", BOUND, |live| {
            let condition = live.get(POISON)?.condition(keys::CLAIM_CONDITION)?.clone();
            (condition.reason == "Quarantined").then_some(condition.message)
        })
        .await?;
    ensure!(word(&told, "lost") == Some("3"), "{told}");
    world.event(reason::QUARANTINED, "bundle poison: quarantined after 3 attempts").await?;
    evidence_is_kept(world, &units, &records, &told).await?;
    units.until_ready(names.iter().map(String::as_str), BOUND).await?;

    let claims = units.claims();
    let hit = |times| claims.iter().filter(|claim| claim.unit != POISON && claim.lost == times).count();
    eprintln!("claims of bystanders after one loss: {}, after two: {}", hit(1), hit(2));
    ensure!(hit(1) > 0, "nobody was at work beside it");
    let condemned: Vec<&Claim> = claims.iter().filter(|claim| claim.lost >= KILLS).collect();
    assert_eq!(condemned, Vec::<&Claim>::new());
    for one in claims.iter().filter(|claim| claim.lost == KILLS - 1) {
        let beside: Vec<&Claim> = claims.iter().filter(|other| were_together(one, other)).collect();
        assert_eq!(beside, Vec::<&Claim>::new(), "it was to be alone: {one:?}");
    }
    assert_eq!(judge::verdict(&claims, &records.all(), &[]).doubles, Vec::<String>::new());
    Ok(())
}

/// The cause of the quarantined claim names the sessions, the last holder and how far it came, as the servers saw it.
async fn evidence_is_kept(world: &World, units: &Units, records: &Records, told: &str) -> anyhow::Result<()> {
    let lost: Vec<Claim> = units.claims().into_iter().filter(|claim| claim.unit == POISON).collect();
    // A status must stay small: a claim keeps the beginnings of the sessions.
    let sessions: Vec<&str> = lost.iter().filter_map(|claim| claim.session.get(..8)).collect();
    let Some((_, cause)) = told.split_once(" cause=") else { anyhow::bail!("no cause: {told}") };
    ensure!(sessions.len() == KILLS as usize && sessions.iter().all(|it| cause.contains(it)), "{cause}");
    let record = records.of(POISON, POISON).pop().filter(harness::records::Record::is_pending);
    let step = match record.and_then(|record| record.stamp.map(|stamp| (record.revision, stamp.to_string())))
    {
        None => "before it opened a revision (load, render)".to_owned(),
        Some((revision, stamp)) => {
            let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, POISON);
            let maps = maps.list_metadata(&ListParams::default()).await?;
            let its = |map: &&_| ResourceExt::annotations(*map).get(keys::EPOCH_ANNOTATION) == Some(&stamp);
            let written = maps.items.iter().filter(its).count();
            format!("revision {revision} was open, {written} objects were written")
        }
    };
    let holder = lost.last().map(|claim| claim.holder.clone()).unwrap_or_default();
    ensure!(cause.ends_with(&format!("; last by {holder}: {step}")), "{cause} should tell: {step}");
    Ok(())
}

/// Whether one session worked on both at one time.
fn were_together(one: &Claim, other: &Claim) -> bool {
    let begun_in = |a: &Claim, b: &Claim| b.ended.is_none_or(|ended| a.seen < ended);
    one.session == other.session && one.unit != other.unit && begun_in(one, other) && begun_in(other, one)
}
