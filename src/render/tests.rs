// SPDX-License-Identifier: Apache-2.0
//! Rendering through the real engine, against what Fleet's agent made of the same bundles.

use std::{fs, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

use super::{
    Job, Kinds, RenderError, Rendered, Scope,
    engine::{Engine, EngineConfig},
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
        let job = Job {
            bd_name: &self.name,
            options: &self.options,
            manifest: &self.manifest,
            scope: "",
            agent_namespace: "cattle-fleet-system",
            commit: &self.commit,
        };
        render(engine, job).await
    }

    fn release(&self) -> &Value {
        &self.last["releases"].as_array().and_then(|all| all.last()).expect("a release was made")
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
        assert_eq!(chart["metadata"], release["chart"]["metadata"], "{case}: chart metadata");
        let names: Vec<&Value> =
            chart["files"].as_array().unwrap().iter().map(|file| &file["name"]).collect();
        let recorded: Vec<&Value> = release["chart"]["files"].as_array().unwrap().iter().collect();
        assert_eq!(names, recorded, "{case}: files");
        let mut chart_keys: Vec<&String> = chart.as_object().unwrap().keys().collect();
        chart_keys.sort();
        assert_eq!(serde_json::json!(chart_keys), release["chart"]["keys"], "{case}: keys");
    }
}
