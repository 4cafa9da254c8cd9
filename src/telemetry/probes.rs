// SPDX-License-Identifier: Apache-2.0
//! `/livez`, `/healthz`, `/readyz` and `/metrics` over plain HTTP.
//!
//! *Live* means that the process answers. *Ready* means that every part that reported is well: the session is renewed,
//! caches are filled, the engine answers. A replica that is not ready says which part and why, on the endpoint and in
//! its log.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
};

use axum::{
    Router,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::metrics::{CONTENT_TYPE, Metrics};

/// What each part of the process says about itself. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<RwLock<BTreeMap<&'static str, Result<(), String>>>>);

impl Health {
    /// A process with these parts, none of which has reported: not ready.
    pub fn new(parts: &[&'static str]) -> Self {
        let unknown = || Err("has not reported yet".to_owned());
        Self(Arc::new(RwLock::new(parts.iter().map(|part| (*part, unknown())).collect())))
    }

    /// Records what a part says: `Err` carries one line for people, without secret values. A change is logged.
    pub fn set(&self, part: &'static str, state: Result<(), String>) {
        let mut parts = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if parts.get(part) == Some(&state) {
            return;
        }
        match &state {
            Ok(()) => info!(part, "part is ready"),
            Err(cause) => warn!(part, %cause, "part is not ready"),
        }
        parts.insert(part, state);
    }

    /// Whether every part is well. A process of which nothing reported is not ready.
    pub fn is_ready(&self) -> bool {
        let parts = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !parts.is_empty() && parts.values().all(Result::is_ok)
    }

    /// One line a part, in the style of Kubernetes' own components.
    fn report(&self) -> String {
        let parts = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if parts.is_empty() {
            return "[-]start failed: nothing has reported yet\n".to_owned();
        }
        let line = |(part, state): (&&str, &Result<(), String>)| match state {
            Ok(()) => format!("[+]{part} ok\n"),
            Err(reason) => format!("[-]{part} failed: {reason}\n"),
        };
        parts.iter().map(line).collect()
    }
}

/// Where to listen. `:8080` is all interfaces, `127.0.0.1:8080` one, `0` none. Equal addresses share one server.
#[derive(Clone, Copy, Debug)]
pub struct Addresses<'a> {
    /// `/metrics`; Fleet's agent uses `:8080`.
    pub metrics: &'a str,
    /// `/livez`, `/healthz`, `/readyz`; Fleet's agent uses `:8081`.
    pub probes: &'a str,
}

/// Where the process listens now; `None` where it was told not to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Of `/metrics`.
    pub metrics: Option<SocketAddr>,
    /// Of the probes.
    pub probes: Option<SocketAddr>,
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The text is no address.
    #[error("{0:?} is not an address to listen on: use :8080, 127.0.0.1:8080, or 0 for none")]
    Address(String),
    /// The address cannot be listened on; most often another process has the port.
    #[error("cannot listen on {address}")]
    Listen {
        /// As configured.
        address: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
}

/// Listens on both addresses before it returns, so that a taken port stops the start; serves until `stop`.
pub async fn serve(
    addresses: Addresses<'_>,
    health: Health,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<Bound, ServeError> {
    let metric_routes = Router::new().route("/metrics", get(encode)).with_state(metrics);
    let probe_routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(health);
    if addresses.metrics == addresses.probes {
        let shared = start(addresses.probes, metric_routes.merge(probe_routes), &stop).await?;
        return Ok(Bound { metrics: shared, probes: shared });
    }
    let probes = listen(addresses.probes).await?;
    let metrics = start(addresses.metrics, metric_routes, &stop).await?;
    Ok(Bound { metrics, probes: spawn(probes, probe_routes, &stop) })
}

async fn start(
    address: &str,
    routes: Router,
    stop: &CancellationToken,
) -> Result<Option<SocketAddr>, ServeError> {
    Ok(spawn(listen(address).await?, routes, stop))
}

async fn listen(address: &str) -> Result<Option<TcpListener>, ServeError> {
    let failed = |source| ServeError::Listen { address: address.to_owned(), source };
    if matches!(address, "0" | "") {
        return Ok(None);
    }
    let Some(port) = address.strip_prefix(':') else {
        let known: SocketAddr = address.parse().map_err(|_| ServeError::Address(address.to_owned()))?;
        return TcpListener::bind(known).await.map(Some).map_err(failed);
    };
    let port: u16 = port.parse().map_err(|_| ServeError::Address(address.to_owned()))?;
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        // A host without IPv6; a taken port is another error and stays one.
        Err(error) if !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.map(Some).map_err(failed)
        }
        other => other.map(Some).map_err(failed),
    }
}

fn spawn(listener: Option<TcpListener>, routes: Router, stop: &CancellationToken) -> Option<SocketAddr> {
    let listener = listener?;
    let address = listener.local_addr().ok();
    let stopped = stop.clone().cancelled_owned();
    tokio::spawn(async move {
        if let Err(cause) = axum::serve(listener, routes).with_graceful_shutdown(stopped).await {
            warn!(%cause, "probe server ended");
        }
    });
    address
}

async fn encode(State(metrics): State<Metrics>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], metrics.encode()).into_response()
}

/// Short unless `?verbose` is given or something is wrong: then every part has its line.
async fn readyz(State(health): State<Health>, RawQuery(query): RawQuery) -> Response {
    let verbose =
        query.is_some_and(|query| query.split('&').any(|word| word.split('=').next() == Some("verbose")));
    match (health.is_ready(), verbose) {
        (true, false) => "ok\n".into_response(),
        (true, true) => format!("{}readyz check passed\n", health.report()).into_response(),
        (false, _) => {
            let text = format!("{}readyz check failed\n", health.report());
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", address.port())).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    async fn started(health: &Health, metrics: &str, probes: &str) -> Result<Bound, ServeError> {
        serve(Addresses { metrics, probes }, health.clone(), Metrics::new(), CancellationToken::new()).await
    }

    #[tokio::test]
    async fn a_replica_is_ready_when_all_its_parts_are_and_says_which_is_not() {
        let health = Health::new(&["session", "engine"]);
        let address = started(&health, "0", "127.0.0.1:0").await.unwrap().probes.unwrap();
        assert_eq!(fetch(address, "/livez").await, (200, "ok\n".into()));
        assert_eq!(fetch(address, "/healthz").await, (200, "ok\n".into()));
        assert_eq!(fetch(address, "/readyz").await.0, 503);

        health.set("session", Ok(()));
        health.set("engine", Err("exited with code 2".into()));
        let (code, text) = fetch(address, "/readyz").await;
        assert_eq!(
            (code, text.as_str()),
            (503, "[-]engine failed: exited with code 2\n[+]session ok\nreadyz check failed\n")
        );

        health.set("engine", Ok(()));
        assert_eq!(fetch(address, "/readyz").await, (200, "ok\n".into()));
        let (code, text) = fetch(address, "/readyz?verbose").await;
        assert_eq!((code, text.as_str()), (200, "[+]engine ok\n[+]session ok\nreadyz check passed\n"));
    }

    #[test]
    fn a_process_of_which_nothing_reported_is_not_ready() {
        let health = Health::default();
        assert!(!health.is_ready());
        assert!(health.report().contains("nothing has reported"));
    }

    #[tokio::test]
    async fn metrics_and_probes_listen_apart_or_share_one_address() {
        let apart = started(&Health::default(), "127.0.0.1:0", ":0").await.unwrap();
        let (metrics, probes) = (apart.metrics.unwrap(), apart.probes.unwrap());
        assert!(fetch(metrics, "/metrics").await.1.contains("flotilla_claims_total"));
        assert_eq!(fetch(metrics, "/readyz").await.0, 404);
        assert_eq!(fetch(probes, "/metrics").await.0, 404);

        let shared = started(&Health::default(), "127.0.0.1:0", "127.0.0.1:0").await.unwrap();
        assert_eq!(shared.metrics, shared.probes);
        assert_eq!(fetch(shared.metrics.unwrap(), "/metrics").await.0, 200);
        assert_eq!(fetch(shared.metrics.unwrap(), "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn zero_listens_nowhere() {
        let bound = started(&Health::default(), "0", "0").await.unwrap();
        assert_eq!(bound, Bound { metrics: None, probes: None });
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_that_names_the_address() {
        let busy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = busy.local_addr().unwrap().to_string();
        let error = started(&Health::default(), &address, "0").await.unwrap_err();
        assert!(error.to_string().contains(&address), "{error}");
        for strange in [":port", "host:80", "8080"] {
            let error = started(&Health::default(), strange, "0").await.unwrap_err();
            assert!(matches!(error, ServeError::Address(_)), "{strange}");
        }
    }
}
