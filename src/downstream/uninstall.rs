// SPDX-License-Identifier: Apache-2.0
//! Removing a release whose BundleDeployment is gone.
//!
//! No BundleDeployment is left to claim, so the newest release record is the guard: whoever flips it to `uninstalling`
//! with its resourceVersion removes the release. Idempotent: a removal that was cut short is found guarded, and taken
//! over in the same way once its session is dead. *Whether* to remove is decided elsewhere; absence is not an order.

use std::collections::BTreeSet;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    Downstream,
    release::{Guard, Record, Release, ReleaseError, Status},
    removal::{Fate, RemovalError, Removed, Right, remove_listed},
    server::LiveMeta,
};
use crate::{
    api::keys,
    protocol::{Epoch, SessionId, Stamp, Uid},
    render::Object,
};

/// Which release to remove, and as whom.
pub struct Removal<'a> {
    /// The release's namespace.
    pub namespace: &'a str,
    /// The release's name.
    pub name: &'a str,
    /// The bundle: the removed BundleDeployment's name.
    pub bundle: &'a str,
    /// The removed BundleDeployment.
    pub uid: &'a Uid,
    /// What other uids stamped before this version of the removed BundleDeployment is of earlier ones of its name, and
    /// goes with it. `None`: whatever was stamped for this release is.
    pub before: Option<Epoch>,
    /// This replica's session, and a fresh nonce.
    pub guard: Guard,
    /// The session on the guard that was found is dead (or the foreign run was seen unchanged for the claim timeout):
    /// take its place.
    pub take_over: bool,
    /// The history, just read.
    pub history: Vec<Record>,
}

/// Why a release was not removed (yet).
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// Another replica guarded the release a moment ago.
    #[error("another replica removes the release: record {record}")]
    GuardLost {
        /// The record.
        record: String,
    },
    /// The release was found guarded. Judge the session; a dead one's place may be taken.
    #[error("the release is being removed already: record {record}")]
    Guarded {
        /// The record.
        record: String,
        /// By whom; `None`: by Helm or Fleet's agent.
        guard: Option<Guard>,
        /// Its version: unchanged means that nothing happens.
        resource_version: String,
    },
    /// The release belongs to another BundleDeployment by now: nothing to do.
    #[error("the release is not this BundleDeployment's any more: record {record}")]
    NotOurs {
        /// The record.
        record: String,
    },
    /// A record could not be read or written.
    #[error("cannot remove the release")]
    Release(#[source] ReleaseError),
    /// An object could not be removed.
    #[error("cannot remove the release's objects")]
    Object(#[source] RemovalError),
}

/// A release that this replica removes.
pub struct Guarded {
    namespace: String,
    name: String,
    /// The removed BundleDeployment, and earlier ones of its name whose work it did not replace to the end.
    uids: BTreeSet<Uid>,
    /// All revisions, the guarded one last.
    history: Vec<Record>,
    keeps_objects: bool,
}

/// Guards a release. `None` when there is nothing (left) to remove.
pub async fn guard(ctx: &Downstream, removal: Removal<'_>) -> Result<Option<Guarded>, UninstallError> {
    let Removal { namespace, name, bundle, uid, before, guard, take_over, mut history } = removal;
    let keeps_objects = crate::api::names::is_agent_bundle(bundle) || keeps_resources(&history);
    let foreign = history.iter().rev().find_map(Record::bundle).is_some_and(|owner| owner != bundle);
    let Some(newest) = history.last_mut() else { return Ok(None) };
    let record = newest.name().to_owned();
    let ends =
        |stamp: &Stamp| stamp.uid == *uid || before.as_ref().is_none_or(|before| stamp.epoch < *before);
    if foreign || newest.stamp().is_some_and(|stamp| !ends(&stamp)) {
        return Err(UninstallError::NotOurs { record });
    }
    let resource_version = newest.resource_version().to_owned();
    let resumed = newest.status == Status::Uninstalling && newest.guard().as_ref() == Some(&guard);
    if !resumed {
        if newest.status == Status::Uninstalling && !take_over {
            let guard = newest.guard();
            return Err(UninstallError::Guarded { record, guard, resource_version });
        }
        if newest.status.is_pending() && newest.stamp().is_none() && !take_over {
            let status = newest.status.clone();
            let running = ReleaseError::ForeignRun { record, status, resource_version };
            return Err(UninstallError::Release(running));
        }
        if let Ok(release) = &mut newest.release {
            release.info.status = Status::Uninstalling;
            release.info.deleted = ctx.store.now();
            release.info.description = "Deletion in progress (or silently failed)".to_owned();
        }
        ctx.store.update(newest, None, Some(&guard)).await.map_err(lost)?;
        info!(release = %format_args!("{namespace}/{name}"), revision = newest.revision, session = %guard.session,
            "release guarded for removal");
    }
    // Only uids of records that stood here before the guard: a later BundleDeployment's cannot be among them.
    let stamps = history.iter().filter_map(Record::stamp).filter(ends);
    let uids = stamps.map(|stamp| stamp.uid).chain([uid.clone()]).collect();
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Ok(Some(Guarded { namespace, name, uids, history, keeps_objects }))
}

impl Guarded {
    /// Whether only the records go, not the objects.
    pub fn keeps_objects(&self) -> bool {
        self.keeps_objects
    }

    /// Whose stamps the objects may carry that go: the removed BundleDeployment's, and those of earlier ones of its
    /// name whose work it did not replace to the end.
    pub fn uids(&self) -> &BTreeSet<Uid> {
        &self.uids
    }

    /// The manifests whose objects are to be removed, oldest revision first.
    pub fn manifests(&self) -> impl Iterator<Item = &str> {
        self.history
            .iter()
            .filter_map(|record| record.release.as_ref().ok())
            .map(|release| release.manifest.as_str())
    }

    /// The hooks of the newest revision that can be read, as its record has them: Helm runs those at a removal.
    pub fn hooks(&self) -> &[Value] {
        let newest = self.history.iter().rev().find_map(|record| record.release.as_ref().ok());
        newest.map_or(&[], Release::hooks)
    }

    /// The claim under which the release was last written; `None` when it is not one of ours.
    pub fn stamp(&self) -> Option<Stamp> {
        self.history.iter().rev().find_map(Record::stamp)
    }

    /// Removes the objects, as listed by [`manifests`](Self::manifests) in that order.
    ///
    /// Deleted is only what carries this release's annotations and a stamp of [`uids`](Self::uids) or none: what another
    /// release, a later uid or a person owns by now stays, and so does what the keep policy keeps. Finalizers are
    /// not waited for.
    pub async fn remove(
        &self,
        ctx: &Downstream,
        objects: &[Object],
        cancelled: &CancellationToken,
    ) -> Result<Vec<Removed>, UninstallError> {
        let judge = |live: &LiveMeta| {
            let ours = live.release() == Some((self.namespace.as_str(), self.name.as_str()))
                && live.stamp().is_none_or(|stamp| self.uids.contains(&stamp.uid));
            match (ours, live.is_kept()) {
                (false, _) => Some(Fate::NotOurs),
                (true, true) => Some(Fate::Kept),
                (true, false) => None,
            }
        };
        if self.keeps_objects {
            return Ok(Vec::new());
        }
        let right = Right::Guard(cancelled);
        remove_listed(ctx, right, &self.namespace, objects, &judge).await.map_err(UninstallError::Object)
    }

    /// Says on the record that the removal failed and has ended here, so that nobody waits for this replica: neither
    /// another that removes nor, if the BundleDeployment is made anew, its deployment.
    pub async fn give_up(&mut self, ctx: &Downstream) -> Result<(), UninstallError> {
        let_go(ctx, &mut self.history, None).await
    }

    /// Deletes the records, the guarded one last, so that a removal cut short is found again.
    pub async fn forget(&self, ctx: &Downstream) -> Result<(), UninstallError> {
        for record in &self.history {
            ctx.store.delete(record).await.map_err(lost)?;
        }
        info!(release = %format_args!("{}/{}", self.namespace, self.name), "release removed");
        Ok(())
    }
}

/// Says the same of a removal of `session` (of any, without one) that failed and could not say so then.
pub async fn let_go(
    ctx: &Downstream,
    history: &mut [Record],
    session: Option<&SessionId>,
) -> Result<(), UninstallError> {
    let Some(newest) = history.last_mut() else { return Ok(()) };
    let guard = newest.guard().filter(|guard| session.is_none_or(|session| guard.session == *session));
    let Some(guard) = guard else { return Ok(()) };
    let left = Guard::given_up(guard.nonce);
    ctx.store.update(newest, None, Some(&left)).await.map_err(lost)
}

/// `keepResources` as of the last deployed revision or the newest attempt: either keeps, since what was deleted cannot
/// be brought back.
fn keeps_resources(history: &[Record]) -> bool {
    let keeps = |record: &Record| {
        record
            .release
            .as_ref()
            .is_ok_and(|release| release.chart_annotation(keys::KEEP_RESOURCES) == Some("true"))
    };
    let deployed = history.iter().rfind(|record| record.status == Status::Deployed);
    history.last().is_some_and(keeps) || deployed.is_some_and(keeps)
}

fn lost(error: ReleaseError) -> UninstallError {
    match error {
        ReleaseError::Raced { record } => UninstallError::GuardLost { record },
        other => UninstallError::Release(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::downstream::{
        release::fixtures::{record, secret_path, sent_release},
        testing::{Exchange, context, scripted},
    };

    const PATH: &str = "/api/v1/namespaces/ns/configmaps/c";

    fn removal(uid: &Uid, history: Vec<Record>) -> Removal<'_> {
        let guard = Guard::parse("s/n").unwrap();
        let before = Some("25".into());
        Removal { namespace: "ns", name: "app", bundle: "b", uid, before, guard, take_over: false, history }
    }

    fn guards(version: &'static str) -> Exchange {
        Exchange::put(&secret_path(2))
            .expecting(move |sent| {
                assert_eq!(sent["metadata"]["annotations"][keys::GUARD_ANNOTATION], "s/n");
                assert_eq!(sent["metadata"]["labels"]["status"], "uninstalling");
                assert_eq!(sent["metadata"]["resourceVersion"], version);
                assert_eq!(sent_release(sent).info.status, Status::Uninstalling);
            })
            .stores("uid-sh.helm.release.v1.app.v2", "600")
    }

    fn deletes_record(revision: u32, version: &'static str) -> Exchange {
        Exchange::delete(&secret_path(revision))
            .expecting(move |sent| assert_eq!(sent["preconditions"]["resourceVersion"], version))
    }

    fn live(stamp: Option<&str>, release: &str) -> Value {
        let mut found = json!({"metadata": {"name": "c", "uid": "x", "resourceVersion": "7", "annotations":
            {keys::RELEASE_NAME: release, keys::RELEASE_NAMESPACE: "ns"}}});
        if let Some(stamp) = stamp {
            found["metadata"]["annotations"][keys::EPOCH_ANNOTATION] = json!(stamp);
        }
        found
    }

    fn config_map() -> Object {
        Object {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: String::new(),
            name: "c".into(),
            value: json!({}),
        }
    }

    fn two() -> Vec<Record> {
        vec![record(1, "superseded").stored(), record(2, "deployed").manifest("m").stamped("u/20").stored()]
    }

    #[tokio::test]
    async fn the_newest_record_guards_then_objects_go_and_the_guard_last() {
        let (server, script) = scripted(vec![
            guards("102"),
            Exchange::get(PATH).answers(live(Some("u/20"), "app")),
            Exchange::delete(PATH).expecting(|sent| {
                assert_eq!(sent["preconditions"], json!({"uid": "x", "resourceVersion": "7"}));
            }),
            deletes_record(1, "101"),
            deletes_record(2, "600"),
        ]);
        let ctx = context(server);
        let guarded = guard(&ctx, removal(&"u".into(), two())).await.unwrap().unwrap();
        assert_eq!(guarded.manifests().collect::<Vec<_>>(), ["", "m"]);
        let removed = guarded.remove(&ctx, &[config_map()], &CancellationToken::new()).await.unwrap();
        assert_eq!(removed[0].fate, Fate::Deleted);
        guarded.forget(&ctx).await.unwrap();
        script.finished().await;
    }

    #[tokio::test]
    async fn a_removal_that_failed_says_on_the_record_that_nobody_is_at_it() {
        let left = Exchange::put(&secret_path(2)).expecting(|sent| {
            let guard = sent["metadata"]["annotations"][keys::GUARD_ANNOTATION].as_str().unwrap();
            assert!(Guard::parse(guard).unwrap().is_given_up());
            assert_eq!(sent["metadata"]["labels"]["status"], "uninstalling");
            assert_eq!(sent["metadata"]["resourceVersion"], "600");
        });
        let (server, script) = scripted(vec![guards("102"), left.stores("uid", "601")]);
        let ctx = context(server);
        let mut guarded = guard(&ctx, removal(&"u".into(), two())).await.unwrap().unwrap();
        guarded.give_up(&ctx).await.unwrap();
        script.finished().await;
    }

    #[tokio::test]
    async fn a_guard_that_could_not_be_given_up_is_let_go_by_its_own_session_only() {
        for (guard, exchanges) in [("me/n", 1), ("other/n", 0)] {
            let mut history = vec![record(1, "uninstalling").stamped("u/20").guarded(guard).stored()];
            let left = || {
                Exchange::put(&secret_path(1)).expecting(|sent| {
                    let guard = sent["metadata"]["annotations"][keys::GUARD_ANNOTATION].as_str().unwrap();
                    assert!(Guard::parse(guard).unwrap().is_given_up());
                })
            };
            let (server, script) = scripted((0..exchanges).map(|_| left().stores("uid", "600")).collect());
            let_go(&context(server), &mut history, Some(&"me".into())).await.unwrap();
            script.finished().await;
        }
    }

    #[tokio::test]
    async fn what_a_live_release_another_uid_or_a_person_owns_stays() {
        for (found, fate) in [
            (live(None, "app"), Fate::Deleted),
            (live(Some("new/30"), "app"), Fate::NotOurs),
            (live(Some("u/20"), "other"), Fate::NotOurs),
            (json!({"metadata": {"uid": "x", "resourceVersion": "7"}}), Fate::NotOurs),
        ] {
            let mut exchanges = vec![guards("102"), Exchange::get(PATH).answers(found)];
            if fate == Fate::Deleted {
                exchanges.push(Exchange::delete(PATH));
            }
            exchanges.extend([deletes_record(1, "101"), deletes_record(2, "600")]);
            let (server, script) = scripted(exchanges);
            let ctx = context(server);
            let guarded = guard(&ctx, removal(&"u".into(), two())).await.unwrap().unwrap();
            let removed = guarded.remove(&ctx, &[config_map()], &CancellationToken::new()).await.unwrap();
            assert_eq!(removed[0].fate, fate);
            guarded.forget(&ctx).await.unwrap();
            script.finished().await;
        }
    }

    #[tokio::test]
    async fn what_an_earlier_uid_left_in_the_release_goes_with_the_later_one() {
        // Re-created as u, and deleted again before u was deployed to the end.
        let old = || record(1, "deployed").stamped("old/10").manifest("m").stored();
        let half = record(2, "pending-upgrade").stamped("u/20").stored();
        for (history, revision, version) in [(vec![old()], 1, "101"), (vec![old(), half], 2, "102")] {
            let newest = Exchange::put(&secret_path(revision)).stores("uid", "600");
            let mut exchanges = vec![newest, Exchange::get(PATH).answers(live(Some("old/10"), "app"))];
            exchanges.push(Exchange::delete(PATH));
            exchanges.extend((1..revision).map(|old| deletes_record(old, "101")));
            exchanges.push(deletes_record(revision, "600"));
            let (server, script) = scripted(exchanges);
            let ctx = context(server);
            let guarded = guard(&ctx, removal(&"u".into(), history)).await.unwrap().expect(version);
            assert_eq!(guarded.uids().len(), 2);
            let removed = guarded.remove(&ctx, &[config_map()], &CancellationToken::new()).await.unwrap();
            assert_eq!(removed[0].fate, Fate::Deleted);
            guarded.forget(&ctx).await.unwrap();
            script.finished().await;
        }
    }

    #[tokio::test]
    async fn with_keep_resources_only_the_records_go() {
        let kept = record(2, "deployed").annotated(keys::KEEP_RESOURCES, "true").stored();
        let (server, script) = scripted(vec![guards("102"), deletes_record(2, "600")]);
        let ctx = context(server);
        let guarded = guard(&ctx, removal(&"u".into(), vec![kept])).await.unwrap().unwrap();
        assert!(guarded.keeps_objects());
        guarded.remove(&ctx, &[config_map()], &CancellationToken::new()).await.unwrap();
        guarded.forget(&ctx).await.unwrap();
        script.finished().await;
    }

    #[test]
    fn either_of_the_deployed_and_the_newest_revision_keeps() {
        let told = |revision, status: &str, keeps: &str| {
            record(revision, status).annotated(keys::KEEP_RESOURCES, keeps).stored()
        };
        for (deployed, newest, kept) in
            [("true", "false", true), ("false", "true", true), ("false", "false", false)]
        {
            let history = [
                told(1, "superseded", "true"),
                told(2, "deployed", deployed),
                told(3, "failed", "true"),
                told(4, "failed", newest),
            ];
            assert_eq!(keeps_resources(&history), kept, "deployed {deployed}, newest {newest}");
        }
        assert!(!keeps_resources(&[]));
    }

    #[tokio::test]
    async fn of_two_replicas_one_loses_the_guard() {
        let theirs = record(2, "uninstalling").guarded("other/x").secret();
        let (server, script) = scripted(vec![
            Exchange::put(&secret_path(2)).conflicts(),
            Exchange::get(&secret_path(2)).answers(theirs),
        ]);
        let error = guard(&context(server), removal(&"u".into(), two())).await.err().unwrap();
        assert!(matches!(error, UninstallError::GuardLost { .. }), "{error}");
        script.finished().await;
    }

    #[tokio::test]
    async fn a_guarded_release_is_taken_over_only_when_told_and_resumed_by_its_own_guard() {
        let uid = "u".into();
        let found = |by: &str| vec![record(2, "uninstalling").stamped("u/20").guarded(by).stored()];
        let theirs = record(2, "uninstalling").guarded("other/x").secret();
        let (server, script) = scripted(vec![
            guards("102"),
            guards("102").conflicts(),
            Exchange::get(&secret_path(2)).answers(theirs),
        ]);
        let ctx = context(server);
        let error = guard(&ctx, removal(&uid, found("dead/x"))).await.err().unwrap();
        let UninstallError::Guarded { guard: Some(by), .. } = error else { panic!("{error}") };
        assert_eq!(by.to_string(), "dead/x");
        assert!(guard(&ctx, removal(&uid, found("s/n"))).await.unwrap().is_some(), "its own guard: no write");
        let told = |history| Removal { take_over: true, ..removal(&uid, history) };
        assert!(guard(&ctx, told(found("dead/x"))).await.unwrap().is_some());
        let error = guard(&ctx, told(found("dead/x"))).await.err().unwrap();
        assert!(matches!(error, UninstallError::GuardLost { .. }));
        script.finished().await;
    }

    #[tokio::test]
    async fn a_release_of_another_uid_or_bundle_is_not_touched() {
        let (server, script) = scripted(vec![]);
        let ctx = context(server);
        for history in [
            vec![record(2, "deployed").stamped("new/30").stored()],
            vec![record(2, "deployed").of("other").stored()],
        ] {
            let error = guard(&ctx, removal(&"u".into(), history)).await.err().unwrap();
            assert!(matches!(error, UninstallError::NotOurs { .. }), "{error}");
        }
        assert!(guard(&ctx, removal(&"u".into(), vec![])).await.unwrap().is_none());
        let foreign = vec![record(2, "pending-upgrade").stored()];
        let error = guard(&ctx, removal(&"u".into(), foreign)).await.err().unwrap();
        assert!(matches!(error, UninstallError::Release(ReleaseError::ForeignRun { .. })), "{error}");
        script.finished().await;
    }
}
