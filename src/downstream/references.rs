// SPDX-License-Identifier: Apache-2.0
//! Reads ConfigMaps and Secrets that hold values, live, under the identity of the deployment.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::server::{RequestError, Server, push_segment};
use crate::render::values::{Contents, Holder, ReadError, References};

/// Reads through a server, whose client decides what may be read.
pub struct LiveReferences<'a>(pub &'a Server);

impl References for LiveReferences<'_> {
    fn read<'a>(
        &'a self,
        holder: Holder,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Contents, ReadError>> {
        Box::pin(async move { Ok(contents(self.0, holder, namespace, name).await?) })
    }
}

async fn contents(
    server: &Server,
    holder: Holder,
    namespace: &str,
    name: &str,
) -> Result<Contents, RequestError> {
    let mut path = String::from("/api/v1/namespaces/");
    push_segment(&mut path, namespace);
    path.push_str(match holder {
        Holder::ConfigMap => "/configmaps/",
        Holder::Secret => "/secrets/",
    });
    push_segment(&mut path, name);
    Ok(match holder {
        Holder::ConfigMap => {
            let found: ConfigMap = server.get(&path).await?;
            found.data.unwrap_or_default().into_iter().map(|(key, text)| (key, text.into_bytes())).collect()
        }
        Holder::Secret => {
            let found: Secret = server.get(&path).await?;
            found.data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, bytes.0)).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::downstream::testing::{Exchange, scripted};

    #[tokio::test]
    async fn both_kinds_are_read_and_a_missing_one_is_an_error() {
        let (server, script) = scripted(vec![
            Exchange::get("/api/v1/namespaces/ns/configmaps/c").answers(json!({"data": {"k": "a: 1"}})),
            Exchange::get("/api/v1/namespaces/ns/secrets/s").answers(json!({"data": {"k": "YTogMQ=="}})),
            Exchange::get("/api/v1/namespaces/ns/secrets/none").refuses(
                404,
                "NotFound",
                "secrets \"none\" not found",
            ),
        ]);
        let references = LiveReferences(&server);
        let expected = Contents::from([("k".to_owned(), b"a: 1".to_vec())]);
        assert_eq!(references.read(Holder::ConfigMap, "ns", "c").await.unwrap(), expected);
        assert_eq!(references.read(Holder::Secret, "ns", "s").await.unwrap(), expected);
        let error = references.read(Holder::Secret, "ns", "none").await.unwrap_err();
        assert_eq!(error.to_string(), "secrets \"none\" not found");
        script.finished().await;
    }
}
