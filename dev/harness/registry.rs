// SPDX-License-Identifier: Apache-2.0
//! A real OCI registry and a chart repository on loopback.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use super::pki::{self, Authority};
use super::{Lifetime, Port, Process, Tools, until};

const BOUND: Duration = Duration::from_secs(30);

/// Who may read and write.
pub const USER: &str = "admiral";
/// The password of [`USER`].
pub const PASSWORD: &str = "hunter2";
/// The two as a line of an htpasswd file, bcrypt: the only form that the registry takes.
const HTPASSWD: &str = "admiral:$2a$04$jCBkcWF9zZUbWn1oR7f78O2wTOhYDl0FYDbU5K/nokzNQG/TPTb4S\n";

/// A server that ends with this value.
pub struct Server {
    /// `127.0.0.1:PORT`.
    pub host: String,
    process: Process,
    _port: Port,
}

impl Server {
    /// What it wrote to its log: a line for each request.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// Whether a server wants TLS and a password.
#[derive(Clone, Copy, Default)]
pub struct Guard<'a> {
    /// Signs its certificate.
    pub authority: Option<&'a Authority>,
    /// Only [`USER`] may use it.
    pub password: bool,
}

/// Starts a registry that keeps everything in memory.
pub async fn registry(tools: &Tools, dir: &Path, name: &str, guard: Guard<'_>) -> anyhow::Result<Server> {
    let (port, dir) = (Port::reserve()?, dir.join(name));
    std::fs::create_dir_all(&dir)?;
    let host = format!("127.0.0.1:{}", port.number());
    let mut config = format!(
        "version: 0.1\nlog: {{level: info}}\nstorage: {{inmemory: {{}}}}\nhttp:\n  addr: {host}\n  secret: none\n"
    );
    if let Some((certificate, key)) = pair(&dir, guard)? {
        config +=
            &format!("  tls: {{certificate: \"{}\", key: \"{}\"}}\n", certificate.display(), key.display());
    }
    if guard.password {
        let path = dir.join("htpasswd");
        std::fs::write(&path, HTPASSWD)?;
        config += &format!("auth: {{htpasswd: {{realm: tests, path: \"{}\"}}}}\n", path.display());
    }
    let path = dir.join("config.yaml");
    std::fs::write(&path, config)?;
    let mut command = Command::new(tools.path("registry"));
    command.arg("serve").arg(path).env("OTEL_TRACES_EXPORTER", "none");
    started(name, command, &dir, host, port).await
}

/// Serves the files of `charts`.
pub async fn charts(
    tools: &Tools,
    dir: &Path,
    name: &str,
    charts: &Path,
    guard: Guard<'_>,
) -> anyhow::Result<Server> {
    let (port, dir) = (Port::reserve()?, dir.join(name));
    std::fs::create_dir_all(&dir)?;
    let host = format!("127.0.0.1:{}", port.number());
    let mut command = Command::new(tools.path("registry"));
    command.arg("charts").arg(&host).arg(charts);
    if let Some((certificate, key)) = pair(&dir, guard)? {
        command.arg(certificate).arg(key);
    }
    if guard.password {
        command.env("CHARTS_USER", USER).env("CHARTS_PASSWORD", PASSWORD);
    }
    started(name, command, &dir, host, port).await
}

fn pair(dir: &Path, guard: Guard<'_>) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
    let Some(authority) = guard.authority else { return Ok(None) };
    let pair = authority.server(None)?;
    let (certificate, key) = (dir.join("server.crt"), dir.join("server.key"));
    std::fs::write(&certificate, pair.certificate)?;
    pki::write_private(&key, &pair.key)?;
    Ok(Some((certificate, key)))
}

async fn started(
    name: &str,
    command: Command,
    dir: &Path,
    host: String,
    port: Port,
) -> anyhow::Result<Server> {
    let process = Process::spawn(name, command, &dir.join("log"), None, Lifetime::Bound)?;
    until(&format!("{name} to listen"), BOUND, async || Ok(tokio::net::TcpStream::connect(&host).await.ok()))
        .await
        .with_context(|| process.log())?;
    Ok(Server { host, process, _port: port })
}

/// Runs helm, with its own files below `dir`; gives what it printed.
pub fn helm(tools: &Tools, dir: &Path, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(tools.path("helm"));
    command.args(args).current_dir(dir);
    for (variable, folder) in
        [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
    {
        command.env(variable, dir.join("helm").join(folder));
    }
    let output = command.output().context("running helm")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("helm {} failed: {out}{err}", args.join(" "));
    }
    Ok(out.into_owned())
}

/// Writes a chart with one ConfigMap that tells its version, and packs it to `dir/NAME-VERSION.tgz`.
pub fn package(tools: &Tools, dir: &Path, name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let source = dir.join("sources").join(format!("{name}-{version}")).join(name);
    std::fs::create_dir_all(source.join("templates"))?;
    std::fs::write(
        source.join("Chart.yaml"),
        format!("apiVersion: v2\nname: {name}\nversion: \"{version}\"\n"),
    )?;
    std::fs::write(
        source.join("templates/map.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\ndata:\n  \
         version: {{ .Chart.Version | quote }}\n  greeting: {{ .Values.greeting | quote }}\n",
    )?;
    std::fs::write(source.join("values.yaml"), "greeting: ahoy\n")?;
    helm(tools, dir, &["package", &source.display().to_string()])?;
    Ok(dir.join(format!("{name}-{version}.tgz")))
}
