// SPDX-License-Identifier: Apache-2.0
//! What a bundle asks of its surroundings: look-ups, dependencies, its namespace, kinds that are served.

use anyhow::{Context, ensure};
use flotilla::api::keys;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::harness::world::settled_audit;
use super::harness::{fleet, until};
use super::{BOUND, Bundle, Cases, bundle};

pub async fn stories(cases: &Cases<'_>) -> anyhow::Result<()> {
    pc_085_lookup_answers_in_helpers_and_as_the_account(cases).await?;
    pc_130_a_chain_waits_without_claims_and_goes_on_at_once(cases).await?;
    a_deployed_bundle_tells_that_a_dependency_is_not_ready_any_more(cases).await?;
    bundles_that_quarrel_about_a_namespace_do_not_write_without_end(cases).await?;
    what_cannot_be_looked_at_is_told_by_monitored_alone(cases).await
}

const HELPER: &str = r#"{{- define "lantern.oil" -}}
{{- $s := lookup "v1" "Secret" "lantern" "oil-store" -}}
{{- if $s -}}{{ index $s.data "litres" | b64dec }}{{- else -}}none{{- end -}}
{{- end -}}
"#;
const LANTERN: &str = r#"apiVersion: v1
kind: ConfigMap
metadata: {name: lantern}
data:
  spaces: {{ len (lookup "v1" "Namespace" "" "").items | quote }}
  oil: {{ include "lantern.oil" . | quote }}
"#;

async fn pc_085_lookup_answers_in_helpers_and_as_the_account(cases: &Cases<'_>) -> anyhow::Result<()> {
    let place = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lantern"}});
    let store = |litres: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"litres": litres},
            "metadata": {"name": "oil-store", "namespace": "lantern"}})
    };
    for object in [place, store("8")] {
        fleet::apply(&cases.down, object).await?;
    }
    let lantern = Bundle::new("lantern", "lantern")
        .file("chart/Chart.yaml", "apiVersion: v2\nname: lantern\nversion: 0.3.0\n")
        .file("chart/templates/_lib.tpl", HELPER)
        .file("chart/templates/cm.yaml", LANTERN)
        .with(|options| options.helm.get_or_insert_default().chart = "chart".into());
    cases.ready(&lantern).await?;
    let data = async || -> anyhow::Result<Value> {
        let found = cases.get("v1/ConfigMap", "lantern", "lantern").await?;
        Ok(found.context("the ConfigMap is not there")?["data"].clone())
    };
    let namespaces: Api<Namespace> = Api::all(cases.down.clone());
    let spaces = namespaces.list_metadata(&ListParams::default()).await?.items.len();
    assert_eq!(data().await?, json!({"spaces": spaces.to_string(), "oil": "8"}));

    // What it asked for has changed; what is deployed has not.
    fleet::apply(&cases.down, store("9")).await?;
    let touch = json!({"metadata": {"annotations": {"touch": "1"}}});
    cases.publisher.units().patch("lantern", &PatchParams::default(), &Patch::Merge(touch)).await?;
    cases.ready(&Bundle::config_maps("later", "lantern", 1, "1")).await?;
    ensure!(cases.units.live()["lantern"].status.as_ref().is_some_and(|status| status.non_modified));
    let again = lantern.with(|options| options.helm.get_or_insert_default().max_history = 3);
    cases.ready(&again).await?;
    assert_eq!(data().await?["oil"], "9");

    // An account that may not read it is told so; there is no silent answer.
    let agent = &cases.world.registration.agent_namespace;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "blind", "namespace": agent}});
    fleet::apply(&cases.down, account).await?;
    let blind = again.with(|options| options.service_account = "blind".into());
    cases.publisher.publish(&[blind]).await?;
    cases
        .told("lantern", "Deployed", &["forbidden", &format!("system:serviceaccount:{agent}:blind")])
        .await?;
    assert_eq!(data().await?["oil"], "9");
    // Something that may be deployed in its place, so that nothing goes on failing.
    cases.ready(&Bundle::config_maps("lantern", "lantern", 1, "1")).await
}

fn available(ready: bool) -> Value {
    let (count, status) = if ready { (1, "True") } else { (0, "False") };
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason,
            "lastTransitionTime": "2026-08-22T12:00:00Z", "lastUpdateTime": "2026-08-22T12:00:00Z"})
    };
    json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": count,
        "availableReplicas": count, "conditions": [condition("Available", status, "Said"),
        condition("Progressing", "True", "NewReplicaSetAvailable")]})
}

async fn pc_130_a_chain_waits_without_claims_and_goes_on_at_once(cases: &Cases<'_>) -> anyhow::Result<()> {
    let (roof, walls, floor) =
        (bundle("house/roof", "roof")?, bundle("house/walls", "walls")?, bundle("house/floor", "floor")?);
    for one in [&roof, &walls, &floor] {
        cases.publisher.publish(std::slice::from_ref(one)).await?;
    }
    cases.told("walls", "Deployed", &["dependent bundle(s) are not ready: [floor]"]).await?;
    cases.told("roof", "Deployed", &["floor"]).await?;
    for waiting in ["walls", "roof"] {
        assert_eq!(cases.claims(waiting), 0, "a wait holds no claim");
        let unit = cases.units.live()[waiting].clone();
        assert!(unit.condition(keys::CLAIM_CONDITION).is_none(), "nor does it back off");
    }
    cases.status("apps/v1/Deployment", "house", "floor", available(true)).await?;
    cases.units.until_ready(["floor", "walls", "roof"], BOUND).await?;
    for built in ["walls", "roof"] {
        assert_eq!(cases.claims(built), 1, "at the first try");
        ensure!(cases.get("v1/ConfigMap", "house", built).await?.is_some());
    }
    Ok(())
}

async fn a_deployed_bundle_tells_that_a_dependency_is_not_ready_any_more(
    cases: &Cases<'_>,
) -> anyhow::Result<()> {
    cases.status("apps/v1/Deployment", "house", "floor", available(false)).await?;
    cases.told("walls", "Deployed", &["dependent bundle(s) are not ready: [floor]"]).await?;
    // It is monitored on, which Fleet's agent leaves off.
    cases.patch("v1/ConfigMap", "house", "walls", json!({"data": {"count": "5"}})).await?;
    cases.told("walls", "Ready", &["walls modified"]).await?;
    cases.patch("v1/ConfigMap", "house", "walls", json!({"data": {"count": "4"}})).await?;
    cases.status("apps/v1/Deployment", "house", "floor", available(true)).await?;
    cases.units.until_ready(["floor", "walls", "roof"], BOUND).await?;
    assert_eq!(cases.claims("walls"), 1, "nothing was deployed again");
    Ok(())
}

async fn bundles_that_quarrel_about_a_namespace_do_not_write_without_end(
    cases: &Cases<'_>,
) -> anyhow::Result<()> {
    let began = tokio::time::Instant::now();
    let wants = |name: &str| {
        let team = name.to_owned();
        Bundle::config_maps(name, "market", 1, "1").with(|options| {
            options.namespace_labels = Some([("team".to_owned(), team)].into());
        })
    };
    for name in ["red", "blue"] {
        cases.applied(&wants(name)).await?;
    }
    // Each is looked at again and again meanwhile.
    for touch in ["1", "2", "3"] {
        for name in ["red", "blue"] {
            let touch = json!({"metadata": {"annotations": {"touch": touch}}});
            cases.publisher.units().patch(name, &PatchParams::default(), &Patch::Merge(touch)).await?;
        }
        cases.applied(&Bundle::config_maps(&format!("market-{touch}"), "market", 1, "1")).await?;
    }
    let audit = settled_audit(&cases.world.downstream, &cases.down).await?;
    let agent = &cases.world.registration.downstream_user;
    let writes = audit.iter().filter(|entry| {
        entry.is_write()
            && entry.code < 300
            && &entry.user == agent
            && entry.resource == "namespaces"
            && entry.name == "market"
    });
    let turns = began.elapsed().as_secs() / 120 + 1;
    let most = 3 + 2 * usize::try_from(turns)?;
    let count = writes.count();
    ensure!((2..=most).contains(&count), "{count} writes of the namespace");
    for name in ["red", "blue"] {
        cases.withdrawn(&wants(name), name).await?;
    }
    Ok(())
}

async fn what_cannot_be_looked_at_is_told_by_monitored_alone(cases: &Cases<'_>) -> anyhow::Result<()> {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "kites.demo.example.com"}, "spec": {"group": "demo.example.com", "scope": "Namespaced",
        "names": {"plural": "kites", "singular": "kite", "kind": "Kite"}, "versions": [{"name": "v1", "served": true,
        "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}}}]}});
    fleet::apply(&cases.down, definition.clone()).await?;
    let kite = Bundle::new("kite", "meadow")
        .file("kite.yaml", "apiVersion: demo.example.com/v1\nkind: Kite\nmetadata: {name: red}\n");
    cases.ready(&kite).await?;
    let definitions = cases.api("apiextensions.k8s.io/v1/CustomResourceDefinition", "").await?;
    definitions.delete("kites.demo.example.com", &kube::api::DeleteParams::default()).await?;
    cases.gone("apiextensions.k8s.io/v1/CustomResourceDefinition", "", "kites.demo.example.com").await?;
    // Nothing touches the unit: the end of its kind is reason enough.
    let told = until("Monitored to be false", BOUND, async || {
        let live = cases.units.live();
        let monitored = live["kite"].condition("Monitored").filter(|condition| condition.status == "False");
        Ok(monitored.map(|condition| condition.message.clone()))
    })
    .await?;
    // Which words depends on how far the kind has gone.
    ensure!(told.to_lowercase().contains("kite"), "{told}");
    let deployed = cases.units.live()["kite"].condition("Deployed").map(|it| it.status.clone());
    assert_eq!(deployed.as_deref(), Some("True"));
    // Served again, it is looked at again: the object went with its kind.
    fleet::apply(&cases.down, definition).await?;
    cases.told("kite", "Ready", &["red missing"]).await?;
    cases.withdrawn(&kite, "kite").await
}
