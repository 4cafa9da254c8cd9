// SPDX-License-Identifier: Apache-2.0
//! Deleting one object or many: always what was read (uid and resourceVersion), never what somebody else owns.

use std::{collections::HashMap, sync::Arc};

use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    Downstream,
    apply::PARALLEL,
    fence::{Fence, Fenced},
    kinds::{Kind, KindError},
    objects::{Identity, Place, group_of, is_askable, is_kept, namespace_of},
    server::{Deleted, LiveMeta, RequestError},
};
use crate::{
    protocol::Stamp,
    render::{Object, install_order},
};

/// Reads and deletes of one object before it is given up (L5).
const ROUNDS: usize = 4;

/// What became of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Deleted; finalizers may hold it a while.
    Deleted,
    /// Was not there.
    Missing,
    /// Stays: its keep policy says so.
    Kept,
    /// Stays: it belongs to another release, another BundleDeployment or a person.
    NotOurs,
    /// Its kind is no longer served, so it is gone.
    NoKind,
}

/// One object that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Which.
    pub object: Identity,
    /// What became of it.
    pub fate: Fate,
    /// What a cache may drop: the object is gone for good, and no finalizer holds it.
    pub gone: Option<Gone>,
}

/// An object that is gone for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The version of its API it was deleted through.
    pub api_version: String,
    /// Its uid.
    pub uid: String,
}

/// Why an object could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// Its kind could not be looked up.
    #[error("cannot delete {kind} {name}")]
    Kind {
        /// The object's kind.
        kind: String,
        /// The object's name.
        name: String,
        /// Why.
        #[source]
        source: KindError,
    },
    /// The server refused a read or the delete, or did not answer.
    #[error("cannot delete {object}")]
    Refused {
        /// The object.
        object: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The object changed between every read and delete.
    #[error("{object} is changed by others faster than it can be deleted")]
    Busy {
        /// The object.
        object: String,
    },
    /// The claim does not allow it.
    #[error("{object} is not deleted")]
    Fenced {
        /// The object.
        object: String,
        /// Why.
        #[source]
        source: Fenced,
    },
}

impl RemovalError {
    /// Whether the content alone decided this: never, another object is in the way or the cluster refuses.
    pub fn is_permanent(&self) -> bool {
        false
    }

    /// The fence's refusal, when it is one.
    pub fn fenced(&self) -> Option<&Fenced> {
        if let Self::Fenced { source, .. } = self { Some(source) } else { None }
    }
}

/// By which right something is deleted.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    /// Under a claim.
    Claim(&'a Fence),
    /// Under a claim, something of an earlier BundleDeployment of the same name: the claim is looked at after each read.
    Stray(&'a Fence),
    /// Under a removal guard: no BundleDeployment is left to claim. What is deleted is judged by its stamp alone.
    Guard(&'a CancellationToken),
}

impl Right<'_> {
    pub(super) fn cancelled(&self) -> &CancellationToken {
        match self {
            Self::Claim(fence) | Self::Stray(fence) => &fence.cancelled,
            Self::Guard(cancelled) => cancelled,
        }
    }

    pub(super) async fn pass(&self, stamp: Option<&Stamp>, place: &Place<'_>) -> Result<(), Fenced> {
        match self {
            Self::Claim(fence) => fence.before(stamp, || place.to_string()).await,
            Self::Stray(fence) if stamp.is_none_or(|stamp| stamp.uid != fence.stamp.uid) => {
                fence.foreign().await
            }
            Self::Stray(fence) => fence.before(stamp, || place.to_string()).await,
            Self::Guard(cancelled) if cancelled.is_cancelled() => Err(Fenced::Cancelled),
            Self::Guard(_) => Ok(()),
        }
    }
}

/// Decides on a live object: `None` deletes it.
pub(super) type Judge<'a> = &'a (dyn Fn(&LiveMeta) -> Option<Fate> + Sync);

/// Deletes one object, if it is still what was judged.
pub(super) async fn remove_one(
    ctx: &Downstream,
    right: Right<'_>,
    place: &Place<'_>,
    judge: Judge<'_>,
) -> Result<(Fate, Option<Gone>), RemovalError> {
    let object = || place.to_string();
    for _ in 0..ROUNDS {
        // By the agent: an account that may not see an object must not keep a bundle that never had it from going on.
        let read = ctx.agent.metadata(&place.path()).await;
        let Some(live) = read.map_err(|source| RemovalError::Refused { object: object(), source })? else {
            return Ok((Fate::Missing, None));
        };
        if let Some(fate) = judge(&live) {
            return Ok((fate, None));
        }
        if live.deletion_timestamp.is_some() {
            return Ok((Fate::Deleted, None));
        }
        let passed = right.pass(live.stamp().as_ref(), place).await;
        passed.map_err(|source| RemovalError::Fenced { object: object(), source })?;
        match ctx.server.delete(&place.path(), &live.uid, &live.resource_version).await {
            Ok(deleted) => {
                info!(object = %place, "object deleted");
                let api_version = place.kind.resource.api_version.clone();
                let gone = (deleted == Deleted::Gone).then_some(Gone { api_version, uid: live.uid });
                return Ok((Fate::Deleted, gone));
            }
            Err(error) if error.is_not_found() => return Ok((Fate::Missing, None)),
            Err(error) if error.is_conflict() => {}
            Err(source) => return Err(RemovalError::Refused { object: object(), source }),
        }
    }
    Err(RemovalError::Busy { object: object() })
}

/// Deletes listed objects in reverse install order, one kind after the other. Of an object listed twice the last
/// listing counts. The first failure lets what is under way finish and stops the rest; a repetition goes on from there.
pub(super) async fn remove_listed<'o>(
    ctx: &Downstream,
    right: Right<'_>,
    release_namespace: &str,
    listed: impl IntoIterator<Item = &'o Object>,
    judge: Judge<'_>,
) -> Result<Vec<Removed>, RemovalError> {
    let listed = in_order(ctx, release_namespace, listed);
    let mut removed = Vec::with_capacity(listed.len());
    for group in listed.chunk_by(|(a, _), (b, _)| a.kind == b.kind && a.group == b.group) {
        let mut waiting = group.iter();
        let mut running = FuturesUnordered::new();
        let mut failed = None;
        loop {
            while failed.is_none()
                && running.len() < PARALLEL
                && let Some((identity, object)) = waiting.next()
            {
                running.push(async move {
                    let (fate, gone) = decide(ctx, right, release_namespace, object, judge).await?;
                    Ok::<_, RemovalError>(Removed { object: identity.clone(), fate, gone })
                });
            }
            match running.next().await {
                None => break,
                Some(Ok(one)) => removed.push(one),
                Some(Err(error)) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(removed)
}

/// Each object once, by its last listing, in reverse install order.
fn in_order<'o>(
    ctx: &Downstream,
    release_namespace: &str,
    listed: impl IntoIterator<Item = &'o Object>,
) -> Vec<(Identity, &'o Object)> {
    let mut last: HashMap<Identity, &Object> = HashMap::new();
    for object in listed {
        last.insert(Identity::of(object, &ctx.kinds, release_namespace), object);
    }
    let mut listed: Vec<(Identity, &Object)> = last.into_iter().collect();
    listed.sort_by(|(a, _), (b, _)| {
        let rank = |identity: &Identity| install_order(&identity.kind);
        rank(b).cmp(&rank(a)).then_with(|| b.kind.cmp(&a.kind)).then_with(|| a.name.cmp(&b.name))
    });
    listed
}

/// The live objects that [`remove_listed`] would delete, in its order. Only read.
pub(super) async fn would_go<'o>(
    ctx: &Downstream,
    release_namespace: &str,
    listed: impl IntoIterator<Item = &'o Object>,
    judge: Judge<'_>,
) -> Result<Vec<(Identity, Value)>, RemovalError> {
    let mut found = Vec::new();
    for (identity, object) in in_order(ctx, release_namespace, listed) {
        if stays(object) {
            continue;
        }
        let Some(kind) = served(ctx, object).await? else { continue };
        let namespace = namespace_of(&kind, &object.namespace, release_namespace);
        let place = Place { kind: &kind, namespace, name: &object.name };
        let live = match ctx.agent.get::<Value>(&place.path()).await {
            Ok(live) => live,
            Err(error) if error.is_not_found() => continue,
            Err(source) => return Err(RemovalError::Refused { object: place.to_string(), source }),
        };
        let meta: LiveMeta = serde_json::from_value(live["metadata"].clone()).unwrap_or_default();
        if judge(&meta).is_none() {
            found.push((identity, live));
        }
    }
    Ok(found)
}

/// Whether a listing alone says that nothing is deleted.
fn stays(object: &Object) -> bool {
    is_kept(object) || !is_askable(&object.name)
}

async fn decide(
    ctx: &Downstream,
    right: Right<'_>,
    release_namespace: &str,
    object: &Object,
    judge: Judge<'_>,
) -> Result<(Fate, Option<Gone>), RemovalError> {
    if stays(object) {
        return Ok((Fate::Kept, None));
    }
    let Some(kind) = served(ctx, object).await? else { return Ok((Fate::NoKind, None)) };
    let namespace = namespace_of(&kind, &object.namespace, release_namespace);
    remove_one(ctx, right, &Place { kind: &kind, namespace, name: &object.name }, judge).await
}

/// The kind of a listed object in whichever version is served; `None` when the server knows it no longer.
async fn served(ctx: &Downstream, object: &Object) -> Result<Option<Arc<Kind>>, RemovalError> {
    let group = group_of(&object.api_version);
    if let Some(other) = ctx.kinds.known_in_any_version(group, &object.kind) {
        return Ok(Some(ctx.kinds.known(&object.api_version, &object.kind).unwrap_or(other)));
    }
    let error = |source| RemovalError::Kind { kind: object.kind.clone(), name: object.name.clone(), source };
    match ctx.kinds.resolve(&object.api_version, &object.kind).await {
        Ok(kind) => Ok(Some(kind)),
        Err(source @ KindError::Discovery(_)) => Err(error(source)),
        Err(source @ KindError::Unknown { .. }) if ctx.kinds.is_silent(group) => Err(error(source)),
        Err(KindError::Unknown { .. }) => Ok(ctx.kinds.known_in_any_version(group, &object.kind)),
    }
}
