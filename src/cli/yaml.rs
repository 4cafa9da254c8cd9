// SPDX-License-Identifier: Apache-2.0
//! YAML in and out on the command line.
//!
//! What people write is read as Kubernetes reads it where the reader can: YAML 1.1 booleans and octal numbers. Deployed
//! manifests never pass here; the engine reads them.

use serde::Serialize;
use serde_json::Value;

use super::error::CliError;

/// All documents of a text that are not empty. `what` names the source in errors.
pub fn documents(text: &str, what: &str) -> Result<Vec<Value>, CliError> {
    // Not all of JSON is YAML (a DEL in a string, tabs), so it is tried first where it looks so, as kubectl does.
    if text.trim_start().starts_with('{')
        && let Ok(documents) = serde_json::Deserializer::from_str(text).into_iter().collect()
    {
        return Ok(documents);
    }
    let options = serde_saphyr::options! { with_snippet: false, legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|source| CliError::Yaml { what: what.to_owned(), source: Box::new(source) })?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The only document of a text; none at all is an empty map.
pub fn document(text: &str, what: &str) -> Result<Value, CliError> {
    let mut documents = documents(text, what)?;
    if documents.len() > 1 {
        return Err(CliError::Refused(format!("{what} has {} documents, not one", documents.len())));
    }
    Ok(documents.pop().unwrap_or_else(|| Value::Object(serde_json::Map::new())))
}

/// One YAML document with a newline at its end.
pub fn text(value: &impl Serialize) -> Result<String, CliError> {
    // By way of a JSON value, so that only its few types have to be written.
    let value = serde_json::to_value(value).map_err(|error| CliError::Print(Box::new(error)))?;
    // Long words (ids, base64) stay on the line of their key.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let text = serde_saphyr::to_string_with_options(&value, options);
    let mut text = text.map_err(|error| CliError::Print(Box::new(error)))?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_read_as_kubernetes_reads_it() {
        for (text, expected) in [
            ("a: yes", json!({"a": true})),
            ("a: off", json!({"a": false})),
            ("a: 010", json!({"a": 8})),
            ("a: 0o10", json!({"a": 8})),
            ("a: 1.0", json!({"a": 1.0})),
            ("a: 1e3", json!({"a": 1000.0})),
            ("a: ~", json!({"a": null})),
            ("a: '010'", json!({"a": "010"})),
            ("a: 1:30", json!({"a": "1:30"})),
            ("a: 2020-01-01", json!({"a": "2020-01-01"})),
            ("{\"a\": [1, \"x\"]}", json!({"a": [1, "x"]})),
            ("{\"a\":\t\"\u{7f}\"}", json!({"a": "\u{7f}"})),
            ("{a: yes}", json!({"a": true})),
            ("a: &x [1]\nb: *x", json!({"a": [1], "b": [1]})),
        ] {
            assert_eq!(document(text, "t").unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn empty_texts_and_documents_are_nothing() {
        assert_eq!(document("", "t").unwrap(), json!({}));
        assert_eq!(document("# only a comment\n", "t").unwrap(), json!({}));
        assert_eq!(
            documents("---\na: 1\n---\n---\nb: 2\n", "t").unwrap(),
            [json!({"a": 1}), json!({"b": 2})]
        );
        assert!(document("a: 1\n---\nb: 2\n", "fleet.yaml").is_err());
    }

    #[test]
    fn errors_name_the_source_and_the_line_but_quote_nothing() {
        let error = documents("password: hunter2\nx: [\n", "fleet.yaml").unwrap_err();
        let text = crate::telemetry::chain(&error);
        assert!(text.starts_with("parse fleet.yaml: "), "{text}");
        assert!(!text.contains("hunter2") && !text.contains('\n'), "{text}");
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let tricky = json!({
            "words": ["y", "n", "yes", "NO", "on", "off", "true", "null", "~", "", " ", "-", "?", "a: b", "#x", "!x",
                      "010", "0x1f", "1e3", "1_000", ".5", "1:30", "2020-01-01", "<<", "=", "*a", "&a", "@a", "`",
                      "%a", "{", "[", "'", "\"", "a\nb", "a\n", "\ta", "a ", "ü", "\u{2028}", "\u{0}", "---", "..."],
            "numbers": [0, -1, 1.5, 1e21, 1e-7, u64::MAX, i64::MIN],
            "y": {"": [], "n": {}},
        });
        let text = text(&tricky).unwrap();
        assert_eq!(document(&text, "t").unwrap(), tricky, "{text}");
    }
}
