// SPDX-License-Identifier: Apache-2.0
//! Foreign changes with a history: who made them, what else goes on, and what is said of it.

use std::time::Duration;

use flotilla::telemetry::events::reason;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::harness::{self, bundles::Bundle, until};
use super::{BOUND, NAMESPACE, Story, corrected, marked, yaml};

/// Longer than a judgement that depends on an autoscaler stands.
const LONG: Duration = Duration::from_secs(150);

impl Story {
    /// Waits for an Event of this reason about the bundle.
    pub async fn it_is_said(&self, reason: &str, bundle: &str) -> anyhow::Result<()> {
        let events: Api<Event> = Api::all(self.client.clone());
        let about = format!("bundle {bundle}");
        let told = |event: &Event| {
            let its =
                |note: &String| note.strip_prefix(&about).is_some_and(|rest| rest.starts_with([':', ' ']));
            event.reason.as_deref() == Some(reason) && event.note.as_ref().is_some_and(its)
        };
        until(&format!("an Event {reason} about {bundle}"), BOUND, async || {
            Ok(events.list(&ListParams::default()).await?.iter().any(told).then_some(()))
        })
        .await
    }

    async fn correct_from_now_on(&self, name: &str) -> anyhow::Result<()> {
        let patch = json!({"spec": {"correctDrift": {"enabled": true}}});
        self.publisher.units().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    pub async fn a_correction_that_is_refused_is_told(&self) -> anyhow::Result<()> {
        self.correct_from_now_on("foreign-immutable").await?;
        self.it_is_said(reason::CORRECTION_FAILED, "foreign-immutable").await
    }

    pub async fn fields_that_others_force_are_taken_back(&self) -> anyhow::Result<()> {
        let manifest = "{apiVersion: v1, kind: ConfigMap, metadata: {name: seized}, data: {course: north}}";
        self.publisher
            .publish(&[corrected(Bundle::new("seized", NAMESPACE).file("case.yaml", yaml(manifest)))])
            .await?;
        self.until_in_line("seized").await?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seized"},
            "data": {"course": "south", "flag": "black"}});
        maps.patch("seized", &PatchParams::apply("a-person").force(), &Patch::Apply(&theirs)).await?;
        self.until_revision("seized", 2).await?;
        self.until_in_line("seized").await?;
        let data = self.get("v1/ConfigMap", "seized").await?["data"].clone();
        assert_eq!(data, json!({"course": "north", "flag": "black"}));
        Ok(())
    }

    pub async fn an_injected_authority_stays_while_the_rest_is_corrected(&self) -> anyhow::Result<()> {
        let manifest = "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: drift-injected}, webhooks: [{name: a.example.test, admissionReviewVersions: [v1], sideEffects: None, failurePolicy: Ignore, clientConfig: {caBundle: Cg==, service: {name: x, namespace: none}}, rules: [{apiGroups: [none.example.test], apiVersions: [v1], operations: [CREATE], resources: [things]}]}]}";
        self.publisher
            .publish(&[corrected(Bundle::new("injected", NAMESPACE).file("case.yaml", yaml(manifest)))])
            .await?;
        self.until_in_line("injected").await?;
        let hooks: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let mut hook = serde_json::to_value(hooks.get("drift-injected").await?)?["webhooks"].clone();
        hook[0]["clientConfig"]["caBundle"] = "aW5qZWN0ZWQ=".into();
        hook[0]["failurePolicy"] = "Fail".into();
        let patch = json!({"webhooks": hook});
        let injector = PatchParams { field_manager: Some("an-injector".into()), ..PatchParams::default() };
        hooks.patch("drift-injected", &injector, &Patch::Merge(&patch)).await?;
        self.until_revision("injected", 2).await?;
        self.until_in_line("injected").await?;
        let live = serde_json::to_value(hooks.get("drift-injected").await?)?;
        let hook = &live["webhooks"][0];
        assert_eq!(
            (&hook["failurePolicy"], &hook["clientConfig"]["caBundle"]),
            (&json!("Ignore"), &json!("aW5qZWN0ZWQ="))
        );
        Ok(())
    }

    /// A Job with a time to live is put back when somebody takes it away, and left alone when it has ended, however soon
    /// after its end it goes.
    pub async fn a_job_that_has_ended_is_not_run_again(&self) -> anyhow::Result<()> {
        let manifest = "{apiVersion: batch/v1, kind: Job, metadata: {name: load}, spec: {ttlSecondsAfterFinished: 0, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}";
        self.publisher.publish(&[corrected(marked("load", manifest))]).await?;
        self.until_in_line("load").await?;
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), NAMESPACE);
        jobs.delete("load", &DeleteParams::background()).await?;
        self.until_revision("load", 2).await?;
        self.until_in_line("load").await?;
        assert!(jobs.get_opt("load").await?.is_some(), "it was taken away before its end");

        let now = "2026-08-22T12:00:00Z";
        let ended = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let status = json!({"status": {"startTime": now, "completionTime": now, "succeeded": 1,
            "conditions": [ended("SuccessCriteriaMet"), ended("Complete")]}});
        jobs.patch_status("load", &PatchParams::default(), &Patch::Merge(&status)).await?;
        jobs.delete("load", &DeleteParams::background()).await?;
        // What else there is to correct is, and the Job is no part of that.
        self.patch("v1/ConfigMap", "marker-load", json!({"data": {"a": "2"}})).await?;
        self.until_revision("load", 3).await?;
        self.until_in_line("load").await?;
        assert!(jobs.get_opt("load").await?.is_none(), "it has ended");
        Ok(())
    }

    /// Replicas are an autoscaler's as long as there is one and it allows them.
    pub async fn replicas_are_ours_again_without_an_autoscaler(&self) -> anyhow::Result<()> {
        const MARKER: (&str, &str) = ("marker-tide", r#"{"data":{"a":"1"}}"#);
        const TIDE: (&str, &str) = ("tide", r#"{"spec":{"replicas":1}}"#);
        let manifest = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: tide}, spec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}";
        self.publisher.publish(&[marked("tide", manifest)]).await?;
        self.until_in_line("tide").await?;
        let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "tide", "namespace": NAMESPACE}, "spec": {"maxReplicas": 5,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tide"}}});
        harness::fleet::apply(&self.client, scaler).await?;
        self.scale("tide", 3).await?;
        self.patch("v1/ConfigMap", "marker-tide", json!({"data": {"a": "2"}})).await?;
        self.until_patches("tide", &[MARKER]).await?;
        self.scale("tide", 9).await?;
        self.until_patches("tide", &[TIDE, MARKER]).await?;
        self.scale("tide", 4).await?;
        self.until_patches("tide", &[MARKER]).await?;
        let scalers: Api<HorizontalPodAutoscaler> = Api::namespaced(self.client.clone(), NAMESPACE);
        scalers.delete("tide", &DeleteParams::default()).await?;
        self.until_patches_within("tide", LONG, &[TIDE, MARKER]).await?;
        self.correct_from_now_on("tide").await?;
        self.until_in_line("tide").await?;
        assert_eq!(self.get("apps/v1/Deployment", "tide").await?["spec"]["replicas"], 1);
        Ok(())
    }

    /// As the horizontal autoscaler does it.
    async fn scale(&self, name: &str, replicas: u32) -> anyhow::Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        let manager = Some("kube-controller-manager".to_owned());
        let patch: Value = json!({"spec": {"replicas": replicas}});
        let params = PatchParams { field_manager: manager, ..PatchParams::default() };
        deployments.patch_scale(name, &params, &Patch::Merge(&patch)).await?;
        Ok(())
    }
}
