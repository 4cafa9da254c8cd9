// SPDX-License-Identifier: Apache-2.0
//! The rules of the house that the compiler does not know: which room may use which, what the pure core may name,
//! how long a file may be. Each rule is shown to bite on a planted violation.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Rooms from the edge to the core. A room may use those with a higher number; equal numbers are strangers.
const LAYERS: [(&str, u8); 11] = [
    ("cli", 0),
    ("agent", 1),
    ("controller", 1),
    ("registration", 2),
    ("upstream", 3),
    ("downstream", 4),
    ("monitor", 5),
    ("render", 6),
    ("protocol", 7),
    ("telemetry", 8),
    ("api", 9),
];

/// Crates and modules that would make the core impure. `std::time::Duration` is fine: a span is no clock.
const IMPURE_PATHS: [&str; 8] =
    ["tokio", "kube", "k8s_openapi", "chrono", "rand", "jiff", "axum", "telemetry"];
/// Clocks, under whatever path they were imported.
const IMPURE_NAMES: [&str; 2] = ["Instant", "SystemTime"];

/// Above this a file is to be split by subject.
const MAX_LINES: usize = 600;

const SPDX: &str = "// SPDX-License-Identifier: Apache-2.0";

fn layer(room: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == room).map(|(_, layer)| *layer)
}

/// The words and signs of a Rust source, without comments and literals.
fn tokens(source: &str) -> Vec<String> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                let mut depth = 0;
                while i < chars.len() {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            '"' => i = after_string(&chars, i),
            // A character literal; anything else that begins so is a lifetime.
            '\'' if at(i + 1) == '\\' => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            ':' if at(i + 1) == ':' => {
                tokens.push("::".to_owned());
                i += 2;
            }
            c if c.is_alphanumeric() || c == '_' => {
                let start = i;
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
                let word: String = chars[start..i].iter().collect();
                let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && at(i + hashes) == '"' {
                    i = after_raw_string(&chars, i + hashes, hashes);
                } else {
                    tokens.push(word);
                }
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    tokens
}

fn after_string(chars: &[char], quote: usize) -> usize {
    let mut i = quote + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn after_raw_string(chars: &[char], quote: usize, hashes: usize) -> usize {
    let mut i = quote + 1;
    while i < chars.len() {
        if chars[i] == '"' && chars[i + 1..].iter().take_while(|c| **c == '#').count() >= hashes {
            return i + 1 + hashes;
        }
        i += 1;
    }
    i
}

/// Every first segment after `crate::`, those of groups (`crate::{a::b, c}`) included.
fn rooms_named(tokens: &[String]) -> Vec<String> {
    let word = |i: usize| tokens.get(i).map_or("", String::as_str);
    let mut rooms = Vec::new();
    for i in 0..tokens.len() {
        if word(i) != "crate" || word(i + 1) != "::" {
            continue;
        }
        if word(i + 2) != "{" {
            rooms.push(word(i + 2).to_owned());
            continue;
        }
        let (mut depth, mut first) = (1, true);
        let mut j = i + 3;
        while depth > 0 && j < tokens.len() {
            match word(j) {
                "{" => depth += 1,
                "}" => depth -= 1,
                "," if depth == 1 => first = true,
                name if depth == 1 && first => {
                    rooms.push(name.to_owned());
                    first = false;
                }
                _ => {}
            }
            j += 1;
        }
    }
    rooms
}

/// What is wrong with a file of `src/`, one line each. `path` is relative to `src/`.
fn violations(path: &str, source: &str) -> Vec<String> {
    let mut found = header_and_length(path, source);
    let tokens = tokens(source);
    let room = path.split(['/', '.']).next().unwrap_or_default();
    if let Some(own) = layer(room) {
        for used in rooms_named(&tokens) {
            if used != room && layer(&used).is_some_and(|layer| layer <= own) {
                found.push(format!("src/{path}: {room} must not use {used}: arrows point down only"));
            }
        }
    }
    if room == "protocol" {
        for pair in tokens.windows(2) {
            if pair[1] == "::" && IMPURE_PATHS.contains(&pair[0].as_str()) {
                found.push(format!("src/{path}: the protocol is pure and must not name {}", pair[0]));
            }
        }
        for name in IMPURE_NAMES {
            if tokens.iter().any(|token| token == name) {
                found.push(format!("src/{path}: the protocol has no clock and must not name {name}"));
            }
        }
    }
    if !matches!(room, "cli" | "main") {
        for pair in tokens.windows(2) {
            if pair[1] == "!"
                && matches!(pair[0].as_str(), "println" | "print" | "eprintln" | "eprint" | "dbg")
            {
                found.push(format!("src/{path}: {}! outside the command line; use tracing", pair[0]));
            }
        }
    }
    for name in registered_metrics(source) {
        if name.ends_with("_total") || name.starts_with("flotilla") {
            found.push(format!("src/{path}: metric {name}: prefix and _total are added when encoding"));
        }
    }
    found
}

fn header_and_length(path: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    if source.lines().next() != Some(SPDX) {
        found.push(format!("{path}: the first line is not {SPDX:?}"));
    }
    let lines = source.lines().count();
    if lines > MAX_LINES {
        found.push(format!("{path}: {lines} lines, {MAX_LINES} are allowed; split it by subject"));
    }
    found
}

/// First arguments of calls `.register("…"`.
fn registered_metrics(source: &str) -> Vec<&str> {
    let calls = source.split(".register(").skip(1);
    calls.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next()).collect()
}

/// All Rust files below a directory of the repository, as (path relative to it, text).
fn sources(directory: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = vec![root.clone()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push((relative, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_source_file_keeps_the_rules_of_the_house() {
    let files = sources("src");
    assert!(files.len() > 20, "only {} files found: is this the repository?", files.len());
    let mut found: Vec<String> = files.iter().flat_map(|(path, source)| violations(path, source)).collect();
    for directory in ["tests", "dev"] {
        for (path, source) in sources(directory) {
            found.extend(header_and_length(&format!("{directory}/{path}"), &source));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_room_has_its_place_in_the_order() {
    for (path, _) in sources("src") {
        let room = path.split(['/', '.']).next().unwrap();
        assert!(layer(room).is_some() || matches!(room, "lib" | "main"), "src/{path}: {room} has no layer");
    }
}

/// The violations of a planted source, without the one about its missing header.
fn planted(path: &str, source: &str) -> usize {
    violations(path, &format!("{SPDX}\n{source}\n")).len()
}

#[test]
fn a_planted_arrow_upwards_is_found_however_it_is_written() {
    for source in [
        "use crate::agent::Context;",
        "use crate::{api::keys, agent};",
        "use crate::{api::{keys, names}, downstream::{live::LiveStore}};",
        "fn f() { crate::upstream::claim(); }",
        "fn f() -> char { let a = '\"'; crate::cli::run(); a }",
        "fn f<'a>(x: &'a str) { crate::cli::run(x) }",
    ] {
        assert_eq!(planted("monitor/mod.rs", source), 1, "{source}");
    }
    assert_eq!(planted("agent/attempt.rs", "use crate::controller::Reaper;"), 1, "sideways");
    assert_eq!(planted("controller.rs", "use crate::cli::args;"), 1, "a room in one file");
}

#[test]
fn arrows_downwards_comments_and_texts_are_no_violations() {
    for source in [
        "use crate::{render::Object, api::keys};",
        "use super::Observed; use crate::monitor::observe;",
        "// crate::agent does this\n/* crate::cli /* nested */ too */",
        "/// See [`crate::agent`].\nfn f() {}",
        "const A: &str = \"crate::agent::x\"; const B: &str = r#\"crate::cli::\"x\"\"#;",
        "const C: char = '\\''; const D: &str = \"\\\" crate::agent::y\";",
    ] {
        assert_eq!(planted("monitor/mod.rs", source), 0, "{source}");
    }
}

#[test]
fn a_planted_clock_in_the_protocol_is_found() {
    for source in [
        "use std::time::{Duration, Instant};",
        "fn f() { std::time::SystemTime::now(); }",
        "use tokio::sync::watch;",
        "use kube::Api;",
        "fn f() { chrono::Utc::now(); }",
        "fn f() -> u8 { rand::random() }",
    ] {
        assert_eq!(planted("protocol/step.rs", source), 1, "{source}");
        assert_eq!(planted("downstream/live.rs", source), 0, "allowed elsewhere: {source}");
    }
    assert_eq!(
        planted("protocol/step.rs", "use std::time::Duration; struct Rand(u8); fn rand(kube: u8) {}"),
        0
    );
}

#[test]
fn a_planted_long_file_a_missing_header_a_print_and_a_wrong_metric_are_found() {
    assert_eq!(planted("api/long.rs", &"\n".repeat(MAX_LINES)), 1);
    assert_eq!(violations("api/bare.rs", "fn f() {}\n").len(), 1);
    assert_eq!(planted("agent/mod.rs", "fn f() { println!(\"{}\", 1); }"), 1);
    assert_eq!(planted("cli/get.rs", "fn f() { println!(\"{}\", 1); }"), 0);
    assert_eq!(planted("telemetry/m.rs", "fn f() { r.register(\n \"claims_total\", \"x\", c); }"), 1);
    assert_eq!(planted("telemetry/m.rs", "fn f() { r.register(\"flotilla_claims\", \"x\", c); }"), 1);
    assert_eq!(planted("telemetry/m.rs", "fn f() { r.register(\"claims\", \"x\", c); }"), 0);
}
