// SPDX-License-Identifier: Apache-2.0
//! The cluster that templates see when there is none: Helm's own defaults.

use std::sync::Arc;

use flotilla::render::engine::{Capabilities, Lookup};
use futures::future::BoxFuture;
use serde_json::Value;

/// A cluster without objects.
pub struct Nothing;

impl Lookup for Nothing {
    fn lookup<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, String>> {
        Box::pin(async { Ok(None) })
    }
}

/// What Helm assumes without a cluster; `versions` is what it printed of its own.
pub fn capabilities(kube_version: &str, versions: &[String]) -> Arc<Capabilities> {
    Arc::new(Capabilities { kube_version: kube_version.to_owned(), api_versions: versions.to_vec() })
}
