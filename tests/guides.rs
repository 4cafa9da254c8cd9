// SPDX-License-Identifier: Apache-2.0
//! `docs/install.md` and `docs/moving.md`, followed command by command on a real node: the image, all ways for an agent to
//! get its bundles, the controller; from Fleet's agent to ours and back. Fleet's controller is played by the stand-in that
//! registers clusters, Fleet's agent by Pods that do nothing and a Lease in their name.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, ensure};
use flotilla::api::{BundleDeployment, Cluster, names};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;
#[path = "guides/moving.rs"]
mod moving;

use harness::fleet::{self, AGENT_NAMESPACE, REGISTRATION_NAMESPACE};
use harness::guide::{Guide, NOT_RUN, Shell};
use harness::node::{Node, on_a_node};
use harness::registrar::Registrar;
use harness::units::Units;
use harness::{GENEROUS, until};

const BINARY: &str = env!("CARGO_BIN_EXE_flotilla");
/// The pages that lead somebody somewhere, and the test that goes there.
const GUIDES: [(&str, &str); 5] = [
    ("README.md", "tests/guides.rs"),
    ("docs/install.md", "tests/guides.rs"),
    ("docs/moving.md", "tests/guides/moving.rs"),
    ("docs/registration.md", "tests/guides.rs"),
    ("docs/unmanaged.md", "tests/unmanaged.rs"),
];
/// The name of the registration token in the guide.
const TOKEN: &str = "import-token";

fn text(relative: &str) -> anyhow::Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(relative);
    std::fs::read_to_string(&path).with_context(|| relative.to_owned())
}

#[test]
fn every_guide_with_commands_has_a_test_that_follows_it_to_its_end() -> anyhow::Result<()> {
    for (page, test) in GUIDES {
        let guide = Guide::read(page, Shell { dir: ".".into(), variables: vec![] })?;
        let test_text = text(test)?;
        let followed =
            test_text.contains(&format!("Guide::read(\"{page}\"")) && test_text.contains(".finished()");
        ensure!(guide.is_empty() || followed, "{test} does not follow {page}");
    }
    let known: BTreeSet<&str> = GUIDES.iter().map(|(page, _)| *page).collect();
    for (page, command, reason) in NOT_RUN {
        ensure!(known.contains(page) && !reason.is_empty(), "{page}: {command}");
    }
    Ok(())
}

#[test]
fn a_command_that_nobody_ran_is_found() -> anyhow::Result<()> {
    let guide = Guide::read("docs/install.md", Shell { dir: ".".into(), variables: vec![] })?;
    let left = guide.finished().unwrap_err().to_string();
    ensure!(left.contains("helm install") && !left.contains("podman"), "{left}");
    Ok(())
}

#[test]
fn the_image_holds_static_programs_and_nothing_that_they_need_beside_them() -> anyhow::Result<()> {
    let archive = harness::node::image(&["--tag", "static"])?;
    let dir = tempfile::Builder::new().prefix("flotilla-image-").tempdir()?;
    let files = dir.path().join("files");
    std::fs::create_dir(&files)?;
    untar(&archive, dir.path())?;
    untar(&dir.path().join("layer.tar"), &files)?;
    let config: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("config.json"))?)?;
    ensure!(config["config"]["User"] == "65532:65532", "the kubelet must see that it is not root: {config}");
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(files.join("usr/bin"))? {
        let path = entry?.path();
        ensure!(!needs_a_loader(&std::fs::read(&path)?)?, "{} is not static", path.display());
        programs.push(path.file_name().context("no name")?.to_string_lossy().into_owned());
    }
    programs.sort();
    ensure!(programs == ["flotilla", "flotilla-engine"], "{programs:?}");
    ensure!(files.join("etc/ssl/certs/ca-certificates.crt").exists());
    ensure!(!files.join("lib").exists() && !files.join("lib64").exists() && !files.join("usr/lib").exists());
    // The test itself is an ordinary program.
    ensure!(needs_a_loader(&std::fs::read(std::env::current_exe()?)?)?, "this does not see a loader");
    Ok(())
}

fn untar(archive: &Path, to: &Path) -> anyhow::Result<()> {
    let file = std::fs::File::open(archive).with_context(|| archive.display().to_string())?;
    Ok(tar::Archive::new(file).unpack(to)?)
}

/// Whether a 64-bit little-endian ELF file has a program header of type PT_INTERP.
fn needs_a_loader(elf: &[u8]) -> anyhow::Result<bool> {
    const INTERP: u64 = 3;
    let number = |at: usize, length: usize| -> anyhow::Result<u64> {
        let bytes = elf.get(at..at + length).context("a short file")?;
        Ok(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "not an ELF file of a kind that is known here");
    // Offset, size and count of the program headers; the type is a header's first word.
    let (offset, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    for header in 0..count {
        if number(offset + header * size, 4)? == INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_to_install_is_followed_on_a_real_node() -> anyhow::Result<()> {
    on_a_node("flotilla-guide-", async |node, work| Site::new(node, work).await?.followed().await).await
}

/// One cluster with a real node, which manages itself.
struct Site<'a> {
    node: &'a Node,
    client: Client,
    shell: Shell,
    start: Instant,
}

impl Site<'_> {
    async fn new<'a>(node: &'a Node, work: &Path) -> anyhow::Result<Site<'a>> {
        std::fs::create_dir_all(work.join("my-app/manifests"))?;
        std::fs::write(work.join("my-app/fleet.yaml"), "defaultNamespace: market\n")?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in ["charts", "dev"] {
            std::os::unix::fs::symlink(root.join(name), work.join(name))?;
        }
        let kubeconfig = work.join("kubeconfig");
        std::fs::write(&kubeconfig, contexts(&std::fs::read_to_string(node.plane.admin_kubeconfig())?)?)?;
        let beside = Path::new(BINARY).parent().context("no folder")?;
        let path = std::env::var("PATH")?;
        let own = work.display().to_string();
        let variables = [
            ("PATH", format!("{}:{}:{path}", beside.display(), node.tools.bin.display())),
            ("KUBECONFIG", kubeconfig.display().to_string()),
            ("KUBECACHEDIR", own.clone()),
            ("HELM_CACHE_HOME", own.clone()),
            ("HELM_CONFIG_HOME", own.clone()),
            ("HELM_DATA_HOME", own),
            ("CONTAINERD_ADDRESS", node.containerd()),
            ("GARDEN", names::cluster_namespace(REGISTRATION_NAMESPACE, "garden")),
            // What is said here is of every profile; this one is there already.
            ("FLOTILLA_PROFILE", "dev".to_owned()),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let client = node.plane.admin().await?;
        Ok(Site { node, client, shell: Shell { dir: work.to_owned(), variables }, start: Instant::now() })
    }

    async fn followed(&self) -> anyhow::Result<()> {
        let guide = Guide::read("docs/install.md", self.shell.clone())?;
        guide.section("The image", &[])?;
        self.say("the image is on the node");
        guide.section("Custom resource definitions", &[])?;
        self.every_value_set_is_accepted()?;
        guide.section("The controller, in the management cluster", &[])?;
        self.say("the controller runs");
        guide.section("The agent, for bundles from its own cluster", &["flotilla apply"])?;
        self.write("pears")?;
        guide.command("flotilla apply my-app/")?;
        self.until_deployed("cluster-fleet-local-local", "pears").await?;
        self.say("local mode deploys");
        self.local_with_few_rights().await?;
        self.uninstall()?;
        ensure!(self.registration().await? == (false, false), "what local mode made goes with it");
        self.registered_by_the_chart(&guide).await?;
        guide.section("Taking it away", &[])?;
        guide.finished()?;
        moving::in_and_back(&self.client, &self.shell).await?;
        self.say("a cluster was moved in and back");
        let readme = Guide::read("README.md", self.shell.clone())?;
        readme.run_as_in(&guide);
        readme.finished()
    }

    /// The smallest rights that the chart gives are enough for the check-in and for the labels of a namespace, too.
    async fn local_with_few_rights(&self) -> anyhow::Result<()> {
        for object in [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet-local"}}),
            json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster",
                "metadata": {"name": "local", "namespace": "fleet-local"}}),
        ] {
            fleet::apply(&self.client, object).await?;
        }
        let values =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/own_charts/flotilla-agent/local.values.yaml");
        self.shell.done(&format!(
            "helm upgrade flotilla-agent charts/flotilla-agent --namespace {AGENT_NAMESPACE} --wait --reuse-values \
             --values {} --set checkinInterval=2s",
            values.display()
        ))?;
        self.may_not("create", "deployments.apps")?;
        let clusters: Api<Cluster> = Api::namespaced(self.client.clone(), "fleet-local");
        until("the check-in", GENEROUS, async || {
            let agent = clusters.get("local").await?.status.and_then(|status| status.agent);
            Ok(agent.filter(|agent| agent.namespace == AGENT_NAMESPACE).map(drop))
        })
        .await?;
        std::fs::write(
            self.shell.dir.join("my-app/fleet.yaml"),
            "defaultNamespace: market\nnamespaceLabels: {rights: few}\n",
        )?;
        self.publish("cluster-fleet-local-local", "apples").await?;
        let market = Api::<Namespace>::all(self.client.clone()).get("market").await?;
        ensure!(market.metadata.labels.unwrap_or_default().get("rights").is_some_and(|value| value == "few"));
        self.say("local mode with few rights deploys and checks in");
        Ok(())
    }

    /// Whether Secret and ConfigMap `fleet-agent` are there.
    async fn registration(&self) -> anyhow::Result<(bool, bool)> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), AGENT_NAMESPACE);
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), AGENT_NAMESPACE);
        Ok((secrets.get_opt("fleet-agent").await?.is_some(), maps.get_opt("fleet-agent").await?.is_some()))
    }

    /// The flow with a registration token: with all rights, with few, and once more with what it left behind.
    async fn registered_by_the_chart(&self, guide: &Guide) -> anyhow::Result<()> {
        let registrar = Registrar::start(&self.node.plane).await?;
        for object in fleet::agent_roles() {
            fleet::apply(&self.client, object).await?;
        }
        // As Fleet's controller keeps it for a ClusterRegistrationToken.
        let mut offer = registrar.bootstrap(TOKEN, REGISTRATION_NAMESPACE).await?;
        offer["metadata"]["name"] = json!(TOKEN);
        fleet::apply(&self.client, offer).await?;
        guide.section("The agent, in a cluster that is not registered yet", &[])?;
        let namespace = self.until_registered().await?;
        let kube_system = Api::<Namespace>::all(self.client.clone()).get("kube-system").await?;
        let id = kube_system.metadata.uid.context("kube-system has no uid")?;
        let asked = registrar.requests(&id).await?;
        ensure!(asked.len() == 1, "two replicas asked {} times", asked.len());
        self.publish(&namespace, "plums").await?;
        self.say("an agent with all rights registered its cluster and deploys");

        // The same with nothing but the rights that the chart gives and the guide adds.
        let agent = ["--namespace", AGENT_NAMESPACE, "deployment/flotilla-agent"];
        self.node.run("kubectl", &[&["scale", "--replicas=0", "--timeout=1m"], agent.as_slice()].concat())?;
        let selector = "--selector=app.kubernetes.io/name=flotilla-agent";
        let pods = ["wait", "pods", selector, "--for=delete", "--timeout=2m", "--namespace", AGENT_NAMESPACE];
        self.node.run("kubectl", &pods)?;
        self.node.run("kubectl", &["delete", "secret", "fleet-agent", "--namespace", AGENT_NAMESPACE])?;
        std::fs::write(self.shell.dir.join("rights.yaml"), guide.file("rights.yaml")?)?;
        guide.section("Rights of the agent", &[])?;
        let again = self.until_registered().await?;
        ensure!(again == namespace, "{again} is not {namespace}");
        let asked_again = registrar.requests(&id).await?;
        ensure!(asked_again.iter().all(|request| request.metadata.uid != asked[0].metadata.uid));
        self.publish(&namespace, "figs").await?;
        self.may_not("create", "deployments.apps")?;
        self.say("an agent with few rights registered its cluster and deploys");

        self.uninstall()?;
        ensure!(self.registration().await? == (true, true), "the registration stays");
        // The same release takes over what it left. That it can is all that is asked: nothing runs.
        self.shell.done(&format!(
            "helm install flotilla-agent charts/flotilla-agent --namespace {AGENT_NAMESPACE} --values values.yaml \
             --set replicas=0"
        ))?;
        self.uninstall()?;
        ensure!(self.registration().await? == (true, true), "the registration stays whoever made it");
        guide.section("The agent, in a cluster that Fleet has registered", &[])?;
        self.publish(&namespace, "quinces").await?;
        self.say("an agent with an existing registration deploys");
        Ok(())
    }

    /// The namespace of the cluster's BundleDeployments, once the agent has its credentials and took away the offer.
    async fn until_registered(&self) -> anyhow::Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), AGENT_NAMESPACE);
        until("the cluster to be registered", GENEROUS, async || {
            if secrets.get_opt("fleet-agent-bootstrap").await?.is_some() {
                return Ok(None);
            }
            let data =
                secrets.get_opt("fleet-agent").await?.and_then(|secret| secret.data).unwrap_or_default();
            Ok(data.get("deploymentNamespace").map(|name| String::from_utf8_lossy(&name.0).into_owned()))
        })
        .await
    }

    fn write(&self, fruit: &str) -> anyhow::Result<()> {
        let map =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: stall}}\ndata: {{fruit: {fruit}}}\n");
        Ok(std::fs::write(self.shell.dir.join("my-app/manifests/map.yaml"), map)?)
    }

    async fn publish(&self, namespace: &str, fruit: &str) -> anyhow::Result<()> {
        self.write(fruit)?;
        self.shell.done(&format!("flotilla apply my-app/ --namespace {namespace}"))?;
        self.until_deployed(namespace, fruit).await
    }

    async fn until_deployed(&self, namespace: &str, fruit: &str) -> anyhow::Result<()> {
        let units: Api<BundleDeployment> = Api::namespaced(self.client.clone(), namespace);
        let wanted = units.get("my-app").await?.spec.deployment_id;
        Units::follow(units)
            .await?
            .until(&format!("{fruit} to be deployed"), GENEROUS, |live| {
                let status = live.get("my-app")?.status.as_ref()?;
                (status.applied_deployment_id == wanted && status.ready).then_some(())
            })
            .await?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "market");
        let data = maps.get("stall").await?.data.unwrap_or_default();
        ensure!(data.get("fruit").map(String::as_str) == Some(fruit), "{data:?}");
        Ok(())
    }

    fn uninstall(&self) -> anyhow::Result<()> {
        let release = ["uninstall", "flotilla-agent", "--namespace", AGENT_NAMESPACE, "--wait"];
        self.node.run("helm", &release).map(drop)
    }

    fn may_not(&self, verb: &str, resource: &str) -> anyhow::Result<()> {
        let account = format!("--as=system:serviceaccount:{AGENT_NAMESPACE}:flotilla-agent");
        let asked =
            self.node.command("kubectl").args(["auth", "can-i", verb, resource, &account]).output()?;
        ensure!(String::from_utf8_lossy(&asked.stdout).trim() == "no", "it may {verb} {resource}");
        Ok(())
    }

    /// What the charts render is understood by the API server, field by field.
    fn every_value_set_is_accepted(&self) -> anyhow::Result<()> {
        self.node.run("kubectl", &["create", "namespace", AGENT_NAMESPACE])?;
        // Namespaces of bundles are not there.
        let local = format!("--set local.createNamespace=false,local.clusterNamespace={AGENT_NAMESPACE}");
        let controller = format!("--set namespace={AGENT_NAMESPACE}");
        for (chart, settings) in
            [("flotilla-agent", local.as_str()), ("flotilla-controller", controller.as_str())]
        {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/own_charts").join(chart);
            for entry in std::fs::read_dir(&folder)? {
                let path = entry?.path();
                if !path.to_string_lossy().ends_with(".values.yaml") {
                    continue;
                }
                // Kinds of the Prometheus operator are not there either.
                self.shell.done(&format!(
                    "helm template {chart} charts/{chart} --namespace {AGENT_NAMESPACE} --no-hooks --values {} \
                     {settings} \
                     --set metrics.serviceMonitor.enabled=false,metrics.prometheusRule.enabled=false \
                     | kubectl apply --dry-run=server --validate=strict -f -",
                    path.display()
                ))?;
            }
        }
        self.say("every value set is accepted");
        Ok(())
    }

    fn say(&self, text: &str) {
        println!("{:6.1} s  {text}", self.start.elapsed().as_secs_f32());
    }
}

/// Two names for the one cluster: the guide tells the management cluster from the agent's.
fn contexts(kubeconfig: &str) -> anyhow::Result<String> {
    let mut all: Value = serde_saphyr::from_str(kubeconfig)?;
    let context = all["contexts"][0]["context"].clone();
    all["contexts"] =
        json!([{"name": "management", "context": context}, {"name": "site", "context": context}]);
    all["current-context"] = json!("site");
    Ok(all.to_string())
}
