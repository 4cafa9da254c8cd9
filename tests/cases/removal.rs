// SPDX-License-Identifier: Apache-2.0
//! What goes with a bundle, and what does not.

use anyhow::ensure;
use flotilla::api::{DownstreamResource, keys};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::harness::{fleet, until};
use super::{BOUND, Bundle, Cases, bundle, objects};

pub async fn stories(cases: &Cases<'_>) -> anyhow::Result<()> {
    pc_038_definitions_outlive_versions_names_and_bundle(cases).await?;
    pc_039_the_old_bundle_leaves_what_the_new_one_has(cases).await?;
    pc_045_a_bundle_that_lost_all_its_objects_is_refused(cases).await?;
    copies_stay_with_what_is_kept(cases).await
}

async fn pc_038_definitions_outlive_versions_names_and_bundle(cases: &Cases<'_>) -> anyhow::Result<()> {
    const DEFINITION: (&str, &str, &str) =
        ("apiextensions.k8s.io/v1/CustomResourceDefinition", "", "trees.demo.example.com");
    const TREE: (&str, &str, &str) = ("demo.example.com/v1/Tree", "orchard", "oldest");
    let orchard = bundle("orchard/bundle", "orchard")?;
    cases.ready(&orchard).await?;
    for tree in objects("orchard/user-data.yaml")? {
        fleet::apply(&cases.down, tree).await?;
    }
    let uids = async || -> anyhow::Result<[String; 2]> {
        let mut found = [String::new(), String::new()];
        for (uid, (kind, namespace, name)) in found.iter_mut().zip([DEFINITION, TREE]) {
            *uid = cases.uid(kind, namespace, name).await?;
        }
        Ok(found)
    };
    let before = uids().await?;
    let mut without = orchard.clone();
    without.resources.retain(|file| !file.name.ends_with("crd.yaml"));
    let renamed = orchard.clone().with(|options| {
        options.helm.get_or_insert_default().release_name = "orchard-new".into();
    });
    for (what, version) in [("left out", &without), ("put back", &orchard), ("renamed", &renamed)] {
        cases.ready(version).await?;
        assert_eq!(uids().await?, before, "{what}");
    }
    until("the old release to go", BOUND, async || {
        Ok(cases.history("orchard", "orchard").await?.is_empty().then_some(()))
    })
    .await?;
    assert_eq!(uids().await?, before, "the old release is gone");
    cases.ready(&renamed).await?;
    cases.withdrawn(&renamed, "orchard-new").await?;
    cases.gone("v1/ConfigMap", "orchard", "orchard-plan").await?;
    assert_eq!(uids().await?, before, "the bundle is gone");
    Ok(())
}

async fn pc_039_the_old_bundle_leaves_what_the_new_one_has(cases: &Cases<'_>) -> anyhow::Result<()> {
    let (old, new) = (bundle("jetty/old-folder", "jetty-a")?, bundle("jetty/new-folder", "jetty-b")?);
    for new_first in [true, false, true] {
        cases.ready(&old).await?;
        let uid = cases.uid("v1/ConfigMap", "jetty", "notice-board").await?;
        if new_first {
            cases.ready(&new).await?;
            cases.publisher.withdraw("jetty-a").await?;
        } else {
            cases.publisher.withdraw("jetty-a").await?;
            cases.publisher.publish(std::slice::from_ref(&new)).await?;
        }
        cases.gone("v1/ConfigMap", "jetty", "old-rope").await?;
        until("the old release to go", BOUND, async || {
            Ok(cases.history("jetty", "jetty-old").await?.is_empty().then_some(()))
        })
        .await?;
        cases.units.until_ready(["jetty-b"], BOUND).await?;
        let board = cases.get("v1/ConfigMap", "jetty", "notice-board").await?.unwrap_or_default();
        assert_eq!(board["metadata"]["annotations"][keys::RELEASE_NAME], "jetty-new");
        if new_first {
            assert_eq!(board["metadata"]["uid"], uid.as_str(), "it was never deleted");
        }
        cases.withdrawn(&new, "jetty-new").await?;
    }
    Ok(())
}

async fn pc_045_a_bundle_that_lost_all_its_objects_is_refused(cases: &Cases<'_>) -> anyhow::Result<()> {
    let full = Bundle::config_maps("granary", "granary", 3, "1");
    cases.ready(&full).await?;
    let uid = cases.uid("v1/ConfigMap", "granary", "granary-0").await?;
    let emptied = Bundle::new("granary", "granary").file("README.md", "nothing is left\n");
    cases.publisher.publish(std::slice::from_ref(&emptied)).await?;
    let told = cases.told("granary", "Deployed", &["renders no objects any more", "3 are deployed"]).await?;
    ensure!(told.contains(keys::ALLOW_EMPTY_ANNOTATION), "{told}");
    assert_eq!(cases.uid("v1/ConfigMap", "granary", "granary-0").await?, uid);
    assert_eq!(cases.history("granary", "granary").await?.len(), 1, "no revision for it");

    let allow = json!({"metadata": {"annotations": {keys::ALLOW_EMPTY_ANNOTATION: "true"}}});
    cases.publisher.units().patch("granary", &PatchParams::default(), &Patch::Merge(allow)).await?;
    cases.gone("v1/ConfigMap", "granary", "granary-0").await?;
    pc_046_a_bundle_without_objects_says_so(cases, "granary").await
}

/// All is well, and yet people see at once that nothing is there.
async fn pc_046_a_bundle_without_objects_says_so(cases: &Cases<'_>, name: &str) -> anyhow::Result<()> {
    cases
        .units
        .until("it to say that it has no objects", BOUND, |live| {
            let ready = live.get(name)?.condition("Ready")?;
            let said = (ready.status.as_str(), ready.reason.as_str(), ready.message.as_str());
            (said == ("True", "NoResources", "the bundle has no objects")).then_some(())
        })
        .await
}

async fn copies_stay_with_what_is_kept(cases: &Cases<'_>) -> anyhow::Result<()> {
    let source = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"k": "v"},
        "metadata": {"name": "seed-corn", "namespace": cases.world.registration.cluster_namespace}});
    fleet::apply(&cases.up, source).await?;
    let resource = DownstreamResource { kind: "secret".into(), name: "seed-corn".into() };
    let kept = Bundle::config_maps("larder", "larder", 1, "1").with(|options| {
        options.keep_resources = true;
        options.downstream_resources = vec![resource];
    });
    cases.ready(&kept).await?;
    let uid = cases.uid("v1/Secret", "larder", "seed-corn").await?;
    cases.withdrawn(&kept, "larder").await?;
    // Something published later is gone, copies and all: what was to be removed was.
    let passing = Bundle::config_maps("passing", "larder", 1, "1");
    cases.ready(&passing).await?;
    cases.withdrawn(&passing, "passing").await?;
    assert_eq!(cases.uid("v1/Secret", "larder", "seed-corn").await?, uid);
    cases.uid("v1/ConfigMap", "larder", "larder-0").await.map(drop)
}
