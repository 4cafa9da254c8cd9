// SPDX-License-Identifier: Apache-2.0
//! Processes of the program under test: replicas of the agent, and the controller.

use std::io;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::Context;

use super::ports::Port;
use super::process::{Lifetime, Process};

/// One running process of `flotilla`, killed when dropped.
#[derive(Debug)]
pub struct Instance {
    name: String,
    process: Process,
    metrics: Port,
    probe: Port,
}

/// One `flotilla agent` process.
#[derive(Debug)]
pub struct Replica(Instance);

/// One `flotilla controller` process.
#[derive(Debug)]
pub struct Controller(Instance);

impl Replica {
    /// Starts a replica under the name `name`. It is not ready yet: look at [`Instance::probe_url`].
    pub fn spawn(
        binary: &Path,
        name: &str,
        kubeconfig: &Path,
        agent_namespace: &str,
        extra_args: &[&str],
        extra_env: &[(&str, &str)],
        log: &Path,
    ) -> anyhow::Result<Replica> {
        let (metrics, probe) = (Port::reserve()?, Port::reserve()?);
        let addresses = [&metrics, &probe].map(|port| format!("127.0.0.1:{}", port.number()));
        let mut command = command("agent", binary, name, kubeconfig);
        command
            .args(extra_args)
            .env("NAMESPACE", agent_namespace)
            .env("FLEET_AGENT_METRICS_BIND_ADDRESS", &addresses[0])
            .env("FLEET_AGENT_PROBE_BIND_ADDRESS", &addresses[1])
            .envs(extra_env.iter().copied());
        Instance::spawn(name, command, metrics, probe, log).map(Replica)
    }
}

impl Controller {
    /// Starts a controller under the name `name`; `kubeconfig` is one for the upstream cluster.
    pub fn spawn(
        binary: &Path,
        name: &str,
        kubeconfig: &Path,
        extra_args: &[&str],
        extra_env: &[(&str, &str)],
        log: &Path,
    ) -> anyhow::Result<Controller> {
        let (metrics, probe) = (Port::reserve()?, Port::reserve()?);
        let mut command = command("controller", binary, name, kubeconfig);
        command
            .arg(format!("--metrics-bind-address=127.0.0.1:{}", metrics.number()))
            .arg(format!("--probe-bind-address=127.0.0.1:{}", probe.number()))
            .args(extra_args)
            .envs(extra_env.iter().copied());
        Instance::spawn(name, command, metrics, probe, log).map(Controller)
    }
}

fn command(verb: &str, binary: &Path, name: &str, kubeconfig: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .arg(verb)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .env("POD_NAME", name)
        // The tester's own cluster must never be taken for the one under test.
        .env_remove("KUBECONFIG");
    command
}

impl Deref for Replica {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.0
    }
}

impl DerefMut for Replica {
    fn deref_mut(&mut self) -> &mut Instance {
        &mut self.0
    }
}

impl Deref for Controller {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.0
    }
}

impl DerefMut for Controller {
    fn deref_mut(&mut self) -> &mut Instance {
        &mut self.0
    }
}

impl Instance {
    fn spawn(
        name: &str,
        command: Command,
        metrics: Port,
        probe: Port,
        log: &Path,
    ) -> anyhow::Result<Instance> {
        let process = Process::spawn(name, command, log, None, Lifetime::Bound)?;
        Ok(Instance { name: name.into(), process, metrics, probe })
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Where it serves its metrics.
    pub fn metrics_url(&self) -> String {
        format!("http://127.0.0.1:{}/metrics", self.metrics.number())
    }

    /// Where it answers probes, without a path.
    pub fn probe_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.probe.number())
    }

    /// SIGKILL, the crash; returns when the process is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.kill()
    }

    /// SIGTERM, the orderly end; use [`Instance::wait`] to see it end.
    pub fn term(&mut self) -> io::Result<()> {
        self.process.signal(libc::SIGTERM)
    }

    /// SIGSTOP, the freeze; it takes effect while the call returns.
    pub fn stop_signal(&mut self) -> io::Result<()> {
        self.process.signal(libc::SIGSTOP)
    }

    /// SIGCONT, the thaw.
    pub fn cont(&mut self) -> io::Result<()> {
        self.process.signal(libc::SIGCONT)
    }

    /// Waits for its end; bound it with a time limit where it might not come.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// The exit status, once it has ended.
    pub fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.exited()
    }

    /// Fails, with the end of the log, when it has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.process.check()
    }

    /// The whole log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Processor time used so far, user and system, without children that are still running.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        cpu_seconds(self.pid())
    }

    /// Resident memory now.
    pub fn rss_bytes(&self) -> anyhow::Result<u64> {
        rss_bytes(self.pid())
    }
}

/// Processor time of any process of ours, its ended and reaped children included.
pub fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = proc_file(pid, "stat")?;
    // The command name, in parentheses, may contain anything; the numbers follow the last one.
    let (_, numbers) = stat.rsplit_once(')').context("/proc/PID/stat has no command name")?;
    // utime, stime, cutime and cstime are the fields 14 to 17, and the third is the first after the name.
    let ticks: u64 = numbers.split_whitespace().skip(11).take(4).map(|n| n.parse().unwrap_or(0u64)).sum();
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Ok(ticks as f64 / per_second as f64)
}

/// Resident memory of any process of ours.
pub fn rss_bytes(pid: u32) -> anyhow::Result<u64> {
    let statm = proc_file(pid, "statm")?;
    let pages: u64 =
        statm.split_whitespace().nth(1).context("/proc/PID/statm has no second field")?.parse()?;
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(pages * page as u64)
}

fn proc_file(pid: u32, file: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
}
