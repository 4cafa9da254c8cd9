// SPDX-License-Identifier: Apache-2.0
//! A fleet at rest whose replicas can be told apart: each has a token of its own downstream, so that the audit log says
//! who asked for what. Upstream all share the registration's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;

use super::audit::AuditEntry;
use super::bundles::{Bundle, Publisher};
use super::control_plane::ControlPlane;
use super::fleet;
use super::mixed;
use super::pki;
use super::replica::Replica;
use super::requests;
use super::units::Units;
use super::until::{GENEROUS, Wait, until};
use super::world::{World, ready, settled_audit};

/// Objects changed at once.
const WRITERS: usize = 16;

/// A replica, and what the downstream audit log calls it.
pub struct Member {
    /// The process.
    pub replica: Replica,
    /// Its token.
    pub credential: String,
}

/// Watches over all namespaces that are open at once, by resource.
pub type Watches = BTreeMap<String, usize>;

/// Bundles of [`mixed`] objects, and replicas that look after them.
pub struct Crowd<'a> {
    /// The control planes.
    pub world: &'a World,
    /// The units upstream.
    pub units: Units,
    /// The management cluster, as an administrator.
    pub upstream: Client,
    /// The downstream cluster, as an administrator.
    pub downstream: Client,
    /// The bundles.
    pub bundles: Vec<Bundle>,
    /// The replicas that run.
    pub members: Vec<Member>,
}

impl<'a> Crowd<'a> {
    /// Publishes `count` bundles spread over `namespaces` namespaces; drift in the first `corrected` is corrected.
    pub async fn publish(
        world: &'a World,
        count: usize,
        namespaces: usize,
        corrected: usize,
    ) -> anyhow::Result<Crowd<'a>> {
        let bundles: Vec<Bundle> = (0..count)
            .map(|index| {
                let namespace = format!("crowd-{:02}", index % namespaces);
                mixed::bundle(&format!("crowd-{index:04}"), &namespace, index < corrected)
            })
            .collect();
        let upstream = world.upstream.admin().await?;
        Publisher::new(upstream.clone(), &world.registration).publish(&bundles).await?;
        Ok(Crowd {
            world,
            units: world.units().await?,
            upstream,
            downstream: world.downstream.admin().await?,
            bundles,
            members: Vec::new(),
        })
    }

    /// Starts replicas with tokens of their own, one after the other, and waits until each is ready.
    pub async fn join(&mut self, names: &[&str], extra_args: &[&str]) -> anyhow::Result<()> {
        let world = self.world;
        let namespace = &world.registration.agent_namespace;
        for name in names {
            let token = fleet::token(&self.downstream, namespace, "fleet-agent").await?;
            let kubeconfig = world.dir().join(format!("{name}.kubeconfig"));
            pki::write_private(&kubeconfig, &world.downstream.token_kubeconfig(&token, namespace))?;
            let log = world.dir().join(format!("{name}.log"));
            let mut replica =
                Replica::spawn(&world.binary, name, &kubeconfig, namespace, extra_args, &[], &log)?;
            ready(&mut replica).await?;
            self.members.push(Member { replica, credential: fleet::credential(&token)? });
        }
        Ok(())
    }

    /// Waits until all bundles are deployed and ready.
    pub async fn until_ready(&self, bound: Duration) -> anyhow::Result<()> {
        self.units.until_ready(self.bundles.iter().map(|bundle| &*bundle.name), bound).await
    }

    /// Waits until every replica has renewed its session `times` times more, and with that has gone on for as long.
    pub async fn until_renewed(&self, times: usize) -> anyhow::Result<()> {
        let leases: Api<Lease> =
            Api::namespaced(self.downstream.clone(), &self.world.registration.agent_namespace);
        let wait = Wait::new("the sessions to be renewed", GENEROUS);
        let mut seen: BTreeMap<String, (String, usize)> = BTreeMap::new();
        let mut names: BTreeSet<String> = self.members.iter().map(|m| m.replica.name().to_owned()).collect();
        loop {
            let looked = async {
                for lease in leases.list(&ListParams::default()).await? {
                    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
                    let Some(holder) = holder.filter(|_| lease.name_any() != "fleet-agent") else { continue };
                    let version = lease.resource_version().unwrap_or_default();
                    let (known, count) = seen.entry(holder.clone()).or_insert((version.clone(), 0));
                    if *known != version {
                        (*known, *count) = (version, *count + 1);
                    }
                    if *count >= times {
                        names.remove(&holder);
                    }
                }
                Ok(names.is_empty().then_some(()))
            };
            if wait.attempt(looked).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Waits until the replicas know of every bundle what it should hold: each of them has read the record of those that
    /// are its duty.
    pub async fn until_looked_at(&self, bound: Duration) -> anyhow::Result<()> {
        let wanted: BTreeSet<String> =
            self.bundles.iter().map(|bundle| format!("sh.helm.release.v1.{}.v", bundle.name)).collect();
        until("each release record to be read", bound, async || {
            let entries = self.world.downstream.audit()?;
            let read = entries.iter().filter(|entry| {
                entry.verb == "get" && entry.resource == "secrets" && self.is_ours(&entry.credential)
            });
            let read: BTreeSet<&str> =
                read.map(|entry| entry.name.trim_end_matches(|c: char| c.is_ascii_digit())).collect();
            Ok(wanted.iter().all(|name| read.contains(name.as_str())).then_some(()))
        })
        .await
    }

    fn is_ours(&self, credential: &str) -> bool {
        self.members.iter().any(|member| member.credential == credential)
    }

    /// Both audit logs with everything in them up to now: upstream, downstream.
    pub async fn audits(&self) -> anyhow::Result<(Vec<AuditEntry>, Vec<AuditEntry>)> {
        let World { upstream, downstream, .. } = self.world;
        Ok((
            settled_audit(upstream, &self.upstream).await?,
            settled_audit(downstream, &self.downstream).await?,
        ))
    }

    /// What was written since `since` that a fleet at rest does not need, told one by one.
    pub async fn beyond_rest(&self, since: DateTime<Utc>) -> anyhow::Result<Vec<String>> {
        let (upstream, downstream) = self.audits().await?;
        let registration = &self.world.registration;
        let found = requests::beyond_rest(&upstream, &registration.upstream_user, since)
            .into_iter()
            .chain(requests::beyond_rest(&downstream, &registration.downstream_user, since));
        Ok(found.map(|entry| format!("{} {} {}", entry.received, entry.verb, entry.uri)).collect())
    }

    /// Changes objects, many at once: bundle, object, value.
    pub async fn change(&self, changes: &[(usize, usize, String)]) -> anyhow::Result<()> {
        futures::stream::iter(changes)
            .map(|(bundle, object, value)| {
                mixed::change(&self.downstream, &self.bundles[*bundle], *object, value)
            })
            .buffer_unordered(WRITERS)
            .try_collect()
            .await
    }

    /// Waits until the status of a bundle tells exactly these objects as modified, and since when it does.
    pub async fn until_modified(&self, bundle: usize, objects: &[usize]) -> anyhow::Result<Instant> {
        let name = &self.bundles[bundle].name;
        let wanted: BTreeSet<String> = objects.iter().map(|index| mixed::object_name(name, *index)).collect();
        // Two of the objects share their name with others of another kind; the count tells them apart.
        let what = format!("{name} to tell {} modified objects", objects.len());
        self.units
            .until(&what, GENEROUS, |live| {
                let status = live.get(name)?.status.as_ref()?;
                let told: BTreeSet<String> =
                    status.modified_status.iter().map(|entry| entry.name.clone()).collect();
                let same = told == wanted && status.modified_status.len() == wanted.len();
                (same && status.non_modified == wanted.is_empty()).then(Instant::now)
            })
            .await
    }

    /// By whom each bundle is looked after, as far as the comparisons made since `since` show it.
    pub async fn evaluators(
        &self,
        since: DateTime<Utc>,
    ) -> anyhow::Result<BTreeMap<usize, BTreeSet<String>>> {
        let entries = settled_audit(&self.world.downstream, &self.downstream).await?;
        let by_name: BTreeMap<&str, usize> =
            self.bundles.iter().enumerate().map(|(index, bundle)| (&*bundle.name, index)).collect();
        let mut evaluators: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.uri.contains("dryRun=") && entry.received >= since) {
            let bundle = entry.name.rsplit_once('-').and_then(|(bundle, _)| by_name.get(bundle));
            if let Some(bundle) = bundle {
                evaluators.entry(*bundle).or_default().insert(entry.credential.clone());
            }
        }
        Ok(evaluators)
    }

    /// Takes a replica out of the crowd by its token.
    pub fn take(&mut self, credential: &str) -> anyhow::Result<Member> {
        let index = self.members.iter().position(|member| member.credential == credential);
        Ok(self.members.swap_remove(index.context("no such replica")?))
    }

    /// Ends all replicas by SIGKILL.
    pub fn kill_all(&mut self) -> anyhow::Result<()> {
        self.members.drain(..).try_for_each(|mut member| Ok(member.replica.kill()?))
    }

    /// Fails when a replica has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.members.iter_mut().try_for_each(|member| member.replica.check())
    }
}

/// The watches over all namespaces that are open at an API server now, by resource; its own are among them.
pub async fn watches(plane: &ControlPlane) -> anyhow::Result<Watches> {
    let client = plane.admin().await?;
    let text = client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
    let mut watches = Watches::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("apiserver_longrunning_requests{")) {
        let (labels, value) = line.split_once("} ").context("a metric without a value")?;
        let label = |name: &str| {
            labels.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
        };
        if label("verb") == Some("WATCH") && label("scope") == Some("cluster") {
            *watches.entry(label("resource").unwrap_or_default().to_owned()).or_default() +=
                value.parse::<f64>()? as usize;
        }
    }
    ensure!(!watches.is_empty(), "{} tells of no watch", plane.name);
    Ok(watches)
}

/// Waits until `resources` have exactly `more` watches more than `before`. A watch ends and is opened anew all the time.
pub async fn until_watches(
    plane: &ControlPlane,
    before: &Watches,
    resources: &[&str],
    more: usize,
) -> anyhow::Result<()> {
    let count = |watches: &Watches, resource: &str| watches.get(resource).copied().unwrap_or_default();
    until(&format!("{more} watches more of each kind"), GENEROUS, async || {
        let now = watches(plane).await?;
        let differ: Vec<String> = resources
            .iter()
            .filter(|resource| count(&now, resource) != count(before, resource) + more)
            .map(|resource| format!("{resource}: {} and {}", count(before, resource), count(&now, resource)))
            .collect();
        ensure!(differ.is_empty(), "before and now: {}", differ.join(", "));
        Ok(Some(()))
    })
    .await
}
