// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeSet;

use serde_json::json;

use super::{super::fixtures::*, *};
use crate::{
    api::keys,
    downstream::{
        fence::tests::{fence, proof, with},
        testing::{Exchange, scripted},
    },
    telemetry::chain,
};

const SECRETS: &str = "/api/v1/namespaces/ns/secrets";

fn input(history: Vec<Record>) -> GateInput<'static> {
    GateInput {
        namespace: "ns",
        name: "app",
        bundle: "b",
        chart: json!({"metadata": {"name": "b", "annotations": {keys::BUNDLE_ID: "b"}}}),
        manifest: "new".into(),
        values: None,
        hooks: None,
        replaces: false,
        takes: false,
        history,
        create_namespace: Some(json!({"labels": {"name": "ns"}})),
        fail_foreign: false,
        over_removal: false,
        max_history: 0,
    }
}

fn creates(revision: u32, status: &'static str) -> Exchange {
    Exchange::post(SECRETS)
        .expecting(move |sent| {
            assert_eq!(sent["metadata"]["name"], secret(revision));
            assert_eq!(sent["metadata"]["annotations"][keys::EPOCH_ANNOTATION], "u/20");
            assert_eq!(sent["metadata"]["labels"]["status"], status);
            assert_eq!(sent["metadata"]["labels"]["createdAt"], "1787400000");
            assert_eq!(sent["type"], "helm.sh/release.v1");
            let release = sent_release(sent);
            assert_eq!((release.version, release.info.status.as_str()), (revision, status));
            assert_eq!(release.apply_method, "ssa");
        })
        .stores(&format!("uid-{}", secret(revision)), "500")
}

fn writes(revision: u32, version: &'static str, status: &'static str) -> Exchange {
    Exchange::put(&secret_path(revision))
        .expecting(move |sent| {
            assert_eq!(sent["metadata"]["resourceVersion"], version);
            assert_eq!(sent["metadata"]["uid"], format!("uid-{}", secret(revision)));
            assert_eq!(sent["metadata"]["labels"]["status"], status);
            assert!(sent["metadata"]["labels"].get("createdAt").is_none());
            assert_eq!(sent["metadata"]["labels"]["modifiedAt"], "1787400000");
            assert_eq!(sent_release(sent).info.status.as_str(), status);
        })
        .stores(&format!("uid-{}", secret(revision)), "600")
}

#[tokio::test]
async fn a_first_deployment_costs_one_post_and_one_put() {
    let (server, script) = scripted(vec![
        Exchange::get("/api/v1/namespaces/ns/secrets?labelSelector=name%3Dapp%2Cowner%3Dhelm")
            .answers(json!({"kind": "SecretList", "items": []})),
        creates(1, "pending-install"),
        writes(1, "500", "deployed"),
    ]);
    let store = store(server);
    let history = store.history("ns", "app").await.unwrap();
    let gate = Gate::open(&store, &fence("u/20"), input(history)).await.unwrap();
    assert_eq!((gate.revision(), gate.operation()), (1, Some(Operation::Install)));
    assert_eq!(gate.deployed(None).await.unwrap(), 1);
    script.finished().await;
}

#[tokio::test]
async fn an_upgrade_supersedes_the_old_revision_and_drops_the_oldest() {
    let (server, script) = scripted(vec![
        creates(3, "pending-upgrade"),
        writes(3, "500", "deployed"),
        Exchange::delete(&secret_path(1)).expecting(|sent| {
            assert_eq!(
                sent["preconditions"],
                json!({"uid": "uid-sh.helm.release.v1.app.v1", "resourceVersion": "101"})
            );
        }),
        writes(2, "102", "superseded"),
    ]);
    let gate = Gate::open(&store(server), &fence("u/20"), input(history(&["superseded", "deployed"])))
        .await
        .unwrap();
    assert_eq!(gate.before().len(), 1);
    assert_eq!(gate.deployed(None).await.unwrap(), 3);
    script.finished().await;
}

#[tokio::test]
async fn taking_over_an_interrupted_first_install_fails_it_and_stays_an_install() {
    let leftover = record(1, "pending-install").stamped("u/10").stored();
    let (server, script) = scripted(vec![writes(1, "101", "failed"), creates(2, "pending-install")]);
    let gate = Gate::open(&store(server), &fence("u/20"), input(vec![leftover])).await.unwrap();
    assert_eq!((gate.revision(), gate.operation()), (2, Some(Operation::Install)));
    assert_eq!(gate.before().len(), 1, "what the interrupted attempt applied must be pruned");
    assert_eq!(gate.deployed_before().count(), 0, "what it only tried to apply may be another's");
    assert!(gate.follows_interrupted(), "whatever the claim says");
    script.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_closing_write_without_an_answer_is_settled_by_the_record() {
    let lost = || Exchange::put(&secret_path(1)).refuses(504, "Timeout", "no answer");
    let found = |state, stamp: &str| record(1, state).stamped(stamp).at("600").secret();
    for (state, stamp, counts) in
        [("deployed", "u/20", true), ("pending-install", "u/20", false), ("failed", "u/30", false)]
    {
        let (server, script) = scripted(vec![
            creates(1, "pending-install"),
            lost(),
            Exchange::get(&secret_path(1)).refuses(503, "ServiceUnavailable", "starting"),
            Exchange::get(&secret_path(1)).answers(found(state, stamp)),
        ]);
        let gate = Gate::open(&store(server), &fence("u/20"), input(vec![])).await.unwrap();
        assert_eq!(gate.deployed(None).await.is_ok(), counts, "{state} {stamp}");
        script.finished().await;
    }
}

#[tokio::test]
async fn a_leftover_that_its_holder_just_closed_counts_as_it_stands() {
    let leftover = record(1, "pending-install").stamped("u/10").stored();
    let closed = record(1, "deployed").stamped("u/10").at("150").secret();
    let (server, script) = scripted(vec![
        Exchange::put(&secret_path(1)).conflicts(),
        Exchange::get(&secret_path(1)).answers(closed.clone()),
        Exchange::get(&secret_path(1)).answers(closed),
        creates(2, "pending-upgrade"),
    ]);
    let gate = Gate::open(&store(server), &fence("u/20"), input(vec![leftover])).await.unwrap();
    assert_eq!(gate.operation(), Some(Operation::Upgrade));
    script.finished().await;
}

#[tokio::test]
async fn a_stale_holder_opens_no_gate_over_newer_work() {
    let (server, script) = scripted(vec![]);
    let newer = record(1, "pending-install").stamped("u/100").stored();
    let error = Gate::open(&store(server), &fence("u/20"), input(vec![newer])).await.err().unwrap();
    assert!(matches!(error.fenced(), Some(Fenced::Newer { .. })), "{error}");
    script.finished().await;
}

#[tokio::test]
async fn a_foreign_run_is_waited_for_and_failed_only_when_told() {
    let (server, script) = scripted(vec![writes(2, "102", "failed"), creates(3, "pending-upgrade")]);
    let store = store(server);
    let seen = || vec![record(1, "deployed").stored(), record(2, "pending-upgrade").stored()];
    let error = Gate::open(&store, &fence("u/20"), input(seen())).await.err().unwrap();
    assert!(
        matches!(&error, ReleaseError::ForeignRun { resource_version, .. } if resource_version == "102"),
        "{error}"
    );
    assert!(!error.is_permanent());
    let told = GateInput { fail_foreign: true, ..input(seen()) };
    assert_eq!(Gate::open(&store, &fence("u/20"), told).await.unwrap().revision(), 3);
    script.finished().await;
}

#[tokio::test]
async fn another_bundles_release_is_never_taken() {
    let (server, script) = scripted(vec![]);
    let theirs = vec![record(1, "deployed").of("other").stored()];
    let error = Gate::open(&store(server), &fence("u/20"), input(theirs)).await.err().unwrap();
    assert_eq!(error.to_string(), "release ns/app belongs to bundle other, not to b");
    script.finished().await;
}

#[tokio::test]
async fn a_removal_in_progress_is_waited_for() {
    let (server, script) = scripted(vec![creates(2, "pending-upgrade")]);
    let store = store(server);
    let seen = || vec![record(1, "uninstalling").guarded("s/n").stored()];
    let error = Gate::open(&store, &fence("u/20"), input(seen())).await.err().unwrap();
    assert!(matches!(error, ReleaseError::Uninstalling { guard: Some(_), .. }), "{error}");
    let told = GateInput { over_removal: true, ..input(seen()) };
    assert!(Gate::open(&store, &fence("u/20"), told).await.is_ok());
    script.finished().await;
}

#[tokio::test]
async fn the_namespace_is_made_only_when_it_is_missing() {
    let missing = || Exchange::post(SECRETS).refuses(404, "NotFound", "namespaces \"ns\" not found");
    let (server, script) = scripted(vec![
        missing(),
        Exchange::patch("/api/v1/namespaces/ns?fieldManager=fleetagent&force=true")
            .expecting(|sent| {
                assert_eq!(sent["metadata"]["labels"], json!({"name": "ns"}));
                assert_eq!(sent["metadata"]["resourceVersion"], "1");
            })
            .conflicts(),
        creates(1, "pending-install"),
        missing(),
    ]);
    let store = store(server);
    assert!(Gate::open(&store, &fence("u/20"), input(vec![])).await.is_ok());
    let forbidden = GateInput { create_namespace: None, ..input(vec![]) };
    let error = Gate::open(&store, &fence("u/20"), forbidden).await.err().unwrap();
    assert_eq!(chain(&error), "create: failed to create: namespaces \"ns\" not found");
    script.finished().await;
}

#[tokio::test]
async fn a_namespace_is_made_with_what_the_bundle_wants_on_it() {
    let (server, script) = scripted(vec![
        Exchange::post(SECRETS).refuses(404, "NotFound", "namespaces \"ns\" not found"),
        Exchange::patch("/api/v1/namespaces/ns").expecting(|sent| {
            let wanted = json!({"name": "ns", "resourceVersion": "1", "labels": {"team": "blue"},
                "annotations": {"note": "hello"}});
            assert_eq!(sent["metadata"], wanted, "in the request that makes it, before the first object");
        }),
        creates(1, "pending-install"),
    ]);
    let metadata = json!({"labels": {"team": "blue"}, "annotations": {"note": "hello"}});
    let wanted = GateInput { create_namespace: Some(metadata), ..input(vec![]) };
    assert!(Gate::open(&store(server), &fence("u/20"), wanted).await.is_ok());
    script.finished().await;
}

#[tokio::test]
async fn of_two_deployed_revisions_none_is_left_by_the_next() {
    let (server, script) = scripted(vec![
        creates(3, "pending-upgrade"),
        writes(3, "500", "deployed"),
        writes(1, "101", "superseded"),
        writes(2, "102", "superseded"),
    ]);
    let seen = GateInput { max_history: 3, ..input(history(&["deployed", "deployed"])) };
    let gate = Gate::open(&store(server), &fence("u/20"), seen).await.unwrap();
    assert_eq!(gate.deployed(None).await.unwrap(), 3);
    script.finished().await;
}

#[tokio::test]
async fn a_revision_that_exists_by_now_is_a_lost_race() {
    let theirs = record(1, "pending-install").stamped("u/21").secret();
    let (server, script) = scripted(vec![
        Exchange::post(SECRETS).refuses(409, "AlreadyExists", "secrets exists"),
        Exchange::get(&secret_path(1)).answers(theirs),
    ]);
    let error = Gate::open(&store(server), &fence("u/20"), input(vec![])).await.err().unwrap();
    assert!(matches!(error, ReleaseError::Raced { .. }));
    script.finished().await;
}

#[tokio::test]
async fn a_write_that_was_repeated_on_its_way_is_known_by_what_stands() {
    let stands = |version| Exchange::get(&secret_path(1)).answers_sent("uid-1", version);
    let (server, script) = scripted(vec![
        Exchange::post(SECRETS).refuses(409, "AlreadyExists", "secrets exists"),
        stands("101"),
        Exchange::put(&secret_path(1))
            .expecting(|sent| assert_eq!(sent["metadata"]["resourceVersion"], "101"))
            .conflicts(),
        stands("102"),
    ]);
    let gate = Gate::open(&store(server), &fence("u/20"), input(vec![])).await.unwrap();
    assert_eq!(gate.deployed(None).await.unwrap(), 1);
    script.finished().await;
}

#[tokio::test]
async fn a_lost_claim_opens_no_gate() {
    let (server, script) = scripted(vec![]);
    let fence = with("u/20", proof(false, true, false));
    let error = Gate::open(&store(server), &fence, input(vec![])).await.err().unwrap();
    assert!(matches!(error.fenced(), Some(Fenced::ClaimLost)));
    script.finished().await;
}

#[tokio::test]
async fn a_failed_attempt_drops_only_failed_ones_that_newer_ones_account_for() {
    let seen = vec![
        record(1, "deployed").manifest("old").stored(),
        record(2, "failed").manifest("between").stored(),
        record(3, "failed").stamped("u/10").stored(),
        record(4, "failed").stamped("other/10").stored(),
        record(5, "superseded").stored(),
        record(6, "failed").unreadable().stored(),
    ];
    let (server, script) = scripted(vec![
        creates(7, "pending-upgrade"),
        Exchange::put(&secret_path(7))
            .expecting(|sent| {
                assert_eq!(sent_release(sent).info.description, "Upgrade \"app\" failed: no room");
                assert_eq!(sent["metadata"]["labels"]["status"], "failed");
            })
            .stores("uid-sh.helm.release.v1.app.v7", "600"),
        Exchange::delete(&secret_path(3)),
    ]);
    let gate = Gate::open(&store(server), &fence("u/20"), input(seen)).await.unwrap();
    assert_eq!(gate.before().len(), 6, "the last deployed revision and every later attempt");
    assert_eq!(gate.surplus(), 5);
    // Not the second, whose objects nobody else lists.
    gate.failed("no room", &BTreeSet::from([1, 3, 4, 5, 6])).await.unwrap();
    script.finished().await;
}

#[tokio::test]
async fn an_adopted_release_is_stamped_and_makes_no_revision() {
    let (server, script) = scripted(vec![
        Exchange::put(&secret_path(2))
            .expecting(|sent| {
                assert_eq!(sent["metadata"]["annotations"][keys::EPOCH_ANNOTATION], "u/20");
                assert_eq!(sent["metadata"]["resourceVersion"], "102");
                assert_eq!(sent["metadata"]["labels"]["status"], "deployed");
            })
            .stores("uid-sh.helm.release.v1.app.v2", "600"),
        writes(1, "101", "superseded"),
    ]);
    let gate =
        Gate::adopt(&store(server), &fence("u/20"), "b", history(&["deployed", "deployed"])).await.unwrap();
    assert_eq!((gate.revision(), gate.operation()), (2, None));
    gate.deployed(None).await.unwrap();
    script.finished().await;
}

#[tokio::test]
async fn a_failed_upgrade_goes_back_as_a_new_revision_with_what_stood_before() {
    let seen = vec![
        record(1, "superseded").manifest("older").stored(),
        record(2, "deployed").manifest("good").stored(),
        record(3, "failed").manifest("bad").stored(),
    ];
    let (server, script) = scripted(vec![
        creates(4, "pending-upgrade"),
        Exchange::put(&secret_path(4))
            .expecting(|sent| {
                assert_eq!(sent_release(sent).info.description, "Upgrade \"app\" failed: not ready");
                assert_eq!(sent["metadata"]["labels"]["status"], "failed");
            })
            .stores("uid-sh.helm.release.v1.app.v4", "600"),
        creates(5, "pending-rollback"),
        Exchange::put(&secret_path(5))
            .expecting(|sent| {
                let release = sent_release(sent);
                assert_eq!(release.manifest, "good");
                assert_eq!(release.info.description, "Rollback to 2");
                assert_eq!(sent["metadata"]["labels"]["status"], "deployed");
            })
            .stores("uid-sh.helm.release.v1.app.v5", "700"),
        Exchange::delete(&secret_path(1)),
        Exchange::delete(&secret_path(2)),
        Exchange::delete(&secret_path(3)),
    ]);
    let gate = Gate::open(&store(server), &fence("u/20"), input(seen)).await.unwrap();
    let gate = gate.roll_back("not ready").await.unwrap().expect("something to go back to");
    assert_eq!((gate.revision(), gate.operation()), (5, Some(Operation::Rollback { to: 2 })));
    let revisions: Vec<_> = gate.before().iter().map(|record| record.revision).collect();
    assert_eq!(revisions, [2, 3, 4], "what the failed upgrade made is pruned");
    assert_eq!(gate.deployed(None).await.unwrap(), 5);
    script.finished().await;
}

#[tokio::test]
async fn there_is_no_way_back_from_what_cannot_be_read_or_never_was() {
    for history in [vec![], vec![record(1, "failed").stored()]] {
        let revision = history.len() as u32 + 1;
        let (server, script) = scripted(vec![creates(revision, "pending-install")]);
        let gate = Gate::open(&store(server), &fence("u/20"), input(history)).await.unwrap();
        assert!(gate.roll_back("no").await.unwrap().is_none());
        script.finished().await;
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_leaves_history_once_all_is_accounted_for() {
    let seen = vec![
        record(1, "deployed").stamped("u/10").stored(),
        record(2, "deployed").stamped("u/11").unreadable().stored(),
    ];
    let (server, script) = scripted(vec![
        creates(3, "pending-upgrade"),
        writes(3, "500", "deployed"),
        Exchange::delete(&secret_path(1)),
        Exchange::delete(&secret_path(2)),
    ]);
    let gate = Gate::open(&store(server), &fence("u/20"), input(seen)).await.unwrap();
    assert!(gate.is_blind());
    gate.deployed(None).await.unwrap();
    script.finished().await;
}

#[path = "gate_states_tests.rs"]
mod states;

#[test]
fn a_record_says_of_server_side_apply_what_helm_would_say() {
    let stored = |method: &str| {
        let mut record = record(1, "deployed").stored();
        if let Ok(release) = &mut record.release {
            release.apply_method = method.into();
        }
        vec![record]
    };
    let (install, upgrade) = (Operation::Install, Operation::Upgrade);
    for (history, operation, replaces, takes, expected) in [
        (vec![], install, false, false, "ssa"),
        (vec![], install, false, true, "csa"),
        (vec![], install, true, false, "csa"),
        (stored("ssa"), upgrade, false, true, "ssa"),
        (stored("ssa"), upgrade, true, false, "csa"),
        (stored("csa"), upgrade, false, false, "csa"),
        (stored(""), upgrade, false, false, "csa"),
    ] {
        assert_eq!(apply_method(&history, operation, replaces, takes), expected);
    }
}
