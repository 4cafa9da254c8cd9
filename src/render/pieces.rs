// SPDX-License-Identifier: Apache-2.0
//! The post-render pipeline: what the templates gave, the kustomization over it, raw manifests behind, Fleet's marks on
//! all of it.

use serde_json::{Map, Value};

use super::{
    Job, Object, RenderError,
    engine::{Document, Engine, EngineError, KustomizeRequest},
    files, objects,
};

/// The annotation by which Helm knows again, behind a post-renderer, from which file a document came.
const FILE: &str = "postrenderer.helm.sh/postrender-filename";

/// An object on its way into the release.
pub(super) struct Piece {
    pub object: Object,
    /// The template it comes from.
    pub path: Option<String>,
}

/// The objects of the templates' documents.
pub(super) fn of_templates(documents: Vec<Document>) -> Result<Vec<Piece>, RenderError> {
    let mut pieces = Vec::with_capacity(documents.len());
    for Document { file, value, .. } in documents {
        add(&mut pieces, &file, value, Some(&file))?;
    }
    Ok(pieces)
}

/// The objects of raw documents.
pub(super) fn of_raw(documents: Vec<Document>) -> Result<Vec<Piece>, RenderError> {
    let objects = objects::objects(documents)?;
    Ok(objects.into_iter().map(|object| Piece { object, path: None }).collect())
}

/// Builds the kustomization in `directory`, with what the templates gave in front of its own resources. Its output
/// takes the place of theirs.
pub(super) async fn of_kustomization(
    engine: &Engine,
    job: &Job<'_>,
    directory: String,
    documents: Vec<Document>,
) -> Result<Vec<Piece>, RenderError> {
    let mut all = Vec::with_capacity(job.manifest.resources.len());
    for resource in job.manifest.resources.iter().filter(|file| !file.name.is_empty()) {
        all.push((resource.name.clone(), files::decode(resource, &resource.name)?));
    }
    let first = documents.into_iter().map(|Document { file, mut value, .. }| {
        if let Some(annotations) = annotations(&mut value) {
            annotations.insert(FILE.to_owned(), file.into());
        }
        value
    });
    let request = KustomizeRequest { files: all, directory, first: first.collect() };
    let built = engine.kustomize(request).await.map_err(|error| match error {
        EngineError::Document { message, .. } => RenderError::Kustomize { message },
        other => RenderError::Engine(other),
    })?;
    let mut pieces = Vec::with_capacity(built.len());
    for Document { mut value, .. } in built {
        let path = take_file(&mut value);
        add(&mut pieces, "the kustomization's output", value, path.as_deref())?;
    }
    Ok(pieces)
}

fn add(pieces: &mut Vec<Piece>, file: &str, value: Value, path: Option<&str>) -> Result<(), RenderError> {
    let mut found = Vec::new();
    let list = objects::rendered(file, value, &mut found)?;
    let path = path.filter(|_| !list);
    pieces.extend(found.into_iter().map(|object| Piece { object, path: path.map(str::to_owned) }));
    Ok(())
}

fn annotations(value: &mut Value) -> Option<&mut Map<String, Value>> {
    let metadata = value.as_object_mut()?.entry("metadata").or_insert_with(|| Map::new().into());
    let annotations = metadata.as_object_mut()?.entry("annotations").or_insert(Value::Null);
    if annotations.is_null() {
        *annotations = Map::new().into();
    }
    annotations.as_object_mut()
}

fn take_file(value: &mut Value) -> Option<String> {
    let metadata = value.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let file = annotations.remove(FILE)?.as_str().map(str::to_owned);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    file
}
