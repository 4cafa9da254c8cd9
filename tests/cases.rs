// SPDX-License-Identifier: Apache-2.0
//! Faults that users of such agents reported, played on one pair of clusters. `docs/conformance.md` lists them; the steps
//! are named after its rows, and their inputs lie in `tests/cases`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use flotilla::api::BundleDeployment;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::pinned_kind;
use kube::{Api, Client};
use serde_json::{Value, json};

#[path = "cases/changes.rs"]
mod changes;
#[path = "cases/halfway.rs"]
mod halfway;
#[path = "../dev/harness/mod.rs"]
mod harness;
#[path = "cases/removal.rs"]
mod removal;
#[path = "cases/surroundings.rs"]
mod surroundings;

use harness::bundles::{Bundle, Publisher};
use harness::replica::Replica;
use harness::units::{Live, Units, is_applied, is_ready};
use harness::world::{Downstream, World};
use harness::{Tools, fleet, until};

const BOUND: Duration = Duration::from_secs(120);
/// Short, so that what looks like somebody else's run need not be waited for long.
const FLAGS: &[&str] = &["--claim-timeout=6s", "--absence-grace=1s", "--mass-absence-grace=1h"];

#[tokio::test(flavor = "multi_thread")]
async fn what_others_reported_does_not_happen_here() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(env!("CARGO_BIN_EXE_flotilla")), tools, Downstream::Bare).await?;
    let result = stories(&world).await;
    world.conclude(result)
}

async fn stories(world: &World) -> anyhow::Result<()> {
    let cases = Cases {
        world,
        units: world.units().await?,
        publisher: world.publisher().await?,
        up: world.upstream.admin().await?,
        down: world.downstream.admin().await?,
    };
    cases.collect_often().await?;
    let mut replicas = vec![cases.agent("replica-1").await?, cases.agent("replica-2").await?];
    changes::stories(&cases).await?;
    surroundings::stories(&cases).await?;
    removal::stories(&cases).await?;
    halfway::stories(&cases, &mut replicas).await
}

/// What every step needs.
struct Cases<'a> {
    world: &'a World,
    units: Units,
    publisher: Publisher,
    up: Client,
    down: Client,
}

/// Where the inputs of a case lie.
fn input(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(path)
}

/// A stored bundle under this name.
fn bundle(path: &str, name: &str) -> anyhow::Result<Bundle> {
    Ok(Bundle { name: name.into(), ..Bundle::read(&input(path))? })
}

/// The objects of a stored file.
fn objects(path: &str) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(input(path)).with_context(|| format!("reading {path}"))?;
    serde_saphyr::from_multiple(&text).with_context(|| format!("reading {path}"))
}

impl Cases<'_> {
    async fn agent(&self, name: &str) -> anyhow::Result<Replica> {
        self.world.ready_replica_with(name, 4, FLAGS).await
    }

    /// Garbage is collected every few seconds.
    async fn collect_often(&self) -> anyhow::Result<()> {
        let settings = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "fleet-agent", "namespace": self.world.registration.agent_namespace},
            "data": {"config": r#"{"garbageCollectionInterval": "2s"}"#}});
        fleet::apply(&self.down, settings).await.map(drop)
    }

    /// Puts a file's objects into the cluster below, as a person would.
    async fn seed(&self, path: &str) -> anyhow::Result<()> {
        for object in objects(path)? {
            fleet::apply(&self.down, object).await?;
        }
        Ok(())
    }

    async fn api(&self, version_and_kind: &str, namespace: &str) -> anyhow::Result<Api<DynamicObject>> {
        let (version, kind) = version_and_kind.rsplit_once('/').context("a version and a kind")?;
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let (resource, _): (ApiResource, _) =
            pinned_kind(&self.down, &GroupVersionKind::gvk(group, version, kind)).await?;
        Ok(match namespace {
            "" => Api::all_with(self.down.clone(), &resource),
            namespace => Api::namespaced_with(self.down.clone(), namespace, &resource),
        })
    }

    async fn get(&self, kind: &str, namespace: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let found = self.api(kind, namespace).await?.get_opt(name).await?;
        Ok(found.map(serde_json::to_value).transpose()?)
    }

    async fn uid(&self, kind: &str, namespace: &str, name: &str) -> anyhow::Result<String> {
        let found = self.get(kind, namespace, name).await?;
        let uid = found.as_ref().and_then(|found| found["metadata"]["uid"].as_str());
        Ok(uid.with_context(|| format!("{kind} {namespace}/{name} is not there"))?.to_owned())
    }

    async fn gone(&self, kind: &str, namespace: &str, name: &str) -> anyhow::Result<()> {
        until(&format!("{kind} {namespace}/{name} to be gone"), BOUND, async || {
            Ok(self.get(kind, namespace, name).await?.is_none().then_some(()))
        })
        .await
    }

    /// Changes an object below as somebody else.
    async fn patch(&self, kind: &str, namespace: &str, name: &str, patch: Value) -> anyhow::Result<()> {
        let as_person = PatchParams { field_manager: Some("a-person".into()), ..PatchParams::default() };
        self.api(kind, namespace).await?.patch(name, &as_person, &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn status(&self, kind: &str, namespace: &str, name: &str, status: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.api(kind, namespace).await?.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Publishes it and waits until that very version is applied.
    async fn applied(&self, bundle: &Bundle) -> anyhow::Result<()> {
        self.deployed(bundle, is_applied).await
    }

    /// The same, and until it is ready.
    async fn ready(&self, bundle: &Bundle) -> anyhow::Result<()> {
        self.deployed(bundle, is_ready).await
    }

    async fn deployed(&self, bundle: &Bundle, is: fn(&BundleDeployment) -> bool) -> anyhow::Result<()> {
        self.publisher.publish(std::slice::from_ref(bundle)).await?;
        let id = bundle.deployment_id();
        self.units
            .until(&format!("{} to be deployed", bundle.name), BOUND, |live: &Live| {
                let unit = live.get(&bundle.name)?;
                (is(unit) && unit.spec.deployment_id == id).then_some(())
            })
            .await
    }

    /// Waits until a condition is false and its message contains all these words; gives the message.
    async fn told(&self, name: &str, type_: &str, words: &[&str]) -> anyhow::Result<String> {
        self.units
            .until(&format!("{type_} of {name} to tell {words:?}"), BOUND, |live| {
                let condition = live.get(name)?.condition(type_)?;
                let told = words.iter().all(|word| condition.message.contains(word));
                (condition.status == "False" && told).then(|| condition.message.clone())
            })
            .await
    }

    /// Revision and status of each record of a release, oldest first.
    async fn history(&self, namespace: &str, release: &str) -> anyhow::Result<Vec<(String, String)>> {
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(self.down.clone(), namespace);
        let labels = format!("owner=helm,name={release}");
        let all = secrets.list_metadata(&kube::api::ListParams::default().labels(&labels)).await?;
        let mut history: Vec<(String, String)> = all
            .items
            .into_iter()
            .map(|record| {
                let labels = record.metadata.labels.unwrap_or_default();
                (labels["version"].clone(), labels["status"].clone())
            })
            .collect();
        history.sort();
        Ok(history)
    }

    async fn withdrawn(&self, bundle: &Bundle, release: &str) -> anyhow::Result<()> {
        self.publisher.withdraw(&bundle.name).await?;
        until(&format!("release {release} to be gone"), BOUND, async || {
            Ok(self.history(bundle.namespace(), release).await?.is_empty().then_some(()))
        })
        .await
    }

    fn claims(&self, name: &str) -> usize {
        self.units.claims().iter().filter(|claim| claim.unit == name).count()
    }
}
