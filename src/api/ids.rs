// SPDX-License-Identifier: Apache-2.0
//! Ids with structure, parsed once at the edge.

use std::{convert::Infallible, fmt, num::NonZeroU32, str::FromStr};

use thiserror::Error;

use super::{BundleDeploymentOptions, names};

/// A deployment id: `manifestID:optionsHash`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeploymentId {
    /// Name of the Content; empty for a HelmOp without contents.
    pub manifest_id: String,
    /// Hex SHA-256 over the options; empty if the text had no `:`.
    pub options_hash: String,
}

impl FromStr for DeploymentId {
    type Err = Infallible;

    /// Cuts at the first `:`; without one the whole text is the manifest id.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (manifest_id, options_hash) = text.split_once(':').unwrap_or((text, ""));
        Ok(Self { manifest_id: manifest_id.to_owned(), options_hash: options_hash.to_owned() })
    }
}

impl DeploymentId {
    /// Reads a deployment id; every text is one.
    pub fn parse(text: &str) -> Self {
        let Ok(id) = text.parse();
        id
    }
}

impl fmt::Display for DeploymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.manifest_id)?;
        if !self.options_hash.is_empty() {
            write!(f, ":{}", self.options_hash)?;
        }
        Ok(())
    }
}

/// A release and one of its revisions: `namespace/name:revision`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReleaseId {
    /// Where the release record lives.
    pub namespace: String,
    /// The release's name.
    pub name: String,
    /// From 1 up.
    pub revision: u32,
}

/// A text that names no release.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a release id (namespace/name:revision)")]
pub struct ReleaseIdError(pub String);

impl FromStr for ReleaseId {
    type Err = ReleaseIdError;

    fn from_str(text: &str) -> Result<Self, ReleaseIdError> {
        let parse = || {
            let (key, revision) = text.rsplit_once(':')?;
            let (namespace, name) = key.split_once('/')?;
            let revision = revision.parse::<NonZeroU32>().ok()?.get();
            let named = !namespace.is_empty() && !name.is_empty();
            named.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned(), revision })
        };
        parse().ok_or_else(|| ReleaseIdError(text.to_owned()))
    }
}

impl fmt::Display for ReleaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.revision)
    }
}

/// The namespace a bundle's release lives in.
pub fn release_namespace(options: &BundleDeploymentOptions) -> &str {
    [options.target_namespace.as_str(), options.default_namespace.as_str()]
        .into_iter()
        .find(|namespace| !namespace.is_empty())
        .unwrap_or("default")
}

/// The name of a bundle's release.
pub fn release_name(bd_name: &str, options: &BundleDeploymentOptions) -> String {
    match &options.helm {
        Some(helm) if !helm.release_name.is_empty() => helm.release_name.clone(),
        _ => names::helm_release_name(bd_name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::HelmOptions;

    #[test]
    fn a_deployment_id_is_cut_at_the_first_colon() {
        for (text, manifest_id, options_hash) in
            [("s-1:abc", "s-1", "abc"), ("s-1:a:b", "s-1", "a:b"), ("v1", "v1", ""), (":abc", "", "abc")]
        {
            let id = DeploymentId::parse(text);
            assert_eq!((id.manifest_id.as_str(), id.options_hash.as_str()), (manifest_id, options_hash));
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn a_release_id_reads_back_and_anything_else_is_refused() {
        let id: ReleaseId = "ns/web:12".parse().unwrap();
        assert_eq!((id.namespace.as_str(), id.name.as_str(), id.revision), ("ns", "web", 12));
        assert_eq!(id.to_string(), "ns/web:12");
        for strange in
            ["", "web:1", "ns/web", "ns/web:", "ns/web:0", "ns/web:x", "/web:1", "ns/:1", "ns/web:-1"]
        {
            assert!(strange.parse::<ReleaseId>().is_err(), "{strange}");
        }
    }

    #[test]
    fn the_release_follows_the_options() {
        let mut options = BundleDeploymentOptions::default();
        assert_eq!(release_namespace(&options), "default");
        options.default_namespace = "soft".into();
        assert_eq!(release_namespace(&options), "soft");
        options.target_namespace = "hard".into();
        assert_eq!(release_namespace(&options), "hard");
        assert_eq!(release_name("My.App", &options), names::helm_release_name("My.App"));
        options.helm = Some(HelmOptions { release_name: "mine".into(), ..HelmOptions::default() });
        assert_eq!(release_name("My.App", &options), "mine");
    }
}
