// SPDX-License-Identifier: Apache-2.0
//! Clients that send each request once, through the proxy that is meant for their server.

use std::path::Path;

use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use super::proxy::{self, ProxyError};

/// Why a kubeconfig makes no configuration of a client.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The kubeconfig itself.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// The proxy that it, or a variable, names.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file is of no use.
    #[error("cannot use the kubeconfig")]
    Kubeconfig(#[source] ConfigError),
    /// Neither a file nor a pod's account.
    #[error("no kubeconfig given, and this is not a pod with an account")]
    InCluster(#[source] InClusterError),
    /// It is a pod, but its way to the API server is barred.
    #[error("cannot reach the API server with the pod's account")]
    Proxy(#[source] ProxyError),
    /// What they say makes no client.
    #[error("cannot make a client")]
    Client(#[source] kube::Error),
}

/// A client for the cluster that a kubeconfig names, or that this pod runs in.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| ConnectError::Kubeconfig(error.into()))?;
            configuration(file, &KubeConfigOptions::default()).await.map_err(ConnectError::Kubeconfig)?
        }
        None => {
            let mut config = Config::incluster().map_err(ConnectError::InCluster)?;
            set_proxy(&mut config, None).map_err(ConnectError::Proxy)?;
            config
        }
    };
    sending_once(config).map_err(ConnectError::Client)
}

/// What a kubeconfig says, with the proxy of its server.
pub async fn configuration(
    kubeconfig: Kubeconfig,
    options: &KubeConfigOptions,
) -> Result<Config, ConfigError> {
    let given = own_proxy(&kubeconfig, options);
    let mut config = Config::from_custom_kubeconfig(kubeconfig, options).await?;
    set_proxy(&mut config, given.as_deref())?;
    Ok(config)
}

/// Takes the proxy from the variables, unless one is `given`.
pub fn set_proxy(config: &mut Config, given: Option<&str>) -> Result<(), ProxyError> {
    config.proxy_url = proxy::between(&config.cluster_url, given, &|name| std::env::var(name).ok())?;
    Ok(())
}

/// The key `proxy-url` of the cluster that is meant.
fn own_proxy(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> Option<String> {
    let name = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    let context = kubeconfig.contexts.iter().find(|context| Some(&context.name) == name);
    let context = context.and_then(|context| context.context.as_ref());
    let name = options.cluster.as_ref().or(context.map(|context| &context.cluster));
    let cluster = kubeconfig.clusters.iter().find(|cluster| Some(&cluster.name) == name)?;
    cluster.cluster.as_ref()?.proxy_url.clone()
}

/// A client without retries of its own: every write carries a precondition that its own repetition would trip over, so
/// that a claim that was won would look like one that was lost.
pub(super) fn sending_once(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "
current-context: far
clusters:
- {name: far, cluster: {server: 'https://fleet.example', proxy-url: 'http://proxy.example:3128'}}
- {name: near, cluster: {server: 'https://127.0.0.1:6443'}}
- {name: odd, cluster: {server: 'https://fleet.example', proxy-url: 'socks5://user:secret@proxy.example'}}
contexts:
- {name: far, context: {cluster: far}}
- {name: near, context: {cluster: near}}
- {name: odd, context: {cluster: odd}}
";

    #[tokio::test]
    async fn each_context_has_the_proxy_of_its_cluster() {
        let config = async |context: Option<&str>| {
            let kubeconfig = Kubeconfig::from_yaml(KUBECONFIG).unwrap();
            let context = context.map(str::to_owned);
            configuration(kubeconfig, &KubeConfigOptions { context, ..Default::default() }).await
        };
        let proxy = config(None).await.unwrap().proxy_url.unwrap();
        assert_eq!(proxy, "http://proxy.example:3128");
        assert_eq!(config(Some("near")).await.unwrap().proxy_url, None);
        let error = crate::telemetry::chain(&config(Some("odd")).await.unwrap_err());
        assert!(error.contains("socks5://proxy.example") && !error.contains("secret"), "{error}");
    }
}
