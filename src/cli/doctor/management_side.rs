// SPDX-License-Identifier: Apache-2.0
//! The management cluster, seen with the agent's own credentials, and with an administrator's where they are given.

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt, api::ListParams, config::Kubeconfig};

use super::{
    Now, definitions,
    finding::Findings,
    origin::{Origin, origin},
    reach::reach,
    rights::{self, Subject},
};
use crate::{
    api::{BundleDeployment, Cluster, crds, names},
    cli::error::ServerError,
    registration::{
        Registration, bearer,
        unmanaged::{AGENT_BUNDLE_LABEL, MANAGEMENT_LABEL},
    },
    telemetry::chain,
    upstream::{Access, Upstream},
};

/// A token that ends within this time is told.
const SOON: TimeDelta = TimeDelta::days(7);
/// Twice the agent's interval, and a little.
const SEEN: TimeDelta = TimeDelta::minutes(35);

const FIX_DEFINITIONS: &str = "flotilla crds | kubectl apply --server-side -f - (on the management cluster)";

/// Everything there.
pub(super) async fn check(
    registration: &Registration,
    local: &Client,
    agent: &Subject,
    admin: Option<&Client>,
    findings: &mut Findings,
    now: Now<'_>,
) {
    let origin = origin(registration, admin).await;
    // With the files of a Pod, which are not here, the management cluster is the agent's own.
    let (client, subject) = if of_a_pod_elsewhere(&registration.kubeconfig) {
        (local.clone(), agent.clone())
    } else {
        match connect(registration, origin, findings, now).await {
            Some(client) => (client, Subject::Caller),
            None => return look_at_cluster(registration, origin, admin, findings, now).await,
        }
    };
    let namespace = bearer::context(&registration.kubeconfig).and_then(|context| context.namespace.clone());
    let namespace = namespace.unwrap_or_else(|| "default".into());
    let registered_in = registration.cluster_registration_namespace.as_str();
    served(&client, findings).await;
    let wanted = rights::upstream(&namespace, registered_in, &registration.cluster_name);
    rights::check(findings, "management-rights", &client, &subject, wanted, origin.fix_rights()).await;
    if subject == Subject::Caller {
        no_more_than_needed(&client, &namespace, registered_in, origin, findings).await;
    }
    agent_bundle(&client, &namespace, registration, findings).await;
    look_at_cluster(registration, origin, admin, findings, now).await;
}

/// Reaches it with the agent's credentials.
async fn connect(
    registration: &Registration,
    origin: Origin,
    findings: &mut Findings,
    now: Now<'_>,
) -> Option<Client> {
    let check = "management-cluster";
    let upstream = match Upstream::connect(registration.kubeconfig.clone()).await {
        Ok(upstream) => upstream,
        Err(error) => {
            findings.fail(check, chain(&error), origin.fix_secret());
            return None;
        }
    };
    let server = bearer::server(&registration.kubeconfig).unwrap_or_default().to_owned();
    let fix = format!(
        "check that {server} can be reached from here, and that its authority is the one in the Secret"
    );
    let client = upstream.client();
    reach(&client, findings, [check, "management-clock"], &fix, now).await?;
    expiry(registration, origin, findings, now);
    match upstream.access().await {
        Access::Granted => {
            findings.ok("credentials", format!("{server} lets the agent list BundleDeployments"));
            Some(client)
        }
        Access::Refused(error) if answer(&error) == Some(401) => {
            findings.fail(
                "credentials",
                format!("the token is not valid: {}", chain(&error)),
                origin.fix_token(),
            );
            None
        }
        // The list of rights says which.
        Access::Refused(_) => Some(client),
        Access::Unknown(error) if answer(&error) == Some(404) => Some(client),
        Access::Unknown(error) => {
            findings.fail("credentials", chain(&error), fix);
            None
        }
    }
}

fn answer(error: &crate::upstream::UpstreamError) -> Option<u16> {
    match error {
        crate::upstream::UpstreamError::Read { source, .. } => match &**source {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        },
        _ => None,
    }
}

fn expiry(registration: &Registration, origin: Origin, findings: &mut Findings, now: Now<'_>) {
    let Some(token) = bearer::token(&registration.kubeconfig) else { return };
    let Some(end) = bearer::expires(&token).and_then(|end| DateTime::from_timestamp(end, 0)) else {
        return findings.ok("token", "does not end by itself");
    };
    let left = end - now();
    let end = end.format("%Y-%m-%d %H:%M UTC");
    if left <= TimeDelta::zero() {
        findings.fail("token", format!("ended on {end}"), origin.fix_token());
    } else if left <= SOON {
        findings.warn("token", format!("ends on {end}, and nobody renews it"), origin.fix_token());
    } else {
        findings.ok("token", format!("is good until {end}"));
    }
}

fn of_a_pod_elsewhere(kubeconfig: &Kubeconfig) -> bool {
    let name = bearer::context(kubeconfig).and_then(|context| context.user.as_deref());
    let user = kubeconfig.auth_infos.iter().find(|user| Some(user.name.as_str()) == name);
    let file = user.and_then(|user| user.auth_info.as_ref()).and_then(|user| user.token_file.as_deref());
    file.is_some_and(|file| !std::path::Path::new(file).exists())
}

/// The kinds, as anybody who is known there may ask for them.
async fn served(client: &Client, findings: &mut Findings) {
    let check = "definitions";
    let list = match client.list_api_group_resources("fleet.cattle.io/v1alpha1").await {
        Ok(list) => list,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            return findings.fail(
                check,
                "the management cluster serves no fleet.cattle.io/v1alpha1",
                FIX_DEFINITIONS,
            );
        }
        Err(error) => return findings.skip(check, format!("cannot ask for kinds: {}", ServerError(error))),
    };
    let has = |name: &str| list.resources.iter().any(|resource| resource.name == name);
    let missing: Vec<_> = ["bundledeployments", "bundledeployments/status", "contents"]
        .into_iter()
        .filter(|name| !has(name))
        .collect();
    if !missing.is_empty() {
        findings.fail(
            check,
            format!("the management cluster does not serve {}", missing.join(", ")),
            FIX_DEFINITIONS,
        );
    } else if !has("clusters/status") {
        findings.warn(check, "no Clusters: the check-in has nowhere to go", FIX_DEFINITIONS);
    } else {
        findings.ok(check, "fleet.cattle.io/v1alpha1 is served");
    }
}

async fn no_more_than_needed(
    client: &Client,
    namespace: &str,
    registered_in: &str,
    origin: Origin,
    findings: &mut Findings,
) {
    let check = "management-excess";
    match rights::split(client, &Subject::Caller, rights::excess(namespace, registered_in)).await {
        Err(error) => findings.skip(check, format!("cannot ask for rights: {}", ServerError(error))),
        Ok((granted, _)) if granted.is_empty() => {
            findings.ok(check, "no right that an agent should not have")
        }
        Ok((granted, _)) => {
            let granted: Vec<_> = granted.iter().map(ToString::to_string).collect();
            findings.warn(check, format!("the agent could also {}", granted.join(", ")), origin.fix_excess());
        }
    }
}

/// Fleet's own agent, as a bundle.
async fn agent_bundle(
    client: &Client,
    namespace: &str,
    registration: &Registration,
    findings: &mut Findings,
) {
    let units: Api<BundleDeployment> = Api::namespaced(client.clone(), namespace);
    let Ok(list) = units.list_metadata(&ListParams::default()).await else { return };
    let Some(found) = list.items.iter().map(ResourceExt::name_any).find(|name| names::is_agent_bundle(name))
    else {
        return;
    };
    findings.warn(
        "agent-bundle",
        format!("bundle {found} carries Fleet's own agent; it is not deployed"),
        existing(registration),
    );
}

fn existing(registration: &Registration) -> String {
    format!(
        "flotilla register --existing {} --namespace {} (on the management cluster)",
        registration.cluster_name, registration.cluster_registration_namespace
    )
}

/// What only an administrator sees.
async fn look_at_cluster(
    registration: &Registration,
    origin: Origin,
    admin: Option<&Client>,
    findings: &mut Findings,
    now: Now<'_>,
) {
    let check = "cluster-object";
    let Some(admin) = admin else {
        return findings
            .skip(check, "give --upstream-kubeconfig to look at the Cluster and the definitions, too");
    };
    let definitions: Api<CustomResourceDefinition> = Api::all(admin.clone());
    for ours in crds::all() {
        if let Ok(Some(theirs)) = definitions.get_opt(&ours.name_any()).await {
            definitions::compare(&ours, &theirs, findings, FIX_DEFINITIONS);
        }
    }
    let (namespace, name) = (&registration.cluster_registration_namespace, &registration.cluster_name);
    let clusters: Api<Cluster> = Api::namespaced(admin.clone(), namespace);
    let cluster = match clusters.get_opt(name).await {
        Ok(Some(cluster)) => cluster,
        Ok(None) => {
            return findings.fail(
                check,
                format!("Cluster {namespace}/{name} does not exist"),
                origin.fix_rights(),
            );
        }
        Err(error) => return findings.skip(check, format!("cannot read it: {}", ServerError(error))),
    };
    let status = cluster.status.clone().unwrap_or_default();
    let context = bearer::context(&registration.kubeconfig).and_then(|context| context.namespace.clone());
    let context = context.unwrap_or_default();
    if status.namespace != context {
        let text = format!(
            "Cluster {namespace}/{name} has status.namespace {:?}, the agent works in {context:?}: bundles do not \
             reach it",
            status.namespace
        );
        findings.fail(
            check,
            text,
            format!(
                "kubectl patch clusters.fleet.cattle.io {name} --namespace {namespace} --subresource=status --type=merge \
                 --patch '{{\"status\":{{\"namespace\":\"{context}\"}}}}'"
            ),
        );
    } else {
        findings.ok(check, format!("Cluster {namespace}/{name} has its bundles in {context}"));
    }
    let labelled = |label: &str| cluster.labels().get(label).is_some_and(|value| !value.is_empty());
    if !labelled(MANAGEMENT_LABEL) && !labelled(AGENT_BUNDLE_LABEL) {
        let text = "no label keeps Fleet's own agent away from this cluster";
        findings.warn("cluster-labels", text, existing(registration));
    }
    seen(&status, findings, now());
}

fn seen(status: &crate::api::ClusterStatus, findings: &mut Findings, now: DateTime<Utc>) {
    let last = status.agent.as_ref().and_then(|agent| agent.last_seen.as_deref());
    let Some(last) = last.and_then(|last| DateTime::parse_from_rfc3339(last).ok()) else {
        let fix = "wait for 15 s after the agent's start; then its log and part `cluster-status` of /readyz say why";
        return findings.warn("check-in", "the Cluster was never seen", fix);
    };
    let age = now - last.with_timezone(&Utc);
    if age > SEEN {
        let fix = "look at the replicas; a longer --checkin-interval is fine, too";
        findings.warn("check-in", format!("the Cluster was last seen {} min ago", age.num_minutes()), fix);
    } else {
        findings.ok("check-in", format!("the Cluster was last seen {} s ago", age.num_seconds().max(0)));
    }
}
