// SPDX-License-Identifier: Apache-2.0
//! What goes and what stays when a BundleDeployment is deleted.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::records::releases;
use harness::world::{Downstream, World};
use harness::{GENEROUS, Tools, until};

const NAMESPACE: &str = "depot";
const BOUND: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_bundle_takes_its_objects_along_and_nothing_else() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

const CRATES: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crates.depot.example}
spec:
  group: depot.example
  scope: Namespaced
  names: {plural: crates, singular: crate, kind: Crate}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {weight: {type: integer}}}
---
apiVersion: depot.example/v1
kind: Crate
metadata: {name: apples}
spec: {weight: 12}
";

async fn story(world: &World) -> anyhow::Result<()> {
    let units = world.units().await?;
    let publisher = world.publisher().await?;
    let _replicas = world.ready_replicas(2, 4).await?;
    let bundles = [
        Bundle::config_maps("plain", NAMESPACE, 20, "1"),
        Bundle::config_maps("kept", NAMESPACE, 5, "1").with(|options| options.keep_resources = true),
        Bundle::new("kind", NAMESPACE).file("manifests/crates.yaml", CRATES),
        Bundle::config_maps("neighbour", NAMESPACE, 5, "1"),
    ];
    publisher.publish(&bundles).await?;
    units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;
    for gone in ["plain", "kept", "kind"] {
        publisher.withdraw(gone).await?;
    }

    let client = world.downstream.admin().await?;
    until("the releases to be gone", GENEROUS, async || {
        Ok((releases(&client, NAMESPACE).await? == ["neighbour"]).then_some(()))
    })
    .await?;
    assert_eq!(maps(&client, "plain").await?, 0, "objects of a deleted bundle stay");
    assert_eq!(maps(&client, "kept").await?, 5, "keepResources keeps them");
    assert_eq!(maps(&client, "neighbour").await?, 5);
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    assert!(
        crds.get_opt("crates.depot.example").await?.is_some(),
        "a CRD stays, with all that depends on it"
    );
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("depot.example", "v1", "Crate"));
    let crates: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    assert_eq!(crates.get_opt("apples").await?.map(|object| object.metadata.name), None);

    // A bundle of the same name is new, and meets nothing of the old one.
    publisher.publish(&[Bundle::config_maps("plain", NAMESPACE, 3, "2")]).await?;
    units.until_ready(["plain", "neighbour"], BOUND).await?;
    assert_eq!(maps(&client, "plain").await?, 3);
    Ok(())
}

/// How many ConfigMaps of a bundle there are.
async fn maps(client: &Client, bundle: &str) -> anyhow::Result<usize> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let prefix = format!("{bundle}-");
    let list = maps.list_metadata(&ListParams::default()).await?;
    let is_its = |name: &Option<String>| name.as_ref().is_some_and(|name| name.starts_with(&prefix));
    Ok(list.items.iter().filter(|map| is_its(&map.metadata.name)).count())
}
