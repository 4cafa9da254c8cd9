// SPDX-License-Identifier: Apache-2.0
//! The engine against the real helm and the real kustomize, on charts and kustomizations written for this.

use std::{fs, path::Path, process::Command, sync::Arc};

use flotilla::render::{
    engine::{Document, Engine, EngineConfig, KustomizeRequest, ReleaseFacts, RenderRequest},
    install_order,
};
use serde_json::{Map, Value};

#[path = "fidelity/cases.rs"]
mod cases;
#[path = "fidelity/cluster.rs"]
mod cluster;
#[path = "../dev/harness/tools.rs"]
#[allow(dead_code)]
mod tools;

#[path = "fidelity/helm.rs"]
mod helm;
#[path = "fidelity/printed.rs"]
mod printed;

use cases::Case;
use cluster::Nothing;
use helm::{Found, Helm};
use tools::Tools;

#[tokio::test(flavor = "multi_thread")]
async fn charts_render_as_the_real_helm_renders_them() {
    let tools = Tools::build(&["helm"]).expect("helm");
    let directory = tempfile::tempdir().expect("a directory");
    let helm = Helm { program: &tools.path("helm"), home: directory.path() };
    let engine = Engine::start(EngineConfig::default()).expect("cargo has built the engine");
    let defaults = helm.defaults();
    let cases = Case::all("charts");
    assert!(cases.len() >= 25, "{} cases", cases.len());
    let mut faults = Vec::new();
    for mut case in cases {
        case.pack();
        let title = format!("{}: {}", case.name, case.about);
        if let Err(fault) = compare(&engine, &helm, &defaults, case).await {
            faults.push(format!("{title}\n{fault}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert_eq!(engine.restarts(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_hold_what_gos_writer_prints_of_what_helm_renders_byte_for_byte() {
    let tools = Tools::build(&["helm", "kubectl"]).expect("helm and kubectl");
    let directory = tempfile::tempdir().expect("a directory");
    let helm = Helm { program: &tools.path("helm"), home: directory.path() };
    let engine = Engine::start(EngineConfig::default()).expect("cargo has built the engine");
    let defaults = helm.defaults();
    let (mut faults, mut texts) = (Vec::new(), 0);
    for mut case in Case::all("charts") {
        case.pack();
        let title = format!("{}: {}", case.name, case.about);
        match printed::compare(&engine, &helm, &tools.path("kubectl"), &defaults, case).await {
            Ok(count) => texts += count,
            Err(fault) => faults.push(format!("{title}\n{fault}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(texts >= 25, "{texts} texts");
    assert!(printed::is_printed_as("a: b c\nd: e", "a: b\n  c\nd: e"));
    for other in ["a: b c\nd: f", "a: bc\nd: e", "a: 'b c'\nd: e", "a: b c\nd: e\nf: g"] {
        assert!(!printed::is_printed_as("a: b c\nd: e", other), "{other}");
    }
}

async fn compare(
    engine: &Engine,
    helm: &Helm<'_>,
    (kube_version, api_versions): &(String, Vec<String>),
    mut case: Case,
) -> Result<(), String> {
    let values = case.take("user values").unwrap_or_default();
    let (upgrade, skip_schema) = (case.take("upgrade").is_some(), case.take("skip schema").is_some());
    let fails = case.take("fails").is_some();
    let values_file = helm.home.join(format!("{}-values.yaml", case.name));
    fs::write(&values_file, &values).expect("a file");
    let chart = helm.home.join(format!("{}.tgz", case.name));
    fs::write(&chart, cases::archive(&case.files)).expect("a file");
    let mut options = vec!["-f", values_file.to_str().expect("a plain path")];
    if skip_schema {
        options.push("--skip-schema-validation");
    }

    let user = engine.yaml(vec![("values".to_owned(), values)]).await.expect("sound values");
    let user = user.into_iter().next().map_or_else(Map::new, |document| object(document.value));
    let crds = case.files.iter().any(|(name, _)| name.contains("crds/"));
    let ours = engine.render(RenderRequest {
        files: case.files,
        values: user,
        release: ReleaseFacts {
            name: "rel".into(),
            namespace: "space".into(),
            revision: 1,
            is_upgrade: upgrade,
        },
        capabilities: cluster::capabilities(kube_version, api_versions),
        dns: false,
        skip_schema,
        lookup: Arc::new(Nothing),
    });
    let ours = ours.await.map_err(|error| error.to_string());
    if upgrade {
        let theirs = helm.template(engine, &chart, &[&options[..], &["--is-upgrade"]].concat()).await?;
        return same("documents", &manifests(&ours?.documents), &theirs);
    }
    let (ours, theirs) = match (ours, helm.install(engine, &chart, &options).await) {
        (Err(ours), Err(theirs)) if fails => {
            // Ours leaves out the middle of very long ones.
            let (head, tail) = ours.split_once(" […] ").unwrap_or((&ours, ""));
            return if theirs.starts_with(head.trim_end())
                && theirs.ends_with(tail)
                && (!tail.is_empty() || ours.trim_end() == theirs)
            {
                Ok(())
            } else {
                Err(format!("error: {ours}\nhelm: {theirs}"))
            };
        }
        (Ok(_), Ok(_)) if fails => return Err("nobody refuses it".to_owned()),
        (ours, theirs) => (
            ours.map_err(|error| format!("we say: {error}"))?,
            theirs.map_err(|error| format!("helm says: {error}"))?,
        ),
    };
    same("manifests", &manifests(&ours.documents), &theirs.manifests)?;
    same("hooks", &hooks(&ours.documents), &theirs.hooks)?;
    if ours.notes != theirs.notes {
        return Err(format!("notes: {:?}\nhelm: {:?}", ours.notes, theirs.notes));
    }
    if Some(&ours.chart) != theirs.chart.as_ref() {
        return Err(format!("chart: {}\nhelm: {:?}", ours.chart, theirs.chart));
    }
    if crds {
        options.extend(["--include-crds", "--no-hooks"]);
        let all = helm.template(engine, &chart, &options);
        let mut expected = found(&ours.crds);
        expected.extend(theirs.manifests);
        same("crds", &expected, &all.await?)?;
    }
    Ok(())
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is no map"),
    }
}

fn same(what: &str, ours: &[Found], theirs: &[Found]) -> Result<(), String> {
    let text = |found: &[Found]| -> String {
        found.iter().map(|(file, value)| format!("{file}: {value}\n")).collect()
    };
    let (ours, theirs) = (text(ours), text(theirs));
    if ours == theirs { Ok(()) } else { Err(format!("{what}:\n{ours}helm:\n{theirs}")) }
}

fn found(documents: &[Document]) -> Vec<Found> {
    documents.iter().map(|document| (document.file.clone(), document.value.clone())).collect()
}

fn hook(document: &Document) -> Option<&str> {
    document.value["metadata"]["annotations"]["helm.sh/hook"].as_str()
}

/// Documents that are no hooks, in Helm's order.
fn manifests(documents: &[Document]) -> Vec<Found> {
    let plain: Vec<Document> =
        documents.iter().filter(|document| hook(document).is_none()).cloned().collect();
    ordered(&plain)
}

/// Hooks, in Helm's order. It knows no other than these, and drops what it does not know.
fn hooks(documents: &[Document]) -> Vec<Found> {
    let known = |event: &str| {
        let event = event.trim();
        let phases = ["install", "delete", "upgrade", "rollback"];
        event == "test"
            || phases.iter().any(|phase| event == format!("pre-{phase}") || event == format!("post-{phase}"))
    };
    let hooks =
        documents.iter().filter(|document| hook(document).is_some_and(|hook| hook.split(',').all(known)));
    let hooks: Vec<Document> = hooks.cloned().collect();
    ordered(&hooks)
}

fn ordered(documents: &[Document]) -> Vec<Found> {
    let mut sorted: Vec<&Document> = documents.iter().collect();
    sorted.sort_by_key(|document| {
        let kind = document.value["kind"].as_str().unwrap_or_default();
        let rank = install_order(kind);
        (rank, if install_order("none of the known") == rank { kind } else { "" })
    });
    sorted.into_iter().map(|document| (document.file.clone(), document.value.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kustomizations_build_as_the_real_kustomize_builds_them() {
    let tools = Tools::build(&["kubectl"]).expect("kubectl");
    let directory = tempfile::tempdir().expect("a directory");
    let engine = Engine::start(EngineConfig::default()).expect("cargo has built the engine");
    let cases = Case::all("kustomizations");
    assert!(cases.len() >= 8, "{} cases", cases.len());
    let mut faults = Vec::new();
    for case in cases {
        let title = format!("{}: {}", case.name, case.about);
        let home = directory.path().join(&case.name);
        if let Err(fault) = compare_build(&engine, &tools.path("kubectl"), &home, case).await {
            faults.push(format!("{title}\n{fault}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert_eq!(engine.restarts(), 0);
}

async fn compare_build(engine: &Engine, kubectl: &Path, home: &Path, mut case: Case) -> Result<(), String> {
    let directory =
        case.take("directory").map(|text| String::from_utf8(text).expect("text").trim().to_owned());
    let directory = directory.unwrap_or_default();
    let first = case.take("first").unwrap_or_default();
    let fails = case.take("fails").map(|text| String::from_utf8(text).expect("text"));
    for (name, content) in &case.files {
        let path = home.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        // What the engine is told to put first stands in kubectl's kustomization.
        let text = String::from_utf8_lossy(content);
        let mut text = match first.is_empty() {
            true => text.into_owned(),
            false => text.replacen("resources:\n", "resources:\n- fleet-manifests.yaml\n", 1),
        };
        // The command line has another order by default than the library.
        if name.ends_with("kustomization.yaml")
            && !text.contains("sortOptions:")
            && !text.contains("Component")
        {
            text.push_str("sortOptions: {order: fifo}\n");
        }
        fs::write(path, text).expect("a file");
    }
    fs::write(home.join("fleet-manifests.yaml"), &first).expect("a file");
    let output = Command::new(kubectl).arg("kustomize").arg(home.join(&directory)).output().expect("it runs");

    let read = |text: Vec<u8>| engine.yaml(vec![("out".to_owned(), text)]);
    let first = read(first).await.expect("sound YAML").into_iter().map(|document| document.value).collect();
    let ours = engine.kustomize(KustomizeRequest { files: case.files, directory, first }).await;
    let ours = match (ours, output.status.success()) {
        (Ok(ours), true) => ours,
        (Err(ours), false) if let Some(own) = fails.as_deref().map(str::trim_end) => {
            if !own.is_empty() {
                return if ours.to_string() == own {
                    Ok(())
                } else {
                    Err(format!("error: {ours}\nnot: {own}"))
                };
            }
            // kustomize's paths are kubectl's on the disk, ours in memory.
            let theirs = String::from_utf8_lossy(&output.stderr);
            let plain = |text: &str| {
                let text = text.replace(home.to_str().expect("a plain path"), "").replace("error: ", "");
                text.split(|c: char| !c.is_alphanumeric())
                    .filter(|word| !word.is_empty())
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let (ours, theirs) = (plain(&ours.to_string()), plain(&theirs));
            return if ours == theirs { Ok(()) } else { Err(format!("error: {ours}\nkustomize: {theirs}")) };
        }
        (ours, _) => return Err(format!("{ours:?}, kustomize: {}", String::from_utf8_lossy(&output.stderr))),
    };
    let values = |documents: Vec<Document>| -> Vec<Found> {
        documents.into_iter().map(|document| (String::new(), document.value)).collect()
    };
    same("objects", &values(ours), &values(read(output.stdout).await.expect("sound YAML")))
}
