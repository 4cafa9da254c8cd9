// SPDX-License-Identifier: Apache-2.0
//! What the steps of a case do to the cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use super::case::{Case, gzip, sha256};
use super::record::{Key, unpack};
use super::server::Server;
use crate::harness::until;

const FLEET: &str = "/apis/fleet.cattle.io/v1alpha1";
/// How long a kind may take to be served after its definition was made.
const KIND_BOUND: Duration = Duration::from_secs(10);

/// Does a case's actions and remembers what they named.
pub struct Actor<'a> {
    server: &'a Server,
    case: &'a Case,
    cluster_namespace: &'a str,
    // The BundleDeployments with the options and further keys they were last given.
    units: Vec<Value>,
    /// Objects that an action was about.
    pub seen: BTreeSet<Key>,
}

impl<'a> Actor<'a> {
    /// Nothing done yet.
    pub fn new(server: &'a Server, case: &'a Case, cluster_namespace: &'a str) -> Actor<'a> {
        let units = case.steps["bundleDeployments"].as_array().cloned().unwrap_or_default();
        Actor { server, case, cluster_namespace, units, seen: BTreeSet::new() }
    }

    /// The options last given to a BundleDeployment.
    pub fn options(&self, name: &str) -> &Value {
        let unit = self.units.iter().find(|unit| unit["name"] == name);
        unit.map_or(&Value::Null, |unit| &unit["options"])
    }

    /// Does one action.
    pub async fn act(&mut self, action: &Value) -> anyhow::Result<()> {
        let actions = action.as_object().context("an action is an object")?;
        let (verb, value) = actions.iter().find(|(key, _)| *key != "ifAbsent").context("an empty action")?;
        let text = |key: &str| value[key].as_str().unwrap_or_default();
        match verb.as_str() {
            "deploy" => self.deploy(value).await,
            "update" => self.update(value).await,
            "patchBundleDeployment" => {
                self.server.patch(&self.unit_path(text("name")), "merge-patch", &value["patch"]).await
            }
            "deleteBundleDeployment" => self.server.delete(&self.unit_path(text("name"))).await,
            "create" => self.create(value, action["ifAbsent"] == true).await,
            "patch" => self.patch(value).await,
            "delete" => {
                let path = self.path(value, text("name")).await?;
                self.server.delete(&path).await
            }
            "valuesSecret" => self.values_secret(value).await,
            "deleteRelease" => {
                let path = release_path(value, &value["revision"]);
                self.server.delete(&path).await
            }
            "plantRelease" => self.plant_release(value).await,
            "wait" => {
                // Part of the recording: time is what these cases are about.
                let seconds = value["seconds"].as_u64().context("wait without seconds")?;
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(())
            }
            other => bail!("unknown action {other}"),
        }
    }

    /// Where a BundleDeployment is.
    pub fn unit_path(&self, name: &str) -> String {
        format!("{FLEET}/namespaces/{}/bundledeployments/{name}", self.cluster_namespace)
    }

    async fn deploy(&mut self, action: &Value) -> anyhow::Result<()> {
        let unit = self.unit(action)?.clone();
        let name = unit["name"].as_str().unwrap_or_default();
        let mut labels = json!({
            "fleet.cattle.io/bundle-name": name, "fleet.cattle.io/bundle-namespace": "fleet-default",
            "fleet.cattle.io/cluster": "bench", "fleet.cattle.io/cluster-namespace": "fleet-default",
        });
        lay_over(&mut labels, &unit["labels"]);
        let object = json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": name, "namespace": self.cluster_namespace, "labels": labels},
            "spec": self.spec(&unit, action).await?,
        });
        let path = format!("{FLEET}/namespaces/{}/bundledeployments", self.cluster_namespace);
        self.server.create(&path, &object, false).await
    }

    async fn update(&mut self, action: &Value) -> anyhow::Result<()> {
        for key in ["options", "spec"] {
            if let Some(value) = action.get(key) {
                self.unit(action)?[key] = value.clone();
            }
        }
        let unit = self.unit(action)?.clone();
        let spec = self.spec(&unit, action).await?;
        let path = self.unit_path(action["name"].as_str().unwrap_or_default());
        self.server.change(&path, |object| object["spec"] = spec.clone()).await
    }

    fn unit(&mut self, action: &Value) -> anyhow::Result<&mut Value> {
        let unit = self.units.iter_mut().find(|unit| unit["name"] == action["name"]);
        unit.with_context(|| format!("the case has no BundleDeployment {}", action["name"]))
    }

    /// The BundleDeployment's spec; makes its Content.
    async fn spec(&self, unit: &Value, action: &Value) -> anyhow::Result<Value> {
        let (content, spec) = wanted(self.case, unit, action)?;
        if content.get("content").is_some() {
            self.server.create(&format!("{FLEET}/contents"), &content, true).await?;
        }
        Ok(spec)
    }

    async fn create(&mut self, object: &Value, if_absent: bool) -> anyhow::Result<()> {
        let path = self.path(object, "").await?;
        self.server.create(&path, object, if_absent).await
    }

    async fn patch(&mut self, value: &Value) -> anyhow::Result<()> {
        let mut path = self.path(value, value["name"].as_str().unwrap_or_default()).await?;
        if value["status"] == true {
            path += "/status";
        }
        let kind = match value["type"].as_str() {
            None | Some("merge") => "merge-patch",
            Some("json") => "json-patch",
            Some("strategic") => "strategic-merge-patch",
            Some(other) => bail!("unknown patch type {other}"),
        };
        self.server.patch(&path, kind, &value["patch"]).await
    }

    /// Where the object of an action is (its kind's list for an empty name); notes that it was named.
    async fn path(&mut self, object: &Value, name: &str) -> anyhow::Result<String> {
        let key = Key::of(object);
        let name = Some(name).filter(|name| !name.is_empty());
        let what = format!("{} of {} to be served", key.kind, key.api_version);
        let find = async || self.server.path(&key.api_version, &key.kind, &key.namespace, name).await;
        let path = until(&what, KIND_BOUND, find).await?;
        self.seen.insert(key);
        Ok(path)
    }

    async fn values_secret(&mut self, value: &Value) -> anyhow::Result<()> {
        let values = value.get("values").filter(|values| !values.is_null());
        let text = values.map(Value::to_string).unwrap_or_default();
        let hash = sha256(format!("{text}{text}").as_bytes());
        let (name, data) = (value["name"].as_str().unwrap_or_default(), BASE64_STANDARD.encode(&text));
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "fleet.cattle.io/bundle-deployment/v1alpha1",
            "metadata": {"name": name, "namespace": self.cluster_namespace},
            "data": {"values": data, "stagedValues": data},
        });
        let path = format!("/api/v1/namespaces/{}/secrets", self.cluster_namespace);
        self.server.delete(&format!("{path}/{name}")).await?;
        self.server.create(&path, &secret, false).await?;
        let given = value.get("hash").filter(|hash| !hash.is_null()).cloned();
        self.unit(value)?["spec"]["valuesHash"] = given.unwrap_or_else(|| hash.into());
        Ok(())
    }

    /// A release record as a helper that died would leave it.
    async fn plant_release(&self, value: &Value) -> anyhow::Result<()> {
        let (release, namespace, revision) = (&value["release"], &value["namespace"], &value["revision"]);
        let source = match value.get("from").filter(|from| !from.is_null()) {
            Some(from) => self.server.get(&release_path(value, from)).await?,
            None => None,
        };
        let mut record = match source {
            Some(secret) => unpack(&secret)?,
            None => json!({
                "name": release, "namespace": namespace,
                "chart": {"metadata": {"name": release, "version": "0.0.1", "apiVersion": "v2"}, "templates": [],
                    "values": {}},
                "config": {}, "manifest": "",
            }),
        };
        record["version"] = revision.clone();
        record["info"] = json!({
            "first_deployed": "2020-01-01T00:00:00Z", "last_deployed": "2020-01-01T00:00:00Z", "deleted": "",
            "description": "Initial install underway", "status": value["state"],
        });
        let data = BASE64_STANDARD.encode(BASE64_STANDARD.encode(gzip(record.to_string().as_bytes())?));
        let name = format!("sh.helm.release.v1.{}.v{revision}", release.as_str().unwrap_or_default());
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
            "metadata": {"name": name, "labels": {"name": release, "owner": "helm", "status": value["state"],
                "version": revision.to_string()}},
            "data": {"release": data},
        });
        let namespace = namespace.as_str().unwrap_or_default();
        self.server.create(&format!("/api/v1/namespaces/{namespace}/secrets"), &secret, false).await
    }
}

/// The Content and the spec of a BundleDeployment of a case, as an action asks for them. A Content that is to be missing
/// has a name only.
pub fn wanted(case: &Case, unit: &Value, action: &Value) -> anyhow::Result<(Value, Value)> {
    let mut content =
        serde_json::to_value(case.manifest(action["input"].as_str().unwrap_or("input"))?.to_content())?;
    let name = unit["name"].as_str().unwrap_or_default();
    let other_id = format!("s-{}", &sha256(name.as_bytes())[..61]);
    match action["corrupt"].as_str() {
        None => {}
        Some("sha256sum") => {
            content["sha256sum"] = "0".repeat(64).into();
            content["metadata"]["name"] = other_id.into();
        }
        Some("missing") => content = json!({"metadata": {"name": other_id}}),
        Some(other) => bail!("unknown corruption {other}"),
    }
    let content_id = content["metadata"]["name"].as_str().context("a Content has a name")?;
    let options = unit.get("options").cloned().unwrap_or_else(|| json!({}));
    let id = format!("{content_id}:{}", sha256(format!("{options}\n").as_bytes()));
    let mut spec = json!({
        "deploymentID": id, "stagedDeploymentID": id, "options": options, "stagedOptions": options,
    });
    lay_over(&mut spec, &unit["spec"]);
    Ok((content, spec))
}

fn release_path(value: &Value, revision: &Value) -> String {
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    format!(
        "/api/v1/namespaces/{}/secrets/sh.helm.release.v1.{}.v{revision}",
        text("namespace"),
        text("release")
    )
}

fn lay_over(target: &mut Value, over: &Value) {
    let empty = Map::new();
    for (key, value) in over.as_object().unwrap_or(&empty) {
        target[key] = value.clone();
    }
}
