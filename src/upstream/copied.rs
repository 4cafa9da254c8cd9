// SPDX-License-Identifier: Apache-2.0
//! Secrets and ConfigMaps beside the BundleDeployments, to be copied downstream.

use http::Request;
use serde_json::Value;

use super::{Upstream, UpstreamError};
use crate::downstream::{
    copies::{Copied, Source},
    server::push_segment,
};

impl Upstream {
    /// Live read of what is to be copied, from the cluster namespace.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub async fn source(&self, kind: Copied, name: &str) -> Result<Source, UpstreamError> {
        let object = || format!("{kind} {}/{name}", self.namespace);
        let mut path = format!("/api/v1/namespaces/{}/{}/", self.namespace, kind.plural());
        push_segment(&mut path, name);
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError);
        let client = self.client();
        let call = async { client.request::<Value>(request?).await };
        match self.noted(call).await {
            Err(_) => Err(UpstreamError::Timeout { object: object() }),
            Ok(Err(source)) => Err(UpstreamError::Read { object: object(), source: Box::new(source) }),
            Ok(Ok(found)) => Ok(Source::new(kind, name, found)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::telemetry::{chain, scripted};

    #[tokio::test(start_paused = true)]
    async fn a_source_stands_beside_the_units() {
        let (client, mut server) = scripted::client();
        let upstream = Upstream::with_client(client, "c1".into());
        let asked = tokio::spawn(async move {
            let found = upstream.source(Copied::ConfigMap, "m").await;
            (found, upstream.source(Copied::Secret, "s/../../x").await)
        });
        let call = server.next().await;
        assert_eq!(call.line(), "GET /api/v1/namespaces/c1/configmaps/m");
        call.answer(200, &json!({"metadata": {"name": "m"}, "data": {"k": "v"}}));
        let call = server.next().await;
        assert_eq!(call.line(), "GET /api/v1/namespaces/c1/secrets/s%2F..%2F..%2Fx");
        call.refuse(404, "NotFound");
        let (found, missing) = asked.await.unwrap();
        assert_eq!(format!("{:?}", found.unwrap()), "configmap m");
        assert!(chain(&missing.unwrap_err()).starts_with("cannot read secret c1/s"));
    }
}
