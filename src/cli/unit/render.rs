// SPDX-License-Identifier: Apache-2.0
//! Renders a unit as the agent would, for the next revision of its release.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use serde_json::Value;

use super::{Unit, UnitFlags};
use crate::{
    api::{self, keys},
    cli::error::CliError,
    downstream::{
        Downstream,
        lookup::LiveLookup,
        references::LiveReferences,
        release::{Operation, Record, operation, standing_values},
    },
    render::{
        self, Kinds, Rendered, Scope,
        engine::{Capabilities, Engine, Lookup, ReleaseFacts},
        values::{self, Contents, Holder, ReadError, References},
    },
};

/// What templates see as the cluster's version when there is none: that of the API types this program knows.
const KUBE_VERSION: &str = "v1.36.0";

/// Kinds outside of namespaces that every cluster serves: what is known without one.
const CLUSTER_SCOPED: [&str; 14] = [
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "CSIDriver",
    "IngressClass",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PriorityClass",
    "RuntimeClass",
    "StorageClass",
    "ValidatingWebhookConfiguration",
];

/// What a unit is rendered with.
pub struct Inputs<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// The cluster that is deployed to, where it may be asked.
    pub below: Option<&'a Downstream>,
    /// The agent.
    pub flags: &'a UnitFlags,
}

/// Renders, and gives the release's history along; the options' namespace is applied.
///
/// # Errors
/// What a deployment would fail with before its first write.
pub async fn rendered(inputs: &Inputs<'_>, unit: &Unit) -> Result<(Rendered, Vec<Record>), CliError> {
    let options = unit.bd.options();
    let name = unit.name();
    let namespace = api::release_namespace(&options).to_owned();
    let release = api::release_name(&name, &options);
    let rendering = format!("render bundle {name}");
    let history = match inputs.below {
        Some(below) => {
            let history = below.store.history(&namespace, &release).await;
            history.map_err(CliError::failed(format!("read the history of release {namespace}/{release}")))?
        }
        None => Vec::new(),
    };
    let own = match &unit.values {
        Some(values) => values.clone(),
        None => options.helm.as_ref().and_then(|helm| helm.values.clone()).unwrap_or_default(),
    };
    let live;
    let references: &dyn References = match inputs.below {
        Some(below) => {
            live = LiveReferences(&below.server);
            &live
        }
        None => &Blind,
    };
    let values = values::with_references(inputs.engine, own, &options, &namespace, references).await;
    let values = values.map_err(CliError::failed(&*rendering))?;
    let capabilities = match inputs.below {
        Some(below) => below
            .kinds
            .capabilities()
            .await
            .map_err(CliError::failed("ask the downstream cluster what it serves"))?,
        None => Arc::new(Capabilities { kube_version: KUBE_VERSION.to_owned(), api_versions: Vec::new() }),
    };
    let lookup: Arc<dyn Lookup> = match inputs.below {
        Some(below) => Arc::new(LiveLookup::new(below.clone())),
        None => Arc::new(Blind),
    };
    let job = render::Job {
        bd_name: &name,
        options: &options,
        manifest: &unit.manifest,
        scope: &inputs.flags.agent_scope,
        agent_namespace: &inputs.flags.agent_namespace,
        commit: unit.bd.label(keys::COMMIT),
        release: &ReleaseFacts {
            name: release,
            namespace,
            revision: history.last().map_or(1, |record| record.revision + 1),
            is_upgrade: operation(&history) == Operation::Upgrade,
        },
        capabilities: &capabilities,
        lookup: &lookup,
        values: &values,
        previous_values: standing_values(&history),
    };
    let mut rendered = render::render(inputs.engine, job).await.map_err(CliError::failed(&*rendering))?;
    if !options.target_namespace.is_empty() {
        let kinds: &dyn Kinds = match inputs.below {
            Some(below) => &below.kinds,
            None => &Blind,
        };
        rendered.force_namespace(&options.target_namespace, kinds).map_err(CliError::failed(&*rendering))?;
    }
    Ok((rendered, history))
}

/// Stands for a cluster that is not asked.
struct Blind;

impl Lookup for Blind {
    fn lookup<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, String>> {
        async { Ok(None) }.boxed()
    }
}

impl References for Blind {
    fn read<'a>(&'a self, _: Holder, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Contents, ReadError>> {
        async { Err("--downstream-kubeconfig is needed for that".into()) }.boxed()
    }
}

impl Kinds for Blind {
    fn scope(&self, _: &str, kind: &str) -> Option<Scope> {
        let cluster = CLUSTER_SCOPED.contains(&kind);
        Some(if cluster { Scope::Cluster } else { Scope::Namespaced })
    }
}
