// SPDX-License-Identifier: Apache-2.0
//! The files of a bundle folder, chosen as Fleet's bundle reader does.
//!
//! Hidden files and folders stay out, and so does what `.fleetignore` names in its folder or below, and the files
//! that only configure the bundle. Links are followed where they stay inside the folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{error::CliError, glob};

/// Reads the folder: relative path with `/`, and bytes, sorted by path. `configuration` are paths that stay out.
pub fn read(folder: &Path, configuration: &[String]) -> Result<Vec<(String, Vec<u8>)>, CliError> {
    let root = folder.canonicalize().map_err(|source| reading(folder, source))?;
    let mut walk = Walk { root: &root, configuration, files: Vec::new() };
    walk.folder(&root, "", &mut Vec::new())?;
    walk.files.sort();
    Ok(walk.files)
}

struct Walk<'a> {
    root: &'a Path,
    configuration: &'a [String],
    files: Vec<(String, Vec<u8>)>,
}

impl Walk<'_> {
    /// `ignored` holds the patterns of the folders above.
    fn folder(&mut self, path: &Path, prefix: &str, ignored: &mut Vec<String>) -> Result<(), CliError> {
        let above = ignored.len();
        ignored.extend(patterns(path)?);
        for entry in fs::read_dir(path).map_err(|source| reading(path, source))? {
            let entry = entry.map_err(|source| reading(path, source))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|source| reading(&path, source))?;
            let Some(base) = entry.file_name().to_str().map(str::to_owned) else {
                return Err(CliError::Refused(format!("{} is not a UTF-8 name", path.display())));
            };
            let name = format!("{prefix}{base}");
            if base.starts_with('.') || is_ignored(ignored, &base, kind.is_dir(), &path)? {
                continue;
            }
            if kind.is_dir() {
                self.folder(&path, &format!("{name}/"), ignored)?;
            } else if !self.configuration.contains(&name) {
                let bytes = self.file(&path, kind.is_symlink())?;
                self.files.push((name, bytes));
            }
        }
        ignored.truncate(above);
        Ok(())
    }

    fn file(&self, path: &Path, link: bool) -> Result<Vec<u8>, CliError> {
        if link {
            let target = path.canonicalize().map_err(|source| reading(path, source))?;
            if !target.starts_with(self.root) {
                return Err(CliError::Refused(format!("{} links to outside of the folder", path.display())));
            }
        }
        fs::read(path).map_err(|source| reading(path, source))
    }
}

/// The patterns of a folder's `.fleetignore`, none if it has none.
fn patterns(folder: &Path) -> Result<Vec<String>, CliError> {
    let path: PathBuf = folder.join(".fleetignore");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(reading(&path, source)),
    };
    Ok(text.lines().map(trim_end).filter(|line| !line.is_empty() && !line.starts_with('#')).collect())
}

/// Trailing blanks go, except behind a backslash.
fn trim_end(line: &str) -> String {
    let trimmed = line.trim_end();
    if trimmed.is_empty() || !trimmed.ends_with('\\') { trimmed.to_owned() } else { line.to_owned() }
}

fn is_ignored(patterns: &[String], base: &str, folder: bool, path: &Path) -> Result<bool, CliError> {
    for pattern in patterns {
        // `name/*` is a folder of that name, wherever below; anything else is matched against the last element.
        let hit = match pattern.strip_suffix("/*") {
            Some(name) if !name.is_empty() => folder && name == base,
            _ => glob::matches(pattern, base).ok_or_else(|| {
                CliError::Refused(format!(
                    ".fleetignore has malformed pattern {pattern:?}, met at {}",
                    path.display()
                ))
            })?,
        };
        if hit {
            return Ok(true);
        }
    }
    Ok(false)
}

fn reading(path: &Path, source: io::Error) -> CliError {
    CliError::Read { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = TempDir::new().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn names(folder: &TempDir, configuration: &[&str]) -> Vec<String> {
        let configuration: Vec<_> = configuration.iter().map(ToString::to_string).collect();
        read(folder.path(), &configuration).unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn files_are_sorted_by_their_whole_path() {
        let folder =
            folder(&[("b.yaml", ""), ("a/x.yaml", ""), ("a-b/x.yaml", ""), ("a.yaml", ""), ("B", "")]);
        assert_eq!(names(&folder, &[]), ["B", "a-b/x.yaml", "a.yaml", "a/x.yaml", "b.yaml"]);
    }

    #[test]
    fn hidden_files_and_configuration_stay_out() {
        let folder = folder(&[
            (".git/config", ""),
            (".hidden", ""),
            ("sub/.hidden", ""),
            ("fleet.yaml", ""),
            ("sub/fleet.yaml", ""),
            ("values.yaml", ""),
            ("a.yaml", ""),
        ]);
        assert_eq!(names(&folder, &["fleet.yaml", "values.yaml"]), ["a.yaml", "sub/fleet.yaml"]);
    }

    #[test]
    fn fleetignore_holds_in_its_folder_and_below() {
        let folder = folder(&[
            (".fleetignore", "# comment\n\n*.md  \nskip/*\n"),
            ("README.md", ""),
            ("sub/README.md", ""),
            ("sub/skip/a.yaml", ""),
            ("skip/a.yaml", ""),
            ("sub/.fleetignore", "b.yaml"),
            ("sub/b.yaml", ""),
            ("sub/deep/b.yaml", ""),
            ("other/b.yaml", ""),
            ("a.yaml", ""),
        ]);
        assert_eq!(names(&folder, &[]), ["a.yaml", "other/b.yaml"]);
    }

    #[test]
    fn links_are_followed_inside_and_refused_outside() {
        let folder = folder(&[("a.yaml", "text")]);
        std::os::unix::fs::symlink("a.yaml", folder.path().join("b.yaml")).unwrap();
        let files = read(folder.path(), &[]).unwrap();
        assert_eq!(files[1], ("b.yaml".to_owned(), b"text".to_vec()));
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("c.yaml")).unwrap();
        let error = read(folder.path(), &[]).unwrap_err();
        assert!(error.to_string().contains("links to outside"), "{error}");
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = read(Path::new("/no/such/folder"), &[]).unwrap_err();
        assert_eq!(error.to_string(), "read /no/such/folder");
    }
}
