// SPDX-License-Identifier: Apache-2.0
//! Deployments that fail, are forced, or find a release half done, on real control planes.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use flotilla::api::keys;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::Tools;
use harness::bundles::{Bundle, Publisher};
use harness::charts::{NAMESPACE, Yard, chart, object};
use harness::units::Units;
use harness::world::{Downstream, World};

const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_undone_when_asked_and_what_is_half_done_is_repaired() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let yard = Yard::new(world.downstream.admin().await?);
    let _replica = world.ready_replica("replica-1", 2).await?;
    an_atomic_install_leaves_nothing_and_is_not_repeated(&yard, &units, &publisher).await?;
    an_atomic_upgrade_goes_back_once(&yard, &units, &publisher).await?;
    an_upgrade_does_not_wait_for_what_a_finalizer_holds(&yard, &units, &publisher).await?;
    a_forced_bundle_replaces_and_says_what_cannot_be(&yard, &units, &publisher).await?;
    what_a_lost_record_listed_is_still_pruned(&yard, &units, &publisher).await?;
    a_corrupt_record_is_got_over(&yard, &units, &publisher).await?;
    the_second_bundle_of_one_release_is_refused(&yard, &units, &publisher).await
}

fn late(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "example.test/c:1"}]}}}})
}

async fn told_for_good(units: &Units, name: &str) -> anyhow::Result<String> {
    units
        .until(&format!("{name} to fail for good"), BOUND, |live| {
            let unit = live.get(name)?;
            let status = unit.status.as_ref()?;
            let installed = unit.condition("Installed").filter(|condition| condition.status == "False")?;
            let ended = unit.condition(keys::CLAIM_CONDITION).is_none()
                && status.applied_deployment_id == unit.spec.deployment_id;
            ended.then(|| installed.message.clone())
        })
        .await
}

fn atomic(bundle: Bundle) -> Bundle {
    bundle.with(|options| {
        let helm = options.helm.get_or_insert_default();
        (helm.timeout_seconds, helm.atomic) = (2, true);
    })
}

async fn an_atomic_install_leaves_nothing_and_is_not_repeated(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let objects = [
        late("hoist"),
        object("ConfigMap", "hoist", None),
        object("ConfigMap", "hoist-bye", Some(("post-delete", "0"))),
    ];
    publisher.publish(&[atomic(chart("hoist", &objects))]).await?;
    let told = told_for_good(units, "hoist").await?;
    let start = format!(
        "not installed: release hoist failed, and has been uninstalled due to rollback-on-failure being set: resource \
         Deployment/{NAMESPACE}/hoist not ready. status: InProgress, message: "
    );
    assert!(told.starts_with(&start) && told.ends_with("context deadline exceeded"), "{told}");
    assert!(!yard.has("hoist").await? && yard.has("hoist-bye").await?);
    assert_eq!(yard.history("hoist").await?, []);
    let deployments: Api<Deployment> = Api::namespaced(yard.client.clone(), NAMESPACE);
    assert!(deployments.get_opt("hoist").await?.is_none());
    publisher.publish(&[Bundle::config_maps("next", NAMESPACE, 1, "1")]).await?;
    units.until_ready(["next"], BOUND).await?;
    assert_eq!(units.claims().iter().filter(|claim| claim.unit == "hoist").count(), 1);
    Ok(())
}

async fn an_atomic_upgrade_goes_back_once(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let main = object("ConfigMap", "jib", None);
    let back = object("ConfigMap", "jib-back", Some(("post-rollback", "0")));
    publisher.publish(&[chart("jib", &[main.clone(), back.clone()])]).await?;
    units.until_ready(["jib"], BOUND).await?;
    publisher.publish(&[atomic(chart("jib", &[main, back, late("jib")]))]).await?;
    let told = told_for_good(units, "jib").await?;
    let start =
        "not installed: release jib failed, and has been rolled back due to rollback-on-failure being set: ";
    assert!(told.starts_with(start), "{told}");
    let data = yard.maps.get("jib").await?.data.unwrap_or_default();
    assert_eq!(data.get("revision").map(String::as_str), Some("1"), "as the first revision had it");
    assert!(yard.has("jib-back").await?);
    let deployments: Api<Deployment> = Api::namespaced(yard.client.clone(), NAMESPACE);
    assert!(deployments.get_opt("jib").await?.is_none());
    let history = yard.history("jib").await?;
    let told: Vec<_> = history.iter().map(|(revision, status, _)| (*revision, status.as_str())).collect();
    assert_eq!(told, [(2, "failed"), (3, "deployed")]);
    assert_eq!(history[1].2, "Rollback to 1");
    Ok(())
}

async fn an_upgrade_does_not_wait_for_what_a_finalizer_holds(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let main = object("ConfigMap", "mast", None);
    let mut held = object("ConfigMap", "mast-held", None);
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    // A wait for what is held would last beyond every bound of this test.
    let patient = |objects: &[Value]| {
        atomic(chart("mast", objects))
            .with(|options| options.helm.get_or_insert_default().timeout_seconds = 600)
    };
    publisher.publish(&[patient(&[main.clone(), held])]).await?;
    units.until_ready(["mast"], BOUND).await?;
    let upgraded = patient(&[main]);
    publisher.publish(std::slice::from_ref(&upgraded)).await?;
    until_applied(units, &upgraded).await?;
    let status = units.live()["mast"].status.clone().unwrap_or_default();
    assert!(status.release.ends_with("/mast:2"), "{}", status.release);
    let told: Vec<_> =
        status.modified_status.iter().map(|entry| (entry.name.as_str(), entry.delete)).collect();
    assert_eq!(told, [("mast-held", true)], "it is told as extra");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    yard.maps.patch("mast-held", &PatchParams::default(), &free).await?;
    units.until_ready(["mast"], BOUND).await
}

/// The deployment id is applied, and no claim is open.
async fn until_applied(units: &Units, bundle: &Bundle) -> anyhow::Result<()> {
    let (name, id) = (bundle.name.as_str(), bundle.deployment_id());
    units
        .until(&format!("{name} to be applied"), BOUND, |live| {
            let unit = live.get(name)?;
            let applied = unit.status.as_ref()?.applied_deployment_id == id;
            (applied && unit.condition(keys::CLAIM_CONDITION).is_none()).then_some(())
        })
        .await
}

fn forced(name: &str, label: &str) -> Bundle {
    let mut deployment = late(name);
    deployment["spec"]["selector"]["matchLabels"] = json!({"app": label});
    deployment["spec"]["template"]["metadata"]["labels"] = json!({"app": label});
    Bundle::new(name, NAMESPACE)
        .file("manifests/web.yaml", deployment.to_string())
        .file("manifests/map.yaml", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"label": label}}).to_string())
        .with(|options| options.helm.get_or_insert_default().force = true)
}

async fn a_forced_bundle_replaces_and_says_what_cannot_be(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let first = forced("gaff", "one");
    publisher.publish(std::slice::from_ref(&first)).await?;
    until_applied(units, &first).await?;
    let stray = Patch::Merge(json!({"data": {"stray": "x"}}));
    yard.maps
        .patch(
            "gaff",
            &PatchParams { field_manager: Some("somebody".into()), ..PatchParams::default() },
            &stray,
        )
        .await?;
    publisher.publish(&[forced("gaff", "two")]).await?;
    let told = told_for_good(units, "gaff").await?;
    let start = "not installed: failed to replace object: Deployment.apps \"gaff\" is invalid: spec.selector: Invalid value: ";
    assert!(told.starts_with(start) && told.ends_with("field is immutable"), "{told}");
    let data = yard.maps.get("gaff").await?.data.unwrap_or_default();
    assert_eq!(
        data.into_iter().collect::<Vec<_>>(),
        [("label".to_owned(), "two".to_owned())],
        "replaced as a whole"
    );
    assert_eq!(yard.records("gaff").await?.pop().context("a record")?.apply_method, "csa");
    Ok(())
}

async fn what_a_lost_record_listed_is_still_pruned(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    publisher.publish(&[Bundle::config_maps("lost", NAMESPACE, 3, "1")]).await?;
    units.until_ready(["lost"], BOUND).await?;
    yard.secrets
        .delete_collection(&DeleteParams::default(), &ListParams::default().labels("owner=helm,name=lost"))
        .await?;
    let next = Bundle::config_maps("lost", NAMESPACE, 1, "2");
    publisher.publish(std::slice::from_ref(&next)).await?;
    until_applied(units, &next).await?;
    assert!(yard.has("lost-0").await? && !yard.has("lost-1").await? && !yard.has("lost-2").await?);
    Ok(())
}

async fn a_corrupt_record_is_got_over(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    publisher.publish(&[Bundle::config_maps("torn", NAMESPACE, 2, "1")]).await?;
    units.until_ready(["torn"], BOUND).await?;
    let mut secret = yard.secrets.get("sh.helm.release.v1.torn.v1").await?;
    secret.data.get_or_insert_default().insert("release".into(), ByteString(b"%".to_vec()));
    yard.secrets.replace("sh.helm.release.v1.torn.v1", &Default::default(), &secret).await?;
    let next = Bundle::config_maps("torn", NAMESPACE, 1, "2");
    publisher.publish(std::slice::from_ref(&next)).await?;
    until_applied(units, &next).await?;
    assert!(yard.has("torn-0").await? && !yard.has("torn-1").await?);
    let history = yard.history("torn").await?;
    let told: Vec<_> = history.iter().map(|(revision, status, _)| (*revision, status.as_str())).collect();
    assert_eq!(told, [(2, "deployed")], "and it is gone");
    Ok(())
}

async fn the_second_bundle_of_one_release_is_refused(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let shared = |name: &str| {
        Bundle::config_maps(name, NAMESPACE, 1, "1")
            .with(|options| options.helm.get_or_insert_default().release_name = "shared".into())
    };
    publisher.publish(&[shared("first")]).await?;
    units.until_ready(["first"], BOUND).await?;
    publisher.publish(&[shared("second")]).await?;
    let told = units
        .until("the refusal to be told", BOUND, |live| {
            let deployed = live.get("second")?.condition("Deployed")?;
            (deployed.status == "False").then(|| deployed.message.clone())
        })
        .await?;
    assert_eq!(told, format!("release {NAMESPACE}/shared belongs to bundle first, not to second"));
    assert!(yard.has("first-0").await? && !yard.has("second-0").await?);
    Ok(())
}
