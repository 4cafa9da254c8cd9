// SPDX-License-Identifier: Apache-2.0
//! `flotilla crds`: definitions for a cluster without a Fleet controller.

use std::io::Write;

use super::{error::CliError, output};
use crate::api::crds;

/// Prints them as YAML.
pub fn run(out: &mut dyn Write) -> Result<(), CliError> {
    let text = crds::yaml().map_err(|error| CliError::Print(Box::new(error)))?;
    output::write(out, &text)
}
