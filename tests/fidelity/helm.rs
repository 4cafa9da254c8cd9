// SPDX-License-Identifier: Apache-2.0
//! The real helm, and what it makes of a chart.

use std::{fs, path::Path, process::Command};

use flotilla::render::engine::Engine;
use serde_json::Value;

/// A document of a template and its value.
pub type Found = (String, Value);

/// What helm made.
pub struct Release {
    pub manifests: Vec<Found>,
    pub hooks: Vec<Found>,
    /// The manifests as helm wrote them.
    pub texts: Vec<String>,
    pub notes: String,
    /// Not from `template`.
    pub chart: Option<Value>,
}

/// The program and a directory of its own.
pub struct Helm<'a> {
    pub program: &'a Path,
    pub home: &'a Path,
}

impl Helm<'_> {
    /// Its output, or what it says after `Error:`.
    pub fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.program);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home);
        }
        let output = command.args(arguments).env("KUBECONFIG", "/dev/null").env("TZ", "UTC").output();
        let output = output.expect("helm runs");
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout).expect("text"));
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let (_, error) = text.split_once("Error: ").expect("an error");
        Err(error.trim_start_matches("INSTALLATION FAILED: ").trim_end().to_owned())
    }

    /// Version of Kubernetes and API versions that it assumes without a cluster.
    pub fn defaults(&self) -> (String, Vec<String>) {
        let chart = self.home.join("defaults");
        fs::create_dir_all(chart.join("templates")).expect("a directory");
        fs::write(chart.join("Chart.yaml"), "{apiVersion: v2, name: x, version: 1.0.0}").expect("a file");
        let template =
            r#"a: {{ toJson (list .Capabilities.KubeVersion.Version .Capabilities.APIVersions) }}"#;
        fs::write(chart.join("templates/x.yaml"), template).expect("a file");
        let text = self.run(&["template", "x", path(&chart)]).expect("helm renders it");
        let (_, json) = text.split_once("a: ").expect("the line");
        serde_json::from_str(json).expect("what the template wrote")
    }

    /// A dry run of an install.
    pub async fn install(&self, engine: &Engine, chart: &Path, options: &[&str]) -> Result<Release, String> {
        let fixed = ["install", "rel", path(chart), "-n", "space", "--dry-run=client", "-o", "json"];
        let release: Value = serde_json::from_str(&self.run(&[&fixed, options].concat())?).expect("JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let hooks = release["hooks"].as_array().into_iter().flatten();
        let hooks: Vec<_> = hooks.map(|hook| (text(&hook["path"]), text(&hook["manifest"]))).collect();
        Ok(Release {
            manifests: read(engine, manifests(&text(&release["manifest"]))).await,
            hooks: read(engine, hooks).await,
            texts: manifests(&text(&release["manifest"])).into_iter().map(|(_, text)| text).collect(),
            notes: text(&release["info"]["notes"]),
            chart: Some(release["chart"].clone()),
        })
    }

    /// What `template` prints.
    pub async fn template(
        &self,
        engine: &Engine,
        chart: &Path,
        options: &[&str],
    ) -> Result<Vec<Found>, String> {
        let fixed = ["template", "rel", path(chart), "-n", "space"];
        let text = self.run(&[&fixed, options].concat())?;
        Ok(read(engine, manifests(&text)).await)
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Source and text of each document.
fn manifests(text: &str) -> Vec<(String, String)> {
    let documents = text.split("---\n# Source: ").skip(1);
    let documents = documents.map(|document| document.split_once('\n').expect("more than its source"));
    documents.map(|(source, content)| (source.to_owned(), content.to_owned())).collect()
}

/// The same reader for both sides.
async fn read(engine: &Engine, texts: Vec<(String, String)>) -> Vec<Found> {
    let files = texts.into_iter().map(|(source, text)| (source, text.into_bytes())).collect();
    let documents = engine.yaml(files).await.expect("helm writes what can be read");
    documents.into_iter().map(|document| (document.file, document.value)).collect()
}
