// SPDX-License-Identifier: Apache-2.0
//! Why the managed flow cannot go on. It is tried again after a minute, and at once when a Secret changes.

use super::super::existing::RegistrationError;
use crate::upstream::{ConfigError, UpstreamError};

/// What stands in the way.
#[derive(Debug, thiserror::Error)]
pub enum ManagedError {
    /// A Secret of the agent's namespace could not be read or written.
    #[error("cannot {verb} Secret {name} in the agent's namespace")]
    Local {
        /// What was tried.
        verb: &'static str,
        /// On which Secret.
        name: &'static str,
        /// The API's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// Secret `fleet-agent` could not be looked at.
    #[error("cannot look whether another replica was faster")]
    Existing(#[source] Box<RegistrationError>),
    /// A key is missing or empty.
    #[error("Secret fleet-agent-bootstrap has no key {0:?}")]
    Key(&'static str),
    /// Not YAML. Its text is not repeated: it holds a token.
    #[error("key \"values\" of Secret fleet-agent-bootstrap is not YAML of keys and texts")]
    Values,
    /// Without an authority there is nothing to trust.
    #[error(
        "agentTLSMode is strict (the default) and Secret fleet-agent-bootstrap has no apiServerCA: add the \
         authority's certificate, or set agentTLSMode to system-store in ConfigMap fleet-agent"
    )]
    NoAuthority,
    /// The cluster has no identity.
    #[error("cannot read namespace kube-system, whose uid is this cluster's identity")]
    Identity(#[source] Box<kube::Error>),
    /// Peers replaced the intent again and again.
    #[error("other replicas keep replacing Secret flotilla-registration")]
    Busy,
    /// What the bootstrap Secret says makes no configuration.
    #[error("Secret fleet-agent-bootstrap makes no valid kubeconfig")]
    Config(#[source] ConfigError),
    /// No client.
    #[error("cannot make a client for the management cluster")]
    Client(#[source] kube::Error),
    /// The token is refused.
    #[error(
        "the management cluster refuses the token of Secret fleet-agent-bootstrap, so ClusterRegistration {request} \
         is not made or not granted: the token may have expired; make a new ClusterRegistrationToken and put its \
         values into the Secret"
    )]
    TokenRefused {
        /// Namespace and name.
        request: String,
        /// The API's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The request could not be made.
    #[error("cannot create ClusterRegistration {request}")]
    Create {
        /// Namespace and name.
        request: String,
        /// The API's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// What was granted could not be read.
    #[error("cannot read the credential Secret {secret} on the management cluster")]
    Granted {
        /// Namespace and name.
        secret: String,
        /// The API's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// What was granted is of no use.
    #[error("the credential Secret {secret} on the management cluster has no key {key:?}")]
    GrantedKey {
        /// Namespace and name.
        secret: String,
        /// The key.
        key: &'static str,
    },
    /// The granted credentials make no client.
    #[error("cannot use the granted credentials")]
    Upstream(#[source] UpstreamError),
    /// No answer of the controller.
    #[error(
        "ClusterRegistration {request} was not granted within {minutes} minutes: does Fleet's controller run, and \
         does the Cluster get its namespace? Another one is made"
    )]
    NotGranted {
        /// Namespace and name.
        request: String,
        /// How long.
        minutes: u64,
    },
}

impl ManagedError {
    pub(super) fn local(verb: &'static str, name: &'static str, source: kube::Error) -> Self {
        Self::Local { verb, name, source: Box::new(source) }
    }

    pub(super) fn existing(source: RegistrationError) -> Self {
        Self::Existing(Box::new(source))
    }
}
