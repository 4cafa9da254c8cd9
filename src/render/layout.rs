// SPDX-License-Identifier: Apache-2.0
//! From a bundle's files to a chart and what is laid beside it, as Fleet does it.

use std::collections::BTreeMap;

use serde_json::json;

use crate::api::manifest::{BundleResource, Manifest};

use super::{
    Job, RenderError,
    engine::Engine,
    files::{self, File, Manifests, OVERLAYS, TEMPLATES},
    overlays,
    style::Style,
    text,
};

/// Where Fleet puts raw manifests in the chart it makes; one that has such a directory itself means the same.
const RAW: &str = "raw-yaml/";

/// Characters of the commit in a generated version.
const SHORT_COMMIT: usize = 12;

/// A bundle, sorted out.
pub(super) struct Layout {
    /// What the template engine gets, relative to the chart's root; `None` if nothing is a template.
    pub chart: Option<Vec<File>>,
    /// Manifests that are no templates, in their order.
    pub raw: Vec<File>,
    /// Directory of the kustomization.
    pub kustomization: Option<String>,
    /// Version of the generated chart; empty if the bundle has a chart.
    pub version: String,
}

impl Layout {
    /// Sorts the files out; overlays are laid over raw manifests.
    ///
    /// # Errors
    /// A file that cannot be decoded, an overlay that does not fit.
    pub(super) async fn of(engine: &Engine, job: &Job<'_>) -> Result<Self, RenderError> {
        let Style { chart, kustomization } = Style::of(job.manifest, job.options);
        match (chart, &kustomization) {
            (Some(directory), _) => {
                let files = below(job.manifest, &directory)?;
                let raw = files.iter().filter_map(|(name, content)| {
                    Some((name.strip_prefix(RAW)?.to_owned(), content.clone()))
                });
                let raw = raw.collect();
                Ok(Self { chart: Some(files), raw, kustomization, version: String::new() })
            }
            (None, Some(_)) => {
                let version = version(job.commit, || job.manifest.id());
                Ok(Self { chart: None, raw: Vec::new(), kustomization, version })
            }
            (None, None) => raw(engine, job).await,
        }
    }
}

async fn raw(engine: &Engine, job: &Job<'_>) -> Result<Layout, RenderError> {
    let overlays = job.options.yaml.as_ref().map_or(&[][..], |yaml| yaml.overlays.as_slice());
    let (files, version) = if overlays.is_empty() {
        let sorted = sorted(job.manifest);
        let version = version(job.commit, || match &sorted {
            Some(sorted) => sorted.id(),
            None => job.manifest.id(),
        });
        let resources = &sorted.as_ref().unwrap_or(job.manifest).resources;
        let manifests = Manifests::among(resources.iter().map(|file| file.name.as_str()));
        let mut files = Vec::with_capacity(resources.len());
        for resource in resources.iter().filter(|file| manifests.contains(&file.name)) {
            files.push((resource.name.clone(), files::decode(resource, &resource.name)?));
        }
        (files, version)
    } else {
        let mut all = BTreeMap::new();
        for (position, resource) in job.manifest.resources.iter().enumerate() {
            let name = files::name(position, &resource.name);
            let content = files::decode(resource, &name)?;
            all.insert(name, content);
        }
        overlays::lay(engine, &mut all, overlays).await?;
        all.retain(|name, _| !name.starts_with(OVERLAYS));
        // Fleet loses the commit here, so that the version is always that of the files.
        let version = version("", || id(&all));
        let names: Vec<String> = all.keys().cloned().collect();
        let manifests = Manifests::among(names.iter().map(String::as_str));
        (all.into_iter().filter(|(name, _)| manifests.contains(name)).collect(), version)
    };
    let templates = files.iter().any(|(name, _)| name.starts_with(TEMPLATES));
    let chart = templates.then(|| generated(job.bd_name, &version, &files));
    let raw = files.into_iter().filter(|(name, _)| !name.starts_with(TEMPLATES)).collect();
    Ok(Layout { chart, raw, kustomization: None, version })
}

/// The bundle as Fleet sorts a raw one: all files named, overlays left out. `None` if it is so already.
fn sorted(manifest: &Manifest) -> Option<Manifest> {
    let sound = |file: &BundleResource| !file.name.is_empty() && !file.name.starts_with(OVERLAYS);
    if manifest.resources.is_sorted_by(|a, b| a.name <= b.name) && manifest.resources.iter().all(sound) {
        return None;
    }
    let named = manifest.resources.iter().enumerate().map(|(position, file)| {
        let name = files::name(position, &file.name);
        BundleResource { name, ..file.clone() }
    });
    let mut resources: Vec<_> = named.filter(|file| !file.name.starts_with(OVERLAYS)).collect();
    resources.sort_by(|a, b| a.name.cmp(&b.name));
    Some(Manifest { resources })
}

/// The id Fleet gives files that were laid over: their bytes as text.
fn id(files: &BTreeMap<String, Vec<u8>>) -> String {
    let resources = files.iter().map(|(name, content)| BundleResource {
        name: name.clone(),
        content: String::from_utf8_lossy(content).into_owned(),
        encoding: String::new(),
    });
    Manifest { resources: resources.collect() }.id()
}

/// The files below the chart's directory.
fn below(manifest: &Manifest, directory: &str) -> Result<Vec<File>, RenderError> {
    let mut found = Vec::new();
    for resource in &manifest.resources {
        match resource.name.strip_prefix(directory) {
            Some(name) if !name.is_empty() => {
                found.push((name.to_owned(), files::decode(resource, &resource.name)?));
            }
            Some(_) | None => {}
        }
    }
    Ok(found)
}

/// The chart that Fleet makes of a bundle without one.
fn generated(name: &str, version: &str, files: &[File]) -> Vec<File> {
    let metadata = text::yaml_text(&json!({"apiVersion": "v2", "name": name, "version": version}));
    let mut chart = vec![("Chart.yaml".to_owned(), metadata.into_bytes())];
    for (name, content) in files {
        let place = if name.starts_with(TEMPLATES) { "" } else { RAW };
        chart.push((format!("{place}{name}"), content.clone()));
    }
    chart
}

fn version(commit: &str, id: impl FnOnce() -> String) -> String {
    match commit.char_indices().nth(SHORT_COMMIT) {
        Some((end, _)) => format!("v0.0.0+git-{}", &commit[..end]),
        None => format!("v0.0.0+{}", id()),
    }
}
