// SPDX-License-Identifier: Apache-2.0
//! The limit: a loop over kube's client that sends the very writes of a deployment and does nothing else.
//!
//! For each bundle: claim, gate, one apply for each object, record, result. It runs in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::Utc;
use flate2::{Compression, write::GzEncoder};
use flotilla::api::{BundleDeployment, keys, names};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::figures::Figures;
use super::ground::{Ground, peak_memory};
use crate::harness::replica::cpu_seconds;
use crate::harness::world::World;

/// What the loop's process is told.
#[derive(Clone, clap::Args)]
pub struct Arguments {
    /// Kubeconfig with the agent's narrow rights upstream.
    #[arg(long)]
    upstream: PathBuf,
    /// Kubeconfig of the agent downstream.
    #[arg(long)]
    downstream: PathBuf,
    /// Where the objects go.
    #[arg(long)]
    namespace: String,
    /// ConfigMaps for each bundle.
    #[arg(long)]
    objects: usize,
    /// Bundles at once.
    #[arg(long)]
    tasks: usize,
}

/// What the loop's process answers, on its last line.
#[derive(Serialize, Deserialize)]
struct Answer {
    seconds: f64,
    cpu: f64,
    memory: f64,
}

/// Runs the loop in a process of its own, and measures it.
pub async fn spawn(
    world: &World,
    ground: &Ground<'_>,
    arguments: &super::Arguments,
) -> anyhow::Result<Figures> {
    let registration = &ground.registration;
    let upstream = world.dir().join(format!("{}.kubeconfig", ground.namespace));
    let kubeconfig =
        world.upstream.token_kubeconfig(&registration.upstream_token, &registration.cluster_namespace);
    std::fs::write(&upstream, kubeconfig)?;
    #[expect(clippy::disallowed_methods, reason = "a measurement")]
    let since = Utc::now();
    let mut command = tokio::process::Command::from(Command::new(std::env::current_exe()?));
    command
        .arg("bare")
        .args([Path::new("--upstream"), &upstream, Path::new("--downstream"), &registration.agent_kubeconfig])
        .args(["--namespace", &ground.namespace, "--objects", &arguments.objects.to_string()])
        .args(["--tasks", &arguments.slots().to_string()])
        .kill_on_drop(true);
    let output = command.output().await.context("running the bare loop")?;
    if !output.status.success() {
        bail!("the bare loop failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let answer: Answer = serde_json::from_slice(&output.stdout).context("the bare loop's answer")?;
    Ok(Figures {
        name: "bare loop".into(),
        bundles: ground.names.len(),
        seconds: answer.seconds,
        cpu: answer.cpu,
        engine_cpu: 0.0,
        memory: answer.memory,
        engine_memory: 0.0,
        writes: ground.writes(since).await?,
        claims: ground.names.len(),
    })
}

/// The loop itself.
pub async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let upstream = client(&arguments.upstream).await?;
    let downstream = client(&arguments.downstream).await?;
    let cluster_namespace = upstream.default_namespace().to_owned();
    let bundle_deployments: Api<BundleDeployment> = Api::namespaced(upstream, &cluster_namespace);
    let loops = Arc::new(Loop {
        secrets: Api::namespaced(downstream.clone(), &arguments.namespace),
        maps: Api::namespaced(downstream, &arguments.namespace),
        bundle_deployments,
        namespace: arguments.namespace.clone(),
        objects: arguments.objects,
    });
    let units = loops.bundle_deployments.list(&ListParams::default()).await?.items;
    let prepared: Vec<Prepared> =
        units.into_iter().map(|unit| loops.prepare(unit)).collect::<anyhow::Result<_>>()?;

    let pid = std::process::id();
    #[expect(clippy::disallowed_methods, reason = "a measurement")]
    let (cpu, start) = (cpu_seconds(pid)?, Instant::now());
    futures::stream::iter(prepared)
        .map(|prepared| {
            let loops = loops.clone();
            async move { tokio::spawn(async move { loops.deploy(prepared).await }).await? }
        })
        .buffer_unordered(arguments.tasks)
        .try_collect::<()>()
        .await?;
    let seconds = start.elapsed().as_secs_f64();
    let answer = Answer { seconds, cpu: cpu_seconds(pid)? - cpu, memory: peak_memory(pid)? };
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}

async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

struct Loop {
    bundle_deployments: Api<BundleDeployment>,
    secrets: Api<Secret>,
    maps: Api<ConfigMap>,
    namespace: String,
    objects: usize,
}

/// Everything that can be made before the clock starts.
struct Prepared {
    name: String,
    claim: Value,
    gate: Secret,
    objects: Vec<(String, Value)>,
    record: Secret,
    result: Value,
}

impl Loop {
    fn prepare(&self, unit: BundleDeployment) -> anyhow::Result<Prepared> {
        let (name, uid) = (unit.name_any(), unit.uid().unwrap_or_default());
        let version = unit.resource_version().unwrap_or_default();
        let deployment = &unit.spec.deployment_id;
        #[expect(clippy::disallowed_methods, reason = "the time a claim is written at")]
        let now = Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string();
        let message = format!(
            "v1 holder=bare session=00000000-0000-0000-0000-000000000000 nonce=00000000 attempt=1 lost=0 by= \
             budget=600 deployment={deployment}"
        );
        let claim = json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": {"conditions": [
            {"type": keys::CLAIM_CONDITION, "status": "True", "reason": "Claimed", "message": message,
                "lastTransitionTime": now},
        ]}});
        let objects: Vec<(String, Value)> =
            (0..self.objects).map(|index| self.object(&name, &uid, &version, index)).collect();
        let conditions = ["Installed", "Deployed", "Ready", "Monitored"]
            .map(|type_| json!({"type": type_, "status": "True", "lastUpdateTime": now}));
        let resources: Vec<Value> = objects
            .iter()
            .map(|(name, _)| {
                json!({"kind": "ConfigMap", "apiVersion": "v1", "namespace": self.namespace, "name": name,
                    "createdAt": now})
            })
            .collect();
        let result = json!({"metadata": {"uid": uid, "resourceVersion": null}, "status": {
            "conditions": conditions,
            "appliedDeploymentID": deployment, "release": format!("{}/{name}:1", self.namespace),
            "ready": true, "nonModified": true, "resources": resources,
            "resourceCounts": {"ready": self.objects, "desiredReady": self.objects},
        }});
        Ok(Prepared {
            claim,
            gate: self.record(&name, &uid, &version, "pending-install", &objects)?,
            record: self.record(&name, &uid, &version, "deployed", &objects)?,
            result,
            objects,
            name,
        })
    }

    fn object(&self, unit: &str, uid: &str, epoch: &str, index: usize) -> (String, Value) {
        let name = format!("{unit}-{index}");
        let set_id = names::set_id(unit, "");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": name, "namespace": self.namespace, "resourceVersion": "1",
            "labels": {keys::HASH_LABEL: names::object_hash(&set_id), keys::MANAGED_BY: "Helm"},
            "annotations": {
                keys::ID_ANNOTATION: set_id, keys::EPOCH_ANNOTATION: format!("{uid}/{epoch}"),
                keys::RELEASE_NAME: unit, keys::RELEASE_NAMESPACE: self.namespace,
            },
        }, "data": {"version": "1", "greeting": format!("hello from object {index} of bundle {unit}")}});
        (name, object)
    }

    /// A record of the size of a real one: JSON with the manifest in it, gzip, base64.
    fn record(
        &self,
        unit: &str,
        uid: &str,
        epoch: &str,
        state: &str,
        objects: &[(String, Value)],
    ) -> anyhow::Result<Secret> {
        let manifest: Vec<String> = objects.iter().map(|(_, object)| object.to_string()).collect();
        let release = json!({"name": unit, "namespace": self.namespace, "version": 1,
            "info": {"status": state, "description": "Install complete"},
            "chart": {"metadata": {"name": unit, "version": "v0.0.0"}}, "manifest": manifest.join("\n---\n")});
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        std::io::Write::write_all(&mut gzip, release.to_string().as_bytes())?;
        let payload = STANDARD.encode(STANDARD.encode(gzip.finish()?));
        Ok(serde_json::from_value(json!({"metadata": {
            "name": format!("sh.helm.release.v1.{unit}.v1"), "namespace": self.namespace,
            "labels": {"owner": "helm", "name": unit, "version": "1", "status": state},
            "annotations": {keys::EPOCH_ANNOTATION: format!("{uid}/{epoch}")},
        }, "type": "helm.sh/release.v1", "data": {"release": payload}}))?)
    }

    async fn deploy(&self, prepared: Prepared) -> anyhow::Result<()> {
        let Prepared { name, claim, gate, objects, mut record, mut result } = prepared;
        let patch = PatchParams::default();
        let claimed = self.bundle_deployments.patch_status(&name, &patch, &Patch::Merge(&claim)).await?;
        let gate = self.secrets.create(&PostParams::default(), &gate).await?;
        let apply = PatchParams::apply(keys::FIELD_MANAGER).force();
        for (object_name, object) in &objects {
            self.maps.patch(object_name, &apply, &Patch::Apply(object)).await?;
        }
        record.metadata.resource_version = gate.metadata.resource_version;
        self.secrets.replace(&record.name_any(), &PostParams::default(), &record).await?;
        result["metadata"]["resourceVersion"] = json!(claimed.resource_version());
        self.bundle_deployments.patch_status(&name, &patch, &Patch::Merge(&result)).await?;
        Ok(())
    }
}
