// SPDX-License-Identifier: Apache-2.0
//! Removing the release of a BundleDeployment that was deleted.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    again,
    attempt::kinds_of,
    context::Context,
    mass::{self, HoldError},
    notes, surroundings,
};
use crate::{
    api::{self, BundleDeployment, ReleaseId, keys},
    downstream::{
        Downstream,
        accounts::AccountError,
        copies,
        hooks::{Diary, HookError, Runner},
        kinds::Kind,
        prune,
        release::{Guard, Phase, Record, ReleaseError},
        removal::RemovalError,
        server::LiveMeta,
        uninstall::{self, Guarded, UninstallError},
    },
    protocol::{Epoch, Gate, Nonce, Removal, SessionId, Uid},
    render::{self, HookEvent, RenderError},
    telemetry::events::{EventType, reason},
    upstream::{self, UpstreamError},
};

/// Why a release was not removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoveError {
    #[error("it is held")]
    Held(#[source] HoldError),
    #[error("a deployment began meanwhile")]
    Overtaken,
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
    #[error("{event} hooks failed")]
    Hook {
        event: &'static str,
        #[source]
        source: Box<HookError>,
    },
    #[error("cannot tell as whom to remove it")]
    Account(#[source] AccountError),
    #[error("cannot remove what was copied for it")]
    Copies(#[source] RemovalError),
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
            let cause = upstream::chain(&error);
            warn!(unit = name, cause, "the release is not removed yet; it is tried again");
            // Nobody is left whose status could say it.
            if let RemoveError::Hook { .. } | RemoveError::Account(_) = error {
                let note = format!("bundle {name} is not removed yet (will be tried again): {cause}");
                notes::publish(ctx, None, EventType::Warning, reason::REMOVAL_HELD, note);
            }
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
    if api::names::is_agent_bundle(name) {
        // Whatever stands there, this agent did not deploy it, and its records are what Fleet's agent goes by.
        return Ok(false);
    }
    let (namespace, release) = place(name, object);
    let version = object.metadata.resource_version.clone().map(Epoch);
    // None known: nothing is older.
    let before = Some(version.filter(|_| object.metadata.uid.as_deref() == Some(&uid.0)).unwrap_or_default());
    let options = object.options();
    let order = Order {
        name,
        uid,
        before,
        namespace: &namespace,
        release: &release,
        why: Why::Deleted,
        account: &options.service_account,
        keeps: options.keep_resources,
    };
    carry_out(ctx, &order, dead_guard).await
}

/// A release to be removed.
pub(super) struct Order<'a> {
    /// Its bundle: the BundleDeployment's name.
    pub name: &'a str,
    /// The BundleDeployment whose objects they are; empty when no stamp tells.
    pub uid: &'a Uid,
    /// As in [`uninstall::Removal`].
    pub before: Option<Epoch>,
    /// The release's namespace.
    pub namespace: &'a str,
    /// The release's name.
    pub release: &'a str,
    /// By which right.
    pub why: Why,
    /// The account that the BundleDeployment named at last; empty when that is not known.
    pub account: &'a str,
    /// The BundleDeployment said at last that its objects stay.
    pub keeps: bool,
}

/// Why a release is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The deletion of its BundleDeployment was seen.
    Deleted,
    /// It has had no BundleDeployment for longer than the grace period.
    Orphaned,
    /// Its BundleDeployment is deployed elsewhere by now.
    Moved,
}

impl Why {
    /// Whether the live BundleDeployment of that name still allows it.
    fn stands(self, order: &Order<'_>, live: Option<&BundleDeployment>) -> Result<bool, RemoveError> {
        let Some(live) = live else { return Ok(self != Self::Moved) };
        match self {
            Self::Deleted if live.metadata.uid.as_deref() == Some(order.uid.0.as_str()) => {
                Err(RemoveError::StillThere)
            }
            // Re-created: what stands at its place is the new one's to deploy over.
            Self::Deleted => {
                Ok(expected_place(order.name, live) != (order.namespace.into(), order.release.into()))
            }
            Self::Orphaned => Ok(false),
            Self::Moved => Ok(has_moved(order.name, live, (order.namespace, order.release))),
        }
    }
}

/// Where a BundleDeployment wants its release.
pub(super) fn expected_place(name: &str, object: &BundleDeployment) -> (String, String) {
    let options = object.options();
    (api::release_namespace(&options).to_owned(), api::release_name(name, &options))
}

/// Whether a BundleDeployment is deployed, and not at this place any more: what is left there may go. Not while it is
/// paused, and not before the new release is there.
pub(super) fn has_moved(name: &str, live: &BundleDeployment, place: (&str, &str)) -> bool {
    let (namespace, release) = expected_place(name, live);
    let Some(status) = &live.status else { return false };
    let stands_there = status
        .release
        .parse::<ReleaseId>()
        .is_ok_and(|standing| standing.namespace == namespace && standing.name == release);
    let state = upstream::snapshot(live, false);
    (namespace.as_str(), release.as_str()) != place
        && stands_there
        && !state.outdated
        && !state.slot.is_open()
        && state.gate == Gate::Open
}

/// Guards a release and removes it; false when there is nothing to remove, or no right any more.
pub(super) async fn carry_out(
    ctx: &Arc<Context>,
    order: &Order<'_>,
    dead_guard: Option<SessionId>,
) -> Result<bool, RemoveError> {
    let (name, uid) = (order.name, order.uid);
    let allowed = mass::allow_removal(ctx, name, uid).await;
    let mut history =
        ctx.downstream.store.history(order.namespace, order.release).await.map_err(RemoveError::Release)?;
    // A deletion event alone is no order: behind a removed CRD they come, too. Read after the history, so that
    // whoever deploys from here on meets the guard, or is met by it.
    let live = ctx.upstream.read(name).await.map_err(RemoveError::Upstream)?;
    if !order.why.stands(order, live.as_ref())? {
        mass::settle_removal(ctx, uid);
        // An earlier try may have failed without a word: whoever deploys now would wait for this replica.
        let let_go = uninstall::let_go(&ctx.downstream, &mut history, Some(&ctx.session_id)).await;
        let_go.map_err(RemoveError::Uninstall)?;
        return Ok(false);
    }
    allowed.map_err(RemoveError::Held)?;
    let nonce = Nonce(format!("{:016x}", surroundings::entropy()));
    let newest = history.last().map(|record| record.revision);
    let foreign_still = history.last().is_some_and(|record| {
        record.guard().is_none()
            && record.stamp().is_none()
            && ctx.stood_still(
                format!("{}@{}", record.name(), record.resource_version()),
                ctx.protocol.claim_timeout,
            )
    });
    let removal = uninstall::Removal {
        namespace: order.namespace,
        name: order.release,
        bundle: name,
        uid,
        before: order.before.clone(),
        guard: Guard { session: ctx.session_id.clone(), nonce },
        take_over: foreign_still || takes_over(&history, dead_guard.as_ref(), &ctx.session_id),
        history,
    };
    let acting = acting(ctx, order, &removal.history).await?;
    let mut guarded = match uninstall::guard(&acting, removal).await {
        Ok(Some(guarded)) => guarded,
        Ok(None) => {
            remove_copies(ctx, order, &BTreeSet::from([uid.clone()]), order.keeps).await?;
            return Ok(false);
        }
        Err(error @ UninstallError::NotOurs { .. }) => {
            // The release is another's; what was copied before that was noticed is not.
            remove_copies(ctx, order, &BTreeSet::from([uid.clone()]), order.keeps).await?;
            return Err(RemoveError::Uninstall(error));
        }
        Err(error) => return Err(RemoveError::Uninstall(error)),
    };
    let ended = dismantle(ctx, order, &acting, &guarded, newest).await;
    if let Err(error) = &ended
        && !matches!(error, RemoveError::Overtaken)
        && let Err(error) = guarded.give_up(&acting).await
    {
        info!(
            unit = name,
            cause = upstream::chain(&error),
            "the record still says that this replica removes it"
        );
    }
    ended.map(|()| true)
}

/// Everything under the guard: hooks, objects, records, and what landed late.
async fn dismantle(
    ctx: &Arc<Context>,
    order: &Order<'_>,
    acting: &Downstream,
    guarded: &Guarded,
    newest: Option<u32>,
) -> Result<(), RemoveError> {
    let (name, uid) = (order.name, order.uid);
    let again =
        ctx.downstream.store.history(order.namespace, order.release).await.map_err(RemoveError::Release)?;
    if again.last().map(|record| record.revision) != newest {
        return Err(RemoveError::Overtaken);
    }
    let mut objects = Vec::new();
    for manifest in guarded.manifests() {
        objects.extend(render::parse_manifest(&ctx.engine, manifest).await.map_err(RemoveError::Manifest)?);
    }
    let kinds_wanted = objects.iter().map(|object| (&*object.api_version, &*object.kind));
    // Kinds that cannot be asked for now are asked for again by the removal itself.
    let _ = ctx.downstream.kinds.prepare(kinds_wanted).await;
    let kinds = kinds_of(ctx, objects.iter());
    let keeps = guarded.keeps_objects();
    let uids = guarded.uids().clone();
    let never = CancellationToken::new();
    let hooks = if keeps {
        Vec::new()
    } else {
        render::parse_hooks(&ctx.engine, guarded.hooks()).await.map_err(RemoveError::Manifest)?
    };
    let hash = api::names::object_hash(&api::names::set_id(name, &ctx.scope));
    let runner = Runner::removing(acting, &never, (order.namespace, &hash), guarded.stamp());
    let run = async |event: HookEvent| {
        let ran = runner.run(&hooks, event, &mut Unwritten).await;
        ran.map_err(|source| RemoveError::Hook { event: event.as_str(), source: Box::new(source) })
    };
    run(HookEvent::PreDelete).await?;
    guarded.remove(acting, &objects, &never).await.map_err(RemoveError::Uninstall)?;
    run(HookEvent::PostDelete).await?;
    // Before the record goes, so that a removal cut short is found again.
    remove_copies(ctx, order, &uids, keeps).await?;
    guarded.forget(acting).await.map_err(RemoveError::Uninstall)?;
    // Of one that moved, the same label and uid are on what it has now.
    if !keeps && order.why != Why::Moved && !uid.0.is_empty() {
        sweep(&ctx.downstream, &kinds, &hash, &uids).await?;
        sweep_later(ctx.clone(), name.to_owned(), kinds, hash, uids);
    }
    Ok(())
}

/// This cluster as the account sees it that the release was made as: its record says it. A record that says nothing is
/// no way around the account that the BundleDeployment named.
async fn acting(ctx: &Context, order: &Order<'_>, history: &[Record]) -> Result<Downstream, RemoveError> {
    let newest = history.iter().rev().find_map(|record| record.release.as_ref().ok());
    // Nothing is written as anybody where nothing is read.
    let Some(newest) = newest else { return Ok(ctx.downstream.clone()) };
    let recorded = newest.chart_annotation(keys::SERVICE_ACCOUNT).unwrap_or_default();
    let account = if recorded.is_empty() { order.account } else { recorded };
    ctx.accounts.acting(&ctx.downstream, account).await.map_err(RemoveError::Account)
}

/// Removes what was copied for the bundle. Copies made by Fleet's agent carry no stamp: those in the release's namespace
/// are its.
async fn remove_copies(
    ctx: &Context,
    order: &Order<'_>,
    uids: &BTreeSet<Uid>,
    keeps: bool,
) -> Result<(), RemoveError> {
    if keeps {
        return Ok(());
    }
    let ours = |live: &LiveMeta| match live.stamp() {
        // Of one that moved, those elsewhere are what it has now.
        _ if order.why == Why::Moved && live.namespace != order.namespace => false,
        Some(stamp) => uids.contains(&stamp.uid),
        None => live.namespace == order.namespace,
    };
    let removed = copies::remove(&ctx.downstream, order.name, &ours).await.map_err(RemoveError::Copies)?;
    if removed > 0 {
        info!(unit = order.name, removed, "copies of resources of the management cluster removed");
    }
    Ok(())
}

/// A release that goes needs no record of its last hooks.
struct Unwritten;

impl Diary for Unwritten {
    fn note(&mut self, _: usize, _: Phase) {}

    fn waits(&mut self) -> BoxFuture<'_, Result<(), ReleaseError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Whether the guard found is a dead session's or nobody's, or an earlier try of this very session.
fn takes_over(history: &[Record], dead: Option<&SessionId>, own: &SessionId) -> bool {
    let found = history.last().and_then(|record| record.guard());
    found.is_some_and(|guard| guard.is_given_up() || Some(&guard.session) == dead || guard.session == *own)
}

fn place(name: &str, object: &BundleDeployment) -> (String, String) {
    let known = object.status.as_ref().and_then(|status| status.release.parse::<ReleaseId>().ok());
    known.map_or_else(|| expected_place(name, object), |release| (release.namespace, release.name))
}

async fn sweep(
    downstream: &Downstream,
    kinds: &[Arc<Kind>],
    hash: &str,
    uids: &BTreeSet<Uid>,
) -> Result<(), RemoveError> {
    let swept = prune::orphans(downstream, kinds, hash, uids, &CancellationToken::new()).await;
    swept.map(|_| ()).map_err(RemoveError::Strays)
}

/// S7: a create that a frozen replica sent before it was taken over can still land; by then it has. Nobody else would look
/// for it, so the look is taken until it is answered.
fn sweep_later(ctx: Arc<Context>, name: String, kinds: Vec<Arc<Kind>>, hash: String, uids: BTreeSet<Uid>) {
    tokio::spawn(async move {
        tokio::time::sleep(ctx.protocol.ttl + ctx.downstream.server.timeout()).await;
        let downstream = &ctx.downstream;
        again::until_done(&name, || sweep_again(downstream, &name, &kinds, &hash, &uids)).await;
        // What is deleted and does not go, is nobody's by now: only a person can see to it.
        for object in again::until_done(&name, || prune::held(downstream, &kinds, &hash, &uids)).await {
            warn!(unit = name, object, "an object of the removed bundle does not go");
            let note = format!("bundle {name} is removed, but not all of it goes: {object}");
            notes::publish(&ctx, None, EventType::Warning, reason::REMOVAL_HELD, note);
        }
    });
}

/// Objects and copies of BundleDeployments that are removed.
async fn sweep_again(
    downstream: &Downstream,
    name: &str,
    kinds: &[Arc<Kind>],
    hash: &str,
    uids: &BTreeSet<Uid>,
) -> Result<(), RemoveError> {
    sweep(downstream, kinds, hash, uids).await?;
    let ours = |live: &LiveMeta| live.stamp().is_some_and(|stamp| uids.contains(&stamp.uid));
    copies::remove(downstream, name, &ours).await.map_err(RemoveError::Copies)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::downstream::testing::{Exchange, context, scripted};

    #[tokio::test(start_paused = true)]
    async fn the_second_look_after_a_removal_is_taken_until_it_is_answered() {
        const MAPS: &str = "/api/v1/configmaps";
        const SECRETS: &str = "/api/v1/secrets";
        const STRAY: &str = "/api/v1/namespaces/ns/configmaps/c";
        let stray = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "x", "resourceVersion": "7",
            "annotations": {keys::EPOCH_ANNOTATION: "u/9"}}});
        let down = |path| Exchange::get(path).refuses(503, "ServiceUnavailable", "no");
        let none = |path| Exchange::get(path).answers(json!({"items": []}));
        let (server, script) = scripted(vec![
            down(MAPS),
            Exchange::get(MAPS).answers(json!({"items": [stray]})),
            Exchange::get(STRAY).answers(stray),
            Exchange::delete(STRAY),
            down(SECRETS),
            none(MAPS),
            none(SECRETS),
            none(MAPS),
        ]);
        let downstream = context(server);
        let kinds = [downstream.kinds.resolve("v1", "ConfigMap").await.unwrap()];
        let uids = BTreeSet::from(["u".into()]);
        again::until_done("web", || sweep_again(&downstream, "web", &kinds, "h", &uids)).await;
        script.finished().await;
    }

    fn bd(change: impl FnOnce(&mut Value)) -> BundleDeployment {
        let mut object = json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": "web", "namespace": "c", "uid": "u", "resourceVersion": "7"},
            "spec": {"deploymentID": "s-1:a", "options": {"defaultNamespace": "there"}},
            "status": {"appliedDeploymentID": "s-1:a", "release": "there/web:1"},
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn an_old_place_is_left_only_for_a_new_one_that_is_deployed_and_not_paused() {
        let moved = |change: fn(&mut Value)| has_moved("web", &bd(change), ("here", "web"));
        assert!(moved(|_| {}));
        assert!(!has_moved("web", &bd(|_| {}), ("there", "web")), "it is where it should be");
        assert!(!moved(|bd| bd["spec"]["paused"] = json!(true)));
        assert!(!moved(|bd| bd["spec"]["deploymentID"] = json!("s-2:a")), "not deployed yet");
        assert!(
            !moved(|bd| bd["status"]["release"] = json!("here/web:4")),
            "it still stands at the old place"
        );
        assert!(!moved(|bd| bd["status"]["release"] = json!("")), "the new one failed");
        assert!(!moved(|bd| bd["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")));
        assert!(!moved(|bd| {
            let claim = json!({"type": "InProgress", "status": "True", "reason": "Claimed", "message": "?"});
            bd["status"]["conditions"] = json!([claim]);
        }));
    }

    #[test]
    fn a_bundledeployment_that_is_there_takes_the_right_away() {
        let (uid, other) = (Uid("u".into()), Uid("old".into()));
        let order = |why, uid, namespace| Order {
            name: "web",
            uid,
            before: None,
            namespace,
            release: "web",
            why,
            account: "",
            keeps: false,
        };
        let live = bd(|_| {});
        let stands = |order: Order<'_>, live: Option<&BundleDeployment>| order.why.stands(&order, live);
        // It was deleted and is not: its event was one of a cache that lags.
        let error = stands(order(Why::Deleted, &uid, "there"), Some(&live)).unwrap_err();
        assert!(matches!(error, RemoveError::StillThere));
        // Made anew at the same place, and at another.
        assert!(!stands(order(Why::Deleted, &other, "there"), Some(&live)).unwrap());
        assert!(stands(order(Why::Deleted, &other, "here"), Some(&live)).unwrap());
        assert!(!stands(order(Why::Orphaned, &other, "here"), Some(&live)).unwrap());
        assert!(stands(order(Why::Moved, &uid, "here"), Some(&live)).unwrap());
        for (why, right) in [(Why::Deleted, true), (Why::Orphaned, true), (Why::Moved, false)] {
            assert_eq!(stands(order(why, &uid, "here"), None).unwrap(), right, "{why:?}");
        }
    }
}
