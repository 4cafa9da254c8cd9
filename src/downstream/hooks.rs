// SPDX-License-Identifier: Apache-2.0
//! Helm's hooks: made, waited for and deleted at the moments of a release that they name.
//!
//! A hook is not kept in the release, nor watched, pruned or removed with it. Like every object it is created only if
//! it is absent, with the stamp of the claim; what a Job does once it runs cannot be fenced, so that a hook runs at
//! least once: whoever takes over in the middle runs them anew.

use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    Downstream,
    apply::{self, ApplyError, CREATE_ONLY, body},
    completion::{self, Progress, WaitError},
    fence::{Fence, Fenced},
    objects::{Place, is_askable, namespace_of},
    release::{APPLY, Phase, ReleaseError},
    removal::{Fate, RemovalError, Right, remove_one},
    server::{LiveMeta, RequestError},
};
use crate::{
    api::keys,
    protocol::Stamp,
    render::{DeletePolicy, Hook, HookEvent},
    telemetry::chain,
};

/// Tries to create one hook before it is given up (L5).
const ROUNDS: usize = 4;
/// How long a hook may take where the bundle says nothing: Helm's own limit.
pub const TIMEOUT: Duration = Duration::from_secs(300);
const CRD: &str = "CustomResourceDefinition";

/// Who keeps book of the hooks that run.
pub trait Diary: Send {
    /// Hook number `index` of the record stands like this now.
    fn note(&mut self, index: usize, phase: Phase);
    /// Its end is waited for from now on.
    fn waits(&mut self) -> BoxFuture<'_, Result<(), ReleaseError>>;
}

/// Why a hook did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// Its kind is not served, or its name fits no URL. Helm's words.
    #[error("unable to build kubernetes object for {event} hook {path}")]
    Object {
        /// The moment.
        event: &'static str,
        /// The hook's template.
        path: String,
        /// Why.
        #[source]
        source: ApplyError,
    },
    /// Something else of that name exists.
    #[error("warning: Hook {event} {path} failed: {object} exists and is no hook of this release")]
    Foreign {
        /// The moment.
        event: &'static str,
        /// The hook's template.
        path: String,
        /// The object.
        object: String,
    },
    /// It could not be created. Helm's words.
    #[error("warning: Hook {event} {path} failed")]
    Create {
        /// The moment.
        event: &'static str,
        /// The hook's template.
        path: String,
        /// Why.
        #[source]
        source: ApplyError,
    },
    /// It ended badly or not in time, or what was there before does not go.
    #[error(transparent)]
    Wait(WaitError),
    /// What was there before could not be deleted, or the hook itself, when that was due.
    #[error(transparent)]
    Delete(RemovalError),
    /// That it runs could not be recorded.
    #[error(transparent)]
    Record(ReleaseError),
    /// The claim does not allow it.
    #[error("the hook {path} is not run")]
    Fenced {
        /// The hook's template.
        path: String,
        /// Why.
        #[source]
        source: Fenced,
    },
}

impl HookError {
    /// Whether only another content can help: the API server takes it never, or it was given its time in vain. A hook
    /// that failed is run again: as a rule it waits for its surroundings.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Object { source, .. } | Self::Create { source, .. } => source.is_permanent(),
            Self::Wait(WaitError::NotDone { late, .. }) => *late,
            Self::Wait(WaitError::StillThere { .. } | WaitError::Cancelled)
            | Self::Foreign { .. }
            | Self::Delete(_)
            | Self::Record(_)
            | Self::Fenced { .. } => false,
        }
    }

    /// The fence's refusal, when it is one.
    pub fn fenced(&self) -> Option<&Fenced> {
        match self {
            Self::Fenced { source, .. } => Some(source),
            Self::Object { source, .. } | Self::Create { source, .. } => source.fenced(),
            Self::Delete(error) => error.fenced(),
            Self::Record(error) => error.fenced(),
            Self::Wait(WaitError::Cancelled) => Some(&Fenced::Cancelled),
            Self::Wait(_) | Self::Foreign { .. } => None,
        }
    }
}

/// Runs the hooks of one release.
pub struct Runner<'a> {
    ctx: &'a Downstream,
    right: Right<'a>,
    stamp: Option<Stamp>,
    namespace: &'a str,
    hash: &'a str,
    timeout: Duration,
    take_ownership: bool,
}

impl<'a> Runner<'a> {
    /// Under a claim. `namespace` is the release's, `hash` the bundle's label, `timeout` each hook's time.
    pub fn claimed(
        ctx: &'a Downstream,
        fence: &'a Fence,
        (namespace, hash): (&'a str, &'a str),
        timeout: Duration,
        take_ownership: bool,
    ) -> Self {
        let stamp = Some(fence.stamp.clone());
        Self { ctx, right: Right::Claim(fence), stamp, namespace, hash, timeout, take_ownership }
    }

    /// Under a removal guard; `stamp` is that of the release that goes.
    pub fn removing(
        ctx: &'a Downstream,
        cancelled: &'a tokio_util::sync::CancellationToken,
        (namespace, hash): (&'a str, &'a str),
        stamp: Option<Stamp>,
    ) -> Self {
        let right = Right::Guard(cancelled);
        Self { ctx, right, stamp, namespace, hash, timeout: TIMEOUT, take_ownership: false }
    }

    /// Whether hooks of this event may take time.
    pub fn waits(hook: &Hook) -> bool {
        matches!(
            (hook.object.kind.as_str(), hook.object.api_version.as_str()),
            ("Job", "batch/v1" | "batch/v1beta1") | ("Pod", "v1")
        )
    }

    /// Runs the hooks of one moment one after the other, by weight, then by name. The first that fails ends it. How
    /// many ran.
    pub async fn run(
        &self,
        hooks: &[Hook],
        event: HookEvent,
        diary: &mut dyn Diary,
    ) -> Result<usize, HookError> {
        let mut due: Vec<(usize, &Hook)> =
            hooks.iter().enumerate().filter(|(_, hook)| hook.events.contains(&event)).collect();
        due.sort_by(|(_, a), (_, b)| (a.weight, &a.object.name).cmp(&(b.weight, &b.object.name)));
        for (place, &(index, hook)) in due.iter().enumerate() {
            let ran = self.run_one(index, hook, event, diary).await;
            match ran {
                Ok(()) => diary.note(index, Phase::Succeeded),
                Err(error) if error.fenced().is_some() => return Err(error),
                Err(error) => {
                    diary.note(index, Phase::Failed);
                    let ended = matches!(error, HookError::Wait(WaitError::NotDone { .. }));
                    let failed = ended.then_some((hook, DeletePolicy::HookFailed));
                    let before = due[..place].iter().map(|(_, hook)| (*hook, DeletePolicy::HookSucceeded));
                    for (hook, policy) in failed.into_iter().chain(before) {
                        if let Err(cause) = self.delete(hook, &policy).await {
                            warn!(object = ?hook.object, cause = chain(&cause), "a hook is not deleted as its policy says");
                        }
                    }
                    return Err(error);
                }
            }
        }
        for (_, hook) in due.iter().rev() {
            self.delete(hook, &DeletePolicy::HookSucceeded).await?;
        }
        Ok(due.len())
    }

    async fn run_one(
        &self,
        index: usize,
        hook: &Hook,
        event: HookEvent,
        diary: &mut dyn Diary,
    ) -> Result<(), HookError> {
        let event = event.as_str();
        let object = &hook.object;
        let unusable = |source| HookError::Object { event, path: hook.path.clone(), source };
        if !is_askable(&object.name) {
            let (kind, name) = (object.kind.clone(), object.name.clone());
            return Err(unusable(ApplyError::Name { kind, name }));
        }
        let kind = self.ctx.kinds.resolve(&object.api_version, &object.kind).await.map_err(|source| {
            let (namespace, name) = (object.namespace.clone(), object.name.clone());
            unusable(ApplyError::Kind { namespace, name, source })
        })?;
        let namespace = namespace_of(&kind, &object.namespace, self.namespace);
        let place = Place { kind: &kind, namespace, name: &object.name };
        let deadline = Instant::now() + self.timeout;
        if hook.has_policy(&DeletePolicy::BeforeHookCreation) && object.kind != CRD {
            self.clear(hook, event, &place, deadline).await?;
        }
        diary.note(index, Phase::Running);
        let live = self.create(hook, event, &place, deadline).await?;
        info!(object = %place, event, "hook created");
        if object.kind == CRD {
            let shown = || apply::is_shown(self.ctx, &object.value["spec"]);
            let crd = [(object.name.as_str(), &live)];
            let established = apply::establish(self.ctx, self.right.cancelled(), &crd, &shown).await;
            return established.map_err(|source| HookError::Create {
                event,
                path: hook.path.clone(),
                source,
            });
        }
        if !completion::runs(&kind) || completion::progress(&kind, &live) == Progress::Done {
            return Ok(());
        }
        diary.waits().await.map_err(HookError::Record)?;
        let uid = live["metadata"]["uid"].as_str();
        completion::completed(self.ctx, &place, uid, deadline, self.right.cancelled())
            .await
            .map_err(HookError::Wait)
    }

    /// Creates it. What an earlier run left under its name, and no policy deleted, makes room: it is run anew, never
    /// taken for the new run.
    async fn create(
        &self,
        hook: &Hook,
        event: &'static str,
        place: &Place<'_>,
        deadline: Instant,
    ) -> Result<Value, HookError> {
        let failed = |source| HookError::Create { event, path: hook.path.clone(), source };
        let refused = |source: RequestError| {
            let source = if place.kind.is("", "Secret") { source.without_values() } else { source };
            failed(ApplyError::Refused { object: place.to_string(), source })
        };
        let stamp = self.stamp.as_ref().map(Stamp::to_string);
        let mut seen: Option<LiveMeta> = None;
        for _ in 0..ROUNDS {
            let found = seen.as_ref().and_then(LiveMeta::stamp);
            self.right
                .pass(found.as_ref(), place)
                .await
                .map_err(|source| HookError::Fenced { path: hook.path.clone(), source })?;
            let overlay = body::Overlay {
                release: None,
                stamp: stamp.as_deref(),
                uid: seen.as_ref().map(|seen| seen.uid.as_str()),
                resource_version: seen.as_ref().map_or(CREATE_ONLY, |seen| &seen.resource_version),
                namespace: place.namespace,
                leave_replicas: false,
            };
            let body = body::bytes(&hook.object.value, &overlay)
                .map_err(|error| refused(RequestError::Unwritable(error)))?;
            let mut path = place.path();
            path.push_str("?fieldManager=");
            path.push_str(keys::FIELD_MANAGER);
            path.push_str("&force=true&fieldValidation=Strict");
            let source = match self.ctx.server.patch::<Value>(&path, APPLY, body).await {
                Ok(live) => return Ok(live),
                Err(source) if source.is_conflict() => source,
                Err(source) => return Err(refused(source)),
            };
            let live = self.ctx.server.metadata(&place.path()).await.map_err(refused)?;
            match live {
                None => seen = None,
                Some(live) if !self.is_ours(&live) => {
                    return Err(foreign(hook, event, place));
                }
                // A CRD is never deleted, for everything of its kind would go with it.
                Some(live) if hook.object.kind == CRD => seen = Some(live),
                Some(_) => {
                    info!(object = %place, cause = %source, "an earlier run of the hook is in the way and is deleted");
                    self.clear(hook, event, place, deadline).await?;
                }
            }
        }
        Err(failed(ApplyError::Busy { object: place.to_string() }))
    }

    /// Deletes what an earlier run left, and waits until it is gone.
    async fn clear(
        &self,
        hook: &Hook,
        event: &'static str,
        place: &Place<'_>,
        deadline: Instant,
    ) -> Result<(), HookError> {
        let uid = std::sync::Mutex::new(String::new());
        let judge = |live: &LiveMeta| {
            uid.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone_from(&live.uid);
            (!self.is_ours(live)).then_some(Fate::NotOurs)
        };
        let (fate, gone) =
            remove_one(self.ctx, self.right, place, &judge).await.map_err(HookError::Delete)?;
        match fate {
            Fate::NotOurs => Err(foreign(hook, event, place)),
            Fate::Deleted if gone.is_none() => {
                let uid = uid.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
                completion::gone(self.ctx, place, &uid, deadline, self.right.cancelled())
                    .await
                    .map_err(HookError::Wait)
            }
            _ => Ok(()),
        }
    }

    /// Deletes a hook that ran, if its policy says so now.
    async fn delete(&self, hook: &Hook, policy: &DeletePolicy) -> Result<(), HookError> {
        let object = &hook.object;
        if object.kind == CRD || !hook.has_policy(policy) {
            return Ok(());
        }
        let Some(kind) = self.ctx.kinds.known(&object.api_version, &object.kind) else { return Ok(()) };
        let namespace = namespace_of(&kind, &object.namespace, self.namespace);
        let place = Place { kind: &kind, namespace, name: &object.name };
        let judge = |live: &LiveMeta| (!self.is_ours(live)).then_some(Fate::NotOurs);
        remove_one(self.ctx, self.right, &place, &judge).await.map(|_| ()).map_err(HookError::Delete)
    }

    /// Whether a live object is a hook of this bundle: by its stamp, by its label, or, left by a Helm that puts on
    /// neither, by being a hook at all.
    fn is_ours(&self, live: &LiveMeta) -> bool {
        let stamped =
            live.stamp().is_some_and(|found| Some(&found.uid) == self.stamp.as_ref().map(|own| &own.uid));
        let labelled = live.labels.get(keys::HASH_LABEL).map(String::as_str);
        self.take_ownership
            || stamped
            || labelled == Some(self.hash)
            || (labelled.is_none() && live.is_hook() && live.release().is_none())
    }
}

fn foreign(hook: &Hook, event: &'static str, place: &Place<'_>) -> HookError {
    HookError::Foreign { event, path: hook.path.clone(), object: place.to_string() }
}

#[cfg(test)]
mod tests;
