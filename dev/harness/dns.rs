// SPDX-License-Identifier: Apache-2.0
//! The name server of a real node: it knows the API server, as cluster DNS does, and nothing else.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// The domain of the cluster, as kubelets have it by default.
pub const DOMAIN: &str = "cluster.local";
const KNOWN: (&str, Ipv4Addr) = ("kubernetes.default.svc.cluster.local", Ipv4Addr::new(10, 96, 0, 1));

const ADDRESS: u16 = 1;
const NO_SUCH_NAME: u16 = 3;

/// Answers until it is dropped.
#[derive(Debug)]
pub struct Dns {
    task: JoinHandle<()>,
}

impl Dns {
    /// Listens on port 53 of `address`.
    pub async fn start(address: Ipv4Addr) -> anyhow::Result<Dns> {
        let socket = UdpSocket::bind((address, 53))
            .await
            .with_context(|| format!("listening on {address}:53, for names of the cluster"))?;
        Ok(Dns { task: tokio::spawn(serve(Arc::new(socket))) })
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(socket: Arc<UdpSocket>) {
    let mut packet = [0; 512];
    // An error is of one packet.
    loop {
        if let Ok((length, peer)) = socket.recv_from(&mut packet).await
            && let Some(answer) = answer(&packet[..length])
        {
            let _ = socket.send_to(&answer, peer).await;
        }
    }
}

/// The answer to a packet with one question (RFC 1035, section 4).
fn answer(packet: &[u8]) -> Option<Vec<u8>> {
    let (mut at, mut labels) = (12, Vec::new());
    loop {
        let length = usize::from(*packet.get(at)?);
        if length == 0 {
            break;
        }
        labels.push(std::str::from_utf8(packet.get(at + 1..at + 1 + length)?).ok()?.to_ascii_lowercase());
        at += 1 + length;
    }
    let question = packet.get(12..at + 5)?;
    let kind = u16::from_be_bytes([*packet.get(at + 1)?, *packet.get(at + 2)?]);
    let known = labels.join(".") == KNOWN.0;
    let answers = u16::from(known && kind == ADDRESS);
    let code = if known { 0 } else { NO_SUCH_NAME };
    let mut all = packet.get(..2)?.to_vec();
    for word in [0x8180 | code, 1, answers, 0, 0] {
        all.extend(word.to_be_bytes());
    }
    all.extend(question);
    if answers == 1 {
        // The name is that of the question, at offset 12; then kind, class, a minute, and four bytes.
        for word in [0xc00c, ADDRESS, 1, 0, 60, 4] {
            all.extend(word.to_be_bytes());
        }
        all.extend(KNOWN.1.octets());
    }
    Some(all)
}
