// SPDX-License-Identifier: Apache-2.0
//! The values Secret: Fleet's controller keeps a deployment's Helm values in it, under the BundleDeployment's name.

use std::collections::BTreeMap;

use super::{Upstream, UpstreamError};

impl Upstream {
    /// Live read of the values Secret of a BundleDeployment: its contents by key.
    pub async fn values_secret(&self, name: &str) -> Result<BTreeMap<String, Vec<u8>>, UpstreamError> {
        let secret = self.secret(name).await?;
        Ok(secret.data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, bytes.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::telemetry::scripted;

    #[tokio::test(start_paused = true)]
    async fn the_secret_has_the_name_of_its_unit() {
        let (client, mut server) = scripted::client();
        let upstream = Upstream::with_client(client, "c1".into());
        let asked = tokio::spawn(async move { upstream.values_secret("app").await });
        let call = server.next().await;
        assert_eq!(call.line(), "GET /api/v1/namespaces/c1/secrets/app");
        call.answer(200, &json!({"metadata": {"name": "app"}, "data": {"values": "e30="}}));
        let contents = asked.await.unwrap().unwrap();
        assert_eq!(contents, BTreeMap::from([("values".to_owned(), b"{}".to_vec())]));
    }
}
