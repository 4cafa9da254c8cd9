// SPDX-License-Identifier: Apache-2.0
//! A bundle in each situation it can be in, and what Fleet's controller shows of it, from its status alone.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use flotilla::api::{BundleRef, CorrectDrift};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::harness::bundles::{Bundle, NEVER_READY, NO_SUCH_KIND, Publisher};
use crate::harness::units::{Change, Units};
use crate::harness::world::{Downstream, World};
use crate::harness::{GENEROUS, Tools, until};
use crate::rules::{self, state, text, verdict, wakes, without_claim};
use crate::summary::Summary;

const NAMESPACE: &str = "harbour";
const NO_TEXT: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: typed}\ndata: {number: 1}\n";
const NO_TEMPLATE: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ required \"a name\" .Values.name }}}\n";

/// What is shown of a bundle.
struct Shown {
    unit: &'static str,
    state: &'static str,
    /// A part of the message; empty for none at all.
    message: &'static str,
    /// How the two columns begin.
    columns: [&'static str; 2],
    /// A part of the cluster's text about it.
    text: &'static str,
}

const SHOWN: &[Shown] = &[
    shown("deployed", "Ready", "", ["True", "True"], ""),
    shown("dependent", "ErrApplied", "no bundles matching labels", ["Error: ", ""], "[Bundle dependent: "),
    shown("unready", "NotReady", "", ["True", "True"], "deployment.apps unready/idle [progressing] "),
    shown(
        "drifted",
        "Modified",
        "",
        ["True", "True"],
        "configmap.v1 harbour/drifted-0 modified {\"data\":{\"version\":\"1\"}}",
    ),
    shown("missing", "Modified", "", ["True", "True"], "configmap.v1 harbour/missing-0 missing"),
    shown("refused", "ErrApplied", "no matches for kind \"Thing\"", ["Error: ", ""], "[Bundle refused: "),
    shown("broken", "ErrApplied", "a name", ["Error: ", ""], "[Bundle broken: "),
    shown("hopeless", "NotReady", "expected string", ["Error: ", ""], "[Bundle hopeless: "),
    shown(
        "upgraded",
        "ErrApplied",
        "no matches for kind \"Thing\"",
        ["Error: ", "True"],
        "[Bundle upgraded: ",
    ),
    shown("contentless", "ErrApplied", "cannot read content", ["Error: ", ""], "[Bundle contentless: "),
    shown("paused", "OutOfSync", "", ["True", "True"], "OutOfSync(1) [Bundle paused]"),
    shown("asleep", "OutOfSync", "", ["True", "True"], "OutOfSync(1) [Bundle asleep]"),
    shown("staged", "OutOfSync", "", ["True", "True"], "OutOfSync(1) [Bundle staged]"),
    shown("corrected", "Ready", "", ["True", "True"], ""),
    shown("installing", "WaitApplied", "", ["", ""], "WaitApplied(1) [Bundle installing]"),
    shown("upgrading", "WaitApplied", "", ["True", "True"], "WaitApplied(1) [Bundle upgrading]"),
];

const fn shown(
    unit: &'static str,
    state: &'static str,
    message: &'static str,
    columns: [&'static str; 2],
    text: &'static str,
) -> Shown {
    Shown { unit, state, message, columns, text }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_situation_is_shown_for_what_it_is() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(env!("CARGO_BIN_EXE_flotilla")), tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let mut changes = units.changes();
    let _replicas = world.ready_replicas(2, 8).await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, NAMESPACE);
    set_up(&units, &publisher, &maps).await?;
    for expected in SHOWN {
        is_shown(&units, expected).await?;
    }
    let live = values(&units)?;
    all_together(&live)?;
    what_was_seen_on_the_way(&mut changes, &live)
}

/// Brings each bundle into its situation.
async fn set_up(units: &Units, publisher: &Publisher, maps: &Api<ConfigMap>) -> anyhow::Result<()> {
    let plain = |name: &str| Bundle::config_maps(name, NAMESPACE, 2, "1");
    let waiting = |name: &str| {
        let bundle = Bundle::new(name, name).file("manifests/idle.yaml", NEVER_READY);
        bundle.with(|options| options.helm.get_or_insert_default().timeout_seconds = 3000)
    };
    let mut dependent = plain("dependent");
    dependent.depends_on = vec![BundleRef { name: "nowhere".into(), ..BundleRef::default() }];
    let corrected = plain("corrected").with(|options| {
        options.correct_drift = Some(CorrectDrift { enabled: true, ..CorrectDrift::default() });
    });
    let chart = Bundle::chart("broken", NAMESPACE, 1, "1").file("templates/nameless.yaml", NO_TEMPLATE);
    let first = ["deployed", "drifted", "missing", "paused", "asleep", "staged"].map(plain);
    // What is upgraded later has a namespace of its own: its objects move between versions.
    let later = ["upgraded", "upgrading"].map(|name| Bundle::config_maps(name, name, 2, "1"));
    publisher.publish(&first).await?;
    publisher.publish(&later).await?;
    let others = [
        corrected,
        dependent,
        chart,
        Bundle::new("unready", "unready").file("manifests/idle.yaml", NEVER_READY),
        Bundle::new("hopeless", NAMESPACE).file("manifests/typed.yaml", NO_TEXT),
        Bundle::new("refused", NAMESPACE).file("manifests/thing.yaml", NO_SUCH_KIND),
        waiting("installing"),
    ];
    publisher.publish(&others).await?;
    publisher.publish_unit(&plain("contentless")).await?;
    let standing = [
        "deployed",
        "drifted",
        "missing",
        "paused",
        "asleep",
        "staged",
        "corrected",
        "upgraded",
        "upgrading",
    ];
    units.until_ready(standing, GENEROUS).await?;

    let foreign = json!({"data": {"version": "somebody else's"}});
    for name in ["drifted-0", "corrected-0"] {
        maps.patch(name, &PatchParams::default(), &Patch::Merge(&foreign)).await?;
    }
    maps.delete("missing-0", &Default::default()).await?;
    let spec = async |name: &str, spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        publisher.units().patch(name, &PatchParams::default(), &patch).await.map(drop)
    };
    // Nothing is promoted while a bundle is paused or outside its schedule.
    spec("paused", json!({"paused": true, "stagedDeploymentID": "s-next:2"})).await?;
    spec("asleep", json!({"offSchedule": true, "stagedDeploymentID": "s-next:2"})).await?;
    spec("staged", json!({"stagedDeploymentID": "s-next:2"})).await?;
    let bad = Bundle::config_maps("upgraded", "upgraded", 2, "2").file("manifests/thing.yaml", NO_SUCH_KIND);
    let slow = waiting("upgrading");
    publisher.publish(&[bad, slow]).await?;
    until("the drift to be corrected", GENEROUS, async || {
        let map = maps.get("corrected-0").await?;
        Ok(map.data.is_some_and(|data| data["version"] == "1").then_some(()))
    })
    .await?;
    for name in ["installing", "upgrading"] {
        units
            .until("a deployment in its middle", GENEROUS, |live| {
                let claim = live.get(name)?.condition("InProgress")?;
                (claim.status == "True" && claim.reason == "Waiting").then_some(())
            })
            .await?;
    }
    Ok(())
}

async fn is_shown(units: &Units, expected: &Shown) -> anyhow::Result<()> {
    let Shown { unit, state, message, columns, text } = expected;
    let what = format!("{unit} to be shown as {state}");
    let (mut last, mut last_text) = (None, String::new());
    let waited = units
        .until(&what, GENEROUS, |live| {
            let value = serde_json::to_value(&**live.get(*unit)?).ok()?;
            let found = verdict(&value);
            let mut summary = Summary::default();
            summary.add(unit, &value);
            let told = summary.text("Bundle");
            let right = found.state == *state
                && found.message.contains(message)
                && found.message.is_empty() == message.is_empty()
                && found.deployed.starts_with(columns[0])
                && found.monitored.starts_with(columns[1])
                && told.contains(text);
            (last, last_text) = (Some(found), told);
            right.then_some(())
        })
        .await;
    waited.with_context(|| format!("{last:?}\n{last_text}"))
}

/// All bundles as their cluster sees them.
fn all_together(live: &BTreeMap<String, Value>) -> anyhow::Result<()> {
    let mut cluster = Summary::default();
    for (name, unit) in live {
        cluster.add(name, unit);
    }
    let count = |state: &str| SHOWN.iter().filter(|shown| shown.state == state).count();
    for (state, found) in &cluster.counts {
        ensure!(*found == count(state), "{found} are {state}: {:?}", cluster.counts);
    }
    ensure!((cluster.desired, cluster.state()) == (SHOWN.len(), "ErrApplied"));
    let told = cluster.text("Bundle");
    ensure!(told.starts_with("ErrApplied(5) [Bundle broken: "), "{told}");
    // What stands while its upgrade fails is still told.
    let upgraded = &live["upgraded"];
    ensure!(text(upgraded, "/status/release") == "upgraded/upgraded:1", "{upgraded}");
    ensure!(upgraded["status"]["resources"].as_array().is_some_and(|list| list.len() == 2), "{upgraded}");
    Ok(())
}

/// What every version of every bundle was read as, and what a cluster knows that wakes for few of them.
fn what_was_seen_on_the_way(
    changes: &mut UnboundedReceiver<Change>,
    live: &BTreeMap<String, Value>,
) -> anyhow::Result<()> {
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    let mut claims = 0;
    while let Ok(change) = changes.try_recv() {
        let Some(unit) = &change.after else { continue };
        let name = unit.name_any();
        let before = change.before.as_deref().map(serde_json::to_value).transpose()?;
        let after = serde_json::to_value(&**unit)?;
        let found = verdict(&after);
        ensure!(found == verdict(&without_claim(&after)), "the claim changes what is shown: {after}");
        let conditions = after["status"]["conditions"].as_array().into_iter().flatten();
        for claim in conditions.filter(|condition| condition["type"] == "InProgress") {
            claims += 1;
            ensure!(claim["reason"] != "Error", "whoever looks for errors would find one: {claim}");
        }
        if found.state == "Ready" {
            let ready = unit.condition("Ready").is_some_and(|ready| ready.status == "True");
            let lists =
                ["modifiedStatus", "nonReadyStatus"].iter().any(|key| !after["status"][key].is_null());
            ensure!(ready && !lists && found.deployed == "True", "shown as ready: {after}");
        }
        if wakes(before.as_ref(), Some(&after)).cluster {
            known.insert(name, after);
        }
    }
    ensure!(claims > SHOWN.len(), "{claims} claims were seen");
    // A cluster does not wake for a mere condition: an agent that wrote the rest of a result after `ready` and the id
    // would be shown wrongly there for ever.
    for (name, unit) in live {
        let (now, then) = (state(unit), state(&known[name]));
        let told_by_conditions = matches!(now, "ErrApplied" | "Modified");
        ensure!(now == then || told_by_conditions, "{name} is {now}, and its cluster still shows {then}");
    }
    Ok(())
}

/// The BundleDeployments as the controller reads them.
fn values(units: &Units) -> anyhow::Result<BTreeMap<String, Value>> {
    units.live().iter().map(|(name, unit)| Ok((name.clone(), serde_json::to_value(&**unit)?))).collect()
}

#[test]
fn every_state_but_that_of_no_deployment_has_a_situation() {
    for state in rules::RANKS.iter().filter(|state| **state != "Pending") {
        assert!(SHOWN.iter().any(|shown| shown.state == *state), "{state}");
    }
}
