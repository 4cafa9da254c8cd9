// SPDX-License-Identifier: Apache-2.0
//! Durations as Go writes and reads them: `15m`, `1h30m`, `250ms`, `1.5s`, `0`.

use std::time::Duration;

use thiserror::Error;

/// Why a text is no duration of ours.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DurationError {
    /// Not what Go's `time.ParseDuration` accepts.
    #[error("{0:?} is not a duration (like 15m, 1h30m, 250ms or 0)")]
    Syntax(String),
    /// Go allows it, nothing here can use it.
    #[error("{0:?} is a negative duration")]
    Negative(String),
    /// More than 292 years, Go's limit.
    #[error("{0:?} is too long a duration")]
    Overflow(String),
}

/// Reads a duration as Go does; negative ones are refused.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let syntax = || DurationError::Syntax(text.to_owned());
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(syntax());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(syntax)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60 * 1_000_000_000,
            "h" => 3_600 * 1_000_000_000,
            _ => return Err(syntax()),
        };
        nanos = nanos.saturating_add(scaled(number, unit).ok_or_else(syntax)?);
        rest = tail;
    }
    let limit = u64::try_from(i64::MAX).expect("a positive number");
    match u64::try_from(nanos) {
        Ok(nanos) if nanos <= limit && negative && nanos > 0 => Err(DurationError::Negative(text.to_owned())),
        Ok(nanos) if nanos <= limit => Ok(Duration::from_nanos(nanos)),
        _ => Err(DurationError::Overflow(text.to_owned())),
    }
}

/// `number` is digits with at most one point; nanoseconds, fractions below one cut off.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    // Saturates, so that the caller reports an overflow rather than a syntax error.
    let digits =
        |text: &str| text.bytes().fold(0_u128, |n, d| n.saturating_mul(10).saturating_add((d - b'0').into()));
    // Beyond 18 digits nothing is left below an hour's nanoseconds.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or_default());
    Some(digits(whole).saturating_mul(unit).saturating_add(digits(fraction).saturating_mul(unit) / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_in_go() {
        for (text, nanos) in [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("15m", 900_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("250ms", 250_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1us", 1_000),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("7ns", 7),
            ("+3s", 3_000_000_000),
            ("1h1m1s1ms1us1ns", 3_661_001_001_001),
            ("0.100000000000000000001h", 360_000_000_000),
            ("2562047h47m16.854775807s", i64::MAX as u64),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_and_named() {
        for text in ["", "15", "m", ".", ".s", "+", "1x", "1.1.1s", "1 s", "1s ", "ms1", "1d", "١s"] {
            assert_eq!(parse(text), Err(DurationError::Syntax(text.into())), "{text:?}");
        }
        assert_eq!(parse("-1s"), Err(DurationError::Negative("-1s".into())));
        assert_eq!(parse("9999999h"), Err(DurationError::Overflow("9999999h".into())));
        let long = format!("{}s", "9".repeat(60));
        assert_eq!(parse(&long), Err(DurationError::Overflow(long.clone())));
    }
}
