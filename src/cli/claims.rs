// SPDX-License-Identifier: Apache-2.0
//! `flotilla retry`, `release` and `quarantine`: the operator's word about claims.

use std::io::Write;

use clap::Args;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};

use super::{
    claim_edit::{Edit, Edited},
    cluster::ClusterFlags,
    error::CliError,
    output,
};
use crate::{api::BundleDeployment, protocol::Nonce, upstream::fields};

/// Others write the same status: how often a write that met one of theirs is decided on anew.
const TRIES: usize = 5;

/// Which bundles.
#[derive(Clone, Debug, Default, Args)]
pub struct Chosen {
    /// Names of bundles.
    #[arg(required_unless_present_any = ["selector", "all"], conflicts_with_all = ["selector", "all"])]
    pub names: Vec<String>,
    /// Bundles with these labels.
    #[arg(short = 'l', long, conflicts_with = "all")]
    pub selector: Option<String>,
    /// All bundles of the cluster namespace.
    #[arg(long)]
    pub all: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// Flags of `flotilla retry`.
#[derive(Debug, Args)]
pub struct RetryVerb {
    /// Which bundles.
    #[command(flatten)]
    pub chosen: Chosen,
}

/// Flags of `flotilla release`.
#[derive(Debug, Args)]
pub struct ReleaseVerb {
    /// Also claims that a replica holds; it throws its result away.
    #[arg(long)]
    pub force: bool,
    /// Which bundles. All of them without --force: also the word that something half done is to be looked for, which
    /// Fleet's agent would not heed.
    #[command(flatten)]
    pub chosen: Chosen,
}

/// Flags of `flotilla quarantine`.
#[derive(Debug, Args)]
pub struct QuarantineVerb {
    /// Why, for those who read it.
    #[arg(long, value_name = "TEXT", default_value = "by command")]
    pub cause: String,
    /// Also bundles that a replica works on; it throws its result away.
    #[arg(long)]
    pub force: bool,
    /// Which bundles.
    #[command(flatten)]
    pub chosen: Chosen,
}

impl RetryVerb {
    /// What it asks for.
    pub fn edit(&self) -> Edit {
        Edit::Retry
    }
}

impl ReleaseVerb {
    /// What it asks for. Of all bundles at once it is what is left before Fleet's agent goes on: nothing may stay.
    pub fn edit(&self) -> Edit {
        Edit::Release { force: self.force, clear: self.chosen.all && !self.force }
    }
}

impl QuarantineVerb {
    /// What it asks for.
    pub fn edit(&self) -> Edit {
        Edit::Quarantine { cause: self.cause.clone(), force: self.force }
    }
}

/// Edits the claims of the bundles chosen, one after the other. `warn` gets sentences for standard error, `entropy`
/// makes nonces, `now` is for people.
pub async fn run(
    chosen: &Chosen,
    edit: &Edit,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    entropy: &mut dyn FnMut() -> u64,
    now: &str,
) -> Result<(), CliError> {
    let namespace = chosen.cluster.namespace()?;
    let client = chosen.cluster.client().await?;
    edit_all(chosen, edit, &client, &namespace, out, warn, entropy, now).await
}

#[expect(clippy::too_many_arguments, reason = "the surroundings are inputs, for tests")]
async fn edit_all(
    chosen: &Chosen,
    edit: &Edit,
    client: &Client,
    namespace: &str,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    entropy: &mut dyn FnMut() -> u64,
    now: &str,
) -> Result<(), CliError> {
    let api: Api<BundleDeployment> = Api::namespaced(client.clone(), namespace);
    let names = names(chosen, &api, namespace).await?;
    if names.is_empty() {
        warn(&format!("No resources found in {namespace} namespace."));
    }
    let mut refused = None;
    for name in &names {
        let nonce = Nonce(format!("{:016x}", entropy()));
        let reference = format!("bundledeployment.fleet.cattle.io/{name}");
        match edit_one(&api, name, edit, &nonce, now).await? {
            Edited::Status(_) => output::write(out, &format!("{reference} {}\n", edit.done()))?,
            Edited::Unchanged(why) => output::write(out, &format!("{reference} unchanged ({why})\n"))?,
            Edited::Refused(why) => {
                let text = format!("bundle {name} not {}: {why}", edit.done());
                // The others are not kept waiting; the last refusal is the verb's error.
                if let Some(before) = refused.replace(text) {
                    warn(&format!("error: {before}"));
                }
            }
        }
    }
    refused.map_or(Ok(()), |text| Err(CliError::Refused(text)))
}

pub(super) async fn names(
    chosen: &Chosen,
    api: &Api<BundleDeployment>,
    namespace: &str,
) -> Result<Vec<String>, CliError> {
    if !chosen.names.is_empty() {
        return Ok(chosen.names.clone());
    }
    let params = match &chosen.selector {
        Some(selector) => ListParams::default().labels(selector),
        None => ListParams::default(),
    };
    let listing = format!("list BundleDeployments in {namespace}");
    let list = api.list_metadata(&params).await.map_err(CliError::server(listing))?;
    Ok(list.items.into_iter().filter_map(|object| object.metadata.name).collect())
}

/// Reads, decides, writes under the version read; whoever wrote meanwhile makes it start over.
pub(super) async fn edit_one(
    api: &Api<BundleDeployment>,
    name: &str,
    edit: &Edit,
    nonce: &Nonce,
    now: &str,
) -> Result<Edited, CliError> {
    for _ in 0..TRIES {
        let getting = format!("get BundleDeployment {name}");
        let Some(bd) = api.get_opt(name).await.map_err(CliError::server(getting))? else {
            return Ok(Edited::Refused("it does not exist".into()));
        };
        let edited = edit.apply(&bd, nonce.clone(), now);
        let Edited::Status(after) = &edited else { return Ok(edited) };
        let before = bd.status.clone().unwrap_or_default();
        let version = bd.metadata.resource_version.clone().unwrap_or_default();
        let Some(patch) = fields::patch(&bd, &version, &before, after) else { return Ok(edited) };
        match api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => return Ok(edited),
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => {
                return Err(CliError::server(format!("write the status of BundleDeployment {name}"))(error));
            }
        }
    }
    Ok(Edited::Refused(format!("its status was written by others {TRIES} times meanwhile; try again")))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    use super::*;
    use crate::cli::scripted::{client, lines, refusal};

    fn bd(name: &str, reason: &str) -> Value {
        let status = if reason == "Claimed" { "True" } else { "False" };
        json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": name, "namespace": "c1", "uid": "u", "resourceVersion": "7"},
            "spec": {"deploymentID": "d"},
            "status": {"conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "InProgress", "status": status, "reason": reason, "message":
                    "v1 holder=pod-1 session=s nonce=n attempt=4 lost=3 by=s,t budget=600 deployment=d"},
            ]},
        })
    }

    async fn run(chosen: Chosen, edit: Edit, client: &Client) -> (Result<(), CliError>, String, Vec<String>) {
        let (mut out, warnings) = (Vec::new(), RefCell::new(Vec::new()));
        let warn = |text: &str| warnings.borrow_mut().push(text.to_owned());
        let result = edit_all(&chosen, &edit, client, "c1", &mut out, &warn, &mut || 7, "now").await;
        (result, String::from_utf8(out).unwrap(), warnings.into_inner())
    }

    fn named(names: &[&str]) -> Chosen {
        Chosen { names: names.iter().map(|name| (*name).to_owned()).collect(), ..Chosen::default() }
    }

    #[tokio::test]
    async fn a_retry_is_one_patch_of_the_status_under_uid_and_version() {
        let (client, asked) = client(|_| (200, bd("web", "Quarantined")));
        let (result, out, _) = run(named(&["web"]), Edit::Retry, &client).await;
        result.unwrap();
        assert_eq!(out, "bundledeployment.fleet.cattle.io/web retried\n");
        let base = "/apis/fleet.cattle.io/v1alpha1/namespaces/c1/bundledeployments/web";
        assert_eq!(lines(&asked), [format!("GET {base}"), format!("PATCH {base}/status?")]);
        let patch = &asked.lock().unwrap()[1].2;
        assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        let claim = &patch["status"]["conditions"][1];
        assert_eq!((&claim["status"], &claim["reason"]), (&json!("False"), &json!("Expired")));
        assert!(claim["message"].as_str().unwrap().contains("nonce=0000000000000007 attempt=4 lost=0 by= "));
        assert_eq!(patch["status"].as_object().unwrap().len(), 1, "{patch}");
    }

    #[tokio::test]
    async fn whoever_writes_meanwhile_makes_it_decide_anew() {
        let mut writes = 0;
        let (client, asked) = client(move |(method, ..)| {
            if method == "GET" {
                return (200, bd("web", if writes == 0 { "BackingOff" } else { "Claimed" }));
            }
            writes += 1;
            refusal(409, "Conflict", "bundledeployments")
        });
        let (result, out, _) =
            run(named(&["web"]), Edit::Release { force: false, clear: false }, &client).await;
        let text = result.unwrap_err().to_string();
        assert!(text.starts_with("bundle web not released: pod-1 is at work on it"), "{text}");
        assert_eq!((out.as_str(), lines(&asked).len()), ("", 3));
    }

    #[tokio::test]
    async fn one_refusal_does_not_keep_the_others_waiting() {
        let (client, _) = client(|(_, path, _)| {
            if path.ends_with("/gone") {
                return refusal(404, "NotFound", "bundledeployments");
            }
            (200, bd("web", if path.contains("/busy") { "Claimed" } else { "BackingOff" }))
        });
        let edit = Edit::Quarantine { cause: "x".into(), force: false };
        let (result, out, warnings) = run(named(&["gone", "busy", "web"]), edit, &client).await;
        assert!(result.unwrap_err().to_string().starts_with("bundle busy not quarantined"));
        assert_eq!(out, "bundledeployment.fleet.cattle.io/web quarantined\n");
        assert_eq!(warnings, ["error: bundle gone not quarantined: it does not exist"]);
    }

    #[tokio::test]
    async fn all_and_selected_bundles_are_listed_by_name() {
        let (client, asked) = client(|(method, path, _)| {
            if method == "GET" && path.contains('?') {
                let item = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": {"name": "web"}});
                let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                    "metadata": {}, "items": [item]});
                return (200, list);
            }
            (200, bd("web", "Claimed"))
        });
        let chosen = Chosen { selector: Some("a=b".into()), ..Chosen::default() };
        let (result, out, _) = run(chosen, Edit::Release { force: true, clear: false }, &client).await;
        result.unwrap();
        assert_eq!(out, "bundledeployment.fleet.cattle.io/web released\n");
        assert!(lines(&asked)[0].contains("labelSelector=a%3Db"), "{:?}", lines(&asked));
    }
}
