// SPDX-License-Identifier: Apache-2.0
//! Charts that are made to do harm: each fails alone, in words, while its neighbours are deployed.

use std::path::Path;
use std::time::Duration;

use flotilla::api::keys;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::Tools;
use harness::bundles::Bundle;
use harness::units::{Units, is_ready};
use harness::world::{Downstream, World};

const NAMESPACE: &str = "reef";
const BOUND: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_chart_fails_alone_while_its_neighbours_are_deployed() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

/// A chart of one template, and what must be said of it.
fn hostile() -> Vec<(Bundle, &'static str)> {
    let case = |name: &str, template: &str, words| {
        let chart = format!("apiVersion: v2\nname: {name}\nversion: 1.0.0\n");
        let bundle = Bundle::new(name, NAMESPACE).file("Chart.yaml", chart);
        (bundle.file("templates/x.yaml", template), words)
    };
    vec![
        case(
            "endless-loop",
            "{{ range 1000000000 }}{{ range 1000000000 }}{{ end }}{{ end }}",
            "the engine did not get through these files within 10s",
        ),
        case(
            "ten-gigabytes",
            "a: {{ repeat 10000000000 \"x\" }}",
            "the engine died at work on these files, alone",
        ),
        case(
            "deep-recursion",
            "{{ define \"a\" }}{{ template \"a\" . }}{{ end }}{{ template \"a\" . }}",
            "exceeded maximum template depth",
        ),
        case(
            "fifty-thousand",
            "{{ range 50000 }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"many-{{ . }}\"}\n{{ end }}",
            "the bundle has 50000 objects, and one release may have 10000",
        ),
    ]
}

fn neighbours(name: &str) -> Vec<Bundle> {
    (0..5).map(|index| Bundle::config_maps(&format!("{name}-{index}"), NAMESPACE, 3, "1")).collect()
}

async fn are_ready(units: &Units, bundles: &[Bundle]) -> anyhow::Result<()> {
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await
}

async fn story(world: &World) -> anyhow::Result<()> {
    let (units, publisher) = (world.units().await?, world.publisher().await?);
    // A slot for each hostile one, and some for the others: none of the limits is what keeps slots free.
    let replica = world.ready_replica("replica-1", 8).await?;
    let hostile = hostile();
    let bundles: Vec<Bundle> = hostile.iter().map(|(bundle, _)| bundle.clone()).collect();
    let beside = neighbours("beside");
    publisher.publish(&bundles).await?;
    publisher.publish(&beside).await?;
    are_ready(&units, &beside).await?;
    for (bundle, words) in &hostile {
        units
            .until(&format!("{} to say {words:?}", bundle.name), BOUND, |live| {
                let conditions = &live.get(&bundle.name)?.status.as_ref()?.conditions;
                let told = conditions.iter().any(|condition| {
                    condition.type_ != keys::CLAIM_CONDITION
                        && condition.status == "False"
                        && condition.message.contains(words)
                });
                told.then_some(())
            })
            .await?;
    }
    let after = neighbours("after");
    publisher.publish(&after).await?;
    are_ready(&units, &after).await?;
    let live = units.live();
    assert!(bundles.iter().all(|bundle| !is_ready(&live[&bundle.name])), "nothing hostile is ready");
    assert!(units.claims().iter().all(|claim| claim.lost == 0), "the replica lost no claim");

    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, NAMESPACE);
    let made = maps.list_metadata(&ListParams::default()).await?.items;
    assert!(!made.iter().any(|map| map.name_any().starts_with("many-")), "refused before the first object");
    drop(replica);
    Ok(())
}
