// SPDX-License-Identifier: Apache-2.0
//! A faulty network between one API server and its clients.
//!
//! All clients connect to one port; whose a connection is, the kernel tells (`/proc`), so that each can be treated
//! differently although all read the same address from the same Secret. TLS stays end to end: the proxy sees no
//! request, only that bytes went one way and an answer began to come back. What needs to see requests stands behind it:
//! [`Repeater`].

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::control_plane::ControlPlane;
use super::repeater::{Repeater, Repeats};

/// How long a connection whose client is unknown is held until the client introduces itself: it may just have been
/// started.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// After the first byte of an answer that is to be lost: time for the server to finish what was asked.
const CARRY_OUT: Duration = Duration::from_millis(300);
/// A request that was held up while its client went away is given this long to be carried out all the same.
const LATE: Duration = Duration::from_secs(2);

/// What happens to a client's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    #[default]
    Pass,
    /// Every piece, either way, comes this much later.
    Delay(Duration),
    /// Connections are reset, and new ones at once.
    Cut,
    /// Connections, old and new, stay open and everything sent is swallowed; those that met this stay so for ever.
    HalfOpen,
    /// What is sent this way is held back and delivered when it is over, even when the sender is gone by then.
    Stall(Way),
    /// What is asked is carried out, but the connection is reset instead of the answer.
    LoseReplies,
    /// Each write that is answered 2xx is sent again. Needs [`Proxy::start_repeating`].
    Repeat,
}

/// A direction, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Requests.
    Up,
    /// Answers, and the events of watches.
    Down,
}

/// How many pieces a client may still send, over any number of proxies; after that everything it sends is swallowed.
///
/// A request is one piece or two, so that with every number from nothing on a client is stopped before each of its
/// requests once.
#[derive(Clone, Debug)]
pub struct Budget(Arc<watch::Sender<Spending>>);

#[derive(Clone, Copy, Debug)]
struct Spending {
    sent: usize,
    limit: usize,
    over: bool,
}

impl Budget {
    /// So many pieces; `usize::MAX` counts only.
    pub fn new(limit: usize) -> Budget {
        Budget(Arc::new(watch::Sender::new(Spending { sent: 0, limit, over: false })))
    }

    /// Pieces sent so far.
    pub fn sent(&self) -> usize {
        self.0.borrow().sent
    }

    /// Waits until the client tried to send more.
    pub async fn over(&self) {
        let mut spending = self.0.subscribe();
        // Cannot fail: the sender is ours.
        let _ = spending.wait_for(|spending| spending.over).await;
    }

    fn take(&self) -> bool {
        let mut granted = false;
        self.0.send_modify(|spending| {
            granted = spending.sent < spending.limit;
            if granted {
                spending.sent += 1;
            } else {
                spending.over = true;
            }
        });
        granted
    }
}

/// What the proxy did so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections reset on purpose.
    pub reset: AtomicU64,
    /// Answers swallowed after the server had begun to send them.
    pub lost_replies: AtomicU64,
    /// Connections that went silent.
    pub half_open: AtomicU64,
    /// Requests delivered after their client was gone.
    pub late: AtomicU64,
}

/// The proxy. It ends, with all connections, when this is dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    target: u16,
    repeater: Option<Arc<Repeater>>,
    port: u16,
    links: Mutex<BTreeMap<String, Link>>,
    counts: Counts,
}

struct Link {
    pid: u32,
    mode: watch::Sender<Mode>,
    resets: watch::Sender<u64>,
    budget: Option<Budget>,
}

impl Proxy {
    /// A proxy on a port of its own in front of `target`, both on 127.0.0.1.
    pub async fn start(target: u16) -> anyhow::Result<Proxy> {
        Proxy::start_before(target, None).await
    }

    /// One that ends TLS in front of `plane`, so that it can repeat requests: no client may use a certificate.
    pub async fn start_repeating(plane: &ControlPlane) -> anyhow::Result<Proxy> {
        Proxy::start_before(plane.port, Some(Arc::new(Repeater::new(plane)?))).await
    }

    async fn start_before(target: u16, repeater: Option<Arc<Repeater>>) -> anyhow::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for a proxy")?;
        let port = listener.local_addr()?.port();
        let (links, counts) = (Mutex::default(), Counts::default());
        let shared = Arc::new(Shared { target, repeater, port, links, counts });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((client, from)) = accepted else { continue };
                        accepting.counts.accepted.fetch_add(1, Ordering::Relaxed);
                        connections.spawn(serve(client, from, accepting.clone()));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Proxy { port, shared, task })
    }

    /// The address clients are to use.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Makes the process `pid` known as `client`; a restarted client keeps its mode.
    pub fn introduce(&self, client: &str, pid: u32) {
        let mut links = self.links();
        let link = links.entry(client.to_owned()).or_insert_with(|| Link {
            pid,
            mode: watch::Sender::new(Mode::Pass),
            resets: watch::Sender::new(0),
            budget: None,
        });
        link.pid = pid;
    }

    /// The same for a client that may send only so much.
    pub fn introduce_with(&self, client: &str, pid: u32, budget: &Budget) {
        let link = Link {
            pid,
            mode: watch::Sender::new(Mode::Pass),
            resets: watch::Sender::new(0),
            budget: Some(budget.clone()),
        };
        self.links().insert(client.to_owned(), link);
    }

    /// How a client's connections are treated from now on, those that are open too.
    pub fn set(&self, client: &str, mode: Mode) {
        if let Some(link) = self.links().get(client) {
            link.mode.send_replace(mode);
        }
    }

    /// Resets the client's open connections; new ones are treated as before.
    pub fn reset(&self, client: &str) {
        if let Some(link) = self.links().get(client) {
            link.resets.send_modify(|count| *count += 1);
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// What became of repeated writes, of a proxy that repeats.
    pub fn repeats(&self) -> Option<&Repeats> {
        self.shared.repeater.as_ref().map(|repeater| &repeater.repeats)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<String, Link>> {
        self.shared.links()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, BTreeMap<String, Link>> {
        self.links.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The link of the process that opened a connection.
    async fn owner(
        self: &Arc<Self>,
        from: SocketAddr,
    ) -> Option<(watch::Receiver<Mode>, watch::Receiver<u64>, Option<Budget>)> {
        let deadline = tokio::time::Instant::now() + INTRODUCTION;
        while tokio::time::Instant::now() < deadline {
            let pids: Vec<(String, u32)> =
                self.links().iter().map(|(name, link)| (name.clone(), link.pid)).collect();
            let (ours, theirs) = (self.port, from.port());
            let found = tokio::task::spawn_blocking(move || owner_of(theirs, ours, &pids)).await;
            if let Ok(Some(name)) = found {
                return self
                    .links()
                    .get(&name)
                    .map(|link| (link.mode.subscribe(), link.resets.subscribe(), link.budget.clone()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    }
}

/// Which of the processes has the socket of the connection from `theirs` to `ours`.
fn owner_of(theirs: u16, ours: u16, pids: &[(String, u32)]) -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let (local, remote) = (format!("0100007F:{theirs:04X}"), format!("0100007F:{ours:04X}"));
    let inode = table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&local.as_str()) && words.get(2) == Some(&remote.as_str()))
            .then(|| words.get(9).copied())?
    })?;
    let socket = format!("socket:[{inode}]");
    let has_it = |pid: u32| {
        std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut files| {
            files.any(|file| {
                file.is_ok_and(|file| {
                    std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket.as_str())
                })
            })
        })
    };
    pids.iter().find(|(_, pid)| has_it(*pid)).map(|(name, _)| name.clone())
}

/// What both directions of a connection know of each other.
#[derive(Default)]
struct Connection {
    /// Times the client spoke after the server had: the first is the TLS hello, the second carries a request.
    turns: AtomicU32,
    client_spoke_last: AtomicBool,
    stalled: AtomicBool,
}

/// Why a direction ended.
#[derive(PartialEq, Eq)]
enum End {
    Closed,
    Reset,
}

async fn serve(client: TcpStream, from: SocketAddr, shared: Arc<Shared>) {
    let Some((mode, resets, budget)) = shared.owner(from).await else {
        let _ = client.set_zero_linger();
        return;
    };
    if *mode.borrow() == Mode::Cut {
        shared.counts.reset.fetch_add(1, Ordering::Relaxed);
        let _ = client.set_zero_linger();
        return;
    }
    let _ = client.set_nodelay(true);
    let joint = Joint { shared: &shared, mode, resets, budget };
    // A server that is down refuses; so do we.
    let refuse = || drop(client.set_zero_linger());
    if let Some(repeater) = &shared.repeater {
        let Ok(server) = repeater.connect(joint.mode.clone()).await else { return refuse() };
        let (mut server_in, mut server_out) = tokio::io::split(server);
        joint.relay(client, &mut server_in, &mut server_out).await;
    } else {
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.target)).await else {
            return refuse();
        };
        let _ = server.set_nodelay(true);
        let (mut server_in, mut server_out) = server.into_split();
        if joint.relay(client, &mut server_in, &mut server_out).await == End::Reset {
            let _ = server_in.as_ref().set_zero_linger();
        }
    }
}

/// What two sides of a connection are joined by.
struct Joint<'a> {
    shared: &'a Shared,
    mode: watch::Receiver<Mode>,
    resets: watch::Receiver<u64>,
    budget: Option<Budget>,
}

impl Joint<'_> {
    async fn relay(
        self,
        client: TcpStream,
        server_in: &mut (impl AsyncRead + Unpin),
        server_out: &mut (impl AsyncWrite + Unpin),
    ) -> End {
        let Joint { shared, mode, mut resets, budget } = self;
        let connection = Connection::default();
        let (mut client_in, mut client_out) = client.into_split();
        resets.mark_unchanged();
        let mut up = Pump { way: Way::Up, mode: mode.clone(), connection: &connection, shared, budget };
        let mut down = Pump { way: Way::Down, mode, connection: &connection, shared, budget: None };
        let end = tokio::select! {
            end = up.run(&mut client_in, server_out) => end,
            end = down.run(server_in, &mut client_out) => end,
            Ok(()) = resets.changed() => End::Reset,
        };
        if end == End::Reset {
            shared.counts.reset.fetch_add(1, Ordering::Relaxed);
            let _ = client_in.as_ref().set_zero_linger();
        }
        end
    }
}

struct Pump<'a> {
    way: Way,
    mode: watch::Receiver<Mode>,
    connection: &'a Connection,
    shared: &'a Shared,
    budget: Option<Budget>,
}

impl Pump<'_> {
    async fn run(&mut self, from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> End {
        let mut buffer = vec![0; 32 * 1024];
        loop {
            let mode = *self.mode.borrow_and_update();
            match mode {
                Mode::Cut => return End::Reset,
                Mode::HalfOpen => return self.swallow(from, &mut buffer).await,
                Mode::Stall(way) if way == self.way => {
                    // Unread bytes wait in the kernel, also when their sender closes the connection.
                    self.connection.stalled.store(true, Ordering::Relaxed);
                    if self.mode.changed().await.is_err() {
                        return End::Closed;
                    }
                    continue;
                }
                Mode::Pass | Mode::Delay(_) | Mode::Stall(_) | Mode::LoseReplies | Mode::Repeat => {}
            }
            let count = tokio::select! {
                biased;
                changed = self.mode.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return End::Closed,
                },
                read = from.read(&mut buffer) => match read {
                    Ok(0) | Err(_) => return self.ended().await,
                    Ok(count) => count,
                },
            };
            if self.budget.as_ref().is_some_and(|budget| !budget.take()) {
                return self.swallow(from, &mut buffer).await;
            }
            if self.note() && mode == Mode::LoseReplies {
                self.shared.counts.lost_replies.fetch_add(1, Ordering::Relaxed);
                let rest = async { while matches!(from.read(&mut buffer).await, Ok(1..)) {} };
                let _ = tokio::time::timeout(CARRY_OUT, rest).await;
                return End::Reset;
            }
            if let Mode::Delay(by) = mode {
                tokio::time::sleep(by).await;
            }
            if to.write_all(&buffer[..count]).await.is_err() {
                return End::Closed;
            }
        }
    }

    /// Remembers who spoke; true for what may be an answer to a request.
    fn note(&self) -> bool {
        let connection = self.connection;
        match self.way {
            Way::Up => {
                if !connection.client_spoke_last.swap(true, Ordering::Relaxed) {
                    connection.turns.fetch_add(1, Ordering::Relaxed);
                }
                false
            }
            Way::Down => {
                connection.client_spoke_last.store(false, Ordering::Relaxed);
                connection.turns.load(Ordering::Relaxed) >= 2
            }
        }
    }

    async fn ended(&self) -> End {
        if self.way == Way::Up && self.connection.stalled.load(Ordering::Relaxed) {
            self.shared.counts.late.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(LATE).await;
        }
        End::Closed
    }

    /// The other side is gone and nobody says so. Only the client can end this.
    async fn swallow(&self, from: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> End {
        if self.way == Way::Up {
            self.shared.counts.half_open.fetch_add(1, Ordering::Relaxed);
        }
        while matches!(from.read(buffer).await, Ok(1..)) {}
        match self.way {
            Way::Up => End::Closed,
            // What the server says to it, also goodbye, is lost.
            Way::Down => std::future::pending().await,
        }
    }
}
