// SPDX-License-Identifier: Apache-2.0
//! Secrets of the cluster namespace.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::{Upstream, UpstreamError};

/// Says where bundles are stored that have no Secret of their own. Fleet's default.
const STORAGE_SECRET: &str = "ocistorage";

impl Upstream {
    /// Live read of a Secret.
    pub async fn secret(&self, name: &str) -> Result<Secret, UpstreamError> {
        let object = || format!("secret {}/{name}", self.namespace);
        let secrets: Api<Secret> = Api::namespaced(self.client(), &self.namespace);
        match self.noted(secrets.get(name)).await {
            Err(_) => Err(UpstreamError::Timeout { object: object() }),
            Ok(found) => {
                found.map_err(|source| UpstreamError::Read { object: object(), source: Box::new(source) })
            }
        }
    }

    /// The Secret that says where the bundle of this manifest id is stored, and its name: one of the id's name, or
    /// else the one for all.
    pub async fn storage_secret(&self, id: &str) -> Result<(String, Secret), UpstreamError> {
        match self.secret(id).await {
            Err(own) if is_absent(&own) => match self.secret(STORAGE_SECRET).await {
                // The one that the controller should have written.
                Err(shared) if is_absent(&shared) => Err(own),
                shared => Ok((STORAGE_SECRET.to_owned(), shared?)),
            },
            own => Ok((id.to_owned(), own?)),
        }
    }
}

fn is_absent(error: &UpstreamError) -> bool {
    let UpstreamError::Read { source, .. } = error else { return false };
    matches!(&**source, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::telemetry::scripted;

    #[tokio::test(start_paused = true)]
    async fn a_bundle_without_a_secret_of_its_own_is_stored_where_all_are() {
        let (client, mut server) = scripted::client();
        let upstream = Upstream::with_client(client, "c1".into());
        let own = upstream.clone();
        let asked = tokio::spawn(async move { own.storage_secret("s-1").await });
        let call = server.next().await;
        assert_eq!(call.line(), "GET /api/v1/namespaces/c1/secrets/s-1");
        call.refuse(404, "NotFound");
        let call = server.next().await;
        assert_eq!(call.line(), "GET /api/v1/namespaces/c1/secrets/ocistorage");
        call.answer(200, &json!({"metadata": {"name": "ocistorage"}, "type": "t"}));
        let (name, secret) = asked.await.unwrap().unwrap();
        assert_eq!((&*name, secret.type_.as_deref()), ("ocistorage", Some("t")));

        let asked = tokio::spawn(async move { upstream.storage_secret("s-1").await });
        server.next().await.refuse(404, "NotFound");
        server.next().await.refuse(404, "NotFound");
        let error = asked.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "cannot read secret c1/s-1 on the management cluster");
    }
}
