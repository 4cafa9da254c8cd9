// SPDX-License-Identifier: Apache-2.0
//! What a check found, in words, with the way to mend it.

use std::io::Write;

use serde::Serialize;

use crate::cli::{error::CliError, output};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The agent works, but somebody should know.
    Warning,
    /// The agent cannot do its work.
    Failed,
    /// It could not be looked at.
    Skipped,
}

/// One check's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked: a stable word for programs.
    pub check: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// In words.
    pub text: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// All of them, in order.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// As it should be.
    pub fn ok(&mut self, check: &'static str, text: impl Into<String>) {
        self.0.push(Finding { check, verdict: Verdict::Ok, text: text.into(), fix: None });
    }

    /// Somebody should know.
    pub fn warn(&mut self, check: &'static str, text: impl Into<String>, fix: impl Into<String>) {
        self.0.push(Finding { check, verdict: Verdict::Warning, text: text.into(), fix: Some(fix.into()) });
    }

    /// To be mended.
    pub fn fail(&mut self, check: &'static str, text: impl Into<String>, fix: impl Into<String>) {
        self.0.push(Finding { check, verdict: Verdict::Failed, text: text.into(), fix: Some(fix.into()) });
    }

    /// Could not be looked at.
    pub fn skip(&mut self, check: &'static str, text: impl Into<String>) {
        self.0.push(Finding { check, verdict: Verdict::Skipped, text: text.into(), fix: None });
    }

    /// How many have to be mended.
    pub fn failures(&self) -> usize {
        self.0.iter().filter(|finding| finding.verdict == Verdict::Failed).count()
    }

    /// For people: a line each, and the fix below it.
    pub fn print(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let width = self.0.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        let mut text = String::new();
        for finding in &self.0 {
            let word = match finding.verdict {
                Verdict::Ok => "ok",
                Verdict::Warning => "warning",
                Verdict::Failed => "FAILED",
                Verdict::Skipped => "skipped",
            };
            text.push_str(&format!("{word:<8} {:<width$}  {}\n", finding.check, finding.text));
            if let Some(fix) = &finding.fix {
                text.push_str(&format!("{:<8} {:<width$}  fix: {fix}\n", "", ""));
            }
        }
        output::write(out, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_is_a_line_and_its_fix_the_next() {
        let mut findings = Findings::default();
        findings.ok("engine", "answers");
        findings.fail("config", "is not there", "make it");
        let mut out = Vec::new();
        findings.print(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "ok       engine  answers\nFAILED   config  is not there\n                 fix: make it\n"
        );
        assert_eq!(findings.failures(), 1);
        let json = serde_json::to_value(&findings.0).unwrap();
        assert_eq!(json[1]["verdict"], "failed");
    }
}
