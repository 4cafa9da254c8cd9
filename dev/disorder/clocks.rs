// SPDX-License-Identifier: Apache-2.0
//! Wall clocks of processes, which can be stepped where libfaketime is installed.

use std::path::{Path, PathBuf};

/// The library, below a folder of libraries.
const LIBFAKETIME: &str = "faketime/libfaketime.so.1";

/// Each process' clock is a file with its difference from the truth, which the library reads.
pub struct Clocks {
    library: Option<String>,
    dir: PathBuf,
}

impl Clocks {
    /// Clocks whose files are in `dir`.
    pub fn new(dir: &Path) -> Clocks {
        Clocks { library: library(), dir: dir.to_owned() }
    }

    /// Whether they can be stepped on this machine.
    pub fn can_step(&self) -> bool {
        self.library.is_some()
    }

    /// Sets the clock of `process` to so many seconds from the truth; false where that cannot be.
    pub fn step(&self, process: &str, seconds: i64) -> anyhow::Result<bool> {
        if self.can_step() {
            std::fs::write(self.file(process), format!("{seconds:+}\n"))?;
        }
        Ok(self.can_step())
    }

    /// What `process` must be started with.
    pub fn env(&self, process: &str) -> anyhow::Result<Vec<(&'static str, String)>> {
        let Some(library) = &self.library else { return Ok(Vec::new()) };
        let file = self.file(process);
        if !file.is_file() {
            std::fs::write(&file, "+0\n")?;
        }
        Ok(vec![
            ("LD_PRELOAD", library.clone()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            ("FAKETIME_CACHE_DURATION", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
        ])
    }

    fn file(&self, process: &str) -> PathBuf {
        self.dir.join(format!("clock-{process}"))
    }
}

/// Debian keeps it in the folder of the machine's architecture, others in one for all libraries. That of another
/// architecture would be left out by the loader, and the clock go on.
fn library() -> Option<String> {
    let own = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(std::env::consts::ARCH) && name.contains("-linux-gnu")
    };
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = folders.filter(own).chain(["/usr/lib64", "/usr/lib"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join(LIBFAKETIME)).find(|path| path.is_file());
    found.map(|path| path.display().to_string())
}
