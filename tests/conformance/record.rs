// SPDX-License-Identifier: Apache-2.0
//! Looks at the cluster as the recordings did, in their format.

use std::collections::BTreeSet;
use std::io::Read;

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::read::GzDecoder;
use futures::{StreamExt, TryStreamExt};
use regex_lite::{Captures, Regex};
use serde_json::{Map, Value, json};

use super::actions::Actor;
use super::case::{Case, RECORDED_NAMESPACE};
use super::ground::Ground;
use super::server::Server;

/// How many objects are read at once.
const READERS: usize = 4;

/// An object to look at. Objects outside namespaces have an empty `namespace`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// Of an object, or of a reference with `namespace` and `name` at top level.
    pub fn of(object: &Value) -> Key {
        let text =
            |key: &str| object[key].as_str().or(object["metadata"][key].as_str()).unwrap_or_default().into();
        Key {
            api_version: text("apiVersion"),
            kind: text("kind"),
            namespace: text("namespace"),
            name: text("name"),
        }
    }
}

/// Records one case.
pub struct Recorder<'a> {
    server: &'a Server,
    engine: &'a flotilla::render::engine::Engine,
    case: &'a Case,
    cluster_namespace: &'a str,
    placeholders: Placeholders,
    seen: BTreeSet<Key>,
}

impl<'a> Recorder<'a> {
    /// Nothing seen yet.
    pub fn new(ground: &'a Ground, case: &'a Case) -> Recorder<'a> {
        Recorder {
            server: &ground.server,
            engine: &ground.engine,
            case,
            cluster_namespace: &ground.cluster_namespace,
            placeholders: Placeholders::new(),
            seen: BTreeSet::new(),
        }
    }

    /// What is there now, as a step of `expected.json`; objects of `also` are looked at, too.
    pub async fn record(&mut self, actor: &Actor<'_>, also: &Value) -> anyhow::Result<Value> {
        let mut units = Map::new();
        let mut namespaces: BTreeSet<String> = strings(&self.case.steps["namespaces"]).collect();
        self.seen.extend(actor.seen.iter().cloned());
        let watched = self.case.steps["watch"].as_array().into_iter().flatten();
        self.seen.extend(watched.chain(also.as_array().into_iter().flatten()).map(Key::of));
        for name in self.case.units() {
            let unit = self.server.get(&actor.unit_path(name)).await?;
            let options = actor.options(name);
            let mut given = ["namespace", "defaultNamespace"].iter().filter_map(|key| options[*key].as_str());
            namespaces.insert(given.find(|name| !name.is_empty()).unwrap_or("default").into());
            let status = unit.as_ref().map(|unit| unit.get("status").cloned().unwrap_or_default());
            for list in ["resources", "modifiedStatus", "nonReadyStatus"] {
                let entries =
                    status.as_ref().and_then(|status| status[list].as_array()).into_iter().flatten();
                self.seen.extend(entries.map(Key::of));
            }
            units.insert(name.into(), status.map_or(Value::Null, |status| json!({"status": status})));
        }
        let releases = self.releases(&namespaces).await?;
        let namespaces = namespaces.into_iter().map(|name| Key {
            api_version: "v1".into(),
            kind: "Namespace".into(),
            namespace: String::new(),
            name,
        });
        self.seen.extend(namespaces);
        let keys: Vec<Key> = self.seen.iter().filter(|key| key.kind != "BundleDeployment").cloned().collect();
        let server = self.server;
        let objects: Vec<Value> = futures::stream::iter(keys)
            .map(|key| async move { live(server, &key).await })
            .buffered(READERS)
            .try_collect()
            .await?;
        let recording = json!({"bundleDeployments": units, "releases": releases, "objects": objects});
        Ok(self.scrub(&recording, ""))
    }

    async fn releases(&mut self, namespaces: &BTreeSet<String>) -> anyhow::Result<Vec<Value>> {
        let mut releases = Vec::new();
        for namespace in namespaces {
            let path = format!("/api/v1/namespaces/{namespace}/secrets?labelSelector=owner%3Dhelm");
            let secrets = self.server.get(&path).await?.unwrap_or_default();
            for secret in secrets["items"].as_array().into_iter().flatten() {
                let record = match unpack(secret) {
                    Ok(record) => record,
                    Err(error) => {
                        let name = &secret["metadata"]["name"];
                        releases.push(json!({"secret": name, "undecodable": format!("{error:#}")}));
                        continue;
                    }
                };
                let id = &record["chart"]["metadata"]["annotations"]["fleet.cattle.io/bundle-id"];
                if id.is_null() || self.case.units().iter().any(|name| *id == *name) {
                    let mut release = release(secret, &record);
                    read_manifests(self.engine, &mut release).await;
                    self.note_objects(&release).await?;
                    releases.push(release);
                }
            }
        }
        Ok(releases)
    }

    /// The objects that a release's manifest and hooks name.
    async fn note_objects(&mut self, release: &Value) -> anyhow::Result<()> {
        let namespace = release["namespace"].as_str().unwrap_or_default();
        let hooks = release["hooks"].as_array().into_iter().flatten().map(|hook| &hook["manifest"]);
        let manifests = [&release["manifest"]].into_iter().chain(hooks);
        for object in manifests.flat_map(|manifest| manifest["objects"].as_array().into_iter().flatten()) {
            let mut key = Key::of(object);
            if key.kind.is_empty() || key.name.is_empty() {
                continue;
            }
            let Some(path) = self.server.path(&key.api_version, &key.kind, "", None).await? else { continue };
            if !path.contains("/namespaces/") {
                key.namespace.clear();
            } else if key.namespace.is_empty() {
                key.namespace = namespace.into();
            }
            self.seen.insert(key);
        }
        Ok(())
    }

    /// Placeholders for what differs from run to run.
    fn scrub(&self, value: &Value, key: &str) -> Value {
        match value {
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| (self.text(key), self.scrub(value, key))).collect()
            }
            Value::Array(items) => items.iter().map(|item| self.scrub(item, "")).collect(),
            Value::String(text) if matches!(key, "modifiedAt" | "createdAt") && is_number(text) => {
                "<unix-time>".into()
            }
            Value::String(text) => self.text(text).into(),
            Value::Number(number)
                if matches!(key, "nodePort" | "healthCheckNodePort")
                    && !self.case.sources.contains(&number.to_string()) =>
            {
                "<port>".into()
            }
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        let text = text.replace(self.cluster_namespace, RECORDED_NAMESPACE);
        self.placeholders.put(&text, &self.case.sources)
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn strings(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned))
}

/// What in a text depends on time and place. Uids stay: they are compared by where they occur.
struct Placeholders(Vec<(Regex, &'static str)>);

impl Placeholders {
    fn new() -> Placeholders {
        let time = r"20[2-9]\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d)( UTC)?( m=\S+)?)?";
        let patterns = [
            (time, "<time>"),
            (r"\b10\.96\.\d+\.\d+\b", "<cluster-ip>"),
            (r"127\.0\.0\.\d+:\d+", "<api-server>"),
        ];
        Placeholders(
            patterns.map(|(pattern, name)| (Regex::new(pattern).expect("a constant pattern"), name)).into(),
        )
    }

    fn put(&self, text: &str, sources: &str) -> String {
        let mut text = text.to_owned();
        for (pattern, name) in &self.0 {
            let replaced = pattern.replace_all(&text, |found: &Captures<'_>| {
                if sources.contains(&found[0]) { found[0].to_owned() } else { (*name).to_owned() }
            });
            text = replaced.into_owned();
        }
        text
    }
}

/// One live object without its status.
async fn live(server: &Server, key: &Key) -> anyhow::Result<Value> {
    let Key { api_version, kind, namespace, name } = key;
    let mut short = json!({"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name});
    let object = match server.path(api_version, kind, namespace, Some(name)).await? {
        Some(path) => server.get(&path).await?,
        None => None,
    };
    let Some(mut object) = object else {
        short["absent"] = true.into();
        return Ok(short);
    };
    if object["type"] == "helm.sh/release.v1" {
        short["releaseSecret"] = true.into();
        return Ok(short);
    }
    let fields = object.as_object_mut().context("an object is a JSON object")?;
    fields.remove("status");
    let kept = [
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "generation",
        "deletionTimestamp",
    ];
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| kept.contains(&key.as_str()));
    }
    if kind == "CustomResourceDefinition"
        && let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.retain(|key, _| matches!(key.as_str(), "group" | "scope" | "names"));
    }
    Ok(object)
}

/// The record inside a release Secret.
pub fn unpack(secret: &Value) -> anyhow::Result<Value> {
    let data = secret["data"]["release"].as_str().context("no key release")?;
    let packed = BASE64_STANDARD.decode(BASE64_STANDARD.decode(data)?)?;
    let mut text = String::new();
    GzDecoder::new(packed.as_slice()).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

fn release(secret: &Value, record: &Value) -> Value {
    let chart = &record["chart"];
    let names = |list: &Value| {
        let mut names: Vec<String> = list
            .as_array()
            .into_iter()
            .flatten()
            .map(|file| file["name"].as_str().unwrap_or_default().to_owned())
            .collect();
        names.sort();
        names
    };
    let keys = |value: &Value| {
        value.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>()).unwrap_or_default()
    };
    let dependencies = chart["dependencies"].as_array().into_iter().flatten();
    let known =
        ["name", "namespace", "version", "apply_method", "info", "config", "chart", "manifest", "hooks"];
    let other: Vec<String> = keys(record).into_iter().filter(|key| !known.contains(&key.as_str())).collect();
    let hooks = record["hooks"].as_array().into_iter().flatten().map(|hook| {
        let kept = [
            "name",
            "kind",
            "path",
            "events",
            "weight",
            "delete_policies",
            "output_log_policies",
            "manifest",
        ];
        let mut shown: Map<String, Value> = kept
            .iter()
            .filter_map(|key| hook.get(*key).map(|value| ((*key).to_owned(), value.clone())))
            .collect();
        shown.insert("phase".into(), hook["last_run"]["phase"].clone());
        Value::Object(shown)
    });
    json!({
        "secret": secret["metadata"]["name"], "type": secret["type"], "labels": secret["metadata"]["labels"],
        "secretNamespace": secret["metadata"]["namespace"], "name": record["name"],
        "namespace": record["namespace"], "version": record["version"], "applyMethod": record["apply_method"],
        "info": record["info"], "config": record["config"],
        "chart": {
            "metadata": chart["metadata"], "templates": names(&chart["templates"]), "files": names(&chart["files"]),
            "values": chart["values"], "schema": chart["schema"].as_str().is_some_and(|text| !text.is_empty()),
            "dependencies": dependencies.map(|one| one["metadata"]["name"].clone()).collect::<Vec<_>>(),
            "keys": keys(chart),
        },
        "otherKeys": other, "manifest": record["manifest"], "hooks": hooks.collect::<Vec<_>>(),
    })
}

/// Puts the objects of a release's manifest and hooks in the place of their text, as Kubernetes reads them: how a YAML
/// writer quotes, folds and indents is nobody's business. A text that is no YAML stays.
pub async fn read_manifests(engine: &flotilla::render::engine::Engine, release: &mut Value) {
    let hooks = release["hooks"].as_array().map_or(0, Vec::len);
    let pointers = (0..hooks).map(|index| format!("/hooks/{index}/manifest")).chain(["/manifest".into()]);
    for pointer in pointers {
        let Some(manifest) = release.pointer_mut(&pointer) else { continue };
        let Some(text) = manifest.as_str() else { continue };
        // Helm leaves an empty one out.
        if text.trim().is_empty() {
            *manifest = Value::Null;
            continue;
        }
        let sources: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# Source: ")).collect();
        if let Ok(documents) = engine.yaml(vec![("manifest".into(), text.into())]).await {
            let objects: Vec<Value> = documents.into_iter().map(|document| document.value).collect();
            *manifest = json!({"sources": sources, "objects": objects});
        }
    }
}
