// SPDX-License-Identifier: Apache-2.0
//! From a packed chart to a bundle's files.

use std::{
    collections::BTreeMap,
    io::{self, Read},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};
use thiserror::Error;

use crate::api::{
    HelmOptions,
    manifest::{BundleResource, Manifest},
};

use super::{files::MAX_FILE, style};

/// Helm's limit for a chart, packed and unpacked, in bytes.
pub const MAX_CHART: u64 = 100 << 20;

/// Entries of one archive. Helm has no such limit; the largest charts have some hundred files.
const MAX_ENTRIES: usize = 20_000;

const CHART: &str = "Chart.yaml";

/// Why an archive is not taken for a chart.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// No gzip'ed tar, or damaged.
    #[error("it is no chart archive (tar, gzip)")]
    Damaged(#[source] io::Error),
    /// Helm's text.
    #[error("decompressed chart is larger than the maximum size {MAX_CHART}")]
    TooLarge,
    /// Helm's text.
    #[error("decompressed chart file {name:?} is larger than the maximum file size {MAX_FILE}")]
    FileTooLarge {
        /// The file.
        name: String,
    },
    /// More files than any chart has.
    #[error("the archive has more than {MAX_ENTRIES} entries")]
    TooManyEntries,
    /// A name that is absolute, leads out of the chart, or is no text.
    #[error("the archive has the name {name:?}, which leads out of the chart")]
    Outside {
        /// The name.
        name: String,
    },
    /// A link or a device.
    #[error("the archive's {name:?} is neither file nor directory")]
    Special {
        /// Its name.
        name: String,
    },
    /// Nothing in it is a chart. Helm's words.
    #[error("Chart.yaml file is missing")]
    NoChart,
}

impl ArchiveError {
    /// Whether the same bytes would be refused on purpose again; a damaged archive may only have been cut short.
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Damaged(_))
    }
}

/// The bundle that a packed chart makes, as Fleet's agent makes it for a HelmOp: its files under the directory that
/// `helm` names, by name; hidden ones left out.
///
/// # Errors
/// An archive that is damaged, larger than Helm takes, unsafe, or no chart.
pub fn chart_bundle(packed: &[u8], helm: &HelmOptions) -> Result<Manifest, ArchiveError> {
    let prefix = style::external_directory(helm);
    let files = unpack(packed, MAX_CHART, MAX_FILE)?;
    // What render looks for: the chart at the archive's root, or in its one directory.
    let chart = |name: &str| name == CHART || name.split_once('/').is_some_and(|(_, file)| file == CHART);
    if !files.keys().any(|name| chart(name)) {
        return Err(ArchiveError::NoChart);
    }
    let resources = files
        .into_iter()
        .filter(|(name, _)| !name.split('/').any(|part| part.starts_with('.')))
        .map(|(name, bytes)| BundleResource::from_bytes(format!("{prefix}{name}"), bytes))
        .collect();
    Ok(Manifest { resources })
}

fn unpack(packed: &[u8], chart: u64, file: usize) -> Result<BTreeMap<String, Vec<u8>>, ArchiveError> {
    // Headers, padding and long names count too: nothing in the archive unpacks beyond this.
    let limited = Limited { inner: MultiGzDecoder::new(packed), left: chart };
    let mut archive = Archive::new(limited);
    let mut files = BTreeMap::new();
    for (count, entry) in archive.entries().map_err(damaged)?.enumerate() {
        if count >= MAX_ENTRIES {
            return Err(ArchiveError::TooManyEntries);
        }
        let mut entry = entry.map_err(damaged)?;
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::Directory | EntryType::XGlobalHeader) {
            continue;
        }
        let name = name(&entry.path_bytes())?;
        if !matches!(kind, EntryType::Regular | EntryType::Continuous) {
            return Err(ArchiveError::Special { name });
        }
        let mut bytes = Vec::new();
        (&mut entry).take(file as u64 + 1).read_to_end(&mut bytes).map_err(damaged)?;
        if bytes.len() > file {
            return Err(ArchiveError::FileTooLarge { name });
        }
        if bytes.len() as u64 != entry.size() {
            return Err(ArchiveError::Damaged(io::ErrorKind::UnexpectedEof.into()));
        }
        files.insert(name, bytes);
    }
    Ok(files)
}

/// A name without `.` and empty parts.
fn name(raw: &[u8]) -> Result<String, ArchiveError> {
    let outside = || ArchiveError::Outside { name: String::from_utf8_lossy(raw).into_owned() };
    let text = std::str::from_utf8(raw).map_err(|_| outside())?;
    // Packed on Windows.
    let text = text.replace('\\', "/");
    let drive = text.as_bytes().get(1) == Some(&b':');
    if text.starts_with('/') || drive || text.contains('\0') || text.split('/').any(|part| part == "..") {
        return Err(outside());
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.is_empty() { Err(outside()) } else { Ok(parts.join("/")) }
}

/// Fails at the limit instead of seeming to end there.
struct Limited<R> {
    inner: R,
    left: u64,
}

#[derive(Debug, Error)]
#[error("more than the limit")]
struct Beyond;

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other(Beyond)),
        }
        Ok(read)
    }
}

/// The tar reader wraps the errors of what it reads from.
fn damaged(error: io::Error) -> ArchiveError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(now) = cause {
        if now.is::<Beyond>() {
            return ArchiveError::TooLarge;
        }
        cause = match now.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => now.source(),
        };
    }
    ArchiveError::Damaged(error)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use tar::{Builder, Header};

    use super::*;
    use crate::api::BundleDeploymentOptions;

    fn header(name: &[u8], kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_ustar();
        // Written by hand: the builder refuses what a hostile archive has.
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_cksum();
        header
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn packed(files: &[(&[u8], EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, kind, bytes) in files {
            builder.append(&header(name, *kind, bytes.len() as u64), *bytes).unwrap();
        }
        gzip(&builder.into_inner().unwrap())
    }

    fn refused(name: &[u8], kind: EntryType) -> ArchiveError {
        let chart: (&[u8], EntryType, &[u8]) = (b"app/Chart.yaml", EntryType::Regular, b"name: app\n");
        let bytes = packed(&[chart, (name, kind, b"x")]);
        chart_bundle(&bytes, &HelmOptions::default()).unwrap_err()
    }

    #[test]
    fn the_files_lie_under_the_directory_that_the_options_name() {
        let file = EntryType::Regular;
        let bytes = packed(&[
            (b"app/templates/b.yaml", file, b"b"),
            (b"app/", EntryType::Directory, b""),
            (b"./app//Chart.yaml", file, b"name: app\n"),
            (b"app/.helmignore", file, b"*"),
            (b"app/.git/config", file, b"x"),
            (b"app/logo.png", file, &[0xff, 0xfe]),
        ]);
        let helm = HelmOptions {
            chart: "app".into(),
            repo: "https://c.test".into(),
            version: "1".into(),
            ..HelmOptions::default()
        };
        let bundle = chart_bundle(&bytes, &helm).unwrap();
        let prefix = style::external_directory(&helm);
        let names: Vec<_> =
            bundle.resources.iter().map(|file| file.name.strip_prefix(&prefix).unwrap()).collect();
        assert_eq!(names, ["app/Chart.yaml", "app/logo.png", "app/templates/b.yaml"]);
        assert_eq!(bundle.resources[1].decode().unwrap(), [0xff, 0xfe]);
        // The same place as that of a chart which Fleet's controller fetched.
        let options = BundleDeploymentOptions { helm: Some(helm), ..BundleDeploymentOptions::default() };
        assert_eq!(style::Style::of(&bundle, &options).chart, Some(format!("{prefix}app/")));
    }

    #[test]
    fn what_leads_out_of_the_chart_is_refused() {
        for name in [
            &b"../evil"[..],
            b"app/../../evil",
            b"/etc/passwd",
            b"C:\\evil",
            b"app\\..\\..\\evil",
            b"app/\xff",
        ] {
            let error = refused(name, EntryType::Regular);
            assert!(matches!(error, ArchiveError::Outside { .. }), "{error}");
            assert!(error.is_refusal());
        }
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Fifo] {
            assert!(matches!(refused(b"app/link", kind), ArchiveError::Special { .. }), "{kind:?}");
        }
    }

    #[test]
    fn size_bombs_are_refused_before_they_fill_the_memory() {
        let part = [0; 4096];
        let names: Vec<Vec<u8>> = (0..10).map(|n| format!("app/{n}").into_bytes()).collect();
        let files: Vec<_> = names.iter().map(|name| (&name[..], EntryType::Regular, &part[..])).collect();
        let bytes = packed(&files);
        let refused = |chart, file| unpack(&bytes, chart, file).unwrap_err();
        assert!(unpack(&bytes, 1 << 20, 4096).is_ok());
        assert!(matches!(refused(1 << 20, 4095), ArchiveError::FileTooLarge { name } if name == "app/0"));
        // Headers count.
        assert!(matches!(refused(40_960, 4096), ArchiveError::TooLarge));
        assert!(matches!(refused(100, 4096), ArchiveError::TooLarge));
    }

    #[test]
    fn what_is_no_chart_says_so() {
        let error = |bytes: &[u8]| chart_bundle(bytes, &HelmOptions::default()).unwrap_err();
        assert!(matches!(error(b"<html>"), ArchiveError::Damaged(_)));
        assert!(!error(b"<html>").is_refusal());
        let whole = packed(&[(b"app/Chart.yaml", EntryType::Regular, &[b'x'; 4000])]);
        assert!(matches!(error(&whole[..whole.len() / 2]), ArchiveError::Damaged(_)));
        let deep: (&[u8], EntryType, &[u8]) = (b"a/b/Chart.yaml", EntryType::Regular, b"");
        assert!(matches!(error(&packed(&[deep])), ArchiveError::NoChart));
    }
}
