// SPDX-License-Identifier: Apache-2.0
//! Objects that resist a change, and objects that somebody else has.

use anyhow::Context;
use flotilla::api::CorrectDrift;
use serde_json::{Value, json};

use super::harness::until;
use super::{BOUND, Bundle, Cases, bundle};

pub async fn stories(cases: &Cases<'_>) -> anyhow::Result<()> {
    pc_071_a_key_given_twice_in_a_list_loses_nothing(cases).await?;
    pc_072_a_finished_job_is_not_updated_but_replaced_with_force(cases).await?;
    pc_073_a_changed_port_is_put_back_or_the_refusal_told(cases).await?;
    pc_077_what_was_there_before_is_refused_or_adopted(cases).await
}

/// Nobody can tell which of the two is meant, so the API server refuses it, and that is told; without the repetition all
/// that is left in the list is there.
async fn pc_071_a_key_given_twice_in_a_list_loses_nothing(cases: &Cases<'_>) -> anyhow::Result<()> {
    let env = |env: Value| {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "echo"}, "spec": {
            "selector": {"matchLabels": {"app": "echo"}}, "template": {"metadata": {"labels": {"app": "echo"}},
            "spec": {"containers": [{"name": "c", "image": "example.test/c:1", "env": env}]}}}});
        Bundle::new("echo", "echo").file("manifests/echo.yaml", object.to_string())
    };
    let twice =
        json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "A", "value": "3"}]);
    cases.publisher.publish(&[env(twice)]).await?;
    cases.told("echo", "Installed", &["Deployment", "env", "duplicate entries", "A"]).await?;
    let once = json!([{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]);
    cases.applied(&env(once.clone())).await?;
    let live = cases.get("apps/v1/Deployment", "echo", "echo").await?.context("it is not there")?;
    assert_eq!(live["spec"]["template"]["spec"]["containers"][0]["env"], once);
    Ok(())
}

async fn pc_072_a_finished_job_is_not_updated_but_replaced_with_force(
    cases: &Cases<'_>,
) -> anyhow::Result<()> {
    const JOB: &str = "batch/v1/Job";
    let (first, second) = (bundle("silo/v1", "silo")?, bundle("silo/v2", "silo")?);
    cases.applied(&first).await?;
    let now = "2026-08-22T12:00:00Z";
    let ended = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let status = json!({"startTime": now, "completionTime": now, "succeeded": 1,
        "conditions": [ended("SuccessCriteriaMet"), ended("Complete")]});
    cases.status(JOB, "silo", "migrate", status.clone()).await?;
    let uid = cases.uid(JOB, "silo", "migrate").await?;
    let map = cases.uid("v1/ConfigMap", "silo", "silo").await?;
    let before = cases.claims("silo");

    cases.publisher.publish(std::slice::from_ref(&second)).await?;
    cases.told("silo", "Installed", &["Job", "migrate", "spec.template", "field is immutable"]).await?;
    assert_eq!(cases.uid(JOB, "silo", "migrate").await?, uid);
    // It waits for a change: something published later is done, and it was not tried again.
    cases.ready(&Bundle::config_maps("silo-next", "silo", 1, "1")).await?;
    assert_eq!(cases.claims("silo") - before, 1);
    // Back again, nothing is left to do by hand.
    cases.ready(&first).await?;
    assert_eq!(cases.uid(JOB, "silo", "migrate").await?, uid);

    let forced = second.with(|options| options.helm.get_or_insert_default().force = true);
    cases.applied(&forced).await?;
    let live = cases.get(JOB, "silo", "migrate").await?.context("the Job is gone")?;
    assert_ne!(live["metadata"]["uid"], uid.as_str(), "made anew");
    assert_eq!(live["spec"]["template"]["spec"]["containers"][0]["image"], "example/migrate:2");
    assert_eq!(cases.uid("v1/ConfigMap", "silo", "silo").await?, map, "and it alone");
    // Once: the same Job in another version of the bundle is not run again.
    let again = forced.with(|options| options.helm.get_or_insert_default().max_history = 3);
    cases.applied(&again).await?;
    assert_eq!(cases.uid(JOB, "silo", "migrate").await?, live["metadata"]["uid"].as_str().unwrap_or("?"));
    Ok(())
}

async fn pc_073_a_changed_port_is_put_back_or_the_refusal_told(cases: &Cases<'_>) -> anyhow::Result<()> {
    const SERVICE: &str = "v1/Service";
    let mut gate = bundle("gatepost/bundle", "gatepost")?;
    cases.ready(&gate).await?;
    let service = async || cases.get(SERVICE, "gatepost", "gatepost").await?.context("the Service is gone");
    let first = service().await?;
    let changed = json!({"spec": {"ports": [{"name": "web", "port": 8282, "targetPort": "web"}]}});
    cases.patch(SERVICE, "gatepost", "gatepost", changed).await?;
    // Two ports of one name: only the API server can say that it will not have that, and it is told in its words.
    cases.told("gatepost", "Ready", &["gatepost", "spec.ports", "Duplicate value"]).await?;

    gate = gate.with(|options| {
        options.correct_drift = Some(CorrectDrift { enabled: true, force: true, ..CorrectDrift::default() });
        // Another deployment id: what concerns drift only makes none.
        options.helm.get_or_insert_default().max_history = 4;
    });
    cases.ready(&gate).await?;
    until("the port to be put back", BOUND, async || {
        let ports = service().await?["spec"]["ports"].clone();
        let one = ports.as_array().is_some_and(|ports| ports.len() == 1);
        Ok((one && ports[0]["port"] == 8181).then_some(()))
    })
    .await?;
    let last = service().await?;
    assert_eq!(last["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(last["spec"]["clusterIP"], first["spec"]["clusterIP"]);
    Ok(())
}

async fn pc_077_what_was_there_before_is_refused_or_adopted(cases: &Cases<'_>) -> anyhow::Result<()> {
    const THINGS: [(&str, &str, &str); 3] = [
        ("v1/ConfigMap", "attic", "trunk"),
        ("v1/Service", "attic", "dumbwaiter"),
        ("rbac.authorization.k8s.io/v1/ClusterRole", "", "attic-reader"),
    ];
    cases.seed("attic/seed/existing.yaml").await?;
    let seen = async || -> anyhow::Result<Vec<Value>> {
        let mut all = Vec::new();
        for (kind, namespace, name) in THINGS {
            all.push(cases.get(kind, namespace, name).await?.with_context(|| format!("{name} is gone"))?);
        }
        Ok(all)
    };
    let before = seen().await?;
    let attic = bundle("attic/bundle", "attic")?;
    let without = attic.clone().with(|options| options.helm.get_or_insert_default().take_ownership = false);
    cases.publisher.publish(&[without]).await?;
    cases.told("attic", "Installed", &["ConfigMap \"trunk\"", "exists and cannot be imported"]).await?;
    assert_eq!(seen().await?, before, "what is refused is not touched");

    cases.ready(&attic).await?;
    let adopted = seen().await?;
    for (before, after) in before.iter().zip(&adopted) {
        assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    }
    assert_eq!(adopted[0]["data"]["lock"], "brass");
    assert_eq!(adopted[1]["spec"]["selector"], json!({"app": "attic"}));
    assert_eq!(adopted[2]["rules"][0]["verbs"], json!(["get"]));
    let status = cases.units.live()["attic"].status.clone().unwrap_or_default();
    assert_eq!((status.resources.len(), status.modified_status.len()), (3, 0), "{status:?}");
    cases.withdrawn(&attic, "attic").await?;
    for (kind, namespace, name) in THINGS {
        cases.gone(kind, namespace, name).await?;
    }
    let namespace = cases.get("v1/Namespace", "", "attic").await?.context("the namespace is gone")?;
    assert!(namespace["metadata"]["deletionTimestamp"].is_null());
    Ok(())
}
