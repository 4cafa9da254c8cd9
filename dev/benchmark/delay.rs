// SPDX-License-Identifier: Apache-2.0
//! A management cluster that is far away: a proxy that passes everything on later, half of the delay each way.
//!
//! Unlike the faulty network of the chaos runs it is a line of constant delay: bytes sent one after the other travel
//! together.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Pieces on their way in one direction of one connection; enough never to hold up a sender.
const PIECES: usize = 4096;

/// The proxy. It ends, with all connections, when this is dropped.
pub struct Delay {
    port: u16,
    task: JoinHandle<()>,
}

impl Delay {
    /// A proxy on a port of its own in front of `target`, an `https://127.0.0.1:PORT`.
    pub async fn start(target: &str, by: Duration) -> anyhow::Result<Delay> {
        let (_, port) = target.rsplit_once(':').context("a port in the address")?;
        let target: u16 = port.trim_end_matches('/').parse().context("a port in the address")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for the delay")?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((client, _)) = accepted else { continue };
                        connections.spawn(serve(client, target, by / 2));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Delay { port, task })
    }

    /// The address clients are to use.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, target: u16, by: Duration) {
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    // Whichever side ends, the connection is over.
    tokio::select! {
        () = line(client_in, server_out, by) => {}
        () = line(server_in, client_out, by) => {}
    }
}

async fn line(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, by: Duration) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let read = async move {
        let mut buffer = vec![0; 32 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if sender.send((Instant::now() + by, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, piece)) = receiver.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
