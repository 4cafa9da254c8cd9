// SPDX-License-Identifier: Apache-2.0
//! Rollouts: the model promotes what is staged as Fleet's controller does, woken by nothing but changes of
//! BundleDeployments, while replicas deploy.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::api::BundleDeployment;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout_at};

use crate::harness::Tools;
use crate::harness::bundles::{Bundle, NO_SUCH_KIND, Publisher};
use crate::harness::units::{Change, Units};
use crate::harness::world::{Downstream, World};
use crate::rollout::{Limit, Partition, Strategy, is_unavailable, is_up_to_date, promoted};
use crate::rules::{state, text, wakes};

/// Deployments in three partitions of four, in the place of as many clusters.
const SITES: usize = 12;
const SIZE: usize = 4;
const BOUND: Duration = Duration::from_secs(180);
/// Tries of a bad version that must change nothing.
const TRIES: u32 = 3;

const FORBIDDEN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: typed}\ndata: {number: 1}\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_moves_on_as_the_agents_report_and_stops_at_what_is_bad() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let world = World::start(Path::new(env!("CARGO_BIN_EXE_flotilla")), tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    let _replicas = world.ready_replicas(3, 4).await?;
    let first: Vec<Bundle> = (0..SITES).map(|site| version(site, "1")).collect();
    publisher.publish(&first).await?;
    let names: Vec<String> = first.iter().map(|bundle| bundle.name.clone()).collect();
    units.until_ready(names.iter().map(String::as_str), BOUND).await?;
    let mut controller = Controller::new(&units, &publisher);

    controller.stage(|site| version(site, "2")).await?;
    controller.run("the second version everywhere", all_up_to_date).await?;
    ensure!(controller.taken() == (0..SITES).collect::<Vec<_>>(), "partition by partition, one by one");

    // An error that is tried again, and one that no try can heal.
    for (number, bad) in [NO_SUCH_KIND, FORBIDDEN].into_iter().enumerate() {
        let broken = format!("{number}-broken");
        controller.stage(|site| version(site, &broken).file("manifests/bad.yaml", bad)).await?;
        let id = version(0, &broken).file("manifests/bad.yaml", bad).deployment_id();
        let mut tries = 0;
        controller
            .run("the bad version to be tried", |units, _| {
                let unit = &units[0];
                tries = tries.max(attempts(unit));
                let settled = text(unit, "/status/appliedDeploymentID") == id;
                Ok(text(unit, "/spec/deploymentID") == id && (settled || tries >= TRIES))
            })
            .await?;
        ensure!(controller.taken() == [0], "a bad version went further");
        let shown = state(&controller.list().await?[0]);
        ensure!(shown == ["ErrApplied", "NotReady"][number], "the bad one is shown as {shown}");

        let good = format!("{number}-mended");
        controller.stage(|site| version(site, &good)).await?;
        controller.run("the mended version everywhere", all_up_to_date).await?;
        ensure!(controller.taken() == (0..SITES).collect::<Vec<_>>());
    }
    Ok(())
}

fn version(site: usize, version: &str) -> Bundle {
    let name = format!("site-{site:02}");
    Bundle::config_maps(&name, &name, 3, version)
}

fn all_up_to_date(units: &[Value], wanted: &[String]) -> anyhow::Result<bool> {
    Ok(units.iter().zip(wanted).all(|(unit, wanted)| is_up_to_date(unit, wanted) && !is_unavailable(unit)))
}

/// How often the deployment was tried, as its claim tells.
fn attempts(unit: &Value) -> u32 {
    let mut conditions = unit["status"]["conditions"].as_array().into_iter().flatten();
    let claim = conditions.find(|condition| condition["type"] == "InProgress");
    let message = claim.map(|claim| text(claim, "/message")).unwrap_or_default();
    crate::harness::units::word(message, "attempt").and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// The stand-in for Fleet's controller.
struct Controller<'a> {
    publisher: &'a Publisher,
    changes: UnboundedReceiver<Change>,
    wanted: Vec<String>,
    strategy: Strategy,
    promoted: Vec<usize>,
}

impl Controller<'_> {
    fn new<'a>(units: &Units, publisher: &'a Publisher) -> Controller<'a> {
        let partition = |index: usize| Partition {
            members: (index * SIZE..(index + 1) * SIZE).collect(),
            max_unavailable: Limit::Count(1),
        };
        let strategy = Strategy {
            max_unavailable: Limit::Count(1),
            max_unavailable_partitions: Limit::Count(0),
            partitions: (0..SITES / SIZE).map(partition).collect(),
        };
        let changes = units.changes();
        Controller { publisher, changes, wanted: Vec::new(), strategy, promoted: Vec::new() }
    }

    /// The bundle changed: what it wants is staged everywhere.
    async fn stage(&mut self, bundle: impl Fn(usize) -> Bundle) -> anyhow::Result<()> {
        self.wanted.clear();
        for site in 0..SITES {
            let bundle = bundle(site);
            self.publisher.publish_content(&bundle).await?;
            let patch = json!({"spec": {
                "stagedDeploymentID": bundle.deployment_id(), "stagedOptions": bundle.options,
            }});
            let patch = Patch::Merge(&patch);
            self.publisher.units().patch(&bundle.name, &PatchParams::default(), &patch).await?;
            self.wanted.push(bundle.deployment_id());
        }
        Ok(())
    }

    /// The sites that were promoted since it was last asked, in order.
    fn taken(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.promoted)
    }

    async fn list(&self) -> anyhow::Result<Vec<Value>> {
        let mut units: Vec<BundleDeployment> =
            self.publisher.units().list(&ListParams::default()).await?.items;
        units.sort_by_key(ResourceExt::name_any);
        units.iter().map(|unit| Ok(serde_json::to_value(unit)?)).collect()
    }

    /// Reconciles, and again whenever a change wakes it, until `done`. A change that should wake it and does not leaves
    /// it waiting.
    async fn run(
        &mut self,
        what: &str,
        mut done: impl FnMut(&[Value], &[String]) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + BOUND;
        loop {
            let units = self.list().await?;
            let down = units.iter().filter(|unit| is_unavailable(unit)).count();
            ensure!(down <= 1, "{down} are unavailable at once");
            if done(&units, &self.wanted)? {
                return Ok(());
            }
            for site in promoted(&units, &self.wanted, &self.strategy) {
                self.promote(site, &units[site]).await?;
            }
            loop {
                let change = timeout_at(end, self.changes.recv()).await;
                let change = change.with_context(|| format!("{what}: stuck, {down} unavailable"))?;
                let change = change.context("nobody follows the units")?;
                let value = |unit: &Option<_>| unit.as_deref().map(serde_json::to_value).transpose();
                let (before, after) = (value(&change.before)?, value(&change.after)?);
                if wakes(before.as_ref(), after.as_ref()).bundle {
                    break;
                }
            }
        }
    }

    async fn promote(&mut self, site: usize, unit: &Value) -> anyhow::Result<()> {
        // As read: what the agent reported meanwhile is looked at first.
        let patch = json!({
            "metadata": {"resourceVersion": unit["metadata"]["resourceVersion"]},
            "spec": {"deploymentID": unit["spec"]["stagedDeploymentID"], "options": unit["spec"]["stagedOptions"]},
        });
        let name = text(unit, "/metadata/name");
        match self.publisher.units().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => {
                self.promoted.push(site);
                other.map(drop).context("promoting")
            }
        }
    }
}
