// SPDX-License-Identifier: Apache-2.0
//! `flotilla apply`: a bundle to one cluster, without a Fleet controller.

use std::io::Write;

use clap::Args;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt, api::PostParams};

use super::{
    cluster::ClusterFlags,
    error::CliError,
    output::{self, Form},
    past,
    plan::{self, Additions, CLUSTER_LABELS, Plan},
    source,
};
use crate::api::{BundleDeployment, Content, manifest::Manifest};

/// Writes of one BundleDeployment before giving up; each conflict means that somebody else's write came first.
const TRIES: usize = 5;

/// Put on by Fleet's Bundle reconciler: the object is a controller's.
pub(super) const CONTROLLER_FINALIZER: &str = "fleet.cattle.io/bundle-deployment-finalizer";

/// Flags of `flotilla apply`.
#[derive(Debug, Args)]
pub struct ApplyVerb {
    /// A bundle folder, a file of Bundle documents, or - for documents on standard input.
    #[arg(value_name = "DIR|FILE|-")]
    pub source: String,
    /// Name of the bundle [default: the one in fleet.yaml, else made from the folder's].
    #[arg(long)]
    pub name: Option<String>,
    /// Add a label to the BundleDeployment; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Write it, but do not deploy it yet.
    #[arg(long)]
    pub paused: bool,
    /// Print the objects, write nothing.
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "client",
        value_parser = ["client"],
        value_name = "client"
    )]
    pub dry_run: Option<String>,
    /// Print the resulting objects instead of what was done.
    #[arg(short, long, value_enum)]
    pub output: Option<Form>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not KEY=VALUE".to_owned()),
    }
}

/// Reads, plans, and writes or prints. `warn` gets sentences for standard error.
pub async fn run(verb: &ApplyVerb, out: &mut dyn Write, warn: &dyn Fn(&str)) -> Result<(), CliError> {
    let source = source::read(&verb.source)?;
    for warning in &source.warnings {
        warn(warning);
    }
    if verb.name.is_some() && source.bundles.len() > 1 {
        return Err(CliError::Refused(format!("--name fits one bundle, {} has more", verb.source)));
    }
    let additions = Additions {
        namespace: verb.cluster.namespace()?,
        name: verb.name.clone(),
        labels: verb.labels.clone(),
        paused: verb.paused,
    };
    // All are planned before the first is written: a mistake in the last document must not leave half of them.
    let plans: Vec<_> =
        source.bundles.iter().map(|bundle| plan::plan(bundle, &additions)).collect::<Result<_, _>>()?;
    if verb.dry_run.is_some() {
        return print(out, &plans, verb.output.unwrap_or(Form::Yaml));
    }
    let client = verb.cluster.client().await?;
    let cluster = cluster_labels(&client, &additions.namespace).await;
    let mut written = Vec::new();
    for mut plan in plans {
        plan.bundle_deployment.labels_mut().extend(cluster.iter().cloned());
        let (live, outcome) = deploy(&client, &plan).await?;
        if verb.output.is_none() {
            let line = format!("{} {}\n", output::bundle_deployment_reference(&live), outcome.word());
            output::write(out, &line)?;
        }
        written.push(live);
    }
    match verb.output {
        Some(form) => output::objects(out, &written, form, true),
        None => Ok(()),
    }
}

fn print(out: &mut dyn Write, plans: &[Plan], form: Form) -> Result<(), CliError> {
    let mut values = Vec::new();
    for plan in plans {
        for value in [serde_json::to_value(&plan.content), serde_json::to_value(&plan.bundle_deployment)] {
            values.push(value.map_err(|error| CliError::Print(Box::new(error)))?);
        }
    }
    output::objects(out, &values, form, false)
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Created,
    /// It is different now.
    Configured,
    /// It was so already; nothing was written.
    Unchanged,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Writes the Content, then the BundleDeployment, so that an agent never finds one without the other.
pub async fn deploy(client: &Client, plan: &Plan) -> Result<(BundleDeployment, Outcome), CliError> {
    let existed = !ensure_content(client, &plan.content).await?;
    let written = write_bundle_deployment(client, &plan.bundle_deployment).await?;
    if existed {
        // A `flotilla delete` of its last user may have removed it between the two writes.
        ensure_content(client, &plan.content).await?;
    }
    Ok(written)
}

/// True: created. False: it existed with the same files.
async fn ensure_content(client: &Client, content: &Content) -> Result<bool, CliError> {
    let api: Api<Content> = Api::all(client.clone());
    let name = content.metadata.name.as_deref().unwrap_or_default();
    loop {
        match api.create(&PostParams::default(), content).await {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(CliError::server(format!("create Content {name}"))(error)),
        }
        let live = api.get_opt(name).await.map_err(CliError::server(format!("get Content {name}")))?;
        // Gone again: removed by its last user's deletion.
        let Some(live) = live else { continue };
        let read = |content: &Content| {
            Manifest::from_content(content)
                .map_err(|source| CliError::Content { name: name.to_owned(), source })
        };
        // Names are hashes, so this is damage or a forgery; deploying it would be worse than failing.
        if read(&live)? != read(content)? {
            return Err(CliError::Refused(format!("Content {name} exists with other files")));
        }
        return Ok(false);
    }
}

async fn write_bundle_deployment(
    client: &Client,
    planned: &BundleDeployment,
) -> Result<(BundleDeployment, Outcome), CliError> {
    let name = planned.name_any();
    let namespace = planned.namespace().unwrap_or_default();
    let api: Api<BundleDeployment> = Api::namespaced(client.clone(), &namespace);
    let doing = |verb: &str| format!("{verb} BundleDeployment {namespace}/{name}");
    let mut last = None;
    for _ in 0..TRIES {
        let live = api.get_opt(&name).await.map_err(CliError::server(doing("get")))?;
        let (result, outcome) = match live {
            None => (api.create(&PostParams::default(), planned).await, Outcome::Created),
            Some(live) => match merged(&live, planned)? {
                None => return Ok((live, Outcome::Unchanged)),
                // Carries the resourceVersion that was read, so a write in between is a conflict.
                Some(merged) => {
                    (api.replace(&name, &PostParams::default(), &merged).await, Outcome::Configured)
                }
            },
        };
        match result {
            Ok(written) => return Ok((written, outcome)),
            // Conflict, already exists, or gone in between: look again.
            Err(error @ kube::Error::Api(_)) if retries(&error) => last = Some(error),
            Err(error) => return Err(CliError::server(doing("write"))(error)),
        }
    }
    let text = format!("{} ({TRIES} times)", doing("write"));
    Err(last.map_or_else(|| CliError::Refused(text.clone()), |error| CliError::server(text.clone())(error)))
}

fn retries(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.is_conflict() || status.is_already_exists() || (status.is_not_found() && is_object(status)))
}

/// A missing namespace or kind answers 404, too; only an object that went away is worth another look.
fn is_object(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.kind == "bundledeployments")
}

/// The live object with our labels and spec, as Fleet's controller writes it: annotations, finalizers and status
/// stay. None: nothing to change.
fn merged(live: &BundleDeployment, planned: &BundleDeployment) -> Result<Option<BundleDeployment>, CliError> {
    let refused = |text: &str| {
        let reference = output::bundle_deployment_reference(live);
        Err(CliError::Refused(format!("{reference} {text}")))
    };
    if live.metadata.deletion_timestamp.is_some() {
        return refused("is being deleted; try again when it is gone");
    }
    if live.finalizers().iter().any(|finalizer| finalizer == CONTROLLER_FINALIZER) {
        return refused("belongs to a Fleet controller, which would undo the change");
    }
    let mut labels = planned.labels().clone();
    for key in CLUSTER_LABELS {
        // Known only where the namespace may be read; not knowing is no reason to remove.
        if let Some(value) = live.labels().get(key) {
            labels.entry(key.to_owned()).or_insert_with(|| value.clone());
        }
    }
    if live.spec == planned.spec && *live.labels() == labels {
        return Ok(None);
    }
    let mut merged = live.clone();
    merged.metadata.labels = Some(labels);
    merged.spec = planned.spec.clone();
    past::remember(live, &mut merged).map_err(|error| CliError::Print(Box::new(error)))?;
    Ok(Some(merged))
}

/// What the cluster namespace's annotations say about its Cluster; nothing where they cannot be read.
async fn cluster_labels(client: &Client, namespace: &str) -> Vec<(String, String)> {
    let api: Api<Namespace> = Api::all(client.clone());
    let Ok(namespace) = api.get(namespace).await else { return Vec::new() };
    let annotations = namespace.annotations();
    CLUSTER_LABELS
        .iter()
        .filter_map(|key| annotations.get(*key).map(|value| ((*key).to_owned(), value.clone())))
        .collect()
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
