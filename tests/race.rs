// SPDX-License-Identifier: Apache-2.0
//! Replicas race for bundles on real control planes: each bundle is deployed once, also when replicas are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::judge::{self, Ended};
use harness::records::Records;
use harness::replica::Replica;
use harness::units::Units;
use harness::world::{Downstream, World, settled_audit};
use harness::{GENEROUS, Tools, until};

const REPLICAS: usize = 5;
const SLOTS: usize = 4;
const BUNDLES: usize = 200;
const OBJECTS: usize = 10;
/// Each replica must do at least this much: 5 %.
const SHARE: usize = BUNDLES / 20;
/// Kills in the storm, one after each so many revisions.
const KILLS: usize = 8;
const REVISIONS_BETWEEN_KILLS: usize = 20;
/// Longer than a takeover from a dead session (18 s) for each of the kills, should they all come to that.
const BOUND: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread")]
async fn five_replicas_deploy_each_bundle_once_also_when_they_are_killed() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, records) = (world.units().await?, world.records().await?);
    let mut replicas = BTreeMap::new();
    for replica in world.ready_replicas(REPLICAS, SLOTS).await? {
        replicas.insert(replica.name().to_owned(), replica);
    }
    a_race_deploys_each_bundle_once_with_two_writes(world, &units, &records).await?;
    for replica in replicas.values_mut() {
        replica.check()?;
    }
    a_storm_of_kills_loses_nothing_and_repeats_no_more_than_it_must(world, &units, &records, &mut replicas)
        .await
}

fn bundles(prefix: &str) -> Vec<Bundle> {
    let bundle = |index| Bundle::config_maps(&format!("{prefix}-{index:03}"), prefix, OBJECTS, "1");
    (0..BUNDLES).map(bundle).collect()
}

async fn a_race_deploys_each_bundle_once_with_two_writes(
    world: &World,
    units: &Units,
    records: &Records,
) -> anyhow::Result<()> {
    let bundles = bundles("race");
    world.publisher().await?.publish(&bundles).await?;
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;

    let upstream = settled_audit(&world.upstream, &world.upstream.admin().await?).await?;
    let downstream = settled_audit(&world.downstream, &world.downstream.admin().await?).await?;
    let registration = &world.registration;
    let judged = judge::verdict(&units.claims(), &records.all(), &[]);
    assert_eq!(judged.doubles, Vec::<String>::new());
    assert_eq!(judged.takeovers, []);
    assert_eq!(judged.gates, BUNDLES, "one release revision for each bundle");
    assert_eq!(judge::created_records(&downstream), judge::seen_records(&records.all()));

    let writes =
        judge::status_writes(&upstream, &registration.upstream_user, &registration.cluster_namespace);
    let not_two: Vec<_> = writes.iter().filter(|(_, count)| **count != 2).collect();
    assert_eq!((writes.len(), not_two), (BUNDLES, Vec::new()), "claim and result, nothing else");
    let refused: BTreeSet<&str> = upstream
        .iter()
        .filter(|entry| entry.user == registration.upstream_user && entry.code == 403)
        .map(|entry| entry.uri.as_str())
        .collect();
    assert_eq!(refused, BTreeSet::new(), "the narrow rights are enough");

    assert_eq!(judged.deployments.values().sum::<usize>(), BUNDLES);
    assert_eq!(judged.deployments.len(), REPLICAS, "{:?}", judged.deployments);
    assert!(judged.deployments.values().all(|count| *count >= SHARE), "{:?}", judged.deployments);
    Ok(())
}

async fn a_storm_of_kills_loses_nothing_and_repeats_no_more_than_it_must(
    world: &World,
    units: &Units,
    records: &Records,
    replicas: &mut BTreeMap<String, Replica>,
) -> anyhow::Result<()> {
    let bundles = bundles("storm");
    let publisher = world.publisher().await?;
    let (published, ended) =
        tokio::join!(publisher.publish(&bundles), kill_at_random(world, units, records, replicas));
    published?;
    let ended = ended?;
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;

    let claims = units.claims();
    let storm: Vec<_> = records.all().into_iter().filter(|record| record.namespace == "storm").collect();
    let judged = judge::verdict(&claims, &storm, &ended);
    assert_eq!(judged.doubles, Vec::<String>::new());
    for (unit, repeats) in &judged.repeats {
        assert!(*repeats <= judge::lost_claims(&claims, unit), "{unit} was repeated {repeats} times");
    }
    let from_the_living: Vec<_> = judged.takeovers.iter().filter(|taken| taken.from_the_living).collect();
    assert!(from_the_living.is_empty(), "{from_the_living:?}");
    assert!(claims.iter().all(|claim| claim.end.is_some()), "a claim is left open");

    // What was there before a kill keeps its uid: nothing is deleted, and nothing is created twice. A request of one that
    // was killed meanwhile may be without an answer in the log.
    let audit = settled_audit(&world.downstream, &world.downstream.admin().await?).await?;
    let storm = audit.iter().filter(|entry| entry.namespace == "storm" && entry.resource == "configmaps");
    assert_eq!(storm.clone().filter(|entry| entry.verb.starts_with("delete")).count(), 0);
    let created: Vec<&str> = storm
        .filter(|entry| entry.is_write() && entry.code == 201)
        .map(|entry| entry.name.as_str())
        .collect();
    let once: BTreeSet<&str> = created.iter().copied().collect();
    assert_eq!(created.len(), once.len(), "objects were created twice");

    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, "storm");
    let found: BTreeSet<String> = maps
        .list(&ListParams::default())
        .await?
        .iter()
        .filter(|map| map.data.as_ref().is_some_and(|data| data["version"] == "1"))
        .map(|map| map.name_any())
        .collect();
    let wanted: BTreeSet<String> = bundles
        .iter()
        .flat_map(|bundle| (0..OBJECTS).map(|index| format!("{}-{index}", bundle.name)))
        .collect();
    assert_eq!(wanted.difference(&found).count(), 0, "objects are missing");
    Ok(())
}

/// SIGKILLs a random busy replica again and again, and starts it anew under the same name each time.
async fn kill_at_random(
    world: &World,
    units: &Units,
    records: &Records,
    replicas: &mut BTreeMap<String, Replica>,
) -> anyhow::Result<Vec<Ended>> {
    #[expect(clippy::disallowed_methods, reason = "each run draws its own kills, and prints the seed")]
    let seed = rand::random();
    eprintln!("kills drawn with seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let before = records.all().len();
    let mut ended = Vec::new();
    for kill in 1..=KILLS {
        let victim = until("a busy replica", GENEROUS, async || {
            if records.all().len() < before + kill * REVISIONS_BETWEEN_KILLS {
                return Ok(None);
            }
            let open: Vec<_> = units.claims().into_iter().filter(|claim| claim.end.is_none()).collect();
            // The third loss by two sessions is quarantine, which would be right and would last an hour.
            let worn: BTreeSet<&str> =
                open.iter().filter(|claim| claim.lost >= 2).map(|claim| claim.holder.as_str()).collect();
            let busy: BTreeSet<&str> = open.iter().map(|claim| claim.holder.as_str()).collect();
            let busy: Vec<String> = busy.difference(&worn).map(|name| (*name).to_owned()).collect();
            Ok(busy.choose(&mut random).cloned())
        })
        .await?;
        let at = Instant::now();
        if let Some(mut replica) = replicas.remove(&victim) {
            replica.kill()?;
        }
        replicas.insert(victim.clone(), world.replica(&victim, SLOTS)?);
        ended.push(Ended { holder: victim, at });
    }
    Ok(ended)
}
