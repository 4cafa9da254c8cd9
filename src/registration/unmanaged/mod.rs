// SPDX-License-Identifier: Apache-2.0
//! Registration without a controller: plain objects on both sides, printed or applied.
//!
//! The management cluster gets a Cluster that Fleet's controller leaves alone, the namespace of its BundleDeployments,
//! and an account with exactly the rights that Fleet gives its agents. The other cluster gets Secret and ConfigMap
//! `fleet-agent`, as if the managed flow had ended there.

mod account;
mod deployment;
mod downstream;
mod error;
mod existing_cluster;
mod flow;
mod held;
mod token;
mod upstream;
mod write;

use std::collections::BTreeMap;

use crate::api::names;

pub use account::{ACCOUNT, CONTENT_ROLE, UNIT_ROLE};
pub use downstream::{
    ACCOUNT as AGENT_ACCOUNT, Access, Settings as DownstreamSettings, objects as downstream_objects,
    secret as downstream_secret,
};
pub use error::UnmanagedError;
pub use existing_cluster::{AGENT_BUNDLE_LABEL, keep_agent_bundle_away};
pub use flow::{Clusters, Report, Wanted, locate, register, revoke, rotate};
pub use held::{Held, held};
pub use token::{Lifetime, to_print as token_to_print};
pub use upstream::{objects as upstream_objects, rights, status_patch, token_secret};
pub use write::{Done, Outcome};

/// Label of a Cluster: Fleet's controller makes nothing for it (no namespace, no import, no agent).
pub const MANAGEMENT_LABEL: &str = "fleet.cattle.io/cluster-management";
/// Where Clusters are registered unless the user says otherwise: Fleet's.
pub const REGISTRATION_NAMESPACE: &str = "fleet-default";
/// The same for a cluster whose bundles come from itself.
pub const LOCAL_REGISTRATION_NAMESPACE: &str = "fleet-local";
/// Where the agent lives: Fleet's.
pub const AGENT_NAMESPACE: &str = "cattle-fleet-system";
/// Name of a token's Secret where it is printed.
pub const TOKEN_SECRET: &str = "flotilla-agent-token";

/// What is to be registered, and under which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the Cluster.
    pub name: String,
    /// Its namespace: the registration namespace.
    pub namespace: String,
    /// Where its BundleDeployments are.
    pub cluster_namespace: String,
    /// Labels of the Cluster, for the targets of bundles.
    pub labels: BTreeMap<String, String>,
    /// The agent's namespace in its own cluster.
    pub agent_namespace: String,
    /// The account of the agent's Pods there.
    pub agent_account: String,
    /// Whose account it is that reads and claims.
    pub identity: Identity,
}

/// Whose account the agent uses on the management cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// One of its own, in the cluster namespace, with a token.
    Own,
    /// The account of its Pod, since the management cluster is its own cluster: no token is kept anywhere.
    Pod,
}

impl Plan {
    /// Fills in Fleet's names where none is given, and refuses what no API server would take.
    pub fn new(
        name: &str,
        namespace: &str,
        cluster_namespace: Option<&str>,
        labels: BTreeMap<String, String>,
        agent_namespace: &str,
        identity: Identity,
    ) -> Result<Self, UnmanagedError> {
        let cluster_namespace =
            cluster_namespace.map_or_else(|| names::cluster_namespace(namespace, name), str::to_owned);
        for (what, text, limit) in [
            ("the name of a cluster", name, 253),
            ("a namespace", namespace, 63),
            ("a namespace", &cluster_namespace, 63),
            ("a namespace", agent_namespace, 63),
        ] {
            if !is_name(text, limit) {
                return Err(UnmanagedError::Name { what, text: text.to_owned() });
            }
        }
        Ok(Self {
            agent_account: AGENT_ACCOUNT.to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            cluster_namespace,
            labels,
            agent_namespace: agent_namespace.to_owned(),
            identity,
        })
    }
}

impl Plan {
    /// The same for Pods that run under another account.
    pub fn with_agent_account(mut self, account: &str) -> Result<Self, UnmanagedError> {
        if !is_name(account, 253) {
            return Err(UnmanagedError::Name { what: "the name of an account", text: account.to_owned() });
        }
        account.clone_into(&mut self.agent_account);
        Ok(self)
    }
}

/// RFC 1123, as Kubernetes has it: lower-case letters, digits and `-`, in names also `.`, the ends being no signs.
fn is_name(text: &str, limit: usize) -> bool {
    let inner = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || (byte == b'.' && limit > 63)
    };
    let edge =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= limit && bytes.iter().all(|&byte| inner(byte)) && edge(bytes.first()) && edge(bytes.last())
}

#[cfg(test)]
mod tests;
