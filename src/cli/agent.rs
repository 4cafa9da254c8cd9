// SPDX-License-Identifier: Apache-2.0
//! `flotilla agent`: one replica.

use super::{
    args::{AgentVerb, LogFlags, LogFormat},
    error::CliError,
    long,
};
use crate::{
    agent,
    telemetry::logs::{self, Format},
};

/// Runs a replica until it is told to stop.
pub fn run(verb: &AgentVerb) -> Result<(), CliError> {
    let args = verb.resolve(&|name| std::env::var(name).ok())?;
    start_logs(&verb.log)?;
    long(agent::run(args))
}

/// Starts logging as the flags say.
pub fn start_logs(flags: &LogFlags) -> Result<(), CliError> {
    let format = match flags.format() {
        LogFormat::Json => Format::Json,
        LogFormat::Text => Format::Text,
    };
    logs::init(format, flags.filter()).map_err(CliError::Logs)
}
