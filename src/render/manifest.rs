// SPDX-License-Identifier: Apache-2.0
//! The manifest text of Helm's release record: written, and read back.

use std::fmt::Write;

use serde_json::Value;

use super::{DeletePolicy, Hook, HookEvent, Object, RenderError, Source, engine::Engine, objects, text};

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

/// The hooks of a release record, at their places in it. One that holds no object has no moment: it never runs.
///
/// # Errors
/// As those of [`parse_manifest`].
pub async fn parse_hooks(engine: &Engine, records: &[Value]) -> Result<Vec<Hook>, RenderError> {
    let mut hooks = Vec::with_capacity(records.len());
    for record in records {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let words = |key: &str| {
            let words = record[key].as_array().into_iter().flatten().filter_map(Value::as_str);
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        let manifest = text("manifest");
        let object = parse_manifest(engine, &manifest).await?.into_iter().next();
        let events = if object.is_some() { words("events") } else { Vec::new() };
        hooks.push(Hook {
            object: object.unwrap_or_else(|| Object {
                api_version: String::new(),
                kind: text("kind"),
                namespace: String::new(),
                name: text("name"),
                value: Value::Null,
            }),
            path: text("path"),
            events: events.iter().filter_map(|word| HookEvent::parse(word)).collect(),
            weight: record["weight"].as_i64().and_then(|weight| i32::try_from(weight).ok()).unwrap_or(0),
            delete_policies: words("delete_policies").into_iter().map(DeletePolicy::parse).collect(),
            output_log_policies: words("output_log_policies"),
            manifest,
        });
    }
    Ok(hooks)
}
