// SPDX-License-Identifier: Apache-2.0
//! `flotilla render`: what would be applied.

use std::{io::Write, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{
    cluster::{ClusterFlags, DownstreamFlags},
    error::CliError,
    output,
    unit::{self, Inputs, UnitFlags},
};
use crate::{
    downstream::Downstream,
    render::{
        self, Rendered,
        engine::{Engine, EngineConfig},
        yaml_text,
    },
};

/// One request's limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Flags of `flotilla render`.
#[derive(Debug, Args)]
pub struct RenderVerb {
    /// What is rendered.
    #[command(flatten)]
    pub unit: UnitFlags,
    /// Form of the output [default: the release's manifest, as YAML].
    #[arg(short, long, value_enum)]
    pub output: Option<Form>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// The cluster below: its version, what it serves, what templates look up, the release's history.
    #[command(flatten)]
    pub downstream: DownstreamFlags,
}

/// Forms of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// YAML documents.
    Yaml,
    /// A List, as JSON.
    Json,
}

/// Renders and prints. `warn` gets sentences for standard error.
pub async fn run(
    verb: &RenderVerb,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    now: DateTime<Utc>,
) -> Result<(), CliError> {
    let engine = engine()?;
    let units = unit::read(&verb.unit, &verb.cluster, &engine, warn).await?;
    let below = downstream(&verb.downstream, now).await?;
    let inputs = Inputs { engine: &engine, below: below.as_ref(), flags: &verb.unit };
    let blind = |unit: &unit::Unit| render::has_templates(&unit.manifest, &unit.bd.options());
    if below.is_none() && units.iter().any(blind) {
        warn("without --downstream-kubeconfig templates see no cluster and the release's first revision");
    }
    let mut all = Vec::new();
    for unit in &units {
        all.push(unit::rendered(&inputs, unit).await?.0);
    }
    match verb.output.unwrap_or(Form::Yaml) {
        Form::Yaml => output::write(out, &all.iter().map(text).collect::<String>()),
        Form::Json => {
            let items: Vec<&Value> = all.iter().flat_map(values).collect();
            let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
            let text = serde_json::to_string_pretty(&list);
            output::write(out, &(text.map_err(|error| CliError::Print(Box::new(error)))? + "\n"))
        }
    }
}

/// The cluster below, where it is named.
pub(super) async fn downstream(
    flags: &DownstreamFlags,
    now: DateTime<Utc>,
) -> Result<Option<Downstream>, CliError> {
    let client = flags.client().await?;
    Ok(client.map(|client| Downstream::new(client, REQUEST_TIMEOUT, Arc::new(move || now))))
}

pub(super) fn engine() -> Result<Engine, CliError> {
    Engine::start(EngineConfig::default()).map_err(CliError::failed("start the engine that reads manifests"))
}

/// In the order in which they go to the cluster: CRDs of charts, the manifest, hooks.
fn text(rendered: &Rendered) -> String {
    let mut text = String::new();
    for crd in &rendered.crds {
        text.push_str(&format!("---\n# CRD of the chart, applied first\n{}", yaml_text(&crd.value)));
    }
    text.push_str(&rendered.manifest);
    for hook in &rendered.hooks {
        let events: Vec<&str> = hook.events.iter().map(|event| event.as_str()).collect();
        let events = events.join(",");
        text.push_str(&format!(
            "---\n# Hook: {events} (weight {})\n{}",
            hook.weight,
            yaml_text(&hook.object.value)
        ));
    }
    text
}

fn values(rendered: &Rendered) -> impl Iterator<Item = &Value> {
    let hooks = rendered.hooks.iter().map(|hook| &hook.object);
    rendered.crds.iter().chain(&rendered.objects).chain(hooks).map(|object| &object.value)
}
