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
        release::{self, Gate, GateInput, Record, Release, ReleaseError, ReleaseState},
        session,
    },
    render::{self, Hook, Object, Rendered, engine::Engine},
};

/// What a record's chart says of its bundle and a removal or collection goes by, with what it means where it does not
/// say it. The commit is only told.
const FACTS: [(&str, &str); 3] =
    [(keys::AGENT_NAMESPACE, ""), (keys::SERVICE_ACCOUNT, ""), (keys::KEEP_RESOURCES, "false")];

/// Whether the newest revision is what is wanted: the same objects and hooks, from the same version of the chart, and
/// the same facts about the bundle. Its text may be Helm's or Fleet's agent's, which quote otherwise: what it says is
/// compared.
pub(super) async fn is_as_wanted(engine: &Engine, rendered: &Rendered, history: &[Record]) -> bool {
    let Some(Ok(stored)) = history.last().map(|record| &record.release) else { return false };
    let fact = |key: &str| rendered.chart["metadata"]["annotations"][key].as_str();
    stored.chart["metadata"]["version"] == rendered.chart["metadata"]["version"]
        && FACTS.iter().all(|(key, unsaid)| {
            stored.chart_annotation(key).unwrap_or(unsaid) == fact(key).unwrap_or(unsaid)
        })
        && has_objects(engine, stored, rendered).await
        && has_hooks(engine, stored, &rendered.hooks).await
}

async fn has_objects(engine: &Engine, stored: &Release, rendered: &Rendered) -> bool {
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

async fn has_hooks(engine: &Engine, stored: &Release, wanted: &[Hook]) -> bool {
    if stored.hooks().is_empty() && wanted.is_empty() {
        return true;
    }
    let wanted: Vec<Value> = wanted.iter().map(Hook::record_json).collect();
    let (stored, wanted) =
        tokio::join!(render::parse_hooks(engine, stored.hooks()), render::parse_hooks(engine, &wanted));
    let values = |hooks: Vec<Hook>| -> Vec<Value> {
        let mut objects: Vec<Object> = hooks.into_iter().map(|hook| hook.object).collect();
        objects.sort_by(|one, other| {
            [&one.kind, &one.namespace, &one.name].cmp(&[&other.kind, &other.namespace, &other.name])
        });
        objects.into_iter().map(|object| unmarked(object.value)).collect()
    };
    matches!((stored.map(values), wanted.map(values)), (Ok(stored), Ok(wanted)) if stored == wanted)
}

/// A hook without Fleet's marks: its agent put them on hooks only since it has Helm 4.
fn unmarked(mut object: Value) -> Value {
    for (place, mark) in [("labels", keys::HASH_LABEL), ("annotations", keys::ID_ANNOTATION)] {
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { break };
        if let Some(marks) = metadata.get_mut(place).and_then(Value::as_object_mut) {
            marks.remove(mark);
            if marks.is_empty() {
                metadata.remove(place);
            }
        }
    }
    object
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        downstream::release::fixtures::{Draft, record},
        render::{HookEvent, engine::EngineConfig},
    };

    const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n";
    const HOOK: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: h\n  labels: {objectset.rio.cattle.io/hash: x}\n  \
                        annotations: {helm.sh/hook: post-install, objectset.rio.cattle.io/id: y}\ndata: {n: \"1\"}\n";

    /// Keeps its objects when told so, with this hook.
    fn wanted(keeps: bool, hook: &str) -> Rendered {
        let annotations = json!({keys::BUNDLE_ID: "b", keys::AGENT_NAMESPACE: "agents", keys::SERVICE_ACCOUNT: "",
            keys::KEEP_RESOURCES: keeps.to_string(), keys::COMMIT: "new"});
        let hooks = (!hook.is_empty()).then(|| Hook {
            object: Object {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                namespace: String::new(),
                name: "h".into(),
                value: Value::Null,
            },
            path: "b/templates/h.yaml".into(),
            events: vec![HookEvent::PostInstall],
            weight: 0,
            delete_policies: Vec::new(),
            output_log_policies: Vec::new(),
            manifest: hook.to_owned(),
        });
        Rendered {
            manifest: MAP.to_owned(),
            chart: json!({"metadata": {"name": "b", "annotations": annotations}}),
            hooks: hooks.into_iter().collect(),
            ..Rendered::default()
        }
    }

    fn stored() -> Draft {
        record(1, "deployed")
            .manifest(MAP)
            .annotated(keys::AGENT_NAMESPACE, "agents")
            .annotated(keys::COMMIT, "old")
    }

    #[tokio::test]
    async fn only_a_release_with_the_same_objects_hooks_and_facts_is_adopted() {
        let engine = Engine::start(EngineConfig::default()).unwrap();
        // As an agent before Helm 4 has it, in another's writing, and as it is once it has run.
        let plain = "kind: ConfigMap\napiVersion: v1\ndata: {n: '1'}\n\
                     metadata: {annotations: {helm.sh/hook: post-install}, name: 'h'}\n";
        let hooked = || {
            stored().hooked(
                json!([{"name": "h", "kind": "ConfigMap", "manifest": plain, "events": ["post-install"],
                "delete_policies": ["before-hook-creation"], "last_run": {"phase": "Succeeded"}}]),
            )
        };
        for (release, rendered, expected) in [
            (stored(), wanted(false, ""), true),
            (
                stored().manifest("kind: ConfigMap\napiVersion: 'v1'\nmetadata: {name: m}\n"),
                wanted(false, ""),
                true,
            ),
            (
                stored().manifest("kind: ConfigMap\napiVersion: v1\nmetadata: {name: n}\n"),
                wanted(false, ""),
                false,
            ),
            (stored().annotated(keys::SERVICE_ACCOUNT, ""), wanted(false, ""), true),
            (stored().annotated(keys::KEEP_RESOURCES, "false"), wanted(false, ""), true),
            (stored(), wanted(true, ""), false),
            (stored().annotated(keys::KEEP_RESOURCES, "true"), wanted(true, ""), true),
            (stored().annotated(keys::KEEP_RESOURCES, "true"), wanted(false, ""), false),
            (stored().annotated(keys::SERVICE_ACCOUNT, "deployer"), wanted(false, ""), false),
            (stored().annotated(keys::AGENT_NAMESPACE, "elsewhere"), wanted(false, ""), false),
            (hooked(), wanted(false, HOOK), true),
            (hooked(), wanted(false, &HOOK.replace("post-install", "post-upgrade")), false),
            (hooked(), wanted(false, &HOOK.replace("\"1\"", "\"2\"")), false),
            (hooked(), wanted(false, ""), false),
            (stored(), wanted(false, HOOK), false),
        ] {
            let history = [release.stored()];
            let told = format!("{:?} {:?}", history[0].release, rendered.hooks);
            assert_eq!(is_as_wanted(&engine, &rendered, &history).await, expected, "{told}");
        }
    }
}
