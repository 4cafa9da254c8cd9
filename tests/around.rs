// SPDX-License-Identifier: Apache-2.0
//! What surrounds a deployment: accounts, copies, dependencies and marked namespaces, with several replicas.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use flotilla::api::{BundleDeployment, BundleRef, DownstreamResource, keys};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, Publisher};
use harness::units::Units;
use harness::world::{Downstream, World};
use harness::{GENEROUS, Tools, fleet, until};

const NAMESPACE: &str = "harbour";
/// Twice the pace at which a namespace is tried again, and some.
const RETRIED: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread")]
async fn bundles_are_deployed_with_what_they_want_around_them() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(env!("CARGO_BIN_EXE_flotilla")), tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let (up, down) = (world.upstream.admin().await?, world.downstream.admin().await?);
    let _replicas = world.ready_replicas(2, 4).await?;
    a_dependent_goes_on_when_what_it_waits_for_is_there(&units, &publisher).await?;
    a_namespace_is_put_right_when_the_bundle_is_touched(&units, &publisher, &down).await?;
    a_missing_source_is_waited_for_and_copies_go_with_the_bundle(world, &units, &publisher, &up, &down)
        .await?;
    a_release_is_removed_as_its_account(world, &units, &publisher, &down).await?;
    a_namespace_that_may_not_be_labelled_is_tried_again_without_a_new_revision(
        world, &units, &publisher, &down,
    )
    .await?;
    the_default_account_is_used_where_it_exists(world, &units, &publisher, &down).await
}

fn message<'a>(unit: &'a BundleDeployment, type_: &str) -> &'a str {
    unit.condition(type_).map_or("", |condition| condition.message.as_str())
}

async fn a_dependent_goes_on_when_what_it_waits_for_is_there(
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let mut dependent = Bundle::config_maps("dependent", NAMESPACE, 1, "1");
    let accepted_states = vec!["Ready".to_owned()];
    dependent.depends_on = vec![BundleRef { name: "base".into(), accepted_states, ..BundleRef::default() }];
    publisher.publish(&[dependent]).await?;
    units
        .until("the dependent to say what it lacks", GENEROUS, |live| {
            message(live.get("dependent")?, "Deployed").contains("no bundles matching labels").then_some(())
        })
        .await?;
    publisher.publish(&[Bundle::config_maps("base", NAMESPACE, 1, "1")]).await?;
    units.until_ready(["base", "dependent"], GENEROUS).await?;
    let claims = units.claims();
    let waited = claims.iter().position(|claim| claim.unit == "dependent");
    ensure!(
        claims.iter().position(|claim| claim.unit == "base") < waited,
        "S10: the dependent was claimed while it was blocked"
    );
    Ok(())
}

async fn a_namespace_is_put_right_when_the_bundle_is_touched(
    units: &Units,
    publisher: &Publisher,
    down: &Client,
) -> anyhow::Result<()> {
    let marked = Bundle::config_maps("marked", "quay", 1, "1").with(|options| {
        options.namespace_labels = Some([("team".to_owned(), "red".to_owned())].into());
    });
    publisher.publish(&[marked]).await?;
    units.until_ready(["marked"], GENEROUS).await?;
    let release = units.live()["marked"].status.clone().unwrap_or_default().release;
    let namespaces: Api<Namespace> = Api::all(down.clone());
    let stray = json!({"metadata": {"labels": {"stray": "1", "team": null}}});
    namespaces.patch("quay", &PatchParams::default(), &Patch::Merge(stray)).await?;
    let touch = json!({"metadata": {"annotations": {"touch": "1"}}});
    publisher.units().patch("marked", &PatchParams::default(), &Patch::Merge(touch)).await?;
    until("the namespace to be put right", GENEROUS, async || {
        let labels = namespaces.get("quay").await?.metadata.labels.unwrap_or_default();
        let right = !labels.contains_key("stray") && labels.get("team").is_some_and(|team| team == "red");
        Ok(right.then_some(()))
    })
    .await?;
    units.until_ready(["marked"], GENEROUS).await?;
    let now = units.live()["marked"].status.clone().unwrap_or_default().release;
    ensure!(now == release, "the namespace alone made a new revision: {now}");
    Ok(())
}

async fn a_missing_source_is_waited_for_and_copies_go_with_the_bundle(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    up: &Client,
    down: &Client,
) -> anyhow::Result<()> {
    let wants = |name: &str| {
        let resource = DownstreamResource { kind: "secret".into(), name: "cargo".into() };
        Bundle::config_maps(name, NAMESPACE, 1, "1")
            .with(|options| options.downstream_resources = vec![resource])
    };
    publisher.publish(&[wants("hungry")]).await?;
    units
        .until("the missing source to be told", GENEROUS, |live| {
            let text = message(live.get("hungry")?, keys::CLAIM_CONDITION);
            text.contains("could not get secret").then_some(())
        })
        .await?;
    let deployed = units.live()["hungry"].condition("Deployed").is_some();
    ensure!(!deployed, "Fleet's conditions say nothing of a missing source");
    let source = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"k": "v"},
        "metadata": {"name": "cargo", "namespace": world.registration.cluster_namespace}});
    fleet::apply(up, source).await?;
    units.until_ready(["hungry"], GENEROUS).await?;
    let secrets: Api<Secret> = Api::namespaced(down.clone(), NAMESPACE);
    ensure!(secrets.get("cargo").await?.data.is_some_and(|data| data["k"].0 == b"v"));
    publisher.withdraw("hungry").await?;
    gone("the copy", &secrets, "cargo").await?;
    // One that is copied for and never deployed: there is no release.
    publisher.publish_unit(&wants("stillborn")).await?;
    until("the copy to be there", GENEROUS, async || Ok(secrets.get_opt("cargo").await?)).await?;
    publisher.withdraw("stillborn").await?;
    gone("the copy of a bundle without a release", &secrets, "cargo").await
}

async fn gone<K>(what: &str, api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    until(&format!("{what} to be gone"), GENEROUS, async || {
        Ok(api.get_opt(name).await?.is_none().then_some(()))
    })
    .await
}

/// An account that may do this in one namespace, and nothing else anywhere.
async fn account(world: &World, down: &Client, name: &str, verbs: &[&str]) -> anyhow::Result<()> {
    let rbac = "rbac.authorization.k8s.io";
    let agent = &world.registration.agent_namespace;
    let place = |kind: &str| -> Value {
        json!({"apiVersion": format!("{rbac}/v1"), "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}})
    };
    let mut role = place("Role");
    role["rules"] = json!([{"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": verbs}]);
    let mut binding = place("RoleBinding");
    binding["roleRef"] = json!({"apiGroup": rbac, "kind": "Role", "name": name});
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": name, "namespace": agent}]);
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": agent}});
    for object in [role, binding, account] {
        fleet::apply(down, object).await?;
    }
    Ok(())
}

async fn a_release_is_removed_as_its_account(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    down: &Client,
) -> anyhow::Result<()> {
    account(world, down, "keeper", &["get", "create", "update", "patch"]).await?;
    let bundle = Bundle::config_maps("kept", NAMESPACE, 1, "1")
        .with(|options| options.service_account = "keeper".into());
    publisher.publish(&[bundle]).await?;
    units.until_ready(["kept"], GENEROUS).await?;
    publisher.withdraw("kept").await?;
    let secrets: Api<Secret> = Api::namespaced(down.clone(), NAMESPACE);
    let removing = ListParams::default().labels("owner=helm,name=kept,status=uninstalling");
    until("the removal to begin", GENEROUS, async || {
        Ok((!secrets.list(&removing).await?.items.is_empty()).then_some(()))
    })
    .await?;
    let maps: Api<ConfigMap> = Api::namespaced(down.clone(), NAMESPACE);
    ensure!(maps.get_opt("kept-0").await?.is_some(), "removed by somebody who may");
    account(world, down, "keeper", &["get", "create", "update", "patch", "delete"]).await?;
    gone("what the account may delete by now", &maps, "kept-0").await
}

/// Nothing tells when the account may: it is tried again at Fleet's pace, two minutes.
async fn a_namespace_that_may_not_be_labelled_is_tried_again_without_a_new_revision(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    down: &Client,
) -> anyhow::Result<()> {
    account(world, down, "porter", &["get", "create", "update", "patch", "delete"]).await?;
    let barred = Bundle::config_maps("barred", NAMESPACE, 1, "1").with(|options| {
        options.service_account = "porter".into();
        options.namespace_labels = Some([("berth".to_owned(), "one".to_owned())].into());
    });
    publisher.publish(&[barred]).await?;
    let words = "the deployment's service account is not allowed to get namespace";
    units
        .until("the refusal to be told", GENEROUS, |live| {
            let unit = live.get("barred")?;
            let deployed = unit.condition("Deployed")?.status == "True";
            let told = ["Installed", "Ready"].iter().all(|type_| message(unit, type_).contains(words));
            (deployed && told).then_some(())
        })
        .await?;
    let release = units.live()["barred"].status.clone().unwrap_or_default().release;
    ensure!(release.ends_with("/barred:1"), "{release}");

    let rules = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "porter-namespace"}, "rules": [{"apiGroups": [""], "resources": ["namespaces"],
        "verbs": ["get", "update"], "resourceNames": [NAMESPACE]}]});
    fleet::apply(down, rules).await?;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "porter-namespace"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "porter-namespace"},
        "subjects": [{"kind": "ServiceAccount", "name": "porter", "namespace": "cattle-fleet-system"}]});
    fleet::apply(down, binding).await?;
    let namespaces: Api<Namespace> = Api::all(down.clone());
    until("the label, at the next try", RETRIED, async || {
        let labels = namespaces.get(NAMESPACE).await?.metadata.labels.unwrap_or_default();
        Ok(labels.get("berth").is_some_and(|berth| berth == "one").then_some(()))
    })
    .await?;
    units.until_ready(["barred"], GENEROUS).await?;
    let now = units.live()["barred"].status.clone().unwrap_or_default().release;
    ensure!(now == release, "the refusal made a new revision: {now}");
    Ok(())
}

async fn the_default_account_is_used_where_it_exists(
    world: &World,
    units: &Units,
    publisher: &Publisher,
    down: &Client,
) -> anyhow::Result<()> {
    account(world, down, "fleet-default", &["get", "create", "update", "patch", "delete"]).await?;
    let elsewhere = Bundle::config_maps("elsewhere", "lagoon", 1, "1");
    let here = Bundle::config_maps("here", NAMESPACE, 1, "1");
    publisher.publish(&[here, elsewhere]).await?;
    units.until_ready(["here"], GENEROUS).await?;
    let account = "system:serviceaccount:cattle-fleet-system:fleet-default";
    units
        .until("the account to be refused elsewhere", GENEROUS, |live| {
            let text = message(live.get("elsewhere")?, "Deployed");
            (text.contains("forbidden") && text.contains(account)).then_some(())
        })
        .await?;
    let maps: Api<ConfigMap> = Api::namespaced(down.clone(), "lagoon");
    ensure!(maps.get_opt("elsewhere-0").await?.is_none());
    Ok(())
}
