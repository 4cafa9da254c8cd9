// SPDX-License-Identifier: Apache-2.0
//! The gate: the release record that is created before the first object, and whoever may stand in its way.

use serde_json::Value;

use super::{AttemptError, Run, place::KnownLive};
use crate::{
    agent::around,
    api::{BundleDeployment, keys},
    downstream::{
        apply,
        objects::Identity,
        release::{self, Gate, GateInput, Record, ReleaseError, ReleaseState},
        session,
    },
    render::{self, Hook, Object, Rendered, engine::Engine},
};

/// Whether the newest revision is what is wanted: the same objects, from the same version of the chart. Its text may be
/// Helm's or Fleet's agent's, which quote otherwise: what it says is compared.
pub(super) async fn is_as_wanted(engine: &Engine, rendered: &Rendered, history: &[Record]) -> bool {
    let Some(Ok(stored)) = history.last().map(|record| &record.release) else { return false };
    if stored.chart["metadata"]["version"] != rendered.chart["metadata"]["version"] {
        return false;
    }
    if stored.manifest == rendered.manifest {
        return true;
    }
    let (stored, wanted) = tokio::join!(
        render::parse_manifest(engine, &stored.manifest),
        render::parse_manifest(engine, &rendered.manifest)
    );
    let values =
        |objects: Vec<Object>| -> Vec<Value> { objects.into_iter().map(|object| object.value).collect() };
    matches!((stored.map(values), wanted.map(values)), (Ok(stored), Ok(wanted)) if stored == wanted)
}

/// Whether a person said that nothing may be left.
fn may_be_empty(object: &BundleDeployment) -> bool {
    let annotations = object.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(keys::ALLOW_EMPTY_ANNOTATION)).is_some_and(|value| value == "true")
}

impl Run {
    /// Opens the next revision, or adopts the one that is already as wanted.
    pub(super) async fn gate(&self, rendered: &Rendered) -> Result<Gate, AttemptError> {
        let (store, bundle) = (&self.downstream.store, &*self.job.name);
        let history = store.history(&self.namespace, &self.release).await.map_err(AttemptError::Release)?;
        let others = history.iter().filter_map(Record::stamp).map(|stamp| stamp.uid);
        let _ = self.earlier.set(others.filter(|uid| *uid != self.fence.stamp.uid).collect());
        let as_wanted = self.is_settled() && is_as_wanted(&self.job.ctx.engine, rendered, &history).await;
        if let ReleaseState::InSync { .. } = release::state(&history, bundle, |_| as_wanted) {
            return Gate::adopt(store, &self.fence, bundle, history).await.map_err(AttemptError::Release);
        }
        self.not_emptied(rendered, &history).await?;
        self.may_see(rendered, &history).await?;
        self.check_owners(rendered, &history).await?;
        match self.open(rendered, history, false, false).await {
            Err(ReleaseError::ForeignRun { record, status, resource_version }) => {
                let key = format!("{record}@{resource_version}");
                if !self.job.ctx.stood_still(key, self.job.ctx.protocol.claim_timeout) {
                    let source = ReleaseError::ForeignRun { record, status, resource_version };
                    return Err(AttemptError::Release(source));
                }
                let history =
                    store.history(&self.namespace, &self.release).await.map_err(AttemptError::Release)?;
                self.open(rendered, history, true, false).await.map_err(AttemptError::Release)
            }
            Err(ReleaseError::Uninstalling { record, guard }) => {
                if !self.guard_is_dead(&record, guard.as_ref()).await {
                    return Err(AttemptError::Release(ReleaseError::Uninstalling { record, guard }));
                }
                let history =
                    store.history(&self.namespace, &self.release).await.map_err(AttemptError::Release)?;
                self.open(rendered, history, false, true).await.map_err(AttemptError::Release)
            }
            other => other.map_err(AttemptError::Release),
        }
    }

    /// Refuses to remove all that is deployed because nothing is rendered: that is rather an accident on the way here than
    /// a wish.
    async fn not_emptied(&self, rendered: &Rendered, history: &[Record]) -> Result<(), AttemptError> {
        if !rendered.objects.is_empty() || may_be_empty(&self.job.object) {
            return Ok(());
        }
        let newest = history.iter().rfind(|record| record.status == release::Status::Deployed);
        let status = self.job.object.status.as_ref();
        match newest {
            // Nobody can tell what it holds.
            Some(record) if record.release.is_err() => Err(AttemptError::Emptied(None)),
            None if status.is_some_and(|status| !status.release.is_empty()) => {
                Err(AttemptError::Emptied(None))
            }
            _ => match self.objects_of(newest).await?.len() {
                0 => Ok(()),
                deployed => Err(AttemptError::Emptied(Some(deployed))),
            },
        }
    }

    /// Refuses objects of others before there is a revision.
    async fn check_owners(&self, rendered: &Rendered, history: &[Record]) -> Result<(), AttemptError> {
        let ctx = &self.job.ctx;
        let owned = self.objects_of(release::deployed(history)).await?;
        let previous = Identity::of_all(&owned, &self.downstream.kinds, &self.namespace);
        let owner = self.owner(Some(release::operation(history)), &previous);
        let known = KnownLive(&ctx.live);
        apply::check_owners(&self.downstream, &owner, &rendered.objects, Some(&known))
            .await
            .map_err(AttemptError::Apply)
    }

    /// An account that may not see what it is to deploy makes no revision: a failed one would list what it never had.
    async fn may_see(&self, rendered: &Rendered, history: &[Record]) -> Result<(), AttemptError> {
        if !self.downstream.server.acts_as_another() {
            return Ok(());
        }
        let owned = self.objects_of(release::deployed(history)).await?;
        let previous = Identity::of_all(&owned, &self.downstream.kinds, &self.namespace);
        let owner = self.owner(Some(release::operation(history)), &previous);
        let accessible = apply::accessible(&self.downstream, &owner, &rendered.objects);
        accessible.await.map_err(AttemptError::Apply)
    }

    async fn open(
        &self,
        rendered: &Rendered,
        history: Vec<Record>,
        fail_foreign: bool,
        over_removal: bool,
    ) -> Result<Gate, ReleaseError> {
        let helm = self.options.helm.as_ref();
        let input = GateInput {
            namespace: &self.namespace,
            name: &self.release,
            bundle: &self.job.name,
            chart: rendered.chart.clone(),
            manifest: rendered.manifest.clone(),
            values: Some(rendered.values.clone()).filter(|values| !values.is_empty()).map(Value::Object),
            hooks: (!rendered.hooks.is_empty())
                .then(|| rendered.hooks.iter().map(Hook::record_json).collect()),
            replaces: self.forces(),
            takes: helm.is_some_and(|helm| helm.take_ownership),
            history,
            create_namespace: self
                .options
                .create_namespace
                .unwrap_or(true)
                .then(|| around::forced(&self.options).of_new(&self.namespace)),
            fail_foreign,
            over_removal,
            max_history: helm.map_or(0, |helm| usize::try_from(helm.max_history).unwrap_or(0)),
        };
        Gate::open(&self.downstream.store, &self.fence, input).await
    }

    /// A removal that was given up, or whose replica is gone, was not heard of for TTL, or has gone no further for the
    /// claim timeout, may be deployed over. What is waited for is its end, not its harmlessness: it deletes nothing that
    /// carries our stamp.
    async fn guard_is_dead(&self, record: &str, guard: Option<&release::Guard>) -> bool {
        let ctx = &self.job.ctx;
        let Some(guard) = guard else {
            // Helm's own removal: it has the time that a foreign run has.
            return ctx.stood_still(format!("{record}/removal"), ctx.protocol.claim_timeout);
        };
        // A living replica may have let go of it: seeing the unit made anew, it does not come back to the removal.
        if guard.is_given_up() || ctx.stood_still(format!("{record}/{guard}"), ctx.protocol.claim_timeout) {
            return true;
        }
        let client = ctx.downstream.server.client().clone();
        match session::read_session(client, &ctx.agent_namespace, &guard.session).await {
            Ok(None) => true,
            Ok(Some(session)) => {
                ctx.stood_still(format!("{}@{}", guard.session, session.version), ctx.protocol.ttl)
            }
            Err(_) => false,
        }
    }
}
