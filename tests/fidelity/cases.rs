// SPDX-License-Identifier: Apache-2.0
//! The cases under `tests/charts-fidelity`: one text file each, a sentence and then the files, each after a line
//! `=== name`.

use std::{fs, io::Write, path::Path};

use flate2::{Compression, write::GzEncoder};

/// One case.
pub struct Case {
    pub name: String,
    pub about: String,
    pub files: Vec<(String, Vec<u8>)>,
}

impl Case {
    /// All cases of a directory under `tests/charts-fidelity`, by name.
    pub fn all(directory: &str) -> Vec<Case> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/charts-fidelity").join(directory);
        let mut paths: Vec<_> = fs::read_dir(root).expect("the cases").flatten().map(|e| e.path()).collect();
        paths.sort();
        paths.iter().map(|path| Case::read(path)).collect()
    }

    fn read(path: &Path) -> Case {
        let text = fs::read_to_string(path).expect("a case");
        let mut parts = text.split("\n=== ");
        let about = parts.next().expect("a sentence").to_owned();
        let files = parts.map(|part| {
            let (name, content) = part.split_once('\n').unwrap_or((part, ""));
            let end = if content.is_empty() { "" } else { "\n" };
            (name.to_owned(), format!("{}{end}", content.strip_suffix('\n').unwrap_or(content)).into_bytes())
        });
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        Case { name, about, files: files.collect() }
    }

    /// Takes the part of this name out, if it is there: what is no file of the chart.
    pub fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let position = self.files.iter().position(|(file, _)| file == name)?;
        Some(self.files.remove(position).1)
    }

    /// Makes archives of the charts under `packed/`.
    pub fn pack(&mut self) {
        let (packed, mut files): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.files).into_iter().partition(|(name, _)| name.starts_with("packed/"));
        let mut charts: Vec<(String, Vec<(String, Vec<u8>)>)> = Vec::new();
        for (name, content) in packed {
            let mut parts = name.splitn(3, '/').skip(1);
            let (chart, file) = (parts.next().expect("a chart"), parts.next().expect("a file"));
            match charts.iter_mut().find(|(name, _)| name == chart) {
                Some((_, files)) => files.push((file.to_owned(), content)),
                None => charts.push((chart.to_owned(), vec![(file.to_owned(), content)])),
            }
        }
        for (name, content) in charts {
            files.push((format!("charts/{name}.tgz"), archive(&content)));
        }
        self.files = files;
    }
}

/// A chart's archive with the times that Fleet gives its files.
pub fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    for (name, content) in files {
        let mut head = [0_u8; 512];
        let mut put = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, &format!("chart/{name}"));
        put(100, "0000644\0");
        put(108, "0000000\0");
        put(116, "0000000\0");
        put(124, &format!("{:011o}\0", content.len()));
        put(136, "00000000000\0");
        put(148, "        0");
        put(257, "ustar\x0000");
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        packed.write_all(&head).expect("memory");
        packed.write_all(content).expect("memory");
        packed.write_all(&vec![0; content.len().next_multiple_of(512) - content.len()]).expect("memory");
    }
    packed.write_all(&[0; 1024]).expect("memory");
    packed.finish().expect("memory")
}
