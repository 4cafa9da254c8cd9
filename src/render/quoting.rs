// SPDX-License-Identifier: Apache-2.0
//! Which strings stand plain in YAML, as Go's writer decides it, but no reader of YAML 1.1 or 1.2 may take one for
//! anything else. That readers agree is tested where it is written.

/// Words that YAML 1.1 or 1.2 reads as something else than text, in lower case.
const WORDS: [&str; 15] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity", "~", "=", "<<"];

/// Whether it would be read as text if its characters allowed it: no word with a meaning, no number, no time.
pub(super) fn is_text(text: &str) -> bool {
    !text.is_empty() && !WORDS.iter().any(|word| word.eq_ignore_ascii_case(text)) && !is_number(text)
}

/// Whether any reader might take it for a number or a time: underscores, other bases, sixties, dates.
fn is_number(text: &str) -> bool {
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !body.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return false;
    }
    let body = body.replace('_', "").to_ascii_lowercase();
    let years = body.bytes().take_while(u8::is_ascii_digit).count() == 4 && body[4..].starts_with('-');
    let sixties = body.contains(':') && body.chars().all(|c| c.is_ascii_digit() || ":.".contains(c));
    let based = ["0x", "0o", "0b"].iter().any(|base| body.starts_with(base));
    years || sixties || based || matches!(body.as_str(), ".inf" | ".nan") || body.parse::<f64>().is_ok()
}

/// Whether nothing in it is read as part of the document's structure.
pub(super) fn fits_plain(text: &str) -> bool {
    let mut chars = text.chars();
    let (first, second) = (chars.next(), chars.next());
    let starts = match first {
        // A sign of something else when a blank follows.
        Some('-' | '?' | ':') => second.is_some_and(|second| second != ' '),
        Some(first) => !"#,[]{}&*!|>'\"%@`".contains(first),
        None => false,
    };
    starts
        && !text.starts_with("---")
        && !text.starts_with("...")
        // Some readers cut other blanks, too.
        && text.trim() == text
        && !text.ends_with(':')
        && !text.contains(": ")
        && !text.contains(" #")
        && text.chars().all(|c| is_printable(c) && c < '\u{10000}')
}

/// Allowed unescaped by YAML, and no line end to any version of it.
pub(super) fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}'
        | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_some_reader_takes_for_something_else_is_no_text() {
        for text in [
            "",
            "y",
            "No",
            "~",
            "<<",
            "1",
            "-1",
            "+.5",
            "0x1F",
            "0b1",
            "1_000",
            "2e8",
            "12:30:45",
            "2001-02-03",
            ".inf",
        ] {
            assert!(!is_text(text), "{text:?}");
        }
        for text in ["a", "1-2", "10.0.0.1", "2b8b", "1:2:x", "-x", "v1", "..x", "nope"] {
            assert!(is_text(text) && fits_plain(text), "{text:?}");
        }
        for text in ["a: b", "a:", "a #b", "- a", "---", "*a", "{a", " a", "a ", "'a'", "\u{a0}"] {
            assert!(is_text(text) && !fits_plain(text), "{text:?}");
        }
    }
}
