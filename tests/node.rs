// SPDX-License-Identifier: Apache-2.0
//! On a real node, from the charts: replicas are killed, deleted, evicted, scaled and rolled while they deploy, and
//! each change is deployed once.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::Instant;

#[path = "node/disturbances.rs"]
mod disturbances;
#[path = "../dev/harness/mod.rs"]
mod harness;
#[path = "node/pods.rs"]
mod pods;
#[path = "node/waves.rs"]
mod waves;

use disturbances::Disturber;
use harness::judge::{self, Ended};
use harness::node::{Node, image, on_a_node};
use harness::records::{Record, Records};
use harness::units::{Claim, End, Units};
use harness::{GENEROUS, chart, fleet};
use pods::Pods;
use waves::Waves;

/// Bundles, some of them with Pods that really run.
const BUNDLES: usize = 100;
const NAMESPACE: &str = "quay";
/// Deployments at once of each replica: few, so that each is short, and a replica that is told to stop can finish.
const SLOTS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_the_pods_each_change_is_deployed_once() -> anyhow::Result<()> {
    // A machine that cannot do this fails here, and says what it lacks: skipped is not passed.
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    on_a_node("flotilla-node-", async |node, _| story(node, binary).await).await
}

async fn story(node: &Node, binary: &Path) -> anyhow::Result<()> {
    let clock = Instant::now();
    let say = |text: &str| println!("{:6.1} s  {text}", clock.elapsed().as_secs_f32());
    fleet::install_crds(&node.plane, binary).await?;
    // Two tags of one image: what an update looks like to the cluster.
    node.load(&image(&["--tag", "dev", "--tag", "next"])?)?;
    say("the images are on the node");
    chart::install(node, 3, SLOTS, 2, "dev")?;
    say("3 agents and 2 controllers are ready");

    let client = admin(node).await?;
    let waves = Waves::new(client.clone(), BUNDLES, NAMESPACE);
    let units = Units::follow(waves.units().clone()).await?;
    let records = Records::follow(client.clone()).await?;
    let pods = Pods::follow(client.clone(), fleet::AGENT_NAMESPACE, "flotilla-agent").await?;
    let mut disturber = Disturber::new(node, client.clone(), &units, &pods);

    let stop = tokio_util::sync::CancellationToken::new();
    let disturbed = async {
        let result = disturbances(&mut disturber, node, &say).await;
        stop.cancel();
        result
    };
    let (versions, disturbed) = tokio::join!(waves.run(&units, &stop), disturbed);
    disturbed?;
    let versions = versions?;
    say(&format!("{BUNDLES} bundles were changed {versions} times meanwhile"));

    let ended = disturber.ended();
    judge(&units.claims(), &records.all(), &ended, versions, &say)?;
    let open = units.live().values().filter(|unit| unit.condition("InProgress").is_some()).count();
    ensure!(open == 0, "{open} claims are left");
    let claims = units.claims();
    let hits =
        claims.iter().filter(|claim| was_hit(claim, &ended)).map(|claim| claim.unit.as_str()).collect();
    no_event_of_double_work(client.clone(), hits).await?;
    pods.until_leases_match(&client).await?;
    say("no claim, no Lease and no Event of double work is left");
    for (chart, namespace) in
        [("flotilla-agent", fleet::AGENT_NAMESPACE), ("flotilla-controller", chart::CONTROLLER_NAMESPACE)]
    {
        node.run("helm", &["test", chart, "--namespace", namespace, "--timeout", "2m"])?;
    }
    say("helm test passed");
    Ok(())
}

/// A client that takes 429, the answer of a disruption budget, for an answer.
async fn admin(node: &Node) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(node.plane.admin_kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

async fn disturbances(disturber: &mut Disturber<'_>, node: &Node, say: &dyn Fn(&str)) -> anyhow::Result<()> {
    for round in 1..=2 {
        disturber.force_delete_a_holder().await?;
        say(&format!("round {round}: a pod was deleted with force while it held a claim"));
        disturber.delete_a_holder().await?;
        say(&format!("round {round}: another was deleted gracefully"));
    }
    disturber.kill_a_holders_container().await?;
    say("a container was killed, and its pod started it again");
    for replicas in [5, 1, 3] {
        disturber.scale(replicas).await?;
        say(&format!("scaled to {replicas}"));
    }
    chart::install(node, 3, SLOTS, 2, "next")?;
    disturber.until_all_run("next").await?;
    say("rolled to another image");
    disturber.drain().await?;
    say("drained, one replica at a time");
    Ok(())
}

/// One revision a change, and at most one more for each claim whose holder was killed. A claim that its holder gave back
/// when it was told to stop had not begun, and costs none.
fn judge(
    claims: &[Claim],
    records: &[Record],
    ended: &[Ended],
    versions: usize,
    say: &dyn Fn(&str),
) -> anyhow::Result<()> {
    let records: Vec<Record> =
        records.iter().filter(|record| record.namespace == NAMESPACE).cloned().collect();
    let verdict = judge::verdict(claims, &records, ended);
    ensure!(verdict.doubles.is_empty(), "double work: {:#?}", verdict.doubles);
    let mut revisions: BTreeMap<&str, usize> = BTreeMap::new();
    for record in &records {
        *revisions.entry(record.release.as_str()).or_default() += 1;
    }
    ensure!(revisions.len() == BUNDLES, "{} releases", revisions.len());
    let mut extra = 0;
    for (release, count) in revisions {
        let mine = || claims.iter().filter(|claim| claim.unit == release);
        let killed = mine().filter(|claim| was_hit(claim, ended)).count();
        let given_back = mine().filter(|claim| was_handed_over(claim)).count();
        ensure!(
            (versions..=versions + killed).contains(&count),
            "{release} has {count} revisions of {versions} versions; {killed} of its claims lost their holder and \
             {given_back} were given back"
        );
        extra += count - versions;
    }
    let hits = claims.iter().filter(|claim| was_hit(claim, ended)).count();
    let handed = claims.iter().filter(|claim| was_handed_over(claim)).count();
    say(&format!(
        "{} claims, {} kills: {hits} claims lost their holder, {handed} were given back; {extra} deployments were begun again",
        claims.len(),
        ended.len()
    ));
    ensure!(hits > 0, "no kill met an open claim: this run shows nothing");
    Ok(())
}

/// Whether the claim was taken over from a holder that was killed.
fn was_hit(claim: &Claim, ended: &[Ended]) -> bool {
    let taken = matches!(claim.end, Some(End::Replaced { takeover: true, .. }));
    taken && ended.iter().any(|ended| ended.holder == claim.holder)
}

/// Whether the holder gave it back in the middle, as a replica does whose time to stop is over.
fn was_handed_over(claim: &Claim) -> bool {
    matches!(&claim.end, Some(End::Closed(reason)) if reason == "Expired")
}

/// `hits`: the bundle of each claim that was taken over from a holder that was killed.
async fn no_event_of_double_work(client: Client, mut hits: Vec<&str>) -> anyhow::Result<()> {
    use k8s_openapi::api::core::v1::Event;
    let events: kube::Api<Event> = kube::Api::all(client);
    for event in events.list(&kube::api::ListParams::default()).await? {
        let reason = event.reason.as_deref().unwrap_or_default();
        let note = event.message.unwrap_or_default();
        if reason == "DeployFailed" && note.ends_with(" was written by somebody else meanwhile") {
            // A Pod deleted with force is gone before its process is: what that one still writes, its successor is
            // refused, once.
            let hit = hits.iter().position(|unit| note.contains(&format!("bundle {unit} ")));
            let told = event.series.and_then(|series| series.count).or(event.count).unwrap_or(1);
            ensure!(told == 1, "Event {reason}, {told} times: {note}");
            hits.swap_remove(hit.with_context(|| format!("Event {reason} of no kill: {note}"))?);
            continue;
        }
        ensure!(!["Quarantined", "AbsenceHeld", "DeployFailed"].contains(&reason), "Event {reason}: {note}");
    }
    Ok(())
}

/// The longest that anything here may take on a busy machine.
pub(crate) const BOUND: Duration = GENEROUS.saturating_mul(2);
