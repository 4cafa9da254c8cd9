// SPDX-License-Identifier: Apache-2.0
//! `flotilla reset`: the operator's word after the management cluster was restored from a backup.
//!
//! Objects then carry stamps that no new claim can exceed. Such stamps, and only such, are set back to the version at
//! which the BundleDeployment stands now: whatever is claimed from here on is newer.

use std::{collections::HashMap, io::Write, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use kube::{Api, Client, api::ListParams};

use super::{
    claim_edit::Edit,
    claims::{self, Chosen},
    cluster::ClusterFlags,
    error::CliError,
    output,
};
use crate::{
    api::BundleDeployment,
    downstream::{
        Downstream,
        restamp::{self, Stamped},
    },
    protocol::{Epoch, Nonce, Stamp, Uid},
};

/// One request's limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Flags of `flotilla reset`.
#[derive(Debug, Args)]
pub struct ResetVerb {
    /// Kubeconfig of the cluster that the bundles are deployed to.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub downstream_kubeconfig: PathBuf,
    /// Context in that kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub downstream_context: Option<String>,
    /// Only tell what carries a stamp of the lost future.
    #[arg(long)]
    pub dry_run: bool,
    /// Which bundles.
    #[command(flatten)]
    pub chosen: Chosen,
}

/// Resets the bundles chosen. `warn` gets sentences for standard error, `entropy` makes nonces, `now` is for people.
pub async fn run(
    verb: &ResetVerb,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    entropy: &mut dyn FnMut() -> u64,
    now: chrono::DateTime<chrono::Utc>,
) -> Result<(), CliError> {
    let namespace = verb.chosen.cluster.namespace()?;
    let upstream = verb.chosen.cluster.client().await?;
    let downstream = ClusterFlags {
        kubeconfig: Some(verb.downstream_kubeconfig.clone()),
        context: verb.downstream_context.clone(),
        ..ClusterFlags::default()
    };
    let downstream = Downstream::new(downstream.client().await?, REQUEST_TIMEOUT, Arc::new(move || now));
    let stamp = now.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    reset(verb, &upstream, &namespace, &downstream, out, warn, entropy, &stamp).await
}

#[expect(clippy::too_many_arguments, reason = "the surroundings are inputs, for tests")]
async fn reset(
    verb: &ResetVerb,
    upstream: &Client,
    namespace: &str,
    downstream: &Downstream,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    entropy: &mut dyn FnMut() -> u64,
    now: &str,
) -> Result<(), CliError> {
    let api: Api<BundleDeployment> = Api::namespaced(upstream.clone(), namespace);
    let names = claims::names(&verb.chosen, &api, namespace).await?;
    if names.is_empty() {
        warn(&format!("No resources found in {namespace} namespace."));
        return Ok(());
    }
    let mut units: HashMap<Uid, (String, Epoch)> = HashMap::new();
    for name in &names {
        let getting = format!("get BundleDeployment {name}");
        let Some(bd) = api.get_opt(name).await.map_err(CliError::server(getting))? else {
            return Err(CliError::Refused(format!("bundledeployments.fleet.cattle.io \"{name}\" not found")));
        };
        let uid = bd.metadata.uid.as_deref().unwrap_or_default().into();
        let version = bd.metadata.resource_version.as_deref().unwrap_or_default().into();
        units.insert(uid, (name.clone(), version));
    }
    let uids = units.keys().cloned().collect();
    let stamped = restamp::stamped(downstream, &uids).await.map_err(failed)?;
    // Read after the stamps: a claim that was won meanwhile cannot look like one of the lost future.
    let listing = format!("list BundleDeployments in {namespace}");
    let list = api.list_metadata(&ListParams::default().limit(1)).await.map_err(CliError::server(listing))?;
    let newest = Epoch(list.metadata.resource_version.unwrap_or_default());
    for (uid, (name, version)) in &units {
        let lost = |one: &&Stamped| one.stamp.uid == *uid && one.stamp.epoch > newest;
        let future: Vec<&Stamped> = stamped.iter().filter(lost).collect();
        let reference = format!("bundledeployment.fleet.cattle.io/{name}");
        if future.is_empty() {
            output::write(
                out,
                &format!("{reference} unchanged (no stamp is newer than version {newest})\n"),
            )?;
            continue;
        }
        if verb.dry_run {
            for one in &future {
                output::write(out, &format!("{reference} {} stamped at {}\n", one.object, one.stamp.epoch))?;
            }
            continue;
        }
        let stamp = Stamp { uid: uid.clone(), epoch: version.clone() };
        for one in &future {
            if !restamp::restamp(downstream, one, &stamp).await.map_err(failed)? {
                let object = &one.object;
                return Err(CliError::Refused(format!(
                    "{object} was written by somebody meanwhile: stop all replicas, then run it again"
                )));
            }
        }
        // What waits for its next try need not wait any longer.
        let nonce = Nonce(format!("{:016x}", entropy()));
        claims::edit_one(&api, name, &Edit::Retry, &nonce, now).await?;
        output::write(out, &format!("{reference} reset ({} stamps set to {version})\n", future.len()))?;
    }
    Ok(())
}

fn failed(error: restamp::RestampError) -> CliError {
    CliError::Ended(Box::new(error))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::keys,
        cli::scripted::{client, lines},
    };

    fn verb(dry_run: bool) -> ResetVerb {
        ResetVerb {
            chosen: Chosen { names: vec!["web".into()], ..Chosen::default() },
            downstream_kubeconfig: PathBuf::new(),
            downstream_context: None,
            dry_run,
        }
    }

    fn management_cluster() -> (Client, Arc<std::sync::Mutex<Vec<crate::cli::scripted::Asked>>>) {
        client(|(method, path, _)| {
            if method == "GET" && path.contains('?') {
                let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                    "metadata": {"resourceVersion": "50"}, "items": []});
                return (200, list);
            }
            let message =
                "v1 holder=p session=s nonce=n attempt=4 lost=0 by= budget=600 deployment=d retryIn=300";
            let claim =
                json!({"type": "InProgress", "status": "False", "reason": "BackingOff", "message": message});
            let bd = json!({
                "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
                "metadata": {"name": "web", "namespace": "c1", "uid": "u", "resourceVersion": "40"},
                "spec": {"deploymentID": "d"}, "status": {"conditions": [claim]},
            });
            (200, bd)
        })
    }

    fn cluster() -> (Client, Arc<std::sync::Mutex<Vec<crate::cli::scripted::Asked>>>) {
        client(|(method, path, _)| {
            let live = |name: &str, stamp: &str| {
                json!({"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7",
                    "annotations": {keys::EPOCH_ANNOTATION: stamp}}})
            };
            let group = json!({"metadata": {"name": ""}, "versions": [{"version": "v1", "freshness": "Current",
                "resources": [{"resource": "configmaps", "scope": "Namespaced", "verbs": ["list"],
                    "responseKind": {"group": "", "version": "v1", "kind": "ConfigMap"}}]}]});
            let items: Vec<Value> = match path.split('?').next() {
                Some("/api") => vec![group],
                Some("/api/v1/configmaps") => vec![live("past", "u/49"), live("future", "u/51")],
                _ => vec![],
            };
            let kind = if path.starts_with("/api/v1") { "List" } else { "APIGroupDiscoveryList" };
            match method.as_str() {
                "GET" => (200, json!({"kind": kind, "items": items})),
                _ => (200, live("future", "u/40")),
            }
        })
    }

    async fn run(dry_run: bool) -> (String, Vec<String>, Vec<String>) {
        let ((upstream, up), (downstream, down)) = (management_cluster(), cluster());
        let noon = chrono::DateTime::from_timestamp(0, 0).unwrap();
        let downstream = Downstream::new(downstream, REQUEST_TIMEOUT, Arc::new(move || noon));
        let mut out = Vec::new();
        let result =
            reset(&verb(dry_run), &upstream, "c1", &downstream, &mut out, &|_| {}, &mut || 7, "now").await;
        result.unwrap();
        let writes = |asked: &Arc<std::sync::Mutex<Vec<crate::cli::scripted::Asked>>>| {
            lines(asked).into_iter().filter(|line| line.starts_with("PATCH")).collect()
        };
        (String::from_utf8(out).unwrap(), writes(&up), writes(&down))
    }

    #[tokio::test]
    async fn only_stamps_of_the_lost_future_are_set_back_and_the_bundle_is_tried_at_once() {
        let (out, up, down) = run(false).await;
        assert_eq!(out, "bundledeployment.fleet.cattle.io/web reset (1 stamps set to 40)\n");
        assert_eq!(down, ["PATCH /api/v1/namespaces/ns/configmaps/future?fieldManager=flotilla-reset"]);
        assert_eq!(up.len(), 1, "{up:?}");
    }

    #[tokio::test]
    async fn a_dry_run_tells_and_writes_nothing() {
        let (out, up, down) = run(true).await;
        assert_eq!(out, "bundledeployment.fleet.cattle.io/web ConfigMap ns/future stamped at 51\n");
        assert!(up.is_empty() && down.is_empty());
    }
}
