// SPDX-License-Identifier: Apache-2.0
//! Bundles as a test or a folder describes them, and their way into the upstream cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use flotilla::api::manifest::{BundleResource, Manifest, options_hash};
use flotilla::api::{
    BundleDeployment, BundleDeploymentOptions, BundleDeploymentSpec, BundleRef, Content, keys,
};
use futures::{StreamExt, TryStreamExt};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::json;

use super::fleet::{REGISTRATION_NAMESPACE, Registration};

/// How many bundles are written at once: enough to keep the API server busy, few enough not to drown it.
const WRITERS: usize = 16;

/// A Deployment that never becomes ready where nothing runs pods.
pub const NEVER_READY: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: idle}
spec:
  replicas: 1
  selector: {matchLabels: {app: idle}}
  template:
    metadata: {labels: {app: idle}}
    spec: {containers: [{name: main, image: none}]}
";
/// An object of a kind that no cluster serves.
pub const NO_SUCH_KIND: &str = "apiVersion: no.such/v1\nkind: Thing\nmetadata: {name: thing}\n";

/// One bundle for one cluster.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// Name of the bundle and of its BundleDeployment.
    pub name: String,
    /// Further labels of the BundleDeployment.
    pub labels: BTreeMap<String, String>,
    /// How it is deployed.
    pub options: BundleDeploymentOptions,
    /// What must be ready first.
    pub depends_on: Vec<BundleRef>,
    /// Whether it is published paused.
    pub paused: bool,
    /// Its files.
    pub resources: Vec<BundleResource>,
}

/// `fleet.yaml`: the options at top level, beside what belongs to the bundle.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FleetYaml {
    name: String,
    labels: BTreeMap<String, String>,
    depends_on: Vec<BundleRef>,
    #[serde(flatten)]
    options: BundleDeploymentOptions,
}

impl Bundle {
    /// A bundle without files whose objects go to `namespace` unless they name another.
    pub fn new(name: impl Into<String>, namespace: &str) -> Bundle {
        let options = BundleDeploymentOptions {
            default_namespace: namespace.into(),
            ..BundleDeploymentOptions::default()
        };
        Bundle { name: name.into(), options, ..Bundle::default() }
    }

    /// Adds a file.
    pub fn file(mut self, name: &str, content: impl Into<String>) -> Bundle {
        let resource = BundleResource { name: name.into(), content: content.into(), encoding: String::new() };
        self.resources.push(resource);
        self
    }

    /// Changes its options.
    pub fn with(mut self, change: impl FnOnce(&mut BundleDeploymentOptions)) -> Bundle {
        change(&mut self.options);
        self
    }

    /// `count` ConfigMaps `NAME-0`, `NAME-1`, … that carry `version`.
    pub fn config_maps(name: &str, namespace: &str, count: usize, version: &str) -> Bundle {
        let mut text = String::new();
        for index in 0..count {
            text += &format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}-{index}\ndata:\n  \
                 version: \"{version}\"\n  greeting: hello from object {index} of bundle {name}\n---\n"
            );
        }
        Bundle::new(name, namespace).file("manifests/configmaps.yaml", text)
    }

    /// A chart with a template for each of `count` ConfigMaps, a helper and values; it names nothing but itself.
    pub fn chart(name: &str, namespace: &str, count: usize, version: &str) -> Bundle {
        let helper = "{{- define \"greeting\" -}}\nhello from {{ .Release.Name }}, {{ .Values.greeting | default \"again\" \
                      }}\n{{- end }}\n";
        let mut bundle = Bundle::new(name, namespace)
            .file("Chart.yaml", format!("apiVersion: v2\nname: {name}\nversion: {version}.0.0\n"))
            .file("values.yaml", "greeting: welcome\nlabels: {team: shop}\n")
            .file("templates/_helpers.tpl", helper);
        for index in 0..count {
            let text = format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}-{index}\n  labels:\n    {{{{- toYaml \
                 .Values.labels | nindent 4 }}}}\ndata:\n  version: {{{{ .Chart.Version | quote }}}}\n  greeting: {{{{ include \
                 \"greeting\" . | quote }}}}\n"
            );
            bundle = bundle.file(&format!("templates/configmap-{index}.yaml"), text);
        }
        bundle
    }

    /// Reads `DIR/fleet.yaml` and every other file below DIR; the bundle's name is the folder's unless it says another.
    pub fn read(dir: &Path) -> anyhow::Result<Bundle> {
        let fleet_yaml = dir.join("fleet.yaml");
        let text = std::fs::read_to_string(&fleet_yaml)
            .with_context(|| format!("reading {}", fleet_yaml.display()))?;
        let fleet: FleetYaml =
            serde_saphyr::from_str(&text).with_context(|| format!("reading {}", fleet_yaml.display()))?;
        let folder = dir.file_name().context("a bundle's folder has a name")?.to_string_lossy();
        let name = if fleet.name.is_empty() { folder.into_owned() } else { fleet.name };
        let mut bundle = Bundle {
            name,
            labels: fleet.labels,
            options: fleet.options,
            depends_on: fleet.depends_on,
            ..Bundle::default()
        };
        for path in files(dir)? {
            let name = path.strip_prefix(dir)?.to_string_lossy().into_owned();
            if name != "fleet.yaml" {
                let content =
                    std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                bundle = bundle.file(&name, content);
            }
        }
        Ok(bundle)
    }

    /// Reads every folder below `dir`, by name.
    pub fn read_all(dir: &Path) -> anyhow::Result<Vec<Bundle>> {
        let mut folders: Vec<PathBuf> = std::fs::read_dir(dir)
            .with_context(|| format!("listing {}", dir.display()))?
            .map(|entry| Ok(entry?.path()))
            .collect::<anyhow::Result<_>>()?;
        folders.retain(|path| path.is_dir());
        folders.sort();
        folders.iter().map(|path| Bundle::read(path)).collect()
    }

    /// The namespace of its release.
    pub fn namespace(&self) -> &str {
        flotilla::api::release_namespace(&self.options)
    }

    /// Its files as they are stored.
    pub fn manifest(&self) -> Manifest {
        Manifest { resources: self.resources.clone() }
    }

    /// `manifestID:optionsHash`.
    pub fn deployment_id(&self) -> String {
        format!("{}:{}", self.manifest().id(), options_hash(&self.options))
    }

    /// The BundleDeployment that Fleet's controller would write for `registration`.
    pub fn bundle_deployment(&self, registration: &Registration) -> BundleDeployment {
        let deployment_id = self.deployment_id();
        let manifest_id = deployment_id.split(':').next().unwrap_or_default().to_owned();
        let mut bundle_deployment = BundleDeployment::new(
            &self.name,
            BundleDeploymentSpec {
                paused: self.paused,
                staged_options: Some(self.options.clone()),
                staged_deployment_id: deployment_id.clone(),
                options: Some(self.options.clone()),
                deployment_id,
                depends_on: self.depends_on.clone(),
                correct_drift: self.options.correct_drift.clone(),
                ..BundleDeploymentSpec::default()
            },
        );
        let mut labels = self.labels.clone();
        labels.extend(
            [
                (keys::BUNDLE_NAME, self.name.as_str()),
                (keys::BUNDLE_NAMESPACE, REGISTRATION_NAMESPACE),
                (keys::CONTENT_NAME, &manifest_id),
                ("fleet.cattle.io/managed", "true"),
                ("fleet.cattle.io/cluster", &registration.cluster),
                ("fleet.cattle.io/cluster-namespace", REGISTRATION_NAMESPACE),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        bundle_deployment.metadata.labels = Some(labels);
        bundle_deployment.metadata.namespace = Some(registration.cluster_namespace.clone());
        bundle_deployment
    }
}

/// Writes bundles for one cluster, in the place of Fleet's controller.
#[derive(Clone)]
pub struct Publisher {
    registration: Registration,
    contents: Api<Content>,
    units: Api<BundleDeployment>,
}

impl Publisher {
    /// `upstream` is a client with an administrator's rights.
    pub fn new(upstream: Client, registration: &Registration) -> Publisher {
        Publisher {
            units: Api::namespaced(upstream.clone(), &registration.cluster_namespace),
            contents: Api::all(upstream),
            registration: registration.clone(),
        }
    }

    /// The BundleDeployments of the cluster.
    pub fn units(&self) -> &Api<BundleDeployment> {
        &self.units
    }

    /// Creates or changes the bundles, several at once.
    pub async fn publish(&self, bundles: &[Bundle]) -> anyhow::Result<()> {
        futures::stream::iter(bundles)
            .map(|bundle| async move {
                self.publish_content(bundle).await?;
                self.publish_unit(bundle).await
            })
            .buffer_unordered(WRITERS)
            .try_collect()
            .await
    }

    /// Creates the bundle's Content unless it is there.
    pub async fn publish_content(&self, bundle: &Bundle) -> anyhow::Result<()> {
        let content = bundle.manifest().to_content();
        match self.contents.create(&PostParams::default(), &content).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            created => created.map(drop).with_context(|| format!("creating the Content of {}", bundle.name)),
        }
    }

    /// Creates or changes the bundle's BundleDeployment.
    pub async fn publish_unit(&self, bundle: &Bundle) -> anyhow::Result<()> {
        let object = bundle.bundle_deployment(&self.registration);
        self.units
            .patch(&bundle.name, &PatchParams::apply("flotilla-harness").force(), &Patch::Apply(&object))
            .await
            .map(drop)
            .with_context(|| format!("applying BundleDeployment {}", bundle.name))
    }

    /// Pauses or resumes a bundle.
    pub async fn pause(&self, name: &str, paused: bool) -> anyhow::Result<()> {
        let patch = json!({"spec": {"paused": paused}});
        self.units
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(drop)
            .with_context(|| format!("setting paused={paused} on BundleDeployment {name}"))
    }

    /// Deletes a bundle's BundleDeployment.
    pub async fn withdraw(&self, name: &str) -> anyhow::Result<()> {
        self.units
            .delete(name, &DeleteParams::default())
            .await
            .map(drop)
            .with_context(|| format!("deleting BundleDeployment {name}"))
    }
}

/// The YAML files below `dir`, by name.
fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(folder) = open.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
