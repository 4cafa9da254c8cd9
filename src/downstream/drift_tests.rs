// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;
use crate::downstream::testing::{Exchange, context, scripted};

fn object(value: &Value) -> Object {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    Object {
        api_version: text("/apiVersion"),
        kind: text("/kind"),
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name"),
        value: value.clone(),
    }
}

async fn judged(desired: Value, exchanges: Vec<Exchange>) -> Verdict {
    let (server, script) = scripted(exchanges);
    let ctx = context(server);
    let object = object(&desired);
    let kind = ctx.kinds.resolve(&object.api_version, &object.kind).await.unwrap();
    let key = Key::new(&object.api_version, &object.kind, "ns", &object.name);
    let rules = ObjectRules::default();
    let question =
        Question { release: ("app", "ns"), object: &object, kind: &kind, key: &key, rules: &rules };
    let verdict = judge(&ctx, &question).await.unwrap();
    script.finished().await;
    verdict
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
}

fn live(data: Value) -> Value {
    let mut live = config_map(data);
    live["metadata"] = json!({"name": "c", "uid": "u", "resourceVersion": "7",
        "annotations": {keys::EPOCH_ANNOTATION: "bd/5"}, "managedFields": [
            {"manager": "fleetagent", "operation": "Apply", "fieldsV1": {"f:data": {"f:b": {}}}},
            {"manager": "later", "operation": "Update", "time": "2026-01-02T00:00:00Z", "fieldsV1": {"f:x": {}}},
            {"manager": "kubectl", "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:data": {"f:a": {}}}}]});
    live
}

const PATH: &str = "/api/v1/namespaces/ns/configmaps/c";

#[tokio::test]
async fn a_dry_run_under_the_live_stamp_tells_what_differs_and_who_did_it() {
    let dry = format!("{PATH}?dryRun=All&fieldManager=fleetagent&force=true");
    let asks = Exchange::patch(&dry).expecting(|sent| {
        assert_eq!(sent["metadata"]["uid"], "u");
        assert_eq!(sent["metadata"]["resourceVersion"], "7");
        assert_eq!(sent["metadata"]["annotations"][keys::EPOCH_ANNOTATION], "bd/5");
    });
    let verdict = judged(
        config_map(json!({"a": "1"})),
        vec![
            Exchange::get(PATH).answers(live(json!({"a": "x", "b": "y"}))),
            asks.answers(live(json!({"a": "1", "b": "y"}))),
        ],
    )
    .await;
    let Verdict::Judged { drift: Some(drift), .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(drift.patch, r#"{"data":{"a":"1"}}"#);
    assert_eq!((drift.field.as_str(), drift.manager.as_deref()), ("data.a", Some("kubectl")));
}

#[tokio::test]
async fn what_the_server_refuses_is_compared_here() {
    let other = "/api/v1/namespaces/ns/configmaps/c-flotilla-compared";
    for complete in [true, false] {
        let second = Exchange::patch(&format!("{other}?dryRun=All&fieldManager=fleetagent&force=true"));
        let second = match complete {
            true => second.answers(config_map(json!({"a": "1"}))),
            false => second.refuses(400, "BadRequest", "admission webhook does not support dry run"),
        };
        let verdict =
            judged(
                config_map(json!({"a": "1"})),
                vec![
                    Exchange::get(PATH).answers(live(json!({"a": "x"}))),
                    Exchange::patch(&format!("{PATH}?dryRun=All&fieldManager=fleetagent&force=true"))
                        .refuses(422, "Invalid", "field is immutable"),
                    second,
                ],
            )
            .await;
        let Verdict::Judged { drift: Some(drift), .. } = verdict else { panic!("{verdict:?}") };
        assert_eq!(drift.patch, r#"{"data":{"a":"1"}}"#);
    }
}

#[tokio::test]
async fn while_a_webhook_is_down_nothing_is_concluded() {
    let down = |exchange: Exchange| {
        let text = "Internal error occurred: failed calling webhook \"x\": failed to call webhook: refused";
        exchange.refuses(500, "InternalError", text)
    };
    let first = || Exchange::get(PATH).answers(live(json!({"a": "x"})));
    let desired = config_map(json!({"a": "1"}));
    let verdict = judged(desired.clone(), vec![first(), down(Exchange::patch(PATH))]).await;
    assert!(matches!(verdict, Verdict::Unclear), "{verdict:?}");
    let immutable = Exchange::patch(PATH).refuses(422, "Invalid", "field is immutable");
    let completed = down(Exchange::patch("/api/v1/namespaces/ns/configmaps/c-flotilla-compared"));
    let verdict = judged(desired.clone(), vec![first(), immutable, completed]).await;
    assert!(matches!(verdict, Verdict::Unclear), "{verdict:?}");
    // A patch that the server cannot read is refused for good, by a plain 500.
    let untyped =
        || Exchange::patch(PATH).refuses(500, "", "failed to create typed patch object: field not declared");
    let again =
        Exchange::patch("/api/v1/namespaces/ns/configmaps/c-flotilla-compared").refuses(500, "", "same");
    let verdict = judged(desired, vec![first(), untyped(), again]).await;
    assert!(matches!(verdict, Verdict::Judged { drift: Some(_), .. }), "{verdict:?}");
}

#[tokio::test]
async fn an_object_changed_meanwhile_is_looked_at_again() {
    let verdict = judged(
        config_map(json!({"a": "1"})),
        vec![Exchange::get(PATH).answers(live(json!({"a": "x"}))), Exchange::patch(PATH).conflicts()],
    )
    .await;
    assert!(matches!(verdict, Verdict::Changed));
}

#[test]
fn the_other_name_is_one_that_every_kind_allows() {
    assert_eq!(completed_name("web"), "web-flotilla-compared");
    let long = completed_name(&"a.".repeat(100));
    assert!(long.len() <= NAME_LIMIT && !long.contains(".-"), "{long}");
}
