// SPDX-License-Identifier: Apache-2.0
//! render

/// One object to deploy.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// As written.
    pub api_version: String,
    /// As written.
    pub kind: String,
    /// As written in the manifest; empty if none.
    pub namespace: String,
    /// As written.
    pub name: String,
    /// With hash label, id annotation and CRD keep policy.
    pub value: serde_json::Value,
}

/// Where objects of a kind live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In namespaces.
    Namespaced,
    /// Beside them.
    Cluster,
}

/// What the cluster knows about kinds.
pub trait Kinds {
    /// Where objects of this kind live; `None` when it is not known.
    fn scope(&self, api_version: &str, kind: &str) -> Option<Scope>;
}

/// Helm's order of kinds.
pub fn install_order(kind: &str) -> usize {
    ["Namespace", "CustomResourceDefinition", "Secret", "ConfigMap", "Service", "Deployment"]
        .iter()
        .position(|known| *known == kind)
        .unwrap_or(usize::MAX)
}
