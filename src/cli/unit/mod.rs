// SPDX-License-Identifier: Apache-2.0
//! A unit to look at before it is deployed: from a bundle folder, or as it stands in the management cluster; rendered
//! through the engine as an agent renders it.

mod render;

use std::sync::Arc;

use clap::Args;
use kube::{Api, ResourceExt};

pub use render::{Inputs, rendered};

use super::{
    cluster::ClusterFlags,
    error::CliError,
    plan::{self, Additions},
    source,
};
use crate::{
    agent::Files,
    api::{BundleDeployment, DeploymentId, manifest::Manifest},
    render::{engine::Engine, values},
    upstream::{Upstream, sources::Sources},
};

/// Beginnings of an argument that names a BundleDeployment, `flotilla get -o name`'s among them.
const PREFIXES: [&str; 3] = ["bd/", "bundledeployment/", "bundledeployment.fleet.cattle.io/"];

/// Flags that choose what is rendered, and for which agent.
#[derive(Clone, Debug, Args)]
pub struct UnitFlags {
    /// A bundle folder, a file of Bundle documents, - for standard input, or bd/NAME for a BundleDeployment.
    #[arg(value_name = "DIR|FILE|-|bd/NAME")]
    pub source: String,
    /// Name of the bundle, when it comes from a folder or file [default: its own].
    #[arg(long)]
    pub name: Option<String>,
    /// The agent's namespace; charts' annotations name it.
    #[arg(long, value_name = "NAMESPACE", default_value = "cattle-fleet-system")]
    pub agent_namespace: String,
    /// The agent's scope; ids of deployed objects carry it.
    #[arg(long, value_name = "SCOPE", default_value = "")]
    pub agent_scope: String,
}

/// One unit.
#[derive(Debug)]
pub struct Unit {
    /// As it stands, or as `flotilla apply` would write it.
    pub bd: BundleDeployment,
    /// Its files.
    pub manifest: Arc<Manifest>,
    /// The values of its Secret, where it has one.
    pub values: Option<serde_json::Map<String, serde_json::Value>>,
}

impl Unit {
    /// Its name.
    pub fn name(&self) -> String {
        self.bd.name_any()
    }
}

/// Reads the units chosen, wherever their files are. `warn` gets sentences for standard error.
pub async fn read(
    flags: &UnitFlags,
    cluster: &ClusterFlags,
    engine: &Engine,
    warn: &dyn Fn(&str),
) -> Result<Vec<Unit>, CliError> {
    if let Some(name) = existing(&flags.source) {
        return Ok(vec![standing(name, cluster, engine).await?]);
    }
    let source = source::read(&flags.source)?;
    for warning in &source.warnings {
        warn(warning);
    }
    if flags.name.is_some() && source.bundles.len() > 1 {
        return Err(CliError::Refused(format!("--name fits one bundle, {} has more", flags.source)));
    }
    // A folder needs no management cluster.
    let namespace = cluster.namespace().unwrap_or_default();
    let additions = Additions { namespace, name: flags.name.clone(), ..Additions::default() };
    let units = source.bundles.iter().map(|bundle| {
        let bd = plan::plan(bundle, &additions)?.bundle_deployment;
        let manifest = Arc::new(Manifest { resources: bundle.spec.resources.clone() });
        Ok(Unit { bd, manifest, values: None })
    });
    units.collect()
}

fn existing(source: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| source.strip_prefix(prefix)).filter(|name| !name.is_empty())
}

async fn standing(name: &str, cluster: &ClusterFlags, engine: &Engine) -> Result<Unit, CliError> {
    let namespace = cluster.namespace()?;
    let client = cluster.client().await?;
    let api: Api<BundleDeployment> = Api::namespaced(client.clone(), &namespace);
    let getting = format!("get BundleDeployment {name}");
    let Some(bd) = api.get_opt(name).await.map_err(CliError::server(getting))? else {
        return Err(CliError::Refused(format!("bundledeployments.fleet.cattle.io \"{name}\" not found")));
    };
    let id = DeploymentId::parse(&bd.spec.deployment_id).manifest_id;
    // A HelmOp names its chart instead.
    if bd.spec.deployment_id.is_empty() || (id.is_empty() && bd.spec.helm_chart_options.is_none()) {
        return Err(CliError::Refused(format!("bundle {name}: it has no deployment id yet")));
    }
    let upstream = Upstream::with_client(client, namespace);
    let files = Files {
        object: &bd,
        options: &bd.options(),
        deployment: &bd.spec.deployment_id,
        upstream: &upstream,
        sources: &Sources::new(engine.clone()),
    };
    let manifest = files.manifest().await;
    let manifest = manifest.map_err(CliError::failed(format!("read the files of bundle {name}")))?;
    let values = if bd.spec.values_hash.is_empty() {
        None
    } else {
        let secret = upstream.values_secret(name).await;
        let secret = secret.map_err(CliError::failed(format!("read the values of bundle {name}")))?;
        let values = values::of_secret(&secret, &bd.spec.values_hash);
        Some(values.map_err(CliError::failed(format!("read the values of bundle {name}")))?)
    };
    Ok(Unit { bd, manifest, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_unit_is_named_as_get_names_it_and_everything_else_is_a_path() {
        for (source, name) in [
            ("bd/web", Some("web")),
            ("bundledeployment.fleet.cattle.io/web", Some("web")),
            ("web", None),
            ("./bd/web", None),
            ("bd/", None),
            ("-", None),
        ] {
            assert_eq!(existing(source), name, "{source}");
        }
    }
}
