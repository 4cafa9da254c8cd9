// SPDX-License-Identifier: Apache-2.0
//! JSON text exactly as Go's `encoding/json` stream encoder writes it, since Fleet's ids are hashes over such text.
//!
//! Differences to serde_json's compact form: `<`, `>`, `&`, U+2028 and U+2029 are escaped (HTML escaping is on by
//! default), floats use Go's shortest form, and a newline ends the text. Struct fields come in declaration order on
//! both sides, map keys sorted on both sides (`serde_json::Map` and `BTreeMap` are sorted).

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

/// Encodes a value as Go's `json.NewEncoder(w).Encode(v)` would, trailing newline included.
pub fn to_vec<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = Vec::with_capacity(256);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Go))?;
    text.push(b'\n');
    Ok(text)
}

struct Go;

impl Formatter for Go {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut written = 0;
        for (at, c) in fragment.char_indices() {
            let escape = match c {
                '<' => "\\u003c",
                '>' => "\\u003e",
                '&' => "\\u0026",
                '\u{2028}' => "\\u2028",
                '\u{2029}' => "\\u2029",
                _ => continue,
            };
            writer.write_all(&fragment.as_bytes()[written..at])?;
            writer.write_all(escape.as_bytes())?;
            written = at + c.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[written..])
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn write_f32<W: ?Sized + Write>(&mut self, writer: &mut W, value: f32) -> io::Result<()> {
        self.write_f64(writer, f64::from(value))
    }
}

/// Go's text of a float64: shortest digits; an exponent below 1e-6 and from 1e21 on, written `1e-7`, `1e+21`.
fn float(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{value:e}");
        match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => format!("{digits}e+{exponent}"),
            _ => text,
        }
    } else {
        // Rust never uses an exponent here and prints whole numbers without a point, as Go's 'f' format does.
        format!("{value}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn text(value: &Value) -> String {
        String::from_utf8(to_vec(value).unwrap()).unwrap()
    }

    #[test]
    fn numbers_print_as_in_go() {
        for (number, expected) in [
            (json!(0.0), "0"),
            (json!(-0.0), "-0"),
            (json!(1.0), "1"),
            (json!(1.5), "1.5"),
            (json!(-2.25), "-2.25"),
            (json!(0.1), "0.1"),
            (json!(1e-6), "0.000001"),
            (json!(9.99e-7), "9.99e-7"),
            (json!(1e-7), "1e-7"),
            (json!(1e20), "100000000000000000000"),
            (json!(1e21), "1e+21"),
            (json!(1.5e300), "1.5e+300"),
            (json!(-1e21), "-1e+21"),
            (json!(123456789.0), "123456789"),
            (json!(1000000), "1000000"),
            (json!(9007199254740993_i64), "9007199254740993"),
            (json!(i64::MIN), "-9223372036854775808"),
            (json!(u64::MAX), "18446744073709551615"),
        ] {
            assert_eq!(text(&number), format!("{expected}\n"));
        }
    }

    #[test]
    fn html_and_line_separators_are_escaped_in_keys_and_values() {
        let value = json!({"<k>": "a<b>&c\u{2028}\u{2029}ü \u{7f}/"});
        assert_eq!(
            text(&value),
            "{\"\\u003ck\\u003e\":\"a\\u003cb\\u003e\\u0026c\\u2028\\u2029ü \u{7f}/\"}\n"
        );
    }

    #[test]
    fn control_characters_are_escaped_as_in_go() {
        let value = json!("\"\\\n\r\t\u{8}\u{c}\u{0}\u{1f}");
        assert_eq!(text(&value), "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0000\\u001f\"\n");
    }

    #[test]
    fn map_keys_are_sorted_by_bytes_and_the_text_is_compact() {
        let value = json!({"b": [1, null, true], "a": {"z": {}, "B": []}, "ä": 1});
        assert_eq!(text(&value), "{\"a\":{\"B\":[],\"z\":{}},\"b\":[1,null,true],\"ä\":1}\n");
    }
}
