// SPDX-License-Identifier: Apache-2.0
//! Start and end of a replica: connect, register, announce the session, work, take leave.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::AtomicUsize},
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    args::AgentArgs,
    checkin,
    context::Context,
    memory,
    patience::{self, until_it_passes},
    replica::Replica,
    shutdown,
    surroundings::{self, Clock},
};
use crate::{
    downstream::{
        Downstream,
        accounts::Accounts,
        fleet_lease::{self, FleetLease},
        live::LiveStore,
        session::{SessionConfig, SessionError, SessionLease, Sweeper, watch_pods, watch_sessions},
    },
    monitor::{ErrorStatuses, MappingError},
    protocol::{self, Holder, SessionId},
    registration::{self, Keeper, RegistrationError},
    render::engine::{Engine, EngineConfig, EngineError},
    telemetry::{
        Metrics,
        events::{self, Events, EventsConfig},
        probes::{self, Addresses, Health, ServeError},
    },
    upstream::{self, ConnectError, Upstream, UpstreamError, sources::Sources},
};

/// One downstream request's limit; with it a write of a frozen holder cannot land later than TTL and this.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Looks of monitoring at once.
const MONITORS: usize = 16;
/// Time to delete the session Lease at the very end.
const LEAVE: Duration = Duration::from_secs(2);
/// Time between two looks for Leases that nobody keeps.
const SWEEP: Duration = Duration::from_secs(60);

/// Why an agent ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// This cluster cannot be used.
    #[error("cannot connect to this cluster")]
    Downstream(#[source] ConnectError),
    /// The cluster is not registered.
    #[error("cannot start without a registration")]
    Registration(#[source] RegistrationError),
    /// The management cluster cannot be used.
    #[error("cannot reach the management cluster")]
    Upstream(#[source] UpstreamError),
    /// The error rules cannot be read.
    #[error("cannot read {}", ErrorStatuses::VARIABLE)]
    Mapping(#[source] MappingError),
    /// No engine.
    #[error("cannot start the engine that reads manifests")]
    Engine(#[source] EngineError),
    /// The session could not be announced.
    #[error("cannot announce this replica")]
    Session(#[source] SessionError),
    /// Probes and metrics.
    #[error("cannot serve probes and metrics")]
    Serve(#[source] ServeError),
    /// The Secret is another cluster namespace's by now: everything begins anew.
    #[error("this cluster was registered for another cluster namespace: start again")]
    Moved,
    /// Signals.
    #[error("cannot listen for signals")]
    Signal(#[source] std::io::Error),
}

/// Runs one replica until it is told to stop. Whatever keeps it from working ends it: it never idles.
pub async fn run(args: AgentArgs) -> Result<(), AgentError> {
    for remark in &args.remarks {
        warn!("{remark}");
    }
    let clock = Clock::start();
    let metrics = Metrics::new();
    let health = Health::new(&[
        patience::PART,
        registration::PART,
        "engine",
        "session",
        "sessions",
        "watch",
        fleet_lease::NAME,
    ]);
    // Nothing is owed yet.
    health.set(checkin::PART, Ok(()));
    let stop = CancellationToken::new();
    let addresses = Addresses { metrics: &args.metrics_address, probes: &args.probe_address };
    probes::serve(addresses, health.clone(), metrics.clone(), stop.clone())
        .await
        .map_err(AgentError::Serve)?;

    let client = upstream::client(args.kubeconfig.as_deref()).await.map_err(AgentError::Downstream)?;
    let session_id = SessionId(surroundings::session_id());
    let holder = Holder(args.pod_name.clone().unwrap_or_else(|| format!("flotilla-{session_id}")));
    let home = home(&args);
    let events = Events::start(
        client.clone(),
        EventsConfig { component: events::AGENT, instance: holder.0.clone(), home: home.clone() },
        metrics.clone(),
        stop.clone(),
    );
    let settings = registration::Settings::new(
        &args.namespace,
        &holder.0,
        surroundings::entropy,
        health.clone(),
        registration::Settings::reporting(events.clone(), home.unwrap_or_else(|| secret(&args.namespace))),
    );
    let registration = until_it_passes(&health, async || registration::obtain(&client, &settings).await)
        .await
        .map_err(AgentError::Registration)?;
    until_it_passes(&health, async || registration::agent_config(&client, &args.namespace).await)
        .await
        .map_err(AgentError::Registration)?;
    let upstream = Upstream::connect(registration.kubeconfig.clone()).await.map_err(AgentError::Upstream)?;
    let moved = CancellationToken::new();
    let keeper = Keeper::new(client.clone(), settings, upstream.clone(), &registration, moved.clone());
    let cluster = keeper.cluster();
    tokio::spawn(keeper.run(stop.clone()));
    let errors = match std::env::var(ErrorStatuses::VARIABLE) {
        Ok(json) if !json.is_empty() => ErrorStatuses::with(&json).map_err(AgentError::Mapping)?,
        Ok(_) | Err(_) => ErrorStatuses::default(),
    };
    let errors = Arc::new(errors);

    let engine = Engine::start(EngineConfig::default()).map_err(AgentError::Engine)?;
    tokio::spawn(watch_engine(engine.clone(), health.clone(), metrics.clone()));
    tokio::spawn(memory::give_back());

    let free_slots = Arc::new(AtomicUsize::new(args.workers));
    metrics.set_slots(args.workers, args.workers);
    let replicas = Arc::new(AtomicUsize::new(1));
    let config = SessionConfig {
        namespace: args.namespace.clone(),
        session: session_id.clone(),
        holder: holder.clone(),
        pod_uid: args.pod_uid.clone(),
        cluster_namespace: upstream.namespace().to_owned(),
        scope: args.scope.clone(),
        ttl: args.session_ttl,
        renew: args.session_renew,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        replicas: replicas.clone(),
    };
    let session = until_it_passes(&health, async || {
        SessionLease::start(client.clone(), config.clone(), free_slots.clone()).await
    })
    .await
    .map_err(AgentError::Session)?;
    health.set("session", Ok(()));
    tokio::spawn(watch_session(session.health(), args.session_ttl, health.clone()));
    let fleet_lease = FleetLease::new(client.clone(), &args.namespace, &holder);
    let (lead, hold) = (fleet_lease.lead(), CancellationToken::new());
    let fleet_lease = tokio::spawn(fleet_lease.run(hold.clone()));
    let downstream = Downstream::new(client.clone(), REQUEST_TIMEOUT, Arc::new(move || clock.wall()));
    let phase = shutdown::listen(args.shutdown_grace, moved.clone()).map_err(AgentError::Signal)?;
    let cluster_namespace = upstream.namespace().to_owned();
    info!(
        holder = %holder,
        session = %session_id,
        cluster_namespace,
        cluster = registration.cluster_name,
        slots = args.workers,
        version = env!("CARGO_PKG_VERSION"),
        "replica started"
    );
    let ctx = Arc::new(Context {
        upstream,
        cluster,
        checkin_interval: args.checkin_interval,
        downstream,
        accounts: Accounts::new(&args.namespace),
        live: LiveStore::new(client.clone(), errors.clone(), surroundings::wall),
        sources: Sources::new(engine.clone()),
        engine,
        session_id: session_id.clone(),
        holder,
        session: session.health(),
        session_news: session.news(),
        session_renew: args.session_renew,
        protocol: protocol::Config {
            ttl: args.session_ttl,
            claim_timeout: args.claim_timeout,
            claim_margin: args.claim_margin,
            steal_delay: args.steal_delay,
            absence_grace: args.absence_grace,
            ..protocol::Config::default()
        },
        mass_grace: args.mass_absence_grace,
        holds: super::mass::Holds::default(),
        history: super::history::History::default(),
        agent_namespace: args.namespace.clone(),
        scope: args.scope.clone(),
        slots: args.workers,
        free_slots,
        replicas,
        errors,
        monitors: tokio::sync::Semaphore::new(MONITORS),
        still: Mutex::new(HashMap::new()),
        clock,
        metrics,
        events,
        health: health.clone(),
    });
    let sessions = watch_sessions(client.clone(), &args.namespace, &cluster_namespace, &args.scope);
    let pods = watch_pods(client.clone(), &args.namespace);
    let sweeper = Sweeper::new(
        client,
        &args.namespace,
        &cluster_namespace,
        &args.scope,
        session_id.clone(),
        args.pod_uid.clone(),
    );
    tokio::spawn(sweep(sweeper, stop.clone()));
    Replica::new(ctx).run(sessions, pods, lead, phase).await;

    hold.cancel();
    if tokio::time::timeout(LEAVE, fleet_lease).await.is_err() {
        warn!("Lease {} is left to run out", fleet_lease::NAME);
    }
    // The Lease goes last: until here no peer takes this replica for dead.
    match tokio::time::timeout(LEAVE, session.end()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(cause = upstream::chain(&error), "the session Lease stays behind"),
        Err(_) => warn!("the session Lease stays behind: no answer from the API server"),
    }
    info!(session = %session_id, "replica stopped");
    stop.cancel();
    if moved.is_cancelled() { Err(AgentError::Moved) } else { Ok(()) }
}

/// What Events are about that have no release record to be about: the agent's pod, or its registration.
fn home(args: &AgentArgs) -> Option<ObjectReference> {
    let pod = args.pod_name.clone().zip(args.pod_uid.clone());
    let (kind, name, uid) = match pod {
        Some((name, uid)) => ("Pod", name, Some(uid)),
        None => return None,
    };
    Some(ObjectReference {
        api_version: Some("v1".into()),
        kind: Some(kind.into()),
        namespace: Some(args.namespace.clone()),
        name: Some(name),
        uid,
        ..ObjectReference::default()
    })
}

/// Stands for an agent that runs in no pod.
fn secret(namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Secret".into()),
        namespace: Some(namespace.to_owned()),
        name: Some(registration::SECRET.into()),
        ..ObjectReference::default()
    }
}

/// Without a working engine the replica is not ready and says why.
async fn watch_engine(engine: Engine, health: Health, metrics: Metrics) {
    let mut seen = engine.healthy();
    let mut restarts = engine.restarts();
    loop {
        health.set("engine", seen.clone());
        seen = engine.health_changed(&seen).await;
        for _ in restarts..engine.restarts() {
            metrics.engine_restart();
        }
        restarts = engine.restarts();
    }
}

/// Peers take a replica for dead that could not renew for TTL; it says so itself.
async fn watch_session(session: crate::downstream::session::SessionHealth, ttl: Duration, health: Health) {
    let mut renewals = session.renewals();
    loop {
        match tokio::time::timeout(ttl, renewals.changed()).await {
            Ok(Ok(())) => health.set("session", Ok(())),
            Ok(Err(_)) => return,
            Err(_) => {
                let text = format!("the session Lease could not be renewed for {} s", ttl.as_secs());
                warn!("{text}");
                health.set("session", Err(text));
            }
        }
    }
}

async fn sweep(mut sweeper: Sweeper, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(surroundings::jittered(SWEEP)) => {}
            () = stop.cancelled() => return,
        }
        match sweeper.sweep().await {
            Ok(gone) if !gone.is_empty() => info!(sessions = gone.len(), "removed Leases that nobody keeps"),
            Ok(_) => {}
            Err(error) => warn!(cause = upstream::chain(&error), "cannot look for Leases that nobody keeps"),
        }
    }
}
