// SPDX-License-Identifier: Apache-2.0
//! A whole cluster with a real node: kubelet, containerd and kube-proxy in a network namespace of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::json;

use super::control_plane::{ControlPlane, Options};
use super::dns::{self, Dns};
use super::network::{self, Network};
use super::pki;
use super::process::{Lifetime, Process};
use super::tools::Tools;
use super::until::{GENEROUS, until};

/// Programs that come with the system, and where Debian has them.
const PROGRAMS: [&str; 8] = [
    "runc",
    "iptables",
    "conntrack",
    "ip",
    "socat",
    "nsenter",
    "/usr/lib/cni/bridge",
    "/usr/lib/cni/portmap",
];
const PODS: &str = "10.244.0.0/16";
/// The sandbox of each pod; made by `dev/image --pause`.
pub const PAUSE: &str = "flotilla.local/pause:1";
/// The same program under another name.
pub const OTHER_PAUSE: &str = "flotilla.local/pause:2";

/// A control plane and one node. Dropping it takes both away, unless it was started to stay.
pub struct Node {
    /// Its API server, reachable from pods.
    pub plane: ControlPlane,
    /// The programs it is made of.
    pub tools: Tools,
    dir: PathBuf,
    network: Network,
    lifetime: Lifetime,
    processes: Vec<Process>,
    // Not of a node that stays: it lives in this process.
    dns: Option<Dns>,
}

/// Says what this machine lacks to run a node.
pub fn requirements() -> anyhow::Result<()> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        bail!(
            "a real node needs root: kubelet and containerd mount, and make network namespaces and cgroups"
        );
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let found = |name: &&&str| path.split(':').any(|folder| Path::new(folder).join(name).exists());
    let missing: Vec<&&str> = PROGRAMS.iter().filter(|name| !found(name)).collect();
    if !missing.is_empty() {
        bail!(
            "a real node needs {missing:?}: install Debian's packages runc, containernetworking-plugins, iptables, \
             conntrack, iproute2, socat and util-linux"
        );
    }
    Ok(())
}

/// Tells a story on a node of its own; `story` gets it, and a folder for its files. If it fails, an account of the node is
/// printed and the logs stay.
pub async fn on_a_node(
    prefix: &str,
    story: impl AsyncFnOnce(&Node, &Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    requirements()?;
    let tools = Tools::build(Tools::NODE)?;
    let mut dir = tempfile::Builder::new().prefix(prefix).tempdir()?;
    let node = Node::start(&tools, &dir.path().join("cluster"), Lifetime::Bound).await?;
    let result = story(&node, &dir.path().join("work")).await;
    if result.is_err() {
        dir.disable_cleanup(true);
        println!("{}", node.account());
    }
    let gone = node.stop().await;
    result.with_context(|| format!("the logs are in {}", dir.path().display()))?;
    gone
}

impl Node {
    /// Starts it in `dir`, which must be empty, and waits until the node is ready for pods.
    pub async fn start(tools: &Tools, dir: &Path, lifetime: Lifetime) -> anyhow::Result<Node> {
        requirements()?;
        fs::create_dir_all(dir.join("node"))?;
        let dir = dir.canonicalize()?;
        let network = Network::create(&dir)?;
        let cgroup = &network.namespace;
        let record =
            format!("{} {} {cgroup} {}\n", network.namespace, network.link, tools.path("ctr").display());
        fs::write(dir.join("network"), record)?;
        create_cgroups(cgroup)?;
        let guard = Leftovers { dir: dir.clone(), armed: true };
        let options = Options { lifetime, address: Some(network.host), ..Options::default() };
        let plane = ControlPlane::start(tools, &dir.join("plane"), "cluster", options).await?;
        let dns = match lifetime {
            Lifetime::Bound => Some(Dns::start(network.host).await?),
            Lifetime::Detached => None,
        };
        let processes = Vec::new();
        let mut node = Node { plane, tools: tools.clone(), dir, network, lifetime, processes, dns };
        guard.disarm();
        node.start_workloads().await?;
        Ok(node)
    }

    /// Certificates, logs and data.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The socket of its container runtime.
    pub fn containerd(&self) -> String {
        self.file("containerd.sock")
    }

    /// Brings the images of an archive onto the node.
    pub fn load(&self, archive: &Path) -> anyhow::Result<()> {
        let socket = self.file("containerd.sock");
        let (ctr, archive) = (self.tools.path("ctr").display().to_string(), archive.display().to_string());
        network::run(&ctr, &["-a", &socket, "-n", "k8s.io", "images", "import", &archive])
    }

    /// SIGKILL to the first process of a container.
    pub fn kill_container(&self, id: &str) -> anyhow::Result<()> {
        let socket = self.file("containerd.sock");
        let ctr = self.tools.path("ctr").display().to_string();
        network::run(&ctr, &["-a", &socket, "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", id])
    }

    /// A command of the built helm or kubectl, with an administrator's rights.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.tools.path(program));
        command
            .env("KUBECONFIG", self.plane.admin_kubeconfig())
            // Nothing of the tester's own.
            .env("HELM_CACHE_HOME", self.dir.join("helm"))
            .env("HELM_CONFIG_HOME", self.dir.join("helm"))
            .env("HELM_DATA_HOME", self.dir.join("helm"));
        command
    }

    /// Runs helm or kubectl to its end and gives its standard output.
    pub fn run(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        let output =
            self.command(program).args(args).output().with_context(|| format!("running {program}"))?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            bail!("{program} {} failed ({}):\n{out}{err}", args.join(" "), output.status);
        }
        Ok(out.into_owned())
    }

    /// What there is to know of it when something went wrong.
    pub fn account(&self) -> String {
        let mut account = String::new();
        for args in [
            "get pods -A -o wide",
            "get events -A --field-selector type=Warning --sort-by .lastTimestamp",
            "describe nodes",
            "logs -n cattle-fleet-system -l app.kubernetes.io/name=flotilla-agent --tail=20 --prefix",
            "logs -n cattle-fleet-system -l app.kubernetes.io/name=flotilla-controller --tail=20 --prefix",
        ] {
            let told = self.run("kubectl", &args.split(' ').collect::<Vec<_>>());
            account += &format!("$ kubectl {args}\n{}\n", told.unwrap_or_else(|error| format!("{error:#}")));
        }
        account
    }

    /// Takes the node away and says what could not be.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.lifetime = Lifetime::Detached; // Done here, with an answer, rather than when dropped.
        network::take_away(&self.dir)?;
        self.plane.stop().await;
        Ok(())
    }

    async fn start_workloads(&mut self) -> anyhow::Result<()> {
        self.start_containerd().await?;
        // The sandbox image must be there before the first pod.
        let pause = image(&["--pause"])?;
        self.load(&pause)?;
        let tools = self.tools.clone();
        let cidrs = ["--allocate-node-cidrs=true".to_owned(), format!("--cluster-cidr={PODS}")];
        self.plane.start_controller_manager(&tools, &cidrs)?;
        self.plane.start_scheduler(&tools)?;
        self.start_kubelet()?;
        self.start_proxy()?;
        self.plane
            .workloads_ready(1)
            .await
            .with_context(|| self.processes.iter().map(Process::tail).collect::<Vec<_>>().join("\n"))
    }

    async fn start_containerd(&mut self) -> anyhow::Result<()> {
        let (root, state, cni) =
            (self.file("containerd/root"), self.file("containerd/state"), self.file("cni"));
        let config = self.file("containerd.toml");
        // OOM scores: lowering them takes a capability that containers like ours do not have.
        let text = format!(
            "version = 3
root = \"{root}\"
state = \"{state}\"
disabled_plugins = [\"io.containerd.internal.v1.opt\"]
[grpc]
address = \"{}\"
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = \"{PAUSE}\"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [\"/usr/lib/cni\"]
conf_dir = \"{cni}\"
",
            self.file("containerd.sock")
        );
        fs::write(&config, text)?;
        fs::create_dir_all(&cni)?;
        let plugins = json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": {
                "type": "host-local", "dataDir": format!("{cni}/leases"),
                "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}],
            }},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]});
        fs::write(Path::new(&cni).join("10-pods.conflist"), plugins.to_string())?;
        let mut command = self.network.command(&self.tools.path("containerd"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.arg(format!("--config={config}")).env("PATH", format!("{}:{path}", self.tools.bin.display()));
        self.spawn("containerd", command)?;
        let ctr = self.tools.path("ctr").display().to_string();
        let socket = self.file("containerd.sock");
        until("containerd to answer", GENEROUS, async || {
            self.processes.iter_mut().try_for_each(Process::check)?;
            network::run(&ctr, &["-a", &socket, "version"]).map(Some)
        })
        .await
    }

    fn start_kubelet(&mut self) -> anyhow::Result<()> {
        let name = "node-0";
        let user = format!("system:node:{name}");
        let kubeconfig = self.plane.write_kubeconfig("kubelet.kubeconfig", &user, Some("system:nodes"))?;
        let config = self.file("kubelet.yaml");
        // Absolute: a share of a big disk is more than a test machine may have free, and a full node takes no pods.
        let little = "20Mi";
        // JSON is YAML.
        let text = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false}, "webhook": {"enabled": false},
                "x509": {"clientCAFile": self.plane.dir.join("ca.pem")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": format!("unix://{}", self.file("containerd.sock")),
            "podLogsDir": self.file("logs"),
            "failCgroupV1": false, "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{}", self.network.namespace),
            "cgroupsPerQOS": false, "enforceNodeAllocatable": [], "failSwapOn": false,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": little, "nodefs.inodesFree": "1000",
                "imagefs.available": little},
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
            "maxPods": 500, "serializeImagePulls": false,
            "kubeAPIQPS": 200, "kubeAPIBurst": 400,
            "resolvConf": "/dev/null", "clusterDomain": dns::DOMAIN,
            "clusterDNS": self.dns.iter().map(|_| self.network.host.to_string()).collect::<Vec<_>>(),
        });
        fs::write(&config, text.to_string())?;
        let mut command = self.network.command(&self.tools.path("kubelet"));
        command.args([
            format!("--config={config}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--root-dir={}", self.file("kubelet")),
            format!("--cert-dir={}", self.file("kubelet/pki")),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", self.network.node),
        ]);
        self.spawn("kubelet", command)
    }

    fn start_proxy(&mut self) -> anyhow::Result<()> {
        let kubeconfig = self.plane.write_kubeconfig("proxy.kubeconfig", "system:kube-proxy", None)?;
        let mut command = self.network.command(&self.tools.path("kube-proxy"));
        command.arg(format!("--kubeconfig={}", kubeconfig.display())).args([
            "--proxy-mode=iptables",
            "--cluster-cidr=10.244.0.0/16",
            "--hostname-override=node-0",
            // Limits of the whole machine, which are not ours to set.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ]);
        self.spawn("kube-proxy", command)
    }

    fn spawn(&mut self, name: &str, command: Command) -> anyhow::Result<()> {
        let log = self.dir.join("node").join(format!("{name}.log"));
        let pids = self.dir.join("node/pids");
        self.processes.push(Process::spawn(name, command, &log, Some(&pids), self.lifetime)?);
        Ok(())
    }

    fn file(&self, name: &str) -> String {
        self.dir.join("node").join(name).display().to_string()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Bound
            && let Err(error) = network::take_away(&self.dir)
        {
            eprintln!("{error:#}");
        }
    }
}

/// Takes away what there is of a node that did not come up.
struct Leftovers {
    dir: PathBuf,
    armed: bool,
}

impl Leftovers {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        if self.armed
            && let Err(error) = network::take_away(&self.dir)
        {
            eprintln!("{error:#}");
        }
    }
}

/// The group that all pods go into, in each hierarchy of this machine: the kubelet takes its existence for granted.
fn create_cgroups(name: &str) -> anyhow::Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    let mut hierarchies: Vec<PathBuf> = vec![];
    if root.join("cgroup.controllers").exists() {
        hierarchies.push(root.into());
    } else {
        let folders = fs::read_dir(root).context("this machine has no cgroups at /sys/fs/cgroup")?;
        hierarchies.extend(folders.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?);
    }
    for group in
        hierarchies.iter().filter(|path| path.join("cgroup.procs").exists()).map(|path| path.join(name))
    {
        fs::create_dir_all(&group)
            .with_context(|| format!("this machine does not let us make the cgroup {}", group.display()))?;
    }
    Ok(())
}

/// Runs `dev/image`, for an image of the program as tests have it, and gives the path of the archive.
pub fn image(args: &[&str]) -> anyhow::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dev/image");
    let mut command = Command::new(&script);
    let output = command.args(args).env("FLOTILLA_PROFILE", "dev").output().context("running dev/image")?;
    if !output.status.success() {
        bail!("dev/image failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let stdout = String::from_utf8(output.stdout)?;
    Ok(PathBuf::from(stdout.lines().last().context("dev/image printed no path")?))
}
