// SPDX-License-Identifier: Apache-2.0
//! What a drop-in for Fleet's agent must do, row by row, and the faults others reported: each is shown by a test that
//! exists. `tests/conformance/rows.json` is the list; `docs/conformance.md` shows it.
//!
//! `CONFORMANCE_TABLE=write cargo test --test conformance_rows` writes the tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// What each subject of Fleet's behaviour is split into. A row that is taken off `rows.json` is missed here.
const BEHAVIOUR: &[(&str, &str, &str)] = &[
    ("3.1", "Work queue", "1 2 3 4 5"),
    ("3.2", "Namespaces and names", "1 2 3 4"),
    ("3.3", "One reconciliation", "1 2 3 4 5 6a 6b 6c 6d 7 8 8t 9 10 11 12 13"),
    ("3.4", "Deploying", "1a 1b 1c 1d 2a 2b 2c 2d 3 4 5 6 p1 p2 p3 p4 p5 p6 p7 p8 p9 p10 b1 b2 b3 b4"),
    ("3.5", "Identity", "1 2 3 4 5"),
    (
        "3.6",
        "From manifest to chart",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32",
    ),
    ("3.7", "Marks and the set id", "1 2 3 4 5 6 7 8"),
    ("3.8", "Labels and annotations of the namespace", "1 2 3 4 5"),
    ("3.9", "Conditions", "1 2 3 4 5"),
    (
        "3.10",
        "Releases",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 u1 u2 u3 u4 u5 u6 u7 u8 u9",
    ),
    ("3.11", "Garbage collection", "1 2 3 4 5 6"),
];

/// Faults that users of such agents met, by kind.
const CASES: &[(&str, &str, &[u16])] = &[
    ("A", "Claims left behind, expiry, clocks", &[1, 2, 3, 5, 7, 9, 10, 11]),
    ("B", "Several replicas", &[13, 15, 16, 17, 18, 21, 23, 24]),
    ("C", "Releases half-way", &[25, 27, 28, 30, 31]),
    ("D", "Wrongful deletion", &[33, 35, 36, 38, 39, 41, 43, 45, 46, 47]),
    ("E", "Drift where there is none", &[48, 50, 52, 53, 54, 55, 56, 57]),
    ("F", "Drift missed or corrected without end", &[60, 62, 64, 65, 66, 68, 69, 71]),
    ("G", "Immutable fields, Jobs, hooks", &[72, 73, 74, 75]),
    ("H", "Ownership, names, namespaces", &[77, 79, 81, 82, 84]),
    ("I", "Rendering", &[85, 87, 88, 90, 91, 93]),
    ("J", "CRDs and discovery", &[94, 95, 98, 99]),
    ("K", "Size and history", &[100, 101, 102, 104]),
    ("L", "Status", &[106, 108, 110, 111, 112, 114]),
    ("M", "Watches and lost events", &[115, 117, 118, 120, 121]),
    ("N", "Throughput and load", &[122, 123, 125, 127, 128]),
    ("O", "Dependencies and rollout", &[130, 132, 133]),
    ("P", "Registration and credentials", &[134, 136, 137, 139, 140, 141]),
    ("Q", "Deletion", &[143, 145, 146]),
    ("R", "Permissions", &[148, 150, 151]),
    ("S", "Seeing what happens", &[152, 154]),
];

const BEGIN: &str = "<!-- rows: written by CONFORMANCE_TABLE=write cargo test --test conformance_rows -->\n";
const END: &str = "<!-- end of rows -->\n";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// `3.4-2a`, or `PC-072`.
    id: String,
    what: String,
    /// `tests/upgrade.rs::a_kept_object_stays`, or `golden/raw/single`.
    tests: Vec<String>,
    /// Reasons by which named golden cases differ, in what is not this row's subject.
    #[serde(default)]
    beside: Vec<String>,
    result: String,
}

/// What a row comes to.
#[derive(Debug, PartialEq, Eq)]
enum Comes<'a> {
    /// As Fleet's agent does, or as the reported fault should have been avoided.
    AsWanted,
    /// On purpose not as Fleet's agent: these rows of `docs/differences.md` say why.
    Differs(Vec<&'a str>),
    /// Not as the reporter of a fault wished; what is done instead is shown.
    Otherwise,
    /// Nothing that an agent does.
    Elsewhere,
    /// No test.
    NotShown,
}

impl Row {
    fn comes(&self) -> Option<Comes<'_>> {
        match self.result.as_str() {
            "as Fleet's agent" | "as wanted" => Some(Comes::AsWanted),
            "for the controller" => Some(Comes::Elsewhere),
            "not shown" => Some(Comes::NotShown),
            other => match other.split_once(": ")? {
                ("differs", subjects) => Some(Comes::Differs(subjects.split("; ").collect())),
                ("otherwise", _) => Some(Comes::Otherwise),
                _ => None,
            },
        }
    }
}

fn text(path: &str) -> String {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&full).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rows() -> Vec<Row> {
    serde_json::from_str(&text("tests/conformance/rows.json")).expect("rows.json")
}

/// Every id there must be, in order.
fn ids() -> Vec<String> {
    let behaviour = BEHAVIOUR
        .iter()
        .flat_map(|(section, _, rows)| rows.split(' ').map(move |row| format!("{section}-{row}")));
    let cases =
        CASES.iter().flat_map(|(_, _, numbers)| numbers.iter().map(|number| format!("PC-{number:03}")));
    behaviour.chain(cases).collect()
}

/// What is wrong with a named test; `None` if it exists and is run.
fn missing(test: &str) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Some(case) = test.strip_prefix("golden/") {
        let there = root.join("tests/golden").join(case).join("expected.json").is_file();
        return (!there).then(|| format!("there is no tests/golden/{case}"));
    }
    let Some((file, name)) = test.split_once("::") else { return Some(format!("{test} names no test")) };
    let Ok(source) = std::fs::read_to_string(root.join(file)) else {
        return Some(format!("there is no {file}"));
    };
    exists(&source, name).err().map(|what| format!("{file}: {what}"))
}

/// A test of this name, or a step of one: a function that something else in its file calls.
fn exists(source: &str, name: &str) -> Result<(), String> {
    let definition = format!("fn {name}(");
    let Some(at) = source.find(&definition) else { return Err(format!("there is no fn {name}")) };
    let is_test = source[..at].lines().rev().take(5).any(|line| line.trim_end().ends_with("test]"))
        || source[..at].lines().rev().take(5).any(|line| line.contains("tokio::test("));
    let calls = source.matches(&format!("{name}(")).count();
    if is_test || calls > 1 { Ok(()) } else { Err(format!("nothing runs fn {name}")) }
}

#[test]
fn every_row_is_there_once_and_in_order() {
    let found: Vec<String> = rows().into_iter().map(|row| row.id).collect();
    let wanted = ids();
    for (index, id) in wanted.iter().enumerate() {
        assert_eq!(found.get(index), Some(id), "row {index} of rows.json");
    }
    assert_eq!(found.len(), wanted.len());
}

#[test]
fn every_row_names_tests_that_exist() {
    let mut wrong = Vec::new();
    for row in rows() {
        let untested = matches!(row.comes(), Some(Comes::Elsewhere | Comes::NotShown));
        if row.tests.is_empty() != untested {
            wrong.push(format!("{}: {:?} with {} tests", row.id, row.result, row.tests.len()));
        }
        wrong.extend(
            row.tests.iter().filter_map(|test| missing(test)).map(|what| format!("{}: {what}", row.id)),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_result_is_one_and_every_difference_is_explained() {
    let page = text("docs/differences.md");
    let subjects: BTreeSet<&str> =
        page.lines().filter_map(|line| Some(line.strip_prefix("| ")?.split_once(" |")?.0)).collect();
    assert!(subjects.len() > 40, "docs/differences.md is not understood");
    for row in rows() {
        let comes = row.comes();
        assert!(comes.is_some(), "{}: what is {:?}?", row.id, row.result);
        if let Some(Comes::Differs(named)) = comes {
            for subject in named {
                assert!(
                    subjects.contains(subject),
                    "{}: docs/differences.md does not explain {subject:?}",
                    row.id
                );
            }
        }
    }
}

/// The listed differences of the golden cases that a row names, and those it says do not concern it.
fn unlike(row: &Row, listed: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    if row.result != "as Fleet's agent" && row.beside.is_empty() {
        return None;
    }
    let cases = row.tests.iter().filter_map(|test| test.strip_prefix("golden/"));
    let found: BTreeSet<&str> =
        cases.filter_map(|case| listed.get(case)).flatten().map(String::as_str).collect();
    let beside: BTreeSet<&str> = row.beside.iter().map(String::as_str).collect();
    (found != beside).then(|| {
        format!(
            "{}: {:?}, but its golden cases differ by {found:?}, beside it {beside:?}",
            row.id, row.result
        )
    })
}

#[test]
fn what_is_as_fleets_agent_has_no_golden_case_that_differs_in_it() {
    let all: Value = serde_json::from_str(&text("tests/golden/differences.json")).expect("differences.json");
    let mut listed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for difference in all["differences"].as_array().expect("a list") {
        let field = |name: &str| difference[name].as_str().expect(name).to_owned();
        listed.entry(field("case")).or_default().insert(field("reason"));
    }
    assert!(listed.len() > 20, "tests/golden/differences.json is not understood");
    let wrong: Vec<String> = rows().iter().filter_map(|row| unlike(row, &listed)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // It bites: a case that differs, and a reason that is not there.
    let row = |result: &str, beside: &[&str]| Row {
        id: "x".into(),
        what: String::new(),
        tests: vec!["golden/a/b".into()],
        beside: beside.iter().map(|&reason| reason.to_owned()).collect(),
        result: result.into(),
    };
    let listed = BTreeMap::from([("a/b".to_owned(), BTreeSet::from(["late".to_owned()]))]);
    assert!(unlike(&row("as Fleet's agent", &[]), &listed).is_some());
    assert!(unlike(&row("as Fleet's agent", &["late"]), &listed).is_none());
    assert!(unlike(&row("as Fleet's agent", &["late", "early"]), &listed).is_some());
    assert!(unlike(&row("differs: x", &[]), &listed).is_none());
}

#[test]
fn a_test_that_is_not_there_or_never_run_is_found() {
    let source = "#[test]\nfn run() {}\nfn step() {}\nfn idle() {}\n#[tokio::test(flavor = \"x\")]\nasync fn story() { step() }\n";
    for name in ["run", "step", "story"] {
        assert_eq!(exists(source, name), Ok(()), "{name}");
    }
    assert_eq!(exists(source, "gone"), Err("there is no fn gone".to_owned()));
    let late = "fn a() {}\n\n\n\n\n\nfn idle() {}\n";
    assert_eq!(exists(late, "idle"), Err("nothing runs fn idle".to_owned()));
    assert!(missing("golden/no/such").is_some() && missing("golden/raw/single").is_none());
    assert!(missing("tests/none.rs::a").is_some() && missing("nothing").is_some());
}

#[test]
fn the_page_shows_the_list() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md");
    let page = text("docs/conformance.md");
    let (before, rest) = page.split_once(BEGIN).expect("docs/conformance.md has no begin of the rows");
    let (_, after) = rest.split_once(END).expect("docs/conformance.md has no end of the rows");
    let right = format!("{before}{BEGIN}{}{END}{after}", tables(&rows()));
    if std::env::var_os("CONFORMANCE_TABLE").is_some_and(|value| value == "write") {
        std::fs::write(&path, right).expect("docs/conformance.md");
        return;
    }
    assert!(
        page == right,
        "docs/conformance.md is not up to date: CONFORMANCE_TABLE=write cargo test --test conformance_rows"
    );
}

fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    let count = |wanted: fn(&Comes<'_>) -> bool| {
        rows.iter().filter(|row| row.comes().as_ref().is_some_and(wanted)).count()
    };
    let _ = writeln!(
        text,
        "\n{} rows: {} as Fleet's agent or as wanted, {} differ on purpose, {} are otherwise than the reporter wished, {} are \
         for the controller, {} are not shown.",
        rows.len(),
        count(|comes| *comes == Comes::AsWanted),
        count(|comes| matches!(comes, Comes::Differs(_))),
        count(|comes| *comes == Comes::Otherwise),
        count(|comes| *comes == Comes::Elsewhere),
        count(|comes| *comes == Comes::NotShown),
    );
    for (section, title, _) in BEHAVIOUR {
        table(&mut text, &format!("{section} {title}"), rows, |id| {
            id.strip_prefix(section).is_some_and(|rest| rest.starts_with('-'))
        });
    }
    for (kind, title, numbers) in CASES {
        let its: Vec<String> = numbers.iter().map(|number| format!("PC-{number:03}")).collect();
        table(&mut text, &format!("Kind {kind}: {title}"), rows, |id| its.iter().any(|its| its == id));
    }
    text.push('\n');
    text
}

fn table(text: &mut String, title: &str, rows: &[Row], belongs: impl Fn(&str) -> bool) {
    let _ = writeln!(text, "\n### {title}\n\n| row | what | test | result |\n|---|---|---|---|");
    for row in rows.iter().filter(|row| belongs(&row.id)) {
        let tests: Vec<String> = row.tests.iter().map(|test| format!("`{test}`")).collect();
        let what = row.what.replace('|', "\\|");
        let beside = match &row.beside[..] {
            [] => String::new(),
            reasons => format!("; its case differs in something else: {}", reasons.join(", ")),
        };
        let _ = writeln!(text, "| {} | {what} | {} | {}{beside} |", row.id, tests.join("<br>"), row.result);
    }
}
