// SPDX-License-Identifier: Apache-2.0
//! Why a cluster could not be registered by objects alone.

use std::time::Duration;

/// Why. No variant holds a token.
#[derive(Debug, thiserror::Error)]
pub enum UnmanagedError {
    /// Not a name.
    #[error("{text:?} cannot be {what}: lower-case letters, digits and '-', no sign at either end")]
    Name {
        /// What it was to name.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// The kinds are not there.
    #[error(
        "the management cluster knows no Clusters: install the definitions with \
         `flotilla crds | kubectl apply --server-side -f -`"
    )]
    NoDefinitions,
    /// A Cluster without the label is a controller's.
    #[error(
        "Cluster {cluster} exists and is managed by Fleet's controller: use `flotilla register --existing` to keep \
         its registration and only its agent bundle away, or label it \
         {}=flotilla to take it out of the controller's hands",
        super::MANAGEMENT_LABEL
    )]
    Managed {
        /// Namespace and name.
        cluster: String,
    },
    /// There is none.
    #[error("Cluster {cluster} does not exist")]
    NoCluster {
        /// Namespace and name.
        cluster: String,
    },
    /// The status names another cluster namespace.
    #[error(
        "Cluster {cluster} has its bundles in namespace {found}, not in {wanted}: register it without \
         --cluster-namespace"
    )]
    Elsewhere {
        /// Namespace and name.
        cluster: String,
        /// As its status says.
        found: String,
        /// As was asked for.
        wanted: String,
    },
    /// The API server refused, or was not reached.
    #[error("{doing}")]
    Request {
        /// What was tried, on what.
        doing: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// The same for an object with a token in it: the server's words might repeat it.
    #[error("{doing}: the server answered {code} {reason}")]
    Secret {
        /// What was tried, on what.
        doing: String,
        /// HTTP status; 0 without an answer.
        code: u16,
        /// Kubernetes' word for it.
        reason: String,
    },
    /// Somebody else writes it all the time.
    #[error("{object} was written by others each time that it was to be written: try again")]
    Contended {
        /// Kind, namespace and name.
        object: String,
    },
    /// The token controller did nothing.
    #[error(
        "Secret {secret} got no token within {} s: does kube-controller-manager run on the management cluster? \
         With --ttl the API server itself makes one", .waited.as_secs()
    )]
    NoToken {
        /// Namespace and name.
        secret: String,
        /// How long.
        waited: Duration,
    },
    /// A token request was answered without one.
    #[error("the API server answered the request for a token of {account} without a token")]
    EmptyToken {
        /// Namespace and name.
        account: String,
    },
    /// There is none to be found.
    #[error("there is no token of cluster {cluster}: register it first, or give one with --token-file")]
    NotRegistered {
        /// Namespace and name.
        cluster: String,
    },
    /// The new credentials are of no use; the old ones stay.
    #[error("the new credentials do not work, and the old ones were left alone: {cause}")]
    Useless {
        /// What was tried, and the answer.
        cause: String,
    },
    /// An object that this program made is not one: cannot happen.
    #[error("make {object}")]
    Form {
        /// Kind and name.
        object: String,
        /// Which field.
        #[source]
        source: serde_json::Error,
    },
}

impl UnmanagedError {
    /// For `map_err` behind a request.
    pub(super) fn request(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Request { doing, source: Box::new(source) }
    }

    /// The same where the object holds a token.
    pub(super) fn secret(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| match source {
            kube::Error::Api(status) => {
                Self::Secret { doing, code: status.code, reason: status.reason.clone() }
            }
            // Nothing came back that could repeat it.
            other => Self::Request { doing, source: Box::new(other) },
        }
    }
}
