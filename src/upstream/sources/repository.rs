// SPDX-License-Identifier: Apache-2.0
//! Helm's chart repositories: an `index.yaml`, and in it where a chart's versions are.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use http::HeaderValue;
use reqwest::Url;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{access::Access, error::SourceError, net::plain};
use crate::api::{hex, null_default};

/// Of an index, in bytes. The largest public ones have about 25 MiB.
pub(super) const MAX_INDEX: u64 = 64 << 20;

/// Above what an index of that size has: the reader's own limits are those of a small file.
const MAX_NODES: usize = 20_000_000;

/// Indexes that are kept: each may have some MiB.
const INDEXES: usize = 8;

/// An `index.yaml`; everything else in it is passed over.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Index {
    #[serde(default)]
    entries: HashMap<String, Option<Vec<Entry>>>,
}

/// One version of a chart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Entry {
    #[serde(deserialize_with = "null_default")]
    pub version: String,
    /// Hex SHA-256 of the archive; may be absent.
    pub digest: Option<String>,
    #[serde(deserialize_with = "null_default")]
    pub urls: Vec<String>,
}

impl Index {
    /// Reads one. JSON is YAML, too.
    pub fn parse(url: &Url, bytes: &[u8]) -> Result<Self, SourceError> {
        let unusable = |reason: String| SourceError::Answer { url: plain(url), reason };
        let text = std::str::from_utf8(bytes).map_err(|error| unusable(error.to_string()))?;
        let budget = serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        };
        let options = serde_saphyr::options! { with_snippet: false, budget: budget };
        serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| unusable(format!("it is no index of charts: {error}")))
    }

    /// All versions of a chart.
    pub fn of(&self, chart: &str) -> &[Entry] {
        self.entries.get(chart).and_then(Option::as_deref).unwrap_or_default()
    }
}

/// Indexes that were read lately, with what their servers call that state of them (ETag).
#[derive(Default)]
pub(super) struct Indexes(Mutex<Vec<Known>>);

#[derive(Clone)]
pub(super) struct Known {
    key: String,
    pub tag: HeaderValue,
    pub index: Arc<Index>,
}

impl Indexes {
    /// An index is kept for those only who ask for it with the same credentials: servers may tell them apart.
    pub fn key(url: &Url, access: &Access) -> String {
        let asked = [url.as_str(), &access.username, &access.password];
        hex(&Sha256::digest(serde_json::json!(asked).to_string()))
    }

    pub fn get(&self, key: &str) -> Option<Known> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|known| known.key == key).cloned()
    }

    pub fn keep(&self, key: String, tag: HeaderValue, index: &Arc<Index>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.key != key);
        if known.len() >= INDEXES {
            known.remove(0);
        }
        known.push(Known { key, tag, index: index.clone() });
    }
}

/// `index.yaml` below the repository's URL; its query goes along.
pub(super) fn index_url(repository: &Url) -> Url {
    let mut url = repository.clone();
    let path = format!("{}/index.yaml", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url
}

/// Where an entry's URL is: relative ones are below the repository's URL and take its query along.
pub(super) fn chart_url(repository: &Url, entry: &str) -> Option<Url> {
    let mut base = repository.clone();
    let path = format!("{}/", base.path().trim_end_matches('/'));
    base.set_path(&path);
    let mut url = base.join(entry).ok()?;
    let relative = Url::parse(entry).is_err();
    if relative && url.query().is_none() {
        url.set_query(repository.query());
    }
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_for_what_counts() {
        let text = "apiVersion: v1\nentries:\n  app:\n  - version: 1.2.0\n    digest: ab\n    urls: [app-1.2.0.tgz]\n    \
                    created: 2026-01-01T00:00:00Z\n    maintainers: [{name: x}]\n  - version: 1.10\n    urls: null\n  empty: null\n\
                    generated: now\n";
        let url = Url::parse("https://c.test/index.yaml").unwrap();
        let index = Index::parse(&url, text.as_bytes()).unwrap();
        let entries = index.of("app");
        assert_eq!(
            entries[0],
            Entry { version: "1.2.0".into(), digest: Some("ab".into()), urls: vec!["app-1.2.0.tgz".into()] }
        );
        assert_eq!(entries[1].version, "1.10");
        assert!(index.of("empty").is_empty() && index.of("none").is_empty());
        let json = br#"{"entries": {"app": [{"version": "1"}]}}"#;
        assert_eq!(Index::parse(&url, json).unwrap().of("app").len(), 1);
        let error = Index::parse(&url, b"<html>no</html>").unwrap_err().to_string();
        assert!(error.starts_with("cannot use the answer of https://c.test/index.yaml"), "{error}");
    }

    #[test]
    fn urls_are_below_the_repository() {
        for (repository, entry, expected) in [
            ("https://c.test", "a.tgz", "https://c.test/a.tgz"),
            ("https://c.test/charts", "a.tgz", "https://c.test/charts/a.tgz"),
            ("https://c.test/charts/?k=v", "x/a.tgz", "https://c.test/charts/x/a.tgz?k=v"),
            ("https://c.test/charts", "/a.tgz", "https://c.test/a.tgz"),
            ("https://c.test/charts?k=v", "https://d.test/a.tgz", "https://d.test/a.tgz"),
            ("https://c.test", "oci://r.test/a:1", "oci://r.test/a:1"),
        ] {
            let repository = Url::parse(repository).unwrap();
            assert_eq!(chart_url(&repository, entry).unwrap().as_str(), expected);
        }
        let repository = Url::parse("https://c.test/charts/?k=v").unwrap();
        assert_eq!(index_url(&repository).as_str(), "https://c.test/charts/index.yaml?k=v");
    }
}
