// SPDX-License-Identifier: Apache-2.0
//! `flotilla rollback`: back to what `flotilla apply` deployed before. A new revision of the release comes of it.

use std::io::Write;

use clap::Args;
use kube::{Api, Client, ResourceExt, api::PostParams};

use super::{
    apply::CONTROLLER_FINALIZER,
    cluster::ClusterFlags,
    error::CliError,
    output,
    past::{self, Entry},
};
use crate::api::{BundleDeployment, Content};

/// Others write the same object: how often a write that met one of theirs is decided on anew.
const TRIES: usize = 5;
/// Labels of BundleDeployments that something else than a person's `flotilla apply` made, and what that is.
const MAKERS: [(&str, &str); 2] =
    [("fleet.cattle.io/repo-name", "GitRepo"), ("fleet.cattle.io/fleet-helm-name", "HelmOp")];

/// Flags of `flotilla rollback`.
#[derive(Debug, Args)]
pub struct RollbackVerb {
    /// Name of the bundle.
    pub name: String,
    /// Revision of the release [default: the last one that was deployed and is not in force].
    pub revision: Option<u32>,
    /// Only print the revisions that one can go back to.
    #[arg(long, conflicts_with = "revision")]
    pub list: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// Goes back, or says why not.
pub async fn run(verb: &RollbackVerb, out: &mut dyn Write) -> Result<(), CliError> {
    let namespace = verb.cluster.namespace()?;
    let client = verb.cluster.client().await?;
    roll_back(verb, &client, &namespace, out).await
}

async fn roll_back(
    verb: &RollbackVerb,
    client: &Client,
    namespace: &str,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let name = &verb.name;
    let api: Api<BundleDeployment> = Api::namespaced(client.clone(), namespace);
    for _ in 0..TRIES {
        let getting = format!("get BundleDeployment {name}");
        let Some(bd) = api.get_opt(name).await.map_err(CliError::server(getting))? else {
            return Err(CliError::Refused(format!("bundledeployments.fleet.cattle.io \"{name}\" not found")));
        };
        if verb.list {
            return output::write(out, &listed(&bd));
        }
        let refused = |why: String| CliError::Refused(format!("bundle {name} not rolled back: {why}"));
        if let Some(why) = managed(&bd) {
            return Err(refused(why));
        }
        let entry = past::chosen(&bd, verb.revision).map_err(refused)?;
        let (revision, content) = (entry.revision.unwrap_or_default(), entry.content());
        let contents: Api<Content> = Api::all(client.clone());
        let getting = format!("get Content {content}");
        if contents.get_opt(&content).await.map_err(CliError::server(getting))?.is_none() {
            return Err(refused(format!(
                "Content {content} with the files of revision {revision} is gone; apply the folder it was made from"
            )));
        }
        let after = restored(&bd, &entry)?;
        // Carries the resourceVersion that was read.
        match api.replace(name, &PostParams::default(), &after).await {
            Ok(_) => {
                let reference = output::bundle_deployment_reference(&after);
                return output::write(
                    out,
                    &format!("{reference} rolled back to what revision {revision} deployed\n"),
                );
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            Err(error) => return Err(CliError::server(format!("write BundleDeployment {name}"))(error)),
        }
    }
    Err(CliError::Refused(format!(
        "BundleDeployment {name} was written by others {TRIES} times meanwhile; try again"
    )))
}

/// Whose the bundle is, when going back would be undone.
fn managed(bd: &BundleDeployment) -> Option<String> {
    if bd.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted".to_owned());
    }
    for (label, kind) in MAKERS {
        if let Some(name) = bd.labels().get(label).filter(|name| !name.is_empty()) {
            let namespace = bd.label(crate::api::keys::BUNDLE_NAMESPACE);
            return Some(format!(
                "it comes from {kind} {namespace}/{name} (label {label}), whose controller would undo it; \
                 change it there"
            ));
        }
    }
    if let Some(owner) = bd.owner_references().first() {
        return Some(format!("{} {} owns it and would undo it", owner.kind, owner.name));
    }
    let controlled = bd.finalizers().iter().any(|finalizer| finalizer == CONTROLLER_FINALIZER);
    controlled.then(|| {
        format!("a Fleet controller manages it (finalizer {CONTROLLER_FINALIZER}) and would undo it; change its Bundle")
    })
}

fn restored(bd: &BundleDeployment, entry: &Entry) -> Result<BundleDeployment, CliError> {
    let mut after = bd.clone();
    after.spec = entry.restored();
    // Whether it is paused is not what was deployed.
    after.spec.paused = bd.spec.paused;
    let content = entry.content();
    after.labels_mut().insert(crate::api::keys::CONTENT_NAME.to_owned(), content);
    past::remember(bd, &mut after).map_err(|error| CliError::Print(Box::new(error)))?;
    Ok(after)
}

fn listed(bd: &BundleDeployment) -> String {
    let mut text = String::from("REVISION   DEPLOYMENT\n");
    let line = |revision: Option<u32>, id: &str, remark: &str| {
        let revision = revision.map_or_else(|| "-".to_owned(), |revision| revision.to_string());
        format!("{revision:<8}   {id}{remark}\n")
    };
    for entry in past::entries(bd) {
        let remark = if entry.revision.is_some() { "" } else { "   (was never deployed)" };
        text.push_str(&line(entry.revision, &entry.spec.deployment_id, remark));
    }
    text.push_str(&line(past::revision(bd), &bd.spec.deployment_id, "   (in force)"));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::scripted::{client, lines, refusal};

    fn bd(metadata: Value) -> Value {
        let earlier = json!([{"revision": 1, "spec": {"deploymentID": "s-1:a"}}]).to_string();
        let mut bd = json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": "web", "namespace": "c1", "uid": "u", "resourceVersion": "7",
                "annotations": {past::ANNOTATION: earlier}, "labels": {"fleet.cattle.io/content-name": "s-2"}},
            "spec": {"deploymentID": "s-2:a", "stagedDeploymentID": "s-2:a", "paused": true},
            "status": {"appliedDeploymentID": "s-2:a", "release": "ns/web:2"},
        });
        for (key, value) in metadata.as_object().unwrap() {
            bd["metadata"][key] = value.clone();
        }
        bd
    }

    fn verb(revision: Option<u32>, list: bool) -> RollbackVerb {
        RollbackVerb { name: "web".into(), revision, list, cluster: ClusterFlags::default() }
    }

    async fn run(
        metadata: Value,
        content: bool,
        verb: RollbackVerb,
    ) -> (Result<String, String>, Vec<Value>, Vec<String>) {
        let (client, asked) =
            client(move |(method, path, body)| match (method.as_str(), path.contains("/contents/")) {
                ("GET", true) if !content => refusal(404, "NotFound", "contents"),
                ("GET", true) => (
                    200,
                    json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Content",
                "metadata": {"name": "s-1"}, "content": ""}),
                ),
                ("GET", false) => (200, bd(metadata.clone())),
                _ => (200, body.clone()),
            });
        let mut out = Vec::new();
        let result = roll_back(&verb, &client, "c1", &mut out).await;
        let result = result.map(|()| String::from_utf8(out).unwrap()).map_err(|error| error.to_string());
        let asked_now = asked.lock().unwrap().clone();
        let written = asked_now.into_iter().filter(|(method, ..)| method == "PUT").map(|(.., body)| body);
        (result, written.collect(), lines(&asked))
    }

    #[tokio::test]
    async fn the_earlier_spec_comes_back_under_the_version_read_and_the_last_one_is_remembered() {
        let (result, written, _) = run(json!({}), true, verb(None, false)).await;
        assert_eq!(
            result.unwrap(),
            "bundledeployment.fleet.cattle.io/web rolled back to what revision 1 deployed\n"
        );
        let [after] = written.as_slice() else { panic!("{written:?}") };
        assert_eq!(after["metadata"]["resourceVersion"], "7");
        assert_eq!(after["metadata"]["labels"]["fleet.cattle.io/content-name"], "s-1");
        assert_eq!(
            after["spec"],
            json!({"deploymentID": "s-1:a", "stagedDeploymentID": "s-1:a", "paused": true})
        );
        let annotation = after["metadata"]["annotations"][past::ANNOTATION].as_str().unwrap();
        let entries: Vec<Entry> = serde_json::from_str(annotation).unwrap();
        let told: Vec<_> = entries.iter().map(|entry| (entry.revision, &*entry.spec.deployment_id)).collect();
        assert_eq!(told, [(Some(1), "s-1:a"), (Some(2), "s-2:a")]);
    }

    #[tokio::test]
    async fn what_a_controller_manages_is_refused_with_the_reason() {
        for (metadata, word) in [
            (json!({"finalizers": [CONTROLLER_FINALIZER]}), "change its Bundle"),
            (
                json!({"labels": {"fleet.cattle.io/repo-name": "shop", "fleet.cattle.io/bundle-namespace": "fleet-default"}}),
                "GitRepo fleet-default/shop",
            ),
            (
                json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": "x"}]}),
                "Thing t owns it",
            ),
        ] {
            let (result, written, _) = run(metadata, true, verb(None, false)).await;
            let text = result.unwrap_err();
            assert!(text.starts_with("bundle web not rolled back: ") && text.contains(word), "{text}");
            assert!(written.is_empty());
        }
    }

    #[tokio::test]
    async fn files_that_are_gone_and_revisions_that_nobody_knows_are_told() {
        let (result, ..) = run(json!({}), false, verb(Some(1), false)).await;
        assert!(result.unwrap_err().contains("Content s-1 with the files of revision 1 is gone"));
        let (result, ..) = run(json!({}), true, verb(Some(5), false)).await;
        assert!(result.unwrap_err().contains("revision 5 is not known here; earlier revisions: 1"));
        let (result, _, asked) = run(json!({}), true, verb(None, true)).await;
        assert_eq!(
            result.unwrap(),
            "REVISION   DEPLOYMENT\n1          s-1:a\n2          s-2:a   (in force)\n"
        );
        assert_eq!(asked.len(), 1);
    }
}
