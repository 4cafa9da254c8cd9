// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::*;
use crate::{api::ComparePatch, monitor::Key};

fn patch(desired: &Value, live: &Value, predicted: &Value) -> Option<String> {
    difference(desired, live, predicted, &ObjectRules::default()).map(|patch| text(desired, &patch))
}

fn rules(value: Value) -> Vec<ComparePatch> {
    serde_json::from_value(value).unwrap()
}

#[test]
fn only_what_is_desired_has_a_say() {
    let desired = json!({"spec": {"selector": {"app": "MyApp"}, "empty": {}, "none": null}});
    let with = |spec: Value| json!({"metadata": {"resourceVersion": "1"}, "spec": spec, "status": {"a": 1}});
    for (live, predicted, expected) in [
        (json!({"selector": {"app": "MyApp"}}), json!({"selector": {"app": "MyApp"}}), None),
        (
            json!({"selector": {"app": "x", "b": "1"}}),
            json!({"selector": {"app": "MyApp", "b": "1"}}),
            Some(r#"{"spec":{"selector":{"app":"MyApp"}}}"#),
        ),
        (json!({}), json!({"selector": {"app": "MyApp"}}), Some(r#"{"spec":{"selector":{"app":"MyApp"}}}"#)),
        // A webhook that counts, or the server's defaults.
        (
            json!({"selector": {"app": "MyApp"}, "count": 1}),
            json!({"selector": {"app": "MyApp"}, "count": 2, "none": 5}),
            None,
        ),
        // What the server would not keep is not missed.
        (json!({"other": 1}), json!({"other": 1}), None),
    ] {
        assert_eq!(patch(&desired, &with(live), &with(predicted)).as_deref(), expected);
    }
}

#[test]
fn what_is_wanted_empty_is_compared_by_whether_it_is_there_and_holds_anything() {
    let spec = |spec: Value| json!({"spec": spec});
    for (desired, live, predicted, expected) in [
        // A marker that somebody removed, or put another in the place of.
        (json!({"self": {}}), json!({}), json!({"self": {}}), Some(r#"{"spec":{"self":{}}}"#)),
        (
            json!({"volumes": [{"name": "e", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "e", "hostPath": {"path": "/"}}]}),
            json!({"volumes": [{"name": "e", "emptyDir": {}}]}),
            Some(r#"{"spec":{"volumes":[{"emptyDir":{},"name":"e"}]}}"#),
        ),
        // What was to let nothing in, whether the server keeps the empty list or drops it.
        (json!({"in": []}), json!({"in": [{}]}), json!({}), Some(r#"{"spec":{"in":null}}"#)),
        (json!({"in": []}), json!({"in": [{}]}), json!({"in": []}), Some(r#"{"spec":{"in":[]}}"#)),
        (
            json!({"pods": {}}),
            json!({"pods": {"matchLabels": {"a": "b"}, "more": []}}),
            json!({"pods": {}}),
            Some(r#"{"spec":{"pods":{"matchLabels":null}}}"#),
        ),
        (
            json!({"in": [{}]}),
            json!({"in": [{"from": [1]}]}),
            json!({"in": [{}]}),
            Some(r#"{"spec":{"in":[{}]}}"#),
        ),
        // What others put there, what the server fills in or spells another way.
        (json!({"pods": {}}), json!({"pods": {"a": 1}}), json!({"pods": {"a": 1}}), None),
        (json!({"pods": {}}), json!({"pods": {"a": 1}}), json!({"pods": {"a": 2}}), None),
        (json!({"in": []}), json!({}), json!({"in": []}), None),
        (json!({"in": []}), json!({"in": null}), json!({"in": []}), None),
        (json!({"pods": {"labels": {}}}), json!({"pods": {}}), json!({"pods": {}}), None),
    ] {
        assert_eq!(
            patch(&spec(desired.clone()), &spec(live), &spec(predicted)).as_deref(),
            expected,
            "{desired}"
        );
    }
    // Empty only because the rest is overlooked, or not compared.
    let overlooked =
        rules(json!([{"apiVersion": "v1", "kind": "ConfigMap", "jsonPointers": ["/data/sub/a"]}]));
    let key = Key::new("v1", "ConfigMap", "n", "c");
    let of_object = Rules::new(&overlooked).of(&key);
    let full = json!({"metadata": {"annotations": {"objectset.rio.cattle.io/id": "x"}}, "data": {"sub": {"a": "1"}}});
    assert_eq!(difference(&full, &json!({}), &full, &of_object), None);
}

#[test]
fn without_the_server_a_marker_is_put_back_only_if_it_is_known_to_be_kept() {
    let desired =
        json!({"spec": {"volumes": [{"name": "e", "emptyDir": {}}], "labels": {"a": null}, "list": []}});
    let live = json!({"spec": {"volumes": [{"name": "e", "hostPath": {"path": "/"}}]}});
    let completed = json!({"spec": {"volumes": [{"name": "e", "emptyDir": {}}]}});
    assert_eq!(predicted(&completed, &live, true), completed, "a volume has one source");
    let guessed = predicted(&without_voids(&desired), &json!({}), true);
    assert_eq!(guessed, json!({"spec": {"volumes": [{"name": "e"}]}}));
}

#[test]
fn a_list_is_told_whole_when_an_item_of_ours_differs() {
    let desired = json!({"spec": {"containers": [{"name": "main", "image": "a:1"}]}});
    let list = |items: Value| json!({"spec": {"containers": items}});
    let side = json!({"name": "side", "image": "s"});
    let live = list(json!([{"name": "main", "image": "a:2", "tty": false}, side]));
    let right = list(json!([{"name": "main", "image": "a:1", "tty": false}, side]));
    assert_eq!(
        patch(&desired, &live, &right).unwrap(),
        r#"{"spec":{"containers":[{"image":"a:1","name":"main","tty":false},{"image":"s","name":"side"}]}}"#
    );
    let noise = list(json!([{"name": "main", "image": "a:1", "tty": true}, {"name": "side", "image": "t"}]));
    assert_eq!(patch(&desired, &noise, &right), None, "a field and an item that others see to");

    let tags = json!({"spec": {"tags": ["a", "b"]}});
    let more = json!({"spec": {"tags": ["a", "b", "c"]}});
    assert_eq!(patch(&tags, &more, &tags).unwrap(), r#"{"spec":{"tags":["a","b"]}}"#);
    let named = json!({"spec": {"rules": [{"name": "a"}]}});
    let extra = json!({"spec": {"rules": [{"name": "a"}, {"name": "b"}]}});
    assert_eq!(patch(&named, &extra, &named).unwrap(), r#"{"spec":{"rules":[{"name":"a"}]}}"#);
}

#[test]
fn the_values_of_a_secret_are_in_no_text() {
    let secret = |data: Value| json!({"apiVersion": "v1", "kind": "Secret", "data": data});
    let desired = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"pw": "hunter2"},
        "data": {"b": "YmI="}, "metadata": {"labels": {"a": "1"}}});
    let live = secret(json!({"pw": "b3RoZXI=", "b": "YmI="}));
    let right = secret(json!({"pw": "aHVudGVyMg==", "b": "YmI="}));
    assert_eq!(patch(&desired, &live, &right).unwrap(), r#"{"data":{"pw":"***"}}"#);
    assert_eq!(predicted(&desired, &live, true)["data"], right["data"], "as the server folds strings");
}

#[test]
fn each_rule_counts_for_itself_and_names_may_be_patterns() {
    let patches = rules(json!([
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "jsonPointers": ["/data/none", "/data/a~1b"],
            "operations": [{"op": "remove", "path": "/gone/deep"}, {"op": "remove", "path": "/data/b"},
                {"op": "replace", "path": "/data/absent", "value": "x"}, {"op": "add", "path": "/data/d", "value": "y"}]},
        {"apiVersion": "apps/v1", "kind": "*Set", "jsonPointers": ["/spec/replicas"]},
        {"apiVersion": "v1", "kind": "Secret", "namespace": "ns", "name": "^tmp-", "operations": [{"op": "ignore"}]},
        {"apiVersion": "v1", "kind": "Secret", "namespace": "ns", "name": "(", "operations": [{"op": "ignore"}]},
    ]));
    let rules = Rules::new(&patches);
    let mut state = json!({"data": {"a/b": "1", "b": "2", "c": "3"}});
    rules.of(&Key::new("v1", "ConfigMap", "any", "c")).apply(&mut state);
    assert_eq!(state, json!({"data": {"c": "3", "d": "y"}}));
    for (kind, version, expected) in [
        ("StatefulSet", "apps/v1", 1),
        ("ReplicaSet", "apps/v1beta1", 1),
        ("Deployment", "apps/v1", 0),
        ("XSet", "v1", 0),
    ] {
        assert_eq!(rules.of(&Key::new(version, kind, "n", "x")).paths().count(), expected, "{kind}");
    }
    for (namespace, name, expected) in
        [("ns", "tmp-1", true), ("ns", "a-tmp-1", false), ("other", "tmp-1", false), ("ns", "(", true)]
    {
        assert_eq!(
            rules.may_miss(&Key::new("v1", "Secret", namespace, name)),
            expected,
            "{namespace}/{name}"
        );
    }
}

#[test]
fn what_is_left_to_others_is_neither_drift_nor_corrected() {
    let role = |rules: Value| json!({"kind": "ClusterRole", "aggregationRule": {"x": 1}, "rules": rules});
    let (desired, filled) = (role(json!([])), role(json!([{"verbs": ["get"]}])));
    assert_eq!(patch(&desired, &filled, &desired), None);
    let hook = |authority: Value| json!({"webhooks": [{"name": "w", "clientConfig": authority, "x": 1}]});
    let desired = hook(json!({"caBundle": "Cg=="}));
    let live = hook(json!({"caBundle": "CERT"}));
    assert_eq!(patch(&desired, &live, &desired), None);
    let mut settled = desired.clone();
    settle(&mut settled, &live, &ObjectRules::default(), false);
    assert_eq!(settled, live);

    let patches = rules(
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "jsonPointers": ["/spec/paused", "/spec/x"]}]),
    );
    let key = Key::new("apps/v1", "Deployment", "n", "d");
    let rules = Rules::new(&patches).of(&key);
    let mut settled = json!({"spec": {"paused": false, "replicas": 1, "y": 1}});
    settle(&mut settled, &json!({"spec": {"replicas": 4, "x": 2, "y": 2}}), &rules, true);
    assert_eq!(settled, json!({"spec": {"replicas": 4, "y": 1}}));
}

#[test]
fn an_autoscaler_decides_within_its_bounds_only() {
    let key = Key::new("apps/v1", "Deployment", "n", "web");
    let scaler =
        |target: Value| json!({"spec": {"minReplicas": 2, "maxReplicas": 5, "scaleTargetRef": target}});
    let ours = scaler(json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}));
    let other = scaler(json!({"kind": "Deployment", "name": "db"}));
    for (scalers, replicas, expected) in [
        (vec![other.clone(), ours.clone()], 5, true),
        (vec![ours.clone()], 6, false),
        (vec![ours], 1, false),
        (vec![other], 3, false),
        (vec![scaler(json!({"kind": "Deployment", "name": "web"}))], 3, true),
    ] {
        assert_eq!(is_delegated(&scalers, &key, &json!({"spec": {"replicas": replicas}})), expected);
    }
}

#[test]
fn without_the_server_spellings_and_merge_keys_are_known() {
    let desired = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"x": null, "containers": [
        {"name": "a", "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": 0.5}}}]}});
    let live = json!({"spec": {"x": 1, "containers": [{"name": "a", "image": "i",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "500m"}}}, {"name": "b"}]}});
    assert_eq!(predicted(&desired, &live, true), live);
    assert_eq!(patch(&desired, &live, &predicted(&desired, &live, true)), None);

    let desired = json!({"kind": "Service", "spec": {"ports": [{"name": "web", "port": 80}]}});
    let live = json!({"spec": {"ports": [{"name": "web", "port": 82, "protocol": "TCP"}]}});
    assert_eq!(
        patch(&desired, &live, &predicted(&desired, &live, true)).unwrap(),
        r#"{"spec":{"ports":[{"name":"web","port":80},{"name":"web","port":82,"protocol":"TCP"}]}}"#
    );
    let completed =
        json!({"uid": "u", "spec": {"ports": [{"port": 80, "protocol": "TCP"}], "type": "ClusterIP"}});
    assert_eq!(
        restricted(&completed, &desired),
        json!({"spec": {"ports": [{"port": 80, "protocol": "TCP"}]}})
    );
}

#[test]
fn the_first_field_is_named() {
    assert_eq!(first_field(&json!({"spec": {"template": {"spec": {"x": [1]}}}})), "spec.template.spec.x");
}
