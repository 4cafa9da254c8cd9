// SPDX-License-Identifier: Apache-2.0
//! Rendering charts, kustomizations and overlays through the real engine, against what Fleet's agent made of the same
//! bundles.

use serde_json::{Map, Value, json};

use super::{
    DeletePolicy, Hook, HookEvent, Job, Kinds, MAX_OBJECTS, RenderError, Rendered, Scope, crds,
    golden::{Golden, Surroundings, documents, engine},
    has_templates, render,
};
use crate::api::{
    BundleDeploymentOptions, keys,
    manifest::{BundleResource, Manifest},
};

#[tokio::test]
async fn charts_kustomizations_and_overlays_become_what_fleet_made() {
    let engine = engine();
    for case in [
        "charts/crds-dir",
        "charts/files-tpl",
        "charts/hooks",
        "charts/numbers",
        "charts/subchart",
        "kustomize/dir",
        "kustomize/other-spelling",
        "kustomize/with-chart",
        "overlays/json-file-and-encoding",
        "overlays/replace-and-patch",
        "overlays/two-overlays",
        "raw/templates-dir",
    ] {
        let golden = Golden::first(case);
        let rendered = golden.render(&engine).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        let release = golden.release();
        let expected = documents(&engine, release["manifest"].as_str().unwrap_or_default()).await;
        assert_eq!(documents(&engine, &rendered.manifest).await, expected, "{case}: manifest");
        let (chart, recorded) = (&rendered.chart, &release["chart"]);
        assert_eq!(chart["metadata"], recorded["metadata"], "{case}: chart metadata");
        for list in ["templates", "files"] {
            let names: Vec<&Value> =
                chart[list].as_array().into_iter().flatten().map(|file| &file["name"]).collect();
            assert_eq!(json!(names), recorded[list], "{case}: {list}");
        }
        let mut chart_keys: Vec<&String> = chart.as_object().unwrap().keys().collect();
        chart_keys.sort();
        assert_eq!(json!(chart_keys), recorded["keys"], "{case}: keys");
        let config = Some(Value::Object(rendered.values.clone())).filter(|values| *values != json!({}));
        assert_eq!(json!(config), release["config"], "{case}: config");
        assert_hooks(&rendered.hooks, release["hooks"].as_array().unwrap(), case);
        assert!(
            has_templates(&golden.manifest, &golden.options) || chart["templates"] == json!([]),
            "{case}"
        );
    }
}

/// The recording is of hooks that may have run: Helm adds the default policy to those.
fn assert_hooks(hooks: &[Hook], recorded: &[Value], case: &str) {
    assert_eq!(hooks.len(), recorded.len(), "{case}: hooks");
    for (hook, recorded) in hooks.iter().zip(recorded) {
        let mut ours = hook.record_json();
        assert_eq!(ours["last_run"], json!({"phase": ""}));
        ours.as_object_mut().unwrap().remove("last_run");
        let mut recorded = recorded.clone();
        let fields = recorded.as_object_mut().unwrap();
        let ran = fields.remove("phase") != Some("".into());
        if ran && hook.delete_policies.is_empty() {
            assert_eq!(fields.remove("delete_policies"), Some(json!(["before-hook-creation"])));
            assert!(hook.has_policy(&DeletePolicy::BeforeHookCreation));
        }
        assert_eq!(ours, recorded, "{case}");
    }
}

#[tokio::test]
async fn faults_are_told_in_fleets_words() {
    let engine = engine();
    for (case, permanent) in
        [("kustomize/error", true), ("charts/template-error", false), ("charts/schema-violation", false)]
    {
        let golden = Golden::first(case);
        let error = golden.render(&engine).await.expect_err(case);
        assert_eq!(error.to_string(), golden.deployed_message(), "{case}");
        assert_eq!(error.is_permanent(), permanent, "{case}");
    }
    let golden = Golden::load("charts/template-error").with_input("input.v2");
    let error = golden.render(&engine).await.unwrap_err();
    let conditions = &golden.last["bundleDeployments"][&golden.name]["status"]["conditions"];
    let installed = conditions.as_array().unwrap().iter().find(|it| it["type"] == "Installed").unwrap();
    assert_eq!(format!("not installed: {error}"), installed["message"].as_str().unwrap());
    assert!(error.is_permanent());
}

async fn render_files(options: Value, files: &[(&str, &str)]) -> Result<Rendered, RenderError> {
    let options: BundleDeploymentOptions = serde_json::from_value(options).expect("options of the CRD");
    let manifest = manifest(files);
    let surroundings = Surroundings::new("bundle", &options);
    render(&engine(), surroundings.job("bundle", &options, &manifest)).await
}

#[tokio::test]
async fn a_release_has_ten_thousand_objects_at_most() {
    let raw = |count: usize| -> String {
        (0..count).map(|i| format!("---\n{}", config_map(&format!("m{i}")))).collect()
    };
    let (fits, more) = (raw(MAX_OBJECTS), raw(MAX_OBJECTS + 1));
    let rendered = render_files(json!({}), &[("maps.yaml", &fits)]).await.unwrap();
    assert_eq!(rendered.objects.len(), MAX_OBJECTS);
    let template =
        "{{ range 49999 }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"m{{ . }}\"}\n{{ end }}";
    for (files, count) in [
        (vec![("maps.yaml", more.as_str())], MAX_OBJECTS + 1),
        (vec![("Chart.yaml", CHART), ("templates/m.yaml", template), ("crds/c.yaml", "kind: C")], 50_000),
    ] {
        let error = render_files(json!({}), &files).await.unwrap_err();
        assert!(error.is_permanent());
        let expected =
            format!("the bundle has {count} objects, and one release may have {MAX_OBJECTS}: divide it");
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn the_kinds_of_a_chart_are_known_before_it_is_rendered() {
    let crd = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: hooks.example.com}\n";
    let insists = ("templates/x.yaml", "{{ fail \"no hooks\" }}");
    let options = BundleDeploymentOptions::default();
    let (engine, surroundings) = (engine(), Surroundings::new("bundle", &options));
    for (files, expected) in [
        (vec![("Chart.yaml", CHART), ("crds/c.yaml", crd), insists], 1),
        (vec![("Chart.yaml", CHART), insists], 0),
        // No chart, so that the directory means nothing.
        (vec![("crds/c.yaml", crd)], 0),
    ] {
        let manifest = manifest(&files);
        let found = crds(&engine, surroundings.job("bundle", &options, &manifest)).await.unwrap();
        assert_eq!(found.len(), expected, "{files:?}");
    }
}

fn manifest(files: &[(&str, &str)]) -> Manifest {
    let resource = |(name, content): &(&str, &str)| BundleResource {
        name: (*name).into(),
        content: (*content).into(),
        encoding: String::new(),
    };
    Manifest { resources: files.iter().map(resource).collect() }
}

const CHART: &str = "apiVersion: v2\nname: app\nversion: 1.0.0\n";

fn config_map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
}

fn hook(name: &str, annotations: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\n")
}

fn names(rendered: &Rendered) -> Vec<&str> {
    rendered.objects.iter().map(|object| object.name.as_str()).collect()
}

#[tokio::test]
async fn only_files_of_the_chart_count_in_a_chart_bundle() {
    let rendered = render_files(
        json!({"helm": {"chart": "charts/app"}}),
        &[
            ("beside.yaml", &config_map("beside")),
            ("charts/app/Chart.yaml", CHART),
            ("charts/app/templates/a.yaml", &config_map("{{ .Chart.Name }}")),
            ("charts/app/.helmignore", "templates/\n"),
            ("charts/app/raw-yaml/r.yaml", &config_map("\"{{ raw }}\"")),
            ("charts/app/crds/c.yaml", &config_map("definition")),
        ],
    )
    .await
    .unwrap();
    assert_eq!(names(&rendered), ["app", "{{ raw }}"]);
    assert_eq!(rendered.sources[0].path, "app/templates/a.yaml");
    assert_eq!(rendered.sources[1].path, "generated-by-postrender-1.yaml");
    assert_eq!(rendered.crds.len(), 1);
    assert_eq!(rendered.crds[0].value["metadata"], json!({"name": "definition"}), "no marks");
}

#[tokio::test]
async fn hooks_follow_helms_rules_wherever_they_come_from() {
    let files = [
        hook("raw", "helm.sh/hook: 'post-install, PRE-upgrade', helm.sh/hook-weight: '-7'"),
        hook("unknown", "helm.sh/hook: 'post-install,no-such-event'"),
        hook("no-number", "helm.sh/hook: test-success, helm.sh/hook-weight: heavy"),
        hook(
            "policies",
            "helm.sh/hook: pre-delete, helm.sh/hook-delete-policy: 'hook-failed, odd', helm.sh/hook-output-log-policy: hook-failed",
        ),
        config_map("kept"),
        config_map("raw"),
    ];
    let rendered = render_files(json!({}), &[("a.yaml", &files.join("---\n"))]).await.unwrap();
    assert_eq!(names(&rendered), ["kept", "raw"], "a hook and an object may share a name");
    let hooks: Vec<_> = rendered
        .hooks
        .iter()
        .map(|hook| (hook.object.name.as_str(), hook.events.as_slice(), hook.weight))
        .collect();
    assert_eq!(
        hooks,
        [
            ("raw", &[HookEvent::PostInstall, HookEvent::PreUpgrade][..], -7),
            ("no-number", &[HookEvent::Test][..], 0),
            ("policies", &[HookEvent::PreDelete][..], 0),
        ]
    );
    let last = &rendered.hooks[2];
    assert!(
        last.has_policy(&DeletePolicy::HookFailed) && !last.has_policy(&DeletePolicy::BeforeHookCreation)
    );
    assert_eq!(last.record_json()["delete_policies"], json!(["hook-failed", "odd"]));
    assert_eq!(last.record_json()["output_log_policies"], json!(["hook-failed"]));
    assert_eq!(last.object.value["metadata"]["labels"][keys::HASH_LABEL], rendered.hash.as_str());
    assert!(!format!("{rendered:?}").contains("helm.sh"), "names only");
}

/// A server on which everything is namespaced.
struct Everything;

impl Kinds for Everything {
    fn scope(&self, _: &str, _: &str) -> Option<Scope> {
        Some(Scope::Namespaced)
    }
}

#[tokio::test]
async fn a_forced_namespace_moves_hooks_too_and_their_texts() {
    let golden = Golden::load("charts/hooks");
    let mut rendered = golden.render(&engine()).await.unwrap();
    rendered.force_namespace("elsewhere", &Everything).unwrap();
    for hook in &rendered.hooks {
        assert_eq!(hook.object.namespace, "elsewhere");
        assert!(hook.manifest.contains("namespace: elsewhere"));
    }
}

#[tokio::test]
async fn a_kustomization_sees_what_the_chart_gave_and_its_files_keep_their_names() {
    let rendered = render_files(
        json!({"kustomize": {"dir": "over"}}),
        &[
            ("Chart.yaml", CHART),
            ("over/kustomization.yaml", "namePrefix: pre-\nresources: [own.yaml]\n"),
            ("over/own.yaml", &config_map("own")),
            ("templates/a.yaml", &(config_map("a") + "---\n" + &hook("h", "helm.sh/hook: pre-install"))),
            (
                "templates/list.yaml",
                "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: item}}\n",
            ),
        ],
    )
    .await
    .unwrap();
    let mut found: Vec<_> = rendered
        .objects
        .iter()
        .zip(&rendered.sources)
        .map(|(o, s)| (o.name.as_str(), s.path.as_str()))
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("pre-a", "app/templates/a.yaml"),
            ("pre-item", "generated-by-postrender-2.yaml"),
            ("pre-own", "generated-by-postrender-3.yaml")
        ]
    );
    assert_eq!(rendered.hooks[0].object.name, "pre-h");
    assert_eq!(rendered.hooks[0].path, "app/templates/a.yaml");
    assert!(!rendered.manifest.contains("postrender-filename"));
}

#[tokio::test]
async fn a_list_in_a_template_becomes_its_items_and_flow_style_is_read() {
    let rendered = render_files(
        json!({}),
        &[
            ("templates/flow.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: flow}}\n"),
            (
                "templates/list.yaml",
                "apiVersion: v1\nkind: ConfigMapList\nitems: [{metadata: {name: one}}, {metadata: {name: two}}]\n",
            ),
        ],
    )
    .await
    .unwrap();
    assert_eq!(names(&rendered), ["flow", "one", "two"].map(|name| name), "{}", rendered.manifest);
}

#[tokio::test]
async fn a_document_of_a_template_that_is_no_object_is_an_error_without_its_contents() {
    let error = render_files(json!({}), &[("templates/a.yaml", "password: hunter2\n")]).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("Object 'Kind' is missing") && text.contains("bundle/templates/a.yaml"), "{text}");
    assert!(!text.contains("hunter2") && error.is_permanent());
}

#[tokio::test]
async fn overlays_that_do_not_fit_are_refused() {
    let with = |files: &'static [(&'static str, &'static str)]| {
        render_files(json!({"yaml": {"overlays": ["o"]}}), files)
    };
    let error = with(&[("overlays/o/no_patch.yaml", "a: b")]).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to find base file no.yaml to patch");
    assert!(error.is_permanent());
    let error = with(&[("a.yaml", "a: b"), ("overlays/o/a_patch.yaml", "- {op: remove, path: /x}")])
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("failed to patch a.yaml: "), "{error}");
    let error = with(&[("a.yaml", "a: {"), ("overlays/o/a_patch.yaml", "a: c")]).await.unwrap_err();
    assert!(error.to_string().starts_with("failed to convert a.yaml to json: "), "{error}");
}

#[tokio::test]
async fn an_overlay_patches_one_of_several_documents_and_the_others_stay() {
    let base = config_map("a") + "---\n" + &config_map("b");
    let named = config_map("b") + "data: {patched: named}\n";
    let options = json!({"yaml": {"overlays": ["o"]}});
    let rendered = render_files(
        options,
        &[
            ("a.yaml", &base),
            ("c.yaml", &config_map("c")),
            ("overlays/o/a_patch.yaml", &named),
            ("overlays/o/c.yaml", &config_map("replaced")),
            ("overlays/o/c_patch.yaml", "data: {patched: after-its-replacement}"),
            ("overlays/o/templates/t.yaml", &config_map("{{ .Release.Name }}")),
            ("overlays/other/d.yaml", &config_map("other")),
        ],
    )
    .await
    .unwrap();
    let mut found: Vec<_> = rendered
        .objects
        .iter()
        .map(|object| (object.name.as_str(), object.value["data"]["patched"].as_str()))
        .collect();
    found.sort_unstable();
    let after = Some("after-its-replacement");
    assert_eq!(found, [("a", None), ("b", Some("named")), ("bundle", None), ("replaced", after)]);
}

#[tokio::test]
async fn an_upgrade_without_values_reuses_the_last_ones() {
    let options = BundleDeploymentOptions::default();
    let manifest = manifest(&[("templates/a.yaml", &config_map("{{ .Values.name | default \"none\" }}"))]);
    let mut surroundings = Surroundings::new("bundle", &options);
    let previous: Map<String, Value> = json!({"name": "before"}).as_object().unwrap().clone();
    let engine = engine();
    let job = surroundings.job("bundle", &options, &manifest);
    let installed = render(&engine, Job { previous_values: Some(&previous), ..job }).await.unwrap();
    assert_eq!(names(&installed), ["none"], "an install reuses nothing");
    surroundings.release.is_upgrade = true;
    let job = surroundings.job("bundle", &options, &manifest);
    let upgraded = render(&engine, Job { previous_values: Some(&previous), ..job }).await.unwrap();
    assert_eq!((names(&upgraded), &upgraded.values), (vec!["before"], &previous));
    surroundings.values = json!({"other": 1}).as_object().unwrap().clone();
    let job = surroundings.job("bundle", &options, &manifest);
    let given = render(&engine, Job { previous_values: Some(&previous), ..job }).await.unwrap();
    assert_eq!(names(&given), ["none"]);
}

#[tokio::test]
async fn charts_that_look_at_the_cluster_say_so() {
    let engine = engine();
    let golden = Golden::load("charts/hooks");
    assert!(!golden.render(&engine).await.unwrap().observed_cluster);
    let text = config_map("a") + "data: {size: '{{ (lookup \"v1\" \"ConfigMap\" \"\" \"x\") | len }}'}\n";
    let rendered = render_files(json!({}), &[("templates/a.yaml", &text)]).await.unwrap();
    assert!(rendered.observed_cluster);
    assert_eq!(rendered.objects[0].value["data"]["size"], "0");
}

#[tokio::test]
async fn a_chart_for_another_kubernetes_is_refused_for_good() {
    let chart = format!("{CHART}kubeVersion: \">= 99.0.0\"\n");
    let files = [("Chart.yaml", chart.as_str()), ("templates/a.yaml", &config_map("a"))];
    let error = render_files(json!({}), &files).await.unwrap_err();
    assert!(error.to_string().contains("chart requires kubeVersion"), "{error}");
    assert!(error.is_permanent());
}

#[tokio::test]
async fn equal_files_give_equal_charts() {
    let files: Vec<(String, String)> =
        (0..12).map(|i| (format!("f{i}.yaml"), config_map(&format!("c{i}")))).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let options = json!({"yaml": {"overlays": ["o"]}});
    let first = render_files(options.clone(), &files).await.unwrap();
    for _ in 0..3 {
        let again = render_files(options.clone(), &files).await.unwrap();
        assert_eq!((&again.chart, &again.manifest), (&first.chart, &first.manifest));
    }
}

#[tokio::test]
async fn options_of_the_controller_change_nothing_here() {
    let files = [
        ("Chart.yaml", CHART),
        ("values.yaml", "name: own\n"),
        ("other.yaml", "name: other\n"),
        ("templates/a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Values.name }}\"}\n"),
    ];
    let plain = render_files(json!({}), &files).await.unwrap();
    let theirs = json!({"helm": {"disablePreProcess": true, "disableDependencyUpdate": true,
        "templateValues": {"name": "templated"}, "valuesFiles": ["other.yaml"]}});
    let given = render_files(theirs, &files).await.unwrap();
    assert_eq!(names(&given), ["own"]);
    assert_eq!((&given.manifest, &given.values), (&plain.manifest, &plain.values));
}

/// The files of a stored case.
fn stored(case: &str) -> Vec<(String, String)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(case);
    let (mut files, mut open) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{case}: {error}")) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            files.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn pc_087_only_a_line_of_its_own_separates_documents() {
    let files = stored("scribe");
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let rules = files.iter().find(|(name, _)| name.ends_with("rules.txt")).expect("the rules").1;
    let rendered = render_files(json!({"helm": {"chart": "chart"}}), &files).await.unwrap();
    let mut found = names(&rendered);
    found.sort_unstable();
    assert_eq!(found, ["scribe-a", "scribe-b", "scribe-c", "scribe-d"]);
    let data = |name: &str| {
        let object = rendered.objects.iter().find(|object| object.name == name).unwrap();
        object.value["data"].clone()
    };
    let script = "# --- section --------\necho one\n# ------\necho two ---- three\n";
    assert_eq!(data("scribe-b"), json!({"run.sh": script, "rules": rules, "rules-block": rules}));
    assert_eq!(data("scribe-c"), json!({"k": "---"}));
}
