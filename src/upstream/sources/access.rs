// SPDX-License-Identifier: Apache-2.0
//! How a registry or a chart repository is reached: what Fleet's Secrets say about it.

use std::{collections::BTreeMap, fmt};

use base64::{Engine, prelude::BASE64_STANDARD};
use thiserror::Error;

use super::reference::Reference;
use crate::api::HelmChartOptions;

/// Type of the Secret that says where a bundle's files are stored.
pub const STORAGE_TYPE: &str = "fleet.cattle.io/bundle-oci-storage/v1alpha1";

/// A Secret's contents.
pub type Data = BTreeMap<String, Vec<u8>>;

/// Why a Secret cannot be used. No text carries a value.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AccessError {
    /// Fleet's text.
    #[error("unexpected secret type: got {got:?}, want {STORAGE_TYPE:?}")]
    Type {
        /// Its type.
        got: String,
    },
    /// Fleet's text.
    #[error("key {0:?} not found in secret")]
    Missing(&'static str),
    /// No place in a registry.
    #[error("key \"reference\" of the secret is no repository of a registry (host/path)")]
    Reference,
    /// Neither true nor false.
    #[error("key {0:?} of the secret is neither true nor false")]
    Bool(&'static str),
    /// Not UTF-8.
    #[error("key {0:?} of the secret is no text")]
    Text(&'static str),
    /// One of name and password without the other. Fleet's text.
    #[error("{0} is set in the secret, but {1} isn't")]
    Half(&'static str, &'static str),
    /// The options' authorities.
    #[error("helmOpCABundle is not valid base64")]
    Bundle,
}

/// How a server is reached.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// User; empty for none.
    pub username: String,
    /// Its password.
    pub password: String,
    /// PEM of authorities that are trusted besides the system's.
    pub authorities: Vec<u8>,
    /// The server's certificate is not checked.
    pub skip_verify: bool,
    /// A registry without TLS.
    pub plain_http: bool,
}

/// No credentials.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { skip_verify, plain_http, .. } = self;
        f.debug_struct("Access")
            .field("skip_verify", skip_verify)
            .field("plain_http", plain_http)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// Where contents are stored, and how: the agent's own credentials are preferred, each by itself, as by Fleet.
    pub fn of_storage(kind: &str, data: &Data) -> Result<(String, Self), AccessError> {
        if kind != STORAGE_TYPE {
            return Err(AccessError::Type { got: kind.to_owned() });
        }
        let reference = text(data, "reference")?.ok_or(AccessError::Missing("reference"))?;
        let reference = reference.trim_end_matches('/').to_owned();
        if Reference::parse(&format!("{reference}/s-0")).is_none() {
            return Err(AccessError::Reference);
        }
        let one = |own: &'static str, shared: &'static str| match text(data, own)? {
            Some(own) if !own.is_empty() => Ok(own),
            _ => Ok(text(data, shared)?.unwrap_or_default()),
        };
        let flag = |key: &'static str| match data.get(key) {
            Some(value) => parse_bool(value).ok_or(AccessError::Bool(key)),
            None => Ok(false),
        };
        let access = Self {
            username: one("agentUsername", "username")?,
            password: one("agentPassword", "password")?,
            authorities: data.get("cacerts").cloned().unwrap_or_default(),
            skip_verify: flag("insecureSkipTLS")? || flag("insecure")?,
            plain_http: flag("basicHTTP")?,
        };
        Ok((reference, access))
    }

    /// How a HelmOp's chart is fetched. As in Fleet, a flag that cannot be read is false: it would weaken.
    pub fn of_helm_op(data: &Data, options: &HelmChartOptions) -> Result<Self, AccessError> {
        const PAIR: [&str; 2] = ["username", "password"];
        let [username, password] = match (text(data, PAIR[0])?, text(data, PAIR[1])?) {
            (Some(username), Some(password)) => [username, password],
            (None, None) => Default::default(),
            (Some(_), None) => return Err(AccessError::Half(PAIR[0], PAIR[1])),
            (None, Some(_)) => return Err(AccessError::Half(PAIR[1], PAIR[0])),
        };
        let flag = |key| data.get(key).and_then(|value| parse_bool(value)).unwrap_or(false);
        let mut authorities = BASE64_STANDARD.decode(&options.ca_bundle).map_err(|_| AccessError::Bundle)?;
        if let Some(more) = data.get("cacerts") {
            authorities.push(b'\n');
            authorities.extend(more);
        }
        Ok(Self {
            username,
            password,
            authorities,
            skip_verify: options.insecure_skip_tls_verify || flag("insecureSkipVerify"),
            plain_http: flag("basicHTTP"),
        })
    }
}

fn text(data: &Data, key: &'static str) -> Result<Option<String>, AccessError> {
    match data.get(key) {
        Some(bytes) => String::from_utf8(bytes.clone()).map(Some).map_err(|_| AccessError::Text(key)),
        None => Ok(None),
    }
}

/// Go's `strconv.ParseBool`.
fn parse_bool(text: &[u8]) -> Option<bool> {
    match text {
        b"1" | b"t" | b"T" | b"TRUE" | b"true" | b"True" => Some(true),
        b"0" | b"f" | b"F" | b"FALSE" | b"false" | b"False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> Data {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn the_agents_own_credentials_are_preferred() {
        let mut secret =
            data(&[("reference", "r.test/x"), ("username", "u"), ("password", "p"), ("insecure", "true")]);
        let (reference, access) = Access::of_storage(STORAGE_TYPE, &secret).unwrap();
        assert_eq!((&*reference, &*access.username, &*access.password), ("r.test/x", "u", "p"));
        assert!(access.skip_verify && !access.plain_http);
        secret.extend(data(&[("agentUsername", "a"), ("agentPassword", ""), ("basicHTTP", "T")]));
        let (_, access) = Access::of_storage(STORAGE_TYPE, &secret).unwrap();
        assert_eq!((&*access.username, &*access.password), ("a", "p"));
        assert!(access.plain_http);
        assert!(!format!("{access:?}").contains("\"p\""));
    }

    #[test]
    fn a_secret_that_is_of_no_use_says_why_and_no_value() {
        let error = |kind: &str, pairs: &[(&str, &str)]| {
            Access::of_storage(kind, &data(pairs)).unwrap_err().to_string()
        };
        assert_eq!(
            error("Opaque", &[]),
            "unexpected secret type: got \"Opaque\", want \"fleet.cattle.io/bundle-oci-storage/v1alpha1\""
        );
        assert_eq!(error(STORAGE_TYPE, &[]), "key \"reference\" not found in secret");
        let text = error(STORAGE_TYPE, &[("reference", "r.test"), ("basicHTTP", "hunter2")]);
        assert!(text.contains("basicHTTP") && !text.contains("hunter2"), "{text}");
        for reference in ["", "https://u:hunter2@r.test/x", "r.test/../x"] {
            let text = error(STORAGE_TYPE, &[("reference", reference)]);
            assert!(text.contains("is no repository") && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_helmop_has_name_and_password_or_neither() {
        let options = HelmChartOptions {
            insecure_skip_tls_verify: true,
            ca_bundle: BASE64_STANDARD.encode("one"),
            ..HelmChartOptions::default()
        };
        let read = |pairs| Access::of_helm_op(&data(pairs), &options);
        assert_eq!(
            read(&[("username", "u")]).unwrap_err().to_string(),
            "username is set in the secret, but password isn't"
        );
        assert_eq!(
            read(&[("password", "u")]).unwrap_err().to_string(),
            "password is set in the secret, but username isn't"
        );
        let access = read(&[("cacerts", "two"), ("basicHTTP", "yes, please")]).unwrap();
        assert_eq!(access.authorities, b"one\ntwo");
        assert!(access.skip_verify && !access.plain_http && access.username.is_empty());
    }
}
