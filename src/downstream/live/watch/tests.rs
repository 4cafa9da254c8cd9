// SPDX-License-Identifier: Apache-2.0
//! The watch against a scripted API server: exact requests, in order.

use std::collections::HashSet;

use axum::body::Body as Reply;
use chrono::Utc;
use futures::StreamExt;
use http::{Request, Response};
use kube::{
    Client,
    client::Body,
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use tower_test::mock::{Handle, SendResponse};

use super::*;
use crate::{
    api::IgnoreOptions,
    downstream::live::{LiveStore, UNUSED},
    monitor::{ErrorStatuses, Key, Live},
};

type Script = Handle<Request<Body>, Response<Reply>>;

/// Longer than any step of a script takes; only a broken one waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

fn start(timing: Timing) -> (LiveStore, Script) {
    let (service, script) = tower_test::mock::pair::<Request<Body>, Response<Reply>>();
    let client = Client::new(service, "default");
    (
        LiveStore::with_timing(
            client,
            Arc::new(ErrorStatuses::default()),
            || chrono::DateTime::<Utc>::UNIX_EPOCH,
            timing,
        ),
        script,
    )
}

fn hasty() -> Timing {
    Timing { delay: Duration::from_millis(1), longest: Duration::from_millis(4), ..Timing::default() }
}

fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

async fn request(script: &mut Script) -> (String, SendResponse<Response<Reply>>) {
    let next =
        timeout(PATIENCE, script.next_request()).await.expect("no further request").expect("client gone");
    (next.0.uri().to_string(), next.1)
}

/// Answers the next request, which must be a list, with objects as of a version.
async fn list(script: &mut Script, version: &str, items: Vec<Value>) -> String {
    let (uri, send) = request(script).await;
    assert!(!uri.contains("watch=true"), "{uri}");
    send.send_response(answer(
        200,
        &json!({
            "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items,
        }),
    ));
    uri
}

/// Answers the next request, which must be a watch from that version, with events and then the end.
async fn watch(script: &mut Script, from: &str, events: &[Value]) {
    let (send, from) = watch_asked(script, from).await;
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    send.send_response(
        Response::builder().header("watched-from", from).body(Reply::from(lines.into_bytes())).unwrap(),
    );
}

async fn watch_asked<'s>(script: &mut Script, from: &'s str) -> (SendResponse<Response<Reply>>, &'s str) {
    let (uri, send) = request(script).await;
    assert!(uri.contains("watch=true") && uri.contains("allowWatchBookmarks=true"), "{uri}");
    assert!(uri.ends_with(&format!("resourceVersion={from}")), "{uri}");
    (send, from)
}

fn answer(code: u16, body: &Value) -> Response<Reply> {
    Response::builder().status(code).body(Reply::from(body.to_string().into_bytes())).unwrap()
}

fn refusal(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "X", "message": "no"})
}

fn config_map(name: &str, version: &str, hash: &str) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {
        "namespace": "n", "name": name, "uid": name, "resourceVersion": version,
        "labels": {keys::HASH_LABEL: hash},
    }})
}

fn event(type_: &str, object: Value) -> Value {
    json!({"type": type_, "object": object})
}

fn key(name: &str) -> Key {
    Key::new("v1", "ConfigMap", "n", name)
}

async fn changed<T>(changes: &mut crate::downstream::live::Changes<T>) -> HashSet<T> {
    timeout(PATIENCE, changes.next()).await.expect("nothing changed")
}

fn set(hashes: &[&str]) -> HashSet<Arc<str>> {
    hashes.iter().map(|&hash| hash.into()).collect()
}

#[tokio::test]
async fn a_kind_is_listed_by_label_everywhere_and_then_watched() {
    let (store, mut script) = start(hasty());
    let mut changes = store.subscribe();
    store.ensure(&resource("v1", "ConfigMap"));
    store.ensure(&resource("v1", "ConfigMap"));
    assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Listing));
    let uri = list(&mut script, "10", vec![config_map("a", "5", "h1")]).await;
    assert_eq!(uri, "/api/v1/configmaps?&labelSelector=objectset.rio.cattle.io%2Fhash&limit=100");
    assert_eq!(store.synced("v1", "ConfigMap").await, KindState::Synced);
    assert_eq!(changed(&mut changes).await, set(&["h1"]));

    watch(
        &mut script,
        "10",
        &[event("ADDED", config_map("b", "11", "h2")), event("DELETED", config_map("a", "12", "h1"))],
    )
    .await;
    let (_open, _) = watch_asked(&mut script, "12").await;
    assert_eq!(changed(&mut changes).await, set(&["h1", "h2"]));
    assert!(matches!(store.lookup(&key("b"), "h2"), Live::Ours(_)));
    assert!(matches!(store.lookup(&key("b"), "h1"), Live::NotOurs));
    assert!(matches!(store.lookup(&key("a"), "h1"), Live::Missing));
}

#[tokio::test]
async fn a_deletion_tells_whether_a_job_had_ended() {
    let (store, mut script) = start(hasty());
    let mut changes = store.subscribe();
    store.ensure(&resource("batch/v1", "Job"));
    let job = |name: &str, version: &str, conditions: Value| {
        json!({"metadata": {"namespace": "n", "name": name, "uid": name, "resourceVersion": version,
            "labels": {keys::HASH_LABEL: "h"}}, "status": {"conditions": conditions}})
    };
    list(&mut script, "10", vec![job("a", "5", json!([])), job("b", "6", json!([]))]).await;
    assert_eq!(changed(&mut changes).await, set(&["h"]));
    let done = json!([{"type": "Complete", "status": "True"}]);
    let ends = [event("DELETED", job("a", "11", done)), event("DELETED", job("b", "12", json!([])))];
    watch(&mut script, "10", &ends).await;
    let (_open, _) = watch_asked(&mut script, "12").await;
    let of = |name: &str| store.has_ended(&Key::new("batch/v1", "Job", "n", name));
    assert!(of("a") && !of("b"));
}

#[tokio::test]
async fn a_long_list_is_read_page_by_page() {
    let (store, mut script) = start(hasty());
    store.ensure(&resource("v1", "ConfigMap"));
    let (_, send) = request(&mut script).await;
    send.send_response(answer(
        200,
        &json!({
            "metadata": {"resourceVersion": "10", "continue": "more"}, "items": [config_map("a", "5", "h")],
        }),
    ));
    let uri = list(&mut script, "10", vec![config_map("b", "6", "h")]).await;
    assert!(uri.contains("continue=more"), "{uri}");
    store.synced("v1", "ConfigMap").await;
    assert_eq!(store.by_hash("h").len(), 2);
}

#[tokio::test]
async fn a_watch_that_ends_is_resumed_from_the_last_version_heard_of() {
    let (store, mut script) = start(hasty());
    store.ensure(&resource("v1", "ConfigMap"));
    list(&mut script, "10", vec![]).await;
    watch(&mut script, "10", &[event("ADDED", config_map("a", "12", "h"))]).await;
    let mark = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": "30"}});
    watch(&mut script, "12", &[event("BOOKMARK", mark)]).await;
    let (send, _) = watch_asked(&mut script, "30").await;
    send.send_response(answer(503, &refusal(503)));
    let (_open, _) = watch_asked(&mut script, "30").await;
    assert_eq!(store.by_hash("h").len(), 1);
}

#[tokio::test]
async fn a_version_that_is_gone_makes_it_list_again_whether_said_in_the_stream_or_at_once() {
    for at_once in [false, true] {
        let (store, mut script) = start(hasty());
        let mut changes = store.subscribe();
        store.ensure(&resource("v1", "ConfigMap"));
        list(&mut script, "10", vec![config_map("a", "5", "h1"), config_map("b", "6", "h2")]).await;
        if at_once {
            let (send, _) = watch_asked(&mut script, "10").await;
            send.send_response(answer(410, &refusal(410)));
        } else {
            watch(&mut script, "10", &[event("ERROR", refusal(410))]).await;
        }
        changed(&mut changes).await;
        list(&mut script, "40", vec![config_map("b", "6", "h2")]).await;
        let (_open, _) = watch_asked(&mut script, "40").await;
        assert_eq!(changed(&mut changes).await, set(&["h1"]), "only the unit that lost an object");
        assert!(store.get(&key("a")).is_none());
        assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Synced));
    }
}

#[tokio::test]
async fn a_kind_that_vanishes_is_unavailable_until_it_is_served_again_and_others_go_on() {
    let (store, mut script) = start(hasty());
    store.ensure(&resource("gold.example.com/v1", "Widget"));
    let (uri, send) = request(&mut script).await;
    assert!(uri.starts_with("/apis/gold.example.com/v1/widgets?"), "{uri}");
    // The plain page that a server answers for a group it does not know.
    let page = Reply::from(b"404 page not found\n".to_vec());
    send.send_response(Response::builder().status(404).body(page).unwrap());
    assert_eq!(store.synced("gold.example.com/v1", "Widget").await, KindState::Unavailable);

    let widget = json!({"apiVersion": "gold.example.com/v1", "kind": "Widget", "metadata": {
        "namespace": "n", "name": "w", "uid": "w", "resourceVersion": "5", "labels": {keys::HASH_LABEL: "h"},
    }, "status": {"conditions": [{"type": "Ready", "status": "False", "message": "wait"}]}});
    list(&mut script, "10", vec![widget]).await;
    let (_open, _) = watch_asked(&mut script, "10").await;
    assert_eq!(store.state("gold.example.com/v1", "Widget"), Some(KindState::Synced));
    assert_eq!(store.by_hash("h")[0].summary.message, ["wait"]);
}

#[tokio::test]
async fn watches_that_end_at_once_and_tell_nothing_lead_to_a_list() {
    let (store, mut script) = start(hasty());
    store.ensure(&resource("v1", "ConfigMap"));
    list(&mut script, "10", vec![]).await;
    for _ in 0..SILENT_WATCHES {
        watch(&mut script, "10", &[]).await;
    }
    list(&mut script, "7", vec![config_map("a", "5", "h")]).await;
    let (_open, _) = watch_asked(&mut script, "7").await;
    assert_eq!(store.by_hash("h").len(), 1);
}

#[tokio::test]
async fn a_watch_that_never_answers_is_given_up() {
    let (store, mut script) = start(Timing { answer: Duration::from_millis(20), ..hasty() });
    store.ensure(&resource("v1", "ConfigMap"));
    list(&mut script, "10", vec![]).await;
    let (_hung, _) = watch_asked(&mut script, "10").await;
    let (_again, _) = watch_asked(&mut script, "10").await;
    assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Behind));
}

#[tokio::test]
async fn what_was_lost_for_long_is_told_and_so_is_its_return() {
    let (store, mut script) = start(Timing { lost: Duration::ZERO, ..hasty() });
    let (mut changes, mut kinds) = (store.subscribe(), store.subscribe_to_kinds());
    let config_maps = || HashSet::from([Kind::new("v1", "ConfigMap")]);
    store.ensure(&resource("v1", "ConfigMap"));
    // Not listed yet: nothing is lost.
    request(&mut script).await.1.send_response(answer(500, &refusal(500)));
    list(&mut script, "10", vec![config_map("a", "5", "h1"), config_map("b", "6", "h2")]).await;
    assert_eq!(store.synced("v1", "ConfigMap").await, KindState::Synced);
    assert_eq!(changed(&mut changes).await, set(&["h1", "h2"]));
    watch_asked(&mut script, "10").await.0.send_response(answer(500, &refusal(500)));
    assert_eq!(changed(&mut kinds).await, config_maps(), "nothing is known any more");
    assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Lost));
    assert_eq!(&*store.failure("v1", "ConfigMap"), "the request failed: no");
    let (send, _) = watch_asked(&mut script, "10").await;
    let open = Reply::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    send.send_response(Response::new(open));
    assert_eq!(changed(&mut kinds).await, config_maps(), "it is followed again");
    assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Synced));
    assert!(matches!(store.lookup(&key("a"), "h1"), Live::Ours(_)), "what was known is kept meanwhile");
}

#[tokio::test]
async fn a_kind_that_is_taken_away_after_its_objects_is_told_and_so_is_its_return() {
    let (store, mut script) = start(hasty());
    let (mut changes, mut kinds) = (store.subscribe(), store.subscribe_to_kinds());
    store.ensure(&resource("v1", "ConfigMap"));
    list(&mut script, "10", vec![config_map("a", "5", "h1")]).await;
    assert_eq!(changed(&mut changes).await, set(&["h1"]));
    watch(&mut script, "10", &[event("DELETED", config_map("a", "11", "h1"))]).await;
    assert_eq!(changed(&mut changes).await, set(&["h1"]));
    watch_asked(&mut script, "11").await.0.send_response(answer(404, &refusal(404)));
    let config_maps = HashSet::from([Kind::new("v1", "ConfigMap")]);
    assert_eq!(changed(&mut kinds).await, config_maps);
    assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Unavailable));
    // No answer at all does not make it any better known.
    request(&mut script).await.1.send_response(answer(500, &refusal(500)));
    let (_, again) = request(&mut script).await;
    assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Unavailable));
    again.send_response(answer(404, &refusal(404)));
    list(&mut script, "20", vec![]).await;
    assert_eq!(changed(&mut kinds).await, config_maps);
    assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Synced));
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_no_plan_names_is_watched_no_longer_after_a_while() {
    let (store, mut script) = start(hasty());
    let kind = |name| Kind::new("v1", name);
    store.ensure(&resource("v1", "ConfigMap"));
    let (_, maps) = request(&mut script).await;
    store.ensure(&resource("v1", "Secret"));
    let (_, secrets) = request(&mut script).await;
    tokio::time::advance(UNUSED).await;
    store.ensure(&resource("v1", "ServiceAccount"));
    assert_eq!(store.forget_unused(&HashSet::from([kind("Secret")])), [kind("ConfigMap")]);
    assert_eq!(store.state("v1", "ConfigMap"), None);
    assert!(store.state("v1", "Secret").is_some(), "a plan names it");
    assert!(store.state("v1", "ServiceAccount").is_some(), "a deployment may be about to use it");
    // Asked for anew, it begins anew.
    store.ensure(&resource("v1", "ConfigMap"));
    assert_eq!(store.state("v1", "ConfigMap"), Some(KindState::Listing));
    drop((maps, secrets));
}

#[tokio::test]
async fn a_watch_that_falls_silent_is_given_up() {
    let (store, mut script) = start(Timing { watch: 0, answer: Duration::from_millis(50), ..hasty() });
    store.ensure(&resource("v1", "ConfigMap"));
    list(&mut script, "10", vec![]).await;
    let (send, _) = watch_asked(&mut script, "10").await;
    let first = format!("{}\n", event("ADDED", config_map("a", "11", "h"))).into_bytes();
    let dead = futures::stream::iter([Ok::<_, std::io::Error>(first)]).chain(futures::stream::pending());
    send.send_response(Response::new(Reply::from_stream(dead)));
    let (_again, _) = watch_asked(&mut script, "11").await;
}

#[tokio::test]
async fn other_rules_for_a_unit_make_its_kinds_be_read_again() {
    let (store, mut script) = start(hasty());
    let mut changes = store.subscribe();
    store.ensure(&resource("apps/v1", "Deployment"));
    let deployment = json!({"metadata": {
        "namespace": "n", "name": "d", "uid": "d", "resourceVersion": "5", "generation": 1,
        "labels": {keys::HASH_LABEL: "h"},
    }, "spec": {"replicas": 0}, "status": {"observedGeneration": 1, "conditions": [
        {"type": "Available", "status": "True"}, {"type": "Progressing", "status": "False", "message": "stuck"},
    ]}});
    list(&mut script, "10", vec![deployment.clone()]).await;
    assert_eq!(changed(&mut changes).await, set(&["h"]));
    let (_open, _) = watch_asked(&mut script, "10").await;
    assert!(!store.by_hash("h")[0].summary.is_ready());
    let rule = [("type".to_owned(), "Progressing".to_owned())];
    let options = IgnoreOptions { conditions: vec![rule.into_iter().collect()] };
    store.ignore("h", &options);
    store.ignore("h", &options);
    list(&mut script, "10", vec![deployment]).await;
    assert_eq!(changed(&mut changes).await, set(&["h"]));
    assert!(store.by_hash("h")[0].summary.is_ready());
}

#[tokio::test]
async fn the_watches_end_with_the_store() {
    let (store, mut script) = start(hasty());
    store.ensure(&resource("v1", "ConfigMap"));
    list(&mut script, "10", vec![]).await;
    let (_open, _) = watch_asked(&mut script, "10").await;
    assert_eq!(store.synced("v1", "Secret").await, KindState::Unavailable, "nobody watches it");
    drop(store);
    let end = timeout(PATIENCE, script.next_request()).await.expect("the client lives on");
    assert!(end.is_none());
}
