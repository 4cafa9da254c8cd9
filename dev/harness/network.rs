// SPDX-License-Identifier: Apache-2.0
//! A network namespace of our own with one cable to this machine, for a real node.

use std::fs::{self, File, OpenOptions};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// At most so many nodes on one machine; a number decides about names and addresses.
const NODES: u8 = 100;

/// The namespace of one node. [`super::node::Node`] takes it away with the rest.
#[derive(Debug)]
pub struct Network {
    /// Name under `/run/netns`.
    pub namespace: String,
    /// This machine's end of the cable.
    pub link: String,
    /// This machine as the node sees it.
    pub host: Ipv4Addr,
    /// The node as this machine sees it.
    pub node: Ipv4Addr,
    _lock: File,
}

impl Network {
    /// Makes one for the node in `dir`. What a node that died here left behind is taken away on the way.
    pub fn create(dir: &Path) -> anyhow::Result<Network> {
        // Beside the namespaces, to which each of its files says who has one.
        let locks = Path::new("/run/flotilla-nodes");
        fs::create_dir_all(locks).with_context(|| format!("creating {}", locks.display()))?;
        for number in 0..NODES {
            let path = locks.join(number.to_string());
            let lock = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
            if lock.try_lock().is_err() || !vacate(&path)? {
                continue;
            }
            let network = Network {
                namespace: format!("flotilla-{number}"),
                link: format!("flotilla{number}"),
                host: Ipv4Addr::new(10, 201, number, 1),
                node: Ipv4Addr::new(10, 201, number, 2),
                _lock: lock,
            };
            if Path::new("/run/netns").join(&network.namespace).exists() {
                continue; // Somebody else's.
            }
            fs::write(&path, dir.display().to_string())?;
            if let Err(error) = network.connect() {
                // Whatever came to be; most of it is not there.
                let _ = ip(&["link", "delete", &network.link]);
                let _ = ip(&["netns", "delete", &network.namespace]);
                return Err(error).context(
                    "this machine does not let us make a network namespace: a real node needs root with \
                     CAP_NET_ADMIN and CAP_SYS_ADMIN",
                );
            }
            return Ok(network);
        }
        bail!("{NODES} nodes run on this machine already")
    }

    fn connect(&self) -> anyhow::Result<()> {
        let (namespace, link) = (self.namespace.as_str(), self.link.as_str());
        let inner = ["-n", namespace];
        let (host, node) = (format!("{}/30", self.host), format!("{}/30", self.node));
        ip(&["netns", "add", namespace])?;
        ip(&["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace])?;
        ip(&["addr", "add", &host, "dev", link])?;
        ip(&["link", "set", link, "up"])?;
        ip(&[inner.as_slice(), &["addr", "add", &node, "dev", "eth0"]].concat())?;
        ip(&[inner.as_slice(), &["link", "set", "eth0", "up"]].concat())?;
        ip(&[inner.as_slice(), &["link", "set", "lo", "up"]].concat())?;
        ip(&[inner.as_slice(), &["route", "add", "default", "via", &self.host.to_string()]].concat())?;
        let forward = format!("--net=/run/netns/{namespace}");
        run("nsenter", &[&forward, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
    }

    /// A command that runs `program` inside. Not `ip netns exec`: that hides the cgroup mounts.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace)).arg(program);
        command
    }
}

/// Whether the number is free: nothing of an earlier node lives under it. The dead are taken away.
fn vacate(record: &Path) -> anyhow::Result<bool> {
    let dir = PathBuf::from(fs::read_to_string(record)?);
    if !dir.join("network").exists() {
        return Ok(true);
    }
    // Nodes of dev/cluster go on without the process that started them, and so without its lock.
    let script = r#"source "$1"/dev/lib/pids.sh; live_pids "$2""#;
    let live =
        Command::new("bash").args(["-c", script, "-", env!("CARGO_MANIFEST_DIR")]).arg(&dir).output()?;
    if !live.stdout.is_empty() {
        return Ok(false);
    }
    take_away(&dir)?;
    Ok(true)
}

/// Takes away everything of the node in `dir` but its logs.
pub(super) fn take_away(dir: &Path) -> anyhow::Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dev/node/down");
    run(&script.display().to_string(), &[&dir.display().to_string()])
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    run("ip", args)
}

/// Runs a program to its end; what it says is the error's text.
pub(super) fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(args).output().with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {} failed ({}): {}", args.join(" "), output.status, said.trim());
    }
    Ok(())
}
