// SPDX-License-Identifier: Apache-2.0
//! Shell patterns for one path element, as in Go's `filepath.Match`: `*`, `?`, `[a-z]`, `[^a-z]`, `\` before a
//! character that is meant literally.

/// Whether the whole name matches. `None`: the pattern is malformed.
pub fn matches(pattern: &str, name: &str) -> Option<bool> {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // Go reports a malformed pattern only if it gets that far; here it is told whatever the name.
    let pieces = parse(&pattern)?;
    Some(fits(&pieces, &name))
}

enum Piece {
    Star,
    Any,
    Literal(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

fn parse(mut pattern: &[char]) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    while let Some((first, rest)) = pattern.split_first() {
        pattern = rest;
        pieces.push(match first {
            '*' => Piece::Star,
            '?' => Piece::Any,
            '\\' => {
                let (literal, rest) = pattern.split_first()?;
                pattern = rest;
                Piece::Literal(*literal)
            }
            '[' => {
                let (class, rest) = class(pattern)?;
                pattern = rest;
                class
            }
            literal => Piece::Literal(*literal),
        });
    }
    Some(pieces)
}

fn class(mut pattern: &[char]) -> Option<(Piece, &[char])> {
    let negated = pattern.first() == Some(&'^');
    if negated {
        pattern = &pattern[1..];
    }
    let mut ranges = Vec::new();
    loop {
        if pattern.first() == Some(&']') && !ranges.is_empty() {
            return Some((Piece::Class { negated, ranges }, &pattern[1..]));
        }
        let (low, rest) = class_char(pattern)?;
        let (high, rest) = match rest.split_first() {
            Some(('-', rest)) => class_char(rest)?,
            _ => (low, rest),
        };
        ranges.push((low, high));
        pattern = rest;
    }
}

fn class_char(pattern: &[char]) -> Option<(char, &[char])> {
    match pattern.split_first()? {
        ('-' | ']', _) => None,
        ('\\', rest) => rest.split_first().map(|(literal, rest)| (*literal, rest)),
        (literal, rest) => Some((*literal, rest)),
    }
}

/// Greedy with one point to return to: the last star.
fn fits(pieces: &[Piece], name: &[char]) -> bool {
    let (mut piece, mut at) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        let fitting = match (pieces.get(piece), name.get(at)) {
            (None, None) => return true,
            (Some(Piece::Star), _) => {
                star = Some((piece, at));
                piece += 1;
                continue;
            }
            (Some(Piece::Any), Some(_)) => true,
            (Some(Piece::Literal(literal)), Some(c)) => literal == c,
            (Some(Piece::Class { negated, ranges }), Some(c)) => {
                ranges.iter().any(|(low, high)| (low..=high).contains(&c)) != *negated
            }
            (_, None) | (None, Some(_)) => false,
        };
        if fitting {
            piece += 1;
            at += 1;
            continue;
        }
        match star {
            Some((star_piece, star_at)) if star_at < name.len() => {
                star = Some((star_piece, star_at + 1));
                piece = star_piece + 1;
                at = star_at + 1;
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, name, expected) in [
            ("abc", "abc", Some(true)),
            ("*", "abc", Some(true)),
            ("*c", "abc", Some(true)),
            ("a*", "a", Some(true)),
            ("a*", "b", Some(false)),
            ("a*b*c*d*e*", "axbxcxdxe", Some(true)),
            ("a*b*c", "axbxbxc", Some(true)),
            ("a*b?c*x", "abxbbxdbxebxczzy", Some(false)),
            ("ab[c]", "abc", Some(true)),
            ("ab[b-d]", "abc", Some(true)),
            ("ab[e-g]", "abc", Some(false)),
            ("ab[^c]", "abc", Some(false)),
            ("ab[^e-g]", "abc", Some(true)),
            ("a\\*b", "a*b", Some(true)),
            ("a\\*b", "ab", Some(false)),
            ("a?b", "aüb", Some(true)),
            ("a[^a]b", "aüb", Some(true)),
            ("[\\]a]", "]", Some(true)),
            ("[\\-]", "-", Some(true)),
            ("*.md", "read.me", Some(false)),
            ("", "", Some(true)),
            ("", "a", Some(false)),
            ("[]a]", "]", None),
            ("[-]", "-", None),
            ("[a-]", "a", None),
            ("[", "a", None),
            ("[^", "a", None),
            ("a\\", "a", None),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern:?} {name:?}");
        }
    }
}
