// SPDX-License-Identifier: Apache-2.0
//! From one version of a bundle to the next: what is written, how often, what goes, and what waits.

use std::path::Path;
use std::time::Duration;

use flotilla::api::{BundleRef, keys};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, Publisher};
use harness::records::{self, Records};
use harness::units::{Units, is_applied, is_ready};
use harness::world::{Downstream, World, settled_audit};
use harness::{AuditEntry, GENEROUS, Tools, until};

const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_goes_from_version_to_version() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let story = Story {
        world,
        units: world.units().await?,
        records: world.records().await?,
        publisher: world.publisher().await?,
    };
    let _replicas = world.ready_replicas(2, 4).await?;
    story.each_deployment_costs_its_writes_and_no_more().await?;
    story.what_was_dropped_goes_also_after_a_failed_attempt().await?;
    story.a_kept_object_stays().await?;
    story.a_kind_and_an_object_of_it_fit_in_one_bundle().await?;
    story.a_paused_bundle_waits().await?;
    story.a_bundle_waits_for_those_it_depends_on().await?;
    story.a_missing_object_is_told().await
}

struct Story<'a> {
    world: &'a World,
    units: Units,
    records: Records,
    publisher: Publisher,
}

/// ConfigMaps of these names.
fn maps(bundle: &str, names: &[&str], version: &str) -> Bundle {
    let text: Vec<String> = names
        .iter()
        .map(|name| {
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{version: '{version}'}}\n")
        })
        .collect();
    Bundle::new(bundle, bundle).file("manifests/maps.yaml", text.join("---\n"))
}

impl Story<'_> {
    async fn deployed(&self, bundle: &Bundle) -> anyhow::Result<()> {
        self.publisher.publish(std::slice::from_ref(bundle)).await?;
        let id = bundle.deployment_id();
        let ready = |live: &harness::units::Live| {
            let unit = live.get(&bundle.name)?;
            (is_ready(unit) && unit.spec.deployment_id == id).then_some(())
        };
        self.units.until(&format!("{} to be deployed", bundle.name), BOUND, ready).await
    }

    async fn live_maps(&self, namespace: &str) -> anyhow::Result<Vec<String>> {
        let api: Api<ConfigMap> = Api::namespaced(self.world.downstream.admin().await?, namespace);
        Ok(api.list(&ListParams::default()).await?.iter().map(|map| map.name_any()).collect())
    }

    /// Successful writes of the agents for one bundle, Events apart: upstream, and in its own namespace downstream.
    async fn writes(&self, bundle: &str) -> anyhow::Result<Vec<String>> {
        let world = self.world;
        let registration = &world.registration;
        let text = |entry: &AuditEntry| {
            format!("{} {}/{} {}", entry.verb, entry.resource, entry.subresource, entry.name)
        };
        let done = |entry: &&AuditEntry| entry.is_write() && entry.code < 300 && entry.resource != "events";
        let up = settled_audit(&world.upstream, &world.upstream.admin().await?).await?;
        let down = settled_audit(&world.downstream, &world.downstream.admin().await?).await?;
        let up = up
            .iter()
            .filter(done)
            .filter(|entry| entry.user == registration.upstream_user && entry.name == bundle);
        let down = down.iter().filter(done).filter(|entry| {
            entry.user == registration.downstream_user
                && (entry.namespace == bundle || (entry.resource == "namespaces" && entry.name == bundle))
        });
        Ok(up.chain(down).map(text).collect())
    }

    async fn each_deployment_costs_its_writes_and_no_more(&self) -> anyhow::Result<()> {
        const OBJECTS: usize = 10;
        let mut before = 0;
        // Claim, gate, record, result: 4, and 1 for the namespace. Then the superseded revision: 1 more. From the third
        // version on, the oldest one leaves history: again 1 more.
        for (version, beyond) in [("1", 5), ("2", 5), ("3", 6), ("4", 6)] {
            self.deployed(&Bundle::config_maps("ledger", "ledger", OBJECTS, version)).await?;
            let writes = self.writes("ledger").await?;
            let new = &writes[before..];
            assert_eq!(writes.len() - before, OBJECTS + beyond, "version {version}: {new:#?}");
            before = writes.len();
        }
        let records = self.records.of("ledger", "ledger");
        let last: Vec<_> = records.iter().rev().take(2).map(|record| record.states.last().cloned()).collect();
        assert_eq!(last, [Some("deployed".to_owned()), Some("superseded".to_owned())]);
        let left = records::standing(&self.world.downstream.admin().await?, "ledger").await?;
        assert_eq!(left.len(), 2, "history: {left:?}");
        Ok(())
    }

    async fn what_was_dropped_goes_also_after_a_failed_attempt(&self) -> anyhow::Result<()> {
        self.deployed(&maps("prune", &["a", "b", "c"], "1")).await?;
        // ConfigMaps come before Services: `d` is there when the attempt fails.
        let broken = maps("prune", &["a", "b", "d"], "2").file(
            "manifests/service.yaml",
            "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 99999}]}\n",
        );
        self.publisher.publish(std::slice::from_ref(&broken)).await?;
        self.units
            .until("the attempt to fail", BOUND, |live| {
                let installed = live.get("prune")?.condition("Installed")?;
                (installed.status == "False" && installed.message.contains("99999")).then_some(())
            })
            .await?;
        assert_eq!(self.live_maps("prune").await?, ["a", "b", "c", "d"], "a failed attempt prunes nothing");
        self.deployed(&maps("prune", &["a", "e"], "3")).await?;
        assert_eq!(self.live_maps("prune").await?, ["a", "e"]);
        Ok(())
    }

    async fn a_kept_object_stays(&self) -> anyhow::Result<()> {
        let kept = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: kept\n  annotations: {helm.sh/resource-policy: keep}\n";
        self.deployed(&maps("keep", &["a", "b"], "1").file("manifests/kept.yaml", kept)).await?;
        self.deployed(&maps("keep", &["a"], "2")).await?;
        assert_eq!(self.live_maps("keep").await?, ["a", "kept"]);
        Ok(())
    }

    async fn a_kind_and_an_object_of_it_fit_in_one_bundle(&self) -> anyhow::Result<()> {
        let manifest = "apiVersion: mast.example/v1
kind: Sail
metadata: {name: main}
spec: {area: 40}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: sails.mast.example}
spec:
  group: mast.example
  scope: Namespaced
  names: {plural: sails, singular: sail, kind: Sail}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {area: {type: integer}}}
";
        self.deployed(&Bundle::new("rig", "rig").file("manifests/sails.yaml", manifest)).await?;
        assert_eq!(
            self.units.claims().iter().filter(|claim| claim.unit == "rig").count(),
            1,
            "at the first try"
        );
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("mast.example", "v1", "Sail"));
        let sails: Api<DynamicObject> =
            Api::namespaced_with(self.world.downstream.admin().await?, "rig", &resource);
        assert_eq!(sails.get("main").await?.data["spec"]["area"], 40);
        Ok(())
    }

    async fn a_paused_bundle_waits(&self) -> anyhow::Result<()> {
        self.deployed(&maps("anchor", &["a"], "1")).await?;
        let next = maps("anchor", &["b"], "2");
        self.publisher.publish(&[Bundle { paused: true, ..next.clone() }]).await?;
        // What was published later is done: the paused one was seen and left.
        self.deployed(&maps("buoy", &["a"], "1")).await?;
        assert_eq!(self.live_maps("anchor").await?, ["a"]);
        assert_eq!(self.units.claims().iter().filter(|claim| claim.unit == "anchor").count(), 1);
        self.publisher.pause("anchor", false).await?;
        self.deployed(&next).await?;
        assert_eq!(self.live_maps("anchor").await?, ["b"]);
        Ok(())
    }

    async fn a_bundle_waits_for_those_it_depends_on(&self) -> anyhow::Result<()> {
        let needs = BundleRef { name: "lower".into(), ..BundleRef::default() };
        let upper = Bundle { depends_on: vec![needs], ..maps("upper", &["a"], "1") };
        self.publisher.publish(&[upper]).await?;
        self.units
            .until("it to say what it waits for", BOUND, |live| {
                let deployed = live.get("upper")?.condition("Deployed")?;
                (deployed.status == "False" && deployed.message.contains("bundle-name=lower")).then_some(())
            })
            .await?;
        // Broken first: one that is there but not ready will not do.
        self.publisher
            .publish(&[Bundle::new("lower", "lower").file("manifests/bad.yaml", "kind: [\n")])
            .await?;
        self.units
            .until("it to wait on", BOUND, |live| {
                let message = &live.get("upper")?.condition("Deployed")?.message;
                message.contains("dependent bundle(s) are not ready: [lower]").then_some(())
            })
            .await?;
        assert!(!self.units.claims().iter().any(|claim| claim.unit == "upper"), "S10: claimed while blocked");
        self.deployed(&maps("lower", &["a"], "1")).await?;
        self.units.until_ready(["upper"], BOUND).await?;
        let deployed = self.units.live()["upper"]
            .condition("Deployed")
            .map(|it| (it.status.clone(), it.message.clone()));
        assert_eq!(deployed, Some(("True".to_owned(), String::new())));
        Ok(())
    }

    async fn a_missing_object_is_told(&self) -> anyhow::Result<()> {
        self.deployed(&maps("watch", &["a", "b"], "1")).await?;
        let api: Api<ConfigMap> = Api::namespaced(self.world.downstream.admin().await?, "watch");
        api.delete("b", &DeleteParams::default()).await?;
        let told = self
            .units
            .until("the missing object to be told", BOUND, |live| {
                let unit = live.get("watch")?;
                let missing = unit.status.as_ref()?.modified_status.iter().find(|entry| entry.missing)?;
                let ready = unit.condition("Ready")?;
                Some((
                    missing.kind.clone(),
                    missing.name.clone(),
                    ready.status.clone(),
                    ready.message.clone(),
                ))
            })
            .await?;
        assert_eq!((told.0.as_str(), told.1.as_str(), told.2.as_str()), ("ConfigMap", "b", "False"));
        assert!(told.3.contains("missing"), "{}", told.3);
        assert!(is_applied(&self.units.live()["watch"]), "no claim for a mere judgement");
        // Put back by whoever took it away, it is as it was.
        let mut map = ConfigMap::default();
        map.metadata.name = Some("b".into());
        map.metadata.labels = api.get("a").await?.metadata.labels;
        map.metadata.annotations = api.get("a").await?.metadata.annotations.map(|mut annotations| {
            annotations.retain(|key, _| key != keys::EPOCH_ANNOTATION);
            annotations
        });
        map.data = api.get("a").await?.data;
        api.create(&kube::api::PostParams::default(), &map).await?;
        until("it to be ready again", GENEROUS, async || {
            Ok(self.units.live().get("watch").is_some_and(|unit| is_ready(unit)).then_some(()))
        })
        .await
    }
}
