// SPDX-License-Identifier: Apache-2.0
//! A status that somebody else wrote, a person or a program that knows no preconditions, is made whole again.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::{BundleDeployment, BundleDeploymentStatus, keys};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, NEVER_READY, Publisher};
use harness::judge;
use harness::records::{Record, Traces, standing};
use harness::units::{Claim, Units};
use harness::world::{Downstream, World};
use harness::{GENEROUS, Tools, until};

const NAMESPACE: &str = "ledger";
/// How often, and how many times, somebody writes an old status back.
const EVERY: Duration = Duration::from_secs(2);
const WIPES: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_others_write_into_a_status_is_put_right() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(env!("CARGO_BIN_EXE_flotilla")), tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let _replicas = world.ready_replicas(3, 4).await?;
    // One of which all is well, and one with something in each list.
    let lame = Bundle::config_maps("lame", NAMESPACE, 2, "1").file("manifests/idle.yaml", NEVER_READY);
    publisher.publish(&[Bundle::config_maps("whole", NAMESPACE, 2, "1"), lame]).await?;
    units.until_ready(["whole"], GENEROUS).await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, NAMESPACE);
    let deployed = |status: &Value| status["resources"].as_array().is_some_and(|list| list.len() == 3);
    settled(&units, "lame", 0, "deployed", deployed).await?;
    maps.delete("lame-0", &DeleteParams::default()).await?;
    let drifted = |status: &Value| status["modifiedStatus"][0]["missing"] == true;
    let lame = settled(&units, "lame", 0, "modified", drifted).await?;
    let whole = settled(&units, "whole", 0, "settled", |_| true).await?;
    ensure!(lame["nonReadyStatus"][0]["kind"] == "Deployment" && whole["ready"] == true);

    for edit in edits() {
        for (name, right) in [("whole", &whole), ("lame", &lame)] {
            is_put_right(&units, &publisher, &maps, name, right, &edit).await?;
        }
    }
    // What is nobody's business here stays.
    let mut with_theirs = whole["conditions"].as_array().cloned().context("conditions")?;
    with_theirs.insert(0, json!({"type": "Theirs", "status": "True", "message": "kept"}));
    let theirs = json!({"conditions": with_theirs, "display": {"state": "Odd"}, "ready": false});
    let written = write(&publisher, "whole", &theirs).await?;
    let status = settled(&units, "whole", written, "ready again", |status| status["ready"] == true).await?;
    ensure!(status["display"]["state"] == "Odd", "{status}");
    ensure!(status["conditions"][0]["message"] == "kept", "{status}");
    Ok(())
}

/// Merge patches of the status.
fn edits() -> Vec<Value> {
    let error = json!({"type": "Ready", "status": "False", "reason": "Error", "message": "made up"});
    let object = json!({"kind": "Pod", "apiVersion": "v1", "namespace": "n", "name": "made-up"});
    vec![
        json!({"ready": false, "nonModified": false}),
        json!({"ready": true, "nonModified": true}),
        json!({"conditions": null}),
        json!({"conditions": [error]}),
        json!({"resources": null, "resourceCounts": null}),
        json!({"resources": [object], "resourceCounts": {"ready": 99, "desiredReady": 1, "unknown": 7}}),
        json!({"nonReadyStatus": null, "modifiedStatus": null}),
        json!({"nonReadyStatus": [object], "modifiedStatus": [object], "incompleteState": true}),
        json!({"syncGeneration": 7}),
        json!({"appliedDeploymentID": "s-made-up:1"}),
        json!({"appliedDeploymentID": null}),
        json!({"release": "ledger/made-up:9"}),
        json!({"release": "no release at all"}),
        json!({"release": null}),
        // As an agent writes that starts anew.
        json!({"appliedDeploymentID": null, "release": null, "conditions": null, "ready": null, "nonModified": null,
            "resources": null, "resourceCounts": null, "nonReadyStatus": null, "modifiedStatus": null}),
        // A claim of nobody.
        json!({"conditions": [{"type": "InProgress", "status": "False", "reason": "Expired"}]}),
    ]
}

/// Writes as somebody who knows no preconditions, and gives the version of that.
async fn write(publisher: &Publisher, name: &str, status: &Value) -> anyhow::Result<u64> {
    let patch = Patch::Merge(json!({ "status": status }));
    version(&publisher.units().patch_status(name, &PatchParams::default(), &patch).await?)
}

fn version(unit: &BundleDeployment) -> anyhow::Result<u64> {
    unit.metadata.resource_version.as_deref().unwrap_or_default().parse().context("a resourceVersion")
}

async fn is_put_right(
    units: &Units,
    publisher: &Publisher,
    maps: &Api<ConfigMap>,
    name: &str,
    right: &Value,
    edit: &Value,
) -> anyhow::Result<()> {
    let written = write(publisher, name, edit).await?;
    // A deployment that somebody called undone is done again: what was missing is there then.
    let again = edit.get("release").or(edit.get("appliedDeploymentID")).is_some();
    let healed = |status: &Value| {
        again && name == "lame" && status["modifiedStatus"].is_null() && status["ready"] != true
    };
    let (mut last, what) = (Value::Null, format!("{edit} to be put right"));
    let found = settled(units, name, written, &what, |status| {
        last = comparable(status);
        last == comparable(right) || healed(status)
    });
    let found = found.await.with_context(|| format!("{last:#}\nshould be\n{:#}", comparable(right)))?;
    ensure!(!found.to_string().contains("made-up"), "{found}");
    if healed(&found) {
        maps.delete("lame-0", &DeleteParams::default()).await?;
        settled(units, name, written, "modified anew", |status| comparable(status) == comparable(right))
            .await?;
    }
    Ok(())
}

/// Waits until the status fits, with no claim on it, in this version or a later one.
async fn settled(
    units: &Units,
    name: &str,
    from: u64,
    what: &str,
    mut fits: impl FnMut(&Value) -> bool,
) -> anyhow::Result<Value> {
    units
        .until(&format!("{name}: {what}"), GENEROUS, |live| {
            let unit = live.get(name)?;
            let status = serde_json::to_value(unit.status.as_ref()?).ok()?;
            let seen = version(unit).ok()? >= from;
            let rests = unit.condition("InProgress").is_none() && unit.condition("Monitored").is_some();
            (seen && rests && fits(&status)).then_some(status)
        })
        .await
}

/// Without times, the number of the revision and the order of conditions.
fn comparable(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(conditions) = status["conditions"].as_array_mut() {
        for condition in conditions.iter_mut() {
            condition["lastUpdateTime"] = Value::Null;
        }
        conditions.sort_by_key(|condition| condition["type"].as_str().map(str::to_owned));
    }
    let release = status["release"].as_str().and_then(|release| release.split(':').next()).map(str::to_owned);
    status["release"] = release.into();
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_status_over_a_held_claim_doubles_and_loses_nothing() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(env!("CARGO_BIN_EXE_flotilla")), tools, Downstream::Bare).await?;
    let result = wiped(&world).await;
    world.conclude(result)
}

/// Once, and then again and again: as one who keeps an old status and writes it back whole every two seconds.
async fn wiped(world: &World) -> anyhow::Result<()> {
    let (units, publisher, records) =
        (world.units().await?, world.publisher().await?, world.records().await?);
    let client = world.downstream.admin().await?;
    let traces = Traces::follow(client.clone(), "bar").await?;
    let replicas = world.ready_replicas(2, 4).await?;
    let first = Bundle::config_maps("bar", "bar", 3, "1");
    publisher.publish(std::slice::from_ref(&first)).await?;
    units.until_ready(["bar"], GENEROUS).await?;
    let old = publisher.units().get("bar").await?.status.context("a status")?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "bar");
    let uids = async || -> anyhow::Result<Vec<_>> {
        let list = maps.list_metadata(&ListParams::default().labels(keys::HASH_LABEL)).await?;
        Ok(list.items.iter().map(|map| (map.name_any(), map.uid())).collect())
    };
    let before = uids().await?;

    for (wipes, version) in [(1, "2"), (WIPES, "3")] {
        let next = Bundle::config_maps("bar", "bar", 3, version)
            .file("manifests/idle.yaml", NEVER_READY.replace("none", &format!("none:{version}")))
            .with(|options| options.helm.get_or_insert_default().timeout_seconds = 300);
        let mut rhythm = tokio::time::interval(EVERY);
        publisher.publish(std::slice::from_ref(&next)).await?;
        let its = |claim: &Claim| claim.deployment == next.deployment_id();
        for _ in 0..wipes {
            units.until_claim("a held claim", GENEROUS, |claim| its(claim) && claim.end.is_none()).await?;
            rhythm.tick().await;
            write_back(&publisher, &old).await?;
        }
        // It waits again under a claim, whoever took it up; then what it waits for comes true.
        units
            .until("the wait", GENEROUS, |live| {
                let condition = live.get("bar")?.condition(keys::CLAIM_CONDITION)?;
                (condition.reason == "Waiting" && condition.status == "True").then_some(())
            })
            .await?;
        make_available(&client).await?;
        units.until_ready(["bar"], GENEROUS).await?;
        let live = units.live()["bar"].clone();
        ensure!(live.spec.deployment_id == next.deployment_id(), "another version is ready");
        let claims = units.claims();
        let of_it = claims.iter().filter(|claim| its(claim)).count();
        eprintln!("{wipes} times written over: {of_it} claims, {} revisions", records.of("bar", "bar").len());
        ensure!(of_it > 1, "it was never written over a held claim");
        assert_eq!(claims.iter().filter(|claim| claim.end.is_none()).count(), 0, "a claim is left");
        assert_eq!(judge::verdict(&claims, &records.all(), &[]).doubles, Vec::<String>::new());
        // What stands then: one revision that is deployed, and none half done.
        let standing = standing(&client, "bar").await?;
        let stands = |record: &Record| standing.contains(&(record.release.clone(), record.revision));
        let mut all = records.of("bar", "bar");
        all.retain(stands);
        let deployed = |record: &&Record| record.states.last().is_some_and(|state| state == "deployed");
        let (deployed, pending) =
            (all.iter().filter(deployed).count(), all.iter().filter(|record| record.is_pending()).count());
        assert_eq!((deployed, pending), (1, 0), "{all:?}");
        assert_eq!(uids().await?, before, "an object was lost or made anew");
    }
    // Nobody wrote under an older claim after a newer one had begun, and no version came back.
    for (name, trace) in traces.all().iter().filter(|(name, _)| name.starts_with("bar-")) {
        let epochs: Vec<_> = trace.stamps.iter().map(|stamp| &stamp.epoch).collect();
        ensure!(epochs.is_sorted(), "{name}: {:?}", trace.stamps);
        assert_eq!(trace.versions, ["1", "2", "3"], "{name}");
    }
    drop(replicas);
    Ok(())
}

/// PUTs this status whole under the version that is current.
async fn write_back(publisher: &Publisher, old: &BundleDeploymentStatus) -> anyhow::Result<()> {
    until("the old status to be written", GENEROUS, async || {
        let mut unit = publisher.units().get("bar").await?;
        unit.status = Some(old.clone());
        match publisher.units().replace_status("bar", &PostParams::default(), &unit).await {
            Ok(_) => Ok(Some(())),
            Err(kube::Error::Api(refused)) if refused.code == 409 => Ok(None),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

/// Says of the Deployment what its controller would.
async fn make_available(client: &Client) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "bar");
    let generation = deployments.get("idle").await?.metadata.generation;
    let status = json!({"status": {"observedGeneration": generation, "replicas": 1, "updatedReplicas": 1,
        "readyReplicas": 1, "availableReplicas": 1,
        "conditions": [{"type": "Available", "status": "True"},
            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}]}});
    deployments.patch_status("idle", &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}
