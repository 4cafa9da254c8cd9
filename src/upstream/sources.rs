// SPDX-License-Identifier: Apache-2.0
//! Secrets and ConfigMaps beside the BundleDeployments, to be copied downstream.

use http::Request;
use serde_json::Value;

use super::{REQUEST_TIMEOUT, Upstream, UpstreamError};
use crate::downstream::copies::{Copied, Source};

impl Upstream {
    /// Live read of what is to be copied, from the cluster namespace.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub async fn source(&self, kind: Copied, name: &str) -> Result<Source, UpstreamError> {
        let object = || format!("{kind} {}/{name}", self.namespace);
        let path = format!("/api/v1/namespaces/{}/{}/{name}", self.namespace, kind.plural());
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError);
        let call = async { self.client.request::<Value>(request?).await };
        match tokio::time::timeout(REQUEST_TIMEOUT, call).await {
            Err(_) => Err(UpstreamError::Timeout { object: object() }),
            Ok(Err(source)) => Err(UpstreamError::Read { object: object(), source: Box::new(source) }),
            Ok(Ok(found)) => Ok(Source::new(kind, name, found)),
        }
    }
}
