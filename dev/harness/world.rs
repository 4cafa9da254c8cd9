// SPDX-License-Identifier: Apache-2.0
//! Everything a story needs at once: two control planes, a registered agent, and replicas to start.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::audit::AuditEntry;
use super::bundles::Publisher;
use super::control_plane::{ControlPlane, Options};
use super::fleet::{self, Registration};
use super::records::Records;
use super::replica::{Controller, Instance, Replica};
use super::tools::Tools;
use super::units::Units;
use super::until::{GENEROUS, until};

/// What the downstream cluster runs beside its API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downstream {
    /// Nothing: Deployments never become ready, and deleted namespaces stay.
    Bare,
    /// Controllers only: namespaces go away, service accounts appear.
    Controllers,
    /// Controllers, a scheduler and this many simulated nodes.
    Nodes(usize),
}

/// Two control planes with an agent registered between them.
pub struct World {
    /// Where BundleDeployments live.
    pub upstream: ControlPlane,
    /// Where their objects go.
    pub downstream: ControlPlane,
    /// The agent's identity.
    pub registration: Registration,
    /// The programs the clusters are made of.
    pub tools: Tools,
    /// The program under test.
    pub binary: PathBuf,
    // Removed at the end, unless something went wrong.
    dir: TempDir,
}

/// How long a pod takes to become ready on a simulated node.
pub const POD_DELAY: Duration = Duration::from_millis(300);

impl World {
    /// Starts it with the programs `tools`, which must include those that `downstream` needs.
    pub async fn start(binary: &Path, tools: Tools, downstream_runs: Downstream) -> anyhow::Result<World> {
        World::start_with(binary, tools, downstream_runs, Options::default()).await
    }

    /// The same with control planes that differ from the usual.
    pub async fn start_with(
        binary: &Path,
        tools: Tools,
        downstream_runs: Downstream,
        options: Options,
    ) -> anyhow::Result<World> {
        let dir = tempfile::Builder::new().prefix("flotilla-").tempdir()?;
        let (up, down) = (dir.path().join("upstream"), dir.path().join("downstream"));
        let (upstream, mut downstream) = tokio::try_join!(
            ControlPlane::start(&tools, &up, "upstream", options.clone()),
            ControlPlane::start(&tools, &down, "downstream", options),
        )?;
        fleet::install_crds(&upstream, binary).await?;
        match downstream_runs {
            Downstream::Bare => {}
            Downstream::Controllers => downstream.start_workloads(&tools, 0, POD_DELAY).await?,
            Downstream::Nodes(nodes) => downstream.start_workloads(&tools, nodes, POD_DELAY).await?,
        }
        let registration = fleet::register(&upstream, &downstream, "shop").await?;
        Ok(World { upstream, downstream, registration, tools, binary: binary.into(), dir })
    }

    /// Where everything of this run is.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a replica with `slots` worker slots. It is not ready yet.
    pub fn replica(&self, name: &str, slots: usize) -> anyhow::Result<Replica> {
        self.replica_with(name, slots, &[])
    }

    /// The same with further flags.
    pub fn replica_with(&self, name: &str, slots: usize, extra_args: &[&str]) -> anyhow::Result<Replica> {
        Replica::spawn(
            &self.binary,
            name,
            &self.registration.agent_kubeconfig,
            &self.registration.agent_namespace,
            extra_args,
            &[("BUNDLEDEPLOYMENT_RECONCILER_WORKERS", &slots.to_string())],
            &self.log(name),
        )
    }

    /// Starts a replica and waits until it is ready.
    pub async fn ready_replica(&self, name: &str, slots: usize) -> anyhow::Result<Replica> {
        let mut replica = self.replica(name, slots)?;
        ready(&mut replica).await?;
        Ok(replica)
    }

    /// The same with further flags.
    pub async fn ready_replica_with(
        &self,
        name: &str,
        slots: usize,
        extra_args: &[&str],
    ) -> anyhow::Result<Replica> {
        let mut replica = self.replica_with(name, slots, extra_args)?;
        ready(&mut replica).await?;
        Ok(replica)
    }

    /// Starts `count` replicas, named `replica-1`, `replica-2`, …, and waits until all are ready.
    pub async fn ready_replicas(&self, count: usize, slots: usize) -> anyhow::Result<Vec<Replica>> {
        let mut replicas = (1..=count)
            .map(|number| self.replica(&format!("replica-{number}"), slots))
            .collect::<anyhow::Result<Vec<_>>>()?;
        for replica in &mut replicas {
            ready(replica).await?;
        }
        Ok(replicas)
    }

    /// Starts the companion controller on the upstream cluster.
    pub fn controller(&self, name: &str, extra_args: &[&str]) -> anyhow::Result<Controller> {
        Controller::spawn(
            &self.binary,
            name,
            &self.upstream.admin_kubeconfig(),
            extra_args,
            &[],
            &self.log(name),
        )
    }

    /// Follows the units upstream.
    pub async fn units(&self) -> anyhow::Result<Units> {
        Units::follow(self.publisher().await?.units().clone()).await
    }

    /// Follows the release records downstream.
    pub async fn records(&self) -> anyhow::Result<Records> {
        Records::follow(self.downstream.admin().await?).await
    }

    /// Writes bundles in the place of Fleet's controller.
    pub async fn publisher(&self) -> anyhow::Result<Publisher> {
        Ok(Publisher::new(self.upstream.admin().await?, &self.registration))
    }

    /// Waits until an agent has written an Event with this reason whose note contains `part`, and gives the note.
    pub async fn event(&self, reason: &str, part: &str) -> anyhow::Result<String> {
        let events: Api<Event> = Api::all(self.downstream.admin().await?);
        until(&format!("an Event {reason} that says {part:?}"), GENEROUS, async || {
            let its = |event: &Event| event.reason.as_deref() == Some(reason);
            let notes = events.list(&ListParams::default()).await?.items.into_iter().filter(its);
            Ok(notes.filter_map(|event| event.note).find(|note| note.contains(part)))
        })
        .await
    }

    /// Passes on a story's result; when it is an error everything stays on disk and the text says where.
    pub fn conclude<T>(mut self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        result.with_context(|| {
            self.dir.disable_cleanup(true);
            format!("the logs are in {}", self.dir.path().display())
        })
    }

    /// Leaves everything on disk at the end.
    pub fn keep(&mut self) {
        self.dir.disable_cleanup(true);
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.dir.disable_cleanup(true);
            eprintln!("the logs are in {}", self.dir.path().display());
        }
    }
}

/// Waits until a process answers `/readyz` with 200; fails at once when it ends.
pub async fn ready(instance: &mut Instance) -> anyhow::Result<()> {
    let url = format!("{}/readyz?verbose", instance.probe_url());
    let what = format!("{} to be ready", instance.name());
    until(&what, GENEROUS, async || {
        if let Err(ended) = instance.check() {
            return Ok(Some(Err(ended)));
        }
        match get(&url).await? {
            (200, _) => Ok(Some(Ok(()))),
            (code, body) => bail!("{url} answered {code}: {body}"),
        }
    })
    .await?
}

/// The value of a counter without labels, as the process serves it now.
pub async fn counter(instance: &Instance, name: &str) -> anyhow::Result<u64> {
    let (_, text) = get(&instance.metrics_url()).await?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.with_context(|| format!("{name} is not among the metrics"))?.parse().context("a counter")
}

/// Waits until `instance` has looked at all releases `passes` times, from beginning to end, after this call.
pub async fn collected(instance: &Instance, passes: u64) -> anyhow::Result<()> {
    const PASSES: &str = "flotilla_garbage_collections_total";
    // One may be under way that began before.
    let wanted = counter(instance, PASSES).await? + 1 + passes;
    until("the collector to come round", GENEROUS, async || {
        Ok((counter(instance, PASSES).await? >= wanted).then_some(()))
    })
    .await
}

/// GETs a plain `http://127.0.0.1:PORT/PATH`: status and body.
pub async fn get(url: &str) -> anyhow::Result<(u16, String)> {
    let rest = url.strip_prefix("http://").context("only plain HTTP")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host).await?;
    let request = format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no HTTP status")?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((code, body.to_owned()))
}

/// The audit log with everything in it that was answered before this call.
pub async fn settled_audit(plane: &ControlPlane, client: &Client) -> anyhow::Result<Vec<AuditEntry>> {
    // Entries are written in the order of the answers, and nobody else asks for this name.
    let marker = format!("marker-{:016x}", rand::random::<u64>());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.get_opt(&marker).await?;
    until("the audit log to be complete", GENEROUS, async || {
        let entries = plane.audit()?;
        Ok(entries.iter().any(|entry| entry.name == marker).then_some(entries))
    })
    .await
}

/// The program under test: `FLOTILLA_BINARY`, or the one built in the same profile as the example that asks.
pub fn built_binary() -> anyhow::Result<PathBuf> {
    if let Some(binary) = std::env::var_os("FLOTILLA_BINARY") {
        return Ok(binary.into());
    }
    let example = std::env::current_exe().context("where this program is")?;
    let profile = example.parent().and_then(Path::parent).context("an example is two folders deep")?;
    let binary = profile.join("flotilla");
    if !binary.is_file() {
        bail!("{} is missing: cargo build --bin flotilla", binary.display());
    }
    Ok(binary)
}
