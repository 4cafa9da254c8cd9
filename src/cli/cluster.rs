// SPDX-License-Identifier: Apache-2.0
//! Which cluster and namespace a verb talks to, from flags and kubeconfig.

use std::path::PathBuf;

use clap::Args;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use super::error::CliError;
use crate::upstream::{configuration, set_proxy};

/// Flags that choose a cluster.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterFlags {
    /// The cluster namespace [default: the context's].
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Kubeconfig of the upstream cluster [env: KUBECONFIG] [default: ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// Flags that choose the cluster that bundles are deployed to.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct DownstreamFlags {
    /// Kubeconfig of the cluster that the bundles are deployed to.
    #[arg(long, value_name = "FILE")]
    pub downstream_kubeconfig: Option<PathBuf>,
    /// Context in that kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", requires = "downstream_kubeconfig")]
    pub downstream_context: Option<String>,
}

impl DownstreamFlags {
    /// A client for that cluster; `None` where none is named. It is never guessed.
    pub async fn client(&self) -> Result<Option<Client>, CliError> {
        let Some(kubeconfig) = &self.downstream_kubeconfig else { return Ok(None) };
        let flags = ClusterFlags {
            kubeconfig: Some(kubeconfig.clone()),
            context: self.downstream_context.clone(),
            ..ClusterFlags::default()
        };
        flags.client().await.map(Some)
    }
}

impl ClusterFlags {
    /// A client for the cluster.
    pub async fn client(&self) -> Result<Client, CliError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match self.load()? {
            Some(kubeconfig) => configuration(kubeconfig, &options)
                .await
                .map_err(|error| CliError::Kubeconfig(Box::new(error)))?,
            None => {
                let mut config = Config::incluster().map_err(|error| {
                    CliError::Refused(format!("there is no kubeconfig and no pod account: {error}"))
                })?;
                let unset = set_proxy(&mut config, None);
                unset.map_err(|error| CliError::Kubeconfig(Box::new(error.into())))?;
                config
            }
        };
        Client::try_from(config).map_err(CliError::server("set up the client"))
    }

    /// The namespace given, or the context's.
    pub fn namespace(&self) -> Result<String, CliError> {
        if let Some(namespace) = self.namespace.as_ref().filter(|namespace| !namespace.is_empty()) {
            return Ok(namespace.clone());
        }
        let kubeconfig = self.load()?.unwrap_or_default();
        context_namespace(&kubeconfig, self.context.as_deref()).ok_or_else(|| {
            CliError::Refused("no namespace: give the cluster namespace with --namespace".to_owned())
        })
    }

    /// The kubeconfig as it is; `None`: no file named and none in the usual places.
    pub fn kubeconfig(&self) -> Result<Option<Kubeconfig>, CliError> {
        self.load()
    }

    fn load(&self) -> Result<Option<Kubeconfig>, CliError> {
        use KubeconfigError::{FindPath, ReadConfig};
        let failed = |error: KubeconfigError| CliError::Kubeconfig(Box::new(error.into()));
        if let Some(path) = &self.kubeconfig {
            return Kubeconfig::read_from(path).map(Some).map_err(failed);
        }
        match Kubeconfig::read() {
            Ok(kubeconfig) => Ok(Some(kubeconfig)),
            Err(FindPath) => Ok(None),
            Err(ReadConfig(error, _)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

fn context_namespace(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == name)?.context.as_ref()?;
    context.namespace.clone().filter(|namespace| !namespace.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "
current-context: one
contexts:
- {name: one, context: {cluster: c, user: u, namespace: ns-one}}
- {name: two, context: {cluster: c, user: u}}
";

    #[test]
    fn the_namespace_is_the_flags_or_the_contexts_but_never_a_guess() {
        let kubeconfig = Kubeconfig::from_yaml(KUBECONFIG).unwrap();
        assert_eq!(context_namespace(&kubeconfig, None).as_deref(), Some("ns-one"));
        assert_eq!(context_namespace(&kubeconfig, Some("two")), None);
        assert_eq!(context_namespace(&kubeconfig, Some("three")), None);
        let flags = ClusterFlags { namespace: Some("given".into()), ..ClusterFlags::default() };
        assert_eq!(flags.namespace().unwrap(), "given");
    }

    #[test]
    fn a_kubeconfig_that_was_named_must_exist() {
        let flags = ClusterFlags { kubeconfig: Some("/no/such/file".into()), ..ClusterFlags::default() };
        assert!(matches!(flags.namespace(), Err(CliError::Kubeconfig(_))));
    }
}
