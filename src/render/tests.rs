// SPDX-License-Identifier: Apache-2.0
//! Rendering through the real engine, against what Fleet's agent made of the same bundles.

use std::{fs, path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::{Compression, write::GzEncoder};
use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::{
    Job, Kinds, RenderError, Rendered, Scope,
    engine::{Capabilities, Engine, EngineConfig, Lookup, ReleaseFacts},
    parse_manifest, render,
};
use crate::api::{
    BundleDeploymentOptions, keys,
    manifest::{BundleResource, Manifest},
};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

fn engine() -> Engine {
    Engine::start(EngineConfig::default()).expect("cargo has built the engine")
}

/// A cluster without anything in it.
struct Nothing;

impl Lookup for Nothing {
    fn lookup<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, String>> {
        Box::pin(async { Ok(None) })
    }
}

/// What templates ask, for a first install.
struct Surroundings {
    release: ReleaseFacts,
    capabilities: Arc<Capabilities>,
    lookup: Arc<dyn Lookup>,
    values: Map<String, Value>,
}

impl Surroundings {
    fn new(name: &str, options: &BundleDeploymentOptions) -> Self {
        Self {
            release: ReleaseFacts {
                name: crate::api::release_name(name, options),
                namespace: crate::api::release_namespace(options).to_owned(),
                revision: 1,
                is_upgrade: false,
            },
            capabilities: Arc::new(Capabilities {
                kube_version: "v1.36.3".into(),
                api_versions: vec!["v1".into(), "apps/v1".into(), "apps/v1/Deployment".into()],
            }),
            lookup: Arc::new(Nothing),
            values: options.helm.as_ref().and_then(|helm| helm.values.clone()).unwrap_or_default(),
        }
    }

    fn job<'a>(
        &'a self,
        bd_name: &'a str,
        options: &'a BundleDeploymentOptions,
        manifest: &'a Manifest,
    ) -> Job<'a> {
        Job {
            bd_name,
            options,
            manifest,
            scope: "",
            agent_namespace: "cattle-fleet-system",
            commit: "",
            release: &self.release,
            capabilities: &self.capabilities,
            lookup: &self.lookup,
            values: &self.values,
            previous_values: None,
        }
    }
}

/// A recorded case: the bundle and what Fleet's agent did with it in the last step.
struct Golden {
    name: String,
    options: BundleDeploymentOptions,
    commit: String,
    manifest: Manifest,
    last: Value,
}

impl Golden {
    fn load(case: &str) -> Self {
        let read = |file: &str| -> Value {
            let text = fs::read(format!("{GOLDEN}/{case}/{file}")).expect("the case is recorded");
            serde_json::from_slice(&text).expect("recorded as JSON")
        };
        let (steps, expected) = (read("steps.json"), read("expected.json"));
        let bd = &steps["bundleDeployments"][0];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            name: text(&bd["name"]),
            options: serde_json::from_value(bd["options"].clone()).expect("options of the CRD"),
            commit: text(&bd["labels"][keys::COMMIT]),
            manifest: bundle(&steps, Path::new(&format!("{GOLDEN}/{case}/input"))),
            last: expected["steps"].as_array().and_then(|steps| steps.last()).expect("a step").clone(),
        }
    }

    async fn render(&self, engine: &Engine) -> Result<Rendered, RenderError> {
        let surroundings = Surroundings::new(&self.name, &self.options);
        let job = surroundings.job(&self.name, &self.options, &self.manifest);
        render(engine, Job { commit: &self.commit, ..job }).await
    }

    fn release(&self) -> &Value {
        self.last["releases"].as_array().and_then(|all| all.last()).expect("a release was made")
    }

    fn deployed_message(&self) -> &str {
        let conditions = &self.last["bundleDeployments"][&self.name]["status"]["conditions"];
        let deployed = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "Deployed");
        deployed.and_then(|condition| condition["message"].as_str()).unwrap_or_default()
    }
}

/// The bundle's files as the recording's harness stored them; see the golden data's own description.
fn bundle(steps: &Value, directory: &Path) -> Manifest {
    let mut files = Vec::new();
    collect(directory, "", &mut files);
    files.sort();
    let resources = files.into_iter().map(|name| {
        let bytes = fs::read(directory.join(&name)).expect("listed above");
        let unnamed =
            steps["unnamed"].as_array().is_some_and(|names| names.iter().any(|n| n == name.as_str()));
        if steps["encodings"][&name] == "base64+gz" {
            let content = BASE64_STANDARD.encode(gzip(&bytes));
            return BundleResource { name, content, encoding: "base64+gz".into() };
        }
        BundleResource::from_bytes(if unnamed { String::new() } else { name }, bytes)
    });
    Manifest { resources: resources.collect() }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    std::io::Write::write_all(&mut encoder, bytes).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

fn collect(directory: &Path, prefix: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            collect(&entry.path(), &format!("{name}/"), files);
        } else {
            files.push(name);
        }
    }
}

/// Documents of a recorded or rendered manifest with their `# Source:` lines.
async fn documents(engine: &Engine, manifest: &str) -> Vec<(String, Value)> {
    let sources = manifest.lines().filter_map(|line| line.strip_prefix("# Source: ")).map(str::to_owned);
    let values = engine.yaml(vec![("manifest".into(), manifest.into())]).await.expect("a manifest is YAML");
    sources.zip(values.into_iter().map(|document| document.value)).collect()
}

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
            metadata["version"] = format!("v0.0.0+{}", golden.manifest.id()).into();
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
async fn a_templates_directory_is_refused_by_name() {
    let error = Golden::load("raw/templates-dir").render(&engine()).await.unwrap_err();
    assert!(matches!(error, RenderError::Unsupported { .. }) && error.is_permanent());
    assert!(error.to_string().contains("templates/t.yaml"), "{error}");
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
    assert_eq!(rendered.positions, [1]);
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
async fn what_this_version_cannot_deploy_is_refused_by_name() {
    let with = |options: Value| -> BundleDeploymentOptions { serde_json::from_value(options).unwrap() };
    let none = BundleDeploymentOptions::default();
    let chart_dir = with(serde_json::json!({"helm": {"chart": "./charts/app/"}}));
    let kustomize = with(serde_json::json!({"kustomize": {"dir": "./base"}}));
    let overlays = with(serde_json::json!({"yaml": {"overlays": ["prod"]}}));
    let hook =
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, annotations: {helm.sh/hook: pre-install}}";
    for (options, file, text, named) in [
        (&none, "Chart.yaml", "", "Chart.yaml"),
        (&chart_dir, "charts/app/Chart.yaml", "", "charts/app/Chart.yaml"),
        (&none, ".chart/0123/app/Chart.yaml", "", ".chart/0123/app/Chart.yaml"),
        (&none, "kustomization.yaml", "", "kustomization.yaml"),
        (&kustomize, "base/kustomization.yaml", "", "base/kustomization.yaml"),
        (&overlays, "a.yaml", "", "prod"),
        (&none, "templates/a.yaml", "", "templates/a.yaml"),
        (&none, "job.yaml", hook, "hooks (Job j)"),
    ] {
        let error = render_with(options, &[(file, text)]).await.expect_err(file);
        assert!(matches!(error, RenderError::Unsupported { .. }), "{file}: {error}");
        assert!(error.is_permanent() && error.to_string().contains(named), "{file}: {error}");
    }
    assert!(
        render_files(&[("sub/kustomization.yaml", "resources: []")]).await.is_ok(),
        "not the bundle's own"
    );
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
    assert_eq!(rendered.positions, [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]);
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
