// SPDX-License-Identifier: Apache-2.0
//! `docs/conformance.md`: its table of the golden cases follows from the cases and the lists, which the run keeps true.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::case::Case;
use super::lists::Lists;

const BEGIN: &str =
    "<!-- golden cases: written by GOLDEN_TABLE=write cargo test --test golden -- conformance.md -->\n";
const END: &str = "<!-- end of golden cases -->\n";

/// Checks the table, or writes it when `GOLDEN_TABLE=write` is set.
pub fn check(cases: &[String], lists: &Lists) -> anyhow::Result<()> {
    let path = path();
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let (before, rest) =
        text.split_once(BEGIN).context("docs/conformance.md has no begin of the golden cases")?;
    let (_, after) = rest.split_once(END).context("docs/conformance.md has no end of the golden cases")?;
    let right = format!("{before}{BEGIN}{}{END}{after}", table(cases, lists)?);
    if std::env::var_os("GOLDEN_TABLE").is_some_and(|value| value == "write") {
        std::fs::write(&path, right).with_context(|| format!("writing {}", path.display()))?;
        return Ok(());
    }
    ensure!(
        text == right,
        "docs/conformance.md is not up to date: GOLDEN_TABLE=write cargo test --test golden -- conformance.md"
    );
    Ok(())
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/conformance.md")
}

fn table(cases: &[String], lists: &Lists) -> anyhow::Result<String> {
    let mut text = "\n| case = test | what | result |\n|---|---|---|\n".to_owned();
    let (mut waiting, mut different) = (0, 0);
    for name in cases {
        let case = Case::read(name, super::case::RECORDED_NAMESPACE)?;
        let reasons: Vec<&str> = lists.reasons_of(name).into_iter().collect();
        let result = match lists.not_yet(name) {
            Some(reason) => {
                waiting += 1;
                format!("not yet: {reason}")
            }
            None if reasons.is_empty() => "as Fleet's agent".into(),
            None => {
                different += 1;
                format!("as Fleet's agent but for: {}", reasons.join(", "))
            }
        };
        let about = case.about().replace('|', "\\|");
        writeln!(text, "| `{name}` | {about} | {result} |")?;
    }
    writeln!(
        text,
        "\n{} cases: {} pass as recorded, {different} but for named differences, {waiting} not yet.\n",
        cases.len(),
        cases.len() - different - waiting
    )?;
    text += "| difference | why |\n|---|---|\n";
    for (name, reason) in &lists.reasons {
        writeln!(text, "| {name} | {} |", reason.replace('|', "\\|"))?;
    }
    text.push('\n');
    Ok(text)
}
