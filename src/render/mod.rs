// SPDX-License-Identifier: Apache-2.0
//! From a bundle's files to the objects that go to the cluster, and to the texts that Helm's release record keeps.
//!
//! Everything here is a pure function of its input but for one thing: YAML is read by the engine, so that a bundle
//! means here what it means to Kubernetes.

mod archive;
mod chart;
#[cfg(test)]
mod chart_tests;
pub mod engine;
mod files;
#[cfg(test)]
mod golden;
mod hooks;
mod layout;
mod manifest;
mod objects;
mod order;
mod overlays;
mod pieces;
mod quoting;
mod style;
#[cfg(test)]
mod tests;
mod text;
pub mod values;

use std::{collections::HashMap, fmt, sync::Arc};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::api::{BundleDeploymentOptions, manifest::ContentError, manifest::Manifest, names};
use engine::{Capabilities, Engine, EngineError, Lookup, ReleaseFacts, RenderRequest, RenderedChart};
use hooks::Role;
use layout::Layout;
use pieces::Piece;

pub use archive::{ArchiveError, MAX_CHART, chart_bundle};
pub use files::has_templates;
pub use hooks::{DeletePolicy, HOOK, Hook, HookEvent};
pub use manifest::{parse_hooks, parse_manifest};
pub use objects::Object;
pub use order::install_order;
pub use style::external_directory;
pub use text::yaml_text;

/// Objects that one bundle may have, hooks and `crds/` included. Each is read, applied and watched one by one, and the
/// release record, which lists them all, must fit into a Secret: it holds some thousands of ordinary ones.
pub const MAX_OBJECTS: usize = 10_000;

/// Where objects of a kind live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// In none.
    Cluster,
}

/// What the API server says about kinds.
pub trait Kinds {
    /// Where objects of this kind live; `None` if the server does not know it.
    fn scope(&self, api_version: &str, kind: &str) -> Option<Scope>;
}

/// What is to be rendered.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// The BundleDeployment's name.
    pub bd_name: &'a str,
    /// Its options.
    pub options: &'a BundleDeploymentOptions,
    /// The bundle's files.
    pub manifest: &'a Manifest,
    /// The agent's scope, or empty.
    pub scope: &'a str,
    /// The agent's namespace downstream.
    pub agent_namespace: &'a str,
    /// The commit the bundle was made from, or empty.
    pub commit: &'a str,
    /// The revision that is being made. Read by templates only, see [`has_templates`].
    pub release: &'a ReleaseFacts,
    /// The cluster, for templates.
    pub capabilities: &'a Arc<Capabilities>,
    /// Answers the templates' `lookup`.
    pub lookup: &'a Arc<dyn Lookup>,
    /// The values of the options, the values Secret and `valuesFrom`, merged.
    pub values: &'a Map<String, Value>,
    /// On an upgrade the values of the revision that is replaced: an empty set of values means these.
    pub previous_values: Option<&'a Map<String, Value>>,
}

/// A bundle, ready to be deployed.
#[derive(Clone, Default, PartialEq)]
pub struct Rendered {
    /// In install order, no object twice.
    pub objects: Vec<Object>,
    /// Helm's hooks, in the order of the release record (by kind, not yet by weight).
    pub hooks: Vec<Hook>,
    /// The objects of the chart's `crds/` directories: applied before everything else, at an install only. They carry
    /// no marks of Fleet's and are in no manifest.
    pub crds: Vec<Object>,
    /// The rendered NOTES.txt, or empty.
    pub notes: String,
    /// The `config` of Helm's release record: the user's values.
    pub values: Map<String, Value>,
    /// Templates have looked at the cluster: the same input may render differently next time.
    pub observed_cluster: bool,
    /// Helm's manifest text, in install order.
    pub manifest: String,
    /// The `chart` of Helm's release record, without the files' contents.
    pub chart: serde_json::Value,
    /// The set id: what the id annotation says.
    pub set_id: String,
    /// The set id's hash: what the hash label says.
    pub hash: String,
    /// For each object where it comes from; Helm's manifest names it.
    pub sources: Vec<Source>,
    /// The same for each hook.
    pub hook_sources: Vec<Source>,
}

/// Where an object comes from. Sorts as Helm sorts: by file, then by position.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Helm's path of the template, or the name made up for what has none.
    pub path: String,
    /// Position in the bundle, from 0.
    pub position: usize,
    /// Whether it is the last of its file, with the line end that Helm leaves to this one only.
    pub ends_file: bool,
}

/// Names only: objects may be Secrets.
impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { objects, hooks, crds, set_id, hash, .. } = self;
        f.debug_struct("Rendered")
            .field("objects", objects)
            .field("hooks", hooks)
            .field("crds", crds)
            .field("set_id", set_id)
            .field("hash", hash)
            .finish_non_exhaustive()
    }
}

/// Why a bundle cannot be rendered.
#[derive(Debug, Error)]
pub enum RenderError {
    /// A file's encoding is broken.
    #[error("cannot read the bundle")]
    Content(#[source] ContentError),
    /// An overlay patches a file that is not there. Fleet's text.
    #[error("failed to find base file {target} to patch")]
    MissingBase {
        /// The file.
        target: String,
    },
    /// An overlay's patch does not fit. Fleet's text.
    #[error("{message}")]
    Overlay {
        /// Which, and why.
        message: String,
    },
    /// The kustomization is at fault. Fleet's text.
    #[error("error while running post render on files: {message}")]
    Kustomize {
        /// kustomize's words.
        message: String,
    },
    /// The chart is at fault, or what it says of cluster and values.
    #[error("{message}")]
    Chart {
        /// Helm's words.
        message: String,
    },
    /// A document is at fault. Fleet's text, and where.
    #[error("error while running post render on files: {message} (document {} of {file})", index + 1)]
    Document {
        /// Its file.
        file: String,
        /// Its position in the file, from 0.
        index: usize,
        /// What Kubernetes' reader says.
        message: String,
    },
    /// An object that no API server takes.
    #[error("{message} (in {file})")]
    Object {
        /// The file it comes from.
        file: String,
        /// What is wrong, in the words of Helm and Kubernetes.
        message: String,
    },
    /// A cluster-scoped object, while the options force a namespace. Fleet's text.
    #[error(
        "error while running post render on files: invalid cluster scoped object [name={name} kind={kind} \
         apiVersion={api_version}] found. Your config uses targetNamespace or namespace and thus forbids \
         cluster-scoped resources. If you do not intend to disallow cluster scoped resources, you could switch to \
         defaultNamespace"
    )]
    ClusterScoped {
        /// The object's.
        name: String,
        /// The object's.
        kind: String,
        /// The object's.
        api_version: String,
    },
    /// A kind the server does not know, while the options force a namespace. Fleet's text.
    #[error(
        "error while running post render on files: no matches for kind \"{kind}\" in version \"{api_version}\""
    )]
    UnknownKind {
        /// The object's.
        name: String,
        /// The object's.
        kind: String,
        /// The object's.
        api_version: String,
    },
    /// More objects than one release may have.
    #[error("the bundle has {count} objects, and one release may have {MAX_OBJECTS}: divide it")]
    TooMany {
        /// How many it has, hooks and `crds/` included.
        count: usize,
    },
    /// The engine gave no answer.
    #[error("cannot read the bundle's documents")]
    Engine(#[source] EngineError),
}

/// Texts of Helm after which Fleet's agent, too, waits for a change.
const FAULTS_OF_A_CHART: [&str; 3] = ["YAML parse error", "MalformedYAMLError", "chart requires kubeVersion"];

impl RenderError {
    /// Whether the same bundle will fail again, whatever the state of cluster and machine.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Content(_)
            | Self::MissingBase { .. }
            | Self::Overlay { .. }
            | Self::Kustomize { .. }
            | Self::Document { .. }
            | Self::Object { .. }
            | Self::TooMany { .. }
            | Self::ClusterScoped { .. } => true,
            // A template may ask for anything: cluster, other objects, values that a Secret holds.
            Self::Chart { message } => FAULTS_OF_A_CHART.iter().any(|fault| message.contains(fault)),
            Self::UnknownKind { .. } => false,
            Self::Engine(error) => error.is_permanent(),
        }
    }
}

impl From<EngineError> for RenderError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Document { file, index, message } => Self::Document { file, index, message },
            other => Self::Engine(other),
        }
    }
}

/// Renders a bundle. A namespace that the options force is *not* applied yet, since that takes knowing every kind's
/// scope: see [`Rendered::force_namespace`].
///
/// # Errors
/// See [`RenderError`]; the first fault found.
pub async fn render(engine: &Engine, job: Job<'_>) -> Result<Rendered, RenderError> {
    let layout = Layout::of(engine, &job).await?;
    let values = values_of(&job).clone();
    let set_id = names::set_id(job.bd_name, job.scope);
    let hash = names::object_hash(&set_id);
    let generated = chart::generated(&job, &layout);
    let Layout { chart, raw, kustomization, .. } = layout;
    let RenderedChart { documents, crds, notes, mut chart, observed_cluster } = match chart {
        Some(files) => engine.render(request(&job, files, values.clone())).await.map_err(chart_error)?,
        None => RenderedChart { chart: generated, ..RenderedChart::default() },
    };
    chart::annotate(&mut chart, &job);
    let mut found = match kustomization {
        Some(directory) => pieces::of_kustomization(engine, &job, directory, documents).await?,
        None => pieces::of_templates(documents)?,
    };
    found.extend(pieces::of_raw(engine.yaml(raw).await?)?);
    let count = found.len() + crds.len();
    if count > MAX_OBJECTS {
        return Err(RenderError::TooMany { count });
    }
    let marks = objects::Marks { set_id: &set_id, hash: &hash, keep_crds: !job.options.delete_crd_resources };
    for piece in &mut found {
        marks.put(&mut piece.object);
    }
    let crds = objects::objects(crds)?;
    let mut rendered =
        Rendered { crds, notes, values, observed_cluster, chart, set_id, hash, ..Rendered::default() };
    rendered.sort_out(found);
    rendered.settle(crate::api::release_namespace(job.options));
    Ok(rendered)
}

/// The objects of the chart's `crds/` directories, as [`Rendered::crds`] has them, without rendering its templates: those
/// may ask for these kinds.
///
/// # Errors
/// Those of [`render`] for a chart that cannot be read.
pub async fn crds(engine: &Engine, job: Job<'_>) -> Result<Vec<Object>, RenderError> {
    // A packed dependency may have some, too.
    let may_have = |name: &str| name.contains("crds/") || name.ends_with(".tgz");
    if !job.manifest.resources.iter().any(|file| may_have(&file.name)) {
        return Ok(Vec::new());
    }
    let Some(files) = Layout::of(engine, &job).await?.chart else { return Ok(Vec::new()) };
    let values = values_of(&job).clone();
    objects::objects(engine.crds(request(&job, files, values)).await.map_err(chart_error)?)
}

/// The values that count: Helm reuses the last ones when an upgrade gives none.
fn values_of<'a>(job: &Job<'a>) -> &'a Map<String, Value> {
    match job.previous_values {
        Some(previous) if job.values.is_empty() && job.release.is_upgrade => previous,
        _ => job.values,
    }
}

fn request(job: &Job<'_>, files: Vec<(String, Vec<u8>)>, values: Map<String, Value>) -> RenderRequest {
    let helm = job.options.helm.as_ref();
    RenderRequest {
        files,
        values,
        release: job.release.clone(),
        capabilities: job.capabilities.clone(),
        dns: !helm.is_some_and(|helm| helm.disable_dns),
        skip_schema: helm.is_some_and(|helm| helm.skip_schema_validation),
        lookup: job.lookup.clone(),
    }
}

fn chart_error(error: EngineError) -> RenderError {
    match error {
        EngineError::Document { message, .. } => RenderError::Chart { message },
        other => RenderError::Engine(other),
    }
}

impl Rendered {
    /// Puts every object into `namespace`, hooks too, as `options.namespace` demands, and writes the manifest anew.
    ///
    /// # Errors
    /// The first object, in the bundle's order, that is cluster scoped or of an unknown kind. Nothing is changed then.
    pub fn force_namespace(&mut self, namespace: &str, kinds: &dyn Kinds) -> Result<(), RenderError> {
        let objects = self.objects.iter_mut().zip(&self.sources);
        let hooks = self.hooks.iter_mut().map(|hook| &mut hook.object).zip(&self.hook_sources);
        let mut all: Vec<_> = objects.chain(hooks).collect();
        all.sort_by_key(|(_, source)| source.position);
        let mut all: Vec<&mut Object> = all.into_iter().map(|(object, _)| object).collect();
        objects::force_namespace(&mut all, namespace, kinds)?;
        self.settle(namespace);
        Ok(())
    }

    /// Tells hooks from objects, with Helm's name for the file of each.
    fn sort_out(&mut self, pieces: Vec<Piece>) {
        let name = |(position, piece): (usize, &Piece)| match &piece.path {
            Some(path) => path.clone(),
            None => format!("generated-by-postrender-{position}.yaml"),
        };
        let paths: Vec<String> = pieces.iter().enumerate().map(name).collect();
        let ends: HashMap<&str, usize> =
            paths.iter().enumerate().map(|(position, path)| (path.as_str(), position)).collect();
        let ends: Vec<bool> = paths
            .iter()
            .enumerate()
            .map(|(position, path)| ends.get(path.as_str()) == Some(&position))
            .collect();
        for (position, (piece, path)) in pieces.into_iter().zip(paths).enumerate() {
            let ends_file = ends.get(position).copied().unwrap_or(true);
            match hooks::role(piece.object, &path) {
                Role::Kept(object) => {
                    self.objects.push(object);
                    self.sources.push(Source { path, position, ends_file });
                }
                Role::Hook(hook) => {
                    self.hooks.push(hook);
                    self.hook_sources.push(Source { path, position, ends_file });
                }
                Role::Unknown => {}
            }
        }
    }

    /// Of equal objects keeps the bundle's last, brings everything into install order and writes the manifests.
    fn settle(&mut self, release_namespace: &str) {
        let mut kept = pairs(&mut self.objects, &mut self.sources);
        kept.sort_by_key(|(_, source)| source.position);
        let last = order::last_ones(kept.iter().map(|(object, _)| object), release_namespace);
        let mut last = last.into_iter();
        kept.retain(|_| last.next().unwrap_or(true));
        kept.sort_by(|(a, at), (b, bt)| order::place(a, at).cmp(&order::place(b, bt)));
        (self.objects, self.sources) = kept.into_iter().unzip();
        self.manifest = manifest::manifest_text(&self.objects, &self.sources);

        let mut hooks = pairs(&mut self.hooks, &mut self.hook_sources);
        hooks.sort_by(|(a, at), (b, bt)| order::place(&a.object, at).cmp(&order::place(&b.object, bt)));
        for (hook, source) in &mut hooks {
            hook.manifest = manifest::document_text(&hook.object.value, source);
        }
        (self.hooks, self.hook_sources) = hooks.into_iter().unzip();
    }
}

fn pairs<T>(things: &mut Vec<T>, sources: &mut Vec<Source>) -> Vec<(T, Source)> {
    std::mem::take(things).into_iter().zip(std::mem::take(sources)).collect()
}
