// SPDX-License-Identifier: Apache-2.0
//! `flotilla delete`: the other end of `apply`. Agents uninstall what is gone.

use std::{collections::BTreeSet, io::Write};

use clap::Args;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
    runtime::wait::{await_condition, conditions},
};

use super::{cluster::ClusterFlags, error::CliError, output, past};
use crate::api::{BundleDeployment, Content, DeploymentId, keys};

/// Flags of `flotilla delete`.
#[derive(Debug, Args)]
pub struct DeleteVerb {
    /// Names of bundles.
    #[arg(required_unless_present = "selector", conflicts_with = "selector")]
    pub names: Vec<String>,
    /// Bundles with these labels.
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Return only when they are gone.
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub wait: bool,
    /// A bundle that does not exist is no failure.
    #[arg(long)]
    pub ignore_not_found: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// Deletes, waits, and removes Contents nobody uses any more. `warn` gets sentences for standard error.
pub async fn run(verb: &DeleteVerb, out: &mut dyn Write, warn: &dyn Fn(&str)) -> Result<(), CliError> {
    let namespace = verb.cluster.namespace()?;
    let client = verb.cluster.client().await?;
    delete(verb, &client, &namespace, out, warn).await
}

async fn delete(
    verb: &DeleteVerb,
    client: &Client,
    namespace: &str,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
) -> Result<(), CliError> {
    let api: Api<BundleDeployment> = Api::namespaced(client.clone(), namespace);
    let (found, missing) = find(verb, &api, namespace).await?;
    if found.is_empty() && missing.is_empty() {
        warn(&format!("No resources found in {namespace} namespace."));
    }
    let mut gone = Vec::new();
    for bd in found {
        if delete_one(&api, &bd).await? {
            let name = bd.name_any();
            output::write(out, &format!("bundledeployment.fleet.cattle.io \"{name}\" deleted\n"))?;
        }
        gone.push(bd);
    }
    if verb.wait {
        for bd in &gone {
            wait(&api, bd).await?;
        }
    }
    // Only now: a BundleDeployment that is still there, held by a finalizer, still uses its Content.
    let earlier = gone.iter().flat_map(past::entries).map(|entry| entry.content());
    let contents: BTreeSet<_> =
        gone.iter().map(content_name).chain(earlier).filter(|name| !name.is_empty()).collect();
    for content in contents {
        if let Err(error) = remove_unused(client, &content).await {
            warn(&format!("Content {content} stays: {}", crate::telemetry::chain(&error)));
        }
    }
    match missing.first() {
        Some(name) if !verb.ignore_not_found => {
            Err(CliError::Refused(format!("bundledeployments.fleet.cattle.io \"{name}\" not found")))
        }
        _ => Ok(()),
    }
}

/// The objects named or selected, and the names nothing was found for.
async fn find(
    verb: &DeleteVerb,
    api: &Api<BundleDeployment>,
    namespace: &str,
) -> Result<(Vec<BundleDeployment>, Vec<String>), CliError> {
    if let Some(selector) = &verb.selector {
        let listing = format!("list BundleDeployments in {namespace}");
        let list =
            api.list(&ListParams::default().labels(selector)).await.map_err(CliError::server(listing))?;
        return Ok((list.items, Vec::new()));
    }
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in &verb.names {
        let getting = format!("get BundleDeployment {namespace}/{name}");
        match api.get_opt(name).await.map_err(CliError::server(getting))? {
            Some(bd) => found.push(bd),
            None => missing.push(name.clone()),
        }
    }
    Ok((found, missing))
}

/// False: it was gone, or another of the same name had taken its place.
async fn delete_one(api: &Api<BundleDeployment>, bd: &BundleDeployment) -> Result<bool, CliError> {
    let preconditions = Preconditions { uid: bd.uid(), resource_version: None };
    let params = DeleteParams::default().preconditions(preconditions);
    match api.delete(&bd.name_any(), &params).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(error) => Err(CliError::server(format!("delete BundleDeployment {}", bd.name_any()))(error)),
    }
}

async fn wait(api: &Api<BundleDeployment>, bd: &BundleDeployment) -> Result<(), CliError> {
    use kube::runtime::{wait::Error::ProbeFailed, watcher};
    let (name, uid) = (bd.name_any(), bd.uid().unwrap_or_default());
    let waiting = format!("wait until BundleDeployment {name} is gone");
    match await_condition(api.clone(), &name, conditions::is_deleted(&uid)).await {
        Ok(_) => Ok(()),
        Err(ProbeFailed(
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error),
        )) => Err(CliError::server(waiting)(error)),
        Err(error) => Err(CliError::Refused(format!("{waiting}: {error}"))),
    }
}

fn content_name(bd: &BundleDeployment) -> String {
    match bd.label(keys::CONTENT_NAME) {
        "" if bd.spec.oci_contents || bd.spec.helm_chart_options.is_some() => String::new(),
        "" => DeploymentId::parse(&bd.spec.deployment_id).manifest_id,
        name => name.to_owned(),
    }
}

/// Removes a Content if no BundleDeployment in any namespace names it and no controller counts.
async fn remove_unused(client: &Client, name: &str) -> Result<(), CliError> {
    let contents: Api<Content> = Api::all(client.clone());
    let live = contents.get_opt(name).await.map_err(CliError::server("look it up"))?;
    let Some(live) = live else { return Ok(()) };
    if live.status.is_some() {
        return Ok(());
    }
    // Read after the Content: whoever uses it from now on wrote it anew, and the version below would not fit.
    let bds: Api<BundleDeployment> = Api::all(client.clone());
    let users = ListParams::default().labels(&format!("{}={name}", keys::CONTENT_NAME)).limit(1);
    if !bds.list_metadata(&users).await.map_err(CliError::server("look for its users"))?.items.is_empty() {
        return Ok(());
    }
    let preconditions = Preconditions {
        uid: live.metadata.uid.clone(),
        resource_version: live.metadata.resource_version.clone(),
    };
    match contents.delete(name, &DeleteParams::default().preconditions(preconditions)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(CliError::server("delete it")(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    use super::*;
    use crate::cli::scripted::{client, lines, refusal};

    const BDS: &str = "/apis/fleet.cattle.io/v1alpha1/namespaces/c1/bundledeployments";

    fn verb(names: &[&str], selector: Option<&str>) -> DeleteVerb {
        DeleteVerb {
            names: names.iter().map(ToString::to_string).collect(),
            selector: selector.map(ToOwned::to_owned),
            wait: false,
            ignore_not_found: false,
            cluster: ClusterFlags::default(),
        }
    }

    fn bd(name: &str) -> Value {
        json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": name, "namespace": "c1", "uid": format!("uid-{name}"),
                         "labels": {"fleet.cattle.io/content-name": "s-1"}},
            "spec": {},
        })
    }

    fn content(status: Value) -> Value {
        json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Content",
            "metadata": {"name": "s-1", "uid": "uid-c", "resourceVersion": "9"}, "status": status,
        })
    }

    fn users(count: usize) -> Value {
        let items = vec![json!({"metadata": {"name": "other", "namespace": "c2"}}); count];
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items})
    }

    async fn run(verb: &DeleteVerb, client: &Client) -> (Result<(), CliError>, String, Vec<String>) {
        let (mut out, warnings) = (Vec::new(), RefCell::new(Vec::new()));
        let warn = |text: &str| warnings.borrow_mut().push(text.to_owned());
        let result = delete(verb, client, "c1", &mut out, &warn).await;
        (result, String::from_utf8(out).unwrap(), warnings.into_inner())
    }

    #[tokio::test]
    async fn what_was_read_is_deleted_and_its_unused_content_with_it() {
        let (client, asked) = client(|(method, path, _)| match method.as_str() {
            "DELETE" => {
                (200, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
            }
            _ if path.starts_with(BDS) => (200, bd("web")),
            _ if path.contains("/contents/") => (200, content(Value::Null)),
            _ => (200, users(0)),
        });
        let (result, out, warnings) = run(&verb(&["web"], None), &client).await;
        result.unwrap();
        assert_eq!((out.as_str(), warnings.len()), ("bundledeployment.fleet.cattle.io \"web\" deleted\n", 0));
        let deleted: Vec<_> =
            asked.lock().unwrap().iter().filter(|(method, ..)| method == "DELETE").cloned().collect();
        assert_eq!(deleted[0].2["preconditions"], json!({"uid": "uid-web"}));
        assert_eq!(deleted[1].2["preconditions"], json!({"uid": "uid-c", "resourceVersion": "9"}));
    }

    #[tokio::test]
    async fn a_content_that_is_used_or_counted_stays() {
        for (status, count) in [(Value::Null, 1), (json!({"referenceCount": 1}), 0), (json!({}), 0)] {
            let (client, asked) = client(move |(method, path, _)| match method.as_str() {
                "DELETE" => (200, bd("web")),
                _ if path.starts_with(BDS) => (200, bd("web")),
                _ if path.contains("/contents/") => (200, content(status.clone())),
                _ => (200, users(count)),
            });
            run(&verb(&["web"], None), &client).await.0.unwrap();
            let deletes = lines(&asked).iter().filter(|line| line.starts_with("DELETE")).count();
            assert_eq!(deletes, 1);
        }
    }

    #[tokio::test]
    async fn a_missing_bundle_is_an_error_after_the_others_are_gone() {
        let (client, _) = client(|(method, path, _)| match method.as_str() {
            "DELETE" => (200, bd("web")),
            _ if path.ends_with("/web") => (200, bd("web")),
            _ => refusal(404, "NotFound", "bundledeployments"),
        });
        let mut both = verb(&["gone", "web"], None);
        let (result, out, _) = run(&both, &client).await;
        assert_eq!(result.unwrap_err().to_string(), "bundledeployments.fleet.cattle.io \"gone\" not found");
        assert!(out.contains("\"web\" deleted"));
        both.ignore_not_found = true;
        run(&both, &client).await.0.unwrap();
    }

    #[tokio::test]
    async fn a_selector_that_selects_nothing_is_no_failure() {
        let (client, asked) =
            client(|_| (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []})));
        let (result, _, warnings) = run(&verb(&[], Some("team=a")), &client).await;
        result.unwrap();
        assert_eq!(warnings, ["No resources found in c1 namespace."]);
        assert_eq!(lines(&asked), [format!("GET {BDS}?&labelSelector=team%3Da")]);
    }

    #[tokio::test]
    async fn a_content_that_cannot_be_judged_is_reported() {
        let (client, _) = client(|(method, path, _)| match method.as_str() {
            "DELETE" => (200, bd("web")),
            _ if path.starts_with(BDS) => (200, bd("web")),
            _ if path.contains("/contents/") => (200, content(Value::Null)),
            _ => refusal(403, "Forbidden", "bundledeployments"),
        });
        let (result, _, warnings) = run(&verb(&["web"], None), &client).await;
        result.unwrap();
        assert_eq!(warnings, ["Content s-1 stays: look for its users: bundledeployments says Forbidden"]);
    }
}
