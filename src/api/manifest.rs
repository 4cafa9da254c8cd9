// SPDX-License-Identifier: Apache-2.0
//! A bundle's files: their JSON text, its hash (the manifest id), and the `Content` that stores it.

use std::io::{Read, Write};

use base64::{Engine, prelude::BASE64_STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::{BundleDeploymentOptions, Content, gojson, hex, null_default};

/// No text unpacks beyond this: Helm's own limit of an unpacked chart is 100 MiB, base64 and JSON add to it. It keeps
/// a hostile Content from filling the memory.
pub const MAX_UNPACKED: u64 = 256 << 20;

/// Longest label value and object name Fleet allows itself; cuts the manifest id.
const MAX_NAME: usize = 63;

/// Why a stored manifest or one of its files cannot be read.
#[derive(Debug, Error)]
pub enum ContentError {
    /// Not base64.
    #[error("{what} is not valid base64")]
    Base64 {
        /// The Content or file.
        what: String,
        /// Where.
        #[source]
        source: base64::DecodeError,
    },
    /// Not gzip, or damaged.
    #[error("{what} cannot be unpacked")]
    Gzip {
        /// The Content or file.
        what: String,
        /// How.
        #[source]
        source: std::io::Error,
    },
    /// Unpacks to more than 256 MiB.
    #[error("{what} unpacks to more than {} MiB", MAX_UNPACKED >> 20)]
    TooLarge {
        /// The Content or file.
        what: String,
    },
    /// The bytes are not those that were hashed. Fleet's text.
    #[error("content does not match hash got {actual}, expected {expected}")]
    Hash {
        /// Hex SHA-256 of the bytes.
        actual: String,
        /// What the Content names.
        expected: String,
    },
    /// Not the JSON of a manifest.
    #[error("{what} is not a manifest")]
    Json {
        /// The Content.
        what: String,
        /// Where.
        #[source]
        source: serde_json::Error,
    },
    /// An encoding this version does not know.
    #[error("{what} has unknown encoding {encoding:?}")]
    Encoding {
        /// The file.
        what: String,
        /// The word.
        encoding: String,
    },
}

/// The files of a bundle. Names are unique paths with `/`; Fleet sorts them by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The files.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<BundleResource>,
}

/// One file of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BundleResource {
    /// Path inside the bundle.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its text, or bytes as `encoding` says.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Empty, `base64`, `base64+gz` or `gz`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "String::is_empty")]
    pub encoding: String,
}

impl BundleResource {
    /// A file of that name: text as it is, anything else as base64.
    pub fn from_bytes(name: String, bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(content) => Self { name, content, encoding: String::new() },
            // Fleet writes `base64+gz` here, whose text depends on the compressor's version; readers take both.
            Err(error) => Self {
                name,
                content: BASE64_STANDARD.encode(error.as_bytes()),
                encoding: "base64".to_owned(),
            },
        }
    }

    /// The file's bytes.
    pub fn decode(&self) -> Result<Vec<u8>, ContentError> {
        let what = || format!("file {:?}", self.name);
        let base64 = || unbase64(&self.content, what);
        match self.encoding.as_str() {
            "" => Ok(self.content.clone().into_bytes()),
            "base64" | "base64+" => base64(),
            "base64+gz" => gunzip(&base64()?, what),
            "gz" => gunzip(self.content.as_bytes(), what),
            other => Err(ContentError::Encoding { what: what(), encoding: other.to_owned() }),
        }
    }
}

impl Manifest {
    /// The JSON text that is hashed and stored: Go's form, newline at the end.
    pub fn to_bytes(&self) -> Vec<u8> {
        gojson::to_vec(self).expect("a list of three strings always encodes")
    }

    /// The manifest id and Content name: `s-` and the first 61 hex digits of SHA-256 over [`Manifest::to_bytes`].
    pub fn id(&self) -> String {
        id_of(&sha256(&self.to_bytes()))
    }

    /// Unpacks a Content and, if it names a hash, checks it.
    pub fn from_content(content: &Content) -> Result<Self, ContentError> {
        let name = content.metadata.name.as_deref().unwrap_or_default();
        let what = || format!("Content {name:?}");
        let bytes = gunzip(&unbase64(&content.content, what)?, what)?;
        if !content.sha256sum.is_empty() {
            let actual = sha256(&bytes);
            if actual != content.sha256sum {
                return Err(ContentError::Hash { actual, expected: content.sha256sum.clone() });
            }
        }
        Self::from_bytes(&bytes, &what())
    }

    /// Reads the JSON text; `what` names its place in the error.
    pub fn from_bytes(bytes: &[u8], what: &str) -> Result<Self, ContentError> {
        // Go's decoder reads one value and ignores what follows; nothing follows in what anybody writes.
        serde_json::from_slice(bytes).map_err(|source| ContentError::Json { what: what.to_owned(), source })
    }

    /// The Content that stores it, named after its id.
    pub fn to_content(&self) -> Content {
        let bytes = self.to_bytes();
        let sum = sha256(&bytes);
        Content {
            api_version: "fleet.cattle.io/v1alpha1".to_owned(),
            kind: "Content".to_owned(),
            metadata: ObjectMeta { name: Some(id_of(&sum)), ..ObjectMeta::default() },
            content: BASE64_STANDARD.encode(gzip(&bytes)),
            sha256sum: sum,
            status: None,
        }
    }
}

/// Hex SHA-256 over the options without `diff` and `correctDrift`, which only concern drift: the second part of a
/// deployment id. Take it over the final values, before they move to a Secret.
pub fn options_hash(options: &BundleDeploymentOptions) -> String {
    let hashed = BundleDeploymentOptions { diff: None, correct_drift: None, ..options.clone() };
    sha256(
        &gojson::to_vec(&hashed)
            .expect("options are strings, numbers and string-keyed maps: they always encode"),
    )
}

fn id_of(sum: &str) -> String {
    let mut id = format!("s-{sum}");
    id.truncate(MAX_NAME);
    id
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn unbase64(text: &str, what: impl Fn() -> String) -> Result<Vec<u8>, ContentError> {
    BASE64_STANDARD.decode(text).map_err(|source| ContentError::Base64 { what: what(), source })
}

fn gunzip(bytes: &[u8], what: impl Fn() -> String) -> Result<Vec<u8>, ContentError> {
    let mut unpacked = Vec::new();
    GzDecoder::new(bytes)
        .take(MAX_UNPACKED + 1)
        .read_to_end(&mut unpacked)
        .map_err(|source| ContentError::Gzip { what: what(), source })?;
    if unpacked.len() as u64 > MAX_UNPACKED {
        return Err(ContentError::TooLarge { what: what() });
    }
    Ok(unpacked)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("writing to memory does not fail")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(name: &str, content: &str) -> BundleResource {
        BundleResource { name: name.into(), content: content.into(), ..BundleResource::default() }
    }

    #[test]
    fn manifest_ids_are_fleets() {
        let manifest = Manifest { resources: vec![file("foo", "bar")] };
        assert_eq!(manifest.to_bytes(), b"{\"resources\":[{\"name\":\"foo\",\"content\":\"bar\"}]}\n");
        assert_eq!(manifest.id(), "s-b538e5004002a3ba4700d90b52d258f575e288e584c03e0e301f2032e937f");
        assert_eq!(
            manifest.to_content().sha256sum,
            "b538e5004002a3ba4700d90b52d258f575e288e584c03e0e301f2032e937ff9d"
        );
        assert_eq!(Manifest::default().to_bytes(), b"{}\n");
        assert_eq!(
            sha256(&Manifest::default().to_bytes()),
            "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"
        );
    }

    #[test]
    fn the_hash_is_checked_over_the_bytes_as_they_are() {
        let raw = br#"{"resources": [{"name": "foo", "content": "bar"}]}"#;
        let mut content = Content {
            content: BASE64_STANDARD.encode(gzip(raw)),
            sha256sum: "752ebbb975f52eea5e87950ef2ca5de4055de3c68a17f54d94527d7fd79c21fd".into(),
            ..Content::default()
        };
        assert_eq!(Manifest::from_content(&content).unwrap().resources, [file("foo", "bar")]);
        content.sha256sum = "0".repeat(64);
        let text = Manifest::from_content(&content).unwrap_err().to_string();
        assert!(text.starts_with("content does not match hash got 752ebbb9"), "{text}");
        content.sha256sum.clear();
        assert!(Manifest::from_content(&content).is_ok(), "no hash, no check");
    }

    #[test]
    fn a_content_reads_back() {
        let manifest = Manifest { resources: vec![file("a.yaml", "a: <b>\n"), file("b", "\u{2028}")] };
        let content = manifest.to_content();
        assert_eq!(content.metadata.name.as_deref(), Some(manifest.id().as_str()));
        assert_eq!(Manifest::from_content(&content).unwrap(), manifest);
    }

    #[test]
    fn damaged_contents_say_what_is_wrong() {
        let broken =
            |content: String| Manifest::from_content(&Content { content, ..Content::default() }).unwrap_err();
        assert!(matches!(broken("%".into()), ContentError::Base64 { .. }));
        assert!(matches!(broken(BASE64_STANDARD.encode("no gzip")), ContentError::Gzip { .. }));
        assert!(matches!(broken(BASE64_STANDARD.encode(gzip(b"\"text\""))), ContentError::Json { .. }));
    }

    #[test]
    fn every_encoding_is_decoded_and_a_strange_one_refused() {
        let packed = BASE64_STANDARD.encode(gzip(b"hello"));
        let coded = |content: &str, encoding: &str| {
            BundleResource { encoding: encoding.into(), ..file("f", content) }.decode()
        };
        assert_eq!(coded("hello", "").unwrap(), b"hello");
        assert_eq!(coded("aGVsbG8=", "base64").unwrap(), b"hello");
        assert_eq!(coded(&packed, "base64+gz").unwrap(), b"hello");
        assert!(matches!(coded("x", "zstd"), Err(ContentError::Encoding { .. })));
        assert!(matches!(coded("x", "gz"), Err(ContentError::Gzip { .. })));
    }

    #[test]
    fn bytes_that_are_no_text_become_base64() {
        let resource = BundleResource::from_bytes("bin".into(), vec![0xff, 0xfe, 0]);
        assert_eq!((resource.content.as_str(), resource.encoding.as_str()), ("//4A", "base64"));
        assert_eq!(resource.decode().unwrap(), [0xff, 0xfe, 0]);
    }

    #[test]
    fn the_options_hash_ignores_what_only_concerns_drift() {
        let plain: BundleDeploymentOptions =
            serde_json::from_value(json!({"defaultNamespace": "x", "helm": {"values": {"n": 1.0}}})).unwrap();
        let drift: BundleDeploymentOptions = serde_json::from_value(json!({
            "defaultNamespace": "x",
            "helm": {"values": {"n": 1}},
            "diff": {"comparePatches": [{"kind": "Service"}]},
            "correctDrift": {"enabled": true},
        }))
        .unwrap();
        assert_eq!(options_hash(&plain), options_hash(&drift));
        // sha256sum of `{}` and a newline: nothing is written for empty options.
        assert_eq!(options_hash(&BundleDeploymentOptions::default()), sha256(b"{}\n"));
    }

    #[test]
    fn options_are_hashed_in_gos_declaration_order() {
        let options: BundleDeploymentOptions = serde_json::from_value(json!({
            "overwrites": [{"kind": "K", "namespace": "ns", "name": "n"}],
            "namespaceLabels": {"b": "1", "a": "2"},
            "deleteNamespace": true,
            "keepResources": true,
            "createNamespace": false,
            "serviceAccount": "sa",
            "helm": {"disableDNS": true, "maxHistory": 3, "releaseName": "r", "chart": "c",
                     "values": {"b": 1e21, "a": "<"}, "valuesFrom": [{"secretKeyRef": {"key": "k"}}]},
            "namespace": "t",
            "defaultNamespace": "d",
            "kustomize": {},
            "yaml": {"overlays": ["o"]},
        }))
        .unwrap();
        let text = String::from_utf8(gojson::to_vec(&options).unwrap()).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"yaml":{"overlays":["o"]},"kustomize":{},"defaultNamespace":"d","namespace":"t","#,
                r#""helm":{"chart":"c","releaseName":"r","values":{"a":"\u003c","b":1e+21},"#,
                r#""valuesFrom":[{"secretKeyRef":{"name":"","key":"k"}}],"maxHistory":3,"disableDNS":true},"#,
                r#""serviceAccount":"sa","createNamespace":false,"keepResources":true,"deleteNamespace":true,"#,
                r#""namespaceLabels":{"a":"2","b":"1"},"#,
                r#""overwrites":[{"name":"n","namespace":"ns","kind":"K"}]}"#,
                "\n"
            )
        );
    }
}
