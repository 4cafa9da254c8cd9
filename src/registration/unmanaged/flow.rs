// SPDX-License-Identifier: Apache-2.0
//! The objects, applied: registering, exchanging the token, taking it all away. Each may be cut off and run again.

use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    Access, DownstreamSettings, Identity, MANAGEMENT_LABEL, Plan, UnmanagedError, downstream,
    held::held,
    token::{self, Lifetime},
    upstream,
    write::{self, Done, Mode, Outcome, name_of},
};
use crate::{
    api::{BundleDeployment, Cluster},
    registration::SECRET,
};

/// Both sides, with the rights of who registers.
pub struct Clusters {
    /// The management cluster.
    pub upstream: Client,
    /// The agent's own; `None` where it cannot be reached from here.
    pub downstream: Option<Client>,
}

/// What is to be brought about.
pub struct Wanted {
    /// Names.
    pub plan: Plan,
    /// Of tokens made on the way.
    pub lifetime: Lifetime,
    /// URL of the management cluster's API server as the agent reaches it.
    pub server: String,
    /// Its authority, PEM; `None`: one that the system trusts.
    pub authority: Option<String>,
    /// What to leave to the chart.
    pub settings: DownstreamSettings,
    /// Tell, and write nothing.
    pub dry_run: bool,
    /// A word of randomness.
    pub word: u64,
}

/// Hears of every object, as it is done.
pub type Report<'a> = &'a mut dyn FnMut(Done);

/// Follows the Cluster where there is one: its status says where its bundles are. `given`: the user said so, too.
pub async fn locate(
    client: &Client,
    plan: &mut Plan,
    given: bool,
) -> Result<Option<Cluster>, UnmanagedError> {
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), &plan.namespace);
    let cluster = match clusters.get(&plan.name).await {
        Ok(cluster) => cluster,
        // A kind that is not served is a plain 404; an object that is not there is named.
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let named = status.details.as_ref().is_some_and(|details| details.name == plan.name);
            return if named { Ok(None) } else { Err(UnmanagedError::NoDefinitions) };
        }
        Err(error) => return Err(UnmanagedError::request(format!("read Cluster {}", plan.cluster()))(error)),
    };
    let found = cluster.status.as_ref().map(|status| status.namespace.clone()).unwrap_or_default();
    if !found.is_empty() && found != plan.cluster_namespace {
        if given {
            let (cluster, wanted) = (plan.cluster(), plan.cluster_namespace.clone());
            return Err(UnmanagedError::Elsewhere { cluster, found, wanted });
        }
        plan.cluster_namespace = found;
    }
    Ok(Some(cluster))
}

/// Makes what is missing on both sides. Credentials that work are left alone.
pub async fn register(
    wanted: &Wanted,
    clusters: &Clusters,
    report: Report<'_>,
) -> Result<(), UnmanagedError> {
    let plan = &wanted.plan;
    rights(wanted, &clusters.upstream, report).await?;
    let Some(local) = &clusters.downstream else { return Ok(()) };
    if plan.identity == Identity::Pod {
        let access = Access::Pod { server: &wanted.server };
        return put_downstream(wanted, local, &access, report).await;
    }
    let held = held(local, plan).await?.filter(|held| held.server == wanted.server);
    if let Some(token) = held.and_then(|held| held.token)
        && token::is_known(&clusters.upstream, plan, &token).await?
    {
        return put_downstream(wanted, local, &access(wanted, &token), report).await;
    }
    if wanted.dry_run {
        return put_downstream(wanted, local, &access(wanted, ""), report).await;
    }
    let minted = token::mint(&clusters.upstream, plan, wanted.lifetime, wanted.word).await?;
    report(minted.done);
    token::until_known(&clusters.upstream, plan, &minted.token).await?;
    put_downstream(wanted, local, &access(wanted, &minted.token), report).await
}

/// A new token into the agent's Secret, and then the end of all others.
pub async fn rotate(
    wanted: &Wanted,
    upstream: &Client,
    local: &Client,
    report: Report<'_>,
) -> Result<(), UnmanagedError> {
    let plan = &wanted.plan;
    refuse_managed(upstream, plan).await?;
    let minted = token::mint(upstream, plan, wanted.lifetime, wanted.word).await?;
    report(minted.done);
    token::until_known(upstream, plan, &minted.token).await?;
    let secret = downstream::secret(plan, &access(wanted, &minted.token));
    report(write::put(local, &secret, Mode::Apply, false).await?);
    for done in token::end(upstream, plan, Some(&minted.secret)).await? {
        report(done);
    }
    Ok(())
}

/// Takes tokens, account and rights away, and the Secret from the agent's own cluster where that is at hand.
/// `bundles`: the Cluster and its BundleDeployments, too; what they deployed stays.
pub async fn revoke(
    plan: &Plan,
    clusters: &Clusters,
    bundles: bool,
    report: Report<'_>,
) -> Result<(), UnmanagedError> {
    let upstream = &clusters.upstream;
    refuse_managed(upstream, plan).await?;
    for done in token::end(upstream, plan, None).await? {
        report(done);
    }
    for object in upstream::rights(plan) {
        write::delete(upstream, &object).await?.into_iter().for_each(&mut *report);
    }
    if let Some(local) = &clusters.downstream {
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": plan.agent_namespace}});
        write::delete(local, &secret).await?.into_iter().for_each(&mut *report);
    }
    if !bundles {
        return Ok(());
    }
    let units: Api<BundleDeployment> = Api::namespaced(upstream.clone(), &plan.cluster_namespace);
    let listing = UnmanagedError::request(format!("list BundleDeployments in {}", plan.cluster_namespace));
    let group = "fleet.cattle.io/v1alpha1";
    let mut objects: Vec<Value> = Vec::new();
    for unit in units.list_metadata(&ListParams::default()).await.map_err(listing)?.items {
        objects.push(json!({"apiVersion": group, "kind": "BundleDeployment",
            "metadata": {"name": unit.name_any(), "namespace": plan.cluster_namespace}}));
    }
    objects.push(json!({"apiVersion": group, "kind": "Cluster",
        "metadata": {"name": plan.name, "namespace": plan.namespace}}));
    objects
        .push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": plan.cluster_namespace}}));
    for object in objects {
        write::delete(upstream, &object).await?.into_iter().for_each(&mut *report);
    }
    Ok(())
}

/// Everything on the management cluster but the token.
async fn rights(wanted: &Wanted, client: &Client, report: Report<'_>) -> Result<(), UnmanagedError> {
    let plan = &wanted.plan;
    refuse_managed(client, plan).await?;
    for object in upstream::objects(plan) {
        let shared = object["kind"] == "ClusterRole" || object["metadata"]["name"] == plan.namespace.as_str();
        let mode = if shared && object["kind"] != "Cluster" { Mode::Create } else { Mode::Apply };
        report(write::put(client, &object, mode, wanted.dry_run).await?);
        if object["kind"] == "Cluster" && !wanted.dry_run {
            report(set_status(client, plan).await?);
        }
    }
    Ok(())
}

/// What Fleet's controller made for a Cluster is not ours to change or to take away.
pub(super) async fn refuse_managed(client: &Client, plan: &Plan) -> Result<(), UnmanagedError> {
    match locate(client, &mut plan.clone(), true).await? {
        Some(cluster) if cluster.labels().get(MANAGEMENT_LABEL).is_none_or(String::is_empty) => {
            Err(UnmanagedError::Managed { cluster: plan.cluster() })
        }
        _ => Ok(()),
    }
}

async fn set_status(client: &Client, plan: &Plan) -> Result<Done, UnmanagedError> {
    const TRIES: usize = 5;
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), &plan.namespace);
    let object = format!("status of Cluster {}", plan.cluster());
    for _ in 0..TRIES {
        let cluster =
            clusters.get(&plan.name).await.map_err(UnmanagedError::request(format!("read {object}")))?;
        if cluster.status.as_ref().is_some_and(|status| status.namespace == plan.cluster_namespace) {
            return Ok(Done { object, outcome: Outcome::Unchanged });
        }
        let mut patch = upstream::status_patch(plan);
        patch["metadata"] =
            json!({"uid": cluster.metadata.uid, "resourceVersion": cluster.metadata.resource_version});
        match clusters.patch_status(&plan.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(Done { object, outcome: Outcome::Configured }),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(UnmanagedError::request(format!("write {object}"))(error)),
        }
    }
    Err(UnmanagedError::Contended { object })
}

async fn put_downstream(
    wanted: &Wanted,
    client: &Client,
    access: &Access<'_>,
    report: Report<'_>,
) -> Result<(), UnmanagedError> {
    for object in downstream::objects(&wanted.plan, access, &wanted.settings) {
        // The settings are the user's, once they are there.
        let mode = match object["kind"].as_str() {
            Some("ConfigMap" | "Namespace") => Mode::Create,
            _ => Mode::Apply,
        };
        if wanted.dry_run && matches!(access, Access::Token { token: "", .. }) && object["kind"] == "Secret" {
            report(Done { object: name_of(&object), outcome: Outcome::Configured });
            continue;
        }
        report(write::put(client, &object, mode, wanted.dry_run).await?);
    }
    Ok(())
}

fn access<'a>(wanted: &'a Wanted, token: &'a str) -> Access<'a> {
    Access::Token { server: &wanted.server, authority: wanted.authority.as_deref(), token }
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
