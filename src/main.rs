// SPDX-License-Identifier: Apache-2.0
//! Arguments, run, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    flotilla::cli::main()
}
