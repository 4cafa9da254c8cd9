// SPDX-License-Identifier: Apache-2.0
//! Bundles created, changed, rolled back, deleted and created again all the while, and what was wanted when.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla::api::{DownstreamResource, HelmOptions};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tokio::time::Instant;

use crate::harness::bundles::{Bundle, Publisher};
use crate::harness::fleet;

/// Namespaces the objects are spread over.
const NAMESPACES: usize = 3;
/// Objects of a bundle; each version has its own number, so that every change prunes or creates.
const OBJECTS: std::ops::RangeInclusive<usize> = 3..=7;
/// One bundle in so many has a Deployment and waits for it.
const WAITING: usize = 8;
/// One in so many copies a Secret and a ConfigMap from upstream, and one has a hook.
const COPYING: usize = 8;
/// Where among its eight each kind of bundle is.
const COPIES_AT: usize = 3;
const HOOKS_AT: usize = 5;
/// How their names end.
pub const COPY: &str = "-copy";
pub const HOOK: &str = "-hook";
/// What copies show in place of a version, plain and as a Secret has it: they are of no version.
const COPIED: &str = "copied";
const COPIED_SECRET: &str = "Y29waWVk";
/// A request that is not answered by then is sent again.
const ANSWER: Duration = Duration::from_secs(10);

/// What a deployment id stands for. Objects are `kind/namespace/name`, each with the version that it shows.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What is there at the end.
    pub objects: BTreeMap<String, String>,
    /// Hooks: there for a moment, or left by a holder that was killed.
    pub hooks: BTreeMap<String, String>,
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Every deployment id ever published.
    pub deployments: BTreeMap<String, Wanted>,
    /// What is wanted now: deployment ids by bundle.
    pub now: BTreeMap<String, String>,
    /// Operations done, by name.
    pub operations: BTreeMap<&'static str, usize>,
}

/// Writes bundles in the place of Fleet's controller.
pub struct Load {
    publisher: Publisher,
    downstream: Client,
    random: StdRng,
    bundles: usize,
    versions: BTreeMap<String, Vec<Bundle>>,
    story: Arc<Mutex<Story>>,
}

impl Load {
    /// A load of `bundles` names, drawn from `seed`.
    pub fn new(publisher: Publisher, downstream: Client, bundles: usize, seed: u64) -> Load {
        // Another sequence than that of the faults.
        let random = StdRng::seed_from_u64(seed ^ 0x10ad);
        Load { publisher, downstream, random, bundles, versions: BTreeMap::new(), story: Arc::default() }
    }

    /// What was asked for so far.
    pub fn story(&self) -> Arc<Mutex<Story>> {
        self.story.clone()
    }

    /// Creates every bundle once.
    pub async fn begin(&mut self) -> anyhow::Result<()> {
        self.copied().await?;
        for index in 0..self.bundles {
            let bundle = self.next_version(&name(index));
            self.publish("created", &bundle).await;
        }
        Ok(())
    }

    /// What bundles copy, in the place of Fleet's controller.
    async fn copied(&self) -> anyhow::Result<()> {
        let units = self.publisher.units();
        let (client, namespace) = (units.clone().into_client(), units.namespace());
        for index in (0..self.bundles).filter(|index| index % COPYING == COPIES_AT) {
            let metadata = json!({"name": copy_of(&name(index)), "namespace": namespace});
            for kind in ["Secret", "ConfigMap"] {
                let data = if kind == "Secret" { COPIED_SECRET } else { COPIED };
                let object = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": {"version": data}});
                fleet::apply(&client, object).await?;
            }
        }
        Ok(())
    }

    /// One operation after the other, on average `gap` apart, until the deadline.
    pub async fn run(&mut self, gap: Duration, deadline: Instant) {
        while Instant::now() < deadline {
            tokio::time::sleep(gap.mul_f64(self.random.random_range(0.2..1.8))).await;
            let name = name(self.random.random_range(0..self.bundles));
            let exists = lock(&self.story).now.contains_key(&name);
            match self.random.random_range(0..100) {
                _ if !exists => {
                    let bundle = self.next_version(&name);
                    self.publish("created", &bundle).await;
                }
                0..55 => {
                    let bundle = self.next_version(&name);
                    self.publish("changed", &bundle).await;
                }
                55..70 => {
                    let versions = &self.versions[&name];
                    let earlier = versions[self.random.random_range(0..versions.len())].clone();
                    self.publish("rolled back", &earlier).await;
                }
                70..85 => self.withdraw("deleted", &name).await,
                85.. => {
                    self.withdraw("deleted and created again", &name).await;
                    let bundle = self.next_version(&name);
                    self.publish("created", &bundle).await;
                }
                _ => unreachable!("drawn from 0 to 99"),
            }
        }
    }

    /// Changes the bundles named: what a person does about a quarantine.
    pub async fn renew(&mut self, names: &[String]) {
        for name in names {
            let bundle = self.next_version(name);
            self.publish("changed to end a quarantine", &bundle).await;
        }
    }

    fn next_version(&mut self, name: &str) -> Bundle {
        let index: usize = name.trim_start_matches("load-").parse().unwrap_or_default();
        let known = self.versions.entry(name.to_owned()).or_default();
        let (version, namespace) = (format!("{}", known.len() + 1), format!("chaos-{}", index % NAMESPACES));
        let count = self.random.random_range(OBJECTS);
        let mut bundle = Bundle::config_maps(name, &namespace, count, &version);
        let mut objects: BTreeMap<String, String> = (0..count)
            .map(|object| (format!("configmaps/{namespace}/{name}-{object}"), version.clone()))
            .collect();
        let mut hooks = BTreeMap::new();
        if index.is_multiple_of(WAITING) {
            bundle = bundle.file("manifests/deployment.yaml", deployment(name, &version)).with(|options| {
                options.helm = Some(HelmOptions { timeout_seconds: 60, ..HelmOptions::default() });
            });
            objects.insert(format!("deployments/{namespace}/{name}"), version.clone());
        } else if index % COPYING == COPIES_AT {
            let copies = ["Secret", "ConfigMap"]
                .map(|kind| DownstreamResource { kind: kind.into(), name: copy_of(name) });
            bundle = bundle.with(|options| options.downstream_resources = copies.into());
            objects.insert(format!("secrets/{namespace}/{}", copy_of(name)), COPIED_SECRET.into());
            objects.insert(format!("configmaps/{namespace}/{}", copy_of(name)), COPIED.into());
        } else if index % COPYING == HOOKS_AT {
            bundle = bundle.file("manifests/hook.yaml", hook(name, &version));
            hooks.insert(format!("configmaps/{namespace}/{name}{HOOK}"), version);
        }
        known.push(bundle.clone());
        let wanted = Wanted { objects, hooks };
        lock(&self.story).deployments.insert(bundle.deployment_id(), wanted);
        bundle
    }

    async fn publish(&mut self, operation: &'static str, bundle: &Bundle) {
        // Repeating an apply is harmless; the API server may be down for a while.
        loop {
            let write = async {
                self.publisher.publish_content(bundle).await?;
                self.publisher.publish_unit(bundle).await
            };
            if let Ok(Ok(())) = tokio::time::timeout(ANSWER, write).await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let mut story = lock(&self.story);
        story.now.insert(bundle.name.clone(), bundle.deployment_id());
        *story.operations.entry(operation).or_default() += 1;
    }

    async fn withdraw(&mut self, operation: &'static str, name: &str) {
        loop {
            match tokio::time::timeout(ANSWER, self.publisher.withdraw(name)).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) if is_absent(&error) => break,
                Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
            }
        }
        let mut story = lock(&self.story);
        story.now.remove(name);
        *story.operations.entry(operation).or_default() += 1;
    }

    /// Makes Deployments ready a moment after they changed: no controller does that here. Runs until it is dropped.
    pub fn ripen(&self) -> impl Future<Output = ()> + use<> {
        let api: Api<Deployment> = Api::all(self.downstream.clone());
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                let Ok(Ok(all)) = tokio::time::timeout(ANSWER, api.list(&ListParams::default())).await else {
                    continue;
                };
                for one in all {
                    let generation = one.metadata.generation;
                    if one.status.as_ref().and_then(|status| status.observed_generation) == generation {
                        continue;
                    }
                    let namespaced: Api<Deployment> =
                        Api::namespaced(api.clone().into_client(), &one.namespace().unwrap_or_default());
                    let status = Patch::Merge(json!({"status": {
                        "observedGeneration": generation, "replicas": 1, "updatedReplicas": 1,
                        "readyReplicas": 1, "availableReplicas": 1,
                        "conditions": [
                            {"type": "Available", "status": "True"},
                            {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
                        ],
                    }}));
                    let (name, params) = (one.name_any(), PatchParams::default());
                    let write = namespaced.patch_status(&name, &params, &status);
                    // One that is not answered is written again next time.
                    let _ = tokio::time::timeout(ANSWER, write).await;
                }
            }
        }
    }
}

fn name(index: usize) -> String {
    format!("load-{index:02}")
}

/// The name of what a bundle copies.
fn copy_of(name: &str) -> String {
    format!("{name}{COPY}")
}

fn hook(name: &str, version: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}{HOOK}\n  annotations:\n    \
         helm.sh/hook: post-install,post-upgrade\n    helm.sh/hook-delete-policy: \
         before-hook-creation,hook-succeeded\ndata:\n  version: \"{version}\"\n"
    )
}

fn deployment(name: &str, version: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\n  annotations:\n    \
         chaos/version: \"{version}\"\nspec:\n  replicas: 1\n  selector:\n    matchLabels: {{app: {name}}}\n  \
         template:\n    metadata:\n      labels: {{app: {name}}}\n      annotations: {{version: \"{version}\"}}\n    \
         spec:\n      containers:\n      - name: main\n        image: example.invalid/main:1\n"
    )
}

fn is_absent(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<kube::Error>())
        .any(|error| matches!(error, kube::Error::Api(status) if status.code == 404))
}

/// What was asked for, now.
pub fn lock(story: &Mutex<Story>) -> MutexGuard<'_, Story> {
    story.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
