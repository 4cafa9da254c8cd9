// SPDX-License-Identifier: Apache-2.0
//! The commands that tell and that look ahead, against real control planes and a real agent.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::BundleDeployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::Value;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::units::Units;
use harness::world::{Downstream, World};
use harness::{GENEROUS, Tools, until};

const BINARY: &str = env!("CARGO_BIN_EXE_flotilla");
const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_explained_compared_and_rolled_back_by_command() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(BINARY), tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

const BROKEN: &str = "apiVersion: fleet.cattle.io/v1alpha1
kind: Bundle
metadata: {name: broken}
spec:
  defaultNamespace: market
  resources:
  - name: manifests/thing.yaml
    content: |
      apiVersion: no.such/v1
      kind: Thing
      metadata: {name: thing}
";

async fn story(world: &World) -> anyhow::Result<()> {
    let folder = world.dir().join("stall");
    std::fs::create_dir_all(folder.join("manifests"))?;
    let write = |price: &str, password: &str| -> anyhow::Result<()> {
        let stall = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: stall}}\ndata: {{price: \"{price}\"}}\n"
        );
        std::fs::write(folder.join("manifests/stall.yaml"), stall)?;
        let till = format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: till}}\ndata: {{password: {password}}}\n"
        );
        std::fs::write(folder.join("manifests/till.yaml"), till)?;
        let bell = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: bell\n  annotations:\n    helm.sh/hook: post-install,post-upgrade\n    \
             helm.sh/hook-delete-policy: hook-succeeded\ndata: {{rings: \"{price}\"}}\n"
        );
        Ok(std::fs::write(folder.join("manifests/bell.yaml"), bell)?)
    };
    std::fs::write(folder.join("fleet.yaml"), "defaultNamespace: market\n")?;
    write("seven", "b25l")?;
    let folder = folder.display().to_string();

    run(world, &["apply", &folder], "", 0)?;
    let alone = run(world, &["explain", "stall"], "", 0)?;
    ensure!(alone.contains("no replica has claimed it yet"), "{alone}");
    ensure!(alone.contains("Not seen from here:\n  which replicas live"), "{alone}");
    let both = explained(world, "stall")?;
    ensure!(both["phase"] == "NoReplica" && both["unseen"] == serde_json::json!([]), "{both}");
    let planned = run_below(world, &["diff", &folder], 1)?;
    ensure!(
        planned.contains("+++ ConfigMap market/stall (bundle)") && planned.contains("+  price: seven"),
        "{planned}"
    );

    let units = world.units().await?;
    let replica = world.ready_replica("replica-1", 4).await?;
    units.until_ready(["stall"], BOUND).await?;
    let ready = explained(world, "stall")?;
    ensure!(ready["phase"] == "Ready" && ready["release"] == "market/stall:1", "{ready}");
    let top = run_below(world, &["top"], 0)?;
    ensure!(top.contains("1 Ready") && top.contains("replicas: 1 live"), "{top}");
    ensure!(top.lines().any(|line| line.starts_with("replica-1 ") && line.contains("4 free")), "{top}");

    what_would_change_is_shown_and_no_secret(world, &folder, &write)?;
    what_surrounds_a_bundle_is_compared_too(world, &folder).await?;
    definitions_of_a_chart_are_compared_and_not_counted(world, &units).await?;
    one_goes_back_and_the_bundle_follows(world, &units, &folder).await?;
    a_missing_object_is_drift(world, &units).await?;
    an_error_is_told_with_its_next_try(world, &units).await?;
    events_of_both_clusters_are_listed(world).await?;
    a_watch_prints_the_table_first(world)?;
    drop(replica);
    Ok(())
}

fn what_would_change_is_shown_and_no_secret(
    world: &World,
    folder: &str,
    write: &dyn Fn(&str, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    ensure!(run_below(world, &["diff", folder], 0)?.is_empty(), "what is deployed does not differ");
    ensure!(run_below(world, &["diff", "bd/stall"], 0)?.is_empty());
    write("nine", "dHdv")?;
    let changes = run_below(world, &["diff", folder], 1)?;
    ensure!(changes.contains("-  price: seven\n+  price: nine\n"), "{changes}");
    // A hook is gone from the cluster when it has done its work; it is compared with the revision that stands.
    ensure!(
        changes.contains("--- hook ConfigMap bell (deployed)\n+++ hook ConfigMap bell (bundle)\n")
            && changes.contains("-  rings: seven\n+  rings: nine\n"),
        "{changes}"
    );
    ensure!(changes.contains("*** (before)") && changes.contains("*** (after)"), "{changes}");
    ensure!(!changes.contains("b25l") && !changes.contains("dHdv"), "{changes}");
    let rendered = run(world, &["render", folder], "", 0)?;
    ensure!(
        rendered.contains("price: nine") && rendered.contains("objectset.rio.cattle.io/hash"),
        "{rendered}"
    );
    let standing = run_below(world, &["render", "bd/stall", "-o", "json"], 0)?;
    let list: Value = serde_json::from_str(&standing)?;
    ensure!(list["items"].as_array().is_some_and(|items| items.len() == 3), "{list}");
    let unknown = output(world, &["diff", folder], "")?;
    ensure!(unknown.0 == 2 && unknown.2.contains("--downstream-kubeconfig is needed"), "{unknown:?}");
    Ok(())
}

/// The namespace's labels, and what the bundle gives up: announced only if the agent would delete it.
async fn what_surrounds_a_bundle_is_compared_too(world: &World, folder: &str) -> anyhow::Result<()> {
    let changed = world.dir().join("changed");
    std::fs::create_dir_all(changed.join("manifests"))?;
    let from = Path::new(folder);
    let copy = |name: &str| std::fs::copy(from.join(name), changed.join(name)).map(|_| ());
    copy("manifests/till.yaml")?;
    copy("manifests/bell.yaml")?;
    let till = std::fs::read_to_string(changed.join("manifests/till.yaml"))?.replace("dHdv", "b25l");
    std::fs::write(changed.join("manifests/till.yaml"), till)?;
    let bell = std::fs::read_to_string(changed.join("manifests/bell.yaml"))?.replace("nine", "seven");
    std::fs::write(changed.join("manifests/bell.yaml"), bell)?;
    let fleet = |labels: &str| {
        std::fs::write(changed.join("fleet.yaml"), format!("defaultNamespace: market\n{labels}"))
    };
    let changed_folder = changed.display().to_string();
    let compare = |code| run_below(world, &["diff", &changed_folder, "--name", "stall"], code);

    fleet("")?;
    let removed = compare(1)?;
    ensure!(removed.starts_with("--- ConfigMap market/stall (live)\n+++ /dev/null\n"), "{removed}");
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, "market");
    let keep = |policy: Value| {
        Patch::Merge(serde_json::json!({"metadata": {"annotations": {"helm.sh/resource-policy": policy}}}))
    };
    maps.patch("stall", &PatchParams::default(), &keep("keep".into())).await?;
    ensure!(compare(0)?.is_empty(), "what a person keeps is not announced as deleted");
    maps.patch("stall", &PatchParams::default(), &keep(Value::Null)).await?;

    copy("manifests/stall.yaml")?;
    let stall = std::fs::read_to_string(changed.join("manifests/stall.yaml"))?.replace("nine", "seven");
    std::fs::write(changed.join("manifests/stall.yaml"), stall)?;
    ensure!(compare(0)?.is_empty());
    fleet("namespaceLabels: {team: blue}\n")?;
    let labelled = compare(1)?;
    ensure!(
        labelled.starts_with("--- Namespace market (live)\n+++ Namespace market (bundle)\n")
            && labelled.contains("+    team: blue\n"),
        "{labelled}"
    );
    Ok(())
}

async fn definitions_of_a_chart_are_compared_and_not_counted(
    world: &World,
    units: &Units,
) -> anyhow::Result<()> {
    let folder = world.dir().join("signs");
    std::fs::create_dir_all(folder.join("crds"))?;
    std::fs::create_dir_all(folder.join("templates"))?;
    std::fs::write(folder.join("fleet.yaml"), "defaultNamespace: market\n")?;
    std::fs::write(folder.join("Chart.yaml"), "{apiVersion: v2, name: signs, version: 1.0.0}\n")?;
    std::fs::write(
        folder.join("templates/sign.yaml"),
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: sign}, data: {word: open}}\n",
    )?;
    let definition = |field: &str| {
        let text = format!(
            "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: signs.market.example}}
spec:
  group: market.example
  scope: Namespaced
  names: {{kind: Sign, plural: signs}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {{openAPIV3Schema: {{type: object, properties: {{{field}: {{type: string}}}}}}}}
"
        );
        std::fs::write(folder.join("crds/sign.yaml"), text)
    };
    let folder_text = folder.display().to_string();
    definition("word")?;
    let planned = run_below(world, &["diff", &folder_text], 1)?;
    ensure!(
        planned.contains("+++ CustomResourceDefinition signs.market.example (bundle)")
            && !planned.contains("# not applied"),
        "{planned}"
    );
    run(world, &["apply", &folder_text], "", 0)?;
    units.until_ready(["signs"], BOUND).await?;
    ensure!(run_below(world, &["diff", &folder_text], 0)?.is_empty());
    definition("letters")?;
    let told = run_below(world, &["diff", &folder_text], 0)?;
    ensure!(told.starts_with("# not applied: crds/ are installed once, where they are absent\n"), "{told}");
    ensure!(told.contains("letters:"), "{told}");
    run(world, &["delete", "signs"], "", 0)?;
    Ok(())
}

async fn one_goes_back_and_the_bundle_follows(
    world: &World,
    units: &Units,
    folder: &str,
) -> anyhow::Result<()> {
    run(world, &["apply", folder], "", 0)?;
    deployed_as(units, "market/stall:2").await?;
    let done = run(world, &["rollback", "stall"], "", 0)?;
    ensure!(done.ends_with("rolled back to what revision 1 deployed\n"), "{done}");
    deployed_as(units, "market/stall:3").await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, "market");
    let price = maps.get("stall").await?.data.and_then(|data| data.get("price").cloned());
    ensure!(price.as_deref() == Some("seven"), "{price:?}");
    let list = run(world, &["rollback", "stall", "--list"], "", 0)?;
    ensure!(list.lines().count() == 4 && list.contains("(in force)"), "{list}");
    let refused = output(world, &["rollback", "stall", "7"], "")?;
    ensure!(refused.0 == 1 && refused.2.contains("revision 7 is not known here"), "{refused:?}");
    Ok(())
}

async fn deployed_as(units: &Units, release: &str) -> anyhow::Result<()> {
    let what = format!("release {release}");
    let status = |unit: &BundleDeployment| unit.status.clone().unwrap_or_default();
    units
        .until(&what, BOUND, |live| {
            live.get("stall").filter(|unit| status(unit).release == release && status(unit).ready).map(|_| ())
        })
        .await
}

async fn a_missing_object_is_drift(world: &World, units: &Units) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, "market");
    maps.delete("stall", &DeleteParams::default()).await?;
    units
        .until("the missing object to be told", BOUND, |live| {
            let status = live.get("stall")?.status.as_ref()?;
            (!status.modified_status.is_empty()).then_some(())
        })
        .await?;
    let drifted = explained(world, "stall")?;
    ensure!(drifted["drift"][0]["object"] == "ConfigMap market/stall", "{drifted}");
    ensure!(drifted["drift"][0]["what"] == "is missing", "{drifted}");
    let changes = run_below(world, &["diff", "bd/stall"], 1)?;
    ensure!(changes.starts_with("--- /dev/null\n+++ ConfigMap market/stall (bundle)\n"), "{changes}");
    Ok(())
}

async fn an_error_is_told_with_its_next_try(world: &World, units: &Units) -> anyhow::Result<()> {
    run(world, &["apply", "-"], BROKEN, 0)?;
    units
        .until("the broken bundle to back off", BOUND, |live| {
            live.get("broken")?
                .condition("InProgress")
                .filter(|claim| claim.reason == "BackingOff")
                .map(|_| ())
        })
        .await?;
    let text = run(world, &["explain", "broken"], "", 0)?;
    ensure!(text.contains("failed and is tried again."), "{text}");
    ensure!(text.contains("Last error: ") && text.contains("no matches for kind \"Thing\""), "{text}");
    ensure!(text.contains("flotilla retry broken -n "), "{text}");
    let wide = run(world, &["get", "-o", "wide"], "", 0)?;
    ensure!(wide.lines().any(|line| line.starts_with("broken ") && line.contains("BackingOff")), "{wide}");
    Ok(())
}

async fn events_of_both_clusters_are_listed(world: &World) -> anyhow::Result<()> {
    // The agent writes its Events behind its own back.
    until("the first deployment's Event", GENEROUS, async || {
        let listed: Value = serde_json::from_str(&run_below(world, &["events", "stall", "-o", "json"], 0)?)?;
        let reasons: Vec<_> = listed.as_array().into_iter().flatten().map(|event| &event["reason"]).collect();
        Ok(reasons.iter().any(|reason| **reason == "FirstDeployed").then_some(()))
    })
    .await?;
    let all = run_below(world, &["events"], 0)?;
    ensure!(all.starts_with("LAST SEEN") && all.contains("DeployFailed"), "{all}");
    Ok(())
}

fn a_watch_prints_the_table_first(world: &World) -> anyhow::Result<()> {
    let mut command = command(world, &["get", "-o", "wide", "--watch"]);
    let mut child = command.stdout(Stdio::piped()).spawn().context("running flotilla")?;
    let lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
    let first: Vec<String> = lines.take(3).collect::<Result<_, _>>()?;
    child.kill()?;
    child.wait()?;
    ensure!(first[0].starts_with("NAME     STATE         CLAIM"), "{first:?}");
    ensure!(first[1].starts_with("broken   ") && first[2].starts_with("stall    "), "{first:?}");
    Ok(())
}

fn explained(world: &World, name: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&run_below(world, &["explain", name, "-o", "json"], 0)?)?)
}

fn command(world: &World, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments).args(["--namespace", &world.registration.cluster_namespace]);
    command.env("KUBECONFIG", world.upstream.admin_kubeconfig());
    command
}

/// Exit code and streams.
fn output(world: &World, arguments: &[&str], input: &str) -> anyhow::Result<(i32, String, String)> {
    let mut command = command(world, arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("running flotilla")?;
    child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let text = |bytes| String::from_utf8(bytes).context("not UTF-8");
    Ok((output.status.code().unwrap_or(-1), text(output.stdout)?, text(output.stderr)?))
}

fn run(world: &World, arguments: &[&str], input: &str, code: i32) -> anyhow::Result<String> {
    let (ended, stdout, stderr) = output(world, arguments, input)?;
    ensure!(ended == code, "flotilla {arguments:?} ended with {ended}: {stdout}{stderr}");
    Ok(stdout)
}

/// With access to the cluster below.
fn run_below(world: &World, arguments: &[&str], code: i32) -> anyhow::Result<String> {
    let kubeconfig = world.downstream.admin_kubeconfig().display().to_string();
    run(world, &[arguments, &["--downstream-kubeconfig", &kubeconfig]].concat(), "", code)
}
