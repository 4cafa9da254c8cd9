// SPDX-License-Identifier: Apache-2.0
//! A stage for stories of registration: clusters that are to be registered, and what is seen of it from outside.
//!
//! Each cluster of a story is a namespace of the one downstream cluster; its name is the client's id as well.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use flotilla::api::Cluster;
use flotilla::registration::managed::{BOOTSTRAP, INTENT};
use flotilla::registration::{self, Settings};
use flotilla::telemetry::probes::Health;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::bundles::Publisher;
use super::fleet::{self, REGISTRATION_NAMESPACE};
use super::registrar::Registrar;
use super::replica::{Instance, Replica};
use super::units::Units;
use super::until::{GENEROUS, until};
use super::world::{World, get, settled_audit};

/// Two control planes with a stand-in for Fleet's controller.
pub struct Stage<'a> {
    /// The control planes.
    pub world: &'a World,
    /// The stand-in.
    pub registrar: Registrar,
    /// The downstream cluster, as an administrator.
    pub local: Client,
    /// The management cluster, as an administrator.
    pub upstream: Client,
}

impl Stage<'_> {
    /// Sets it up.
    pub async fn new(world: &World) -> anyhow::Result<Stage<'_>> {
        Ok(Stage {
            world,
            registrar: Registrar::start(&world.upstream).await?,
            local: world.downstream.admin().await?,
            upstream: world.upstream.admin().await?,
        })
    }

    /// Everything a cluster has that is to be registered: namespace, settings, bootstrap Secret.
    pub async fn offer(&self, namespace: &str, token: &str) -> anyhow::Result<()> {
        let settings = json!({"clientID": namespace, "labels": {"env": "test"}}).to_string();
        for object in [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "fleet-agent", "namespace": namespace}, "data": {"config": settings}}),
            self.registrar.bootstrap(token, namespace).await?,
        ] {
            fleet::apply(&self.local, object).await?;
        }
        Ok(())
    }

    /// Puts a Secret `fleet-agent` there whose credentials are refused; `url` is where the management cluster is reached.
    pub async fn useless_secret(&self, namespace: &str, url: &str, immutable: bool) -> anyhow::Result<()> {
        let useless = self.world.upstream.token_kubeconfig_at(url, "nonsense", "nowhere");
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "immutable": immutable,
            "metadata": {"name": registration::SECRET, "namespace": namespace, "labels": {"kept": "yes"}},
            "stringData": {"kubeconfig": useless, "clusterName": "old", "clusterNamespace": "nowhere"}});
        fleet::apply(&self.local, secret).await?;
        Ok(())
    }

    /// One request stands, nothing is left of the flow, and the Cluster is labelled as it should be.
    pub async fn asked_once(&self, namespace: &str) -> anyhow::Result<()> {
        until("the flow to be tidied up", GENEROUS, async || {
            for name in [BOOTSTRAP, INTENT] {
                ensure!(self.secret(namespace, name).await?.is_none(), "{namespace}: {name} is left");
            }
            Ok(Some(()))
        })
        .await?;
        let requests = self.registrar.requests(namespace).await?;
        ensure!(requests.len() == 1, "{namespace}: {} ClusterRegistrations", requests.len());
        let registration = registration::existing(&self.local, namespace).await?;
        ensure!(registration.cluster_name == self.cluster_name(namespace).await?);
        let clusters: Api<Cluster> = Api::namespaced(self.upstream.clone(), REGISTRATION_NAMESPACE);
        let cluster = clusters.get(&registration.cluster_name).await?;
        ensure!(cluster.labels().get("env").is_some_and(|env| env == "test"), "{:?}", cluster.labels());
        ensure!(cluster.labels().contains_key("fleet.cattle.io/created-by-agent-pod"));
        Ok(())
    }

    pub async fn cluster_name(&self, client_id: &str) -> anyhow::Result<String> {
        until("the registration to be granted", GENEROUS, async || {
            let requests = self.registrar.requests(client_id).await?;
            let granted = requests.iter().find_map(|request| request.data["status"]["clusterName"].as_str());
            Ok(granted.map(str::to_owned))
        })
        .await
    }

    /// A publisher for the cluster of that client, and what becomes of its units.
    pub async fn cluster_of(&self, client_id: &str) -> anyhow::Result<(Publisher, Units)> {
        let cluster = self.cluster_name(client_id).await?;
        let cluster_namespace = fleet::cluster_namespace(REGISTRATION_NAMESPACE, &cluster);
        let registration =
            fleet::Registration { cluster, cluster_namespace, ..self.world.registration.clone() };
        let publisher = Publisher::new(self.upstream.clone(), &registration);
        let units = Units::follow(publisher.units().clone()).await?;
        Ok((publisher, units))
    }

    /// A replica that checks in each second.
    pub fn replica(&self, name: &str, namespace: &str) -> anyhow::Result<Replica> {
        self.replica_with(name, namespace, &["--checkin-interval=1s"])
    }

    /// A replica with these flags.
    pub fn replica_with(&self, name: &str, namespace: &str, flags: &[&str]) -> anyhow::Result<Replica> {
        Replica::spawn(
            &self.world.binary,
            name,
            &self.world.registration.agent_kubeconfig,
            namespace,
            flags,
            &[("BUNDLEDEPLOYMENT_RECONCILER_WORKERS", "2")],
            &self.world.dir().join(format!("{name}.log")),
        )
    }

    /// `/readyz` has this text.
    pub async fn says(&self, replica: &Replica, text: &str) -> anyhow::Result<()> {
        let url = format!("{}/readyz?verbose", replica.probe_url());
        let what = format!("{} to say {text:?}", replica.name());
        until(&what, GENEROUS, async || {
            let (_, body) = get(&url).await?;
            ensure!(body.contains(text), "{body}");
            Ok(Some(()))
        })
        .await
    }

    pub async fn event(&self, namespace: &str, reason: &str) -> anyhow::Result<()> {
        let events: Api<Event> = Api::namespaced(self.local.clone(), namespace);
        until(&format!("Event {reason}"), GENEROUS, async || {
            let all = events.list(&ListParams::default()).await?;
            Ok(all.iter().any(|event| event.reason.as_deref() == Some(reason)).then_some(()))
        })
        .await
    }

    pub async fn secret(&self, namespace: &str, name: &str) -> anyhow::Result<Option<Secret>> {
        Ok(Api::<Secret>::namespaced(self.local.clone(), namespace).get_opt(name).await?)
    }

    pub async fn rotate(&self, namespace: &str, kubeconfig: &str) -> anyhow::Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.local.clone(), namespace);
        let patch = json!({"stringData": {"kubeconfig": kubeconfig}});
        secrets.patch(registration::SECRET, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Another account with the rights of the first; returns its token.
    pub async fn second_account(&self, namespace: &str) -> anyhow::Result<String> {
        let rbac = "rbac.authorization.k8s.io/v1";
        let subjects = json!([{"kind": "ServiceAccount", "name": "second", "namespace": namespace}]);
        let role = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
        let objects: [Value; 3] = [
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "second", "namespace": namespace}}),
            json!({"apiVersion": rbac, "kind": "RoleBinding",
                "metadata": {"name": "second", "namespace": namespace},
                "roleRef": role("fleet-bundle-deployment"), "subjects": subjects}),
            json!({"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "second-content"},
                "roleRef": role("fleet-content"), "subjects": subjects}),
        ];
        for object in objects {
            fleet::apply(&self.upstream, object).await?;
        }
        fleet::token(&self.upstream, namespace, "second").await
    }

    pub async fn end(&self, replicas: Vec<Replica>) -> anyhow::Result<()> {
        for mut replica in replicas {
            replica.term()?;
            ensure!(replica.wait().await?.success(), "{} should end well", replica.name());
        }
        Ok(())
    }
    /// Who holds Lease `fleet-agent`, once it is a replica of ours and not `before`.
    pub async fn lease_holder(&self, namespace: &str, before: &str) -> anyhow::Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.local.clone(), namespace);
        until("a replica to hold Lease fleet-agent", GENEROUS, async || {
            let holder = leases.get("fleet-agent").await?.spec.and_then(|spec| spec.holder_identity);
            Ok(holder.filter(|holder| holder.starts_with("flotilla/") && holder != before))
        })
        .await
    }

    /// How many ClusterRegistrations were ever created with this token.
    pub async fn created_with(&self, token: &str) -> anyhow::Result<usize> {
        let user = format!("system:serviceaccount:{REGISTRATION_NAMESPACE}:{token}");
        let entries = settled_audit(&self.world.upstream, &self.upstream).await?;
        Ok(entries
            .iter()
            .filter(|entry| {
                entry.user == user && entry.resource == "clusterregistrations" && entry.code == 201
            })
            .count())
    }
}

/// For a flow within the test's own process.
pub fn settings(namespace: &str) -> Settings {
    let report = Arc::new(|_, _: &'static str, _| {});
    let settings = Settings::new(namespace, "replica-0", rand::random, Health::default(), report);
    // Long enough that the steps are most of the polls of a flow, not the wait.
    Settings { poll: Duration::from_millis(250), retry: Duration::from_millis(100), ..settings }
}
