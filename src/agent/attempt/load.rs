// SPDX-License-Identifier: Apache-2.0
//! What a deployment is made of: the bundle's files, its values, and what its templates may ask of release and
//! cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use serde_json::{Map, Value};

use super::{AttemptError, Run};
use crate::{
    api::{DeploymentId, HelmChartOptions, keys, manifest::Manifest},
    downstream::{
        fence::Fenced,
        lookup::LiveLookup,
        references::LiveReferences,
        release::{Operation, Record, Status, operation},
    },
    render::{
        self,
        engine::{Capabilities, Lookup, ReleaseFacts},
        values,
    },
    upstream::sources::{Access, Data, SourceError},
};

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
    pub(super) fn job<'a>(&'a self, run: &'a Run) -> render::Job<'a> {
        render::Job {
            bd_name: &run.job.name,
            options: &run.options,
            manifest: &self.manifest,
            scope: &run.job.ctx.scope,
            agent_namespace: &run.job.ctx.agent_namespace,
            commit: run.job.object.label(keys::COMMIT),
            release: &self.release,
            capabilities: &self.capabilities,
            lookup: &self.lookup,
            values: &self.values,
            previous_values: self.previous_values.as_ref(),
        }
    }
}

impl Run {
    /// Reads all of it. The cluster is asked for nothing that only templates use when there are none.
    pub(super) async fn load(&self) -> Result<Inputs, AttemptError> {
        let (manifest, values) = tokio::try_join!(self.manifest(), self.values())?;
        let downstream = &self.job.ctx.downstream;
        let mut inputs = Inputs {
            manifest,
            release: ReleaseFacts {
                name: self.release.clone(),
                namespace: self.namespace.clone(),
                revision: 1,
                is_upgrade: false,
            },
            capabilities: Arc::default(),
            lookup: Arc::new(LiveLookup::new(downstream.clone())),
            values,
            previous_values: None,
        };
        if render::has_templates(&inputs.manifest, &self.options) {
            inputs.capabilities = downstream.kinds.capabilities().await.map_err(AttemptError::Kinds)?;
            let history = downstream.store.history(&self.namespace, &self.release).await;
            inputs.follow(&history.map_err(AttemptError::Release)?);
        }
        Ok(inputs)
    }

    /// The options' values, or those of the values Secret, with the references laid over.
    async fn values(&self) -> Result<Map<String, Value>, AttemptError> {
        let ctx = &self.job.ctx;
        let expected = &self.job.object.spec.values_hash;
        let own = if expected.is_empty() {
            self.options.helm.as_ref().and_then(|helm| helm.values.clone()).unwrap_or_default()
        } else {
            let secret =
                ctx.upstream.values_secret(&self.job.name).await.map_err(AttemptError::LoadValues)?;
            values::of_secret(&secret, expected).map_err(AttemptError::Values)?
        };
        let references = LiveReferences(&ctx.downstream.server);
        values::with_references(&ctx.engine, own, &self.options, &self.namespace, &references)
            .await
            .map_err(AttemptError::Values)
    }

    /// The files, from one of three places, in Fleet's order.
    async fn manifest(&self) -> Result<Arc<Manifest>, AttemptError> {
        let (ctx, spec) = (&self.job.ctx, &self.job.object.spec);
        // Empty for a HelmOp, which names its chart instead.
        let id = DeploymentId::parse(&self.job.claim.deployment).manifest_id;
        if spec.oci_contents {
            let (reference, access) = self.storage(&id).await?;
            return self.fetched(ctx.sources.contents(&reference, &access, &id)).await;
        }
        if let Some(options) = &spec.helm_chart_options {
            let helm = self.options.helm.as_ref();
            let helm = helm.ok_or_else(|| {
                AttemptError::Fetch(SourceError::Options("helm options not found".to_owned()))
            })?;
            let access = self.access(options).await?;
            return self.fetched(ctx.sources.chart(helm, &access)).await;
        }
        let content = ctx.upstream.content(&id).await.map_err(AttemptError::Load)?;
        let manifest = Manifest::from_content(&content);
        manifest.map(Arc::new).map_err(|source| AttemptError::Content { id, source })
    }

    /// Where a bundle of this id is stored, and how it is got.
    async fn storage(&self, id: &str) -> Result<(String, Access), AttemptError> {
        let (name, secret) = self.job.ctx.upstream.storage_secret(id).await.map_err(AttemptError::Load)?;
        let kind = secret.type_.clone().unwrap_or_default();
        Access::of_storage(&kind, &data(secret))
            .map_err(|source| AttemptError::Fetch(SourceError::Secret { name, source }))
    }

    /// How a HelmOp's chart is got.
    async fn access(&self, options: &HelmChartOptions) -> Result<Access, AttemptError> {
        let name = options.secret_name.clone();
        let data = match &*name {
            "" => Data::new(),
            name => data(self.job.ctx.upstream.secret(name).await.map_err(AttemptError::Load)?),
        };
        Access::of_helm_op(&data, options)
            .map_err(|source| AttemptError::Fetch(SourceError::Secret { name, source }))
    }

    /// A download takes its time; what makes it needless ends it.
    async fn fetched(
        &self,
        download: impl Future<Output = Result<Arc<Manifest>, SourceError>>,
    ) -> Result<Arc<Manifest>, AttemptError> {
        tokio::select! {
            fetched = download => fetched.map_err(AttemptError::Fetch),
            () = self.fence.cancelled.cancelled() => Err(AttemptError::Fenced(Fenced::Cancelled)),
        }
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
        let newest = |wanted: Status| history.iter().rev().find(|record| record.status == wanted);
        self.previous_values = newest(Status::Deployed)
            .or_else(|| newest(Status::Superseded))
            .and_then(|record| record.release.as_ref().ok())
            .and_then(|release| release.config.as_ref()?.as_object().cloned());
    }
}
