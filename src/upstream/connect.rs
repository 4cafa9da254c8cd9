// SPDX-License-Identifier: Apache-2.0
//! Clients that send each request once.

use std::path::Path;

use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file is of no use.
    #[error("cannot use the kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    /// Neither a file nor a pod's account.
    #[error("no kubeconfig given, and this is not a pod with an account")]
    InCluster(#[source] InClusterError),
    /// What they say makes no client.
    #[error("cannot make a client")]
    Client(#[source] kube::Error),
}

/// A client for the cluster that a kubeconfig names, or that this pod runs in.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(ConnectError::Kubeconfig)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(ConnectError::Kubeconfig)?
        }
        None => Config::incluster().map_err(ConnectError::InCluster)?,
    };
    sending_once(config).map_err(ConnectError::Client)
}

/// A client without retries of its own: every write carries a precondition that its own repetition would trip over, so
/// that a claim that was won would look like one that was lost.
pub(super) fn sending_once(mut config: Config) -> kube::Result<Client> {
    config.default_retry = false;
    Client::try_from(config)
}
