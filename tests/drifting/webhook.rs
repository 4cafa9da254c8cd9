// SPDX-License-Identifier: Apache-2.0
//! A mutating admission webhook on loopback, over TLS: it sets `data.injected` and `data.forced` of ConfigMaps.

use std::sync::Arc;

use anyhow::Context;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::generate_simple_self_signed;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A running webhook; ends when dropped.
pub struct Webhook {
    /// Its certificate in base64 of PEM, as `caBundle` wants it.
    pub authority: String,
    /// Where it listens.
    pub url: String,
    task: JoinHandle<()>,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Webhook {
    /// Starts it.
    pub async fn start() -> anyhow::Result<Webhook> {
        let pair = generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der())
            .map_err(|error| anyhow::anyhow!("the webhook's key: {error}"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![pair.cert.der().clone()], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://127.0.0.1:{}/", listener.local_addr()?.port());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    while answer(&mut stream).await.is_ok() {}
                });
            }
        });
        Ok(Webhook { authority: STANDARD.encode(pair.cert.pem()), url, task })
    }
}

/// Reads one request with a length, and answers it.
async fn answer(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> anyhow::Result<()> {
    let mut request = Vec::new();
    let body_at = loop {
        if let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        anyhow::ensure!(stream.read_buf(&mut request).await? > 0, "closed");
    };
    let head = String::from_utf8_lossy(&request[..body_at]).to_lowercase();
    let length = head.split("content-length:").nth(1).context("a length")?;
    let length: usize = length.lines().next().unwrap_or_default().trim().parse()?;
    while request.len() < body_at + length {
        anyhow::ensure!(stream.read_buf(&mut request).await? > 0, "closed");
    }
    let review: Value = serde_json::from_slice(&request[body_at..])?;
    let mut data = review["request"]["object"]["data"].clone();
    data["injected"] = "yes".into();
    if review["request"]["object"]["data"].get("forced").is_some() {
        data["forced"] = "by the webhook".into();
    }
    let patch = json!([{"op": "add", "path": "/data", "value": data}]).to_string();
    let response = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
        "uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch)}})
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        response.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(response.as_bytes()).await?;
    Ok(stream.flush().await?)
}
