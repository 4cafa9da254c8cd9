// SPDX-License-Identifier: Apache-2.0
//! What it costs to start into a large fleet that is deployed already: memory, lists, watches, requests.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Arguments;
use super::ground::{children, own_memory, peak_memory, wall};
use super::table::{Row, print};
use crate::harness::crowd::{Crowd, until_watches, watches};
use crate::harness::mixed::{self, OBJECTS};
use crate::harness::replica::rss_bytes;
use crate::harness::requests;
use crate::harness::world::World;
use crate::harness::{GENEROUS, until};

/// Longer than any deployment of a fleet.
const BOUND: Duration = Duration::from_secs(1800);
/// Resident memory of a replica, in megabytes (10⁶ bytes).
const MEMORY: f64 = 40.0;

/// Deploys a fleet, and measures three replicas that start into it.
pub async fn run(world: &World, arguments: &Arguments) -> anyhow::Result<()> {
    let bundles = arguments.bundles.unwrap_or(1000);
    let mut crowd = Crowd::publish(world, bundles, 50, 0).await?;
    crowd.join(&["first-1", "first-2", "first-3"], &[]).await?;
    crowd.until_ready(BOUND).await?;
    let deployers = memory(&crowd)?;
    crowd.kill_all()?;
    let plane = &world.downstream;
    let before = until("the watches of the dead to end", GENEROUS, async || {
        let now = watches(plane).await?;
        Ok((now.get("podtemplates").copied().unwrap_or_default() == 0).then_some(now))
    })
    .await?;

    let (since, began) = (wall(), Instant::now());
    crowd.join(&["second-1", "second-2", "second-3"], &[]).await?;
    crowd.until_looked_at(BOUND).await?;
    let looked_at = began.elapsed();
    crowd.until_renewed(4).await?;
    let resources = mixed::resources();
    let watched = until_watches(plane, &before, &resources, crowd.members.len()).await;
    let (upstream, downstream) = crowd.audits().await?;
    let mut lists = BTreeMap::new();
    for member in &crowd.members {
        let listed = requests::lists(&downstream, &member.credential);
        for resource in &resources {
            let of_kind =
                |list: &&String| list.contains(&format!("/{resource}?labelSelector=objectset.rio.cattle.io"));
            let times: usize = listed.iter().filter(|(list, _)| of_kind(list)).map(|(_, times)| times).sum();
            lists.entry(*resource).or_insert_with(Vec::new).push(times);
        }
        eprintln!("{}: {:?}", member.replica.name(), requests::by_verb(&downstream, &member.credential));
        let others = listed.iter().filter(|(list, _)| !list.contains("objectset.rio.cattle.io"));
        eprintln!("  other lists: {:?}", others.collect::<Vec<_>>());
    }
    let of_bundles = requests::whole_lists(&upstream, &world.registration, since);
    lists.insert("bundledeployments", vec![of_bundles / crowd.members.len()]);
    let written = crowd.beyond_rest(since).await?;
    let once = lists.values().flatten().all(|times| *times == 1);
    let memory = memory(&crowd)?;
    let rows = [
        Row::new(
            "resident memory of a replica after the start",
            format!(
                "{} (of these {} its own data; engine {})",
                list(&memory, |m| m.now),
                list(&memory, |m| m.own),
                list(&memory, |m| m.engine)
            ),
            &format!("{MEMORY} MB"),
            memory.iter().all(|memory| memory.now <= MEMORY),
        ),
        Row::new(
            "the same of those that deployed it",
            format!("{} (peak {})", list(&deployers, |m| m.now), list(&deployers, |m| m.peak)),
            "",
            true,
        ),
        Row::new(
            "lists of a kind and replica",
            if once { format!("1 of each of {} kinds", lists.len()) } else { format!("{lists:?}") },
            "1",
            once,
        ),
        Row::new(
            "watches of a kind and replica",
            watched.as_ref().map_or_else(|error| format!("{error:#}"), |()| "1".into()),
            "1",
            watched.is_ok(),
        ),
        Row::new(
            "writes at the start, Leases and check-in apart",
            written.len().to_string(),
            "0",
            written.is_empty(),
        ),
        Row::new(
            "from the first start until each bundle was looked at",
            format!("{:.1} s", looked_at.as_secs_f64()),
            "",
            true,
        ),
    ];
    crowd.check()?;
    print(&format!("{bundles} bundles of {} objects, 3 replicas", OBJECTS.len()), &rows);
    Ok(())
}

/// Megabytes of one replica.
struct Memory {
    now: f64,
    peak: f64,
    /// Without the pages of the program's file, which replicas on one node share.
    own: f64,
    engine: f64,
}

fn memory(crowd: &Crowd<'_>) -> anyhow::Result<Vec<Memory>> {
    let measured = crowd.members.iter().map(|member| {
        let pid = member.replica.pid();
        let mut engine = 0.0;
        for child in children(pid)?.into_keys() {
            engine += rss_bytes(child)? as f64 / 1e6;
        }
        Ok(Memory {
            now: rss_bytes(pid)? as f64 / 1e6,
            peak: peak_memory(pid)?,
            own: own_memory(pid)?,
            engine,
        })
    });
    measured.collect()
}

fn list(memory: &[Memory], figure: fn(&Memory) -> f64) -> String {
    let figures: Vec<String> = memory.iter().map(|memory| format!("{:.1}", figure(memory))).collect();
    format!("{} MB", figures.join(", "))
}
