// SPDX-License-Identifier: Apache-2.0
//! The work: all bundles change, are deployed, and change again, until it is enough.

use flotilla::api::BundleDeployment;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::BOUND;
use super::harness::bundles::{Bundle, Publisher};
use super::harness::chart::LOCAL_NAMESPACE;
use super::harness::fleet::{AGENT_NAMESPACE, Registration};
use super::harness::node::{OTHER_PAUSE, PAUSE};
use super::harness::units::Units;

/// Every so many bundles one is a Deployment whose Pod runs.
const ONE_IN: usize = 5;
/// Objects of the others.
const OBJECTS: usize = 10;
/// Every so many versions the Pods get another image.
const ROLL: usize = 4;

/// Bundles that change in waves.
pub struct Waves {
    publisher: Publisher,
    count: usize,
    namespace: &'static str,
}

impl Waves {
    /// `count` bundles for objects in `namespace`.
    pub fn new(client: Client, count: usize, namespace: &'static str) -> Waves {
        // In local mode nobody registered: only the names are used here.
        let registration = Registration {
            cluster: "local".into(),
            cluster_namespace: LOCAL_NAMESPACE.into(),
            agent_namespace: AGENT_NAMESPACE.into(),
            agent_kubeconfig: Default::default(),
            upstream_token: String::new(),
            upstream_user: String::new(),
            downstream_user: String::new(),
        };
        Waves { publisher: Publisher::new(client, &registration), count, namespace }
    }

    /// The BundleDeployments.
    pub fn units(&self) -> &Api<BundleDeployment> {
        self.publisher.units()
    }

    /// Publishes version after version, each when the one before is ready everywhere, until `stop`; says how many.
    pub async fn run(&self, units: &Units, stop: &CancellationToken) -> anyhow::Result<usize> {
        let mut version = 0;
        while !stop.is_cancelled() {
            version += 1;
            let bundles: Vec<Bundle> = (0..self.count).map(|index| self.bundle(index, version)).collect();
            self.publisher.publish(&bundles).await?;
            // Not ready yet is also what carries the version before: the watch may lag behind our own write.
            let wanted: Vec<(String, String)> =
                bundles.iter().map(|bundle| (bundle.name.clone(), bundle.deployment_id())).collect();
            units
                .until("the wave to be seen", BOUND, |live| {
                    let seen = |(name, id): &(String, String)| {
                        live.get(name).is_some_and(|unit| &unit.spec.deployment_id == id)
                    };
                    wanted.iter().all(seen).then_some(())
                })
                .await?;
            units.until_ready(bundles.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;
        }
        Ok(version)
    }

    fn bundle(&self, index: usize, version: usize) -> Bundle {
        let name = format!("crate-{index:03}");
        if !index.is_multiple_of(ONE_IN) {
            return Bundle::config_maps(&name, self.namespace, OBJECTS, &version.to_string());
        }
        let image = if (version / ROLL).is_multiple_of(2) { PAUSE } else { OTHER_PAUSE };
        let text = format!(
            "apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  annotations: {{version: \"{version}\"}}
spec:
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {{name: pause, image: \"{image}\", imagePullPolicy: Never}}
"
        );
        Bundle::new(name, self.namespace).file("manifests/deployment.yaml", text)
    }
}
