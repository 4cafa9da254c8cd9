// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::*;
use crate::cli::scripted::{client, lines, refusal};

fn bd(name: &str, status: Value) -> BundleDeployment {
    serde_json::from_value(json!({
        "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
        "metadata": {"name": name, "namespace": "c1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"deploymentID": "a", "stagedDeploymentID": "a"},
        "status": status,
    }))
    .unwrap()
}

fn now() -> DateTime<Utc> {
    "2026-01-01T00:05:07Z".parse().unwrap()
}

fn verb(output: Option<Output>) -> GetVerb {
    GetVerb {
        names: vec![],
        selector: None,
        all_namespaces: false,
        output,
        no_headers: false,
        watch: false,
        cluster: ClusterFlags::default(),
    }
}

fn printed(verb: &GetVerb, found: &[BundleDeployment], namespace: Option<&str>) -> (String, Vec<String>) {
    let (mut out, warnings) = (Vec::new(), std::cell::RefCell::new(Vec::new()));
    print(verb, found, namespace, &mut out, &|text| warnings.borrow_mut().push(text.to_owned()), now())
        .unwrap();
    (String::from_utf8(out).unwrap(), warnings.into_inner())
}

fn fleet() -> Vec<BundleDeployment> {
    let claim = |status: &str, reason: &str, message: &str| json!({"type": "InProgress", "status": status, "reason": reason, "message": message});
    vec![
        bd(
            "web",
            json!({
                "appliedDeploymentID": "a", "ready": true, "nonModified": true,
                "resourceCounts": {"ready": 3, "desiredReady": 3},
            }),
        ),
        bd(
            "shop-with-a-long-name",
            json!({
                "conditions": [claim("True", "Claimed", "v1 holder=pod-1 session=s nonce=n attempt=2 lost=0 by= budget=600 deployment=a")],
            }),
        ),
        bd(
            "db",
            json!({
                "conditions": [
                    {"type": "Deployed", "status": "False", "message": "no\nsuch kind"},
                    claim("False", "BackingOff", "v1 holder=pod-2 session=s nonce=n attempt=7 retryIn=30 cause=no such kind: x=y"),
                ],
            }),
        ),
    ]
}

#[test]
fn the_table_looks_like_kubectls() {
    assert_eq!(
        printed(&verb(None), &fleet(), Some("c1")).0,
        "\
NAME                    STATE         HOLDER   ATTEMPT   READY   AGE
web                     Ready         -        -         3/3     5m7s
shop-with-a-long-name   WaitApplied   pod-1    2         -       5m7s
db                      ErrApplied    -        7         -       5m7s
"
    );
}

#[test]
fn wide_adds_messages_and_all_namespaces_adds_the_namespace() {
    let found = fleet();
    let (wide, _) = printed(&GetVerb { no_headers: true, ..verb(Some(Output::Wide)) }, &found, None);
    let last = wide.lines().last().unwrap();
    assert!(last.starts_with("c1   db  "), "{wide}");
    assert!(last.ends_with("BackingOff: no such kind: x=y"), "{wide}");
    let columns = printed(&verb(Some(Output::Wide)), &found, Some("c1")).0;
    let titles: Vec<_> = columns.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(titles, ["NAME", "STATE", "CLAIM", "HOLDER", "ATTEMPT", "READY", "DRIFT", "AGE", "MESSAGE"]);
    assert!(columns.contains("Claimed  "), "{columns}");
    assert_eq!(wide.lines().count(), 3, "no headers");
    assert!(printed(&verb(None), &found, None).0.starts_with("NAMESPACE   NAME "));
}

#[test]
fn messages_are_one_line() {
    let row = Row::of(
        &bd("x", json!({"conditions": [{"type": "Deployed", "status": "False", "message": "a\n b"}]})),
        now(),
    );
    assert_eq!(row.message, "a b");
    let row = Row::of(
        &bd("x", json!({"conditions": [{"type": "Ready", "status": "False", "message": "not yet"}]})),
        now(),
    );
    assert_eq!(row.message, "not yet");
}

#[test]
fn a_long_message_is_not_wrapped() {
    let text = "word ".repeat(100);
    let found = [bd("x", json!({"conditions": [{"type": "Deployed", "status": "False", "message": text}]}))];
    assert_eq!(printed(&verb(Some(Output::Wide)), &found, Some("c1")).0.lines().count(), 2);
}

#[test]
fn a_claim_that_cannot_be_read_shows_no_holder() {
    let strange = json!({"conditions": [{"type": "InProgress", "status": "True", "message": "holder"}]});
    let words = claim(&bd("x", strange));
    assert_eq!((words.holder, words.attempt, words.trouble), (None, None, None));
}

#[test]
fn nothing_found_is_said_on_standard_error() {
    assert_eq!(
        printed(&verb(None), &[], Some("c1")),
        (String::new(), vec!["No resources found in c1 namespace.".to_owned()])
    );
    assert_eq!(printed(&verb(None), &[], None).1, ["No resources found"]);
    let (json, warnings) = printed(&verb(Some(Output::Json)), &[], Some("c1"));
    assert!(json.contains("\"items\": []") && warnings.is_empty(), "{json}");
}

#[test]
fn other_forms_carry_the_whole_object() {
    let (names, _) = printed(&verb(Some(Output::Name)), &fleet(), Some("c1"));
    assert_eq!(names.lines().next(), Some("bundledeployment.fleet.cattle.io/web"));
    let (json, _) = printed(&verb(Some(Output::Json)), &fleet()[..1], Some("c1"));
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["status"]["appliedDeploymentID"], "a");
}

#[tokio::test]
async fn names_are_looked_up_one_by_one_and_missing_ones_reported() {
    let (client, asked) = client(|(_, path, _)| {
        if path.ends_with("/web") {
            (200, serde_json::to_value(bd("web", json!({}))).unwrap())
        } else {
            refusal(404, "NotFound", "bundledeployments")
        }
    });
    let verb = GetVerb { names: vec!["gone".into(), "web".into()], ..verb(None) };
    let (found, missing) = find(&verb, &client, Some("c1")).await.unwrap();
    assert_eq!((found.len(), missing), (1, vec!["gone".to_owned()]));
    assert_eq!(lines(&asked).len(), 2);
}

#[test]
fn drift_is_counted_as_far_as_the_status_lists_it() {
    let modified = |count: usize, cut: bool| {
        let entries = vec![json!({"kind": "ConfigMap", "name": "a"}); count];
        drift(&bd("x", json!({"modifiedStatus": entries, "incompleteState": cut})))
    };
    assert_eq!(modified(0, true), None);
    assert_eq!(modified(2, false).as_deref(), Some("2"));
    assert_eq!(modified(10, true).as_deref(), Some("10+"));
}
