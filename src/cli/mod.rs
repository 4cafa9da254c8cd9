// SPDX-License-Identifier: Apache-2.0
//! The command line: one file per verb, and nothing in them that needs a terminal to be tested.
//!
//! Exit codes: 0 done, 1 an error (told on standard error), 2 arguments that cannot be read. `flotilla diff`: 1 for a
//! difference, 2 for an error.

mod age;
mod agent;
pub mod apply;
pub mod args;
mod changes;
mod claim_edit;
pub mod claims;
pub mod cluster;
mod completion;
mod controller;
mod crds;
pub mod delete;
pub mod diff;
pub mod doctor;
pub mod error;
pub mod events;
pub mod explain;
mod files;
mod fleet_yaml;
pub mod get;
mod get_watch;
mod glob;
pub mod man;
pub mod output;
mod past;
pub mod plan;
pub mod ready;
pub mod register;
mod register_print;
mod register_way;
pub mod render;
pub mod reset;
pub mod rollback;
#[cfg(test)]
mod scripted;
pub mod source;
pub mod top;
pub mod unit;
mod version;
mod yaml;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;

use self::{
    args::{Cli, Verb},
    error::CliError,
};
use crate::telemetry::chain;

/// Runs what the process was asked to do.
pub fn main() -> ExitCode {
    // kube's own choice of a TLS library must not depend on what else is linked. It fails only when already made.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Exits by itself with 2, or with 0 for --help and --version.
    let cli = Cli::parse();
    match dispatch(cli.verb, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // `flotilla get | head` has what it wanted.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(CliError::Differs) => CliError::Differs.exit_code().into(),
        Err(error) => {
            tell(&format!("error: {}", chain(&error)));
            error.exit_code().into()
        }
    }
}

fn dispatch(verb: Verb, out: &mut dyn Write) -> Result<(), CliError> {
    let warn = |text: &str| tell(text);
    match verb {
        Verb::Agent(verb) => agent::run(&verb),
        Verb::Controller(verb) => controller::run(&verb),
        Verb::Apply(verb) => short(apply::run(&verb, out, &warn)),
        Verb::Delete(verb) => short(delete::run(&verb, out, &warn)),
        Verb::Get(verb) => short(get::run(&verb, out, &warn, now())),
        Verb::Explain(verb) => short(explain::run(&verb, out, now())),
        Verb::Events(verb) => short(events::run(&verb, out, &warn, now())),
        Verb::Top(verb) => short(top::run(&verb, out, now())),
        Verb::Render(verb) => short(render::run(&verb, out, &warn, now())),
        Verb::Diff(verb) => short(diff::run(&verb, out, &warn, now())),
        Verb::Rollback(verb) => short(rollback::run(&verb, out)),
        Verb::Retry(verb) => edit(&verb.chosen, &verb.edit(), out, &warn),
        Verb::Release(verb) => edit(&verb.chosen, &verb.edit(), out, &warn),
        Verb::Quarantine(verb) => edit(&verb.chosen, &verb.edit(), out, &warn),
        Verb::Reset(verb) => short(reset::run(&verb, out, &warn, &mut entropy, now())),
        Verb::Register(verb) => short(register::run(&verb, out, &warn, entropy())),
        Verb::Doctor(verb) => short(doctor::run(&verb, out, &now)),
        Verb::Ready(verb) => short(ready::run(&verb, out)),
        Verb::Crds => crds::run(out),
        Verb::Completion { shell } => completion::run(shell, out),
        Verb::Man(verb) => man::run(&verb),
        Verb::Version => version::run(out),
    }
}

fn edit(
    chosen: &claims::Chosen,
    edit: &claim_edit::Edit,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
) -> Result<(), CliError> {
    let now = now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    short(claims::run(chosen, edit, out, warn, &mut entropy, &now))
}

#[expect(clippy::disallowed_methods, reason = "the edge where randomness comes in")]
fn entropy() -> u64 {
    rand::random()
}

/// The wall clock, for people.
#[expect(clippy::disallowed_methods, reason = "the edge where time comes in")]
fn now() -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now()
}

/// Runs a verb that ends by itself: one thread will do.
fn short(verb: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    runtime.block_on(verb)
}

/// Runs a verb that serves until it is told to stop.
fn long<E>(run: impl Future<Output = Result<(), E>>) -> Result<(), CliError>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::Runtime)?;
    runtime.block_on(run).map_err(|error| CliError::Ended(Box::new(error)))
}

/// A line on standard error; if that is gone, nobody is listening.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
