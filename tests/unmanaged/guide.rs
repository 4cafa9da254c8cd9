// SPDX-License-Identifier: Apache-2.0
//! The commands of a guide, run as they stand there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use anyhow::{Context, ensure};

/// A page of `docs/` and the surroundings in which its commands are run.
pub struct Guide {
    page: String,
    commands: Vec<(String, String)>,
    ran: Mutex<BTreeSet<usize>>,
    shell: Shell,
}

/// Where commands run, and with which variables.
#[derive(Clone)]
pub struct Shell {
    pub dir: PathBuf,
    pub variables: Vec<(String, String)>,
}

/// How a command ended.
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Shell {
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
    pub fn read(page: &str, shell: Shell) -> anyhow::Result<Guide> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = std::fs::read_to_string(&path).with_context(|| page.to_owned())?;
        let (mut section, mut commands, mut inside, mut goes_on) = (String::new(), Vec::new(), false, false);
        for line in text.lines() {
            let line = line.trim();
            if let Some(heading) = line.strip_prefix("## ") {
                section = heading.to_owned();
            } else if line.starts_with("```") {
                inside = line == "```console";
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
        ensure!(!commands.is_empty(), "{page} has no commands");
        Ok(Guide { page: page.to_owned(), commands, ran: Mutex::default(), shell })
    }

    /// Runs the commands of a section; those that `but` names are somebody else's to run.
    pub fn section(&self, heading: &str, but: &[&str]) -> anyhow::Result<Vec<Ended>> {
        let mut ended = Vec::new();
        for (number, (section, command)) in self.commands.iter().enumerate() {
            if section == heading && !self.has_run(number) {
                self.note(number);
                if !but.iter().any(|start| command.starts_with(start)) {
                    ended
                        .push(self.shell.done(command).with_context(|| format!("{}: {heading}", self.page))?);
                }
            }
        }
        ensure!(!ended.is_empty() || !but.is_empty(), "{} has no commands under {heading:?}", self.page);
        Ok(ended)
    }

    /// Runs the one command that begins so.
    pub fn command(&self, start: &str) -> anyhow::Result<Ended> {
        let found = self
            .commands
            .iter()
            .enumerate()
            .find(|(number, (_, command))| command.starts_with(start) && !self.has_run(*number));
        let (number, (_, command)) =
            found.with_context(|| format!("{} has no command {start}", self.page))?;
        self.note(number);
        self.shell.done(command).with_context(|| self.page.clone())
    }

    fn has_run(&self, number: usize) -> bool {
        self.ran.lock().is_ok_and(|ran| ran.contains(&number))
    }

    fn note(&self, number: usize) {
        if let Ok(mut ran) = self.ran.lock() {
            ran.insert(number);
        }
    }

    /// Every command was run.
    pub fn finished(&self) -> anyhow::Result<()> {
        let left: Vec<_> =
            self.commands.iter().enumerate().filter(|(number, _)| !self.has_run(*number)).collect();
        ensure!(left.is_empty(), "{} was not followed to its end: {left:?}", self.page);
        Ok(())
    }
}
