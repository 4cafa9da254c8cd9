// SPDX-License-Identifier: Apache-2.0
//! Which files of a bundle are raw manifests, and which bundles are none.

use std::collections::HashSet;

use crate::api::{BundleDeploymentOptions, manifest::Manifest};

use super::RenderError;

/// Helm's limit for one file of a chart, in bytes; Fleet's agent makes every bundle a chart.
const MAX_FILE: usize = 5 << 20;

/// The manifests of a raw bundle, sorted by name.
pub(super) fn raw_yaml(
    manifest: &Manifest,
    options: &BundleDeploymentOptions,
) -> Result<Vec<(String, Vec<u8>)>, RenderError> {
    let names: Vec<String> = manifest.resources.iter().enumerate().map(|(i, r)| name(i, &r.name)).collect();
    refuse_other_styles(&names, options)?;
    let nested = nested_bundles(&names);
    let mut files = Vec::new();
    for (resource, name) in manifest.resources.iter().zip(&names) {
        if !is_manifest(name) || nested.iter().any(|directory| name.starts_with(directory)) {
            continue;
        }
        if name.starts_with("templates/") {
            return Err(unsupported(format!("templates ({name})")));
        }
        let content = resource.decode().map_err(RenderError::Content)?;
        if content.len() > MAX_FILE {
            let message = format!(
                "decompressed chart file {name:?} is larger than the maximum file size {MAX_FILE}: it has {} bytes",
                content.len()
            );
            return Err(RenderError::Object { file: name.clone(), message });
        }
        files.push((name.clone(), content));
    }
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(files)
}

/// Whether the bundle is rendered by the template engine, so that release facts, capabilities and values count.
/// May be true for one that is not: for instance when a patch makes nothing of a template.
pub fn has_templates(manifest: &Manifest, _options: &BundleDeploymentOptions) -> bool {
    manifest.resources.iter().any(|file| {
        let name = file.name.as_str();
        name.starts_with("templates/") || name.contains("/templates/") || name.ends_with("Chart.yaml")
    })
}

/// Fleet's name for a file without one: its position in the list.
fn name(position: usize, name: &str) -> String {
    if name.is_empty() { format!("manifests/file{position:03}.yaml") } else { name.to_owned() }
}

fn refuse_other_styles(names: &[String], options: &BundleDeploymentOptions) -> Result<(), RenderError> {
    let has = |path: &str| names.iter().any(|name| name == path);
    let helm = options.helm.as_ref();
    let chart = helm.map_or("", |helm| if helm.chart.is_empty() { &helm.repo } else { &helm.chart });
    let chart_file = join(chart, "Chart.yaml");
    if has(&chart_file) {
        return Err(unsupported(format!("a Helm chart ({chart_file})")));
    }
    if let Some(found) = names.iter().find(|name| is_external_chart(name)) {
        return Err(unsupported(format!("a Helm chart ({found})")));
    }
    let directory = options.kustomize.as_ref().map_or("", |kustomize| kustomize.dir.as_str());
    let kustomization = join(directory, "kustomization.yaml");
    if has(&kustomization) {
        return Err(unsupported(format!("a kustomization ({kustomization})")));
    }
    match options.yaml.as_ref().map(|yaml| yaml.overlays.as_slice()) {
        Some([first, ..]) => Err(unsupported(format!("overlays (yaml.overlays: {first})"))),
        Some([]) | None => Ok(()),
    }
}

/// A chart that Fleet's controller fetched: `.chart/<hash>/Chart.yaml` or one level below.
fn is_external_chart(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    matches!(parts.as_slice(), [".chart", _, "Chart.yaml"] | [".chart", _, _, "Chart.yaml"])
}

fn is_manifest(name: &str) -> bool {
    let yaml = [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end));
    yaml && name != "fleet.yaml" && name != "fleet.yml" && !name.starts_with("overlays/")
}

/// Directories, with their `/`, that are bundles or charts of their own.
fn nested_bundles(names: &[String]) -> HashSet<&str> {
    let directory = |name: &'_ String| {
        let (directory, file) = name.rsplit_once('/')?;
        matches!(file, "fleet.yaml" | "Chart.yaml").then_some(directory.len() + 1)
    };
    names.iter().filter_map(|name| directory(name).map(|end| &name[..end])).collect()
}

/// Go's `path.Join` for what people write here: no `.`, no empty parts, `..` goes up.
fn join(directory: &str, file: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in directory.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    parts.push(file);
    parts.join("/")
}

fn unsupported(what: String) -> RenderError {
    RenderError::Unsupported { what }
}
