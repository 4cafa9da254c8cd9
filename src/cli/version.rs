// SPDX-License-Identifier: Apache-2.0
//! `flotilla version`.

use std::io::Write;

use super::{error::CliError, output};

/// Prints name and version.
pub fn run(out: &mut dyn Write) -> Result<(), CliError> {
    output::write(out, concat!("flotilla ", env!("CARGO_PKG_VERSION"), "\n"))
}
