// SPDX-License-Identifier: Apache-2.0
//! What the engine does with charts and kustomizations.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Document;

/// A chart with what it is rendered for.
pub struct RenderRequest {
    /// The chart's files: name relative to the chart's root (`Chart.yaml`, `templates/…`, `charts/…`, `crds/…`) and
    /// bytes. Packed dependencies (`charts/x.tgz`) are taken as they are.
    pub files: Vec<(String, Vec<u8>)>,
    /// The user's values, merged; the chart's own are laid below them by the engine.
    pub values: Map<String, Value>,
    /// The release.
    pub release: ReleaseFacts,
    /// The cluster.
    pub capabilities: Arc<Capabilities>,
    /// Whether templates may resolve host names (`getHostByName`); without it they get an empty answer.
    pub dns: bool,
    /// Whether `values.schema.json` is not looked at.
    pub skip_schema: bool,
    /// Answers `lookup`.
    pub lookup: Arc<dyn Lookup>,
}

/// What templates see as `.Release`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReleaseFacts {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The revision that is being made, from 1.
    pub revision: u32,
    /// Whether an earlier revision is replaced; else it is an install.
    pub is_upgrade: bool,
}

/// What templates see as `.Capabilities`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// For instance `v1.36.3`.
    pub kube_version: String,
    /// Group versions and group versions with kinds, as Helm lists them: `apps/v1`, `apps/v1/Deployment`.
    pub api_versions: Vec<String>,
}

/// Answers a template's `lookup` from the cluster, under the deployment's own identity.
pub trait Lookup: Send + Sync {
    /// One object, or with an empty name the list of them; `None` if there is none. An error ends the rendering with
    /// its text.
    fn lookup<'a>(
        &'a self,
        api_version: &'a str,
        kind: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, String>>;
}

/// A rendered chart.
#[derive(Clone, Default, PartialEq)]
pub struct RenderedChart {
    /// The templates' documents, hooks among them, by template and position; `file` is Helm's path
    /// (`chart/templates/x.yaml`, `chart/charts/sub/templates/y.yaml`). Empty documents are left out.
    pub documents: Vec<Document>,
    /// The objects of the files under `crds/`, of dependencies too, in Helm's order.
    pub crds: Vec<Document>,
    /// The rendered NOTES.txt of the chart itself, or empty.
    pub notes: String,
    /// The `chart` of Helm's release record, contents of files included.
    pub chart: Value,
    /// Whether `lookup` or `getHostByName` was called: then the result must not be kept.
    pub observed_cluster: bool,
}

/// Counts only: values and objects may be secret.
impl fmt::Debug for RenderedChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderedChart").field("documents", &self.documents).finish_non_exhaustive()
    }
}

/// A kustomization: `kustomization.yaml` in `directory` of `files`, built with root-only loading and no plugins.
pub struct KustomizeRequest {
    /// All files, by path.
    pub files: Vec<(String, Vec<u8>)>,
    /// Where `kustomization.yaml` lies; empty for the root.
    pub directory: String,
    /// Objects (JSON) that are put in front of the kustomization's own `resources`, as `fleet-manifests.yaml`; none
    /// if empty.
    pub first: Vec<Value>,
}

/// One dependency or repository entry to be resolved by a version constraint, as Helm does it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResolveRequest {
    /// The constraint, for instance `^1.2`, or empty for the newest stable.
    pub constraint: String,
    /// The versions on offer, in any order.
    pub versions: Vec<String>,
}
