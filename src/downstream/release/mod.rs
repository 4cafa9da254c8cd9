// SPDX-License-Identifier: Apache-2.0
//! Release records: Helm's own, so that `helm list`, `history`, `get`, `rollback` and `uninstall` work on them.
//!
//! *Determine the state, choose one action, look again*: [`state`] decides what there is, [`Gate`] opens and closes
//! one revision. A record leaves history only when its objects are accounted for.

mod close;
mod codec;
mod gate;
mod rollback;
mod runs;
mod state;
mod store;
mod survey;

#[cfg(test)]
pub(crate) mod fixtures;

pub use codec::{CodecError, Info, RECORD_LIMIT, Release, Status, decode, encode};
pub use gate::{Gate, GateInput};
pub use runs::Phase;
pub use state::{
    Operation, ReleaseState, deployed, operation, repeated, standing, standing_values, state, unaccounted,
};
pub(in crate::downstream) use store::APPLY;
pub use store::{Clock, Guard, Record, Store};
pub use survey::Standing;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{fence::Fenced, server::RequestError};

/// Why a release record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The history could not be read.
    #[error("cannot read the history of release {release}")]
    Read {
        /// Namespace and name.
        release: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The API server refused a record, or did not answer.
    #[error("cannot write release record {record}")]
    Write {
        /// The record.
        record: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The record cannot be encoded, as a rule because it is too large.
    #[error("cannot write release record {record}")]
    Encode {
        /// The record.
        record: String,
        /// Why.
        #[source]
        source: CodecError,
    },
    /// Somebody wrote the record (or made the revision) since the history was read. Read the claim again.
    #[error("release record {record} was written by somebody else meanwhile")]
    Raced {
        /// The record.
        record: String,
    },
    /// A record that is needed cannot be decoded.
    #[error(
        "release record {record} cannot be read, nor can any other tell whose release it is; delete it to deploy anew"
    )]
    Unreadable {
        /// The record.
        record: String,
    },
    /// A pending record that is not ours: a person's Helm or Fleet's agent may be at work. To be failed only once
    /// seen unchanged for the claim timeout.
    #[error("another tool is working on the release: record {record} is {status} and not ours")]
    ForeignRun {
        /// The record.
        record: String,
        /// Its status.
        status: Status,
        /// Its version: unchanged means that nothing happens.
        resource_version: String,
    },
    /// The release is being removed by a replica (or by Helm, when no guard stands on it).
    #[error("the release is being removed: record {record}")]
    Uninstalling {
        /// The record.
        record: String,
        /// By whom.
        guard: Option<Guard>,
    },
    /// The release belongs to another bundle; never taken.
    #[error("release {release} belongs to bundle {other}, not to {bundle}")]
    OtherBundle {
        /// Namespace and name.
        release: String,
        /// Its bundle.
        other: String,
        /// Ours.
        bundle: String,
    },
    /// The release namespace is not there and may not be made.
    #[error("create: failed to create")]
    NoNamespace {
        /// The server's words.
        #[source]
        source: RequestError,
    },
    /// The release namespace could not be made.
    #[error("cannot create namespace {namespace}")]
    CreateNamespace {
        /// The namespace.
        namespace: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The release namespace is being deleted.
    #[error("namespace {namespace} is being deleted")]
    NamespaceTerminating {
        /// The namespace.
        namespace: String,
        /// The server's words.
        #[source]
        source: RequestError,
    },
    /// The claim does not allow the write.
    #[error("the release record is not written")]
    Fenced(#[source] Fenced),
}

impl ReleaseError {
    /// Whether the content alone decided this, so that only another content can help.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Encode { source, .. } => matches!(source, CodecError::TooLarge { .. }),
            Self::Write { source, .. } => source.is_permanent(),
            Self::Read { .. }
            | Self::Raced { .. }
            | Self::Unreadable { .. }
            | Self::ForeignRun { .. }
            | Self::Uninstalling { .. }
            | Self::OtherBundle { .. }
            | Self::NoNamespace { .. }
            | Self::CreateNamespace { .. }
            | Self::NamespaceTerminating { .. }
            | Self::Fenced(_) => false,
        }
    }

    /// The fence's refusal, when it is one.
    pub fn fenced(&self) -> Option<&Fenced> {
        if let Self::Fenced(fenced) = self { Some(fenced) } else { None }
    }

    fn from_write(meta: &ObjectMeta, source: RequestError) -> Self {
        let record = meta.name.clone().unwrap_or_default();
        let namespace = meta.namespace.clone().unwrap_or_default();
        if source.is_conflict() {
            Self::Raced { record }
        } else if source.is_missing_namespace(&namespace) {
            Self::NoNamespace { source }
        } else if source.is_namespace_terminating() {
            Self::NamespaceTerminating { namespace, source }
        } else {
            Self::Write { record, source }
        }
    }
}
