// SPDX-License-Identifier: Apache-2.0
//! `flotilla explain`: where a bundle is and why, in plain sentences.

mod claim;
mod drift;
pub mod facts;
mod look;
mod sight;
mod story;
#[cfg(test)]
mod tests;
mod text;

use std::io::Write;

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use kube::Api;

pub use story::explain;
pub use text::text;

use super::{
    cluster::{ClusterFlags, DownstreamFlags},
    error::CliError,
    output,
};
use crate::api::BundleDeployment;
use facts::Facts;

/// Flags of `flotilla explain`.
#[derive(Debug, Args)]
pub struct ExplainVerb {
    /// Name of the bundle.
    pub name: String,
    /// Form of the output [default: sentences].
    #[arg(short, long, value_enum)]
    pub output: Option<Said>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// The cluster below.
    #[command(flatten)]
    pub downstream: DownstreamFlags,
}

/// Forms besides sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Said {
    /// One JSON document.
    Json,
}

/// Looks, and tells.
pub async fn run(verb: &ExplainVerb, out: &mut dyn Write, now: DateTime<Utc>) -> Result<(), CliError> {
    let (namespace, name) = (verb.cluster.namespace()?, &verb.name);
    let upstream = verb.cluster.client().await?;
    let api: Api<BundleDeployment> = Api::namespaced(upstream.clone(), &namespace);
    let getting = format!("get BundleDeployment {name}");
    let Some(bd) = api.get_opt(name).await.map_err(CliError::server(getting))? else {
        return Err(CliError::Refused(format!("bundledeployments.fleet.cattle.io \"{name}\" not found")));
    };
    let dependencies = look::dependencies(&upstream, &bd).await?;
    let below = match verb.downstream.client().await? {
        Some(client) => Some(look::below(client, &bd, now).await),
        None => None,
    };
    let said = explain(&Facts { bd: &bd, dependencies, below: below.as_ref(), now });
    match verb.output {
        None => output::write(out, &text(&said)),
        Some(Said::Json) => {
            let text =
                serde_json::to_string_pretty(&said).map_err(|error| CliError::Print(Box::new(error)))?;
            output::write(out, &(text + "\n"))
        }
    }
}
