// SPDX-License-Identifier: Apache-2.0
//! `flotilla man`: manual pages, made of the definition of the arguments, for packages.

use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};

use super::{args::Cli, error::CliError};

/// Arguments of `flotilla man`.
#[derive(Debug, Args)]
pub struct ManVerb {
    /// The folder; made when it is missing.
    pub dir: PathBuf,
}

/// Writes `flotilla.1` and one page a verb.
pub fn run(verb: &ManVerb) -> Result<(), CliError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| CliError::Write { path, source }
    };
    std::fs::create_dir_all(&verb.dir).map_err(failed(&verb.dir))?;
    let mut all = Cli::command().disable_help_subcommand(true);
    all.build();
    let verbs: Vec<Command> = all.get_subcommands().cloned().collect();
    for command in std::iter::once(all).chain(verbs) {
        // clap calls a verb `flotilla get`; man pages are `flotilla-get`.
        let name = command.get_bin_name().unwrap_or("flotilla").replace(' ', "-");
        let path = verb.dir.join(format!("{name}.1"));
        let mut page = Vec::new();
        let page_of = clap_mangen::Man::new(command.display_name(&name).name(name.clone()));
        page_of.render(&mut page).map_err(CliError::Output)?;
        std::fs::write(&path, page).map_err(failed(&path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_the_program_and_one_for_each_verb() {
        let dir = tempfile::tempdir().unwrap();
        run(&ManVerb { dir: dir.path().join("man1") }).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join("man1").join(name)).unwrap();
        assert!(page("flotilla.1").contains("flotilla\\-register(1)"), "{}", page("flotilla.1"));
        assert!(page("flotilla-register.1").contains("\\-\\-rotate\\-token"));
        let pages = std::fs::read_dir(dir.path().join("man1")).unwrap().count();
        assert_eq!(pages, 1 + Cli::command().get_subcommands().count());
    }
}
