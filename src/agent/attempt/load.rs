// SPDX-License-Identifier: Apache-2.0
//! What a deployment is made of: the bundle's files, its values, and what its templates may ask of release and
//! cluster.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{AttemptError, Run};
use crate::{
    api::{BundleDeployment, BundleDeploymentOptions, DeploymentId, keys, manifest::Manifest},
    downstream::{
        Downstream,
        lookup::LiveLookup,
        references::LiveReferences,
        release::{Operation, Record, Status, operation},
    },
    render::{
        self,
        engine::{Capabilities, Engine, Lookup, ReleaseFacts},
        values,
    },
    upstream::Upstream,
};

/// What is rendered, and where what it takes is read.
pub(super) struct Source<'a> {
    pub name: &'a str,
    pub object: &'a BundleDeployment,
    pub options: &'a BundleDeploymentOptions,
    /// The release's namespace and name.
    pub namespace: &'a str,
    pub release: &'a str,
    /// The deployment id.
    pub deployment: &'a str,
    pub scope: &'a str,
    pub agent_namespace: &'a str,
    pub upstream: &'a Upstream,
    pub downstream: &'a Downstream,
    pub engine: &'a Engine,
}

/// Everything that is rendered.
pub(super) struct Inputs {
    manifest: Manifest,
    release: ReleaseFacts,
    capabilities: Arc<Capabilities>,
    lookup: Arc<dyn Lookup>,
    values: Map<String, Value>,
    previous_values: Option<Map<String, Value>>,
}

impl Inputs {
    /// Whether nothing of the release was ever deployed.
    pub(super) fn is_install(&self) -> bool {
        !self.release.is_upgrade
    }

    /// The order to render it.
    pub(super) fn job<'a>(&'a self, from: &Source<'a>) -> render::Job<'a> {
        render::Job {
            bd_name: from.name,
            options: from.options,
            manifest: &self.manifest,
            scope: from.scope,
            agent_namespace: from.agent_namespace,
            commit: from.object.label(keys::COMMIT),
            release: &self.release,
            capabilities: &self.capabilities,
            lookup: &self.lookup,
            values: &self.values,
            previous_values: self.previous_values.as_ref(),
        }
    }
}

impl Run {
    /// What this deployment is rendered from.
    pub(super) fn source(&self) -> Source<'_> {
        let ctx = &self.job.ctx;
        Source {
            name: &self.job.name,
            object: &self.job.object,
            options: &self.options,
            namespace: &self.namespace,
            release: &self.release,
            deployment: &self.job.claim.deployment,
            scope: &ctx.scope,
            agent_namespace: &ctx.agent_namespace,
            upstream: &ctx.upstream,
            downstream: &self.downstream,
            engine: &ctx.engine,
        }
    }
}

impl Source<'_> {
    /// Reads all of it. The cluster is asked for nothing that only templates use when there are none.
    pub(super) async fn load(&self) -> Result<Inputs, AttemptError> {
        let (manifest, values) = tokio::try_join!(self.manifest(), self.values())?;
        let downstream = self.downstream;
        let mut inputs = Inputs {
            manifest,
            release: ReleaseFacts {
                name: self.release.to_owned(),
                namespace: self.namespace.to_owned(),
                revision: 1,
                is_upgrade: false,
            },
            capabilities: Arc::default(),
            lookup: Arc::new(LiveLookup::new(downstream.clone())),
            values,
            previous_values: None,
        };
        if render::has_templates(&inputs.manifest, self.options) {
            inputs.capabilities = downstream.kinds.capabilities().await.map_err(AttemptError::Kinds)?;
            let history = downstream.store.history(self.namespace, self.release).await;
            inputs.follow(&history.map_err(AttemptError::Release)?);
        }
        Ok(inputs)
    }

    /// The options' values, or those of the values Secret, with the references laid over.
    async fn values(&self) -> Result<Map<String, Value>, AttemptError> {
        let expected = &self.object.spec.values_hash;
        let own = if expected.is_empty() {
            self.options.helm.as_ref().and_then(|helm| helm.values.clone()).unwrap_or_default()
        } else {
            let secret = self.upstream.values_secret(self.name).await.map_err(AttemptError::LoadValues)?;
            values::of_secret(&secret, expected).map_err(AttemptError::Values)?
        };
        let references = LiveReferences(&self.downstream.server);
        values::with_references(self.engine, own, self.options, self.namespace, &references)
            .await
            .map_err(AttemptError::Values)
    }

    async fn manifest(&self) -> Result<Manifest, AttemptError> {
        let id = DeploymentId::parse(self.deployment).manifest_id;
        let content = self.upstream.content(&id).await.map_err(AttemptError::Load)?;
        Manifest::from_content(&content).map_err(|source| AttemptError::Content { id, source })
    }
}

impl Inputs {
    /// Takes the place of the next revision after these, the oldest first: an upgrade if anything of this release
    /// was ever deployed. An interrupted first install is done over as an install.
    fn follow(&mut self, history: &[Record]) {
        let Some(last) = history.last() else { return };
        self.release.revision = last.revision + 1;
        self.release.is_upgrade = operation(history) == Operation::Upgrade;
        let newest = |wanted: Status| history.iter().rev().find(|record| record.status == wanted);
        self.previous_values = newest(Status::Deployed)
            .or_else(|| newest(Status::Superseded))
            .and_then(|record| record.release.as_ref().ok())
            .and_then(|release| release.config.as_ref()?.as_object().cloned());
    }
}
