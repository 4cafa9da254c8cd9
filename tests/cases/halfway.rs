// SPDX-License-Identifier: Apache-2.0
//! Releases found half-way, names that were cut, and a management cluster that is not there or not the one it was.

use anyhow::{Context, ensure};
use kube::api::{DeleteParams, ListParams};

use super::harness::bundles::Bundle;
use super::harness::records::Traces;
use super::harness::replica::Replica;
use super::harness::world::{collected, get, ready};
use super::harness::{GENEROUS, fleet, until};
use super::{Cases, bundle};

pub async fn stories(cases: &Cases<'_>, replicas: &mut Vec<Replica>) -> anyhow::Result<()> {
    pc_025_a_pending_upgrade_of_the_dead_is_done_over(cases).await?;
    pc_027_an_install_that_never_finished_is_completed(cases).await?;
    pc_036_a_name_cut_at_a_dash_is_deployed_once(cases, replicas).await?;
    pc_033_loss_of_contact_deletes_nothing(cases, replicas).await
}

async fn pc_025_a_pending_upgrade_of_the_dead_is_done_over(cases: &Cases<'_>) -> anyhow::Result<()> {
    for file in ["namespace", "live-object", "release-v1-deployed", "release-v2-pending-upgrade"] {
        cases.seed(&format!("tidewatch/seed/{file}.yaml")).await?;
    }
    let uid = cases.uid("v1/ConfigMap", "tidewatch", "tidewatch-gauge").await?;
    let levels = Traces::follow_key(cases.down.clone(), "tidewatch", "level").await?;
    cases.ready(&bundle("tidewatch/bundle", "tidewatch-bd")?).await?;
    let gauge = cases.get("v1/ConfigMap", "tidewatch", "tidewatch-gauge").await?.context("it is gone")?;
    assert_eq!(
        (gauge["metadata"]["uid"].as_str(), gauge["data"]["level"].as_str()),
        (Some(&*uid), Some("3"))
    );
    // Forward only: whoever watches never sees it go back, nor the level of the upgrade that died.
    let seen = levels
        .until("the last level", GENEROUS, |all| {
            let seen = &all.get("tidewatch-gauge")?.versions;
            seen.last().is_some_and(|level| level == "3").then(|| seen.clone())
        })
        .await?;
    assert_eq!(seen, ["1", "3"]);
    let history = cases.history("tidewatch", "tidewatch").await?;
    let (last, before) = history.split_last().context("there is no record")?;
    assert_eq!((last.0.as_str(), last.1.as_str()), ("3", "deployed"), "{history:?}");
    assert!(before.iter().all(|(_, status)| status == "superseded" || status == "failed"), "{history:?}");
    Ok(())
}

/// The history was lost, the application is alive: nothing is uninstalled in order to recover.
async fn pc_027_an_install_that_never_finished_is_completed(cases: &Cases<'_>) -> anyhow::Result<()> {
    for file in ["namespace", "live-object-variant-b", "release-v1-pending-install"] {
        cases.seed(&format!("quillmart/seed/{file}.yaml")).await?;
    }
    let uid = cases.uid("v1/ConfigMap", "quillmart", "quillmart-list").await?;
    let quillmart = bundle("quillmart/bundle", "quillmart-bd")?;
    cases.ready(&quillmart).await?;
    assert_eq!(cases.uid("v1/ConfigMap", "quillmart", "quillmart-list").await?, uid);
    cases.uid("v1/Secret", "quillmart", "quillmart-till").await?;
    let history = cases.history("quillmart", "quillmart").await?;
    let deployed = history.iter().filter(|(_, status)| status == "deployed").count();
    ensure!(deployed == 1 && history.iter().all(|(_, status)| !status.starts_with("pending")), "{history:?}");
    // Applied again, unchanged.
    cases.ready(&quillmart).await?;
    assert_eq!(cases.history("quillmart", "quillmart").await?, history);
    Ok(())
}

async fn pc_036_a_name_cut_at_a_dash_is_deployed_once(
    cases: &Cases<'_>,
    replicas: &mut Vec<Replica>,
) -> anyhow::Result<()> {
    let name = "harbour-north-quay-stack-telemetry-relay-colle-tor-edge-gate";
    let beacon = bundle("beacon/bundle", name)?;
    cases.ready(&beacon).await?;
    let uid = cases.uid("v1/ConfigMap", "harbour", "beacon").await?;
    let release = flotilla::api::names::helm_release_name(name);
    let written = cases.get("v1/ConfigMap", "harbour", "beacon").await?;
    // Whoever collects, and whoever starts anew, finds it where it is expected.
    for replica in replicas.iter_mut() {
        replica.kill()?;
    }
    replicas.clear();
    let alone = cases.agent("replica-3").await?;
    collected(&alone, 3).await?;
    assert_eq!(cases.uid("v1/ConfigMap", "harbour", "beacon").await?, uid);
    assert_eq!(cases.history("harbour", &release).await?, [("1".to_owned(), "deployed".to_owned())]);
    assert_eq!(cases.get("v1/ConfigMap", "harbour", "beacon").await?, written, "a restart writes nothing");
    replicas.push(alone);
    Ok(())
}

async fn pc_033_loss_of_contact_deletes_nothing(
    cases: &Cases<'_>,
    replicas: &mut Vec<Replica>,
) -> anyhow::Result<()> {
    let world = cases.world;
    let precious = Bundle::config_maps("precious", "shrine", 2, "1");
    cases.ready(&precious).await?;
    let uids = async || -> anyhow::Result<Vec<String>> {
        let mut uids = vec![cases.uid("v1/ConfigMap", "harbour", "beacon").await?];
        for name in ["precious-0", "precious-1"] {
            uids.push(cases.uid("v1/ConfigMap", "shrine", name).await?);
        }
        Ok(uids)
    };
    // Only these two are left: it is not their number that saves them.
    let names: Vec<String> = cases.units.live().into_keys().collect();
    for name in names.iter().filter(|name| *name != "precious" && !name.starts_with("harbour-")) {
        cases.publisher.withdraw(name).await?;
    }
    until("the others to be gone", super::BOUND, async || {
        let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> = kube::Api::all(cases.down.clone());
        let left = secrets.list_metadata(&ListParams::default().labels("owner=helm")).await?.items.len();
        Ok((left == 2).then_some(()))
    })
    .await?;
    let before = uids().await?;

    // Every question is answered with 403.
    let namespace = &world.registration.cluster_namespace;
    let bindings: kube::Api<k8s_openapi::api::rbac::v1::RoleBinding> =
        kube::Api::namespaced(cases.up.clone(), namespace);
    for binding in bindings.list_metadata(&ListParams::default()).await?.items {
        bindings
            .delete(binding.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default())
            .await?;
    }
    let agent = replicas.first().context("an agent")?;
    collected(agent, 3).await?;
    assert_eq!(uids().await?, before, "403 is no absence");
    fleet::register(&world.upstream, &world.downstream, &world.registration.cluster).await?;
    cases.collect_often().await?;

    // All is gone upstream while nobody looks: wiped by mistake, or another management cluster.
    for replica in replicas.iter_mut() {
        replica.kill()?;
    }
    replicas.clear();
    let units = cases.publisher.units();
    units.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    until("nothing to be left upstream", GENEROUS, async || {
        Ok(units.list_metadata(&ListParams::default()).await?.items.is_empty().then_some(()))
    })
    .await?;
    let mut agent = world.replica_with("replica-4", 4, super::FLAGS)?;
    until("the hold to be told", GENEROUS, async || {
        let (code, text) = get(&format!("{}/readyz?verbose", agent.probe_url())).await?;
        Ok((code == 503 && text.contains("[-]absence failed")).then_some(()))
    })
    .await?;
    // The first pass made them missing; each that follows would remove them.
    collected(&agent, 3).await?;
    assert_eq!(uids().await?, before, "an empty upstream is no order");

    // Put back, they are as they were; deleted in the regular way, it goes.
    let beacon = bundle("beacon/bundle", "harbour-north-quay-stack-telemetry-relay-colle-tor-edge-gate")?;
    for one in [&beacon, &precious] {
        cases.ready(one).await?;
    }
    assert_eq!(uids().await?, before);
    ready(&mut agent).await?;
    cases.publisher.withdraw("precious").await?;
    cases.gone("v1/ConfigMap", "shrine", "precious-0").await?;
    replicas.push(agent);
    Ok(())
}
