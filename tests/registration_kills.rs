// SPDX-License-Identifier: Apache-2.0
//! Real processes register one cluster once: ten that start at the same moment, and one that is killed before any of its
//! requests and started again, the first time and when credentials that are refused are replaced.
//!
//! Fleet's controller is played by a stand-in (`dev/harness/registrar.rs`) on a real API server.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, ensure};
use flotilla::registration;
use flotilla::registration::managed::{BOOTSTRAP, INTENT};
use futures::{StreamExt, TryStreamExt, stream};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::fleet;
use harness::proxy::{Budget, Proxy};
use harness::replica::Replica;
use harness::stage::Stage;
use harness::world::{Downstream, World, get, ready};
use harness::{GENEROUS, Tools, until};

/// Processes killed and started again at the same time.
const AT_ONCE: usize = 8;
/// A process is killed before each of its requests, and again until no step was left out: how often it looks for its
/// credentials differs from run to run, and with it the number of each later request.
const ROUNDS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_ask_once_and_a_killed_one_asks_no_second_time() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = stories(&world).await;
    world.conclude(result)
}

async fn stories(world: &World) -> anyhow::Result<()> {
    let stage = Stage::new(world).await?;
    ten_processes_ask_once(&stage).await?;
    let (up, down) = (Proxy::start(world.upstream.port).await?, Proxy::start(world.downstream.port).await?);
    let kubeconfig = std::fs::read_to_string(&world.registration.agent_kubeconfig)?;
    let proxied = kubeconfig.replace(&world.downstream.url(), &down.url());
    ensure!(proxied != kubeconfig, "the kubeconfig names another address");
    let path = world.dir().join("proxied.kubeconfig");
    std::fs::write(&path, proxied)?;
    let kills = |token| Kills { stage: &stage, up: &up, down: &down, kubeconfig: &path, token };
    kills(FIRST).at_each_step().await?;
    kills(ANEW).at_each_step().await
}

async fn ten_processes_ask_once(stage: &Stage<'_>) -> anyhow::Result<()> {
    const NAMESPACE: &str = "crowd";
    stage.offer(NAMESPACE, NAMESPACE).await?;
    let mut replicas = (1..=10)
        .map(|number| stage.replica(&format!("crowd-{number}"), NAMESPACE))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for replica in &mut replicas {
        ready(replica).await?;
    }
    stage.asked_once(NAMESPACE).await?;
    let created = stage.created_with(NAMESPACE).await?;
    ensure!(created == 1, "{created} requests of ten processes");
    Ok(())
}

/// What is there of a flow: intent, request, Secret `fleet-agent`, bootstrap Secret.
type State = (bool, bool, bool, bool);

/// The bootstrap token of clusters that were never registered.
const FIRST: &str = "kill";
/// That of clusters whose Secret `fleet-agent` holds credentials that are refused.
const ANEW: &str = "anew";

/// Between any two steps of the flow that leave something behind. An old Secret stands until a new one works.
fn states(token: &str) -> BTreeSet<State> {
    let old = token == ANEW;
    BTreeSet::from([
        (false, false, old, true),
        (true, false, old, true),
        (true, true, old, true),
        (true, true, true, true),
        (true, true, true, false),
        (false, true, true, false),
    ])
}

struct Kills<'a> {
    stage: &'a Stage<'a>,
    up: &'a Proxy,
    down: &'a Proxy,
    kubeconfig: &'a Path,
    token: &'static str,
}

impl Kills<'_> {
    async fn at_each_step(&self) -> anyhow::Result<()> {
        let budget = Budget::new(usize::MAX);
        let whole = format!("whole-{}", self.token);
        let first = self.start(&whole, &budget).await?;
        self.stage.asked_once(&whole).await?;
        let count = budget.sent();
        drop(first);
        eprintln!("a process sends {count} pieces until it is registered");

        let mut missing = states(self.token);
        for round in 0..ROUNDS {
            let met: Vec<State> = stream::iter(0..count)
                .map(|pieces| self.killed_after(round, pieces))
                .buffer_unordered(AT_ONCE)
                .try_collect()
                .await?;
            for state in &met {
                missing.remove(state);
            }
            let asked = self.stage.created_with(self.token).await?;
            let expected = 1 + (round + 1) * count;
            ensure!(asked == expected, "{asked} requests for {expected} clusters");
            if missing.is_empty() {
                return Ok(());
            }
            eprintln!("round {round} did not meet {missing:?}");
        }
        anyhow::bail!("no process was killed in the states {missing:?}")
    }

    /// A process is killed when it is about to send more than that, and started again. Tells what the first one left.
    async fn killed_after(&self, round: usize, pieces: usize) -> anyhow::Result<State> {
        let namespace = format!("{}-{round}-{pieces}", self.token);
        self.killed_in(&namespace, pieces).await.with_context(|| namespace.clone())
    }

    async fn killed_in(&self, namespace: &str, pieces: usize) -> anyhow::Result<State> {
        let budget = Budget::new(pieces);
        let mut first = self.start(namespace, &budget).await?;
        tokio::time::timeout(GENEROUS, budget.over()).await.context("it sends too little")?;
        first.kill()?;
        let left = async |name: &str| anyhow::Ok(self.stage.secret(namespace, name).await?.is_some());
        let state = (
            left(INTENT).await?,
            !self.stage.registrar.requests(namespace).await?.is_empty(),
            left(registration::SECRET).await?,
            left(BOOTSTRAP).await?,
        );
        let second = self.start_again(namespace)?;
        self.stage.asked_once(namespace).await?;
        let url = format!("{}/readyz?verbose", second.probe_url());
        until("the registration to be ready", GENEROUS, async || {
            Ok(get(&url).await?.1.contains("[+]registration ok").then_some(()))
        })
        .await?;
        Ok(state)
    }

    /// A process in a cluster that is to be registered, behind both proxies.
    async fn start(&self, namespace: &str, budget: &Budget) -> anyhow::Result<Replica> {
        self.stage.offer(namespace, self.token).await?;
        if self.token == ANEW {
            self.stage.useless_secret(namespace, &self.up.url(), false).await?;
        }
        let (registrar, ca) = (&self.stage.registrar, self.stage.world.upstream.ca_pem());
        let bootstrap = registrar.bootstrap_at(&self.up.url(), ca, self.token, namespace).await?;
        fleet::apply(&self.stage.local, bootstrap).await?;
        self.spawn(namespace, namespace, Some(budget))
    }

    fn start_again(&self, namespace: &str) -> anyhow::Result<Replica> {
        self.spawn(&format!("{namespace}-again"), namespace, None)
    }

    fn spawn(&self, name: &str, namespace: &str, budget: Option<&Budget>) -> anyhow::Result<Replica> {
        let world = self.stage.world;
        let log = world.dir().join(format!("{name}.log"));
        let replica =
            Replica::spawn(&world.binary, name, self.kubeconfig, namespace, &["--debug"], &[], &log)?;
        for proxy in [self.up, self.down] {
            match budget {
                Some(budget) => proxy.introduce_with(name, replica.pid(), budget),
                None => proxy.introduce(name, replica.pid()),
            }
        }
        Ok(replica)
    }
}
