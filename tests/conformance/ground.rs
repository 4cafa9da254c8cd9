// SPDX-License-Identifier: Apache-2.0
//! One API server, upstream and downstream in one, with one agent: where the recordings were made.

use std::path::{Path, PathBuf};

use anyhow::Context;
use flotilla::render::engine::{Engine, EngineConfig};
use serde_json::json;
use tempfile::TempDir;

use super::server::Server;
use crate::harness::replica::Replica;
use crate::harness::world::ready;
use crate::harness::{ControlPlane, Options, Tools, fleet};

/// A running server with a ready agent. Dropping it ends both.
pub struct Ground {
    /// The server's objects.
    pub server: Server,
    /// The namespace of the BundleDeployments.
    pub cluster_namespace: String,
    /// Reads the manifests of release records.
    pub engine: Engine,
    log: PathBuf,
    _replica: Replica,
    _plane: ControlPlane,
    dir: TempDir,
}

impl Ground {
    /// Starts both; `config` is the agent's configuration as JSON.
    pub async fn start(config: &str) -> anyhow::Result<Ground> {
        let tools = Tools::build(Tools::CONTROL_PLANE)?;
        let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
        let dir = tempfile::Builder::new().prefix("flotilla-golden-").tempdir()?;
        let plane =
            ControlPlane::start(&tools, &dir.path().join("cluster"), "cluster", Options::default()).await?;
        fleet::install_crds(&plane, binary).await?;
        let registration = fleet::register(&plane, &plane, "bench").await?;
        let client = plane.admin().await?;
        let name = json!({"name": "fleet-agent", "namespace": registration.agent_namespace});
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"config": config}});
        fleet::apply(&client, map).await?;
        let log = dir.path().join("agent.log");
        let mut replica = Replica::spawn(
            binary,
            "agent",
            &registration.agent_kubeconfig,
            &registration.agent_namespace,
            &[],
            &[("BUNDLEDEPLOYMENT_RECONCILER_WORKERS", "50")],
            &log,
        )?;
        ready(&mut replica).await?;
        let engine = binary.with_file_name("flotilla-engine");
        let engine = EngineConfig { binary: Some(engine), ..EngineConfig::default() };
        Ok(Ground {
            server: Server::new(client),
            cluster_namespace: registration.cluster_namespace,
            engine: Engine::start(engine)?,
            log,
            _replica: replica,
            _plane: plane,
            dir,
        })
    }

    /// Leaves logs and data on disk, and says where.
    pub fn keep(&mut self) -> &Path {
        self.dir.disable_cleanup(true);
        self.dir.path()
    }

    /// The last warnings and errors the agent logged about a unit.
    pub fn complaints(&self, unit: &str) -> anyhow::Result<Vec<String>> {
        let log = std::fs::read_to_string(&self.log).context("reading the agent's log")?;
        let about = |line: &&str| line.contains(unit) && (line.contains("WARN") || line.contains("ERROR"));
        let mut lines: Vec<String> = log.lines().rev().filter(about).take(5).map(str::to_owned).collect();
        lines.reverse();
        Ok(lines)
    }
}
