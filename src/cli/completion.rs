// SPDX-License-Identifier: Apache-2.0
//! `flotilla completion`: a shell's completion script, made of the definition of the arguments.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{args::Cli, error::CliError, output};

/// Prints the script.
pub fn run(shell: Shell, out: &mut dyn Write) -> Result<(), CliError> {
    // Into memory first: the generator panics when a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "flotilla", &mut script);
    output::write(out, &String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_knows_the_verbs() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            run(*shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("register") && script.contains("doctor"), "{shell}");
        }
    }
}
