// SPDX-License-Identifier: Apache-2.0
//! The companion controller: expires claims that nobody is left to take over.
//!
//! Several may run; the object's resourceVersion decides between them. Agents never depend on it.

pub mod args;
mod reap;
mod watched;

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    controller::args::ControllerArgs,
    protocol::reaper::Limits,
    telemetry::{
        Metrics,
        events::{Events, EventsConfig},
        probes::{self, Addresses, Health, ServeError},
    },
    upstream::{self, ConnectError},
};

/// `reportingComponent` of the controller's Events.
pub const COMPONENT: &str = "flotilla-controller";
/// One request's limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the controller ended.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// No cluster to watch.
    #[error("cannot connect to the management cluster")]
    Connect(#[source] ConnectError),
    /// Probes and metrics.
    #[error("cannot serve probes and metrics")]
    Serve(#[source] ServeError),
    /// Signals.
    #[error("cannot listen for signals")]
    Signal(#[source] std::io::Error),
}

/// Runs until SIGTERM or SIGINT.
pub async fn run(args: ControllerArgs) -> Result<(), ControllerError> {
    let client = upstream::client(args.kubeconfig.as_deref()).await.map_err(ControllerError::Connect)?;
    let metrics = Metrics::new();
    let health = Health::new(&["watch"]);
    let stop = CancellationToken::new();
    let addresses = Addresses { metrics: &args.metrics_address, probes: &args.probe_address };
    probes::serve(addresses, health.clone(), metrics.clone(), stop.clone())
        .await
        .map_err(ControllerError::Serve)?;
    let events = Events::start(
        client.clone(),
        EventsConfig { component: COMPONENT, instance: instance(), home: None },
        metrics.clone(),
        stop.clone(),
    );
    let limits = Limits { claim_timeout: args.claim_timeout, margin: args.claim_margin };
    info!(
        namespace = args.namespace.as_deref().unwrap_or("all"),
        claim_timeout = ?limits.claim_timeout,
        margin = ?limits.margin,
        "controller started"
    );
    let mut terminate = signal(SignalKind::terminate()).map_err(ControllerError::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ControllerError::Signal)?;
    let reaper = reap::Reaper::new(client, limits, metrics, events, health);
    tokio::select! {
        () = reaper.run(args.namespace.as_deref()) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    info!("controller stopped");
    stop.cancel();
    Ok(())
}

fn instance() -> String {
    std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| COMPONENT.to_owned())
}
