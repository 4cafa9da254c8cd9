// SPDX-License-Identifier: Apache-2.0

use serde_json::Value;

use super::*;

fn schema(kind: &str) -> Value {
    let crd = all().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    let schema = crd.spec.versions[0].schema.as_ref().unwrap();
    serde_json::to_value(schema.open_api_v3_schema.as_ref().unwrap()).unwrap()
}

/// Follows a path such as `status.conditions[].type`.
fn at(kind: &str, path: &str) -> Value {
    let root = schema(kind);
    let mut node = &root;
    for step in path.split('.') {
        let (name, list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
        node = &node["properties"][name];
        if list {
            node = &node["items"];
        }
        assert!(node.is_object(), "{kind} has no {path}");
    }
    node.clone()
}

fn nodes<'a>(path: String, node: &'a Value, found: &mut Vec<(String, &'a Value)>) {
    for (name, property) in node["properties"].as_object().into_iter().flatten() {
        nodes(format!("{path}.{name}"), property, found);
    }
    for (below, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(node) = node.get(below).filter(|node| node.is_object()) {
            nodes(format!("{path}{mark}"), node, found);
        }
    }
    found.push((path, node));
}

#[test]
fn conditions_are_an_atomic_list_of_six_plain_strings() {
    for kind in ["BundleDeployment", "Bundle", "Cluster"] {
        let list = at(kind, "status.conditions");
        assert_eq!(list["type"], "array");
        assert_eq!(list["nullable"], true);
        assert!(list.get("x-kubernetes-list-type").is_none_or(|kind| kind == "atomic"));
        let condition = &list["items"];
        assert_eq!(condition["required"], json!(["status", "type"]), "{kind}");
        let keys: Vec<_> = condition["properties"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["lastTransitionTime", "lastUpdateTime", "message", "reason", "status", "type"]);
        for (name, property) in condition["properties"].as_object().unwrap() {
            let mut rules: Vec<_> = property.as_object().unwrap().keys().collect();
            rules.retain(|rule| *rule != "description");
            assert_eq!(rules, ["type"], "{kind} {name}");
            assert_eq!(property["type"], "string");
        }
    }
}

#[test]
fn unknown_content_survives_only_in_values_and_template_values() {
    let mut free = Vec::new();
    for kind in ["BundleDeployment", "Bundle", "Cluster", "Content"] {
        let root = schema(kind);
        let mut found = Vec::new();
        nodes(kind.to_owned(), &root, &mut found);
        for (path, node) in found {
            if node.get("x-kubernetes-preserve-unknown-fields").is_some() {
                assert_eq!((&node["type"], &node["nullable"]), (&json!("object"), &json!(true)));
                free.push(path);
            }
        }
    }
    free.sort();
    assert_eq!(
        free,
        [
            "Bundle.spec.helm.values",
            "Bundle.spec.targets[].helm.values",
            "BundleDeployment.spec.options.helm.values",
            "BundleDeployment.spec.stagedOptions.helm.values",
            "Cluster.spec.templateValues",
        ]
    );
}

#[test]
fn schemas_are_structural() {
    for crd in all() {
        let kind = crd.spec.names.kind;
        let root = schema(&kind);
        let mut found = Vec::new();
        nodes(kind, &root, &mut found);
        for (path, node) in found {
            for forbidden in ["$ref", "$schema", "definitions", "allOf", "anyOf", "oneOf", "not", "title"] {
                assert!(node.get(forbidden).is_none(), "{path} has {forbidden}");
            }
            let typed = node["type"].is_string() || node["x-kubernetes-int-or-string"] == true;
            assert!(typed, "{path} has no type: {node}");
            let both = node.get("properties").is_some() && node.get("additionalProperties").is_some();
            assert!(!both, "{path} mixes properties and additionalProperties");
            if node.get("default").is_some() {
                assert!(path.ends_with(".targetCustomizationMode"), "{path} would be written into objects");
            }
            if let Some(format) = node.get("format") {
                let harmless = ["int64", "int32", "byte", "date-time"];
                assert!(harmless.iter().any(|name| format == name), "{path} has format {format}");
            }
        }
    }
}

#[test]
fn strings_and_lists_may_be_null_where_go_writes_null() {
    for path in [
        "status.nonReadyStatus",
        "status.modifiedStatus",
        "status.resources",
        "status.resources[].createdAt",
        "status.syncGeneration",
        "status.display",
        "status.display.state",
        "status.release",
        "status.appliedDeploymentID",
        "spec.deploymentID",
        "spec.dependsOn",
        "spec.options.namespace",
        "spec.options.namespaceLabels",
        "spec.options.helm.valuesFiles",
        "spec.options.helm.templateValues",
        "spec.helmChartOptions.helmOpCABundle",
    ] {
        assert_eq!(at("BundleDeployment", path)["nullable"], true, "{path}");
    }
    assert_eq!(at("Bundle", "spec.resources")["nullable"], true);
    assert_eq!(at("Cluster", "status.agent.lastSeen")["nullable"], true);
    assert_eq!(at("Content", "content")["nullable"], true);
}

#[test]
fn nothing_is_required_that_fleet_leaves_out() {
    for crd in all() {
        let kind = crd.spec.names.kind;
        let root = schema(&kind);
        let mut found = Vec::new();
        nodes(kind, &root, &mut found);
        let required: Vec<_> = found
            .iter()
            .filter(|(path, node)| node.get("required").is_some() && !path.contains(".agent"))
            .map(|(path, node)| (path.as_str(), node["required"].clone()))
            .collect();
        for (path, required) in required {
            let expected = match path {
                path if path.ends_with(".conditions[]") => json!(["status", "type"]),
                path if path.ends_with(".matchExpressions[]") => json!(["key", "operator"]),
                _ => panic!("{path} requires {required}"),
            };
            assert_eq!(required, expected, "{path}");
        }
    }
}

#[test]
fn every_kind_has_its_status_subresource_scope_and_columns() {
    for (kind, scope, columns) in [
        ("Bundle", "Namespaced", &["BundleDeployments-Ready", "Status"][..]),
        ("BundleDeployment", "Namespaced", &["Deployed", "Monitored", "Status"]),
        ("Cluster", "Namespaced", &["Bundles-Ready", "Last-Seen", "Status"]),
        ("Content", "Cluster", &[]),
    ] {
        let crd = all().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
        let plural = format!("{}s", kind.to_lowercase());
        assert_eq!(crd.metadata.name.as_deref(), Some(format!("{plural}.fleet.cattle.io").as_str()));
        assert_eq!(crd.spec.names.plural, plural);
        assert_eq!(crd.spec.names.list_kind.as_deref(), Some(format!("{kind}List").as_str()));
        assert_eq!(crd.spec.scope, scope);
        let [version] = &crd.spec.versions[..] else { panic!("{kind} has one version") };
        assert_eq!(version.name, "v1alpha1");
        assert!(version.served && version.storage);
        assert!(version.subresources.as_ref().unwrap().status.is_some());
        let names: Vec<_> =
            version.additional_printer_columns.iter().flatten().map(|column| column.name.as_str()).collect();
        assert_eq!(names, columns, "{kind}");
    }
}

#[test]
fn selectors_are_replaced_whole() {
    for path in ["spec.dependsOn[].selector", "spec.options.allowedTargetNamespaceSelector"] {
        assert_eq!(at("BundleDeployment", path)["x-kubernetes-map-type"], "atomic");
    }
}

#[test]
fn release_names_are_limited_as_helm_limits_them() {
    let name = at("BundleDeployment", "spec.options.helm.releaseName");
    assert_eq!(name["maxLength"], 53);
    assert!(name["pattern"].as_str().unwrap().starts_with("^[a-z0-9]"));
}

/// Regenerate with `UPDATE_SNAPSHOTS=1 cargo test --lib api::crds`.
#[test]
fn the_generated_text_is_the_one_in_the_snapshot() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/crds.yaml");
    let text = format!("# Generated: UPDATE_SNAPSHOTS=1 cargo test --lib api::crds\n{}", yaml().unwrap());
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(std::path::Path::new(path).parent().unwrap()).unwrap();
        std::fs::write(path, &text).unwrap();
    }
    let snapshot = std::fs::read_to_string(path).unwrap_or_default();
    assert!(snapshot == text, "the CRDs changed; look at the difference after UPDATE_SNAPSHOTS=1");
}

#[test]
fn the_text_reads_back_as_the_same_definitions() {
    let read: Vec<CustomResourceDefinition> = serde_saphyr::from_multiple(&yaml().unwrap()).unwrap();
    assert_eq!(read, all());
}
