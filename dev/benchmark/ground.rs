// SPDX-License-Identifier: Apache-2.0
//! Fresh ground for one run: a cluster namespace with bundles that nobody has touched.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use super::Arguments;
use super::delay::Delay;
use crate::harness::bundles::{Bundle, Publisher};
use crate::harness::fleet::{self, Registration};
use crate::harness::judge;
use crate::harness::units::Units;
use crate::harness::world::{World, settled_audit};

/// Bundles that nobody has deployed yet.
pub struct Ground<'a> {
    /// The agent's identity in this run.
    pub registration: Registration,
    /// Names of the bundles.
    pub names: Vec<String>,
    /// Where their objects go.
    pub namespace: String,
    /// Between the agents and upstream, when requests are to take longer.
    _delay: Option<Delay>,
    world: &'a World,
    bundles: Vec<Bundle>,
    publisher: Publisher,
}

/// What was written in a run, by kind of write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writes {
    /// Upstream.
    pub upstream: usize,
    /// Downstream, without Leases and Events.
    pub downstream: usize,
    /// Leases and Events.
    pub apart: usize,
    /// Of those upstream, refused with a conflict.
    pub conflicts: usize,
}

impl<'a> Ground<'a> {
    /// Registers the agent anew under `name` and makes the bundles; none is published yet.
    pub async fn prepare(world: &'a World, name: &str, arguments: &Arguments) -> anyhow::Result<Ground<'a>> {
        let delay = match arguments.delay {
            Some(by) => Some(Delay::start(&world.upstream.url(), by).await?),
            None => None,
        };
        let url = delay.as_ref().map_or_else(|| world.upstream.url(), Delay::url);
        let registration = fleet::register_through(&world.upstream, &url, &world.downstream, name).await?;
        let namespaces: Api<Namespace> = Api::all(world.downstream.admin().await?);
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.into());
        namespaces.create(&PostParams::default(), &namespace).await?;
        let bundles: Vec<Bundle> = (0..arguments.bundles())
            .map(|index| {
                let make = if arguments.chart { Bundle::chart } else { Bundle::config_maps };
                make(&format!("{name}-{index:03}"), name, arguments.objects, "1")
            })
            .collect();
        let publisher = Publisher::new(world.upstream.admin().await?, &registration);
        Ok(Ground {
            names: bundles.iter().map(|bundle| bundle.name.clone()).collect(),
            namespace: name.into(),
            registration,
            _delay: delay,
            world,
            bundles,
            publisher,
        })
    }

    /// Publishes all bundles at once.
    pub async fn publish(&self) -> anyhow::Result<()> {
        self.publisher.publish(&self.bundles).await
    }

    /// Publishes one bundle after the other.
    pub async fn publish_singly(&self, pace: Duration) -> anyhow::Result<()> {
        let mut ticks = tokio::time::interval(pace);
        for bundle in &self.bundles {
            ticks.tick().await;
            self.publisher.publish(std::slice::from_ref(bundle)).await?;
        }
        Ok(())
    }

    /// Follows the units of this run.
    pub async fn units(&self) -> anyhow::Result<Units> {
        Units::follow(self.publisher.units().clone()).await
    }

    /// What the agent's identities have written since `since`.
    pub async fn writes(&self, since: DateTime<Utc>) -> anyhow::Result<Writes> {
        let (world, registration) = (self.world, &self.registration);
        let upstream = settled_audit(&world.upstream, &world.upstream.admin().await?).await?;
        let downstream = settled_audit(&world.downstream, &world.downstream.admin().await?).await?;
        let mut writes = Writes {
            conflicts: judge::conflicts(
                &upstream,
                &registration.upstream_user,
                &registration.cluster_namespace,
            ),
            ..Writes::default()
        };
        let by_agent =
            |user: &str| *user == registration.upstream_user || *user == registration.downstream_user;
        for (entries, count) in [(&upstream, &mut writes.upstream), (&downstream, &mut writes.downstream)] {
            for entry in entries.iter().filter(|entry| entry.is_write() && by_agent(&entry.user)) {
                match entry.resource.as_str() {
                    _ if entry.received < since => {}
                    "leases" | "events" => writes.apart += 1,
                    _ => *count += 1,
                }
            }
        }
        Ok(writes)
    }

    /// Removes the run's objects, so that the next one meets a cluster as empty.
    pub async fn clear(self) -> anyhow::Result<()> {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        self.publisher.units().delete_collection(&delete, &all).await?;
        let client = self.world.downstream.admin().await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        secrets.delete_collection(&delete, &all).await?;
        let maps: Api<ConfigMap> = Api::namespaced(client, &self.namespace);
        maps.delete_collection(&delete, &all).await?;
        Ok(())
    }
}

/// The processes whose parent is `parent`, by name.
pub fn children(parent: u32) -> anyhow::Result<BTreeMap<u32, String>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has just ended is nobody's child.
        let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map_or("", |value| value.trim())
                .to_owned()
        };
        if field("PPid:").parse() == Ok(parent) {
            found.insert(pid, field("Name:"));
        }
    }
    Ok(found)
}

/// The most memory a process has had resident, in megabytes (10⁶ bytes).
pub fn peak_memory(pid: u32) -> anyhow::Result<f64> {
    memory(pid, "VmHWM:")
}

/// What of a process is resident now and of no file, in megabytes (10⁶ bytes).
pub fn own_memory(pid: u32) -> anyhow::Result<f64> {
    memory(pid, "RssAnon:")
}

fn memory(pid: u32, field: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes: f64 =
        value.and_then(|value| value.split_whitespace().next()).unwrap_or("0").parse().unwrap_or(0.0);
    Ok(kibibytes * 1024.0 / 1e6)
}

/// Now, to be compared with the times of an audit log.
#[expect(clippy::disallowed_methods, reason = "compared with the audit log's times")]
pub fn wall() -> DateTime<Utc> {
    Utc::now()
}
