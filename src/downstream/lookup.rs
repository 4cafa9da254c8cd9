// SPDX-License-Identifier: Apache-2.0
//! Answers the templates' `lookup` from the live cluster, under the identity of the deployment.

use futures::future::BoxFuture;
use serde_json::Value;

use super::{Downstream, kinds::KindError};
use crate::{render::engine::Lookup, telemetry::chain};

/// Looks at one cluster under one identity.
#[derive(Clone)]
pub struct LiveLookup {
    downstream: Downstream,
}

impl LiveLookup {
    /// Looks through `downstream`, whose client decides what may be seen.
    pub fn new(downstream: Downstream) -> Self {
        Self { downstream }
    }
}

impl Lookup for LiveLookup {
    fn lookup<'a>(
        &'a self,
        api_version: &'a str,
        kind: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, String>> {
        Box::pin(async move {
            let resolved = match self.downstream.kinds.resolve(api_version, kind).await {
                Ok(resolved) => resolved,
                Err(KindError::Unknown { .. }) => {
                    // Helm's text; so does Go print a kind.
                    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
                    return Err(format!(
                        "unable to get apiresource from unstructured: {group}/{version}, Kind={kind}: the server \
                         could not find the requested resource"
                    ));
                }
                Err(error) => return Err(chain(&error)),
            };
            let path =
                if name.is_empty() { resolved.collection(namespace) } else { resolved.path(namespace, name) };
            match self.downstream.server.get::<Value>(&path).await {
                Ok(found) => Ok(Some(found)),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(chain(&error)),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::downstream::{
        kinds::KindCache,
        testing::{Exchange, context, discovery, scripted},
    };

    #[tokio::test]
    async fn objects_and_lists_are_read_live_and_what_is_not_there_is_nothing() {
        let mut exchanges = discovery(&[]);
        let secret = json!({"kind": "Secret", "metadata": {"name": "s"}});
        let list = json!({"kind": "NamespaceList", "items": []});
        exchanges.extend([
            Exchange::get("/api/v1/namespaces/ns/secrets/s").answers(secret.clone()),
            Exchange::get("/api/v1/namespaces/ns/secrets/none").missing(),
            Exchange::get("/api/v1/namespaces").answers(list.clone()),
            Exchange::get("/api/v1/namespaces/ns/secrets/no").refuses(
                403,
                "Forbidden",
                "secrets is forbidden",
            ),
        ]);
        exchanges.extend(discovery(&[]));
        let (server, script) = scripted(exchanges);
        let kinds = KindCache::new(server.clone());
        let lookup = LiveLookup::new(Downstream { kinds, ..context(server) });
        assert_eq!(lookup.lookup("v1", "Secret", "ns", "s").await, Ok(Some(secret)));
        assert_eq!(lookup.lookup("v1", "Secret", "ns", "none").await, Ok(None));
        assert_eq!(lookup.lookup("v1", "Namespace", "ns", "").await, Ok(Some(list)));
        assert_eq!(lookup.lookup("v1", "Secret", "ns", "no").await, Err("secrets is forbidden".into()));
        let error = lookup.lookup("gold.example.com/v1", "Nope", "", "n").await.unwrap_err();
        assert!(error.contains("gold.example.com/v1, Kind=Nope: the server could not find"), "{error}");
        script.finished().await;
    }
}
