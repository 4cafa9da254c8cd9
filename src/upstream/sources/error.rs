// SPDX-License-Identifier: Apache-2.0
//! Why a bundle's files could not be fetched.

use thiserror::Error;

use crate::{
    api::manifest::ContentError,
    render::{ArchiveError, engine::EngineError},
};

use super::access::AccessError;

/// Why a bundle's files could not be fetched. URLs in it are without user, password and query.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The options of the bundle.
    #[error("{0}")]
    Options(String),
    /// The Secret.
    #[error("cannot use secret {name}")]
    Secret {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: AccessError,
    },
    /// The authorities of the Secret or the options are no PEM, mostly.
    #[error("cannot make a client for {url}")]
    Client {
        /// The server.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// No connection, or one that broke.
    #[error("cannot get {url}")]
    Transfer {
        /// What was asked for.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// Any answer but success.
    #[error("cannot get {url}: the server answered {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// Code and its name.
        status: reqwest::StatusCode,
    },
    /// More than is taken.
    #[error("{url} is larger than the maximum size {limit}")]
    TooLarge {
        /// What was asked for.
        url: String,
        /// Bytes.
        limit: u64,
    },
    /// The answer is not what the protocol says.
    #[error("cannot use the answer of {url}: {reason}")]
    Answer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Other bytes than were promised.
    #[error("{url} does not match its digest: got {actual}, expected {expected}")]
    Digest {
        /// What was asked for.
        url: String,
        /// `sha256:` and hex of the bytes.
        actual: String,
        /// The same of what was promised.
        expected: String,
    },
    /// The registry has other files than those that were stored. Fleet's text.
    #[error("invalid or corrupt manifest. Expecting id: {expected:?}, got {actual:?}")]
    Id {
        /// Manifest id of the deployment.
        expected: String,
        /// That of the files.
        actual: String,
    },
    /// The stored files cannot be read.
    #[error("cannot read the stored manifest")]
    Manifest(#[source] ContentError),
    /// The chart's archive.
    #[error("cannot use the chart {url}")]
    Archive {
        /// Where it is from.
        url: String,
        /// Why.
        #[source]
        source: ArchiveError,
    },
    /// No such chart.
    #[error("{at} has no chart {chart:?} of a version that fits {version:?}")]
    NoVersion {
        /// The repository.
        at: String,
        /// Its name.
        chart: String,
        /// The constraint.
        version: String,
    },
    /// The constraint is none, or the engine failed.
    #[error("cannot choose a version for {constraint:?}")]
    Version {
        /// What was asked for.
        constraint: String,
        /// Why.
        #[source]
        source: EngineError,
    },
    /// All of it together.
    #[error("the bundle's files were not there after {0} s")]
    Deadline(u64),
}

impl SourceError {
    /// Whether the bundle is at fault, so that the same one fails again. A server's and a Secret's faults are
    /// repaired in place.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Options(_) => true,
            Self::Version { source, .. } => source.is_permanent(),
            Self::Archive { source, .. } => source.is_refusal(),
            Self::Secret { .. }
            | Self::Client { .. }
            | Self::Transfer { .. }
            | Self::Status { .. }
            | Self::TooLarge { .. }
            | Self::Answer { .. }
            | Self::Digest { .. }
            | Self::Id { .. }
            | Self::Manifest(_)
            | Self::NoVersion { .. }
            | Self::Deadline(_) => false,
        }
    }
}
