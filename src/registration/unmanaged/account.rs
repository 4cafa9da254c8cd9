// SPDX-License-Identifier: Apache-2.0
//! The agent's account on the management cluster, and the names of what gives it its rights.

use super::{Identity, Plan};
use crate::api::names::safe_concat_name;

/// Name of the account in the cluster namespace.
pub const ACCOUNT: &str = "flotilla-agent";
/// Fleet's ClusterRole, shared by all clusters: BundleDeployments and what they refer to.
pub const UNIT_ROLE: &str = "fleet-bundle-deployment";
/// Fleet's ClusterRole, shared by all clusters: Contents.
pub const CONTENT_ROLE: &str = "fleet-content";

impl Plan {
    /// Namespace and name of the account.
    pub fn account(&self) -> (&str, &str) {
        match self.identity {
            Identity::Own => (&self.cluster_namespace, ACCOUNT),
            Identity::Pod => (&self.agent_namespace, &self.agent_account),
        }
    }

    /// The user that audit logs name.
    pub fn user(&self) -> String {
        let (namespace, name) = self.account();
        format!("system:serviceaccount:{namespace}:{name}")
    }

    /// The Role for the check-in and its binding, in the registration namespace, where other clusters have theirs.
    pub(super) fn check_in_role(&self) -> String {
        safe_concat_name(&[ACCOUNT, &self.name])
    }

    /// The one binding that belongs to no namespace.
    pub(super) fn content_binding(&self) -> String {
        safe_concat_name(&[ACCOUNT, "content", &self.cluster_namespace])
    }

    /// `namespace/name`, for people.
    pub fn cluster(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
