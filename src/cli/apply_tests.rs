// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::*;
use crate::cli::scripted::{Answer, client, lines, refusal};

const BDS: &str = "/apis/fleet.cattle.io/v1alpha1/namespaces/c1/bundledeployments";
const CONTENTS: &str = "/apis/fleet.cattle.io/v1alpha1/contents";

fn planned() -> Plan {
    let bundle = serde_json::from_value(json!({
        "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Bundle", "metadata": {"name": "web"},
        "spec": {"resources": [{"name": "a.yaml", "content": "a: 1"}], "defaultNamespace": "shop"},
    }))
    .unwrap();
    plan::plan(&bundle, &Additions { namespace: "c1".into(), ..Additions::default() }).unwrap()
}

fn live(change: impl FnOnce(&mut Value)) -> Value {
    let mut value = serde_json::to_value(planned().bundle_deployment).unwrap();
    value["metadata"]["resourceVersion"] = json!("7");
    change(&mut value);
    value
}

fn created(body: &Value) -> Answer {
    (201, body.clone())
}

#[tokio::test]
async fn the_content_is_written_before_the_bundle_deployment() {
    let (client, asked) = client(|(method, _, body)| match method.as_str() {
        "POST" => created(body),
        _ => refusal(404, "NotFound", "bundledeployments"),
    });
    let (_, outcome) = deploy(&client, &planned()).await.unwrap();
    assert_eq!(outcome, Outcome::Created);
    assert_eq!(
        lines(&asked),
        [format!("POST {CONTENTS}?"), format!("GET {BDS}/web"), format!("POST {BDS}?")]
    );
    assert!(asked.lock().unwrap()[2].2["metadata"].get("finalizers").is_none());
}

#[tokio::test]
async fn an_existing_content_is_checked_and_made_sure_of_again() {
    let content = serde_json::to_value(planned().content).unwrap();
    let (client, asked) =
        client(move |(method, path, _)| match (method.as_str(), path.starts_with(CONTENTS)) {
            ("POST", true) => refusal(409, "AlreadyExists", "contents"),
            ("GET", true) => (200, content.clone()),
            _ => (200, live(|_| {})),
        });
    let (_, outcome) = deploy(&client, &planned()).await.unwrap();
    assert_eq!(outcome, Outcome::Unchanged);
    let methods: Vec<_> = lines(&asked).iter().map(|line| line[..4].trim().to_owned()).collect();
    assert_eq!(methods, ["POST", "GET", "GET", "POST", "GET"]);
}

#[tokio::test]
async fn a_content_with_other_files_is_an_error() {
    let mut other = Manifest::default().to_content();
    other.metadata.name = planned().content.metadata.name;
    let other = serde_json::to_value(other).unwrap();
    let (client, asked) = client(move |(method, ..)| match method.as_str() {
        "POST" => refusal(409, "AlreadyExists", "contents"),
        _ => (200, other.clone()),
    });
    let error = deploy(&client, &planned()).await.unwrap_err().to_string();
    assert!(error.ends_with("exists with other files"), "{error}");
    assert_eq!(asked.lock().unwrap().len(), 2, "no BundleDeployment was written");
}

#[tokio::test]
async fn an_update_carries_the_version_it_read_and_a_conflict_is_read_again() {
    let mut version = 6;
    let (client, asked) = client(move |(method, path, body)| match method.as_str() {
        "POST" => created(body),
        "GET" => {
            version += 1;
            let old = live(|bd| {
                bd["spec"]["options"] = json!({});
                bd["metadata"]["resourceVersion"] = json!(version.to_string());
                bd["metadata"]["annotations"] = json!({"kept": "yes"});
                bd["status"] = json!({"ready": true});
            });
            (200, old)
        }
        _ if body["metadata"]["resourceVersion"] == "7" => refusal(409, "Conflict", "bundledeployments"),
        _ => {
            assert!(path.starts_with(BDS));
            (200, body.clone())
        }
    });
    let (written, outcome) = deploy(&client, &planned()).await.unwrap();
    assert_eq!(outcome, Outcome::Configured);
    assert_eq!(written.metadata.resource_version.as_deref(), Some("8"));
    assert_eq!(written.annotations()["kept"], "yes");
    let puts = lines(&asked).iter().filter(|line| line.starts_with("PUT")).count();
    assert_eq!(puts, 2);
}

#[tokio::test]
async fn conflicts_end() {
    let (client, asked) = client(|(method, _, body)| match method.as_str() {
        "POST" => created(body),
        "GET" => (200, live(|bd| bd["spec"]["paused"] = json!(true))),
        _ => refusal(409, "Conflict", "bundledeployments"),
    });
    let error = deploy(&client, &planned()).await.unwrap_err();
    assert_eq!(error.to_string(), "write BundleDeployment c1/web (5 times)");
    assert_eq!(lines(&asked).iter().filter(|line| line.starts_with("PUT")).count(), TRIES);
}

#[tokio::test]
async fn a_missing_namespace_is_told_at_once() {
    let (client, asked) =
        client(|(method, path, body)| match (method.as_str(), path.starts_with(CONTENTS)) {
            ("POST", true) => created(body),
            ("POST", false) => refusal(404, "NotFound", "namespaces"),
            _ => refusal(404, "NotFound", "bundledeployments"),
        });
    let error = deploy(&client, &planned()).await.unwrap_err();
    assert_eq!(crate::telemetry::chain(&error), "write BundleDeployment c1/web: namespaces says NotFound");
    assert_eq!(asked.lock().unwrap().len(), 3);
}

#[test]
fn what_others_own_is_left_alone() {
    let read = |change: &dyn Fn(&mut Value)| serde_json::from_value(live(change)).unwrap();
    let planned = planned().bundle_deployment;
    assert!(merged(&read(&|_| {}), &planned).unwrap().is_none());
    let controllers = read(&|bd| bd["metadata"]["finalizers"] = json!([CONTROLLER_FINALIZER]));
    assert!(
        merged(&controllers, &planned).unwrap_err().to_string().contains("belongs to a Fleet controller")
    );
    let dying = read(&|bd| bd["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    assert!(merged(&dying, &planned).unwrap_err().to_string().contains("is being deleted"));
}

#[test]
fn labels_are_replaced_except_those_that_name_the_cluster() {
    let planned = planned().bundle_deployment;
    let live: BundleDeployment = serde_json::from_value(live(|bd| {
        bd["metadata"]["labels"]["old"] = json!("x");
        bd["metadata"]["labels"]["fleet.cattle.io/cluster"] = json!("c");
    }))
    .unwrap();
    let merged = merged(&live, &planned).unwrap().unwrap();
    assert_eq!(merged.labels().get("old"), None);
    assert_eq!(merged.labels()["fleet.cattle.io/cluster"], "c");
}

#[tokio::test]
async fn the_namespaces_annotations_name_the_cluster() {
    let (known, _) = client(|_| {
        (
            200,
            json!({"metadata": {"name": "c1", "annotations": {"fleet.cattle.io/cluster": "c", "other": "x"}}}),
        )
    });
    assert_eq!(cluster_labels(&known, "c1").await, [("fleet.cattle.io/cluster".to_owned(), "c".to_owned())]);
    let (forbidden, _) = client(|_| refusal(403, "Forbidden", "namespaces"));
    assert!(cluster_labels(&forbidden, "c1").await.is_empty());
}

#[tokio::test]
async fn a_dry_run_prints_both_objects_and_needs_no_cluster() {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("a.yaml"), "a: 1").unwrap();
    let verb = ApplyVerb {
        source: folder.path().display().to_string(),
        name: Some("web".into()),
        labels: vec![],
        paused: false,
        dry_run: Some("client".into()),
        output: Some(Form::Name),
        cluster: ClusterFlags { namespace: Some("c1".into()), ..ClusterFlags::default() },
    };
    let mut out = Vec::new();
    run(&verb, &mut out, &|_| {}).await.unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("content.fleet.cattle.io/s-"));
    assert_eq!(lines[1], "bundledeployment.fleet.cattle.io/web");
}
