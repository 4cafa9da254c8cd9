// SPDX-License-Identifier: Apache-2.0
//! One recorded case as it is on disk.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::{Compression, write::GzEncoder};
use flotilla::api::manifest::{BundleResource, Manifest};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The cluster namespace in which the recordings were made.
pub const RECORDED_NAMESPACE: &str = "cluster-fleet-default-bench-1a2b3c4d5e6f";

/// A case of `tests/golden`.
pub struct Case {
    /// `group/case`.
    pub name: String,
    /// `steps.json`.
    pub steps: Value,
    /// `expected.json`.
    pub expected: Value,
    /// Every text of the case but the expectation: times and numbers that stand here are no news of the cluster.
    pub sources: String,
    dir: PathBuf,
}

/// Where the cases are.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The names of all cases, in order.
pub fn names() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for group in folders(&root())? {
        for case in folders(&root().join(&group))? {
            names.push(format!("{group}/{case}"));
        }
    }
    Ok(names)
}

fn folders(dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

impl Case {
    /// Reads a case, for a cluster whose namespace upstream is `cluster_namespace`.
    pub fn read(name: &str, cluster_namespace: &str) -> anyhow::Result<Case> {
        let dir = root().join(name);
        let text = |file: &str| {
            let path = dir.join(file);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let steps = text("steps.json")?.replace(RECORDED_NAMESPACE, cluster_namespace);
        let mut sources = steps.clone();
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                for file in files(&entry.path(), "")? {
                    sources += &String::from_utf8_lossy(&fs::read(entry.path().join(file))?);
                }
            }
        }
        let steps = serde_json::from_str(&steps).with_context(|| format!("steps.json of {name}"))?;
        let expected = serde_json::from_str(&text("expected.json")?)
            .with_context(|| format!("expected.json of {name}"))?;
        Ok(Case { name: name.into(), steps, expected, sources, dir })
    }

    /// What `about` says.
    pub fn about(&self) -> &str {
        self.steps["about"].as_str().unwrap_or_default()
    }

    /// The names of its BundleDeployments.
    pub fn units(&self) -> Vec<&str> {
        let units = self.steps["bundleDeployments"].as_array().into_iter().flatten();
        units.filter_map(|unit| unit["name"].as_str()).collect()
    }

    /// A version of the bundle: the files of one folder.
    pub fn manifest(&self, version: &str) -> anyhow::Result<Manifest> {
        let dir = self.dir.join(version);
        let mut resources = Vec::new();
        for name in files(&dir, "")? {
            let bytes = fs::read(dir.join(&name))?;
            resources.push(if self.steps["encodings"][&name] == "base64+gz" {
                let content = BASE64_STANDARD.encode(gzip(&bytes)?);
                BundleResource { name, content, encoding: "base64+gz".into() }
            } else {
                BundleResource::from_bytes(name, bytes)
            });
        }
        for file in self.steps["generated"][version].as_array().into_iter().flatten() {
            let text = |key: &str| file[key].as_str().unwrap_or_default();
            let length = file["hexBytes"].as_u64().context("generated file without hexBytes")? as usize;
            let content = text("text").replace("@BLOB@", &blob(text("seed"), length));
            resources.push(BundleResource { name: text("name").into(), content, encoding: String::new() });
        }
        resources.sort_by(|a, b| a.name.cmp(&b.name));
        for resource in &mut resources {
            let unnamed = self.steps["unnamed"].as_array().into_iter().flatten();
            if unnamed.into_iter().any(|name| *name == resource.name.as_str()) {
                resource.name.clear();
            }
        }
        Ok(Manifest { resources })
    }
}

/// Hex digits that do not compress: the SHA-256 of `seed-0`, `seed-1`, … joined and cut.
fn blob(seed: &str, length: usize) -> String {
    let mut text: String =
        (0..=length / 64).map(|index| sha256(format!("{seed}-{index}").as_bytes())).collect();
    text.truncate(length);
    text
}

/// Hex SHA-256.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As the recording's harness packed.
pub fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    std::io::Write::write_all(&mut encoder, bytes)?;
    Ok(encoder.finish()?)
}

/// Paths of all files below `dir`, hidden ones too; none when it does not exist.
fn files(dir: &Path, prefix: &str) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let Ok(entries) = fs::read_dir(dir) else { return Ok(names) };
    for entry in entries {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            names.extend(files(&entry.path(), &format!("{name}/"))?);
        } else {
            names.push(name);
        }
    }
    Ok(names)
}
