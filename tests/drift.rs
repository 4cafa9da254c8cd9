// SPDX-License-Identifier: Apache-2.0
//! Drift: none where nothing is wrong, all that is real, and what becomes of it when it is to be corrected.

use std::path::Path;
use std::time::Duration;

use flotilla::api::{CorrectDrift, keys};
use flotilla::telemetry::events::reason;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::pinned_kind;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

#[path = "drifting/cases.rs"]
mod cases;
#[path = "../dev/harness/mod.rs"]
mod harness;
#[path = "drifting/scenes.rs"]
mod scenes;
#[path = "drifting/webhook.rs"]
mod webhook;

use cases::{FOREIGN, HARMLESS};
use harness::bundles::{Bundle, Publisher};
use harness::records;
use harness::units::Units;
use harness::world::{Downstream, World};
use harness::{Tools, until};
use webhook::Webhook;

const NAMESPACE: &str = "harbour";
const BOUND: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_seen_where_it_is_and_nowhere_else() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

struct Story {
    units: Units,
    publisher: Publisher,
    client: kube::Client,
}

async fn story(world: &World) -> anyhow::Result<()> {
    let story = Story {
        units: world.units().await?,
        publisher: world.publisher().await?,
        client: world.downstream.admin().await?,
    };
    let mut first = world.ready_replica("replica-1", 8).await?;
    story.deploy_all().await?;
    // Without its note in the records, a new replica compares every object by a dry run.
    story.forget_notes().await?;
    first.term()?;
    first.wait().await?;
    let _second = world.ready_replica("replica-2", 8).await?;
    story.nothing_is_wrong_after_unrelated_touches().await?;
    story.every_foreign_change_is_seen().await?;
    story.webhooks_are_no_drift().await?;
    story.foreign_changes_are_reverted().await?;
    story.correction_switched_on_later_acts().await?;
    story.who_contends_is_named().await?;
    story.it_is_said(reason::DRIFT_CONTENDED, "contended").await?;
    story.a_correction_that_is_refused_is_told().await?;
    story.fields_that_others_force_are_taken_back().await?;
    story.an_injected_authority_stays_while_the_rest_is_corrected().await?;
    story.a_job_that_has_ended_is_not_run_again().await?;
    story.replicas_are_ours_again_without_an_autoscaler().await?;
    story.no_secret_value_left_the_cluster()
}

/// Flow style is YAML; a document that begins with a brace would be read as JSON.
fn yaml(manifest: &str) -> String {
    manifest
        .split("\n---\n")
        .map(|document| format!("# flow style\n{document}\n"))
        .collect::<Vec<_>>()
        .join("---\n")
}

fn marked(name: &str, manifest: &str) -> Bundle {
    let marker =
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: marker-{name}}}, data: {{a: '1'}}}}");
    Bundle::new(name, NAMESPACE).file("case.yaml", yaml(manifest)).file("marker.yaml", yaml(&marker))
}

fn corrected(bundle: Bundle) -> Bundle {
    bundle.with(|options| {
        options.correct_drift = Some(CorrectDrift { enabled: true, ..CorrectDrift::default() });
    })
}

impl Story {
    async fn api(&self, version_and_kind: &str) -> anyhow::Result<Api<DynamicObject>> {
        let (version, kind) = version_and_kind.rsplit_once('/').unwrap_or(("v1", version_and_kind));
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let (resource, _): (ApiResource, _) =
            pinned_kind(&self.client, &GroupVersionKind::gvk(group, version, kind)).await?;
        Ok(Api::namespaced_with(self.client.clone(), NAMESPACE, &resource))
    }

    async fn patch(&self, kind: &str, name: &str, patch: Value) -> anyhow::Result<()> {
        let as_person = PatchParams { field_manager: Some("a-person".into()), ..PatchParams::default() };
        self.api(kind).await?.patch(name, &as_person, &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn get(&self, kind: &str, name: &str) -> anyhow::Result<Value> {
        Ok(serde_json::to_value(self.api(kind).await?.get(name).await?)?)
    }

    /// Waits until the unit is unmodified and rests.
    async fn until_in_line(&self, name: &str) -> anyhow::Result<()> {
        self.units
            .until(&format!("{name} to be as wanted"), BOUND, |live| {
                let unit = live.get(name)?;
                let status = unit.status.as_ref()?;
                let rests = unit.condition(keys::CLAIM_CONDITION).is_none();
                let applied = status.applied_deployment_id == unit.spec.deployment_id;
                (rests && applied && !status.release.is_empty() && status.non_modified).then_some(())
            })
            .await
    }

    /// Waits until these and no other patches are told.
    async fn until_patches(&self, name: &str, wanted: &[(&str, &str)]) -> anyhow::Result<()> {
        self.until_patches_within(name, BOUND, wanted).await
    }

    async fn until_patches_within(
        &self,
        name: &str,
        bound: Duration,
        wanted: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        self.units
            .until(&format!("{name} to tell {wanted:?}"), bound, |live| {
                let status = live.get(name)?.status.as_ref()?;
                let told: Vec<(&str, &str)> = status
                    .modified_status
                    .iter()
                    .map(|entry| (entry.name.as_str(), entry.patch.as_str()))
                    .collect();
                (told == wanted).then_some(())
            })
            .await
    }

    async fn deploy_all(&self) -> anyhow::Result<()> {
        assert!(HARMLESS.len() >= 40);
        let harmless = HARMLESS.iter().map(|(name, manifest)| marked(name, manifest));
        let foreign = FOREIGN.iter().map(|(name, manifest, ..)| {
            Bundle::new(format!("foreign-{name}"), NAMESPACE).file("case.yaml", yaml(manifest))
        });
        self.publisher.publish(&harmless.chain(foreign).collect::<Vec<_>>()).await?;
        for (name, ..) in HARMLESS {
            self.until_in_line(name).await?;
        }
        for (name, ..) in FOREIGN {
            self.until_in_line(&format!("foreign-{name}")).await?;
        }
        Ok(())
    }

    async fn forget_notes(&self) -> anyhow::Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        let records = secrets.list_metadata(&ListParams::default().labels("owner=helm")).await?.items;
        let noted = |record: &&PartialObjectMeta<Secret>| {
            record.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(keys::FIELDS_ANNOTATION))
        };
        let without: Vec<_> =
            records.iter().filter(|record| !noted(record)).map(|record| record.name_any()).collect();
        assert!(without.is_empty(), "these do not say which fields were ours: {without:?}");
        let none = json!({"metadata": {"annotations": {keys::FIELDS_ANNOTATION: null}}});
        for record in records {
            let name = record.metadata.name.unwrap_or_default();
            secrets.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&none)).await?;
        }
        Ok(())
    }

    async fn nothing_is_wrong_after_unrelated_touches(&self) -> anyhow::Result<()> {
        let touch = json!({"metadata": {"annotations": {"touched": "yes"}}});
        for (name, _) in HARMLESS {
            let unit = self.units.live().get(*name).cloned();
            let resources = unit.and_then(|unit| unit.status.clone()).unwrap_or_default().resources;
            for one in resources.iter().filter(|one| !one.name.starts_with("marker-")) {
                let (group, version) = one.api_version.rsplit_once('/').unwrap_or(("", &one.api_version));
                let kind = GroupVersionKind::gvk(group, version, &one.kind);
                let (resource, _) = pinned_kind(&self.client, &kind).await?;
                let api: Api<DynamicObject> = match one.namespace.as_str() {
                    "" => Api::all_with(self.client.clone(), &resource),
                    namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
                };
                api.patch_metadata(&one.name, &PatchParams::default(), &Patch::Merge(&touch)).await?;
            }
            self.patch("v1/ConfigMap", &format!("marker-{name}"), json!({"data": {"a": "2"}})).await?;
        }
        for (name, _) in HARMLESS {
            self.until_patches(name, &[(&format!("marker-{name}"), r#"{"data":{"a":"1"}}"#)]).await?;
        }
        Ok(())
    }

    async fn every_foreign_change_is_seen(&self) -> anyhow::Result<()> {
        for (_, _, kind, object, patch, _) in FOREIGN {
            self.patch(kind, object, serde_json::from_str(patch)?).await?;
        }
        for (name, _, _, object, _, restoring) in FOREIGN {
            self.until_patches(&format!("foreign-{name}"), &[(object, restoring)]).await?;
        }
        Ok(())
    }

    async fn webhooks_are_no_drift(&self) -> anyhow::Result<()> {
        let webhook = Webhook::start().await?;
        for (label, effects) in [("mutated", "None"), ("mutated-gently", "NoneOnDryRun")] {
            let configuration = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": label},
                "webhooks": [{"name": format!("{label}.example.test"), "admissionReviewVersions": ["v1"],
                    "sideEffects": effects, "timeoutSeconds": 5, "objectSelector": {"matchLabels": {"hook": label}},
                    "clientConfig": {"url": webhook.url, "caBundle": webhook.authority},
                    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
                        "resources": ["configmaps"]}]}],
            });
            harness::fleet::apply(&self.client, configuration).await?;
            let manifest = format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {label}, labels: {{hook: {label}}}}}, data: {{a: '1', forced: 'no'}}}}"
            );
            self.publisher.publish(&[corrected(marked(label, &manifest))]).await?;
            self.until_in_line(label).await?;
            assert_eq!(self.get("v1/ConfigMap", label).await?["data"]["forced"], "by the webhook");
            // Something to put right beside it: done once, and the webhook's work is left alone.
            self.patch("v1/ConfigMap", &format!("marker-{label}"), json!({"data": {"a": "2"}})).await?;
            self.until_revision(label, 2).await?;
            self.until_in_line(label).await?;
        }
        Ok(())
    }

    async fn until_revision(&self, name: &str, revision: u32) -> anyhow::Result<()> {
        let release = format!("{NAMESPACE}/{name}:{revision}");
        self.units
            .until(&format!("release {release}"), BOUND, |live| {
                (live.get(name)?.status.as_ref()?.release == release).then_some(())
            })
            .await
    }

    async fn foreign_changes_are_reverted(&self) -> anyhow::Result<()> {
        let manifest = "{apiVersion: drift.example.test/v1, kind: Boat, metadata: {name: ark}, spec: {size: 3, tags: [a], anchor: {}, crew: [{name: x, role: cook}]}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: log}, data: {a: '1', b: '2'}}";
        self.publisher
            .publish(&[corrected(Bundle::new("fleet", NAMESPACE).file("case.yaml", yaml(manifest)))])
            .await?;
        self.until_in_line("fleet").await?;
        let mut revision = 1;
        for (kind, object, patch) in [
            ("drift.example.test/v1/Boat", "ark", json!({"spec": {"size": 4}})),
            ("drift.example.test/v1/Boat", "ark", json!({"spec": {"tags": ["a", "b"]}})),
            ("drift.example.test/v1/Boat", "ark", json!({"spec": {"crew": null}})),
            ("drift.example.test/v1/Boat", "ark", json!({"spec": {"anchor": null}})),
            ("v1/ConfigMap", "log", json!({"data": {"b": null, "c": "kept"}})),
        ] {
            self.patch(kind, object, patch).await?;
            revision += 1;
            self.until_revision("fleet", revision).await?;
            self.until_in_line("fleet").await?;
        }
        let boat = self.get("drift.example.test/v1/Boat", "ark").await?;
        assert_eq!(
            boat["spec"],
            json!({"size": 3, "tags": ["a"], "anchor": {}, "crew": [{"name": "x", "role": "cook"}]})
        );
        assert_eq!(self.get("v1/ConfigMap", "log").await?["data"], json!({"a": "1", "b": "2", "c": "kept"}));
        let standing = records::standing(&self.client, NAMESPACE).await?;
        let mine: Vec<_> = standing.iter().filter(|(name, _)| name == "fleet").collect();
        assert_eq!(mine.len(), 2, "as many as Helm keeps here: {standing:?}");
        Ok(())
    }

    async fn correction_switched_on_later_acts(&self) -> anyhow::Result<()> {
        let patch = json!({"spec": {"correctDrift": {"enabled": true}}});
        self.publisher
            .units()
            .patch("foreign-map-value", &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        self.until_in_line("foreign-map-value").await?;
        assert_eq!(self.get("v1/ConfigMap", "f1").await?["data"]["a"], "1");
        Ok(())
    }

    async fn who_contends_is_named(&self) -> anyhow::Result<()> {
        let manifest = "{apiVersion: v1, kind: ConfigMap, metadata: {name: helm}, data: {course: north}}";
        self.publisher
            .publish(&[corrected(Bundle::new("contended", NAMESPACE).file("case.yaml", yaml(manifest)))])
            .await?;
        self.until_in_line("contended").await?;
        let mut turns = 0;
        let told = until("who contends to be told", BOUND, async || {
            if self.get("v1/ConfigMap", "helm").await?["data"]["course"] == "north" {
                turns += 1;
                self.patch("v1/ConfigMap", "helm", json!({"data": {"course": "south"}})).await?;
            }
            let unit = self.units.live().get("contended").cloned();
            let message =
                unit.and_then(|unit| Some(unit.condition("Ready")?.message.clone())).unwrap_or_default();
            Ok(message.contains("manager \"a-person\" changes it back").then_some(message))
        })
        .await?;
        assert!(told.starts_with(
            "configmap.v1 harbour/helm modified {\"data\":{\"course\":\"north\"}}; corrected 3 times"
        ));
        assert!(turns <= 5, "{turns} corrections");
        Ok(())
    }

    fn no_secret_value_left_the_cluster(&self) -> anyhow::Result<()> {
        let secret_values = ["4711", "NDcxMQ"];
        let told = serde_json::to_string(
            &self.units.live().values().map(|unit| unit.status.clone()).collect::<Vec<_>>(),
        )?;
        assert!(secret_values.iter().all(|value| !told.contains(value)), "a secret value left the cluster");
        Ok(())
    }
}
