// SPDX-License-Identifier: Apache-2.0
//! The manifest text of Helm's release record: written, and read back.

use std::fmt::Write;

use super::{Object, RenderError, engine::Engine, objects, text};

/// The text Helm would keep: every object as a document, with the name Helm makes up for what a post-renderer gave it.
pub(super) fn manifest_text(objects: &[Object], positions: &[usize]) -> String {
    let mut text = String::new();
    for (object, position) in objects.iter().zip(positions) {
        // Writing to a String does not fail.
        let _ = writeln!(text, "---\n# Source: generated-by-postrender-{position}.yaml");
        text::write_yaml(&mut text, &object.value);
        text.push('\n');
    }
    text
}

/// The objects of a manifest text that this agent, Fleet's or Helm itself has stored.
///
/// # Errors
/// Text that is no YAML, and whatever keeps the engine from answering.
pub async fn parse_manifest(engine: &Engine, text: &str) -> Result<Vec<Object>, RenderError> {
    let documents = engine.yaml(vec![("manifest".to_owned(), text.as_bytes().to_vec())]).await?;
    objects::objects(documents)
}
