// SPDX-License-Identifier: Apache-2.0
//! Recorded bundles and what Fleet's agent made of them, for tests of rendering.

use std::{fs, path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use flate2::{Compression, write::GzEncoder};
use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::{
    Job, RenderError, Rendered,
    engine::{Capabilities, Engine, EngineConfig, Lookup, ReleaseFacts},
    render,
};
use crate::api::{
    BundleDeploymentOptions, keys,
    manifest::{BundleResource, Manifest},
};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

pub(super) fn engine() -> Engine {
    Engine::start(EngineConfig::default()).expect("cargo has built the engine")
}

/// A cluster without anything in it.
pub(super) struct Nothing;

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
pub(super) struct Surroundings {
    pub(super) release: ReleaseFacts,
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) lookup: Arc<dyn Lookup>,
    pub(super) values: Map<String, Value>,
}

impl Surroundings {
    pub(super) fn new(name: &str, options: &BundleDeploymentOptions) -> Self {
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

    pub(super) fn job<'a>(
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
pub(super) struct Golden {
    pub(super) name: String,
    pub(super) options: BundleDeploymentOptions,
    pub(super) commit: String,
    pub(super) manifest: Manifest,
    pub(super) last: Value,
    steps: Vec<Value>,
    case: String,
}

impl Golden {
    /// As after the first step in which something was deployed.
    pub(super) fn first(case: &str) -> Self {
        let mut golden = Self::load(case);
        let deployed = |step: &&Value| step["bundleDeployments"][&golden.name]["status"].is_object();
        golden.last = golden.steps.iter().find(deployed).expect("a step that deploys").clone();
        golden
    }

    /// With another of the recorded versions of the bundle.
    pub(super) fn with_input(mut self, input: &str) -> Self {
        let directory = format!("{GOLDEN}/{}/{input}", self.case);
        self.manifest = bundle(&Value::Null, Path::new(&directory));
        self
    }

    /// As after the last step.
    pub(super) fn load(case: &str) -> Self {
        let read = |file: &str| -> Value {
            let text = fs::read(format!("{GOLDEN}/{case}/{file}")).expect("the case is recorded");
            serde_json::from_slice(&text).expect("recorded as JSON")
        };
        let (steps, expected) = (read("steps.json"), read("expected.json"));
        let recorded = expected["steps"].as_array().expect("steps").clone();
        let bd = &steps["bundleDeployments"][0];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            name: text(&bd["name"]),
            options: serde_json::from_value(bd["options"].clone()).expect("options of the CRD"),
            commit: text(&bd["labels"][keys::COMMIT]),
            manifest: bundle(&steps, Path::new(&format!("{GOLDEN}/{case}/input"))),
            last: recorded.last().expect("a step").clone(),
            steps: recorded,
            case: case.to_owned(),
        }
    }

    pub(super) async fn render(&self, engine: &Engine) -> Result<Rendered, RenderError> {
        let surroundings = Surroundings::new(&self.name, &self.options);
        let job = surroundings.job(&self.name, &self.options, &self.manifest);
        render(engine, Job { commit: &self.commit, ..job }).await
    }

    pub(super) fn release(&self) -> &Value {
        self.last["releases"].as_array().and_then(|all| all.last()).expect("a release was made")
    }

    pub(super) fn deployed_message(&self) -> &str {
        let conditions = &self.last["bundleDeployments"][&self.name]["status"]["conditions"];
        let deployed = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "Deployed");
        deployed.and_then(|condition| condition["message"].as_str()).unwrap_or_default()
    }
}

/// The bundle's files as the recording's harness stored them; see the golden data's own description.
pub(super) fn bundle(steps: &Value, directory: &Path) -> Manifest {
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
pub(super) async fn documents(engine: &Engine, manifest: &str) -> Vec<(String, Value)> {
    let sources = manifest.lines().filter_map(|line| line.strip_prefix("# Source: ")).map(str::to_owned);
    let values = engine.yaml(vec![("manifest".into(), manifest.into())]).await.expect("a manifest is YAML");
    sources.zip(values.into_iter().map(|document| document.value)).collect()
}
