// SPDX-License-Identifier: Apache-2.0
//! A replica that freezes in the middle of its work and wakes up after others have gone on overwrites nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::keys;
use flotilla::telemetry::events::reason;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::judge;
use harness::records::{Trace, Traces};
use harness::world::{Downstream, World, counter};
use harness::{GENEROUS, Tools, until};

const BUNDLE: &str = "ledger";
/// Enough that the freeze hits the middle of the work.
const OBJECTS: usize = 300;
/// The second version has fewer: what the sleeper would still create must not come back.
const OBJECTS_LATER: usize = 240;
/// When the replica freezes: a fifth is there.
const FREEZE_AT: usize = 60;
/// A takeover from a frozen session takes 18 s; the machine may be busy.
const BOUND: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_replica_overwrites_nothing_when_it_thaws() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, records) = (world.units().await?, world.records().await?);
    let traces = Traces::follow(world.downstream.admin().await?, BUNDLE).await?;
    let publisher = world.publisher().await?;

    // One slot: the sleeper must end what it was doing before it can take up anything else.
    let mut sleeper = world.ready_replica("sleeper", 1).await?;
    publisher.publish(&[Bundle::config_maps(BUNDLE, BUNDLE, OBJECTS, "1")]).await?;
    traces.until("a part of the bundle", GENEROUS, |all| (all.len() >= FREEZE_AT).then_some(())).await?;
    sleeper.stop_signal()?;
    let frozen_at = traces.all().len();
    ensure!(frozen_at < OBJECTS, "the replica was done before it could be frozen");
    let first = units.until_claim("the sleeper's claim", GENEROUS, |_| true).await?;
    ensure!(first.holder == "sleeper" && first.end.is_none(), "{first:?}");

    let mut worker = world.ready_replica("worker", 4).await?;
    let second = units.until_claim("the takeover", BOUND, |claim| claim.holder == "worker").await?;
    assert_eq!((second.attempt, second.lost), (2, 1));
    units.until_ready([BUNDLE], BOUND).await?;
    let later = Bundle::config_maps(BUNDLE, BUNDLE, OBJECTS_LATER, "2");
    publisher.publish(std::slice::from_ref(&later)).await?;
    units
        .until("the second version", BOUND, |live| {
            let status = live.get(BUNDLE)?.status.as_ref()?;
            (status.applied_deployment_id == later.deployment_id()).then_some(())
        })
        .await?;
    units.until_ready([BUNDLE], BOUND).await?;
    worker.term()?;
    worker.wait().await?;
    let revisions = records.of(BUNDLE, BUNDLE);

    sleeper.cont()?;
    // Its only slot is free again once it has given up the old work.
    publisher.publish(&[Bundle::config_maps("next", BUNDLE, 1, "1")]).await?;
    units.until_ready(["next"], BOUND).await?;
    let next = units.until_claim("the sleeper's next claim", GENEROUS, |claim| claim.unit == "next").await?;
    assert_eq!(next.holder, "sleeper");
    sleeper.check()?;

    // Whatever stopped it: the loss of its claim, a stamp, or a version.
    it_is_said(world, reason::STALE_WRITE_REFUSED).await?;
    assert_eq!(counter(&sleeper, "flotilla_stale_writes_refused_total").await?, 1, "one deployment");
    it_is_said(world, reason::TAKEN_OVER).await?;
    assert_eq!(records.of(BUNDLE, BUNDLE), revisions, "the sleeper touched the release");
    assert!(!revisions[0].was_deployed(), "{:?}", revisions[0]);
    let judged = judge::verdict(&units.claims(), &records.all(), &[]);
    assert_eq!(judged.doubles, Vec::<String>::new());
    units.until_ready([BUNDLE], GENEROUS).await?;

    let all = traces.all();
    for (name, trace) in all.iter().filter(|(name, _)| name.starts_with(BUNDLE)) {
        let index: usize = name.trim_start_matches("ledger-").parse()?;
        // S1: no write of an older epoch after a newer one.
        let epochs: Vec<_> = trace.stamps.iter().map(|stamp| &stamp.epoch).collect();
        assert!(epochs.is_sorted(), "{name} went back: {epochs:?}");
        let versions: Vec<&str> = trace.versions.iter().map(String::as_str).collect();
        let wanted = if index < OBJECTS_LATER { &["1", "2"][..] } else { &["1"][..] };
        assert_eq!((versions.as_slice(), trace.present), (wanted, index < OBJECTS_LATER), "{name}");
    }
    assert_eq!(all.values().filter(|trace| trace.present).count(), OBJECTS_LATER + 1);
    Ok(())
}

/// The claim upstream stays the sleeper's own, so that nothing but the stamps can tell it that it is late.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_over_a_newer_claims_is_refused_counted_and_told() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = late_write(&world).await;
    world.conclude(result)
}

async fn late_write(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let client = world.downstream.admin().await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), BUNDLE);
    let traces = Traces::follow(client, BUNDLE).await?;
    let mut sleeper = world.ready_replica("sleeper", 1).await?;
    publisher.publish(&[Bundle::config_maps(BUNDLE, BUNDLE, OBJECTS, "1")]).await?;
    units.until_ready([BUNDLE], BOUND).await?;
    let second = Bundle::config_maps(BUNDLE, BUNDLE, OBJECTS, "2");
    publisher.publish(std::slice::from_ref(&second)).await?;
    let part = |all: &BTreeMap<String, Trace>| {
        let done = all.values().filter(|trace| trace.versions.last().is_some_and(|version| version == "2"));
        (done.count() >= FREEZE_AT).then_some(())
    };
    traces.until("a part of the second version", GENEROUS, part).await?;
    sleeper.stop_signal()?;

    // What a successor would leave: a version of the management cluster that is newer than the sleeper's claim.
    let claim = units
        .until_claim("the sleeper's claim", GENEROUS, |claim| claim.deployment == second.deployment_id())
        .await?;
    ensure!(claim.end.is_none(), "the replica was done before it could be frozen");
    let newer = ConfigMap {
        metadata: ObjectMeta { name: Some("newer".into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let upstream: Api<ConfigMap> = Api::default_namespaced(world.upstream.admin().await?);
    let epoch = upstream.create(&PostParams::default(), &newer).await?.resource_version().unwrap_or_default();
    let stamp = format!("{}/{epoch}", claim.uid);
    let patch = json!({"metadata": {"annotations": {keys::EPOCH_ANNOTATION: stamp}}});
    let old = |map: &ConfigMap| map.data.as_ref().is_some_and(|data| data["version"] == "1");
    let mut stamped = Vec::new();
    for map in maps.list(&ListParams::default().labels(keys::HASH_LABEL)).await?.iter().filter(|map| old(map))
    {
        stamped.push(maps.patch(&map.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await?);
    }
    // Requests that were under way when it froze have landed, before the stamp or on it.
    stamped.retain(old);
    ensure!(!stamped.is_empty(), "the replica was done before it could be frozen");

    sleeper.cont()?;
    it_is_said(world, reason::STALE_WRITE_REFUSED).await?;
    let count = counter(&sleeper, "flotilla_stale_writes_refused_total").await?;
    assert_eq!(count, 1, "one deployment, given up at the first refusal");
    // A claim of its own that is newer still ends it well, and only that.
    units.until_ready([BUNDLE], BOUND).await?;
    let last = units.claims().pop().context("a claim")?;
    assert_ne!(last.nonce, claim.nonce);
    let wanted = [claim.uid.clone() + "/" + &epoch, claim.uid.clone() + "/" + &last.epoch];
    for name in stamped.iter().map(ResourceExt::name_any) {
        let stamps = |all: &BTreeMap<String, Trace>| -> Option<Vec<String>> {
            let stamps: Vec<String> = all.get(&name)?.stamps.iter().map(ToString::to_string).collect();
            stamps.last().is_some_and(|last| *last == wanted[1]).then_some(stamps)
        };
        let stamps = traces.until("the last version", GENEROUS, stamps).await?;
        assert_eq!(stamps[1..], wanted, "{name}");
    }
    Ok(())
}

async fn it_is_said(world: &World, what: &str) -> anyhow::Result<()> {
    let events: Api<Event> = Api::all(world.downstream.admin().await?);
    let told = |event: &Event| {
        let its = |note: &String| note.starts_with(&format!("bundle {BUNDLE}: "));
        event.reason.as_deref() == Some(what) && event.note.as_ref().is_some_and(its)
    };
    until(&format!("an Event {what}"), GENEROUS, async || {
        Ok(events.list(&ListParams::default()).await?.iter().any(told).then_some(()))
    })
    .await
}
