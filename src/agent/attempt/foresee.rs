// SPDX-License-Identifier: Apache-2.0
//! What a replica would do with a unit that nobody claims yet, without doing it: for people who move in.
//!
//! The questions are those of the claim and the gate, asked of the same functions.

use serde::Serialize;

use super::{AttemptError, load::Source, opening};
use crate::{
    agent::dependencies,
    api::{self, BundleDeployment, ReleaseId, names},
    downstream::{
        Downstream,
        release::{self, Record, ReleaseState},
    },
    protocol::Gate,
    render::{self, engine::Engine},
    upstream::{Upstream, snapshot, sources::Sources},
};

/// Where a unit is looked at.
pub struct Outlook<'a> {
    /// Contents come from there.
    pub upstream: &'a Upstream,
    /// Fetches bundles that are in no Content.
    pub sources: &'a Sources,
    /// Releases are there.
    pub downstream: &'a Downstream,
    /// Reads manifests.
    pub engine: &'a Engine,
    /// The agent's scope, or empty.
    pub scope: &'a str,
    /// The agent's namespace.
    pub agent_namespace: &'a str,
}

/// What would become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "action", content = "why")]
pub enum Prospect {
    /// No claim, no write; it is only looked at.
    Untouched(String),
    /// One claim; objects and record get an annotation, no new revision.
    Stamped(String),
    /// One claim and a new revision.
    Redeployed(String),
    /// Nothing for now.
    Waits(String),
    /// A claim and an error.
    Fails(String),
    /// Never.
    Refused(String),
}

/// Foresees. `all` are the units of the cluster namespace, for dependencies.
pub async fn foresee(
    at: &Outlook<'_>,
    unit: &BundleDeployment,
    all: &[BundleDeployment],
) -> Result<Prospect, AttemptError> {
    let name = unit.metadata.name.as_deref().unwrap_or_default();
    let dependencies = dependencies::check(unit, all.iter());
    let latest = snapshot(unit, dependencies.is_err());
    if names::is_agent_bundle(name) {
        return Ok(Prospect::Refused("it carries Fleet's own agent".into()));
    }
    if latest.gate == Gate::Refused {
        return Ok(Prospect::Waits("it is being deleted".into()));
    }
    if latest.slot.is_open() {
        let holder = latest.slot.claim().map_or("somebody", |claim| &claim.holder.0);
        return Ok(Prospect::Waits(format!("{holder} has a claim on it")));
    }
    let options = unit.options().into_owned();
    let (namespace, release) = (api::release_namespace(&options), api::release_name(name, &options));
    let place = format!("{namespace}/{release}");
    let store = &at.downstream.store;
    if !latest.outdated {
        if unit.spec.deployment_id.is_empty() {
            return Ok(Prospect::Waits("it has no deployment id yet".into()));
        }
        let Ok(stands) = latest.release.parse::<ReleaseId>() else {
            return Ok(Prospect::Untouched("its status says that it is deployed".into()));
        };
        let history = store.history(&stands.namespace, &stands.name).await.map_err(AttemptError::Release)?;
        return Ok(if history.iter().any(|record| record.revision == stands.revision) {
            Prospect::Untouched(format!("its status says that it is deployed, as release {stands}"))
        } else {
            Prospect::Redeployed(format!("its release record {stands} is gone"))
        });
    }
    match (latest.gate, dependencies) {
        (Gate::Held, _) => return Ok(Prospect::Waits(held(unit).into())),
        (_, Err(text)) => return Ok(Prospect::Waits(text)),
        (Gate::Open | Gate::Blocked | Gate::Refused, Ok(())) => {}
    }
    let history = store.history(namespace, &release).await.map_err(AttemptError::Release)?;
    let applied = unit.status.as_ref().map_or("", |status| status.applied_deployment_id.as_str());
    let rendered = if applied.is_empty() && !history.is_empty() {
        let source = Source {
            name,
            object: unit,
            options: &options,
            namespace,
            release: &release,
            deployment: &unit.spec.deployment_id,
            scope: at.scope,
            agent_namespace: at.agent_namespace,
            upstream: at.upstream,
            sources: at.sources,
            downstream: at.downstream,
            engine: at.engine,
        };
        let inputs = source.load().await?;
        let mut rendered =
            render::render(at.engine, inputs.job(&source)).await.map_err(AttemptError::Render)?;
        let kinds = &at.downstream.kinds;
        if !options.target_namespace.is_empty() {
            let hooks = rendered.hooks.iter().map(|hook| &hook.object);
            let all = rendered.objects.iter().chain(hooks);
            let wanted = all.map(|object| (&*object.api_version, &*object.kind));
            kinds.prepare(wanted).await.map_err(AttemptError::Kinds)?;
            rendered.force_namespace(&options.target_namespace, kinds).map_err(AttemptError::Render)?;
        }
        Some(rendered)
    } else {
        None
    };
    let same = match &rendered {
        Some(rendered) => opening::is_as_wanted(at.engine, rendered, &history).await,
        None => false,
    };
    Ok(judged(&history, name, applied, &place, release::state(&history, name, |_| same)))
}

fn held(unit: &BundleDeployment) -> &'static str {
    match &unit.spec {
        spec if spec.paused => "it is paused",
        spec if spec.off_schedule => "it is off schedule",
        _ => "it waits for its values",
    }
}

/// From the state of the release to what comes next, once the unit counts as not deployed.
fn judged(history: &[Record], bundle: &str, applied: &str, place: &str, state: ReleaseState) -> Prospect {
    match state {
        ReleaseState::Absent => Prospect::Redeployed(format!("there is no release {place}: a first install")),
        ReleaseState::InSync { revision } => Prospect::Stamped(format!(
            "its status is empty, and revision {revision} of release {place} is what is wanted"
        )),
        ReleaseState::OutOfDate { revision } if applied.is_empty() => Prospect::Redeployed(format!(
            "its status is empty, and revision {revision} of release {place} is not what is wanted"
        )),
        ReleaseState::OutOfDate { .. } => {
            Prospect::Redeployed(format!("its status says {applied}, and something else is wanted"))
        }
        ReleaseState::Failed { revision, reason } => {
            Prospect::Redeployed(format!("revision {revision} of release {place} failed: {reason}"))
        }
        ReleaseState::Uninstalled { .. } => Prospect::Redeployed(format!("release {place} was uninstalled")),
        ReleaseState::Interrupted { revision, .. } => Prospect::Redeployed(format!(
            "revision {revision} of release {place} was begun by a replica and not ended"
        )),
        ReleaseState::ForeignRun { revision } => {
            let status = history.last().map(|record| record.status.to_string()).unwrap_or_default();
            Prospect::Waits(format!(
                "revision {revision} of release {place} is {status}, by Helm or Fleet's agent: deployed anew when it \
                 has stood still for the claim timeout"
            ))
        }
        ReleaseState::Uninstalling { .. } => Prospect::Waits(format!("release {place} is being removed")),
        ReleaseState::OtherBundle { bundle: other } => {
            Prospect::Fails(format!("release {place} belongs to bundle {other}, not to {bundle}"))
        }
        ReleaseState::Unreadable { revision } => {
            Prospect::Fails(format!("revision {revision} of release {place} cannot be read"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_a_release_has_its_consequence() {
        let text = |applied: &str, state: ReleaseState| {
            let prospect = judged(&[], "web", applied, "ns/web", state);
            serde_json::to_value(prospect).unwrap()["action"].as_str().unwrap().to_owned()
        };
        assert_eq!(text("", ReleaseState::InSync { revision: 3 }), "stamped");
        assert_eq!(text("", ReleaseState::Absent), "redeployed");
        assert_eq!(text("s-1:a", ReleaseState::OutOfDate { revision: 3 }), "redeployed");
        assert_eq!(text("", ReleaseState::ForeignRun { revision: 3 }), "waits");
        assert_eq!(text("", ReleaseState::OtherBundle { bundle: "api".into() }), "fails");
        assert_eq!(text("", ReleaseState::Unreadable { revision: 1 }), "fails");
    }
}
