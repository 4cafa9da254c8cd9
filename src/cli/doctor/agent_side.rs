// SPDX-License-Identifier: Apache-2.0
//! The agent's own cluster: registration, settings, replicas, Fleet's agent.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Pod, Secret},
};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::finding::Findings;
use crate::{
    api::keys,
    cli::error::ServerError,
    downstream::{fleet_lease, session},
    registration::{self, Registration, RegistrationError, bearer, managed::BOOTSTRAP},
    telemetry::chain,
};

/// What a session's Lease says where it says nothing: the agent's own default, in seconds.
const TTL: i64 = 15;

/// What the session Leases tell.
pub(super) struct Sessions {
    /// Replicas that were heard of lately.
    pub count: usize,
    /// The account of one's Pod.
    pub account: Option<String>,
}

/// Secret `fleet-agent`.
pub(super) async fn registration(
    local: &Client,
    namespace: &str,
    findings: &mut Findings,
) -> Option<Registration> {
    let check = "registration";
    let register =
        "register the cluster: `flotilla register NAME` on the management cluster, or a bootstrap Secret";
    let registration = match registration::existing(local, namespace).await {
        Ok(registration) => registration,
        Err(error @ RegistrationError::Missing { .. }) => {
            let bootstrap: Api<Secret> = Api::namespaced(local.clone(), namespace);
            if let Ok(Some(_)) = bootstrap.get_metadata_opt(BOOTSTRAP).await {
                let text = format!("{}; Secret {namespace}/{BOOTSTRAP} is there", chain(&error));
                findings.fail(check, text, "start the agent: it registers the cluster with that Secret");
            } else {
                findings.fail(check, chain(&error), register);
            }
            return None;
        }
        Err(error @ RegistrationError::Read { .. }) => {
            findings.skip(check, chain(&error));
            return None;
        }
        Err(error) => {
            let fix = "write the Secret anew: `flotilla register NAME --print downstream`";
            findings.fail(check, chain(&error), fix);
            return None;
        }
    };
    let cluster = format!("{}/{}", registration.cluster_registration_namespace, registration.cluster_name);
    let context = bearer::context(&registration.kubeconfig).and_then(|context| context.namespace.as_deref());
    match context {
        None | Some("") => {
            let text =
                "the kubeconfig's context has no namespace: the agent would look for bundles in `default`";
            findings.fail(check, text, register);
        }
        Some(_) if registration.cluster_name.is_empty() => {
            let text = "key \"clusterName\" is missing: bundles are deployed, but the Cluster is never seen";
            findings.warn(check, text, register);
        }
        Some(cluster_namespace) => {
            findings.ok(check, format!("Cluster {cluster}, bundles in namespace {cluster_namespace}"));
            deployment_namespace(local, namespace, cluster_namespace, findings).await;
        }
    }
    Some(registration)
}

/// The key that other tools read; the agent follows the kubeconfig, as Fleet's does.
async fn deployment_namespace(local: &Client, namespace: &str, context: &str, findings: &mut Findings) {
    let secrets: Api<Secret> = Api::namespaced(local.clone(), namespace);
    let Ok(secret) = secrets.get(registration::SECRET).await else { return };
    let key = secret.data.as_ref().and_then(|data| data.get("deploymentNamespace"));
    let said = key.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default();
    if said != context {
        findings.warn(
            "registration",
            format!(
                "key \"deploymentNamespace\" says {said:?}, the kubeconfig {context:?}: the kubeconfig counts"
            ),
            "write the Secret anew: `flotilla register NAME --print downstream`",
        );
    }
}

/// ConfigMap `fleet-agent`.
pub(super) async fn settings(local: &Client, namespace: &str, findings: &mut Findings) {
    let fix = format!(
        "kubectl create configmap fleet-agent --namespace {namespace} --from-literal=config='{{}}' (or mend its key)"
    );
    match registration::agent_config(local, namespace).await {
        Ok(_) => {
            findings.ok("settings", format!("ConfigMap {namespace}/{} can be read", registration::SECRET))
        }
        Err(error @ RegistrationError::Read { .. }) => findings.skip("settings", chain(&error)),
        Err(error) => findings.fail("settings", chain(&error), fix),
    }
}

/// The replicas, by their Leases.
pub(super) async fn sessions(
    local: &Client,
    namespace: &str,
    findings: &mut Findings,
    server_time: DateTime<Utc>,
) -> Sessions {
    let check = "replicas";
    let mut sessions = Sessions { count: 0, account: None };
    let leases: Api<Lease> = Api::namespaced(local.clone(), namespace);
    let listed = leases.list(&ListParams::default().labels(keys::CLUSTER_NAMESPACE_LABEL)).await;
    let leases = match listed {
        Ok(list) => list.items,
        Err(error) => {
            findings.skip(check, format!("cannot list Leases: {}", ServerError(error)));
            return sessions;
        }
    };
    let mut versions: BTreeMap<String, usize> = BTreeMap::new();
    let mut silent = Vec::new();
    let pods: Api<Pod> = Api::namespaced(local.clone(), namespace);
    for lease in &leases {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
        if age(lease, server_time).is_none_or(|age| age > 3 * ttl(lease)) {
            silent.push(holder);
            continue;
        }
        sessions.count += 1;
        let version = lease.annotations().get(session::VERSION).cloned().unwrap_or_default();
        *versions.entry(version).or_default() += 1;
        if sessions.account.is_none()
            && let Ok(Some(pod)) = pods.get_opt(&holder).await
        {
            sessions.account = pod.spec.and_then(|spec| spec.service_account_name);
        }
    }
    let told: Vec<_> =
        versions.iter().map(|(version, count)| format!("{count} of version {version}")).collect();
    match (sessions.count, versions.len()) {
        (0, _) => findings.warn(
            check,
            "no replica was heard of lately",
            "start the agent; if it runs, its log and /readyz say what it waits for",
        ),
        (_, 1) => findings.ok(check, format!("{} were heard of lately: {}", sessions.count, told.join(", "))),
        _ => findings.warn(
            check,
            format!("several versions run: {}", told.join(", ")),
            "nothing, during a rolling update; afterwards look for a second Deployment or a process elsewhere",
        ),
    }
    if !silent.is_empty() {
        findings.warn(
            check,
            format!("silent for long: {}", silent.join(", ")),
            "nothing: their Leases are removed by the others after ten minutes",
        );
    }
    sessions
}

/// Lease `fleet-agent`: who of the two agents may work.
pub(super) async fn fleet_lease(
    local: &Client,
    namespace: &str,
    findings: &mut Findings,
    server_time: DateTime<Utc>,
    replicas: usize,
) {
    let check = "fleet-agent-lease";
    let name = fleet_lease::NAME;
    let leases: Api<Lease> = Api::namespaced(local.clone(), namespace);
    let lease = match leases.get_opt(name).await {
        Ok(Some(lease)) => lease,
        Ok(None) if replicas == 0 => return findings.ok(check, "nobody holds it: no agent runs"),
        Ok(None) => {
            let fix = "look at the rights on Leases: a replica makes it within seconds";
            return findings.warn(check, format!("Lease {namespace}/{name} is not there"), fix);
        }
        Err(error) => return findings.skip(check, format!("cannot read it: {}", ServerError(error))),
    };
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
    let fresh = age(&lease, server_time).is_some_and(|age| age <= 2 * ttl(&lease));
    match (holder.strip_prefix(fleet_lease::OURS), fresh) {
        (Some(ours), _) => findings.ok(check, format!("held by replica {ours}: a Fleet agent would stand by")),
        (None, _) if holder.is_empty() => findings.ok(check, "nobody holds it"),
        (None, true) => findings.fail(
            check,
            format!("Fleet's agent still runs: pod {holder} renews Lease {namespace}/{name}; replicas claim nothing"),
            format!("kubectl --namespace {namespace} scale deployment fleet-agent --replicas=0"),
        ),
        (None, false) => findings.ok(check, format!("left behind by pod {holder} of Fleet's agent")),
    }
}

fn ttl(lease: &Lease) -> i64 {
    lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).map_or(TTL, i64::from)
}

/// Seconds since the last renewal, by the two clocks involved.
fn age(lease: &Lease, server_time: DateTime<Utc>) -> Option<i64> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?;
    Some(server_time.timestamp() - renewed.0.as_second())
}
