// SPDX-License-Identifier: Apache-2.0
//! Removing the release of a BundleDeployment that was deleted.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{attempt::kinds_of, context::Context, notes, surroundings};
use crate::{
    api::{self, BundleDeployment, ReleaseId},
    downstream::{
        kinds::Kind,
        prune,
        release::{Guard, ReleaseError},
        removal::RemovalError,
        uninstall::{self, UninstallError},
    },
    protocol::{Nonce, Removal, SessionId, Uid},
    render::{self, RenderError},
    telemetry::events::{EventType, reason},
    upstream::{self, UpstreamError},
};

/// Why a release was not removed.
#[derive(Debug, thiserror::Error)]
enum RemoveError {
    #[error("cannot make sure that the BundleDeployment is gone")]
    Upstream(#[source] UpstreamError),
    #[error("the BundleDeployment is still there")]
    StillThere,
    #[error(transparent)]
    Release(ReleaseError),
    #[error(transparent)]
    Uninstall(UninstallError),
    #[error("cannot read what the release holds")]
    Manifest(#[source] RenderError),
    #[error("cannot look for what landed late")]
    Strays(#[source] RemovalError),
}

/// Removes the release of `uid`, whose deletion was seen. Idempotent; several replicas may try, one guards.
pub(super) async fn remove(
    ctx: &Arc<Context>,
    object: &BundleDeployment,
    uid: &Uid,
    dead_guard: Option<SessionId>,
) -> Removal {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    match try_remove(ctx, name, object, uid, dead_guard).await {
        Ok(removed) => {
            if removed {
                info!(unit = name, "release removed: its BundleDeployment was deleted");
                let note = format!("bundle {name}: removed, its BundleDeployment was deleted");
                notes::publish(ctx, None, EventType::Normal, reason::UNINSTALLED, note);
            }
            Removal::Complete
        }
        Err(RemoveError::Uninstall(UninstallError::NotOurs { .. })) => Removal::Complete,
        Err(RemoveError::Uninstall(UninstallError::Guarded { guard: Some(guard), .. })) => {
            Removal::Guarded(guard.session)
        }
        Err(error) => {
            warn!(
                unit = name,
                cause = upstream::chain(&error),
                "the release is not removed yet; it is tried again"
            );
            Removal::Failed
        }
    }
}

async fn try_remove(
    ctx: &Arc<Context>,
    name: &str,
    object: &BundleDeployment,
    uid: &Uid,
    dead_guard: Option<SessionId>,
) -> Result<bool, RemoveError> {
    let (namespace, release) = place(name, object);
    // A deletion event alone is no order: behind a removed CRD they come, too.
    if let Some(live) = ctx.upstream.read(name).await.map_err(RemoveError::Upstream)? {
        if live.metadata.uid.as_deref() == Some(uid.0.as_str()) {
            return Err(RemoveError::StillThere);
        }
        let options = live.options();
        if (api::release_namespace(&options), api::release_name(name, &options).as_str())
            == (namespace.as_str(), release.as_str())
        {
            return Ok(false); // re-created: what stands is the new one's to deploy over
        }
    }
    let history = ctx.downstream.store.history(&namespace, &release).await.map_err(RemoveError::Release)?;
    let nonce = Nonce(format!("{:016x}", surroundings::entropy()));
    let foreign_still = history.last().is_some_and(|record| {
        record.guard().is_none()
            && record.stamp().is_none()
            && ctx.stood_still(
                format!("{}@{}", record.name(), record.resource_version()),
                ctx.protocol.claim_timeout,
            )
    });
    let removal = uninstall::Removal {
        namespace: &namespace,
        name: &release,
        bundle: name,
        uid,
        guard: Guard { session: ctx.session_id.clone(), nonce },
        take_over: foreign_still || takes_over(&history, dead_guard.as_ref(), &ctx.session_id),
        history,
    };
    let Some(guarded) = uninstall::guard(&ctx.downstream, removal).await.map_err(RemoveError::Uninstall)?
    else {
        return Ok(false);
    };
    let mut objects = Vec::new();
    for manifest in guarded.manifests() {
        objects.extend(render::parse_manifest(&ctx.engine, manifest).await.map_err(RemoveError::Manifest)?);
    }
    let kinds_wanted = objects.iter().map(|object| (&*object.api_version, &*object.kind));
    // Kinds that cannot be asked for now are asked for again by the removal itself.
    let _ = ctx.downstream.kinds.prepare(kinds_wanted).await;
    let kinds = kinds_of(ctx, objects.iter());
    let keeps = guarded.keeps_objects();
    let never = CancellationToken::new();
    guarded.remove(&ctx.downstream, &objects, &never).await.map_err(RemoveError::Uninstall)?;
    if !keeps {
        let hash = api::names::object_hash(&api::names::set_id(name, &ctx.scope));
        sweep(ctx, &kinds, &hash, uid, &never).await?;
        sweep_later(ctx.clone(), name.to_owned(), kinds, hash, uid.clone());
    }
    Ok(true)
}

/// Whether the guard found is a dead session's, or an earlier try of this very session.
fn takes_over(
    history: &[crate::downstream::release::Record],
    dead: Option<&SessionId>,
    own: &SessionId,
) -> bool {
    let found = history.last().and_then(|record| record.guard());
    found.is_some_and(|guard| Some(&guard.session) == dead || guard.session == *own)
}

fn place(name: &str, object: &BundleDeployment) -> (String, String) {
    let known = object.status.as_ref().and_then(|status| status.release.parse::<ReleaseId>().ok());
    match known {
        Some(release) => (release.namespace, release.name),
        None => {
            let options = object.options();
            (api::release_namespace(&options).to_owned(), api::release_name(name, &options))
        }
    }
}

async fn sweep(
    ctx: &Context,
    kinds: &[Arc<Kind>],
    hash: &str,
    uid: &Uid,
    cancelled: &CancellationToken,
) -> Result<(), RemoveError> {
    let swept = prune::orphans(&ctx.downstream, kinds, hash, uid, cancelled).await;
    swept.map(|_| ()).map_err(RemoveError::Strays)
}

/// S7: a create that a frozen replica sent before it was taken over can still land; by then it has.
fn sweep_later(ctx: Arc<Context>, name: String, kinds: Vec<Arc<Kind>>, hash: String, uid: Uid) {
    tokio::spawn(async move {
        tokio::time::sleep(ctx.protocol.ttl + ctx.downstream.server.timeout()).await;
        if let Err(error) = sweep(&ctx, &kinds, &hash, &uid, &CancellationToken::new()).await {
            warn!(unit = name, cause = upstream::chain(&error), "cannot look for objects that landed late");
        }
    });
}
