// SPDX-License-Identifier: Apache-2.0
//! Writing YAML so that every reader of Kubernetes' world reads back the same value.
//!
//! A string is plain only if it cannot be taken for anything else under YAML 1.1 or 1.2, a block only if no reader
//! strips or folds any of it, else quoted: once where only its characters are in the way, twice where it would be read as
//! something else or needs an escape. Keys are sorted and lists compact. So it looks as Helm's users know it.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::Value;

use super::quoting::{fits_plain, is_printable, is_text};

/// Longest key that may stand before its `:` without being announced, with room below the readers' 1024 bytes.
const LONGEST_SIMPLE_KEY: usize = 512;

/// A value as a YAML document, with a line end at its end.
pub fn yaml_text(value: &Value) -> String {
    let mut text = String::new();
    write_yaml(&mut text, value);
    text
}

/// [`yaml_text`] at the end of a text.
pub(super) fn write_yaml(out: &mut String, value: &Value) {
    Writer { out }.document(value);
}

struct Writer<'a> {
    out: &'a mut String,
}

impl Writer<'_> {
    fn document(&mut self, value: &Value) {
        match value {
            Value::Object(map) if !map.is_empty() => self.map(map, 0, false, true),
            Value::Array(list) if !list.is_empty() => self.list(list, 0, false, true),
            // Nothing follows, so nothing can be mistaken for a block's end.
            scalar => {
                self.scalar(scalar, 0, true);
                self.out.push('\n');
            }
        }
    }

    /// `inline`: the first entry continues the current line. `last`: nothing of the document follows.
    fn map(&mut self, map: &serde_json::Map<String, Value>, indent: usize, inline: bool, last: bool) {
        // Sorted here, so that it does not depend on how serde_json was built.
        let sorted: BTreeMap<&String, &Value> = map.iter().collect();
        let count = sorted.len();
        for (i, (key, value)) in sorted.into_iter().enumerate() {
            if i > 0 || !inline {
                self.indent(indent);
            }
            if key.len() > LONGEST_SIMPLE_KEY {
                self.out.push_str("? ");
                self.string(key);
                self.out.push('\n');
                self.indent(indent);
            } else {
                self.string(key);
            }
            self.out.push(':');
            let last = last && i + 1 == count;
            match value {
                Value::Object(inner) if !inner.is_empty() => {
                    self.out.push('\n');
                    self.map(inner, indent + 2, false, last);
                }
                Value::Array(inner) if !inner.is_empty() => {
                    self.out.push('\n');
                    self.list(inner, indent, false, last);
                }
                scalar => {
                    self.out.push(' ');
                    self.scalar(scalar, indent + 2, last);
                    self.out.push('\n');
                }
            }
        }
    }

    fn list(&mut self, list: &[Value], indent: usize, inline: bool, last: bool) {
        for (i, value) in list.iter().enumerate() {
            if i > 0 || !inline {
                self.indent(indent);
            }
            self.out.push_str("- ");
            let last = last && i + 1 == list.len();
            match value {
                Value::Object(inner) if !inner.is_empty() => self.map(inner, indent + 2, true, last),
                Value::Array(inner) if !inner.is_empty() => self.list(inner, indent + 2, true, last),
                scalar => {
                    self.scalar(scalar, indent + 2, last);
                    self.out.push('\n');
                }
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize, last: bool) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(truth) => self.out.push_str(if *truth { "true" } else { "false" }),
            // Writing to a String does not fail, here and below.
            Value::Number(number) => drop(write!(self.out, "{number}")),
            // Helm cuts white space at a document's end, and a block there would lose its line end.
            Value::String(text) if !last && fits_block(text) => self.block(text, indent),
            Value::String(text) => self.string(text),
            Value::Array(_) => self.out.push_str("[]"),
            Value::Object(_) => self.out.push_str("{}"),
        }
    }

    fn block(&mut self, text: &str, indent: usize) {
        let body = text.strip_suffix('\n');
        self.out.push_str(if body.is_some() { "|" } else { "|-" });
        for line in body.unwrap_or(text).split('\n') {
            self.out.push('\n');
            if !line.is_empty() {
                self.indent(indent);
                self.out.push_str(line);
            }
        }
    }

    fn string(&mut self, text: &str) {
        match is_text(text) {
            true if fits_plain(text) => return self.out.push_str(text),
            true if text.chars().all(is_printable) => {
                self.out.push('\'');
                self.out.push_str(&text.replace('\'', "''"));
                return self.out.push('\'');
            }
            _ => {}
        }
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\t' => self.out.push_str("\\t"),
                '\r' => self.out.push_str("\\r"),
                c if is_printable(c) => self.out.push(c),
                c => drop(write!(self.out, "\\u{:04X}", u32::from(c))),
            }
        }
        self.out.push('"');
    }

    fn indent(&mut self, width: usize) {
        self.out.extend(std::iter::repeat_n(' ', width));
    }
}

/// Several lines that a block keeps as they are: no white space whose meaning a reader guesses (at the start; more
/// than one line end at the end), and nothing that would need an escape.
fn fits_block(text: &str) -> bool {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    text.contains('\n')
        && !lines.is_empty()
        && !lines.ends_with('\n')
        && !lines.starts_with([' ', '\t', '\n'])
        && lines.chars().all(|c| c == '\n' || c == '\t' || is_printable(c))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::render::engine::{Engine, EngineConfig};

    /// What Kubernetes reads, also after Helm has cut white space at the end.
    async fn read_back(engine: &Engine, value: &Value) {
        let text = yaml_text(value);
        for text in [text.as_str(), text.trim_end()] {
            let read = engine.yaml(vec![("t".into(), text.into())]).await;
            let read = read.unwrap_or_else(|error| panic!("{error}:\n{text}"));
            assert_eq!(&read[0].value, value, "{text}");
        }
    }

    fn engine() -> Engine {
        Engine::start(EngineConfig::default()).expect("cargo has built the engine")
    }

    #[test]
    fn text_looks_as_helms_users_know_it() {
        let value = json!({
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "data": {"b": "line 1\nline 2\n", "a": "yes", "c": "plain text", "d": "a: b", "e": "12"},
            "list": [{"name": "x", "args": ["--flag", "http://h:80/"]}, [1, 2.5], [], {}, null, true],
        });
        let expected = "\
apiVersion: v1
data:
  a: \"yes\"
  b: |
    line 1
    line 2
  c: plain text
  d: 'a: b'
  e: \"12\"
kind: ConfigMap
list:
- args:
  - --flag
  - http://h:80/
  name: x
- - 1
  - 2.5
- []
- {}
- null
- true
";
        assert_eq!(yaml_text(&value), expected);
    }

    #[tokio::test]
    async fn hostile_strings_survive_as_keys_and_values() {
        let engine = engine();
        let mut strings: Vec<String> = [
            "",
            " ",
            "a ",
            " a",
            "y",
            "Y",
            "n",
            "No",
            "on",
            "OFF",
            "yes",
            "true",
            "False",
            "null",
            "Null",
            "~",
            "=",
            "<<",
            "-",
            "- a",
            "?",
            "? a",
            ":",
            "a:",
            "a: b",
            "a:b",
            "a #b",
            "#",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "%a",
            "@a",
            "`a",
            "'",
            "\"",
            "\\",
            "{",
            "}",
            "[",
            "]",
            ",",
            "{a: b}",
            "[a]",
            "---",
            "--- a",
            "...",
            "0",
            "-0",
            "0777",
            "0o17",
            "0x1F",
            "0b1",
            "1_000",
            "1e3",
            "1.",
            ".5",
            "+1",
            "12:30:45",
            "2001-02-03",
            ".inf",
            ".nan",
            "NaN",
            "inf",
            "Infinity",
            "12345678901234567890",
            "1-2",
            "10.0.0.1",
            "2b8b",
            "2e8",
            "1:2:x",
            "-x",
            "-1x",
            "?x",
            ":x",
            "--- x",
            "a'b",
            "it's: so",
            "a 'b' #c",
            " lead: x",
            "x: trail ",
            "..x",
            "\t",
            "a\tb",
            "\ta",
            "a\n",
            "a\nb",
            "a\n\n",
            "\na",
            "\n",
            "\n\n",
            " a\nb",
            "a\n b\n",
            "a\n\tb\n",
            "\ta\nb",
            "a \nb",
            "a\n \n",
            "a\n---\nb\n",
            "a\r\nb\r\n",
            "\r",
            "a\u{85}b",
            "a\u{2028}b\u{2029}c",
            "\u{feff}a",
            "a\u{feff}",
            "\u{0}",
            "\u{7f}",
            "\u{1b}[0m",
            "\u{a0}",
            "\u{fffe}",
            "\u{ffff}",
            "\u{fffd}",
            "\u{e000}",
            "ü",
            "日本",
            "😀",
            "a😀\nb\n",
            "{{ .Values.a }}",
            "# a\nb\n",
            "key: |\n  text\n",
        ]
        .map(str::to_owned)
        .to_vec();
        strings.push("k".repeat(2000));
        strings.push("long words ".repeat(300) + "end");
        for string in &strings {
            read_back(&engine, &json!({ string: string })).await;
            read_back(&engine, &json!({"a": {string: [string, {string: string}], "z": string}, "z": 1}))
                .await;
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let text = || prop_oneof!["[a-z]{0,6}", "[ \\n\\t:#a'\"-]{0,12}", any::<String>()];
        let number = prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            // Whole ones come back as integers, as Go writes them.
            (-1000.0..1000.0).prop_filter("fractions", |f: &f64| f.fract() != 0.0).prop_map(Value::from),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            number,
            text().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(text(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn any_object_reads_back_as_itself() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let engine = runtime.block_on(async { engine() });
        proptest!(|(value in prop::collection::btree_map("[a-z]{1,3}", values(), 1..4))| {
            runtime.block_on(read_back(&engine, &json!(value)));
        });
    }
}
