// SPDX-License-Identifier: Apache-2.0

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::config::Kubeconfig;
use serde_json::Value;

use super::*;

fn plan(identity: Identity) -> Plan {
    let labels = BTreeMap::from([("env".to_owned(), "shop".to_owned())]);
    Plan::new("shop", "fleet-default", None, labels, "cattle-fleet-system", identity).unwrap()
}

fn kinds(objects: &[Value]) -> Vec<String> {
    objects.iter().map(write::name_of).collect()
}

#[test]
fn the_cluster_comes_before_its_namespace_and_the_account_before_what_names_it() {
    assert_eq!(
        kinds(&upstream_objects(&plan(Identity::Own))),
        [
            "Namespace fleet-default",
            "Cluster fleet-default/shop",
            "Namespace cluster-fleet-default-shop-079927a5ce7c",
            "ClusterRole fleet-bundle-deployment",
            "ClusterRole fleet-content",
            "ServiceAccount cluster-fleet-default-shop-079927a5ce7c/flotilla-agent",
            "Role fleet-default/flotilla-agent-shop",
            "RoleBinding fleet-default/flotilla-agent-shop",
            "RoleBinding cluster-fleet-default-shop-079927a5ce7c/flotilla-agent",
            "ClusterRoleBinding flotilla-agent-content-cluster-fleet-default-shop-079927a5ce7c",
        ]
    );
}

#[test]
fn a_cluster_of_ours_is_left_alone_by_fleets_controller_whatever_labels_it_has() {
    let objects = upstream_objects(&plan(Identity::Own));
    let cluster = &objects[1]["metadata"]["labels"];
    assert_eq!((&cluster["env"], &cluster[MANAGEMENT_LABEL]), (&"shop".into(), &"flotilla".into()));
    assert_eq!(objects[2]["metadata"]["annotations"]["fleet.cattle.io/cluster"], "shop");
}

#[test]
fn a_pod_needs_no_account_of_its_own_on_its_own_cluster() {
    let plan = plan(Identity::Pod);
    let objects = rights(&plan);
    assert!(objects.iter().all(|object| object["kind"] != "ServiceAccount"));
    assert!(objects[1..].iter().all(|object| object["subjects"][0]["namespace"] == "cattle-fleet-system"));
    let all =
        downstream_objects(&plan, &Access::Pod { server: "https://in" }, &DownstreamSettings::default());
    let kubeconfig = decoded(all.last().unwrap(), "kubeconfig");
    assert!(kubeconfig.contains("tokenFile") && !kubeconfig.contains("\"token\""), "{kubeconfig}");
    assert!(Kubeconfig::from_yaml(&kubeconfig).is_ok());
}

fn decoded(secret: &Value, key: &str) -> String {
    String::from_utf8(STANDARD.decode(secret["data"][key].as_str().unwrap()).unwrap()).unwrap()
}

#[test]
fn the_secret_has_fleets_keys_and_comes_last() {
    let access = Access::Token { server: "https://up", authority: Some("pem"), token: "t" };
    let all = downstream_objects(&plan(Identity::Own), &access, &DownstreamSettings::default());
    let secret = all.last().unwrap();
    assert_eq!(write::name_of(secret), "Secret cattle-fleet-system/fleet-agent");
    assert_eq!(decoded(secret, "clusterName"), "shop");
    assert_eq!(decoded(secret, "clusterNamespace"), "fleet-default");
    let namespace = decoded(secret, "deploymentNamespace");
    let kubeconfig = Kubeconfig::from_yaml(&decoded(secret, "kubeconfig")).unwrap();
    assert_eq!(kubeconfig.contexts[0].context.clone().unwrap().namespace, Some(namespace));

    let for_chart = DownstreamSettings { for_chart: true, image: None };
    let without = downstream_objects(&plan(Identity::Own), &access, &for_chart);
    assert_eq!(
        kinds(&without),
        [
            "Namespace cattle-fleet-system",
            "ConfigMap cattle-fleet-system/fleet-agent",
            "Secret cattle-fleet-system/fleet-agent"
        ]
    );
}

#[test]
fn what_no_server_would_take_is_refused_before_anything_is_written() {
    for (name, namespace) in [("Shop", "a"), ("", "a"), ("-a", "a"), ("a", "a.b"), ("a", &"a".repeat(64))] {
        let made = Plan::new(name, namespace, Some("c"), BTreeMap::new(), "agents", Identity::Own);
        assert!(matches!(made, Err(UnmanagedError::Name { .. })), "{name} {namespace}");
    }
    // Fleet's name of its namespace would have the dot, too.
    assert!(Plan::new("a.b", "a", Some("c"), BTreeMap::new(), "agents", Identity::Own).is_ok());
}
