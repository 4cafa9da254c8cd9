// SPDX-License-Identifier: Apache-2.0
//! Helm's release as Helm stores it: base64(gzip(JSON)) under one key of a Secret (whose `data` adds another base64).
//!
//! Reads what Helm 3 and 4 write, uncompressed payloads of early versions too; writes what Helm 4.2.3 reads. Fields
//! that this version does not know are kept.

use std::{
    fmt,
    io::{self, Read, Write},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::api::Unknown;

/// Bytes that a Secret's data may hold (`MaxSecretSize` of Kubernetes), counted before the Secret's own base64.
pub const RECORD_LIMIT: usize = 1024 * 1024;
/// Bytes of JSON a record may unpack to: a Helm chart may hold 100 MiB, in base64, beside its manifest.
const UNPACKED_LIMIT: u64 = 256 * 1024 * 1024;
const GZIP: [u8; 3] = [0x1f, 0x8b, 0x08];

/// A release's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Status {
    /// Helm does not know either.
    #[default]
    Unknown,
    /// In use.
    Deployed,
    /// Removed, history kept.
    Uninstalled,
    /// Was deployed; a later one is.
    Superseded,
    /// The attempt failed.
    Failed,
    /// Being removed.
    Uninstalling,
    /// A first install is running.
    PendingInstall,
    /// An upgrade is running.
    PendingUpgrade,
    /// A roll-back is running.
    PendingRollback,
    /// A later Helm's word.
    Other(String),
}

impl Status {
    /// As Helm writes it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Unknown => "unknown",
            Self::Deployed => "deployed",
            Self::Uninstalled => "uninstalled",
            Self::Superseded => "superseded",
            Self::Failed => "failed",
            Self::Uninstalling => "uninstalling",
            Self::PendingInstall => "pending-install",
            Self::PendingUpgrade => "pending-upgrade",
            Self::PendingRollback => "pending-rollback",
            Self::Other(word) => word,
        }
    }

    /// Whether an operation is (or was, when it was interrupted) under way.
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::PendingInstall | Self::PendingUpgrade | Self::PendingRollback)
    }
}

impl From<&str> for Status {
    fn from(word: &str) -> Self {
        match word {
            "unknown" | "" => Self::Unknown,
            "deployed" => Self::Deployed,
            "uninstalled" => Self::Uninstalled,
            "superseded" => Self::Superseded,
            "failed" => Self::Failed,
            "uninstalling" => Self::Uninstalling,
            "pending-install" => Self::PendingInstall,
            "pending-upgrade" => Self::PendingUpgrade,
            "pending-rollback" => Self::PendingRollback,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?.as_str()))
    }
}

/// A release, as in the record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Release {
    /// Its name.
    pub name: String,
    /// When and how.
    pub info: Info,
    /// The chart, as Helm stores it.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub chart: Value,
    /// The values given by the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
    /// The objects, hooks excluded: YAML documents in install order.
    pub manifest: String,
    /// Hooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Value>,
    /// The revision, from 1.
    pub version: u32,
    /// Its namespace.
    pub namespace: String,
    /// `ssa` or `csa`; absent means `csa`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub apply_method: String,
    /// What a later Helm added.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// When and how a release was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Info {
    /// RFC 3339; empty means never.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub first_deployed: String,
    /// RFC 3339; empty means never.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_deployed: String,
    /// RFC 3339; empty means never.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub deleted: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Where it stands.
    pub status: Status,
    /// The chart's notes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// What a later Helm added.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Release {
    /// An annotation of the chart's metadata; Fleet's facts about the bundle stand there.
    pub fn chart_annotation(&self, key: &str) -> Option<&str> {
        self.chart.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }
}

/// Why a record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The Secret has no key `release`.
    #[error("the record is empty")]
    Empty,
    /// Not base64.
    #[error("the record is not base64")]
    Base64(#[source] base64::DecodeError),
    /// Not gzip, or too much of it.
    #[error("the record cannot be unpacked")]
    Gzip(#[source] io::Error),
    /// Not a release.
    #[error("the record holds no release")]
    Json(#[source] serde_json::Error),
    /// Does not fit into a Secret, not even without the chart's files.
    #[error(
        "the release record is too large by {} bytes: {size} bytes, where a Secret holds {RECORD_LIMIT}",
        .size - RECORD_LIMIT
    )]
    TooLarge {
        /// Bytes it takes.
        size: usize,
    },
}

/// Reads the bytes under the key `release`.
pub fn decode(stored: &[u8]) -> Result<Release, CodecError> {
    if stored.is_empty() {
        return Err(CodecError::Empty);
    }
    let packed = STANDARD.decode(stored).map_err(CodecError::Base64)?;
    if packed.starts_with(&GZIP) {
        let mut json = Vec::with_capacity(packed.len() * 4);
        GzDecoder::new(packed.as_slice())
            .take(UNPACKED_LIMIT)
            .read_to_end(&mut json)
            .map_err(CodecError::Gzip)?;
        serde_json::from_slice(&json).map_err(CodecError::Json)
    } else {
        serde_json::from_slice(&packed).map_err(CodecError::Json)
    }
}

/// Writes the bytes under the key `release`.
///
/// A release too large for a Secret loses its chart's files and templates first: nothing reads those back but
/// `helm get`, while the manifest is what prune, drift and uninstall live on.
pub fn encode(release: &mut Release) -> Result<Vec<u8>, CodecError> {
    let packed = pack(release)?;
    if packed.len() <= RECORD_LIMIT {
        return Ok(packed);
    }
    for payload in ["files", "templates"] {
        if let Some(payload) = release.chart.get_mut(payload) {
            *payload = Value::Array(Vec::new());
        }
    }
    let packed = pack(release)?;
    if packed.len() <= RECORD_LIMIT { Ok(packed) } else { Err(CodecError::TooLarge { size: packed.len() }) }
}

fn pack(release: &Release) -> Result<Vec<u8>, CodecError> {
    let mut gzip = GzEncoder::new(Vec::with_capacity(4096), Compression::default());
    serde_json::to_writer(io::BufWriter::new(&mut gzip), release).map_err(CodecError::Json)?;
    gzip.flush().map_err(CodecError::Gzip)?;
    let packed = gzip.finish().map_err(CodecError::Gzip)?;
    Ok(STANDARD.encode(packed).into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_of_helm_4_survives_a_round_trip_with_what_we_do_not_know() {
        let json = json!({
            "name": "tidewatch", "version": 3, "namespace": "tidewatch", "apply_method": "ssa",
            "info": {"first_deployed": "2026-08-22T10:00:00.54Z", "last_deployed": "2026-08-22T10:00:01Z",
                "description": "Install complete", "status": "deployed", "rollback_revision": 2},
            "chart": {"metadata": {"name": "c", "annotations": {"fleet.cattle.io/bundle-id": "b"}},
                "modtime": "2026-08-22T09:00:00Z", "schemamodtime": "2026-08-22T09:00:00Z", "lock": null},
            "config": {"a": 1.5, "b": 9007199254740993_i64}, "manifest": "---\n# Source: x\na: ü\n",
            "sequenced": true
        });
        let release: Release = serde_json::from_value(json.clone()).unwrap();
        let stored = encode(&mut release.clone()).unwrap();
        let read = decode(&stored).unwrap();
        assert_eq!(read, release);
        assert_eq!(serde_json::to_value(&read).unwrap(), json);
        assert_eq!(read.chart_annotation("fleet.cattle.io/bundle-id"), Some("b"));
    }

    #[test]
    fn a_record_of_helm_3_with_empty_times_and_no_compression_is_read() {
        let json = br#"{"name":"a","info":{"first_deployed":"2020-01-01T00:00:00Z","deleted":"","status":"superseded"},
            "chart":null,"manifest":"","version":1,"namespace":"n"}"#;
        let read = decode(STANDARD.encode(json).as_bytes()).unwrap();
        assert_eq!(read.info.status, Status::Superseded);
        assert_eq!(read.apply_method, "");
        let written = serde_json::to_value(&read).unwrap();
        assert!(written["info"].get("deleted").is_none());
    }

    #[test]
    fn a_large_chart_leaves_the_record_before_the_record_fails() {
        let noise: String = std::iter::successors(Some(1u64), |seed| {
            Some(seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407))
        })
        .take(120_000)
        .map(|word| format!("{word:016x}"))
        .collect();
        let mut release = Release { manifest: "a: 1".into(), ..Release::default() };
        release.chart =
            json!({"metadata": {"name": "c"}, "files": [{"name": "f", "data": noise}], "templates": []});
        let stored = encode(&mut release).unwrap();
        let read = decode(&stored).unwrap();
        assert_eq!(read.chart["files"], json!([]));
        assert_eq!(read.manifest, "a: 1");
        release.manifest = noise;
        let error = encode(&mut release).unwrap_err();
        let CodecError::TooLarge { size } = error else { panic!("{error}") };
        assert!(error.to_string().contains(&format!("by {} bytes", size - RECORD_LIMIT)), "{error}");
    }

    #[test]
    fn garbage_is_an_error_and_no_panic() {
        for garbage in [&b""[..], b"%%%", b"H4sIAAAA", b"bm8ganNvbg=="] {
            assert!(decode(garbage).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_release_reads_back(name in "\\PC{0,20}", manifest in "\\PC{0,200}", version in 1u32.., word in "[a-z-]{1,20}") {
            let info = Info { status: Status::from(word.as_str()), ..Info::default() };
            let release = Release { name, manifest, version, info, ..Release::default() };
            prop_assert_eq!(decode(&encode(&mut release.clone()).unwrap()).unwrap(), release);
        }
    }
}
