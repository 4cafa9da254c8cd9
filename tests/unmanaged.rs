// SPDX-License-Identifier: Apache-2.0
//! Clusters that no controller registers: the guides are followed command by command on real control planes, agents
//! work with what they made, tokens die when they are exchanged, and no right is given that is not needed.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use flotilla::api::{BundleDeployment, names};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

#[path = "unmanaged/doctor.rs"]
mod doctor;
#[path = "../dev/harness/mod.rs"]
mod harness;
#[path = "unmanaged/kept.rs"]
mod kept;
#[path = "unmanaged/rights.rs"]
mod rights;

use harness::guide::{Guide, Shell};
use harness::replica::Replica;
use harness::units::Units;
use harness::world::ready;
use harness::{ControlPlane, GENEROUS, Options, Tools, fleet, until};

const BINARY: &str = env!("CARGO_BIN_EXE_flotilla");
const AGENTS: &str = "cattle-fleet-system";

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_registered_by_plain_objects_and_moved_in_and_out() -> anyhow::Result<()> {
    let tools = Tools::build(&["kube-apiserver", "etcd", "kube-controller-manager", "kubectl", "helm"])?;
    let mut dir = tempfile::Builder::new().prefix("flotilla-").tempdir()?;
    let result = stories(&tools, dir.path()).await;
    result.with_context(|| {
        dir.disable_cleanup(true);
        format!("the logs are in {}", dir.path().display())
    })
}

async fn stories(tools: &Tools, dir: &Path) -> anyhow::Result<()> {
    let (up, down) = (dir.join("management"), dir.join("site"));
    let (mut management, site) = tokio::try_join!(
        ControlPlane::start(tools, &up, "management", Options::default()),
        ControlPlane::start(tools, &down, "site", Options::default()),
    )?;
    // Token Secrets are filled by the controller manager.
    management.start_workloads(tools, 0, std::time::Duration::ZERO).await?;
    let stage = Stage::new(tools, dir, management, site).await?;
    let unmanaged = Guide::read("docs/unmanaged.md", stage.shell.clone())?;
    unmanaged.section("", &[])?;
    stage.both_at_hand(&unmanaged).await?;
    // Threads of their own: the commands of one do not hold up the others.
    let (stage, unmanaged) = (Arc::new(stage), Arc::new(unmanaged));
    let (one, guide) = (stage.clone(), unmanaged.clone());
    let printed = beside(move |here| here.block_on(one.printed(&guide)));
    let (one, guide) = (stage.clone(), unmanaged.clone());
    let local = beside(move |here| here.block_on(one.local(&guide)));
    let one = stage.clone();
    let doctor = beside(move |here| here.block_on(doctor::planted_faults_are_found(&one)));
    let one = stage.clone();
    let kept = beside(move |here| here.block_on(kept::the_way_that_was_chosen(&one)));
    for story in [printed, local, doctor, kept] {
        story.await??;
    }
    stage.taken_away(&unmanaged).await?;
    unmanaged.finished()
}

fn beside<T: Send + 'static>(story: impl FnOnce(Handle) -> T + Send + 'static) -> JoinHandle<T> {
    let here = Handle::current();
    tokio::task::spawn_blocking(move || story(here))
}

pub struct Stage {
    pub management: ControlPlane,
    pub site: ControlPlane,
    pub upstream: Client,
    pub local: Client,
    pub shell: Shell,
}

/// The namespace of a cluster's BundleDeployments.
pub fn namespace_of(cluster: &str) -> String {
    names::cluster_namespace("fleet-default", cluster)
}

impl Stage {
    async fn new(
        tools: &Tools,
        dir: &Path,
        management: ControlPlane,
        site: ControlPlane,
    ) -> anyhow::Result<Stage> {
        let work = dir.join("work");
        std::fs::create_dir_all(work.join("shop/manifests"))?;
        std::fs::write(work.join("shop/fleet.yaml"), "defaultNamespace: market\n")?;
        std::fs::write(
            work.join("shop/manifests/map.yaml"),
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stall}\ndata: {fruit: pears}\n",
        )?;
        std::fs::write(work.join("ca.pem"), management.ca_pem())?;
        std::os::unix::fs::symlink(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("charts"),
            work.join("charts"),
        )?;
        let kubeconfig = work.join("kubeconfig");
        std::fs::write(&kubeconfig, both(&management, &site)?)?;
        let beside = Path::new(BINARY).parent().context("no folder")?;
        let path = std::env::var("PATH")?;
        let variables = [
            ("PATH", format!("{}:{}:{path}", beside.display(), tools.bin.display())),
            ("HOME", work.display().to_string()),
            ("HELM_CACHE_HOME", work.display().to_string()),
            ("HELM_CONFIG_HOME", work.display().to_string()),
            ("HELM_DATA_HOME", work.display().to_string()),
            ("KUBECONFIG", kubeconfig.display().to_string()),
            ("SERVER", management.url()),
            ("ORCHARD", namespace_of("orchard")),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let (upstream, local) = (management.admin().await?, site.admin().await?);
        Ok(Stage { management, site, upstream, local, shell: Shell { dir: work, variables } })
    }

    /// An agent that is a process: its account's token for one cluster, the Secret's kubeconfig for the other.
    async fn agent(&self, name: &str, plane: &ControlPlane, namespace: &str) -> anyhow::Result<Replica> {
        let token = fleet::token(&plane.admin().await?, namespace, "fleet-agent").await?;
        let kubeconfig = self.shell.dir.join(format!("{name}.kubeconfig"));
        std::fs::write(&kubeconfig, plane.token_kubeconfig(&token, namespace))?;
        let log = self.shell.dir.join(format!("{name}.log"));
        Replica::spawn(
            Path::new(BINARY),
            name,
            &kubeconfig,
            namespace,
            &["--namespace", namespace],
            &[],
            &log,
        )
    }

    async fn units(&self, namespace: &str) -> anyhow::Result<Units> {
        Units::follow(Api::namespaced(self.upstream.clone(), namespace)).await
    }

    /// The token that an agent has been given.
    pub async fn token_of(&self, namespace: &str) -> anyhow::Result<String> {
        Ok(way_of(&self.local, namespace).await?.1)
    }

    /// 200 or the code of the refusal, for who shows this token.
    async fn answer(&self, token: &str, namespace: &str) -> anyhow::Result<u16> {
        let client = self.management.with_token(token, namespace).await?;
        let units: Api<BundleDeployment> = Api::namespaced(client, namespace);
        match units.list(&ListParams::default().limit(1)).await {
            Ok(_) => Ok(200),
            Err(kube::Error::Api(status)) => Ok(status.code),
            Err(error) => Err(error.into()),
        }
    }

    /// The API server remembers tokens for ten seconds.
    async fn dead(&self, token: &str, namespace: &str) -> anyhow::Result<()> {
        until("the old token to be dead", GENEROUS, async || {
            Ok((self.answer(token, namespace).await? == 401).then_some(()))
        })
        .await
    }

    async fn both_at_hand(&self, guide: &Guide) -> anyhow::Result<()> {
        let namespace = namespace_of("meadow");
        let dry = guide.command("flotilla register meadow")?;
        ensure!(dry.stdout.contains("Cluster fleet-default/meadow created"), "{}", dry.stdout);
        let clusters: Api<flotilla::api::Cluster> = Api::namespaced(self.upstream.clone(), "fleet-default");
        ensure!(clusters.get_opt("meadow").await?.is_none(), "a dry run writes nothing");

        let ended = guide.section("Both clusters at hand", &[])?;
        let token = self.token_of("meadow").await?;
        ensure!(self.answer(&token, &namespace).await? == 200);
        for told in &ended {
            ensure!(!told.stdout.contains("eyJ") && !told.stderr.contains("eyJ"), "a token was told");
        }
        let status = clusters.get("meadow").await?.status.unwrap_or_default();
        ensure!(status.namespace == namespace, "{status:?}");

        let again = self.shell.done(
            "flotilla register meadow --labels env=test --context management --agent-namespace meadow \
             --downstream-kubeconfig \"$KUBECONFIG\" --downstream-context site",
        )?;
        let changed: Vec<_> = again.stdout.lines().filter(|line| !line.ends_with(" unchanged")).collect();
        ensure!(changed.is_empty(), "the second time changed {changed:?}");

        // What was taken away by mistake comes back, and the token that works stays.
        self.shell.done(
            "kubectl --context management --namespace fleet-default delete role flotilla-agent-meadow",
        )?;
        let mended = self.shell.done(
            "flotilla register meadow --labels env=test --context management --agent-namespace meadow \
             --downstream-kubeconfig \"$KUBECONFIG\" --downstream-context site",
        )?;
        ensure!(
            mended.stdout.contains("Role fleet-default/flotilla-agent-meadow created"),
            "{}",
            mended.stdout
        );
        ensure!(self.token_of("meadow").await? == token);

        guide.command("flotilla register meadow --context management --rotate-token")?;
        let second = self.token_of("meadow").await?;
        ensure!(second != token && self.answer(&second, &namespace).await? == 200);
        guide.command("flotilla register meadow --context management --rotate-token --ttl")?;
        let third = self.token_of("meadow").await?;
        ensure!(self.answer(&third, &namespace).await? == 200);
        ensure!(flotilla::registration::bearer::expires(&second).is_none());
        ensure!(flotilla::registration::bearer::expires(&third).is_some(), "it must end by itself");
        tokio::try_join!(self.dead(&token, &namespace), self.dead(&second, &namespace))?;
        ensure!(self.answer(&third, &namespace).await? == 200);
        Ok(())
    }

    async fn printed(&self, guide: &Guide) -> anyhow::Result<()> {
        let namespace = namespace_of("orchard");
        guide.section("Printed, for a site that cannot be reached", &[])?;
        let top = std::fs::read_to_string(self.shell.dir.join("upstream.yaml"))?;
        for command in top.lines().filter_map(|line| line.strip_prefix("#   ")) {
            self.shell.done(&command.replace("kubectl ", "kubectl --context management "))?;
        }
        let again = self.shell.done("kubectl --context management apply -f upstream.yaml")?;
        ensure!(again.stdout.lines().all(|line| line.ends_with(" unchanged")), "{}", again.stdout);
        let first = self.token_of(AGENTS).await?;
        rights::are_exactly_what_is_needed(self, &namespace, &first).await?;

        // Started with these words, and ports of its own.
        let words = format!("flotilla agent --namespace {AGENTS} --kubeconfig site.kubeconfig");
        ensure!(guide.take("flotilla agent")? == words);
        let mut agents =
            [self.agent("site", &self.site, AGENTS).await?, self.agent("two", &self.site, AGENTS).await?];
        for agent in &mut agents {
            ready(agent).await?;
        }
        let units = self.units(&namespace).await?;
        guide.command("flotilla apply shop/")?;
        units.until_ready(["shop"], GENEROUS).await?;
        let shown = guide.command("flotilla get")?;
        ensure!(shown.stdout.contains("Ready"), "{}", shown.stdout);
        guide.section("When it does not work", &[])?;

        let maps: Api<ConfigMap> = Api::namespaced(self.local.clone(), AGENTS);
        let settings = json!({"data": {"config": "{\"garbageCollectionInterval\":\"7m\"}"}});
        maps.patch("fleet-agent", &PatchParams::default(), &Patch::Merge(&settings)).await?;
        guide.section("Exchanging the token", &[])?;
        let data = maps.get("fleet-agent").await?.data.unwrap_or_default();
        ensure!(data["config"].contains("7m"), "the exchange took the settings: {data:?}");
        let second = self.token_of(AGENTS).await?;
        ensure!(first != second);
        self.dead(&first, &namespace).await?;
        // The agents go on with the new one, as the same processes.
        self.shell.done("sed -i s/pears/plums/ shop/manifests/map.yaml")?;
        self.shell.done("flotilla apply shop/ --context management --namespace \"$ORCHARD\"")?;
        let id = self.deployment_id(&namespace, "shop").await?;
        units
            .until("the change to be deployed", GENEROUS, |live| {
                let status = live.get("shop")?.status.as_ref()?;
                (status.applied_deployment_id == id && status.ready).then_some(())
            })
            .await?;
        for agent in &mut agents {
            ensure!(agent.exited()?.is_none());
            ensure!(!agent.log().contains("eyJ"), "a token is in the log");
        }
        self.a_limited_token_is_printed_on_demand(&namespace).await?;
        self.foreseen(&namespace, &mut agents).await?;
        // No Pod runs here: tests/air_gapped.rs has a node for the first of them.
        guide.section("The agent", &[]).map(drop)
    }

    async fn a_limited_token_is_printed_on_demand(&self, namespace: &str) -> anyhow::Result<()> {
        let text = self
            .shell
            .done("flotilla register orchard --print downstream --ttl 1h --context management")?
            .stdout;
        let last = text.split("---\n").last().context("nothing was printed")?;
        let secret: Secret = serde_saphyr::from_str(last)?;
        let kubeconfig = secret.data.context("an empty Secret")?;
        let kubeconfig: Value = serde_json::from_slice(&kubeconfig["kubeconfig"].0)?;
        let token = kubeconfig["users"][0]["user"]["token"].as_str().context("no token")?;
        ensure!(flotilla::registration::bearer::expires(token).is_some());
        ensure!(self.answer(token, namespace).await? == 200);
        Ok(())
    }

    async fn deployment_id(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let units: Api<BundleDeployment> = Api::namespaced(self.upstream.clone(), namespace);
        Ok(units.get(name).await?.spec.deployment_id)
    }

    /// `doctor --adopt` tells beforehand what the agents then do.
    async fn foreseen(&self, namespace: &str, agents: &mut [Replica; 2]) -> anyhow::Result<()> {
        for agent in agents.iter_mut() {
            agent.term()?;
            agent.wait().await?;
        }
        let units: Api<BundleDeployment> = Api::namespaced(self.upstream.clone(), namespace);
        for (name, paused) in [("lost", ""), ("fresh", ""), ("held", "--paused"), ("fleet-agent-x", "")] {
            self.shell.done(&format!(
                "flotilla apply shop/ --name {name} {paused} --context management --namespace {namespace}"
            ))?;
        }
        let foresee = |wanted: [(&str, &str); 5]| -> anyhow::Result<()> {
            let told = self.shell.done("flotilla doctor --adopt --downstream-context site -o json")?;
            let told: Vec<Value> = serde_json::from_str(&told.stdout)?;
            for (bundle, action) in wanted {
                let line =
                    told.iter().find(|line| line["bundle"] == bundle).context("a bundle is missing")?;
                ensure!(line["action"] == action, "{line}");
            }
            Ok(())
        };
        let rest = [
            ("fresh", "redeployed"),
            ("lost", "redeployed"),
            ("held", "waits"),
            ("fleet-agent-x", "refused"),
        ];
        foresee([("shop", "untouched"), rest[0], rest[1], rest[2], rest[3]])?;
        let without = json!({"status": null});
        units.patch_status("shop", &PatchParams::default(), &Patch::Merge(&without)).await?;
        foresee([("shop", "stamped"), rest[0], rest[1], rest[2], rest[3]])
    }

    async fn local(&self, guide: &Guide) -> anyhow::Result<()> {
        let outside = "flotilla register here";
        guide.section("Bundles from the cluster itself", &[outside])?;
        let secrets: Api<Secret> = Api::namespaced(self.upstream.clone(), AGENTS);
        let data = secrets.get("fleet-agent").await?.data.context("an empty Secret")?;
        ensure!(!String::from_utf8_lossy(&data["kubeconfig"].0).contains("eyJ"), "local mode keeps no token");
        let doctor = self
            .shell
            .run("flotilla doctor --downstream-context management --service-account fleet-agent")?;
        ensure!(doctor.code == 0, "{}{}", doctor.stdout, doctor.stderr);

        guide.command(outside)?;
        let mut agent = self.agent("here", &self.management, "here").await?;
        ready(&mut agent).await?;
        let namespace = names::cluster_namespace("fleet-local", "here");
        self.shell.done(&format!("flotilla apply shop/ --context management --namespace {namespace}"))?;
        self.units(&namespace).await?.until_ready(["shop"], GENEROUS).await?;

        let (server, token) = way_of(&self.upstream, "here").await?;
        guide.command(outside)?;
        let (same, fresh) = way_of(&self.upstream, "here").await?;
        ensure!(same == server && fresh != token, "{same} {server}");
        ensure!(self.answer(&fresh, &namespace).await? == 200);
        self.dead(&token, &namespace).await?;
        self.shell
            .done("flotilla register here --local --revoke --context management --agent-namespace here")?;
        self.dead(&fresh, &namespace).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.upstream.clone(), &namespace);
        ensure!(accounts.get_opt("flotilla-agent").await?.is_none(), "its account goes, too");
        Ok(())
    }

    async fn taken_away(&self, guide: &Guide) -> anyhow::Result<()> {
        let (meadow, orchard) = (self.token_of("meadow").await?, self.token_of(AGENTS).await?);
        guide.section("Taking it away", &[])?;
        self.dead(&meadow, &namespace_of("meadow")).await?;
        self.dead(&orchard, &namespace_of("orchard")).await?;
        let units: Api<BundleDeployment> = Api::namespaced(self.upstream.clone(), &namespace_of("orchard"));
        ensure!(units.get_opt("shop").await?.is_some(), "bundles stay unless it is asked for");
        self.shell.done("flotilla register orchard --context management --revoke --delete-bundles")?;
        until("the cluster namespace to be gone", GENEROUS, async || {
            Ok(units.list(&ListParams::default()).await?.items.is_empty().then_some(()))
        })
        .await?;
        let roles = self.shell.done(
            "kubectl --context management get clusterroles fleet-content fleet-bundle-deployment -o name",
        )?;
        ensure!(roles.stdout.lines().count() == 2, "shared roles stay");
        let left = self.shell.done("kubectl --context management get clusterrolebindings -o name")?;
        ensure!(
            !left.stdout.contains(&namespace_of("orchard")) && !left.stdout.contains(&namespace_of("meadow")),
            "{}",
            left.stdout
        );
        Ok(())
    }

    /// For the doctor's story.
    pub async fn delete_secret(&self, namespace: &str) -> anyhow::Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.local.clone(), namespace);
        secrets.delete("fleet-agent", &DeleteParams::default()).await?;
        Ok(())
    }
}

/// Server and token in the agent's Secret.
pub async fn way_of(client: &Client, namespace: &str) -> anyhow::Result<(String, String)> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let data = secrets.get("fleet-agent").await?.data.context("an empty Secret")?;
    let kubeconfig: Value = serde_json::from_slice(&data["kubeconfig"].0)?;
    let server = kubeconfig["clusters"][0]["cluster"]["server"].as_str().context("no server")?;
    let token = kubeconfig["users"][0]["user"]["token"].as_str().context("no token")?;
    Ok((server.to_owned(), token.to_owned()))
}

/// One kubeconfig with a context for each plane.
fn both(management: &ControlPlane, site: &ControlPlane) -> anyhow::Result<String> {
    let mut all = json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []});
    for (name, plane) in [("management", management), ("site", site)] {
        let text = std::fs::read_to_string(plane.admin_kubeconfig())?;
        let one: Value = serde_saphyr::from_str(&text)?;
        let push = |all: &mut Value, list: &str, key: &str, value: &Value| {
            if let Some(list) = all[list].as_array_mut() {
                list.push(json!({"name": name, key: value}));
            }
        };
        push(&mut all, "clusters", "cluster", &one["clusters"][0]["cluster"]);
        push(&mut all, "users", "user", &one["users"][0]["user"]);
        push(&mut all, "contexts", "context", &json!({"cluster": name, "user": name}));
    }
    // No current context: a command that names none must not find a cluster.
    Ok(all.to_string())
}
