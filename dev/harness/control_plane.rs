// SPDX-License-Identifier: Apache-2.0
//! One control plane: etcd and kube-apiserver, with real certificates, RBAC and an audit log.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use k8s_openapi::api::core::v1::Namespace;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::audit::{self, AuditEntry};
use super::kubeconfig::{self, Credential};
use super::pki::{self, Authority};
use super::ports::Port;
use super::process::{Lifetime, Process};
use super::tools::Tools;
use super::until::{GENEROUS, Wait};

/// What a control plane may do differently from the usual.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether the processes outlive the one that started them.
    pub lifetime: Lifetime,
    /// Further arguments of kube-apiserver; a repeated flag overrides the harness' own.
    pub apiserver_args: Vec<String>,
    /// The address of this machine under which a real node reaches the API server; it then listens there instead
    /// of on 127.0.0.1, and pods have service accounts.
    pub address: Option<Ipv4Addr>,
    /// Another audit policy than that of [`AuditEntry`]; [`ControlPlane::audit`] is of no use then.
    pub audit_policy: Option<&'static str>,
}

/// A running etcd and kube-apiserver. Dropping it kills them; the directory stays, with logs and audit log.
pub struct ControlPlane {
    /// Names the cluster in texts and log files.
    pub name: String,
    /// Certificates, data and logs.
    pub dir: PathBuf,
    /// The API server's port, on 127.0.0.1 unless the options say otherwise.
    pub port: u16,
    pub(super) options: Options,
    pub(super) authority: Authority,
    bin: PathBuf,
    etcd_url: String,
    etcd_peer_url: String,
    // In the order in which they are to be ended.
    pub(super) workloads: Vec<Process>,
    apiserver: Option<Process>,
    etcd: Option<Process>,
    pub(super) ports: Vec<Port>,
}

impl ControlPlane {
    /// Starts a new, empty control plane in `dir` and waits until it answers.
    pub async fn start(
        tools: &Tools,
        dir: &Path,
        name: &str,
        options: Options,
    ) -> anyhow::Result<ControlPlane> {
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        let (port, client, peer) = (Port::reserve()?, Port::reserve()?, Port::reserve()?);
        let mut plane = ControlPlane {
            name: name.into(),
            port: port.number(),
            options,
            authority: Authority::new(name)?,
            bin: tools.bin.clone(),
            etcd_url: format!("http://127.0.0.1:{}", client.number()),
            etcd_peer_url: format!("http://127.0.0.1:{}", peer.number()),
            workloads: Vec::new(),
            apiserver: None,
            etcd: None,
            ports: vec![port, client, peer],
            dir,
        };
        plane.write_files()?;
        plane.start_etcd()?;
        plane.start_apiserver().await.with_context(|| format!("starting the control plane {name}"))?;
        Ok(plane)
    }

    /// A kubeconfig of the group `system:masters`.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// The API server's address.
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address(), self.port)
    }

    fn address(&self) -> Ipv4Addr {
        self.options.address.unwrap_or(Ipv4Addr::LOCALHOST)
    }

    /// The certificate of the authority behind the server's, PEM.
    pub fn ca_pem(&self) -> &str {
        self.authority.pem()
    }

    /// A client of the group `system:masters`.
    ///
    /// It belongs to the async runtime it was made on: make one per test.
    pub async fn admin(&self) -> anyhow::Result<Client> {
        client(Kubeconfig::read_from(self.admin_kubeconfig())?).await
    }

    /// The YAML text of a kubeconfig with a bearer token.
    pub fn token_kubeconfig(&self, token: &str, namespace: &str) -> String {
        self.token_kubeconfig_at(&self.url(), token, namespace)
    }

    /// The same for another address of this server, that of a proxy on 127.0.0.1 or localhost.
    pub fn token_kubeconfig_at(&self, url: &str, token: &str, namespace: &str) -> String {
        kubeconfig::text(url, self.ca_pem(), namespace, Credential::Token(token))
    }

    /// A client that authenticates with a bearer token.
    pub async fn with_token(&self, token: &str, namespace: &str) -> anyhow::Result<Client> {
        client(Kubeconfig::from_yaml(&self.token_kubeconfig(token, namespace))?).await
    }

    /// Every request answered so far. The server writes an entry *after* its answer: look with `until`.
    pub fn audit(&self) -> anyhow::Result<Vec<AuditEntry>> {
        audit::read(&self.audit_log())
    }

    /// Where the audit log is.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// The pid of kube-apiserver, to freeze it, or to read its CPU time.
    pub fn apiserver_pid(&self) -> Option<u32> {
        self.apiserver.as_ref().map(Process::pid)
    }

    /// Where its etcd answers, plain HTTP on 127.0.0.1: a witness that misses no version of any object.
    pub fn etcd_url(&self) -> &str {
        &self.etcd_url
    }

    /// Freezes (SIGSTOP) or thaws (SIGCONT) etcd.
    pub fn freeze_etcd(&mut self, frozen: bool) -> anyhow::Result<()> {
        let signal = if frozen { libc::SIGSTOP } else { libc::SIGCONT };
        self.etcd.as_mut().context("no etcd runs")?.signal(signal)?;
        Ok(())
    }

    /// Kills kube-apiserver as a crash would, starts it again on the same port and waits until it answers.
    pub async fn restart_apiserver(&mut self) -> anyhow::Result<()> {
        if let Some(mut apiserver) = self.apiserver.take() {
            apiserver.kill()?;
        }
        self.start_apiserver().await
    }

    /// Stops both servers and keeps a copy of the store under `name`; then both start again.
    pub async fn back_up(&mut self, name: &str) -> anyhow::Result<()> {
        self.halt()?;
        copy_dir(&self.data(), &self.dir.join(name))?;
        self.start_etcd()?;
        self.start_apiserver().await
    }

    /// Stops both servers, puts the copy of [`ControlPlane::back_up`] in the store's place and starts both again:
    /// everything written since is forgotten, and resourceVersions are given out a second time.
    pub async fn restore(&mut self, name: &str) -> anyhow::Result<()> {
        self.halt()?;
        fs::remove_dir_all(self.data())?;
        copy_dir(&self.dir.join(name), &self.data())?;
        self.start_etcd()?;
        self.start_apiserver().await
    }

    fn halt(&mut self) -> anyhow::Result<()> {
        for process in [self.apiserver.take(), self.etcd.take()].iter_mut().flatten() {
            process.kill()?;
        }
        Ok(())
    }

    /// Where etcd keeps everything.
    fn data(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    /// Ends all processes, those that need others first.
    pub async fn stop(&mut self) {
        for process in self.workloads.iter_mut().chain(&mut self.apiserver).chain(&mut self.etcd) {
            let _ = process.kill();
        }
        self.workloads.clear();
        self.apiserver = None;
        self.etcd = None;
    }

    /// Writes a kubeconfig with a client certificate for `user`.
    pub(super) fn write_kubeconfig(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> anyhow::Result<PathBuf> {
        let pair = self.authority.client(user, group)?;
        let text = kubeconfig::text(&self.url(), self.ca_pem(), "default", Credential::Certificate(&pair));
        let path = self.dir.join(file);
        pki::write_private(&path, &text)?;
        Ok(path)
    }

    /// Starts a program with its log in the cluster's directory and its pid on record.
    pub(super) fn spawn(&self, name: &str, command: Command) -> anyhow::Result<Process> {
        let log = self.dir.join(format!("{name}.log"));
        Process::spawn(name, command, &log, Some(&self.dir.join("pids")), self.options.lifetime)
    }

    fn write_files(&self) -> anyhow::Result<()> {
        let server = self.authority.server(self.options.address)?;
        let kubelet_client = self.authority.client("kube-apiserver", Some("system:masters"))?;
        let (token_public, token_private) = pki::token_keys()?;
        for (file, text) in [
            ("ca.pem", self.authority.pem()),
            ("server.pem", &server.certificate),
            ("server.key", &server.key),
            ("kubelet-client.pem", &kubelet_client.certificate),
            ("kubelet-client.key", &kubelet_client.key),
            ("tokens.pub", &token_public),
            ("tokens.key", &token_private),
            ("audit-policy.yaml", self.options.audit_policy.unwrap_or(audit::POLICY)),
        ] {
            pki::write_private(&self.dir.join(file), text)?;
        }
        self.write_kubeconfig("admin.kubeconfig", "admin", Some("system:masters"))?;
        Ok(())
    }

    fn start_etcd(&mut self) -> anyhow::Result<()> {
        let peer_url = &self.etcd_peer_url;
        let mut command = Command::new(self.bin.join("etcd"));
        command
            .arg("--name=etcd")
            .arg(format!("--data-dir={}", self.data().display()))
            .args([format!("--listen-client-urls={0}", self.etcd_url)])
            .args([format!("--advertise-client-urls={0}", self.etcd_url)])
            .args([format!("--listen-peer-urls={peer_url}")])
            .args([format!("--initial-advertise-peer-urls={peer_url}")])
            .args([format!("--initial-cluster=etcd={peer_url}")])
            .args(["--unsafe-no-fsync", "--log-level=warn", "--quota-backend-bytes=8589934592"]);
        self.etcd = Some(self.spawn("etcd", command)?);
        Ok(())
    }

    async fn start_apiserver(&mut self) -> anyhow::Result<()> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let mut command = Command::new(self.bin.join("kube-apiserver"));
        command
            .args([
                format!("--etcd-servers={}", self.etcd_url),
                format!("--secure-port={}", self.port),
                format!("--tls-cert-file={}", file("server.pem")),
                format!("--tls-private-key-file={}", file("server.key")),
                format!("--client-ca-file={}", file("ca.pem")),
                format!("--service-account-key-file={}", file("tokens.pub")),
                format!("--service-account-signing-key-file={}", file("tokens.key")),
                format!("--audit-policy-file={}", file("audit-policy.yaml")),
                format!("--audit-log-path={}", file("audit.log")),
            ])
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--authorization-mode=Node,RBAC",
                "--anonymous-auth=false",
                "--allow-privileged=true",
                "--audit-log-format=json",
                // In megabytes: one file for the whole run.
                "--audit-log-maxsize=100000",
            ])
            .args([
                format!("--bind-address={}", self.address()),
                format!("--advertise-address={}", self.address()),
            ]);
        match self.options.address {
            None => command.args([
                // The endpoints of the service `kubernetes` may not be a loopback address, and nobody uses them.
                "--endpoint-reconciler-type=none",
                // Pods are accepted before a controller manager has made their service account.
                "--disable-admission-plugins=ServiceAccount",
            ]),
            // For `kubectl logs` and `exec`.
            Some(_) => command.args([
                "--kubelet-preferred-address-types=InternalIP".to_owned(),
                format!("--kubelet-client-certificate={}", file("kubelet-client.pem")),
                format!("--kubelet-client-key={}", file("kubelet-client.key")),
            ]),
        };
        command.args(&self.options.apiserver_args);
        let mut process = self.spawn("kube-apiserver", command)?;
        let client = self.admin().await?;
        let etcd = self.etcd.as_mut();
        let ready = ready(&client, &mut process, etcd).await;
        // Had it ended, the error would have the end of its log already.
        if ready.is_err() && process.exited()?.is_none() {
            return ready.with_context(|| process.tail());
        }
        ready?;
        self.apiserver = Some(process);
        Ok(())
    }
}

fn copy_dir(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_dir(&entry.path(), &copy)?,
            false => drop(fs::copy(entry.path(), &copy)?),
        }
    }
    Ok(())
}

/// Waits until the server is ready and has made the namespaces every cluster has; fails at once when it ends.
async fn ready(client: &Client, server: &mut Process, mut etcd: Option<&mut Process>) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let wait = Wait::new("the API server to be ready", GENEROUS);
    loop {
        etcd.as_mut().map_or(Ok(()), |etcd| etcd.check())?;
        server.check()?;
        let answers = async {
            client.request_text(http::Request::get("/readyz").body(Vec::new())?).await?;
            // These come from a loop of the server's that /readyz does not cover.
            for name in ["default", "kube-system"] {
                namespaces.get(name).await?;
            }
            Ok(Some(()))
        };
        if wait.attempt(answers).await?.is_some() {
            return Ok(());
        }
    }
}

async fn client(kubeconfig: Kubeconfig) -> anyhow::Result<Client> {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
