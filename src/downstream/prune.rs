// SPDX-License-Identifier: Apache-2.0
//! Removing what a bundle no longer has, and what landed late.
//!
//! What is compared is the union of the last deployed revision and every later attempt with the new manifest: a failed
//! attempt may have left objects that neither the old nor the new one lists.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    Downstream,
    completion::held_by,
    fence::Fence,
    kinds::Kind,
    objects::{Identity, Place},
    removal::{self, Fate, Judge, RemovalError, Removed, Right, remove_listed, remove_one},
    server::{LiveMeta, push_segment},
};
use crate::{
    api::keys,
    protocol::{Stamp, Uid},
    render::Object,
};

/// Deletes the objects of earlier revisions that the new one does not have.
///
/// Only what still carries this release's annotations, no keep policy (live or in its last listing) and no newer stamp.
/// `old` goes from the oldest revision to the newest.
pub async fn prune<'o>(
    ctx: &Downstream,
    fence: &Fence,
    (namespace, name): (&str, &str),
    old: impl IntoIterator<Item = &'o Object>,
    keep: &HashSet<Identity>,
) -> Result<Vec<Removed>, RemovalError> {
    let gone = old.into_iter().filter(|object| !keep.contains(&Identity::of(object, &ctx.kinds, namespace)));
    let judge = |live: &LiveMeta| judged((namespace, name), live);
    remove_listed(ctx, Right::Claim(fence), namespace, gone, &judge).await
}

/// The live objects that [`prune`] would delete. Only read, so without a claim; what a replica that was taken over may
/// have left is not among them.
pub async fn would_go<'o>(
    ctx: &Downstream,
    (namespace, name): (&str, &str),
    old: impl IntoIterator<Item = &'o Object>,
    keep: &HashSet<Identity>,
) -> Result<Vec<(Identity, Value)>, RemovalError> {
    let gone = old.into_iter().filter(|object| !keep.contains(&Identity::of(object, &ctx.kinds, namespace)));
    let judge = |live: &LiveMeta| judged((namespace, name), live);
    removal::would_go(ctx, namespace, gone, &judge).await
}

fn judged(release: (&str, &str), live: &LiveMeta) -> Option<Fate> {
    match live.release() {
        Some(found) if found == release => live.is_kept().then_some(Fate::Kept),
        Some(_) | None => Some(Fate::NotOurs),
    }
}

/// Deletes strays after a takeover: objects with the unit's hash label that an older claim of the same uid stamped, or any
/// claim of a uid in `gone`, and that the new revision does not have. A create of a frozen replica can land late, and
/// nothing else would find it.
///
/// `gone` are earlier BundleDeployments whose release this is now, of which none exists any more. Not any uid that is
/// unknown: what was kept when its BundleDeployment went (`keepResources`) has no record and is a person's.
pub async fn strays(
    ctx: &Downstream,
    fence: &Fence,
    kinds: &[Arc<Kind>],
    hash: &str,
    keep: &HashSet<Identity>,
    gone: &BTreeSet<Uid>,
) -> Result<Vec<Removed>, RemovalError> {
    let is_stray = |live: &LiveMeta| live.stamp().is_some_and(|stamp| is_stray(&stamp, &fence.stamp, gone));
    sweep(ctx, Right::Stray(fence), kinds, hash, keep, &is_stray).await
}

fn is_stray(found: &Stamp, ours: &Stamp, gone: &BTreeSet<Uid>) -> bool {
    if found.uid == ours.uid { found.epoch < ours.epoch } else { gone.contains(&found.uid) }
}

/// Deletes what a release has beyond `keep` where its records no longer tell: objects with the unit's hash label and the
/// release's annotations, in every kind there is. What another release or a person owns carries others.
pub async fn unlisted(
    ctx: &Downstream,
    fence: &Fence,
    (namespace, name): (&str, &str),
    hash: &str,
    keep: &HashSet<Identity>,
) -> Result<Vec<Removed>, RemovalError> {
    let is_ours = |live: &LiveMeta| live.release() == Some((namespace, name));
    sweep(ctx, Right::Claim(fence), &ctx.kinds.all(), hash, keep, &is_ours).await
}

/// Whether there are strays, without touching them: the look that is taken once more when every request of the holder
/// before must have ended. `stamp` is the claim's that swept first.
pub async fn has_strays(
    ctx: &Downstream,
    stamp: &Stamp,
    kinds: &[Arc<Kind>],
    hash: &str,
    keep: &HashSet<Identity>,
    gone: &BTreeSet<Uid>,
) -> Result<bool, RemovalError> {
    let is_stray = |live: &LiveMeta| {
        let stray = |found: Stamp| is_stray(&found, stamp, gone);
        live.stamp().is_some_and(stray)
            && !live.is_kept()
            && !live.is_hook()
            && live.deletion_timestamp.is_none()
    };
    for kind in kinds {
        let found = labelled(ctx, kind, hash).await?;
        let unknown = |live: &LiveMeta| !keep.contains(&identity(kind, live));
        if found.iter().any(|live| is_stray(live) && unknown(live)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes strays after a removal: objects with the unit's hash label and a stamp of the removed uids. To be done once
/// when the release is removed, and once more when a frozen replica's last request must have ended.
pub async fn orphans(
    ctx: &Downstream,
    kinds: &[Arc<Kind>],
    hash: &str,
    uids: &BTreeSet<Uid>,
    cancelled: &tokio_util::sync::CancellationToken,
) -> Result<Vec<Removed>, RemovalError> {
    let is_stray = |live: &LiveMeta| live.stamp().is_some_and(|stamp| uids.contains(&stamp.uid));
    sweep(ctx, Right::Guard(cancelled), kinds, hash, &HashSet::new(), &is_stray).await
}

/// The objects of a removed bundle that are being deleted and do not go, and what holds each: `Kind namespace/name:
/// finalizer x holds it`.
pub async fn held(
    ctx: &Downstream,
    kinds: &[Arc<Kind>],
    hash: &str,
    uids: &BTreeSet<Uid>,
) -> Result<Vec<String>, RemovalError> {
    let mut held = Vec::new();
    for kind in kinds {
        for live in labelled(ctx, kind, hash).await? {
            let ours = live.stamp().is_none_or(|stamp| uids.contains(&stamp.uid));
            if ours && live.deletion_timestamp.is_some() && !live.finalizers.is_empty() {
                let place =
                    if live.namespace.is_empty() { String::new() } else { format!("{}/", live.namespace) };
                let why = held_by(&live.finalizers);
                held.push(format!("{} {place}{}: {why}", kind.resource.kind, live.name));
            }
        }
    }
    Ok(held)
}

/// One LIST a kind; each stray is read again before it is deleted.
async fn sweep(
    ctx: &Downstream,
    right: Right<'_>,
    kinds: &[Arc<Kind>],
    hash: &str,
    keep: &HashSet<Identity>,
    is_stray: &(dyn Fn(&LiveMeta) -> bool + Sync),
) -> Result<Vec<Removed>, RemovalError> {
    // A hook stays until its own policy deletes it, whenever it ran.
    let judge: Judge<'_> = &|live: &LiveMeta| match (is_stray(live) && !live.is_hook(), live.is_kept()) {
        (false, _) => Some(Fate::NotOurs),
        (true, true) => Some(Fate::Kept),
        (true, false) => None,
    };
    let mut removed = Vec::new();
    for kind in kinds {
        let found = labelled(ctx, kind, hash).await?;
        for live in found.iter().filter(|live| judge(live).is_none()) {
            let object = identity(kind, live);
            if keep.contains(&object) {
                continue;
            }
            let place = Place { kind, namespace: &live.namespace, name: &live.name };
            let (fate, gone) = remove_one(ctx, right, &place, judge).await?;
            removed.push(Removed { object, fate, gone });
        }
    }
    Ok(removed)
}

/// The objects of a kind that carry a unit's hash label, in all namespaces.
async fn labelled(ctx: &Downstream, kind: &Arc<Kind>, hash: &str) -> Result<Vec<LiveMeta>, RemovalError> {
    let mut path = kind.collection("");
    path.push_str("?labelSelector=");
    push_segment(&mut path, keys::HASH_LABEL);
    path.push_str("%3D");
    push_segment(&mut path, hash);
    match ctx.agent.metadata_list(&path).await {
        Ok(found) => Ok(found),
        // The kind went away, and its objects with it; or it is none whose objects are kept, such as a review.
        // A CRD that was just removed answers with a plain page, which has no reason.
        Err(error) if error.status().is_some_and(|status| matches!(status.code, 404 | 405)) => Ok(Vec::new()),
        Err(source) => Err(RemovalError::Refused { object: kind.to_string(), source }),
    }
}

fn identity(kind: &Kind, live: &LiveMeta) -> Identity {
    Identity {
        group: kind.resource.group.clone(),
        kind: kind.resource.kind.clone(),
        namespace: live.namespace.clone(),
        name: live.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::downstream::{
        fence::{
            Fenced,
            tests::{fence, outdated, proof, with},
        },
        testing::{Exchange, context, scripted},
    };

    const PATH: &str = "/api/v1/namespaces/ns/configmaps/c";

    fn object(kind: &str, name: &str) -> Object {
        let (api_version, namespace) = ("v1".to_owned(), String::new());
        let value = json!({"metadata": {"name": name}});
        Object { api_version, kind: kind.into(), namespace, name: name.into(), value }
    }

    fn live(stamp: &str) -> Value {
        json!({"metadata": {"name": "c", "namespace": "ns", "uid": "x", "resourceVersion": "7", "annotations":
            {keys::RELEASE_NAME: "app", keys::RELEASE_NAMESPACE: "ns", keys::EPOCH_ANNOTATION: stamp}}})
    }

    fn deletes(path: &str) -> Exchange {
        Exchange::delete(path).expecting(|sent| {
            assert_eq!(sent["preconditions"], json!({"uid": "x", "resourceVersion": "7"}));
        })
    }

    async fn pruned(
        exchanges: Vec<Exchange>,
        old: &[Object],
        new: &[Object],
    ) -> Result<Vec<Fate>, RemovalError> {
        let (server, script) = scripted(exchanges);
        let ctx = context(server);
        let keep = Identity::of_all(new, &ctx.kinds, "ns");
        let removed = prune(&ctx, &fence("u/20"), ("ns", "app"), old, &keep).await;
        script.finished().await;
        Ok(removed?.into_iter().map(|one| one.fate).collect())
    }

    #[tokio::test]
    async fn what_the_bundle_no_longer_has_goes_and_the_rest_is_not_even_read() {
        let old = [object("ConfigMap", "c"), object("Secret", "s")];
        let script = vec![Exchange::get(PATH).answers(live("u/10")), deletes(PATH)];
        assert_eq!(pruned(script, &old, &old[1..]).await.unwrap(), [Fate::Deleted]);
    }

    #[tokio::test]
    async fn a_change_of_the_api_version_prunes_nothing() {
        let mut old = object("Deployment", "web");
        old.api_version = "apps/v1beta1".into();
        let new = Object { api_version: "apps/v1".into(), ..old.clone() };
        assert_eq!(pruned(vec![], &[old], &[new]).await.unwrap(), []);
    }

    #[tokio::test]
    async fn objects_go_in_reverse_install_order() {
        let old = [object("Namespace", "n"), object("ConfigMap", "c"), object("Secret", "s")];
        let paths = [PATH, "/api/v1/namespaces/ns/secrets/s", "/api/v1/namespaces/n"];
        let script =
            paths.into_iter().flat_map(|path| [Exchange::get(path).answers(live("u/10")), deletes(path)]);
        assert_eq!(pruned(script.collect(), &old, &[]).await.unwrap(), [Fate::Deleted; 3]);
    }

    #[tokio::test]
    async fn what_is_kept_gone_or_anothers_is_left() {
        let old = [object("ConfigMap", "c")];
        let with = |edit: fn(&mut Value)| {
            let mut found = live("u/10");
            edit(&mut found["metadata"]["annotations"]);
            found
        };
        for (answer, fate) in [
            (Exchange::get(PATH).missing(), Fate::Missing),
            (Exchange::get(PATH).answers(with(|a| a[keys::RESOURCE_POLICY] = json!("keep"))), Fate::Kept),
            (Exchange::get(PATH).answers(with(|a| a[keys::RELEASE_NAME] = json!("other"))), Fate::NotOurs),
            (Exchange::get(PATH).answers(with(|a| *a = json!({}))), Fate::NotOurs),
        ] {
            assert_eq!(pruned(vec![answer], &old, &[]).await.unwrap(), [fate]);
        }
        let mut kept = object("ConfigMap", "c");
        kept.value["metadata"]["annotations"] = json!({keys::RESOURCE_POLICY: "keep"});
        assert_eq!(pruned(vec![], &[kept], &[]).await.unwrap(), [Fate::Kept]);
    }

    #[tokio::test]
    async fn what_would_go_is_what_prune_deletes_and_is_only_read() {
        let old = [object("ConfigMap", "c")];
        let with = |edit: fn(&mut Value)| {
            let mut found = live("u/10");
            edit(&mut found["metadata"]["annotations"]);
            Exchange::get(PATH).answers(found)
        };
        for (answer, goes) in [
            (with(|_| ()), 1),
            (with(|a| a[keys::RESOURCE_POLICY] = json!("keep")), 0),
            (with(|a| a[keys::RELEASE_NAME] = json!("other")), 0),
            (with(|a| *a = json!({})), 0),
            (Exchange::get(PATH).missing(), 0),
        ] {
            let (server, script) = scripted(vec![answer]);
            let found = would_go(&context(server), ("ns", "app"), &old, &HashSet::new()).await.unwrap();
            assert_eq!(found.len(), goes);
            script.finished().await;
        }
        // The last listing says whether it is kept.
        let mut kept = object("ConfigMap", "c");
        kept.value["metadata"]["annotations"] = json!({keys::RESOURCE_POLICY: "keep"});
        let (server, script) = scripted(vec![]);
        let listed = [old[0].clone(), kept];
        assert!(
            would_go(&context(server), ("ns", "app"), &listed, &HashSet::new()).await.unwrap().is_empty()
        );
        script.finished().await;
    }

    #[tokio::test]
    async fn a_stale_holder_prunes_nothing_that_newer_work_stamped() {
        let script = vec![
            Exchange::get(PATH).answers(live("u/10")),
            deletes(PATH).conflicts(),
            Exchange::get(PATH).answers(live("u/100")),
        ];
        let error = pruned(script, &[object("ConfigMap", "c")], &[]).await.unwrap_err();
        assert!(matches!(error.fenced(), Some(Fenced::Newer { .. })), "{error}");
    }

    #[tokio::test]
    async fn a_create_that_landed_late_is_found_by_its_label_and_older_stamp() {
        let list = json!({"items": [live("u/10"), live("u/20"), live("other/1")]});
        let (server, script) = scripted(vec![
            Exchange::get("/api/v1/configmaps?labelSelector=objectset.rio.cattle.io%2Fhash%3Dh")
                .answers(list),
            Exchange::get(PATH).answers(live("u/10")),
            deletes(PATH),
        ]);
        let ctx = context(server);
        let kinds = [ctx.kinds.known("v1", "ConfigMap").unwrap()];
        let removed = strays(&ctx, &fence("u/20"), &kinds, "h", &HashSet::new(), &BTreeSet::new()).await;
        assert_eq!(removed.unwrap().len(), 1);
        script.finished().await;
    }

    const LIST: &str = "/api/v1/configmaps?labelSelector=objectset.rio.cattle.io%2Fhash%3Dh";

    #[tokio::test]
    async fn what_an_earlier_uid_left_goes_and_what_a_living_one_stamped_meanwhile_stays() {
        let gone = BTreeSet::from([Uid("old".into())]);
        let list = || Exchange::get(LIST).answers(json!({"items": [live("old/900"), live("living/1")]}));
        // Read again before it is deleted: it is what it was, or a living one has it by now.
        for (read, fate) in [("old/900", Fate::Deleted), ("living/2", Fate::NotOurs)] {
            let mut script = vec![list(), Exchange::get(PATH).answers(live(read))];
            script.extend((fate == Fate::Deleted).then(|| deletes(PATH)));
            let (server, script) = scripted(script);
            let ctx = context(server);
            let kinds = [ctx.kinds.known("v1", "ConfigMap").unwrap()];
            let known = proof(true, true, true);
            let fence = with("u/20", known.clone());
            let removed = strays(&ctx, &fence, &kinds, "h", &HashSet::new(), &gone).await.unwrap();
            assert_eq!(removed.iter().map(|one| one.fate).collect::<Vec<_>>(), [fate]);
            let looked = known.reads.load(std::sync::atomic::Ordering::SeqCst);
            assert_eq!(looked, usize::from(fate == Fate::Deleted), "the claim is looked at after the object");
            script.finished().await;
        }
    }

    #[tokio::test]
    async fn a_frozen_holder_removes_nothing_of_an_earlier_uid_when_its_claim_is_gone() {
        for known in [proof(true, true, false), outdated(true)] {
            let list = json!({"items": [live("old/9")]});
            let (server, script) =
                scripted(vec![Exchange::get(LIST).answers(list), Exchange::get(PATH).answers(live("old/9"))]);
            let ctx = context(server);
            let kinds = [ctx.kinds.known("v1", "ConfigMap").unwrap()];
            let gone = BTreeSet::from([Uid("old".into())]);
            let swept = strays(&ctx, &with("u/20", known), &kinds, "h", &HashSet::new(), &gone).await;
            assert!(swept.unwrap_err().fenced().is_some());
            script.finished().await;
        }
    }

    #[tokio::test]
    async fn what_is_deleted_and_does_not_go_is_named_with_what_holds_it() {
        let mut stuck = live("u/20");
        stuck["metadata"]["deletionTimestamp"] = json!("2026-08-22T12:00:00Z");
        stuck["metadata"]["finalizers"] = json!(["example.com/guard"]);
        let mut theirs = stuck.clone();
        theirs["metadata"]["annotations"][keys::EPOCH_ANNOTATION] = json!("other/1");
        let path = "/api/v1/configmaps?labelSelector=objectset.rio.cattle.io%2Fhash%3Dh";
        let items = json!({"items": [live("u/20"), theirs, stuck]});
        let (server, script) = scripted(vec![Exchange::get(path).answers(items)]);
        let ctx = context(server);
        let kinds = [ctx.kinds.known("v1", "ConfigMap").unwrap()];
        let held = held(&ctx, &kinds, "h", &BTreeSet::from(["u".into()])).await.unwrap();
        assert_eq!(held, ["ConfigMap ns/c: finalizer example.com/guard holds it"]);
        script.finished().await;
    }

    #[tokio::test]
    async fn where_no_record_tells_labels_and_annotations_do_in_every_kind_that_can_be_listed() {
        let hook = |mut live: Value| {
            live["metadata"]["annotations"]["helm.sh/hook"] = json!("post-install");
            live
        };
        let mut others = live("u/10");
        others["metadata"]["annotations"][keys::RELEASE_NAME] = json!("other");
        let list = |kind: &str| format!("{kind}?labelSelector=objectset.rio.cattle.io%2Fhash%3Dh");
        let nothing = || json!({"items": null});
        let (server, script) = scripted(vec![
            Exchange::get(&list("/api/v1/configmaps"))
                .answers(json!({"items": [others, hook(live("u/10")), live("u/10")]})),
            Exchange::get(PATH).answers(live("u/10")),
            deletes(PATH),
            Exchange::get(&list("/api/v1/namespaces")).answers(nothing()),
            Exchange::get(&list("/api/v1/secrets")).answers(nothing()),
            Exchange::get(&list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")).missing(),
            Exchange::get(&list("/apis/apps/v1/deployments")).refuses(405, "MethodNotAllowed", "no"),
        ]);
        let ctx = context(server);
        let removed = unlisted(&ctx, &fence("u/20"), ("ns", "app"), "h", &HashSet::new()).await.unwrap();
        assert_eq!(removed.len(), 1);
        script.finished().await;
    }

    #[tokio::test]
    async fn the_second_look_finds_a_late_create_and_deletes_nothing() {
        let path = "/api/v1/configmaps?labelSelector=objectset.rio.cattle.io%2Fhash%3Dh";
        let stamp = Stamp::parse("u/20").unwrap();
        let gone = BTreeSet::from([Uid("old".into())]);
        for (stamps, found) in
            [(&["u/20", "other/1"][..], false), (&["u/20", "u/10"], true), (&["old/99"], true), (&[], false)]
        {
            let items: Vec<Value> = stamps.iter().map(|stamp| live(stamp)).collect();
            let (server, script) = scripted(vec![Exchange::get(path).answers(json!({"items": items}))]);
            let ctx = context(server);
            let kinds = [ctx.kinds.known("v1", "ConfigMap").unwrap()];
            let looked = has_strays(&ctx, &stamp, &kinds, "h", &HashSet::new(), &gone).await;
            assert_eq!(looked.unwrap(), found, "{stamps:?}");
            script.finished().await;
        }
    }
}
