// SPDX-License-Identifier: Apache-2.0
//! Rendering raw bundles through the real engine, against what Fleet's agent made of the same bundles.

use serde_json::Value;

use super::{
    Job, Kinds, RenderError, Rendered, Scope,
    golden::{Golden, Surroundings, documents, engine},
    parse_manifest, render,
};
use crate::api::{
    BundleDeploymentOptions, keys,
    manifest::{BundleResource, Manifest},
};

#[tokio::test]
async fn bundles_become_the_manifests_and_charts_that_fleet_made() {
    let engine = engine();
    for case in [
        "cm-non-string",
        "commit-label",
        "crlf",
        "duplicate-keys",
        "empty",
        "encodings",
        "invalid-field",
        "many-kinds",
        "metadata-edge",
        "missing-namespace",
        "multi-doc",
        "namespaces",
        "single",
    ] {
        let golden = Golden::load(&format!("raw/{case}"));
        let rendered = golden.render(&engine).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        let release = golden.release();
        let expected = documents(&engine, release["manifest"].as_str().unwrap_or_default()).await;
        assert_eq!(documents(&engine, &rendered.manifest).await, expected, "{case}: manifest");
        let chart = &rendered.chart;
        let mut metadata = release["chart"]["metadata"].clone();
        if case == "encodings" {
            // The id covers compressed bytes, which differ between compressors.
            metadata["version"] = chart["metadata"]["version"].clone();
        }
        assert_eq!(chart["metadata"], metadata, "{case}: chart metadata");
        let names: Vec<&Value> =
            chart["files"].as_array().unwrap().iter().map(|file| &file["name"]).collect();
        let recorded: Vec<&Value> = release["chart"]["files"].as_array().unwrap().iter().collect();
        assert_eq!(names, recorded, "{case}: files");
        let mut chart_keys: Vec<&String> = chart.as_object().unwrap().keys().collect();
        chart_keys.sort();
        assert_eq!(serde_json::json!(chart_keys), release["chart"]["keys"], "{case}: keys");
    }
}

#[tokio::test]
async fn documents_that_fleet_refuses_are_refused_in_its_words() {
    let engine = engine();
    for case in ["raw/invalid-yaml", "raw/scalar-doc"] {
        let golden = Golden::load(case);
        let error = golden.render(&engine).await.expect_err(case);
        let (text, theirs) = (error.to_string(), golden.deployed_message());
        // And where it is, which Fleet does not say.
        assert!(text.starts_with(theirs) && text.ends_with(".yaml)"), "{case}: {text}");
        assert!(error.is_permanent(), "{case}");
    }
}

#[tokio::test]
async fn yaml_1_1_is_read_as_fleet_reads_it_but_for_digits_it_loses() {
    let engine = engine();
    let golden = Golden::load("raw/yaml11");
    let rendered = golden.render(&engine).await.unwrap();
    let manifest = golden.release()["manifest"].as_str().unwrap();
    let mut expected = documents(&engine, manifest).await;
    expected[0].1["spec"]["big"] = serde_json::json!(12_345_678_901_234_567_890_u64);
    assert_eq!(documents(&engine, &rendered.manifest).await, expected);
}

#[tokio::test]
async fn of_an_object_given_twice_the_last_one_counts() {
    let engine = engine();
    let golden = Golden::load("raw/duplicate-object");
    let rendered = golden.render(&engine).await.unwrap();
    assert_eq!(rendered.objects.len(), 1);
    assert_eq!(rendered.objects[0].value["data"]["from"], "b");
    let expected = documents(&engine, golden.release()["manifest"].as_str().unwrap()).await;
    assert_eq!(documents(&engine, &rendered.manifest).await, expected[1..]);
}

#[tokio::test]
async fn definitions_are_kept_unless_the_options_say_otherwise() {
    let engine = engine();
    let mut golden = Golden::load("raw/crd-and-cr");
    let policy = |rendered: &Rendered| {
        let crd = &rendered.objects[0];
        assert_eq!(crd.kind, "CustomResourceDefinition", "it comes before kinds Helm does not know");
        crd.value["metadata"]["annotations"].get(keys::RESOURCE_POLICY).cloned()
    };
    let kept = golden.render(&engine).await.unwrap();
    assert_eq!(policy(&kept), Some("keep".into()));
    assert_eq!(kept.objects[1].value["metadata"]["annotations"].get(keys::RESOURCE_POLICY), None);
    golden.options.delete_crd_resources = true;
    assert_eq!(policy(&golden.render(&engine).await.unwrap()), None);
}

/// A server that knows ConfigMaps and PriorityClasses.
struct TwoKinds;

impl Kinds for TwoKinds {
    fn scope(&self, api_version: &str, kind: &str) -> Option<Scope> {
        match (api_version, kind) {
            ("v1", "ConfigMap") => Some(Scope::Namespaced),
            ("scheduling.k8s.io/v1", "PriorityClass") => Some(Scope::Cluster),
            _ => None,
        }
    }
}

#[tokio::test]
async fn a_forced_namespace_moves_every_object() {
    let engine = engine();
    let golden = Golden::load("namespaces/forced");
    let mut rendered = golden.render(&engine).await.unwrap();
    rendered.force_namespace(&golden.options.target_namespace, &TwoKinds).unwrap();
    assert!(rendered.objects.iter().all(|object| object.namespace == "t-namespaces-forced"));
    let expected = documents(&engine, golden.release()["manifest"].as_str().unwrap()).await;
    assert_eq!(documents(&engine, &rendered.manifest).await, expected);
}

#[tokio::test]
async fn a_forced_namespace_forbids_cluster_scoped_and_unknown_objects() {
    let engine = engine();
    let golden = Golden::load("namespaces/forced-cluster-scoped");
    let rendered = golden.render(&engine).await.unwrap();
    let mut forced = rendered.clone();
    let error = forced.force_namespace("x", &TwoKinds).unwrap_err();
    assert_eq!(error.to_string(), golden.deployed_message());
    assert!(error.is_permanent());
    assert!(forced == rendered, "nothing was changed");
    let mut unknown = Golden::load("raw/unknown-kind").render(&engine).await.unwrap();
    let error = unknown.force_namespace("x", &TwoKinds).unwrap_err();
    assert!(!error.is_permanent(), "the kind may be installed later");
    assert!(error.to_string().ends_with(r#"no matches for kind "Nope" in version "nope.example.com/v1""#));
}

#[tokio::test]
async fn objects_that_a_forced_namespace_makes_equal_are_one() {
    let inside = |namespace: &str| config_map(&format!("a, namespace: {namespace}"));
    let files = inside("one") + &inside("two");
    let mut rendered = render_files(&[("a.yaml", &files)]).await.unwrap();
    assert_eq!(rendered.objects.len(), 2);
    rendered.force_namespace("x", &TwoKinds).unwrap();
    assert_eq!(rendered.objects.len(), 1);
    assert_eq!(rendered.sources[0].position, 1);
}

async fn render_files(files: &[(&str, &str)]) -> Result<Rendered, RenderError> {
    render_with(&BundleDeploymentOptions::default(), files).await
}

async fn render_with(
    options: &BundleDeploymentOptions,
    files: &[(&str, &str)],
) -> Result<Rendered, RenderError> {
    let resource = |(name, content): &(&str, &str)| BundleResource {
        name: (*name).into(),
        content: (*content).into(),
        encoding: String::new(),
    };
    let manifest = Manifest { resources: files.iter().map(resource).collect() };
    let surroundings = Surroundings::new("bundle", options);
    let job = surroundings.job("bundle", options, &manifest);
    render(&engine(), Job { scope: "blue", agent_namespace: "agents", ..job }).await
}

fn names(rendered: &Rendered) -> Vec<&str> {
    rendered.objects.iter().map(|object| object.name.as_str()).collect()
}

fn config_map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n---\n")
}

#[tokio::test]
async fn the_scope_is_part_of_label_and_annotation() {
    let rendered = render_files(&[("a.yaml", &config_map("a"))]).await.unwrap();
    assert_eq!(rendered.set_id, "default-bundle-blue");
    let metadata = &rendered.objects[0].value["metadata"];
    assert_eq!(metadata["annotations"][keys::ID_ANNOTATION], "default-bundle-blue");
    assert_eq!(metadata["labels"][keys::HASH_LABEL], rendered.hash.as_str());
}

#[tokio::test]
async fn lists_become_their_items() {
    let rendered = render_files(&[
        (
            "list.json",
            r#"{"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}},
            {"apiVersion": "v1", "kind": "ConfigMapList", "items": [{"metadata": {"name": "c"}}]}]}"#,
        ),
        ("none.yaml", "apiVersion: v1\nkind: List\nitems:\n"),
    ])
    .await
    .unwrap();
    assert_eq!(names(&rendered), ["s", "c"]);
    assert_eq!(rendered.objects[1].kind, "ConfigMap");
    assert_eq!(rendered.objects[1].value["apiVersion"], "v1");
}

#[tokio::test]
async fn nested_bundles_and_other_files_are_passed_over() {
    let rendered = render_files(&[
        ("README.md", "{"),
        ("b/fleet.yaml", ""),
        ("b/hidden.yaml", "{"),
        ("b/deeper/hidden.yaml", "{"),
        ("c/Chart.yaml", ""),
        ("c/templates/hidden.yaml", "{"),
        ("fleet.yaml", "{"),
        ("fleet.yml", "{"),
        ("overlays/prod/hidden.yaml", "{"),
        ("values.yaml", "image: x"),
        ("bb/a.yml", &config_map("in-bb")),
        ("a.json", r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "in-json"}}"#),
    ])
    .await
    .unwrap();
    assert_eq!(names(&rendered), ["in-json", "in-bb"]);
}

#[tokio::test]
async fn a_name_that_is_no_text_is_an_error_and_no_name_is_one_too() {
    for (name, expected) in [
        ("n", "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.name of type string"),
        ("12", "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string"),
        ("''", "resource name may not be empty"),
    ] {
        let error = render_files(&[("a.yaml", &config_map(name))]).await.expect_err(name);
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.is_permanent());
    }
}

#[tokio::test]
async fn a_file_beyond_helms_limit_is_refused() {
    let text = format!("#{}", " ".repeat(5 << 20));
    let error = render_files(&[("big.yaml", &text)]).await.unwrap_err();
    assert!(error.is_permanent());
    assert!(
        error.to_string().contains("\"big.yaml\" is larger than the maximum file size 5242880"),
        "{error}"
    );
}

#[tokio::test]
async fn objects_of_one_kind_keep_helms_order_in_which_10_precedes_2() {
    let text: String = (0..12).map(|i| config_map(&format!("c{i}"))).collect();
    let rendered = render_files(&[("a.yaml", &text)]).await.unwrap();
    let positions: Vec<usize> = rendered.sources.iter().map(|source| source.position).collect();
    assert_eq!(positions, [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(rendered.objects[2].name, "c10");
}

#[tokio::test]
async fn a_stored_manifest_reads_back_as_the_same_objects() {
    let engine = engine();
    for case in ["raw/many-kinds", "raw/yaml11", "raw/empty"] {
        let rendered = Golden::load(case).render(&engine).await.unwrap();
        let read = parse_manifest(&engine, &rendered.manifest).await.unwrap();
        assert!(read == rendered.objects, "{case}");
    }
}
