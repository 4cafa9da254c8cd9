// SPDX-License-Identifier: Apache-2.0
//! What a deployment is made of: the bundle's files, its values, and what its templates may ask of release and
//! cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value};

use super::{AttemptError, Run};
use crate::{
    api::{
        BundleDeployment, BundleDeploymentOptions, DeploymentId, HelmChartOptions, keys, manifest::Manifest,
    },
    downstream::{
        Downstream,
        fence::Fenced,
        lookup::LiveLookup,
        references::LiveReferences,
        release::{Operation, Record, operation, standing_values},
    },
    render::{
        self,
        engine::{Capabilities, Engine, Lookup, ReleaseFacts},
        values,
    },
    upstream::{
        Upstream,
        sources::{Access, Data, SourceError, Sources},
    },
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
    pub sources: &'a Sources,
    pub downstream: &'a Downstream,
    pub engine: &'a Engine,
}

/// Where a unit's files are.
pub struct Files<'a> {
    /// The unit.
    pub object: &'a BundleDeployment,
    /// Its options.
    pub options: &'a BundleDeploymentOptions,
    /// The deployment id.
    pub deployment: &'a str,
    /// Contents and Secrets come from there.
    pub upstream: &'a Upstream,
    /// Fetches what is in no Content.
    pub sources: &'a Sources,
}

/// Everything that is rendered.
pub(super) struct Inputs {
    manifest: Arc<Manifest>,
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
            sources: &ctx.sources,
            downstream: &self.downstream,
            engine: &ctx.engine,
        }
    }

    /// Reads all of it. A download takes its time; what makes it needless ends it.
    pub(super) async fn inputs(&self) -> Result<Inputs, AttemptError> {
        let source = self.source();
        tokio::select! {
            inputs = source.load() => inputs,
            () = self.fence.cancelled.cancelled() => Err(AttemptError::Fenced(Fenced::Cancelled)),
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

    async fn manifest(&self) -> Result<Arc<Manifest>, AttemptError> {
        let Self { object, options, deployment, upstream, sources, .. } = *self;
        Files { object, options, deployment, upstream, sources }.manifest().await
    }
}

impl Files<'_> {
    /// The files, from one of three places, in Fleet's order.
    ///
    /// # Errors
    /// They cannot be read, or are not those of the id.
    pub async fn manifest(&self) -> Result<Arc<Manifest>, AttemptError> {
        let spec = &self.object.spec;
        // Empty for a HelmOp, which names its chart instead.
        let id = DeploymentId::parse(self.deployment).manifest_id;
        if spec.oci_contents {
            let (reference, access) = self.storage(&id).await?;
            return self.sources.contents(&reference, &access, &id).await.map_err(AttemptError::Fetch);
        }
        if let Some(options) = &spec.helm_chart_options {
            let helm = self.options.helm.as_ref().ok_or_else(|| {
                AttemptError::Fetch(SourceError::Options("helm options not found".to_owned()))
            })?;
            let access = self.access(options).await?;
            return self.sources.chart(helm, &access).await.map_err(AttemptError::Fetch);
        }
        let content = self.upstream.content(&id).await.map_err(AttemptError::Load)?;
        let manifest = Manifest::from_content(&content);
        manifest.map(Arc::new).map_err(|source| AttemptError::Content { id, source })
    }

    /// Where a bundle of this id is stored, and how it is got.
    async fn storage(&self, id: &str) -> Result<(String, Access), AttemptError> {
        let (name, secret) = self.upstream.storage_secret(id).await.map_err(AttemptError::Load)?;
        let kind = secret.type_.clone().unwrap_or_default();
        Access::of_storage(&kind, &data(secret))
            .map_err(|source| AttemptError::Fetch(SourceError::Secret { name, source }))
    }

    /// How a HelmOp's chart is got.
    async fn access(&self, options: &HelmChartOptions) -> Result<Access, AttemptError> {
        let name = options.secret_name.clone();
        let data = match &*name {
            "" => Data::new(),
            name => data(self.upstream.secret(name).await.map_err(AttemptError::Load)?),
        };
        Access::of_helm_op(&data, options)
            .map_err(|source| AttemptError::Fetch(SourceError::Secret { name, source }))
    }
}

fn data(secret: Secret) -> Data {
    secret.data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, bytes.0)).collect()
}

impl Inputs {
    /// Takes the place of the next revision after these, the oldest first: an upgrade if anything of this release
    /// was ever deployed. An interrupted first install is done over as an install.
    fn follow(&mut self, history: &[Record]) {
        let Some(last) = history.last() else { return };
        self.release.revision = last.revision + 1;
        self.release.is_upgrade = operation(history) == Operation::Upgrade;
        self.previous_values = standing_values(history).cloned();
    }
}
