// SPDX-License-Identifier: Apache-2.0
//! The commands of a guide, run as they stand there.
//!
//! A page in which a command is left that nobody ran fails its test: see [`Guide::finished`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use anyhow::{Context, ensure};

/// The only commands that are not run: page, how the command begins, and why.
pub const NOT_RUN: [(&str, &str, &str); 3] = [
    (
        "docs/install.md",
        "podman build",
        "needs a container engine and a registry, for its base images and to push",
    ),
    ("README.md", "dev/demo", "shows in a terminal what tests/processes.rs tests"),
    ("README.md", "dev/test", "is what runs this"),
];

/// A page and the surroundings in which its commands are run.
pub struct Guide {
    page: String,
    text: String,
    commands: Vec<(String, String)>,
    ran: Mutex<BTreeSet<usize>>,
    shell: Shell,
}

/// Where commands run, and with which variables.
#[derive(Clone)]
pub struct Shell {
    /// The working directory.
    pub dir: PathBuf,
    /// Beside those of the test itself.
    pub variables: Vec<(String, String)>,
}

/// How a command ended.
pub struct Ended {
    /// Its exit code; -1 after a signal.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it printed there.
    pub stderr: String,
}

impl Shell {
    /// Runs it to its end, whatever that is.
    pub fn run(&self, command: &str) -> anyhow::Result<Ended> {
        let Output { status, stdout, stderr } = Command::new("sh")
            .args(["-c", command])
            .current_dir(&self.dir)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .output()
            .with_context(|| format!("running {command}"))?;
        Ok(Ended {
            code: status.code().unwrap_or(-1),
            stdout: String::from_utf8(stdout)?,
            stderr: String::from_utf8(stderr)?,
        })
    }

    /// The same, which must succeed.
    pub fn done(&self, command: &str) -> anyhow::Result<Ended> {
        // The first of a pipe may fail, too.
        let ended = self.run(command)?;
        ensure!(
            ended.code == 0 && !ended.stderr.contains("error:"),
            "{command}\nended with {}\n{}{}",
            ended.code,
            ended.stdout,
            ended.stderr
        );
        Ok(ended)
    }
}

impl Guide {
    /// Reads a page; only blocks marked `console` may hold commands.
    pub fn read(page: &str, shell: Shell) -> anyhow::Result<Guide> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = std::fs::read_to_string(&path).with_context(|| page.to_owned())?;
        let (mut section, mut commands, mut inside, mut goes_on) = (String::new(), Vec::new(), false, false);
        for line in text.lines() {
            let line = line.trim();
            if let Some(heading) = line.strip_prefix("## ") {
                section = heading.to_owned();
            } else if let Some(language) = line.strip_prefix("```") {
                let shell = ["sh", "bash", "shell"].contains(&language);
                ensure!(!shell, "{page}: commands stand in blocks marked `console`, after a `$`");
                inside = language == "console";
            } else if inside && let Some(command) = line.strip_prefix("$ ") {
                commands.push((section.clone(), command.trim_end_matches('\\').to_owned()));
                goes_on = line.ends_with('\\');
            } else if inside && goes_on {
                let (_, command) = commands.last_mut().context("a line that continues nothing")?;
                command.push_str(line.trim_end_matches('\\'));
                command.push(' ');
                goes_on = line.ends_with('\\');
            }
        }
        let commands =
            commands.into_iter().map(|(section, command)| (section, uncommented(&command))).collect();
        Ok(Guide { page: page.to_owned(), text, commands, ran: Mutex::default(), shell })
    }

    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Runs the commands of a section that were not run yet, but for those that begin so: the test runs these later.
    pub fn section(&self, heading: &str, later: &[&str]) -> anyhow::Result<Vec<Ended>> {
        let mut ended = Vec::new();
        for (number, (section, command)) in self.commands.iter().enumerate() {
            let another = self.has_run(number) || self.reason(command).is_some();
            if section == heading && !another && !later.iter().any(|start| command.starts_with(start)) {
                self.note(number);
                ended.push(self.shell.done(command).with_context(|| format!("{}: {heading}", self.page))?);
            }
        }
        ensure!(!ended.is_empty(), "{} has no commands under {heading:?}", self.page);
        Ok(ended)
    }

    /// Runs the one command that begins so.
    pub fn command(&self, start: &str) -> anyhow::Result<Ended> {
        let command = self.take(start)?;
        self.shell.done(command).with_context(|| self.page.clone())
    }

    /// The one command that begins so, which the test runs by itself: one that does not end, say.
    pub fn take(&self, start: &str) -> anyhow::Result<&str> {
        let found = self
            .commands
            .iter()
            .enumerate()
            .find(|(number, (_, command))| command.starts_with(start) && !self.has_run(*number));
        let (number, (_, command)) =
            found.with_context(|| format!("{} has no command {start}", self.page))?;
        self.note(number);
        Ok(command)
    }

    /// The text of the block that begins with the comment `# NAME`.
    pub fn file(&self, name: &str) -> anyhow::Result<&str> {
        let block = self.text.split("```").find(|block| block.contains(&format!("\n# {name}\n")));
        let block = block.with_context(|| format!("{} does not show {name}", self.page))?;
        Ok(block.split_once('\n').map_or(block, |(_, text)| text))
    }

    /// Counts those commands as run that were run for another page, word for word.
    pub fn run_as_in(&self, other: &Guide) {
        for (number, (_, command)) in self.commands.iter().enumerate() {
            let mut same = other.commands.iter().enumerate().filter(|(_, (_, theirs))| theirs == command);
            if same.any(|(theirs, _)| other.has_run(theirs)) {
                self.note(number);
            }
        }
    }

    fn reason(&self, command: &str) -> Option<&'static str> {
        let mut known = NOT_RUN.iter().filter(|(page, ..)| *page == self.page);
        known.find(|(_, start, _)| command.starts_with(start)).map(|(.., reason)| *reason)
    }

    fn has_run(&self, number: usize) -> bool {
        self.ran.lock().is_ok_and(|ran| ran.contains(&number))
    }

    fn note(&self, number: usize) {
        if let Ok(mut ran) = self.ran.lock() {
            ran.insert(number);
        }
    }

    /// Every command was run, but for those of [`NOT_RUN`], and these are there.
    pub fn finished(&self) -> anyhow::Result<()> {
        let left: Vec<_> = self
            .commands
            .iter()
            .enumerate()
            .filter(|(number, (_, command))| !self.has_run(*number) && self.reason(command).is_none())
            .collect();
        ensure!(left.is_empty(), "{} was not followed to its end: {left:?}", self.page);
        for (_, start, _) in NOT_RUN.iter().filter(|(page, ..)| *page == self.page) {
            let there = self.commands.iter().any(|(_, command)| command.starts_with(start));
            ensure!(there, "{} has no command {start}, which NOT_RUN excuses", self.page);
        }
        Ok(())
    }
}

/// Without the remark behind it.
fn uncommented(command: &str) -> String {
    command.split("  # ").next().unwrap_or(command).trim().to_owned()
}
