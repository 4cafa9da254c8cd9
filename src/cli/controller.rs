// SPDX-License-Identifier: Apache-2.0
//! `flotilla controller`: the companion that expires claims.

use super::{agent::start_logs, args::ControllerVerb, error::CliError, long};
use crate::controller;

/// Runs the controller until it is told to stop.
pub fn run(verb: &ControllerVerb) -> Result<(), CliError> {
    start_logs(&verb.log)?;
    long(controller::run(verb.resolve(&|name| std::env::var(name).ok())))
}
