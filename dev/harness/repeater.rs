// SPDX-License-Identifier: Apache-2.0
//! A load balancer that ends TLS, and sends a write that was answered a second time.
//!
//! It stands between a [`Proxy`](super::proxy::Proxy) and its API server, with a certificate of the server's own
//! authority, and passes on every request as it came and every answer as it comes. Clients must say who they are by
//! token: a client certificate ends here.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use axum::body::{Body, Bytes, to_bytes};
use http::{Method, Request, Response, request};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::control_plane::ControlPlane;
use super::proxy::Mode;

/// Between this and the proxy: as much as a socket holds.
const BUFFER: usize = 64 * 1024;

/// What became of writes that were sent a second time.
#[derive(Debug, Default)]
pub struct Repeats {
    /// Answered 2xx once more.
    pub done: AtomicU64,
    /// Answered otherwise: mostly 409, for it was carried out already.
    pub refused: AtomicU64,
    /// Not answered: the connection broke, or its server did.
    pub unanswered: AtomicU64,
}

/// One in front of one API server.
pub struct Repeater {
    target: u16,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    /// What it did so far.
    pub repeats: Repeats,
}

/// When a write is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    No,
    /// Before anything is answered: the client hears what the second was answered.
    First,
    /// While the first answer goes to the client.
    Beside,
}

impl Repeater {
    /// One with a certificate of `plane`'s authority.
    pub fn new(plane: &ControlPlane) -> anyhow::Result<Repeater> {
        let pair = plane.authority.server(None)?;
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())
            .context("reading the repeater's certificate")?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).context("reading its key")?;
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(plane.ca_pem().as_bytes())
            .context("reading the authority's certificate")?;
        roots.add(authority).context("trusting it")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Repeater {
            target: plane.port,
            acceptor: TlsAcceptor::from(Arc::new(server)),
            connector: TlsConnector::from(Arc::new(client)),
            repeats: Repeats::default(),
        })
    }

    /// A connection to the API server through this, to be treated as `mode` says at each request.
    ///
    /// # Errors
    ///
    /// The server accepts none.
    pub async fn connect(self: &Arc<Self>, mode: watch::Receiver<Mode>) -> io::Result<DuplexStream> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target)).await?;
        server.set_nodelay(true)?;
        let (near, far) = tokio::io::duplex(BUFFER);
        let repeater = self.clone();
        // It ends with either of its two connections.
        tokio::spawn(async move {
            // What goes wrong here, each side sees as its connection closed.
            let _ = repeater.serve(far, server, mode).await;
        });
        Ok(near)
    }

    async fn serve(
        self: Arc<Self>,
        client: DuplexStream,
        server: TcpStream,
        mode: watch::Receiver<Mode>,
    ) -> anyhow::Result<()> {
        let client = self.acceptor.accept(client).await?;
        let server = self.connector.connect(ServerName::try_from("127.0.0.1")?, server).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(server)).await?;
        // A task of its own: a repeat may outlive the client.
        let mut driver = tokio::spawn(connection);
        let sender = Arc::new(Mutex::new(sender));
        let service = service_fn(|request| {
            let (repeater, sender) = (self.clone(), sender.clone());
            let again = match *mode.borrow() {
                Mode::Repeat if rand::random() => Again::First,
                Mode::Repeat => Again::Beside,
                _ => Again::No,
            };
            async move { repeater.pass(request, sender.lock_owned().await, again).await }
        });
        let serving =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service);
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            served = &mut serving => served?,
            _ = &mut driver => {
                serving.as_mut().graceful_shutdown();
                serving.await?;
            }
        }
        Ok(())
    }

    /// Passes on one request. The guard keeps a repeat before whatever the connection asks next.
    async fn pass(
        self: Arc<Self>,
        request: Request<Incoming>,
        mut sender: OwnedMutexGuard<SendRequest<Body>>,
        again: Again,
    ) -> anyhow::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let bytes = to_bytes(Body::new(body), usize::MAX).await?;
        let first = send(&mut sender, &head, bytes.clone()).await?;
        if again == Again::No || !is_write(&head.method) || !first.status().is_success() {
            return Ok(first.map(Body::new));
        }
        let (answer, body) = first.into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await?;
        let mut head = head;
        // In an audit log each request has a name of its own.
        head.headers.remove("audit-id");
        if again == Again::First {
            return Ok(self.counted(send(&mut sender, &head, bytes).await)?.map(Body::new));
        }
        tokio::spawn(async move {
            let Ok(second) = self.counted(send(&mut sender, &head, bytes).await) else { return };
            // The connection can be used for the next one only when this is read.
            let _ = to_bytes(Body::new(second.into_body()), usize::MAX).await;
        });
        Ok(Response::from_parts(answer, Body::from(body)))
    }

    fn counted<T, E>(&self, answer: Result<Response<T>, E>) -> Result<Response<T>, E> {
        let count = match &answer {
            Ok(answer) if answer.status().is_success() => &self.repeats.done,
            Ok(_) => &self.repeats.refused,
            Err(_) => &self.repeats.unanswered,
        };
        count.fetch_add(1, Ordering::Relaxed);
        answer
    }
}

async fn send(
    sender: &mut SendRequest<Body>,
    head: &request::Parts,
    body: Bytes,
) -> anyhow::Result<Response<Incoming>> {
    sender.ready().await?;
    Ok(sender.send_request(Request::from_parts(head.clone(), Body::from(body))).await?)
}

fn is_write(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method)
}
