// SPDX-License-Identifier: Apache-2.0
//! Three replicas over a deployed fleet: nothing is written at rest, nothing is read twice, a burst of changes is told at
//! the pace of one write a second, drift is corrected once, and the duties of a dead replica are taken over.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use chrono::{DateTime, TimeDelta, Utc};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::crowd::{Crowd, until_watches, watches};
use harness::mixed::{self, OBJECTS, WANTED};
use harness::requests::{self, closest, most_in_a_second};
use harness::world::{Downstream, World};
use harness::{AuditEntry, GENEROUS, Tools, until};

const BUNDLES: usize = 40;
/// Of these drift is corrected; they come first.
const CORRECTED: usize = 8;
/// A short silence is a death; nothing but Leases is written more often for it.
const SHORT: &[&str] = &["--session-ttl=6s", "--session-renew=1s"];
/// The limiter's second, with room for a clock of the wall that is not the limiter's.
const PACE: TimeDelta = TimeDelta::milliseconds(900);

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_at_rest_costs_nothing_and_a_busy_one_little() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let mut crowd = Crowd::publish(world, BUNDLES, 5, CORRECTED).await?;
    crowd.join(&["first-1", "first-2", "first-3"], SHORT).await?;
    crowd.until_ready(GENEROUS).await?;
    crowd.until_renewed(2).await?;
    crowd.kill_all()?;

    start_reads_each_kind_once(&mut crowd).await?;
    nothing_is_written_at_rest(&crowd).await?;
    drift_is_corrected_once(&crowd).await?;
    let evaluators = a_burst_is_told_at_a_pace(&crowd).await?;
    the_duties_of_the_dead_are_taken_over(&mut crowd, evaluators).await?;
    crowd.check()
}

fn now() -> DateTime<Utc> {
    #[expect(clippy::disallowed_methods, reason = "compared with the audit log's times")]
    Utc::now()
}

/// Replicas that find everything deployed list each kind once, and keep one watch of it.
async fn start_reads_each_kind_once(crowd: &mut Crowd<'_>) -> anyhow::Result<()> {
    let plane = &crowd.world.downstream;
    // The dead ones' watches end when their connections are seen to be closed.
    let before = until("the watches of the dead to end", GENEROUS, async || {
        let now = watches(plane).await?;
        Ok((now.get("podtemplates").copied().unwrap_or_default() == 0).then_some(now))
    })
    .await?;
    let (since, count) = (now(), 3);
    crowd.join(&["second-1", "second-2", "second-3"], SHORT).await?;
    crowd.until_looked_at(GENEROUS).await?;
    crowd.until_renewed(3).await?;
    until_watches(plane, &before, &mixed::resources(), count).await?;
    let (upstream, downstream) = crowd.audits().await?;
    for member in &crowd.members {
        let lists = requests::lists(&downstream, &member.credential);
        for (list, times) in &lists {
            ensure!(*times == 1, "{} listed {list} {times} times: {lists:#?}", member.replica.name());
        }
        for resource in mixed::resources() {
            let of_kind =
                |list: &&String| list.contains(&format!("/{resource}?labelSelector=objectset.rio.cattle.io"));
            let times = lists.keys().filter(of_kind).count();
            ensure!(times == 1, "{} lists of {resource}: {lists:#?}", member.replica.name());
        }
    }
    let listed = requests::whole_lists(&upstream, &crowd.world.registration, since);
    ensure!(
        listed == count,
        "{count} replicas list the BundleDeployments once each, not {listed} times in all"
    );
    let compared = downstream.iter().filter(|entry| entry.uri.contains("dryRun=") && entry.received >= since);
    ensure!(compared.count() == 0, "a start compares nothing that the records tell");
    Ok(())
}

async fn nothing_is_written_at_rest(crowd: &Crowd<'_>) -> anyhow::Result<()> {
    let since = now();
    crowd.until_renewed(10).await?;
    let found = crowd.beyond_rest(since).await?;
    ensure!(found.is_empty(), "written at rest: {found:#?}");
    Ok(())
}

/// One correction for one drift: one claim, one revision, one write of the object.
async fn drift_is_corrected_once(crowd: &Crowd<'_>) -> anyhow::Result<()> {
    let (since, claims) = (now(), crowd.units.claims().len());
    let changes: Vec<_> = (0..CORRECTED).map(|bundle| (bundle, bundle, "foreign".to_owned())).collect();
    crowd.change(&changes).await?;
    for (bundle, object, _) in &changes {
        until("a drift to be corrected", GENEROUS, async || {
            let value = mixed::value(&crowd.downstream, &crowd.bundles[*bundle], *object).await?;
            Ok((value == WANTED).then_some(()))
        })
        .await?;
        crowd.until_modified(*bundle, &[]).await?;
    }
    crowd.until_ready(GENEROUS).await?;
    // Long enough for whoever would do it again.
    crowd.until_renewed(8).await?;
    let new: Vec<_> = crowd.units.claims().split_off(claims);
    let (_, downstream) = crowd.audits().await?;
    for (bundle, object, _) in &changes {
        let name = &crowd.bundles[*bundle].name;
        let count = new.iter().filter(|claim| claim.unit == *name).count();
        ensure!(count == 1, "{count} claims for one drift in {name}: {new:#?}");
        let release = crowd.units.live()[name].status.clone().unwrap_or_default().release;
        ensure!(release.ends_with(":2"), "one revision for one drift in {name}: {release}");
        let (_, _, resource, _) = OBJECTS[*object];
        let object = mixed::object_name(name, *object);
        let written = |entry: &&AuditEntry| {
            let it = entry.name == object && entry.resource == resource && entry.received >= since;
            let by_us = entry.user == crowd.world.registration.downstream_user;
            it && by_us && entry.is_write() && entry.code < 300
        };
        let times = downstream.iter().filter(written).count();
        ensure!(times == 1, "{resource} {object} was written {times} times for one drift");
    }
    Ok(())
}

/// Many changes of all objects of the others: told in a write a second and bundle at most, and in the end rightly.
/// Returns who looks after which bundle.
async fn a_burst_is_told_at_a_pace(crowd: &Crowd<'_>) -> anyhow::Result<BTreeMap<usize, String>> {
    let since = now();
    for round in ["a", "b", WANTED] {
        let all =
            (CORRECTED..BUNDLES).flat_map(|bundle| (0..OBJECTS.len()).map(move |object| (bundle, object)));
        // In the last round every other object is put back by hand.
        let changed = all.filter(|(_, object)| round != WANTED || object % 2 == 0);
        let changes: Vec<_> = changed.map(|(bundle, object)| (bundle, object, round.to_owned())).collect();
        crowd.change(&changes).await?;
    }
    for bundle in CORRECTED..BUNDLES {
        crowd.until_modified(bundle, &[1, 3, 5, 7, 9]).await?;
    }
    crowd.until_renewed(3).await?;
    let (upstream, _) = crowd.audits().await?;
    let writes = requests::status_writes(&upstream, &crowd.world.registration.upstream_user, since);
    ensure!(writes.len() == BUNDLES - CORRECTED, "status of {} bundles was written", writes.len());
    let total: usize = writes.values().map(Vec::len).sum();
    eprintln!(
        "{total} status writes of {} bundles, at most {} within a second; closest: {:?}",
        writes.len(),
        most_in_a_second(&writes),
        closest(&writes)
    );
    ensure!(closest(&writes).is_none_or(|gap| gap >= PACE), "one status was written too often: {writes:#?}");
    let mut alone = BTreeMap::new();
    for (bundle, evaluators) in crowd.evaluators(since).await? {
        ensure!(evaluators.len() == 1, "bundle {bundle} is looked after by {} replicas", evaluators.len());
        alone.extend(evaluators.into_iter().map(|evaluator| (bundle, evaluator)));
    }
    Ok(alone)
}

async fn the_duties_of_the_dead_are_taken_over(
    crowd: &mut Crowd<'_>,
    evaluators: BTreeMap<usize, String>,
) -> anyhow::Result<()> {
    let credential = crowd.members[0].credential.clone();
    let its: Vec<usize> =
        evaluators.iter().filter(|(_, of)| **of == credential).map(|(bundle, _)| *bundle).collect();
    ensure!(!its.is_empty(), "no bundle is looked after by {}", crowd.members[0].replica.name());
    crowd.take(&credential).context("the one to die")?.replica.kill()?;
    let since = now();
    let changes: Vec<_> = its.iter().map(|bundle| (*bundle, 0, "after".to_owned())).collect();
    crowd.change(&changes).await?;
    for bundle in &its {
        crowd.until_modified(*bundle, &[0, 1, 3, 5, 7, 9]).await?;
    }
    let after = crowd.evaluators(since).await?;
    for bundle in &its {
        let heirs = after.get(bundle).context("who looked?")?;
        ensure!(heirs.len() == 1 && !heirs.contains(&credential), "{heirs:?} look after bundle {bundle}");
    }
    Ok(())
}

#[test]
fn the_counts_count_what_they_are_for() {
    let at = |milliseconds| DateTime::UNIX_EPOCH + TimeDelta::milliseconds(milliseconds);
    let entry = |verb: &str, uri: &str, resource: &str, subresource: &str, time: i64| AuditEntry {
        verb: verb.into(),
        user: "agent".into(),
        credential: "JTI=1".into(),
        group: String::new(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: "ns".into(),
        name: "app".into(),
        uri: uri.into(),
        code: 200,
        received: at(time),
        completed: at(time),
        user_agent: String::new(),
    };
    let entries = [
        entry("patch", "/x", "bundledeployments", "status", 0),
        entry("patch", "/x", "bundledeployments", "status", 1000),
        entry("patch", "/x", "bundledeployments", "status", 1400),
        entry("update", "/x", "leases", "", 5000),
        entry("patch", "/x", "clusters", "status", 5000),
        entry("patch", "/x?dryRun=All", "configmaps", "", 5000),
        entry("patch", "/x", "configmaps", "", 5001),
        entry("list", "/pods?limit=500&labelSelector=a", "pods", "", 0),
        entry("list", "/pods?labelSelector=a&limit=500&continue=t", "pods", "", 0),
        entry("list", "/pods?labelSelector=b", "pods", "", 0),
    ];
    let needless = requests::beyond_rest(&entries, "agent", at(2000));
    assert_eq!(needless.iter().map(|entry| entry.received).collect::<Vec<_>>(), [at(5001)]);
    let lists = requests::lists(&entries, "JTI=1");
    assert_eq!(
        lists.into_iter().collect::<Vec<_>>(),
        [("/pods?labelSelector=a".into(), 1), ("/pods?labelSelector=b".into(), 1)]
    );
    let writes = requests::status_writes(&entries, "agent", at(0));
    assert_eq!(closest(&writes), Some(TimeDelta::milliseconds(400)));
    assert_eq!(most_in_a_second(&writes), 2);
}
