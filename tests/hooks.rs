// SPDX-License-Identifier: Apache-2.0
//! Hooks on real control planes. Nothing runs Jobs there: the test says how they end.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use flotilla::api::keys;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, Publisher};
use harness::charts::{NAMESPACE, Yard, chart, object, until_waiting};
use harness::judge;
use harness::replica::Replica;
use harness::units::Units;
use harness::world::{Downstream, World, settled_audit};
use harness::{GENEROUS, Tools, until};

const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn hooks_run_at_their_moments_and_at_least_once() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let yard = Yard::new(world.downstream.admin().await?);
    // One slot: a hook that held it would block everything else.
    let mut replica = world.ready_replica("replica-1", 1).await?;
    a_job_holds_no_slot_and_the_rest_waits_for_it(world, &yard, &units, &publisher).await?;
    an_upgrade_runs_its_own_hooks_and_a_removal_the_delete_hooks(&yard, &units, &publisher).await?;
    a_first_install_stays_one_until_its_hook_succeeds(&yard, &units, &publisher).await?;
    a_new_deployment_id_ends_the_wait_for_a_hook(&yard, &units, &publisher).await?;
    jobs_of_the_bundle_are_waited_for_when_it_asks(&yard, &units, &publisher).await?;
    a_kind_of_crds_is_served_before_the_rest_and_stays(&yard, &units, &publisher).await?;
    whoever_takes_over_runs_the_hooks_anew(world, &yard, &units, &publisher, &mut replica).await
}

fn first() -> Bundle {
    chart(
        "crane",
        &[
            object("Job", "migrate", Some(("pre-install", "0"))),
            object("ConfigMap", "crane-before", Some(("pre-install", "-5"))),
            object("ConfigMap", "crane-after", Some(("post-install,post-upgrade", "0"))),
            object("ConfigMap", "crane-pre-delete", Some(("pre-delete", "0"))),
            object("ConfigMap", "crane-post-delete", Some(("post-delete", "0"))),
            object("ConfigMap", "crane-test", Some(("test", "0"))),
            object("ConfigMap", "crane", None),
        ],
    )
}

async fn a_job_holds_no_slot_and_the_rest_waits_for_it(
    world: &World,
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    publisher.publish(&[first()]).await?;
    yard.job("migrate", "").await?;
    until_waiting(units, "crane").await?;
    publisher.publish(&[Bundle::config_maps("quick", NAMESPACE, 2, "1")]).await?;
    units.until_ready(["quick"], BOUND).await?;
    assert!(yard.has("crane-before").await? && !yard.has("crane").await? && !yard.has("crane-after").await?);
    let record = yard.records("crane").await?.pop().context("a record")?;
    assert_eq!(record.info.status.as_str(), "pending-install");
    yard.ends("migrate", true).await?;
    units.until_ready(["crane"], BOUND).await?;
    assert!(yard.has("crane").await? && yard.has("crane-after").await?);
    assert!(!yard.has("crane-test").await? && !yard.has("crane-pre-delete").await?);

    let record = yard.records("crane").await?.pop().context("a record")?;
    let phases: Vec<(&str, &str)> = record
        .hooks()
        .iter()
        .map(|hook| (hook["name"].as_str().unwrap_or("?"), hook["last_run"]["phase"].as_str().unwrap_or("?")))
        .collect();
    for (name, phase) in [
        ("crane-before", "Succeeded"),
        ("migrate", "Succeeded"),
        ("crane-after", "Succeeded"),
        ("crane-test", ""),
        ("crane-pre-delete", ""),
    ] {
        assert!(phases.contains(&(name, phase)), "{name}: {phases:?}");
    }
    let hook = record.hooks().iter().find(|hook| hook["name"] == "migrate").context("its hook")?;
    assert!(hook["last_run"]["started_at"].is_string() && hook["last_run"]["completed_at"].is_string());
    assert!(!record.manifest.contains("crane-after"), "hooks are no part of the manifest");
    let status = units.live()["crane"].status.clone().unwrap_or_default();
    let shown: Vec<&str> = status.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!((shown, status.non_modified), (vec!["crane"], true));
    let after = yard.maps.get("crane-after").await?;
    let annotations = after.metadata.annotations.unwrap_or_default();
    assert!(
        annotations.contains_key(keys::EPOCH_ANNOTATION) && !annotations.contains_key(keys::RELEASE_NAME)
    );

    let audit = settled_audit(&world.upstream, &world.upstream.admin().await?).await?;
    let registration = &world.registration;
    let writes = judge::status_writes(&audit, &registration.upstream_user, &registration.cluster_namespace);
    assert_eq!((writes["crane"], writes["quick"]), (3, 2), "claim, wait and result; claim and result");
    Ok(())
}

async fn an_upgrade_runs_its_own_hooks_and_a_removal_the_delete_hooks(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let values = json!({"x": 1}).as_object().cloned();
    let upgraded = first().with(|options| options.helm.get_or_insert_default().values = values);
    publisher.publish(std::slice::from_ref(&upgraded)).await?;
    units
        .until("the upgrade", BOUND, |live| {
            let unit = live.get("crane")?;
            let status = unit.status.as_ref()?;
            (status.release.ends_with(":2") && unit.condition(keys::CLAIM_CONDITION).is_none()).then_some(())
        })
        .await?;
    let after = yard.maps.get("crane-after").await?;
    assert_eq!(after.data.unwrap_or_default().get("revision").map(String::as_str), Some("2"), "run anew");
    let before = yard.maps.get("crane-before").await?;
    assert_eq!(
        before.data.unwrap_or_default().get("revision").map(String::as_str),
        Some("1"),
        "install only"
    );
    publisher.withdraw("crane").await?;
    until("the release to be gone", GENEROUS, async || {
        Ok(yard.records("crane").await?.is_empty().then_some(()))
    })
    .await?;
    assert!(!yard.has("crane").await?);
    for kept in ["crane-pre-delete", "crane-post-delete", "crane-after", "crane-before"] {
        assert!(yard.has(kept).await?, "{kept}: hooks go by their own policies only");
    }
    Ok(())
}

async fn a_first_install_stays_one_until_its_hook_succeeds(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let hook = object("Job", "winch-first", Some(("pre-install", "0")));
    publisher.publish(&[chart("winch", &[hook, object("ConfigMap", "winch", None)])]).await?;
    let uid = yard.job("winch-first", "").await?;
    yard.ends("winch-first", false).await?;
    let told = units
        .until("the failure to be told", BOUND, |live| {
            let deployed = live.get("winch")?.condition("Deployed")?;
            (deployed.status == "False").then(|| deployed.message.clone())
        })
        .await?;
    assert_eq!(
        told,
        format!(
            "failed pre-install: resource Job/{NAMESPACE}/winch-first not ready. status: Failed, message: Job Failed. \
             failed: 1/1"
        )
    );
    assert!(!yard.has("winch").await?);
    // The next try is still an install, and its hook runs anew.
    yard.job("winch-first", &uid).await?;
    yard.ends("winch-first", true).await?;
    units.until_ready(["winch"], BOUND).await?;
    let history = yard.history("winch").await?;
    let (_, status, description) = history.last().context("a record")?;
    assert_eq!((status.as_str(), description.as_str()), ("deployed", "Install complete"), "{history:?}");
    Ok(())
}

async fn a_new_deployment_id_ends_the_wait_for_a_hook(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let hook = object("Job", "boom-first", Some(("pre-install", "0")));
    publisher.publish(&[chart("boom", &[hook, object("ConfigMap", "boom", None)])]).await?;
    yard.job("boom-first", "").await?;
    until_waiting(units, "boom").await?;
    publisher.publish(&[chart("boom", &[object("ConfigMap", "boom", None)])]).await?;
    units.until_ready(["boom"], BOUND).await
}

async fn jobs_of_the_bundle_are_waited_for_when_it_asks(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let bundle = Bundle::new("batch", NAMESPACE)
        .file("manifests/job.yaml", object("Job", "batch", None).to_string())
        .with(|options| {
            let helm = options.helm.get_or_insert_default();
            (helm.timeout_seconds, helm.wait_for_jobs) = (60, true);
        });
    publisher.publish(&[bundle]).await?;
    yard.job("batch", "").await?;
    until_waiting(units, "batch").await?;
    yard.ends("batch", true).await?;
    units.until_ready(["batch"], BOUND).await
}

async fn a_kind_of_crds_is_served_before_the_rest_and_stays(
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "hooks.yard.example.com"},
        "spec": {"group": "yard.example.com", "scope": "Namespaced",
            "names": {"plural": "hooks", "singular": "hook", "kind": "Hook", "listKind": "HookList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let custom = json!({"apiVersion": "yard.example.com/v1", "kind": "Hook", "metadata": {"name": "one"}});
    let asks = "{{ if .Capabilities.APIVersions.Has \"yard.example.com/v1\" }}\napiVersion: v1\nkind: ConfigMap\n\
                metadata: {name: asked}\n{{ end }}\n";
    // Cannot be rendered before the kind is served.
    let insists = "{{ if not (.Capabilities.APIVersions.Has \"yard.example.com/v1/Hook\") }}{{ fail \"no hooks\" }}{{ end }}\n\
                   {{ $found := lookup \"yard.example.com/v1\" \"Hook\" \"\" \"\" }}\n";
    let bundle = chart("kinds", &[custom])
        .file("crds/hooks.yaml", crd.to_string())
        .file("templates/asks.yaml", asks)
        .file("templates/insists.yaml", insists);
    publisher.publish(&[bundle]).await?;
    units.until_ready(["kinds"], BOUND).await?;
    assert!(yard.has("asked").await?, "templates see the kinds of crds/");
    assert_eq!(units.claims().iter().filter(|claim| claim.unit == "kinds").count(), 1, "at the first try");
    publisher.withdraw("kinds").await?;
    until("the release to be gone", GENEROUS, async || {
        Ok(yard.records("kinds").await?.is_empty().then_some(()))
    })
    .await?;
    let crds: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(yard.client.clone());
    crds.get("hooks.yard.example.com").await.context("a CRD of crds/ stays")?;
    crds.delete("hooks.yard.example.com", &DeleteParams::default()).await?;
    Ok(())
}

async fn whoever_takes_over_runs_the_hooks_anew(
    world: &World,
    yard: &Yard,
    units: &Units,
    publisher: &Publisher,
    replica: &mut Replica,
) -> anyhow::Result<()> {
    let hook = object("Job", "davit-first", Some(("pre-install", "0")));
    publisher.publish(&[chart("davit", &[hook, object("ConfigMap", "davit", None)])]).await?;
    let uid = yard.job("davit-first", "").await?;
    until_waiting(units, "davit").await?;
    let _next = world.ready_replica("replica-2", 1).await?;
    replica.kill()?;
    yard.job("davit-first", &uid).await?;
    yard.ends("davit-first", true).await?;
    units.until_ready(["davit"], BOUND).await?;
    let history = yard.history("davit").await?;
    let told: Vec<_> = history.iter().map(|(revision, status, _)| (*revision, status.as_str())).collect();
    assert_eq!(told, [(1, "failed"), (2, "deployed")], "{history:?}");
    assert_eq!(history[1].2, "Install complete");
    Ok(())
}
