// SPDX-License-Identifier: Apache-2.0
//! The ground the higher rungs stand on: real control planes behave as the protocol assumes.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::{ControlPlane, GENEROUS, Options, Tools, fleet, until};

/// Server-side apply with a resourceVersion that never exists is a create: the claim on a fresh object rests on it.
#[tokio::test]
async fn an_apply_at_resource_version_one_creates_and_never_overwrites() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let mut plane = ControlPlane::start(&tools, dir.path(), "single", Options::default()).await?;
    let client = plane.admin().await?;
    let configmap = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "unit", "namespace": "default", "resourceVersion": "1"}, "data": {"by": "us"}});

    let mut codes = Vec::new();
    for _ in 0..2 {
        let uri = "/api/v1/namespaces/default/configmaps/unit?fieldManager=test&force=true";
        let request = http::Request::patch(uri)
            .header("content-type", "application/apply-patch+yaml")
            .body(kube::client::Body::from(serde_json::to_vec(&configmap)?))?;
        codes.push(client.send(request).await?.status().as_u16());
    }
    assert_eq!(codes, [201, 409]);

    let entries = until("both applies in the audit log", GENEROUS, async || {
        let mut entries = plane.audit()?;
        entries.retain(|entry| entry.resource == "configmaps" && entry.name == "unit");
        Ok((entries.len() == 2).then_some(entries))
    })
    .await?;
    assert_eq!(entries.iter().map(|entry| entry.code).collect::<Vec<_>>(), [201, 409]);
    for entry in &entries {
        assert_eq!((entry.verb.as_str(), entry.user.as_str()), ("patch", "admin"));
        assert_eq!((entry.namespace.as_str(), entry.subresource.as_str()), ("default", ""));
        assert!(entry.is_write() && entry.received <= entry.completed);
    }

    plane.restart_apiserver().await?;
    let configmaps: Api<ConfigMap> = Api::default_namespaced(plane.admin().await?);
    assert_eq!(configmaps.get("unit").await?.data.unwrap_or_default()["by"], "us");
    plane.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_deployment_becomes_available_on_simulated_nodes() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let tools = Tools::build(Tools::WORKLOADS)?;
    let mut plane = ControlPlane::start(&tools, dir.path(), "workloads", Options::default()).await?;
    plane.start_workloads(&tools, 2, Duration::from_millis(100)).await?;

    let deployments: Api<Deployment> = Api::default_namespaced(plane.admin().await?);
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "example.test/web:1"}]},
        }},
    }))?;
    deployments.create(&PostParams::default(), &deployment).await?;
    until("the Deployment to be available", GENEROUS, async || {
        let status = deployments.get("web").await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let available = conditions.iter().any(|c| c.type_ == "Available" && c.status == "True");
        Ok((available && status.available_replicas == Some(2)).then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_registered_agent_has_fleets_narrow_rights_upstream() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let (up, down) = (dir.path().join("up"), dir.path().join("down"));
    let (upstream, downstream) = tokio::try_join!(
        ControlPlane::start(&tools, &up, "upstream", Options::default()),
        ControlPlane::start(&tools, &down, "downstream", Options::default()),
    )?;
    // On a task of its own, here and below: the futures of the harness must be able to move between threads.
    let (upstream, _downstream, registration) = tokio::spawn(async move {
        fleet::install_crds(&upstream, Path::new(env!("CARGO_BIN_EXE_flotilla"))).await?;
        let registration = fleet::register(&upstream, &downstream, "demo").await?;
        anyhow::Ok((upstream, downstream, registration))
    })
    .await??;
    assert_eq!(fleet::cluster_namespace("fleet-local", "local"), "cluster-fleet-local-local-1a3d67d0a899");

    let namespace = registration.cluster_namespace.as_str();
    let agent = upstream.with_token(&registration.upstream_token, namespace).await?;
    let resource = |kind| ApiResource::from_gvk(&GroupVersionKind::gvk("fleet.cattle.io", "v1alpha1", kind));
    let units = resource("BundleDeployment");
    let all = ListParams::default();
    let own: Api<DynamicObject> = Api::namespaced_with(agent.clone(), namespace, &units);
    assert_eq!(own.list(&all).await?.items.len(), 0);
    let others: Api<DynamicObject> = Api::namespaced_with(agent.clone(), "fleet-default", &units);
    assert!(others.list(&all).await.is_err(), "the agent may list units of other clusters");
    let clusters: Api<DynamicObject> =
        Api::namespaced_with(agent, fleet::REGISTRATION_NAMESPACE, &resource("Cluster"));
    assert!(clusters.get("demo").await.is_err(), "the agent may read its Cluster");
    let seen = json!({"status": {"agent": {"lastSeen": "2026-01-01T00:00:00Z"}}});
    let cluster = clusters.patch_status("demo", &PatchParams::default(), &Patch::Merge(&seen)).await?;
    assert_eq!(cluster.data["status"]["namespace"], namespace);

    let user = registration.upstream_user.as_str();
    until("the check-in in the audit log", GENEROUS, async || {
        let is_check_in = |entry: &&harness::AuditEntry| {
            entry.user == user && (entry.verb.as_str(), entry.subresource.as_str()) == ("patch", "status")
        };
        Ok(upstream.audit()?.iter().find(is_check_in).map(|entry| assert_eq!(entry.code, 200)))
    })
    .await
}

#[tokio::test]
async fn a_failed_start_says_why_at_once() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let options = Options { apiserver_args: vec!["--no-such-flag".into()], ..Options::default() };
    let start = tokio::spawn(async move { ControlPlane::start(&tools, dir.path(), "broken", options).await });
    let error = start.await?.err().map(|error| format!("{error:#}")).unwrap_or_default();
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
    Ok(())
}
