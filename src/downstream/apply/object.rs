// SPDX-License-Identifier: Apache-2.0
//! One object: read if it may exist, compare stamps, write with the precondition, decide again on a conflict.

use std::sync::Arc;

use serde_json::Value;
use tracing::{debug, info};

use super::{
    Applied, ApplyError, CREATE_ONLY, KnownObjects, Owner, body,
    body::Overlay,
    ownership::{fold_patch, folded, is_autoscaled, refusal},
};
use crate::{
    api::keys,
    downstream::{
        Downstream,
        completion::held_by,
        fence::Fence,
        kinds::Kind,
        objects::{Identity, Place, group_of, namespace_of},
        release::APPLY,
        scaling::is_delegated,
        server::{LiveMeta, MetaOnly, RequestError},
    },
    monitor::Key,
    protocol::Stamp,
    render::Object,
};

/// Reads and writes of one object before it is given up (L5).
const ROUNDS: usize = 4;
const JSON_PATCH: &str = "application/json-patch+json";

/// What all objects of one apply share.
pub(super) struct Job<'a> {
    pub ctx: &'a Downstream,
    pub fence: &'a Fence,
    pub owner: &'a Owner<'a>,
    pub live: Option<&'a dyn KnownObjects>,
    /// The fence's stamp, as text.
    pub stamp: &'a str,
}

/// The live object that the next write is meant for.
struct Seen {
    uid: String,
    resource_version: String,
    stamp: Option<Stamp>,
    /// Another release has it, and it is to be taken.
    foreign: bool,
    autoscaled: bool,
}

/// What is known about a live object before anything is asked.
enum Expected {
    /// Ours, as far as is known; a write says if not.
    Ours(Seen),
    /// There, but to be read.
    Present,
    /// Nothing.
    Unknown,
}

impl Job<'_> {
    pub(super) async fn apply(
        &self,
        index: usize,
        object: &Object,
        kind: &Arc<Kind>,
    ) -> Result<Applied, ApplyError> {
        let namespace = namespace_of(kind, &object.namespace, self.owner.namespace);
        let place = Place { kind, namespace, name: &object.name };
        let previous = self.owner.previous;
        let listed = !previous.is_empty()
            && previous.contains(&Identity {
                group: group_of(&object.api_version).to_owned(),
                kind: object.kind.clone(),
                namespace: namespace.to_owned(),
                name: object.name.clone(),
            });
        let mut seen = match self.known(object, &place) {
            Expected::Ours(known) => Some(known),
            Expected::Present => self.look(object, &place, listed).await?,
            Expected::Unknown if listed => self.look(object, &place, listed).await?,
            Expected::Unknown => None,
        };
        for round in 0..ROUNDS {
            match self.write(object, &place, seen.as_ref()).await {
                Ok(live) => {
                    if !live["metadata"]["deletionTimestamp"].is_null() {
                        let finalizers = live["metadata"]["finalizers"].as_array();
                        let finalizers = finalizers.into_iter().flatten().filter_map(Value::as_str);
                        let held = held_by(&finalizers.map(str::to_owned).collect::<Vec<_>>());
                        return Err(ApplyError::Terminating { object: place.to_string(), held });
                    }
                    let (kind, namespace) = (kind.clone(), namespace.to_owned());
                    let left = seen.as_ref().is_some_and(|seen| seen.autoscaled);
                    return Ok(Applied { index, kind, namespace, created: seen.is_none(), left, live });
                }
                // Exists after all, changed, or vanished and came back: look, and decide again.
                Err(ApplyError::Refused { source, .. } | ApplyError::Replace { source, .. })
                    if source.is_conflict() && !source.is_field_conflict() =>
                {
                    debug!(object = %place, round, cause = %source, "write conflicted; reading the object");
                    seen = self.look(object, &place, listed).await?;
                }
                // A Job that has run cannot be changed. Force means that it is to run as it is now: made anew, it alone.
                Err(ApplyError::Refused { source, .. })
                    if self.owner.replace && is_job(&place) && is_immutable(&source) && seen.is_some() =>
                {
                    if let Some(found) = seen.take() {
                        self.remove(&place, &found).await?;
                    }
                }
                Err(error) => {
                    if let ApplyError::Refused { source, .. } | ApplyError::Replace { source, .. } = &error
                        && source.is_not_found()
                        && !source.is_missing_namespace(namespace)
                    {
                        // The kind is gone: the next try shall know. A failed renewal changes nothing about the error.
                        let _ = self.ctx.kinds.refresh().await;
                    }
                    return Err(error);
                }
            }
        }
        Err(ApplyError::Busy { object: place.to_string() })
    }

    /// What somebody knows already. Only an object that our own uid stamped need not be read: it was applied by us, so
    /// ownership and field owners are in order. Not where an autoscaler may own the replicas, which only the field
    /// owners tell.
    fn known(&self, object: &Object, place: &Place<'_>) -> Expected {
        let known = self.live.and_then(|live| live.known(place.kind, place.namespace, place.name));
        match known {
            None => Expected::Unknown,
            Some(known)
                if known.stamp.uid == self.fence.stamp.uid
                    && object.value.pointer("/spec/replicas").is_none() =>
            {
                Expected::Ours(Seen {
                    uid: known.uid,
                    resource_version: known.resource_version,
                    stamp: Some(known.stamp),
                    foreign: false,
                    autoscaled: false,
                })
            }
            Some(_) => Expected::Present,
        }
    }

    /// Reads the live object, refuses another owner's, and moves field ownership where that is due.
    async fn look(
        &self,
        object: &Object,
        place: &Place<'_>,
        listed: bool,
    ) -> Result<Option<Seen>, ApplyError> {
        let read = |source| ApplyError::Read { object: described(place), source };
        let server = &self.ctx.server;
        let Some(mut live) = server.metadata(&place.path()).await.map_err(read)? else { return Ok(None) };
        if let Some(reason) = refusal(&live, object, place, self.owner, listed) {
            let operation = self.owner.operation();
            return Err(ApplyError::Foreign { operation, object: described(place), reason });
        }
        let foreign = live.release().is_some_and(|owner| owner != (self.owner.namespace, self.owner.name));
        if let Some(owners) = folded(&live.managed_fields) {
            self.pass(live.stamp().as_ref(), foreign, place).await?;
            let patch = fold_patch(&live, &owners).map_err(|error| read(RequestError::Unwritable(error)))?;
            match server.patch::<MetaOnly>(&place.path(), JSON_PATCH, patch).await {
                Ok(moved) => live = moved.metadata,
                // Changed since: the write that follows is refused for the same reason and looks again.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(source) => return Err(self.refused(place, source)),
            }
        }
        let autoscaled = is_autoscaled(&live) && self.is_delegated(object, place).await.map_err(read)?;
        let stamp = live.stamp();
        let LiveMeta { uid, resource_version, .. } = live;
        Ok(Some(Seen { uid, resource_version, stamp, foreign, autoscaled }))
    }

    /// Whether an autoscaler still decides on the replicas of an object that one has scaled; where nobody can tell, it does.
    async fn is_delegated(&self, object: &Object, place: &Place<'_>) -> Result<bool, RequestError> {
        let key = Key::new(&object.api_version, &object.kind, place.namespace, place.name);
        match self.ctx.server.get::<Value>(&place.path()).await {
            Ok(live) => Ok(is_delegated(self.ctx, &key, &live).await?.unwrap_or(true)),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(
        &self,
        object: &Object,
        place: &Place<'_>,
        seen: Option<&Seen>,
    ) -> Result<Value, ApplyError> {
        let foreign = seen.is_some_and(|seen| seen.foreign);
        self.pass(seen.and_then(|seen| seen.stamp.as_ref()), foreign, place).await?;
        // S1: the stamp is written even when nothing else changes, so there is no comparing of content here.
        let overlay = Overlay {
            release: Some((self.owner.name, self.owner.namespace)),
            stamp: Some(self.stamp),
            uid: seen.map(|seen| seen.uid.as_str()),
            resource_version: seen.map_or(CREATE_ONLY, |seen| seen.resource_version.as_str()),
            namespace: place.namespace,
            leave_replicas: seen.is_some_and(|seen| seen.autoscaled),
        };
        let body = body::bytes(&object.value, &overlay)
            .map_err(|error| self.refused(place, RequestError::Unwritable(error)))?;
        let mut path = place.path();
        path.push_str("?fieldManager=");
        path.push_str(keys::FIELD_MANAGER);
        // Strict, as Helm does: an unknown field is an error and never silently dropped.
        if self.owner.replace && !is_job(place) && seen.is_some_and(|seen| !seen.autoscaled) {
            path.push_str("&fieldValidation=Strict");
            return self.ctx.server.put(&path, body).await.map_err(|source| ApplyError::Replace {
                object: place.to_string(),
                source: masked(place, source),
            });
        }
        path.push_str("&force=true&fieldValidation=Strict");
        self.ctx.server.patch(&path, APPLY, body).await.map_err(|source| self.refused(place, source))
    }

    /// Deletes what was seen, and nothing else.
    async fn remove(&self, place: &Place<'_>, seen: &Seen) -> Result<(), ApplyError> {
        self.pass(seen.stamp.as_ref(), seen.foreign, place).await?;
        info!(object = %place, "it cannot be changed and is to be replaced: made anew");
        match self.ctx.server.delete(&place.path(), &seen.uid, &seen.resource_version).await {
            Ok(_) => Ok(()),
            // Gone, or changed since: the write that follows finds out.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(source) => Err(self.refused(place, source)),
        }
    }

    async fn pass(&self, stamp: Option<&Stamp>, foreign: bool, place: &Place<'_>) -> Result<(), ApplyError> {
        let ours = stamp.is_some_and(|stamp| stamp.uid == self.fence.stamp.uid);
        let passed = match foreign && !ours {
            true => self.fence.foreign().await,
            false => self.fence.before(stamp, || place.to_string()).await,
        };
        passed.map_err(|source| ApplyError::Fenced { object: place.to_string(), source })
    }

    fn refused(&self, place: &Place<'_>, source: RequestError) -> ApplyError {
        ApplyError::Refused { object: place.to_string(), source: masked(place, source) }
    }
}

fn is_job(place: &Place<'_>) -> bool {
    place.kind.is("batch", "Job")
}

/// Whether nothing speaks against an object but that fields which are wanted otherwise cannot be changed any more. What is
/// invalid besides could not be made anew either.
fn is_immutable(source: &RequestError) -> bool {
    const TEXT: &str = "field is immutable";
    source.is_permanent()
        && source.status().is_some_and(|status| {
            let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
            status.message.contains(TEXT)
                && causes.iter().all(|cause| cause.message.contains(TEXT))
                && (!causes.is_empty() || !status.message.contains("is invalid: ["))
        })
}

fn masked(place: &Place<'_>, source: RequestError) -> RequestError {
    if place.kind.is("", "Secret") { source.without_values() } else { source }
}

/// As Helm names an existing object: `Kind "name" in namespace "namespace"`.
pub(super) fn described(place: &Place<'_>) -> String {
    format!("{} \"{}\" in namespace \"{}\"", place.kind.resource.kind, place.name, place.namespace)
}
