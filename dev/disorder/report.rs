// SPDX-License-Identifier: Apache-2.0
//! The report at the end.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use anyhow::bail;

use super::Settings;
use super::disturber::Disturber;
use super::judgement::{Judgement, quantile};
use super::load::Story;

/// How many sentences of one kind are told.
const SENTENCES: usize = 12;

/// What a run came to.
pub struct Report {
    /// As Markdown.
    pub text: String,
    /// The judge's findings.
    pub judgement: Judgement,
    settled: bool,
}

impl Report {
    /// Writes it down.
    pub fn new(
        settings: &Settings,
        disturber: &Disturber<'_>,
        story: Story,
        judgement: Judgement,
        settled: Option<Duration>,
        renewed: usize,
    ) -> Report {
        let done = &disturber.done;
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "| {name} | {value} |");
        };
        line("code", code());
        line("seed", settings.seed.to_string());
        line("time with faults", format!("{:.0} s", settings.time.as_secs_f64()));
        line(
            "replicas, slots, TTL",
            format!("{}, {}, {:?}", settings.replicas, settings.slots, settings.ttl),
        );
        line("faults", done.faults.len().to_string());
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, fault) in &done.faults {
            *kinds.entry(fault.kind()).or_default() += 1;
        }
        for (kind, count) in kinds {
            line(&format!("– {kind}"), count.to_string());
        }
        if !disturber.can_step_clocks() {
            line("– wall clock stepped", "left out: libfaketime is not installed".into());
        }
        for description in disturber.describe_proxies() {
            line("proxy", description);
        }
        for (operation, count) in &story.operations {
            line(&format!("bundles {operation}"), count.to_string());
        }
        line("runs of replicas", done.runs.len().to_string());
        line("starts that failed while a server was away", done.failed_starts.to_string());
        line("claims", judgement.claims.to_string());
        line("revisions opened", judgement.revisions.to_string());
        line("revisions repeated after a loss or a failure", judgement.repeats.to_string());
        line("takeovers", judgement.takeovers.to_string());
        line("claims expired by the controller", judgement.expired.to_string());
        line("bundles in quarantine at the end, renewed by hand", renewed.to_string());
        line("versions of objects seen", judgement.sights.to_string());
        line("– deletions", judgement.deletions.to_string());
        line("– of copied Secrets and ConfigMaps", judgement.copies.to_string());
        line("– of hooks", judgement.hooks.to_string());
        line("writes in store and audit logs", judgement.audited.to_string());
        line("– of requests whose server was killed or gave up", judgement.unanswered.to_string());
        line("writes refused for their precondition", judgement.refused.to_string());
        line("creates that landed late and were removed again", judgement.late_creates.len().to_string());
        line(
            "created after the end of their bundle, and removed again",
            judgement.after_end.len().to_string(),
        );
        for (name, times) in [("SIGKILL", &judgement.after_kill), ("SIGSTOP", &judgement.after_freeze)] {
            line(&format!("claims without a living holder after {name}"), quantiles(times));
        }
        line(
            "in order after the last fault",
            settled.map_or("never".into(), |time| format!("{:.1} s", time.as_secs_f64())),
        );
        for (name, sentences) in judgement.zeros() {
            line(&format!("**{name}**"), format!("**{}**", sentences.len()));
        }
        let mut text = format!("| | |\n|---|---|\n{text}");
        for (name, sentences) in judgement.zeros() {
            for sentence in sentences.iter().take(SENTENCES) {
                let _ = writeln!(text, "\n{name}: {sentence}");
            }
        }
        for sentence in judgement.late_creates.iter().take(SENTENCES) {
            let _ = writeln!(text, "\nlate create: {sentence}");
        }
        for sentence in judgement.after_end.iter().take(SENTENCES) {
            let _ = writeln!(text, "\ncreated after the end: {sentence}");
        }
        Report { text, judgement, settled: settled.is_some() }
    }

    /// Fails unless all is as promised.
    pub fn verdict(&self) -> anyhow::Result<()> {
        let broken: Vec<String> = self
            .judgement
            .zeros()
            .into_iter()
            .filter(|(_, sentences)| !sentences.is_empty())
            .map(|(name, sentences)| format!("{} {name}", sentences.len()))
            .collect();
        match (broken.as_slice(), self.settled) {
            ([], true) => Ok(()),
            ([], false) => bail!("it did not come to rest in time"),
            (broken, _) => bail!("{}", broken.join(", ")),
        }
    }
}

/// The commit that was run, as far as that can be told.
fn code() -> String {
    let mut command = Command::new("git");
    command.args(["describe", "--always", "--dirty"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().ok().filter(|output| output.status.success());
    output
        .map_or("not told by git".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn quantiles(times: &[Duration]) -> String {
    let seconds = |part| quantile(times, part).unwrap_or_default().as_secs_f64();
    match times.len() {
        0 => "none".into(),
        count => format!(
            "{count}; p50 {:.1} s, p99 {:.1} s, longest {:.1} s",
            seconds(0.5),
            seconds(0.99),
            seconds(1.0)
        ),
    }
}
