// SPDX-License-Identifier: Apache-2.0
//! The programs a control plane is made of, built by `dev/tools/build`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// A directory with the programs that were asked for.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The directory; it outlives the run, other runs with the same versions share it.
    pub bin: PathBuf,
}

impl Tools {
    /// Enough for a control plane: the API server and its store.
    pub const CONTROL_PLANE: &'static [&'static str] = &["kube-apiserver", "etcd"];
    /// A control plane on which Deployments become ready.
    pub const WORKLOADS: &'static [&'static str] =
        &["kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kwok"];
    /// A control plane with a real node, and what installs charts on it.
    pub const NODE: &'static [&'static str] = &[
        "kube-apiserver",
        "etcd",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kube-proxy",
        "containerd",
        "containerd-shim-runc-v2",
        "ctr",
        "kubectl",
        "helm",
    ];

    /// Builds `names` unless they are there, and says where they are.
    ///
    /// The first build on a machine takes minutes; its progress goes to stderr.
    pub fn build(names: &[&str]) -> anyhow::Result<Tools> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dev/tools/build");
        let output = Command::new(&script)
            .args(names)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("running {}", script.display()))?;
        if !output.status.success() {
            bail!(
                "{} {} failed ({}); Go 1.26 or newer and access to Go modules are needed, see its output above",
                script.display(),
                names.join(" "),
                output.status
            );
        }
        let stdout = String::from_utf8(output.stdout).context("output of dev/tools/build")?;
        let bin = stdout.lines().last().context("dev/tools/build printed no directory")?;
        Ok(Tools { bin: PathBuf::from(bin) })
    }

    /// The path of one program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }
}
