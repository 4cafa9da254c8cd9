// SPDX-License-Identifier: Apache-2.0
//! Moving in where Fleet's agent worked: what it deployed stays as it is, and the next version builds on it.
//!
//! What that agent left is taken from its recording in `tests/golden`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use flotilla::api::{BundleDeploymentStatus, keys, names};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::units::Units;
use harness::world::{Downstream, World, settled_audit};
use harness::{AuditEntry, Tools};

const BOUND: Duration = Duration::from_secs(120);
/// The bundle of the recording.
const RECORDED: &str = "raw-single";
const TIME: &str = "2026-08-22T10:00:00Z";

#[tokio::test(flavor = "multi_thread")]
async fn what_fleets_agent_deployed_is_not_deployed_again() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let kept = Left::new("moved")?;
    // Its BundleDeployment was made anew: the status is lost, the release is not.
    let blank = Left::new("blank")?;
    let publisher = world.publisher().await?;
    let client = world.downstream.admin().await?;
    for left in [&kept, &blank] {
        left.downstream(&client).await?;
        publisher.publish(std::slice::from_ref(&left.bundle)).await?;
    }
    let status = kept.status(&client).await?;
    let patch = Patch::Merge(json!({"status": status}));
    publisher.units().patch_status(&kept.bundle.name, &PatchParams::default(), &patch).await?;
    let blank_before = blank.objects(&client).await?;

    let units = world.units().await?;
    let _replicas = world.ready_replicas(2, 4).await?;
    let witness = Bundle::config_maps("witness", "elsewhere", 3, "1");
    publisher.publish(std::slice::from_ref(&witness)).await?;
    units.until_ready([witness.name.as_str(), &kept.bundle.name, &blank.bundle.name], BOUND).await?;

    assert_eq!(claims(&units, &kept), 0, "what is as wanted needs no claim");
    assert_eq!(writes(world, &kept).await?, Vec::<String>::new(), "what is as wanted is left alone");
    without_a_status_objects_are_stamped_only(world, &units, &blank, &blank_before).await?;
    it_is_followed_like_any_other(world, &units, &kept).await?;
    the_next_version_is_the_next_revision(world, &units, &blank).await
}

async fn without_a_status_objects_are_stamped_only(
    world: &World,
    units: &Units,
    blank: &Left,
    before: &Objects,
) -> anyhow::Result<()> {
    let client = world.downstream.admin().await?;
    assert_eq!(claims(units, blank), 1);
    let status = units.live()[&blank.bundle.name].status.clone().context("no status")?;
    let without_times = |status: &BundleDeploymentStatus| -> anyhow::Result<Value> {
        let mut status = serde_json::to_value(status)?;
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastUpdateTime"] = Value::Null;
        }
        Ok(status)
    };
    assert_eq!(without_times(&status)?, without_times(&blank.status(&client).await?)?);

    let after = blank.objects(&client).await?;
    let Objects { map, record } = &after;
    assert!(map.annotations().contains_key(keys::EPOCH_ANNOTATION), "the object has no stamp");
    let unstamped = |map: &ConfigMap| {
        let mut map = map.clone();
        map.annotations_mut().remove(keys::EPOCH_ANNOTATION);
        map.metadata.resource_version = None;
        map.metadata.managed_fields = None;
        map
    };
    assert_eq!(unstamped(map), unstamped(&before.map));
    let managers: Vec<_> = map.managed_fields().iter().map(|entry| entry.manager.as_deref()).collect();
    assert_eq!(managers, [Some("fleetagent")], "the fields stay with one manager");
    assert_eq!(record.uid(), before.record.uid());
    assert_eq!(release(record)?, release(&before.record)?, "the same revision");
    assert_eq!(blank.revisions(&client).await?, [("1".to_owned(), "deployed".to_owned())]);
    Ok(())
}

async fn it_is_followed_like_any_other(world: &World, units: &Units, kept: &Left) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, &kept.namespace);
    maps.delete("only", &DeleteParams::default()).await?;
    let missing = |condition: &flotilla::api::Condition| {
        condition.status == "False"
            && condition.message.contains("only")
            && condition.message.contains("missing")
    };
    units
        .until("the missing object to be told", BOUND, |live| {
            live.get(&kept.bundle.name)?.condition("Ready").is_some_and(missing).then_some(())
        })
        .await?;
    assert_eq!(claims(units, kept), 0);
    Ok(())
}

async fn the_next_version_is_the_next_revision(
    world: &World,
    units: &Units,
    blank: &Left,
) -> anyhow::Result<()> {
    let client = world.downstream.admin().await?;
    let uid = blank.objects(&client).await?.map.uid();
    let text = manifest()?.replace("key: value", "key: changed");
    let next = Bundle::new(blank.bundle.name.clone(), &blank.namespace).file("cm.yaml", text);
    world.publisher().await?.publish(std::slice::from_ref(&next)).await?;
    units
        .until("the next version to be deployed", BOUND, |live| {
            let status = live.get(&next.name)?.status.as_ref()?;
            (status.applied_deployment_id == next.deployment_id() && status.ready).then_some(())
        })
        .await?;
    let map = blank.objects(&client).await?.map;
    assert_eq!((map.uid(), &map.data.context("no data")?["key"][..]), (uid, "changed"));
    let expected =
        [("1", "superseded"), ("2", "deployed")].map(|(n, state)| (n.to_owned(), state.to_owned()));
    assert_eq!(blank.revisions(&client).await?, expected);
    Ok(())
}

fn claims(units: &Units, left: &Left) -> usize {
    units.claims().iter().filter(|claim| claim.unit == left.bundle.name).count()
}

/// What the agent wrote, or tried to, that concerns this bundle.
async fn writes(world: &World, left: &Left) -> anyhow::Result<Vec<String>> {
    let (upstream, downstream) = (&world.upstream, &world.downstream);
    let told = |entry: &AuditEntry| format!("{} {} {}", entry.verb, entry.uri, entry.code);
    let mut found: Vec<String> = settled_audit(upstream, &upstream.admin().await?)
        .await?
        .iter()
        .filter(|entry| entry.user == world.registration.upstream_user && entry.is_write())
        .filter(|entry| entry.name == left.bundle.name)
        .map(told)
        .collect();
    let entries = settled_audit(downstream, &downstream.admin().await?).await?;
    let its = |entry: &&AuditEntry| {
        entry.user == world.registration.downstream_user
            && entry.is_write()
            && (entry.namespace == left.namespace || entry.name == left.namespace)
    };
    found.extend(entries.iter().filter(its).map(told));
    Ok(found)
}

/// A bundle that Fleet's agent deployed: the recorded one under another name.
struct Left {
    bundle: Bundle,
    namespace: String,
    recorded: Value,
}

/// What lies downstream.
struct Objects {
    map: ConfigMap,
    record: Secret,
}

/// What a record says.
fn release(record: &Secret) -> anyhow::Result<Value> {
    let payload = record.data.as_ref().and_then(|data| data.get("release")).context("an empty record")?;
    let packed = STANDARD.decode(&payload.0)?;
    Ok(serde_json::from_reader(GzDecoder::new(packed.as_slice()))?)
}

fn golden(file: &str) -> anyhow::Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/raw/single").join(file);
    std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

fn manifest() -> anyhow::Result<String> {
    golden("input/cm.yaml")
}

impl Left {
    fn new(name: &str) -> anyhow::Result<Left> {
        let hash = |bundle: &str| names::object_hash(&names::set_id(bundle, ""));
        let text = golden("expected.json")?.replace(&hash(RECORDED), &hash(name)).replace(RECORDED, name);
        let recorded: Value = serde_json::from_str(&text)?;
        let namespace = format!("t-{name}");
        let bundle = Bundle::new(name, &namespace).file("cm.yaml", manifest()?);
        Ok(Left { bundle, namespace, recorded: recorded["steps"][0].clone() })
    }

    /// Puts there what the agent left, as it did.
    async fn downstream(&self, client: &Client) -> anyhow::Result<()> {
        let object = |kind: &str| {
            let objects = self.recorded["objects"].as_array().into_iter().flatten();
            let found = objects.into_iter().find(|object| object["kind"] == kind).cloned();
            let mut found = found.with_context(|| format!("no {kind} is recorded"))?;
            found["metadata"]["managedFields"] = Value::Null;
            anyhow::Ok(Patch::Apply(found))
        };
        let params = PatchParams::apply("fleetagent");
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.patch(&self.namespace, &params, &object("Namespace")?).await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &self.namespace);
        maps.patch("only", &params, &object("ConfigMap")?).await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        secrets.create(&PostParams::default(), &self.record()?).await?;
        Ok(())
    }

    /// The release record: JSON, gzip, base64 once for Helm and once for the Secret.
    fn record(&self) -> anyhow::Result<Secret> {
        let recorded = &self.recorded["releases"][0];
        // Another writer of YAML quotes otherwise: it is the same release all the same.
        let text = recorded["manifest"].as_str().context("a manifest is recorded")?;
        let text = text.replace("key: value", "\"key\": 'value'");
        let chart = &recorded["chart"];
        let release = json!({
            "name": recorded["name"],
            "namespace": recorded["namespace"],
            "version": recorded["version"],
            "apply_method": recorded["applyMethod"],
            "manifest": text,
            "info": {
                "first_deployed": TIME,
                "last_deployed": TIME,
                "description": recorded["info"]["description"],
                "status": recorded["info"]["status"],
            },
            "chart": {
                "metadata": chart["metadata"],
                "lock": null,
                "templates": [],
                "values": null,
                "schema": null,
                "modtime": TIME,
                "schemamodtime": TIME,
                "files": [{"name": chart["files"][0], "data": STANDARD.encode(manifest()?), "modtime": TIME}],
            },
        });
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&serde_json::to_vec(&release)?)?;
        let mut labels = recorded["labels"].clone();
        labels["modifiedAt"] = "1787392800".into();
        let mut secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": recorded["secret"], "labels": labels},
            "type": recorded["type"],
        }))?;
        let payload = STANDARD.encode(packed.finish()?).into_bytes();
        secret.data = Some([("release".to_owned(), ByteString(payload))].into());
        Ok(secret)
    }

    /// The status that the agent wrote.
    async fn status(&self, client: &Client) -> anyhow::Result<BundleDeploymentStatus> {
        let mut status = self.recorded["bundleDeployments"][&self.bundle.name]["status"].clone();
        let created = self.objects(client).await?.map.creation_timestamp().context("no creation time")?;
        status["resources"][0]["createdAt"] = serde_json::to_value(created)?;
        for condition in status["conditions"].as_array_mut().context("no conditions are recorded")? {
            condition["lastUpdateTime"] = TIME.into();
        }
        let content = self.bundle.manifest().id();
        let applied = status["appliedDeploymentID"].as_str().unwrap_or_default();
        anyhow::ensure!(applied.starts_with(&format!("{content}:")), "{content} is not what was recorded");
        // The second half is whatever the controller made of the options.
        status["appliedDeploymentID"] = self.bundle.deployment_id().into();
        Ok(serde_json::from_value(status)?)
    }

    async fn objects(&self, client: &Client) -> anyhow::Result<Objects> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &self.namespace);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        let name = self.recorded["releases"][0]["secret"].as_str().unwrap_or_default();
        Ok(Objects { map: maps.get("only").await?, record: secrets.get(name).await? })
    }

    /// The revisions of the release with their states, by number.
    async fn revisions(&self, client: &Client) -> anyhow::Result<Vec<(String, String)>> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        let list = secrets.list_metadata(&ListParams::default().labels("owner=helm")).await?;
        let label =
            |labels: &BTreeMap<String, String>, key: &str| labels.get(key).cloned().unwrap_or_default();
        let mut found: Vec<_> = list
            .items
            .iter()
            .map(|secret| (label(secret.labels(), "version"), label(secret.labels(), "status")))
            .collect();
        found.sort();
        Ok(found)
    }
}
