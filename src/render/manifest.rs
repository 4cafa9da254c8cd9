// SPDX-License-Identifier: Apache-2.0
//! The manifest text of Helm's release record: written, and read back.

use std::fmt::Write;

use serde_json::Value;

use super::{Object, RenderError, Source, engine::Engine, objects, text};

/// The text Helm would keep: every object as a document, with the file it comes from.
pub(super) fn manifest_text(objects: &[Object], sources: &[Source]) -> String {
    let mut text = String::new();
    for (object, source) in objects.iter().zip(sources) {
        // Writing to a String does not fail.
        let _ = writeln!(text, "---\n# Source: {}", source.path);
        write_document(&mut text, &object.value, source);
        text.push('\n');
    }
    text
}

/// The text of one document: Helm cuts a file where documents part, so that only its last one keeps its line end.
pub(super) fn document_text(value: &Value, source: &Source) -> String {
    let mut text = String::new();
    write_document(&mut text, value, source);
    text
}

fn write_document(text: &mut String, value: &Value, source: &Source) {
    text::write_yaml(text, value);
    if !source.ends_file {
        text.truncate(text.trim_end().len());
    }
}

/// The objects of a manifest text that this agent, Fleet's or Helm itself has stored.
///
/// # Errors
/// Text that is no YAML, and whatever keeps the engine from answering.
pub async fn parse_manifest(engine: &Engine, text: &str) -> Result<Vec<Object>, RenderError> {
    let documents = engine.yaml(vec![("manifest".to_owned(), text.as_bytes().to_vec())]).await?;
    objects::objects(documents)
}
