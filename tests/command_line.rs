// SPDX-License-Identifier: Apache-2.0
//! The program as a person runs it: arguments in, streams and exit codes out, against real control planes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use flotilla::api::Content;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::Value;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::world::{Downstream, World};
use harness::{GENEROUS, Tools, until};

const BINARY: &str = env!("CARGO_BIN_EXE_flotilla");
const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_applied_shown_and_deleted_by_command() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(BINARY), tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

const ON_STANDARD_INPUT: &str = "apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {name: kiosk, labels: {row: first}}
spec:
  defaultNamespace: market
  resources:
  - name: manifests/kiosk.yaml
    content: |
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: kiosk}
";

async fn story(world: &World) -> anyhow::Result<()> {
    an_agent_that_is_not_registered_ends_and_says_so(world).await?;

    let folder = world.dir().join("stall");
    std::fs::create_dir_all(folder.join("manifests"))?;
    std::fs::write(folder.join("fleet.yaml"), "defaultNamespace: market\nlabels: {row: second}\n")?;
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stall}\n";
    std::fs::write(folder.join("manifests/stall.yaml"), map)?;
    let folder = folder.display().to_string();

    let cli = |arguments: &[&str], input: &str| run(world, arguments, input);
    let created = cli(&["apply", &folder], "")?;
    assert_eq!(created, Ended::with(0, "bundledeployment.fleet.cattle.io/stall created\n", ""));
    assert_eq!(
        cli(&["apply", &folder], "")?.stdout,
        "bundledeployment.fleet.cattle.io/stall unchanged\n",
        "the same folder is the same bundle"
    );
    let created = cli(&["apply", "-"], ON_STANDARD_INPUT)?;
    assert_eq!(created, Ended::with(0, "bundledeployment.fleet.cattle.io/kiosk created\n", ""));

    let units = world.units().await?;
    let _replica = world.ready_replica("replica-1", 4).await?;
    units.until_ready(["kiosk", "stall"], BOUND).await?;
    let live = units.live();
    assert_eq!(live["stall"].spec.deployment_id, Bundle::read(Path::new(&folder))?.deployment_id());

    bundles_are_shown(world)?;
    mistakes_are_told_on_standard_error(world)?;

    let deleted = cli(&["delete", "-l", "row=second"], "")?;
    assert_eq!(deleted, Ended::with(0, "bundledeployment.fleet.cattle.io \"stall\" deleted\n", ""));
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, "market");
    until("the object of the deleted bundle to be gone", GENEROUS, async || {
        Ok(maps.get_opt("stall").await?.is_none().then_some(()))
    })
    .await?;
    assert!(maps.get_opt("kiosk").await?.is_some());
    let contents: Api<Content> = Api::all(world.upstream.admin().await?);
    assert_eq!(contents.list(&ListParams::default()).await?.items.len(), 1, "its Content goes with it");
    Ok(())
}

fn bundles_are_shown(world: &World) -> anyhow::Result<()> {
    let get = |arguments: &[&str]| run(world, &[&["get"], arguments].concat(), "");
    let table = get(&[])?;
    assert_eq!((table.code, &*table.stderr), (0, ""));
    let cells = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let mut rows = cells(&table.stdout);
    assert_eq!(rows[0], ["NAME", "STATE", "HOLDER", "ATTEMPT", "READY", "AGE"]);
    for row in &mut rows[1..] {
        // The age.
        row.pop();
    }
    assert_eq!(rows[1..], [["kiosk", "Ready", "-", "-", "1/1"], ["stall", "Ready", "-", "-", "1/1"]]);

    let everywhere = cells(&get(&["-A"])?.stdout);
    assert_eq!((everywhere.len(), &*everywhere[0][0]), (3, "NAMESPACE"));
    assert_eq!(everywhere[1][0], world.registration.cluster_namespace);
    let chosen = get(&["-l", "row=first", "-o", "name"])?;
    assert_eq!(chosen.stdout, "bundledeployment.fleet.cattle.io/kiosk\n");
    let list: Value = serde_json::from_str(&get(&["-o", "json"])?.stdout)?;
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&"List".into(), Some(2)));
    let one: Value = serde_saphyr::from_str(&get(&["kiosk", "-o", "yaml"])?.stdout)?;
    assert_eq!((&one["kind"], &one["status"]["ready"]), (&"BundleDeployment".into(), &true.into()));
    Ok(())
}

fn mistakes_are_told_on_standard_error(world: &World) -> anyhow::Result<()> {
    let missing = "error: bundledeployments.fleet.cattle.io \"no-such\" not found\n";
    assert_eq!(run(world, &["get", "no-such"], "")?, Ended::with(1, "", missing));
    assert_eq!(run(world, &["delete", "no-such"], "")?, Ended::with(1, "", missing));
    assert_eq!(run(world, &["delete", "no-such", "--ignore-not-found"], "")?, Ended::with(0, "", ""));
    let no_bundle = run(world, &["apply", "-"], "apiVersion: v1\nkind: ConfigMap\n")?;
    assert_eq!((no_bundle.code, &*no_bundle.stdout), (1, ""));
    assert!(no_bundle.stderr.contains("document 1 is not a Bundle"), "{}", no_bundle.stderr);
    let no_flag = run(world, &["get", "--no-such-flag"], "")?;
    assert_eq!((no_flag.code, &*no_flag.stdout), (2, ""));
    assert!(no_flag.stderr.contains("--no-such-flag"), "{}", no_flag.stderr);
    Ok(())
}

async fn an_agent_that_is_not_registered_ends_and_says_so(world: &World) -> anyhow::Result<()> {
    let client = world.downstream.admin().await?;
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some("half".into());
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    let registered: Api<Secret> = Api::namespaced(client.clone(), &world.registration.agent_namespace);
    let mut secret = Secret { data: registered.get("fleet-agent").await?.data, ..Secret::default() };
    secret.metadata.name = Some("fleet-agent".into());
    Api::<Secret>::namespaced(client, "half").create(&PostParams::default(), &secret).await?;
    for (namespace, missing) in [("nowhere", "Secret nowhere/"), ("half", "ConfigMap half/")] {
        let output = Command::new(BINARY)
            .args(["agent", "--namespace", namespace, "--kubeconfig"])
            .arg(&world.registration.agent_kubeconfig)
            .env("FLEET_AGENT_METRICS_BIND_ADDRESS", "0")
            .env("FLEET_AGENT_PROBE_BIND_ADDRESS", "0")
            .output()?;
        let stderr = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let said = format!("error: cannot start without a registration: {missing}fleet-agent does not exist");
        assert!(stderr.lines().any(|line| line.starts_with(&said)), "{stderr}");
    }
    Ok(())
}

/// How a process ended, and what it said.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn with(code: i32, stdout: &str, stderr: &str) -> Ended {
        Ended { code, stdout: stdout.into(), stderr: stderr.into() }
    }
}

/// Runs a verb for the cluster, with an administrator's rights upstream.
fn run(world: &World, arguments: &[&str], input: &str) -> anyhow::Result<Ended> {
    let mut command = Command::new(BINARY);
    command.args(arguments).env("KUBECONFIG", world.upstream.admin_kubeconfig());
    if !arguments.contains(&"-A") {
        command.args(["--namespace", &world.registration.cluster_namespace]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("running flotilla")?;
    // Closed at once: whoever reads finds the end.
    child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    Ok(Ended {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
    })
}
