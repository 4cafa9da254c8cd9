// SPDX-License-Identifier: Apache-2.0
//! Server-side apply of a release's objects in Helm's order, each write fenced.
//!
//! Objects of one kind go up to [`PARALLEL`] at once. CRDs are waited for before the kinds they define. A failure lets
//! what is under way finish, so that nothing of a closed attempt lands late.

mod access;
pub(in crate::downstream) mod body;
mod crds;
mod object;
pub(super) mod ownership;
mod precheck;
mod preview;

use std::{collections::HashSet, sync::Arc};

use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::Value;

pub use preview::{Preview, preview, preview_crd};

use super::{
    Downstream,
    fence::{Fence, Fenced},
    kinds::{Kind, KindError},
    objects::{Identity, group_of, is_askable, namespace_of},
    server::RequestError,
};
use crate::{
    api::OverwrittenResource,
    protocol::Stamp,
    render::{Object, install_order},
};

/// The resourceVersion that no object has: an apply with it creates (201) or is refused (409).
pub const CREATE_ONLY: &str = "1";
/// Objects of one kind written at once: enough to hide the round trip, few enough for a small API server.
pub const PARALLEL: usize = 8;

/// For which release objects are written, and what it may take.
pub struct Owner<'a> {
    /// The release's namespace; objects that name none live here.
    pub namespace: &'a str,
    /// The release's name.
    pub name: &'a str,
    /// Something was deployed before; for messages.
    pub upgrade: bool,
    /// Replace live objects as a whole (PUT) in place of applying: what others set is lost.
    pub replace: bool,
    /// Take objects of others.
    pub take_ownership: bool,
    /// Objects that another bundle gave up; these may be taken.
    pub overwrites: &'a [OverwrittenResource],
    /// What deployed revisions list: there is reason to think that these exist, and they were this release's. Never what
    /// only a failed one lists, which may be another's that it was refused.
    pub previous: &'a HashSet<Identity>,
}

impl Owner<'_> {
    /// Helm's word in refusals.
    fn operation(&self) -> &'static str {
        if self.upgrade { "update" } else { "install" }
    }
}

/// What somebody already knows about a live object, so that it need not be read.
pub trait KnownObjects: Send + Sync {
    /// The object, if it is known and carries a stamp.
    fn known(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Known>;
}

/// A live object, as known.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its uid.
    pub uid: String,
    /// Its version.
    pub resource_version: String,
    /// The claim it was last written under.
    pub stamp: Stamp,
}

/// One object that was written.
#[derive(Debug)]
pub struct Applied {
    /// Which of the objects given.
    pub index: usize,
    /// Its kind.
    pub kind: Arc<Kind>,
    /// Its namespace; empty for cluster-scoped ones.
    pub namespace: String,
    /// It was not there before.
    pub created: bool,
    /// Its replicas were left to an autoscaler: that it is as we wrote it does not say that it is as wanted.
    pub left: bool,
    /// The server's answer: the live object.
    pub live: Value,
}

/// Why an object was not written. Each names its object once; the server's words are the source.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The kind is not served.
    #[error(
        "unable to build kubernetes objects from release manifest: \
         resource mapping not found for name: \"{name}\" namespace: \"{namespace}\" from \"\""
    )]
    Kind {
        /// The object's namespace, as written.
        namespace: String,
        /// The object's name.
        name: String,
        /// Why.
        #[source]
        source: KindError,
    },
    /// The name fits no URL.
    #[error("{kind} has an impossible name: {name:?}")]
    Name {
        /// The object's kind.
        kind: String,
        /// The object's name.
        name: String,
    },
    /// The object belongs to somebody else.
    #[error(
        "unable to continue with {operation}: {object} exists and cannot be imported into the current release: {reason}"
    )]
    Foreign {
        /// `install` or `update`.
        operation: &'static str,
        /// The object.
        object: String,
        /// In Helm's words.
        reason: String,
    },
    /// The server refused the write, or did not answer.
    #[error("server-side apply failed for object {object}")]
    Refused {
        /// The object.
        object: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The server refused to replace the object, or did not answer. It names the object itself.
    #[error("failed to replace object")]
    Replace {
        /// The object.
        object: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The live object could not be read.
    #[error("could not get information about the resource {object}")]
    Read {
        /// The object.
        object: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The account may not see the object, or there was no answer. Helm's text.
    #[error("unable to continue with {operation}: could not get information about the resource {object}")]
    Unseen {
        /// `install` or `update`.
        operation: &'static str,
        /// The object.
        object: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The object changed between every read and write.
    #[error("{object} is changed by others faster than it can be written")]
    Busy {
        /// The object.
        object: String,
    },
    /// The object is being deleted and will be gone.
    #[error("{object} is being deleted: {held}")]
    Terminating {
        /// The object.
        object: String,
        /// What holds it.
        held: String,
    },
    /// The API server does not serve a CRD (yet).
    #[error("CustomResourceDefinition {name} was not established in time")]
    NotEstablished {
        /// The CRD.
        name: String,
    },
    /// The claim does not allow the write.
    #[error("{object} is not written")]
    Fenced {
        /// The object.
        object: String,
        /// Why.
        #[source]
        source: Fenced,
    },
}

impl ApplyError {
    /// Whether the content alone decided this, so that only another content can help.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Name { .. } => true,
            // As with Helm, a first deployment takes nothing. An upgrade waits: where an object moves from one bundle
            // to another, the first gives it up only when that is deployed itself.
            Self::Foreign { operation, .. } => *operation == "install",
            Self::Refused { source, .. } | Self::Replace { source, .. } => source.is_permanent(),
            Self::Kind { .. }
            | Self::Read { .. }
            | Self::Unseen { .. }
            | Self::Busy { .. }
            | Self::Terminating { .. }
            | Self::NotEstablished { .. }
            | Self::Fenced { .. } => false,
        }
    }

    /// The fence's refusal, when it is one.
    pub fn fenced(&self) -> Option<&Fenced> {
        if let Self::Fenced { source, .. } = self { Some(source) } else { None }
    }
}

pub use access::accessible;
pub use crds::install as install_crds;
pub(in crate::downstream) use crds::{establish, is_shown};
pub use precheck::check_owners;

/// Checks, before anything is written, that every object has a usable name and a kind that the server serves or that a
/// CRD among the objects defines. Asks the server at most once.
pub async fn check(ctx: &Downstream, objects: &[Object]) -> Result<(), ApplyError> {
    let kinds = objects.iter().map(|object| (object.api_version.as_str(), object.kind.as_str()));
    let unknown = |object: &Object, source| ApplyError::Kind {
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        source,
    };
    if let Err(source) = ctx.kinds.prepare(kinds).await
        && let Some(first) = objects.first()
    {
        return Err(unknown(first, source));
    }
    for object in objects {
        if !is_askable(&object.name) {
            return Err(ApplyError::Name { kind: object.kind.clone(), name: object.name.clone() });
        }
        if ctx.kinds.known(&object.api_version, &object.kind).is_none() && !is_defined(object, objects) {
            let (api_version, kind) = (object.api_version.clone(), object.kind.clone());
            return Err(unknown(object, KindError::Unknown { api_version, kind }));
        }
    }
    Ok(())
}

/// Writes all objects. Of an object listed twice, the last counts.
pub async fn apply_all(
    ctx: &Downstream,
    fence: &Fence,
    owner: &Owner<'_>,
    objects: &[Object],
    live: Option<&dyn KnownObjects>,
) -> Result<Vec<Applied>, ApplyError> {
    check(ctx, objects).await?;
    let stamp = fence.stamp.to_string();
    let job = object::Job { ctx, fence, owner, live, stamp: &stamp };
    let mut applied = Vec::with_capacity(objects.len());
    for group in groups(ctx, owner, objects) {
        let kind = kind_of(ctx, &objects[group[0]]).await?;
        let from = applied.len();
        apply_group(&job, objects, &group, &kind, &mut applied).await?;
        if kind.is("apiextensions.k8s.io", "CustomResourceDefinition") {
            let written: Vec<_> =
                applied[from..].iter().map(|crd| (objects[crd.index].name.as_str(), &crd.live)).collect();
            let shown =
                || objects.iter().all(|object| ctx.kinds.known(&object.api_version, &object.kind).is_some());
            crds::establish(ctx, &fence.cancelled, &written, &shown).await?;
        }
    }
    Ok(applied)
}

/// Indices in Helm's install order, one group a kind: known kinds by Helm's list, others by name, then as given.
fn groups(ctx: &Downstream, owner: &Owner<'_>, objects: &[Object]) -> Vec<Vec<usize>> {
    let mut seen = HashSet::with_capacity(objects.len());
    let mut order: Vec<usize> = (0..objects.len())
        .rev()
        .filter(|index| {
            let Object { api_version, kind, namespace, name, .. } = &objects[*index];
            let namespace = match ctx.kinds.known(api_version, kind) {
                Some(kind) => namespace_of(&kind, namespace, owner.namespace),
                None => namespace,
            };
            seen.insert((group_of(api_version), kind, namespace, name))
        })
        .collect();
    order.reverse();
    order.sort_by_key(|index| {
        let Object { kind, api_version, .. } = &objects[*index];
        (install_order(kind), kind.as_str(), api_version.as_str())
    });
    let same = |a: &usize, b: &usize| {
        objects[*a].kind == objects[*b].kind && objects[*a].api_version == objects[*b].api_version
    };
    order.chunk_by(same).map(<[usize]>::to_vec).collect()
}

async fn kind_of(ctx: &Downstream, object: &Object) -> Result<Arc<Kind>, ApplyError> {
    ctx.kinds.resolve(&object.api_version, &object.kind).await.map_err(|source| ApplyError::Kind {
        namespace: object.namespace.clone(),
        name: object.name.clone(),
        source,
    })
}

async fn apply_group(
    job: &object::Job<'_>,
    objects: &[Object],
    group: &[usize],
    kind: &Arc<Kind>,
    applied: &mut Vec<Applied>,
) -> Result<(), ApplyError> {
    let mut waiting = group.iter().copied();
    let mut running = FuturesUnordered::new();
    let mut failed: Option<(usize, ApplyError)> = None;
    loop {
        while failed.is_none()
            && running.len() < PARALLEL
            && let Some(index) = waiting.next()
        {
            running.push(async move { (index, job.apply(index, &objects[index], kind).await) });
        }
        match running.next().await {
            None => break,
            Some((_, Ok(written))) => applied.push(written),
            // Of several, the first in the bundle's order is told: the same one at every try.
            Some((index, Err(error))) if failed.as_ref().is_none_or(|(first, _)| index < *first) => {
                failed = Some((index, error));
            }
            Some((_, Err(_))) => {}
        }
    }
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// Whether a CRD among the objects defines the object's kind.
fn is_defined(object: &Object, objects: &[Object]) -> bool {
    let group = group_of(&object.api_version);
    objects.iter().filter(|crd| crd.kind == "CustomResourceDefinition").any(|crd| {
        let spec = &crd.value["spec"];
        spec["group"] == group && spec["names"]["kind"] == object.kind.as_str()
    })
}

#[cfg(test)]
mod tests;
