// SPDX-License-Identifier: Apache-2.0
//! `Content`: the files of a bundle, cluster scoped, named after their hash.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// The stored manifest of a bundle. It has no `spec`, so it is written out by hand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// Always `fleet.cattle.io/v1alpha1`.
    pub api_version: String,
    /// Always `Content`.
    pub kind: String,
    /// The name is the manifest id.
    pub metadata: ObjectMeta,
    /// Base64 of gzip of the manifest JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Hex SHA-256 of the uncompressed bytes; may be empty.
    #[serde(default, rename = "sha256sum", skip_serializing_if = "String::is_empty")]
    pub sha256sum: String,
    /// References, counted by Fleet's controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ContentStatus>,
}

/// References, counted by Fleet's controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContentStatus {
    /// BundleDeployments that use this content.
    pub reference_count: i64,
}

impl k8s_openapi::Resource for Content {
    const API_VERSION: &'static str = "fleet.cattle.io/v1alpha1";
    const GROUP: &'static str = "fleet.cattle.io";
    const KIND: &'static str = "Content";
    const VERSION: &'static str = "v1alpha1";
    const URL_PATH_SEGMENT: &'static str = "contents";
    type Scope = k8s_openapi::ClusterResourceScope;
}

impl k8s_openapi::Metadata for Content {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
