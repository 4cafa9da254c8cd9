// SPDX-License-Identifier: Apache-2.0
//! The files of a bundle: their names, their contents, and which of them are manifests.

use std::collections::HashSet;

use crate::api::{
    BundleDeploymentOptions,
    manifest::{BundleResource, Manifest},
};

use super::{RenderError, style::Style};

/// Helm's limit for one file of a chart, in bytes; Fleet's agent makes every bundle a chart.
pub(super) const MAX_FILE: usize = 5 << 20;

/// Where overlays lie.
pub(super) const OVERLAYS: &str = "overlays/";

/// Where the templates of a bundle without a chart lie, and those of a chart.
pub(super) const TEMPLATES: &str = "templates/";

/// A file, decoded.
pub(super) type File = (String, Vec<u8>);

/// Whether the bundle is rendered by the template engine, so that release facts, capabilities and values count.
/// May be true for one that is not, as when an overlay that is not used has templates.
pub fn has_templates(manifest: &Manifest, options: &BundleDeploymentOptions) -> bool {
    let style = Style::of(manifest, options);
    let template = |name: &str| name.split('/').any(|part| part == "templates");
    style.chart.is_some() || style.is_raw() && manifest.resources.iter().any(|file| template(&file.name))
}

/// Fleet's name for a file without one: its position in the list.
pub(super) fn name(position: usize, name: &str) -> String {
    if name.is_empty() { format!("manifests/file{position:03}.yaml") } else { name.to_owned() }
}

/// A file's contents.
///
/// # Errors
/// One that cannot be decoded, or is larger than Helm takes.
pub(super) fn decode(resource: &BundleResource, name: &str) -> Result<Vec<u8>, RenderError> {
    let content = resource.decode().map_err(RenderError::Content)?;
    if content.len() > MAX_FILE {
        let message = format!(
            "decompressed chart file {name:?} is larger than the maximum file size {MAX_FILE}: it has {} bytes",
            content.len()
        );
        return Err(RenderError::Object { file: name.to_owned(), message });
    }
    Ok(content)
}

/// Which of a raw bundle's files are manifests: by their names, and outside of bundles and charts of their own.
pub(super) struct Manifests<'a> {
    nested: HashSet<&'a str>,
}

impl<'a> Manifests<'a> {
    pub(super) fn among(names: impl Iterator<Item = &'a str>) -> Self {
        let directory = |name: &'a str| {
            let (directory, file) = name.rsplit_once('/')?;
            let own = matches!(file, "fleet.yaml" | "fleet.yml" | "Chart.yaml");
            own.then_some(&name[..directory.len() + 1])
        };
        Self { nested: names.filter_map(directory).collect() }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        let yaml = [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end));
        yaml && name != "fleet.yaml"
            && name != "fleet.yml"
            && !self.nested.iter().any(|directory| name.starts_with(directory))
    }
}

/// Go's `path.Join` for what people write here: no `.`, no empty parts, `..` goes up.
pub(super) fn join(directory: &str, file: &str) -> String {
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
