// SPDX-License-Identifier: Apache-2.0
//! API servers that crash under the agent, an agent that cannot start, and one that is told to stop.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::fleet::AGENT_NAMESPACE;
use harness::records::Records;
use harness::replica::Replica;
use harness::units::{Units, is_applied};
use harness::world::{self, Downstream, World};
use harness::{GENEROUS, Tools, until};

const BUNDLES: usize = 40;
const OBJECTS: usize = 10;
const NAMESPACE: &str = "quay";
/// A takeover takes 18 s, a second back-off 10 s; the machine may be busy.
const BOUND: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread")]
async fn servers_may_crash_and_agents_end_in_order() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let mut world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&mut world).await;
    world.conclude(result)
}

async fn story(world: &mut World) -> anyhow::Result<()> {
    a_missing_registration_ends_the_start_with_its_reason(world).await?;
    let (units, records) = (world.units().await?, world.records().await?);
    let mut replicas = world.ready_replicas(2, 4).await?;
    for (version, crashing) in [("1", Crash::Upstream), ("2", Crash::Downstream)] {
        a_crash_in_the_middle_costs_no_work(world, &units, &mut replicas, version, crashing).await?;
    }
    told_to_stop_it_leaves_nothing_behind(world, &units, &records, replicas).await
}

async fn a_missing_registration_ends_the_start_with_its_reason(world: &World) -> anyhow::Result<()> {
    let client = world.downstream.admin().await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), AGENT_NAMESPACE);
    let mut secret = secrets.get("fleet-agent").await?;
    secrets.delete("fleet-agent", &DeleteParams::default()).await?;
    let said = failed_start(world).await?;
    assert!(said.contains("Secret cattle-fleet-system/fleet-agent does not exist"), "{said}");
    secret.metadata.resource_version = None;
    secrets.create(&PostParams::default(), &secret).await?;

    let maps: Api<ConfigMap> = Api::namespaced(client, AGENT_NAMESPACE);
    let mut map = maps.get("fleet-agent").await?;
    maps.delete("fleet-agent", &DeleteParams::default()).await?;
    let said = failed_start(world).await?;
    assert!(said.contains("ConfigMap cattle-fleet-system/fleet-agent does not exist"), "{said}");
    map.metadata.resource_version = None;
    maps.create(&PostParams::default(), &map).await?;
    Ok(())
}

/// Runs an agent that is to end by itself with an error: the last line it writes to stderr.
async fn failed_start(world: &World) -> anyhow::Result<String> {
    let agent = tokio::process::Command::new(&world.binary)
        .args(["agent", "--kubeconfig"])
        .arg(&world.registration.agent_kubeconfig)
        .env("NAMESPACE", AGENT_NAMESPACE)
        .env("FLEET_AGENT_METRICS_BIND_ADDRESS", "0")
        .env("FLEET_AGENT_PROBE_BIND_ADDRESS", "0")
        .env_remove("KUBECONFIG")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(GENEROUS, agent).await.context("the agent idles on")??;
    ensure!(output.status.code().is_some_and(|code| code != 0), "the agent ended with {}", output.status);
    let stderr = String::from_utf8(output.stderr)?;
    Ok(stderr.lines().last().unwrap_or_default().to_owned())
}

#[derive(Clone, Copy, Debug)]
enum Crash {
    Upstream,
    Downstream,
}

async fn a_crash_in_the_middle_costs_no_work(
    world: &mut World,
    units: &Units,
    replicas: &mut [Replica],
    version: &str,
    crash: Crash,
) -> anyhow::Result<()> {
    let bundles: Vec<Bundle> = (0..BUNDLES)
        .map(|index| Bundle::config_maps(&format!("boat-{index:02}"), NAMESPACE, OBJECTS, version))
        .collect();
    world.publisher().await?.publish(&bundles).await?;
    units
        .until("the agents to be in the middle of it", GENEROUS, |live| {
            (live.values().filter(|unit| is_applied(unit)).count() >= BUNDLES / 5).then_some(())
        })
        .await?;
    match crash {
        Crash::Upstream => world.upstream.restart_apiserver().await?,
        Crash::Downstream => world.downstream.restart_apiserver().await?,
    }
    units
        .until(&format!("everything after the crash of {crash:?}"), BOUND, |live| {
            let done = |bundle: &&Bundle| {
                live.get(&bundle.name).is_some_and(|unit| {
                    harness::units::is_ready(unit) && unit.spec.deployment_id == bundle.deployment_id()
                })
            };
            (bundles.iter().filter(done).count() == BUNDLES).then_some(())
        })
        .await?;

    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, NAMESPACE);
    let found: BTreeSet<String> = maps
        .list(&ListParams::default())
        .await?
        .iter()
        .filter(|map| map.data.as_ref().is_some_and(|data| data.get("version").is_some_and(|v| v == version)))
        .map(|map| map.name_any())
        .collect();
    let wanted: BTreeSet<String> = bundles
        .iter()
        .flat_map(|bundle| (0..OBJECTS).map(|index| format!("{}-{index}", bundle.name)))
        .collect();
    assert_eq!(found, wanted, "after the crash of {crash:?}");
    for replica in replicas {
        // The same process as before, and in working order.
        world::ready(replica).await?;
    }
    Ok(())
}

async fn told_to_stop_it_leaves_nothing_behind(
    world: &World,
    units: &Units,
    records: &Records,
    replicas: Vec<Replica>,
) -> anyhow::Result<()> {
    let bundles: Vec<Bundle> = (0..BUNDLES)
        .map(|index| Bundle::config_maps(&format!("raft-{index:02}"), NAMESPACE, OBJECTS, "1"))
        .collect();
    world.publisher().await?.publish(&bundles).await?;
    until("both agents to be at work", GENEROUS, async || {
        let open: BTreeSet<String> = units
            .claims()
            .into_iter()
            .filter(|claim| claim.end.is_none())
            .map(|claim| claim.holder)
            .collect();
        Ok((open.len() == replicas.len()).then_some(()))
    })
    .await?;
    for mut replica in replicas {
        replica.term()?;
        let status = tokio::time::timeout(GENEROUS, replica.wait()).await.context("SIGTERM is ignored")??;
        ensure!(status.success(), "{} ended with {status} after SIGTERM\n{}", replica.name(), replica.log());
    }
    let leases: Api<Lease> = Api::namespaced(world.downstream.admin().await?, AGENT_NAMESPACE);
    let left: Vec<(String, Option<String>)> = leases
        .list(&ListParams::default())
        .await?
        .iter()
        .map(|lease| (lease.name_any(), lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone())))
        .collect();
    // Fleet's own Lease stays, free: a Fleet agent that starts need not wait. No session's is there.
    assert_eq!(left, [("fleet-agent".to_owned(), None)], "Leases and their holders");
    // What they wrote last may not have been seen yet.
    until("no claim to be left", GENEROUS, async || {
        Ok(units.claims().iter().all(|claim| claim.end.is_some()).then_some(()))
    })
    .await?;
    until("no revision to be pending", GENEROUS, async || {
        Ok((!records.all().iter().any(|record| record.is_pending())).then_some(()))
    })
    .await?;
    assert!(units.live().values().any(|unit| !is_applied(unit)), "there was nothing left to be given up");
    Ok(())
}
