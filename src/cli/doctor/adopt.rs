// SPDX-License-Identifier: Apache-2.0
//! `flotilla doctor --adopt`: what the first replica would do with each bundle, before there is one.

use std::{io::Write, sync::Arc, time::Duration};

use kube::{Api, ResourceExt, api::ListParams};
use serde::Serialize;

use super::{DoctorForm, DoctorVerb, Now, print_json};
use crate::{
    agent::{Outlook, Prospect, foresee},
    api::BundleDeployment,
    cli::{error::CliError, output},
    downstream::Downstream,
    registration,
    render::engine::{Engine, EngineConfig},
    telemetry::chain,
    upstream::{Upstream, sources::Sources},
};

/// One request's limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Line {
    bundle: String,
    #[serde(flatten)]
    prospect: Prospect,
}

/// Lists all bundles of the cluster.
pub(super) async fn run(verb: &DoctorVerb, out: &mut dyn Write, now: Now<'_>) -> Result<(), CliError> {
    let ended = |error: Box<dyn std::error::Error + Send + Sync>| CliError::Ended(error);
    let local = verb.downstream().client().await?;
    let registration =
        registration::existing(&local, &verb.namespace).await.map_err(|error| ended(Box::new(error)))?;
    let upstream =
        Upstream::connect(registration.kubeconfig).await.map_err(|error| ended(Box::new(error)))?;
    let engine = Engine::start(EngineConfig::default()).map_err(|error| ended(Box::new(error)))?;
    let date = now();
    let downstream = Downstream::new(local, REQUEST_TIMEOUT, Arc::new(move || date));
    let at = Outlook {
        upstream: &upstream,
        sources: &Sources::new(engine.clone()),
        downstream: &downstream,
        engine: &engine,
        scope: &verb.agent_scope,
        agent_namespace: &verb.namespace,
    };
    let namespace = upstream.namespace();
    let units: Api<BundleDeployment> = Api::namespaced(upstream.client(), namespace);
    let listing = format!("list BundleDeployments in {namespace}");
    let units = units.list(&ListParams::default()).await.map_err(CliError::server(listing))?.items;
    let mut lines = Vec::new();
    for unit in &units {
        // One that cannot be foreseen does not hide the others.
        let prospect = match foresee(&at, unit, &units).await {
            Ok(prospect) => prospect,
            Err(error) => Prospect::Fails(chain(&error)),
        };
        lines.push(Line { bundle: unit.name_any(), prospect });
    }
    if verb.output == Some(DoctorForm::Json) {
        return print_json(out, &lines);
    }
    let width = lines.iter().map(|line| line.bundle.len()).max().unwrap_or(0);
    let text: String = lines
        .iter()
        .map(|line| {
            let (action, why) = words(&line.prospect);
            format!("{:<width$}  {action:<10}  {why}\n", line.bundle)
        })
        .collect();
    output::write(out, &text)
}

fn words(prospect: &Prospect) -> (&'static str, &str) {
    match prospect {
        Prospect::Untouched(why) => ("untouched", why),
        Prospect::Stamped(why) => ("stamped", why),
        Prospect::Redeployed(why) => ("redeployed", why),
        Prospect::Waits(why) => ("waits", why),
        Prospect::Fails(why) => ("fails", why),
        Prospect::Refused(why) => ("refused", why),
    }
}
