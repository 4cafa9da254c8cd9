// SPDX-License-Identifier: Apache-2.0
//! From a bundle's files to the objects that go to the cluster, and to the texts that Helm's release record keeps.
//!
//! Everything here is a pure function of its input but for one thing: YAML is read by the engine, so that a bundle
//! means here what it means to Kubernetes.

mod chart;
pub mod engine;
mod files;
mod hooks;
mod manifest;
mod objects;
mod order;
#[cfg(test)]
mod tests;
mod text;

use std::{fmt, sync::Arc};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::api::{BundleDeploymentOptions, manifest::ContentError, manifest::Manifest, names};
use engine::{Capabilities, Engine, EngineError, Lookup, ReleaseFacts};

pub use files::has_templates;
pub use hooks::{DeletePolicy, HOOK, Hook, HookEvent};
pub use manifest::parse_manifest;
pub use objects::{Object, force_namespace};
pub use order::install_order;
pub use text::yaml_text;

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
    /// For each object, its position in the bundle; Helm's manifest names it.
    pub positions: Vec<usize>,
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
    /// The bundle needs what this version does not do.
    #[error("this version of Flotilla cannot deploy {what}")]
    Unsupported {
        /// The file, option or annotation.
        what: String,
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
    /// The engine gave no answer.
    #[error("cannot read the bundle's documents")]
    Engine(#[source] EngineError),
}

impl RenderError {
    /// Whether the same bundle will fail again, whatever the state of cluster and machine.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Content(_)
            | Self::Unsupported { .. }
            | Self::Document { .. }
            | Self::Object { .. }
            | Self::ClusterScoped { .. } => true,
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
    let set_id = names::set_id(job.bd_name, job.scope);
    let hash = names::object_hash(&set_id);
    let files = files::raw_yaml(job.manifest, job.options)?;
    let chart = chart::chart(&job, files.iter().map(|(name, _)| name.as_str()));
    let documents = engine.yaml(files).await?;
    let found = objects::objects(documents)?;
    objects::refuse_hooks(&found)?;
    let marks = objects::Marks { set_id: &set_id, hash: &hash, keep_crds: !job.options.delete_crd_resources };
    let mut rendered = Rendered { chart, ..Rendered::default() };
    for (position, mut object) in found.into_iter().enumerate() {
        marks.put(&mut object);
        rendered.objects.push(object);
        rendered.positions.push(position);
    }
    rendered.set_id = set_id;
    rendered.hash = hash;
    rendered.settle(crate::api::release_namespace(job.options));
    Ok(rendered)
}

impl Rendered {
    /// Puts every object into `namespace`, as `options.namespace` demands, and writes the manifest anew.
    ///
    /// # Errors
    /// The first object, in the bundle's order, that is cluster scoped or of an unknown kind. Nothing is changed then.
    pub fn force_namespace(&mut self, namespace: &str, kinds: &dyn Kinds) -> Result<(), RenderError> {
        self.in_order_of(|_, position| position);
        let forced = force_namespace(&mut self.objects, namespace, kinds);
        self.settle(namespace);
        forced
    }

    /// Of equal objects keeps the bundle's last, brings the rest into install order and writes the manifest.
    fn settle(&mut self, release_namespace: &str) {
        self.in_order_of(|_, position| position);
        let keep = order::last_ones(&self.objects, release_namespace);
        let mut keep = keep.into_iter();
        let mut positions = std::mem::take(&mut self.positions).into_iter();
        self.objects.retain(|_| {
            let position = positions.next();
            let kept = keep.next().unwrap_or(true);
            self.positions.extend(position.filter(|_| kept));
            kept
        });
        self.in_order_of(order::place);
        self.manifest = manifest::manifest_text(&self.objects, &self.positions);
    }

    fn in_order_of<K: Ord>(&mut self, key: impl Fn(&Object, usize) -> K) {
        let objects = std::mem::take(&mut self.objects);
        let positions = std::mem::take(&mut self.positions);
        let mut pairs: Vec<_> = objects.into_iter().zip(positions).collect();
        pairs.sort_by_cached_key(|(object, position)| key(object, *position));
        (self.objects, self.positions) = pairs.into_iter().unzip();
    }
}
