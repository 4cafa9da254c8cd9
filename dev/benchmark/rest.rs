// SPDX-License-Identifier: Apache-2.0
//! What a deployed fleet costs while nothing changes, and how it answers when something does.
//!
//! Everything is counted by the API servers: from their audit logs, and at rest from their stores as well.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::BundleDeployment;
use tokio::time::Instant;

use super::Arguments;
use super::etcd::{self, Stream};
use super::ground::wall;
use super::table::{Row, print};
use crate::harness::crowd::Crowd;
use crate::harness::mixed::{self, OBJECTS, WANTED};
use crate::harness::requests::{self, closest, most_in_a_second};
use crate::harness::units::is_ready;
use crate::harness::world::World;
use crate::harness::{AuditEntry, ControlPlane, GENEROUS, until};

/// Longer than any deployment of a fleet.
const BOUND: Duration = Duration::from_secs(1200);
/// Changes that are timed, one after the other, of each sort.
const CHANGES: usize = 30;
/// Changes in the burst.
const BURST: usize = 5_000;

/// Measures three replicas with the times a release is shipped with.
pub async fn run(world: &World, arguments: &Arguments) -> anyhow::Result<()> {
    let bundles = arguments.bundles.unwrap_or(300);
    ensure!(bundles > CHANGES * 2, "more than {} bundles are needed", CHANGES * 2);
    let mut crowd = Crowd::publish(world, bundles, 20, CHANGES).await?;
    crowd.join(&["replica-1", "replica-2", "replica-3"], &[]).await?;
    crowd.until_ready(BOUND).await?;
    crowd.until_renewed(3).await?;
    let mut rows = vec![at_rest(&crowd, arguments.rest).await?];
    rows.extend(shown(&crowd).await?);
    rows.extend(corrected(&crowd).await?);
    let (row, evaluators) = burst(&crowd).await?;
    rows.push(row);
    rows.push(killed(&mut crowd, &evaluators).await?);
    crowd.check()?;
    print(&format!("{bundles} bundles of {} objects, 3 replicas", OBJECTS.len()), &rows);
    Ok(())
}

async fn at_rest(crowd: &Crowd<'_>, period: Duration) -> anyhow::Result<Row> {
    eprintln!("at rest for {} s", period.as_secs());
    let since = wall();
    let (upstream, downstream) =
        (Store::open(&crowd.world.upstream).await?, Store::open(&crowd.world.downstream).await?);
    tokio::time::sleep(period).await;
    crowd.until_renewed(1).await?;
    let found = crowd.beyond_rest(since).await?;
    let mut stored = upstream.beyond_rest().await?;
    stored.extend(downstream.beyond_rest().await?);
    let (up, down) = crowd.audits().await?;
    let registration = &crowd.world.registration;
    let count = |entries: &[AuditEntry], user: &str| {
        entries.iter().filter(|e| e.is_write() && e.user == user && e.received >= since).count()
    };
    let all = count(&up, &registration.upstream_user) + count(&down, &registration.downstream_user);
    for text in found.iter().chain(&stored) {
        eprintln!("  {text}");
    }
    Ok(Row::new(
        &format!("writes at rest in {} s, Leases and check-in apart", (wall() - since).num_seconds()),
        format!(
            "{} in the audit logs, {} in the stores (and {} of Leases and check-ins)",
            found.len(),
            stored.len(),
            all - found.len(),
        ),
        "0",
        found.is_empty() && stored.is_empty(),
    ))
}

/// The store of an API server from now on.
struct Store<'a> {
    plane: &'a ControlPlane,
    stream: Stream,
}

impl<'a> Store<'a> {
    async fn open(plane: &'a ControlPlane) -> anyhow::Result<Store<'a>> {
        let from = etcd::revision(plane.etcd_url()).await? + 1;
        Ok(Store { plane, stream: Stream::open(plane.etcd_url(), from).await? })
    }

    /// Keys that were written, without Leases, the Cluster's sign of life, and what an API server keeps for itself.
    async fn beyond_rest(mut self) -> anyhow::Result<Vec<String>> {
        const APART: [&str; 5] =
            ["leases/", "masterleases/", "fleet.cattle.io/clusters/", "ranges/", "peerserverleases/"];
        let end = etcd::revision(self.plane.etcd_url()).await?;
        let keys = RefCell::new(Vec::new());
        let mut last = 0;
        while last < end {
            let note = |key: &str| {
                if !APART.iter().any(|apart| key.starts_with(apart)) {
                    keys.borrow_mut().push(format!("{}: {key}", self.plane.name));
                }
                false
            };
            // Something is always written: Leases.
            let (reached, _) = tokio::time::timeout(GENEROUS, self.stream.next(note))
                .await
                .context("the store's stream")??;
            last = last.max(reached);
        }
        Ok(keys.into_inner())
    }
}

/// From the change of an object to the status that tells it.
async fn shown(crowd: &Crowd<'_>) -> anyhow::Result<Vec<Row>> {
    let (mut told, mut untold) = (Vec::new(), Vec::new());
    for bundle in CHANGES..2 * CHANGES {
        let object = bundle % OBJECTS.len();
        for (value, objects, times) in [("foreign", vec![object], &mut told), (WANTED, vec![], &mut untold)] {
            let began = Instant::now();
            crowd.change(&[(bundle, object, value.into())]).await?;
            let seen = crowd.until_modified(bundle, &objects).await?;
            times.push(seen - began);
        }
    }
    Ok(vec![
        Row::time("a changed object is in the status", &mut told, Duration::from_secs(2)),
        Row::time("an object put back by hand is, too", &mut untold, Duration::from_secs(2)),
    ])
}

/// From a drift to the object as it should be; and how often it was corrected.
async fn corrected(crowd: &Crowd<'_>) -> anyhow::Result<Vec<Row>> {
    let (since, claims) = (wall(), crowd.units.claims().len());
    let (mut back, mut in_line) = (Vec::new(), Vec::new());
    for bundle in 0..CHANGES {
        let object = bundle % OBJECTS.len();
        let began = Instant::now();
        crowd.change(&[(bundle, object, "foreign".into())]).await?;
        until("the drift to be corrected", GENEROUS, async || {
            let value = mixed::value(&crowd.downstream, &crowd.bundles[bundle], object).await?;
            Ok((value == WANTED).then_some(()))
        })
        .await?;
        back.push(began.elapsed());
        let name = &*crowd.bundles[bundle].name;
        let again = |unit: &Arc<BundleDeployment>| {
            is_ready(unit) && unit.status.as_ref().is_some_and(|status| status.release.ends_with(":2"))
        };
        crowd
            .units
            .until("the second revision", GENEROUS, |live| live.get(name).is_some_and(again).then_some(()))
            .await?;
        in_line.push(began.elapsed());
    }
    // Long enough for whoever would do it again.
    crowd.until_renewed(4).await?;
    let new = crowd.units.claims().len() - claims;
    let live = crowd.units.live();
    let revisions: usize = (0..CHANGES)
        .filter_map(|bundle| {
            live[&crowd.bundles[bundle].name]
                .status
                .as_ref()?
                .release
                .rsplit_once(':')?
                .1
                .parse::<usize>()
                .ok()
        })
        .sum();
    let (upstream, downstream) = crowd.audits().await?;
    let registration = &crowd.world.registration;
    let writes = downstream.iter().filter(|entry| {
        entry.is_write()
            && entry.user == registration.downstream_user
            && entry.received >= since
            && entry.code < 300
            && (0..CHANGES).any(|bundle| {
                let object = bundle % OBJECTS.len();
                entry.resource == OBJECTS[object].2
                    && entry.name == mixed::object_name(&crowd.bundles[bundle].name, object)
            })
    });
    let writes = writes.count();
    let conflicts = upstream.iter().filter(|entry| {
        entry.user == registration.upstream_user && entry.code == 409 && entry.received >= since
    });
    Ok(vec![
        Row::time("with correctDrift it is as it should be", &mut back, Duration::from_secs(3)),
        Row::time("and the status says so, its claim closed", &mut in_line, Duration::from_secs(3)),
        Row::new(
            &format!("corrections of {CHANGES} drifts"),
            format!(
                "{new} claims, {} revisions, {writes} writes of the objects; {} conflicts upstream",
                revisions - CHANGES,
                conflicts.count()
            ),
            "one each",
            new == CHANGES && revisions == 2 * CHANGES && writes == CHANGES,
        ),
    ])
}

/// Thousands of changes at once. Who looks after which bundle comes with it.
async fn burst(crowd: &Crowd<'_>) -> anyhow::Result<(Row, BTreeMap<usize, String>)> {
    let since = wall();
    let free = CHANGES..crowd.bundles.len();
    let all: Vec<(usize, usize)> =
        free.clone().flat_map(|bundle| (0..OBJECTS.len()).map(move |object| (bundle, object))).collect();
    // The last half round puts every other object back by hand.
    let last: Vec<_> = all.iter().copied().filter(|(_, object)| object % 2 == 0).collect();
    let foreign = BURST.saturating_sub(last.len()).max(all.len());
    let changes: Vec<(usize, usize, String)> = all
        .iter()
        .cycle()
        .take(foreign)
        .enumerate()
        .map(|(turn, (bundle, object))| (*bundle, *object, format!("foreign-{}", turn / all.len())))
        .chain(last.into_iter().map(|(bundle, object)| (bundle, object, WANTED.to_owned())))
        .collect();
    let began = Instant::now();
    crowd.change(&changes).await?;
    let changed = began.elapsed();
    for bundle in free.clone() {
        crowd.until_modified(bundle, &[1, 3, 5, 7, 9]).await?;
    }
    let told = began.elapsed();
    crowd.until_renewed(2).await?;
    for bundle in free.clone() {
        crowd.until_modified(bundle, &[1, 3, 5, 7, 9]).await?;
    }
    let (upstream, _) = crowd.audits().await?;
    let writes = requests::status_writes(&upstream, &crowd.world.registration.upstream_user, since);
    let total: usize = writes.values().map(Vec::len).sum();
    let most = most_in_a_second(&writes);
    let row = Row::new(
        &format!("status writes of {} changes in {:.1} s", changes.len(), changed.as_secs_f64()),
        format!(
            "{total}, at most {most} of one bundle in a second, closest {} ms; right {:.1} s after the last change",
            closest(&writes).map_or(0, |gap| gap.num_milliseconds()),
            (told - changed).as_secs_f64()
        ),
        "1 a second and bundle",
        most <= 1,
    );
    let evaluators = crowd.evaluators(since).await?;
    let alone = evaluators.into_iter().filter(|(_, of)| of.len() == 1);
    Ok((row, alone.filter_map(|(bundle, of)| Some((bundle, of.into_iter().next()?))).collect()))
}

/// From SIGKILL to the status that tells a change made after it, of bundles the dead one looked after.
async fn killed(crowd: &mut Crowd<'_>, evaluators: &BTreeMap<usize, String>) -> anyhow::Result<Row> {
    let mut times = Vec::new();
    for _ in 0..2 {
        let credential = crowd.members[0].credential.clone();
        let since = wall();
        // Who looks after a bundle may have changed with the last death: a change shows it.
        let touched: Vec<usize> = evaluators.keys().copied().take(60).collect();
        let round = times.len();
        let changes: Vec<_> = touched.iter().map(|bundle| (*bundle, 1, format!("before-{round}"))).collect();
        crowd.change(&changes).await?;
        let its = until("the change to be looked at", GENEROUS, async || {
            let seen = crowd.evaluators(since).await?;
            Ok((seen.len() >= touched.len()).then_some(seen))
        })
        .await?;
        let its: Vec<usize> = its
            .into_iter()
            .filter(|(_, of)| of.len() == 1 && of.contains(&credential))
            .map(|(bundle, _)| bundle)
            .collect();
        ensure!(!its.is_empty(), "the one to die looks after none of {} bundles", touched.len());
        crowd.take(&credential)?.replica.kill()?;
        let began = Instant::now();
        // Each object's value differs from before, so that a status that tells it is new.
        let objects: Vec<usize> = if round == 0 { vec![0, 1, 3, 5, 7, 9] } else { vec![0, 1, 2, 3, 5, 7, 9] };
        let object = if round == 0 { 0 } else { 2 };
        let mut changes: Vec<_> =
            its.iter().map(|bundle| (*bundle, object, format!("after-{round}"))).collect();
        if round > 0 {
            changes.extend(its.iter().map(|bundle| (*bundle, 0, format!("after-{round}"))));
        }
        crowd.change(&changes).await?;
        for bundle in &its {
            times.push(crowd.until_modified(*bundle, &objects).await? - began);
        }
        // The survivors' duties are settled, and the next one is not taken for the same death.
        crowd.until_renewed(2).await?;
    }
    Ok(Row::time("a change after the death of who looked after it", &mut times, Duration::from_secs(18)))
}
