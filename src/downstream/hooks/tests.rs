// SPDX-License-Identifier: Apache-2.0
use serde_json::json;

use super::*;
use crate::{
    downstream::{
        fence::tests::{fence, proof, with},
        server::Server,
        testing::context,
    },
    render::Object,
    telemetry::scripted::{self, Call},
};

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const JOBS: &str = "/apis/batch/v1/namespaces/ns/jobs";

/// What stood in the diary: `0 Running`, `wait`.
#[derive(Default)]
struct Notes(Vec<String>);

impl Diary for Notes {
    fn note(&mut self, index: usize, phase: Phase) {
        self.0.push(format!("{index} {phase:?}"));
    }
    fn waits(&mut self) -> BoxFuture<'_, Result<(), ReleaseError>> {
        self.0.push("wait".into());
        Box::pin(std::future::ready(Ok(())))
    }
}

fn hook(kind: &str, name: &str, weight: i32, policies: &[DeletePolicy]) -> Hook {
    let api_version = if kind == "Job" { "batch/v1" } else { "v1" };
    Hook {
        object: Object {
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: String::new(),
            name: name.into(),
            value: json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name,
                "labels": {keys::HASH_LABEL: "h"}, "annotations": {"helm.sh/hook": "pre-install"}}}),
        },
        path: format!("shop/templates/{name}.yaml"),
        events: vec![HookEvent::PreInstall],
        weight,
        delete_policies: policies.to_vec(),
        output_log_policies: Vec::new(),
        manifest: String::new(),
    }
}

fn live(labels: Value, annotations: Value) -> Value {
    json!({"metadata": {"name": "x", "namespace": "ns", "uid": "x", "resourceVersion": "7",
        "labels": labels, "annotations": annotations}})
}

/// Runs the hooks under claim u/20 against what `script` answers.
async fn ran(
    hooks: &[Hook],
    fence: &Fence,
    script: impl AsyncFnOnce(&mut scripted::Server),
) -> (Result<usize, HookError>, Vec<String>) {
    let (client, mut server) = scripted::client();
    let ctx = context(Server::new(client, Duration::from_secs(5)));
    ctx.kinds.learn("batch/v1", "Job", "jobs", true);
    let runner = Runner::claimed(&ctx, fence, ("ns", "h"), Duration::from_secs(60), false);
    let mut notes = Notes::default();
    let play = async {
        script(&mut server).await;
        server
    };
    let (result, mut server) = tokio::join!(runner.run(hooks, HookEvent::PreInstall, &mut notes), play);
    drop(ctx);
    if let Some(extra) = server.try_next().await {
        panic!("an extra request: {}", extra.line());
    }
    (result, notes.0)
}

async fn expect(server: &mut scripted::Server, line: &str) -> Call {
    let call = server.next().await;
    assert_eq!(call.line(), line);
    call
}

/// The create of a hook, which can only create.
async fn creates(server: &mut scripted::Server, path: &str) -> Call {
    let call = expect(server, &format!("PATCH {path}")).await;
    let metadata = &call.body["metadata"];
    assert_eq!(metadata["resourceVersion"], "1");
    assert_eq!(metadata["annotations"][keys::EPOCH_ANNOTATION], "u/20");
    assert!(metadata["labels"].get(keys::MANAGED_BY).is_none(), "no part of the release");
    assert!(metadata["annotations"].get(keys::RELEASE_NAME).is_none());
    call
}

fn created(call: Call) {
    let mut body = call.body.clone();
    body["metadata"]["uid"] = json!("new");
    body["metadata"]["resourceVersion"] = json!("8");
    call.answer(201, &body);
}

fn refuses(call: Call, code: u16, reason: &str, message: &str) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message});
    call.answer(code, &status);
}

async fn absent(server: &mut scripted::Server, path: &str) {
    let call = expect(server, &format!("GET {path}")).await;
    refuses(call, 404, "NotFound", "not found");
}

/// Answers the list of a watch on one object, and tells its changes.
async fn watched(server: &mut scripted::Server, collection: &str, first: Value, changes: &[Value]) {
    let list = expect(server, &format!("GET {collection}")).await;
    assert!(list.query.contains("fieldSelector=metadata.name"), "{}", list.query);
    let items = if first.is_null() { json!([]) } else { json!([first]) };
    list.answer(
        200,
        &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items}),
    );
    if !changes.is_empty() {
        expect(server, &format!("GET {collection}")).await.lines(changes);
    }
}

fn job(uid: &str, condition: Option<&str>) -> Value {
    let conditions = condition.map_or(json!([]), |name| json!([{"type": name, "status": "True"}]));
    json!({"apiVersion": "batch/v1", "kind": "Job", "status": {"conditions": conditions, "failed": 1},
        "metadata": {"name": "migrate", "namespace": "ns", "uid": uid, "resourceVersion": "10"}})
}

#[tokio::test]
async fn hooks_run_one_after_the_other_by_weight_and_name_and_others_stay_out() {
    let mut late = hook("ConfigMap", "a", 5, &[]);
    late.events.push(HookEvent::PreUpgrade);
    let mut other = hook("ConfigMap", "other", -9, &[]);
    other.events = vec![HookEvent::PostInstall];
    let hooks = [late, hook("ConfigMap", "c", -1, &[]), other, hook("ConfigMap", "b", -1, &[])];
    let (result, notes) = ran(&hooks, &fence("u/20"), async |server| {
        for name in ["b", "c", "a"] {
            let path = format!("{MAPS}/{name}");
            absent(server, &path).await;
            created(creates(server, &path).await);
        }
    })
    .await;
    assert_eq!(result.unwrap(), 3);
    let expected = ["3 Running", "3 Succeeded", "1 Running", "1 Succeeded", "0 Running", "0 Succeeded"];
    assert_eq!(notes, expected);
}

#[tokio::test]
async fn what_an_earlier_run_left_is_deleted_with_preconditions_and_gone_before_the_next_run() {
    let path = format!("{MAPS}/a");
    let (result, _) = ran(&[hook("ConfigMap", "a", 0, &[])], &fence("u/20"), async |server| {
        let found = live(json!({keys::HASH_LABEL: "h"}), json!({keys::EPOCH_ANNOTATION: "u/10"}));
        expect(server, &format!("GET {path}")).await.answer(200, &found);
        let delete = expect(server, &format!("DELETE {path}")).await;
        assert_eq!(delete.body["preconditions"], json!({"uid": "x", "resourceVersion": "7"}));
        // A finalizer holds it.
        let mut held = found.clone();
        held["kind"] = json!("ConfigMap");
        delete.answer(200, &held);
        let gone = json!({"type": "DELETED", "object": {"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "ns", "uid": "x", "resourceVersion": "11"}}});
        let mut listed = found;
        listed["apiVersion"] = json!("v1");
        listed["kind"] = json!("ConfigMap");
        listed["metadata"]["name"] = json!("a");
        watched(server, MAPS, listed, &[gone]).await;
        created(creates(server, &path).await);
    })
    .await;
    assert_eq!(result.unwrap(), 1);
}

#[tokio::test]
async fn an_object_that_is_no_hook_of_the_bundle_is_neither_deleted_nor_taken() {
    let path = format!("{MAPS}/a");
    for policies in [&[][..], &[DeletePolicy::HookSucceeded]] {
        let (result, notes) = ran(&[hook("ConfigMap", "a", 0, policies)], &fence("u/20"), async |server| {
            if policies.is_empty() {
                expect(server, &format!("GET {path}")).await.answer(200, &live(json!({}), json!({})));
            } else {
                refuses(creates(server, &path).await, 409, "Conflict", "exists");
                let theirs = live(json!({keys::HASH_LABEL: "theirs"}), json!({"helm.sh/hook": "test"}));
                expect(server, &format!("GET {path}")).await.answer(200, &theirs);
            }
        })
        .await;
        let error = result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "warning: Hook pre-install shop/templates/a.yaml failed: ns/a /v1, Kind=ConfigMap exists and is no hook of \
             this release"
        );
        assert!(!error.is_permanent());
        assert_eq!(notes.last().map(String::as_str), Some("0 Failed"));
    }
}

#[tokio::test]
async fn a_hook_left_by_helm_or_by_an_interrupted_attempt_makes_room_and_runs_anew() {
    let path = format!("{MAPS}/a");
    for left in [
        live(json!({}), json!({"helm.sh/hook": "pre-install"})),
        live(json!({keys::HASH_LABEL: "h"}), json!({keys::EPOCH_ANNOTATION: "u/10"})),
        live(json!({}), json!({keys::EPOCH_ANNOTATION: "u/10"})),
    ] {
        let hooks = [hook("ConfigMap", "a", 0, &[DeletePolicy::HookFailed])];
        let (result, _) = ran(&hooks, &fence("u/20"), async |server| {
            refuses(creates(server, &path).await, 409, "AlreadyExists", "exists");
            expect(server, &format!("GET {path}")).await.answer(200, &left);
            expect(server, &format!("GET {path}")).await.answer(200, &left);
            expect(server, &format!("DELETE {path}")).await.answer(200, &json!({"kind": "Status"}));
            created(creates(server, &path).await);
        })
        .await;
        assert_eq!(result.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_stale_holder_neither_deletes_nor_makes_a_hook() {
    let path = format!("{MAPS}/a");
    let (result, notes) = ran(&[hook("ConfigMap", "a", 0, &[])], &fence("u/20"), async |server| {
        let newer = live(json!({keys::HASH_LABEL: "h"}), json!({keys::EPOCH_ANNOTATION: "u/100"}));
        expect(server, &format!("GET {path}")).await.answer(200, &newer);
    })
    .await;
    assert!(matches!(result.unwrap_err().fenced(), Some(Fenced::Newer { .. })));
    assert_eq!(notes, [""; 0]);
    let lost = with("u/20", proof(false, true, false));
    let hooks = [hook("ConfigMap", "a", 0, &[DeletePolicy::HookSucceeded])];
    let (result, _) = ran(&hooks, &lost, async |_| {}).await;
    assert!(matches!(result.unwrap_err().fenced(), Some(Fenced::ClaimLost)));
}

#[tokio::test]
async fn a_job_is_waited_for_and_deleted_once_it_has_succeeded() {
    let path = format!("{JOBS}/migrate");
    let hooks = [hook("Job", "migrate", 0, &[DeletePolicy::HookSucceeded])];
    let (result, notes) = ran(&hooks, &fence("u/20"), async |server| {
        created(creates(server, &path).await);
        let done = json!({"type": "MODIFIED", "object": job("new", Some("Complete"))});
        watched(server, JOBS, job("new", None), &[done]).await;
        let found = live(json!({keys::HASH_LABEL: "h"}), json!({keys::EPOCH_ANNOTATION: "u/20"}));
        expect(server, &format!("GET {path}")).await.answer(200, &found);
        expect(server, &format!("DELETE {path}")).await.answer(200, &json!({"kind": "Status"}));
    })
    .await;
    assert_eq!(result.unwrap(), 1);
    assert_eq!(notes, ["0 Running", "wait", "0 Succeeded"]);
}

#[tokio::test]
async fn a_job_that_fails_fails_the_deployment_in_helms_words_and_policies_still_count() {
    let path = format!("{JOBS}/migrate");
    let hooks = [
        hook("Job", "migrate", 1, &[DeletePolicy::HookFailed]),
        hook("ConfigMap", "a", 0, &[DeletePolicy::HookSucceeded]),
    ];
    let (result, notes) = ran(&hooks, &fence("u/20"), async |server| {
        created(creates(server, &format!("{MAPS}/a")).await);
        created(creates(server, &path).await);
        watched(server, JOBS, job("new", Some("Failed")), &[]).await;
        let found = live(json!({keys::HASH_LABEL: "h"}), json!({keys::EPOCH_ANNOTATION: "u/20"}));
        for path in [path.clone(), format!("{MAPS}/a")] {
            expect(server, &format!("GET {path}")).await.answer(200, &found);
            expect(server, &format!("DELETE {path}")).await.answer(200, &json!({"kind": "Status"}));
        }
    })
    .await;
    let error = result.unwrap_err();
    assert_eq!(
        error.to_string(),
        "resource Job/ns/migrate not ready. status: Failed, message: Job Failed. failed: 1/1"
    );
    assert!(!error.is_permanent(), "its surroundings may have failed it");
    assert_eq!(notes, ["1 Running", "1 Succeeded", "0 Running", "wait", "0 Failed"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_takes_too_long_or_vanishes_is_told() {
    for (first, changes, text, permanent) in [
        (
            job("new", None),
            vec![],
            "resource Job/ns/migrate not ready. status: InProgress, message: Job in progress\ncontext deadline \
             exceeded",
            true,
        ),
        (
            json!(null),
            vec![],
            "resource Job/ns/migrate not ready. status: NotFound, message: Resource not found",
            false,
        ),
        (
            job("another", Some("Complete")),
            vec![],
            "resource Job/ns/migrate not ready. status: NotFound, message: Resource not found",
            false,
        ),
    ] {
        let hooks = [hook("Job", "migrate", 0, &[DeletePolicy::HookSucceeded])];
        let (result, _) = ran(&hooks, &fence("u/20"), async |server| {
            created(creates(server, &format!("{JOBS}/migrate")).await);
            watched(server, JOBS, first.clone(), &changes).await;
            if permanent {
                // The watch stays open until the time is up.
                let open = expect(server, &format!("GET {JOBS}")).await;
                tokio::time::sleep(Duration::from_secs(61)).await;
                drop(open);
            }
        })
        .await;
        let error = result.unwrap_err();
        assert_eq!(error.to_string(), text);
        assert_eq!(error.is_permanent(), permanent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_once_when_it_is_called_off() {
    let fence = fence("u/20");
    let hooks = [hook("Job", "migrate", 0, &[DeletePolicy::HookSucceeded])];
    let (result, notes) = ran(&hooks, &fence, async |server| {
        created(creates(server, &format!("{JOBS}/migrate")).await);
        watched(server, JOBS, job("new", None), &[]).await;
        let _open = expect(server, &format!("GET {JOBS}")).await;
        fence.cancelled.cancel();
    })
    .await;
    assert!(matches!(result.unwrap_err().fenced(), Some(Fenced::Cancelled)));
    assert_eq!(notes, ["0 Running", "wait"], "neither failed nor deleted: whoever is next runs it anew");
}

#[tokio::test]
async fn a_hook_that_no_api_server_takes_is_told_with_its_template() {
    let path = format!("{MAPS}/a");
    let (result, _) = ran(&[hook("ConfigMap", "a", 0, &[])], &fence("u/20"), async |server| {
        absent(server, &path).await;
        refuses(creates(server, &path).await, 422, "Invalid", "ConfigMap \"a\" is invalid");
    })
    .await;
    let error = result.unwrap_err();
    assert_eq!(
        chain(&error),
        "warning: Hook pre-install shop/templates/a.yaml failed: server-side apply failed for object ns/a /v1, \
         Kind=ConfigMap: ConfigMap \"a\" is invalid"
    );
    assert!(error.is_permanent());

    let mut nameless = hook("ConfigMap", "a/b", 0, &[]);
    nameless.object.name = "a/b".into();
    let (result, _) = ran(&[nameless], &fence("u/20"), async |_| {}).await;
    assert!(result.unwrap_err().is_permanent());

    let unknown = hook("Gadget", "g", 0, &[]);
    let (result, _) = ran(&[unknown], &fence("u/20"), async |server| {
        for exchange in ["/api", "/apis"] {
            let call = expect(server, &format!("GET {exchange}")).await;
            call.answer(200, &json!({"kind": "APIGroupDiscoveryList", "items": []}));
        }
    })
    .await;
    let error = result.unwrap_err();
    assert!(
        chain(&error).starts_with(
            "unable to build kubernetes object for pre-install hook shop/templates/g.yaml: unable to build kubernetes \
             objects from release manifest: resource mapping not found for name: \"g\""
        ),
        "{}",
        chain(&error)
    );
    assert!(!error.is_permanent(), "its CRD may come");
}
