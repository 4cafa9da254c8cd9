// SPDX-License-Identifier: Apache-2.0
//! Whom to trust upstream: the given authority, or the system's.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::{
    Client,
    client::Body,
    config::{
        AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
    },
};
use serde_json::json;
use tracing::info;

use super::ManagedError;
use crate::upstream::configuration;

/// The mode in which the system's authorities are tried first; any other is `strict`.
const SYSTEM_STORE: &str = "system-store";
/// Of the one request that finds out.
const LIMIT: Duration = Duration::from_secs(10);

/// The authority that goes into the kubeconfig, PEM; `None`: the system's.
///
/// `system-store`: where the system's authorities do, the given one is dropped, so that its end does not cut the agent
/// off. `strict`: only the given one counts, and without one there is nothing to trust.
pub async fn authority(url: &str, given: &str, mode: &str) -> Result<Option<String>, ManagedError> {
    let given = Some(given.to_owned()).filter(|pem| !pem.is_empty());
    if mode == SYSTEM_STORE {
        if is_trusted_by_the_system(url).await {
            return Ok(None);
        }
        info!("the system's authorities do not know the management cluster: the given one is used");
        return Ok(given);
    }
    match given {
        None if url.starts_with("https:") => Err(ManagedError::NoAuthority),
        given => Ok(given),
    }
}

/// Any answer at all proves that the certificate was accepted.
async fn is_trusted_by_the_system(url: &str) -> bool {
    let Ok(client) = client(&kubeconfig(url, None, "", "")).await else { return false };
    let Ok(request) = http::Request::get("/").body(Body::empty()) else { return false };
    matches!(tokio::time::timeout(LIMIT, client.send(request)).await, Ok(Ok(_)))
}

/// A kubeconfig with Fleet's names for cluster, user and context.
pub fn kubeconfig(url: &str, authority: Option<&str>, token: &str, namespace: &str) -> Kubeconfig {
    Kubeconfig {
        clusters: vec![NamedCluster {
            name: "cluster".into(),
            cluster: Some(Cluster {
                server: Some(url.to_owned()),
                certificate_authority_data: authority.map(|pem| STANDARD.encode(pem)),
                ..Cluster::default()
            }),
            ..Default::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: "user".into(),
            auth_info: Some(AuthInfo {
                token: Some(token.to_owned().into()).filter(|_| !token.is_empty()),
                ..AuthInfo::default()
            }),
            ..Default::default()
        }],
        contexts: vec![NamedContext {
            name: "default".into(),
            context: Some(Context {
                cluster: "cluster".into(),
                user: Some("user".into()),
                namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
                ..Context::default()
            }),
            ..Default::default()
        }],
        current_context: Some("default".into()),
        ..Kubeconfig::default()
    }
}

/// The same as text, for the Secret. JSON is YAML, and every value is quoted as it must be.
pub fn text(url: &str, authority: Option<&str>, token: &str, namespace: &str) -> String {
    let mut cluster = json!({"server": url});
    if let Some(pem) = authority {
        cluster["certificate-authority-data"] = STANDARD.encode(pem).into();
    }
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "default",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "default", "context": {
            "cluster": "cluster", "user": "user", "namespace": namespace,
        }}],
    })
    .to_string()
}

/// A client that repeats nothing by itself.
pub async fn client(kubeconfig: &Kubeconfig) -> Result<Client, ManagedError> {
    let mut config = configuration(kubeconfig.clone(), &KubeConfigOptions::default())
        .await
        .map_err(ManagedError::Config)?;
    config.default_retry = false;
    config.connect_timeout = Some(LIMIT);
    Client::try_from(config).map_err(ManagedError::Client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn strict_trusts_the_given_authority_only() {
        let given = authority("https://127.0.0.1:1", "pem", "strict").await.unwrap();
        assert_eq!(given.as_deref(), Some("pem"));
        // Every word but `system-store` is strict.
        let none = authority("https://127.0.0.1:1", "", "unheard-of").await;
        assert!(matches!(none, Err(ManagedError::NoAuthority)));
    }

    #[tokio::test]
    async fn the_given_authority_is_kept_where_the_systems_do_not_do() {
        let kept = authority("https://127.0.0.1:1", "pem", SYSTEM_STORE).await.unwrap();
        assert_eq!(kept.as_deref(), Some("pem"));
    }

    #[test]
    fn the_text_says_what_the_value_does() {
        let text = text("https://up", Some("pem"), "t", "c1");
        let (read, made) =
            (Kubeconfig::from_yaml(&text).unwrap(), kubeconfig("https://up", Some("pem"), "t", "c1"));
        assert_eq!(read.current_context, made.current_context);
        let server = |config: &Kubeconfig| config.clusters[0].cluster.clone().unwrap();
        assert_eq!(server(&read).server, server(&made).server);
        assert_eq!(server(&read).certificate_authority_data, server(&made).certificate_authority_data);
        assert_eq!(read.contexts[0].context.clone().unwrap().namespace.as_deref(), Some("c1"));
    }
}
