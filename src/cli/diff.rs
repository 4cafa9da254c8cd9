// SPDX-License-Identifier: Apache-2.0
//! `flotilla diff`: what a deployment would change, asked of the API server by dry runs.

use std::{collections::HashSet, io::Write};

use chrono::{DateTime, Utc};
use clap::Args;

use super::{
    changes::difference,
    cluster::{ClusterFlags, DownstreamFlags},
    error::CliError,
    output, render,
    unit::{self, Inputs, Unit, UnitFlags},
};
use crate::{
    api,
    downstream::{
        Downstream,
        apply::{self, ApplyError, Owner, Preview},
        namespace::Forced,
        objects::Identity,
        prune,
        release::{Operation, Record, Release, deployed, operation, standing, unaccounted},
    },
    render::{Hook, Object, parse_hooks, parse_manifest},
};

/// Why an object of `crds/` stays as it is.
const ONCE: &str = "crds/ are installed once, where they are absent";

/// Flags of `flotilla diff`.
#[derive(Debug, Args)]
pub struct DiffVerb {
    /// What is compared.
    #[command(flatten)]
    pub unit: UnitFlags,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// The cluster below, which is required.
    #[command(flatten)]
    pub downstream: DownstreamFlags,
}

/// Compares and prints. A difference is an "error" of its own, for the exit code: [`CliError::Differs`].
pub async fn run(
    verb: &DiffVerb,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    now: DateTime<Utc>,
) -> Result<(), CliError> {
    let result = compare(verb, out, warn, now).await;
    match result {
        Ok(false) => Ok(()),
        Ok(true) => Err(CliError::Differs),
        Err(error) => Err(CliError::NotCompared(Box::new(error))),
    }
}

async fn compare(
    verb: &DiffVerb,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    now: DateTime<Utc>,
) -> Result<bool, CliError> {
    let Some(below) = render::downstream(&verb.downstream, now).await? else {
        return Err(CliError::Refused(
            "--downstream-kubeconfig is needed: the cluster below says what would change".to_owned(),
        ));
    };
    // Which kinds have namespaces decides which object is which.
    let served = below.kinds.refresh().await;
    served.map_err(CliError::failed("ask the downstream cluster what it serves"))?;
    let engine = render::engine()?;
    let units = unit::read(&verb.unit, &verb.cluster, &engine, warn).await?;
    let inputs = Inputs { engine: &engine, below: Some(&below), flags: &verb.unit };
    let mut differs = false;
    for unit in &units {
        if !unit.bd.options().downstream_resources.is_empty() {
            warn(&format!("bundle {}: the copies of downstreamResources are not compared", unit.name()));
        }
        let found = differences(&inputs, &below, unit).await?;
        differs |= found.differs;
        for text in &found.texts {
            output::write(out, text)?;
        }
    }
    Ok(differs)
}

/// What is printed of one unit, and whether a deployment would do any of it.
#[derive(Default)]
struct Found {
    texts: Vec<String>,
    differs: bool,
}

impl Found {
    fn add(&mut self, difference: Option<String>) {
        self.differs |= difference.is_some();
        self.texts.extend(difference);
    }
}

async fn differences(inputs: &Inputs<'_>, below: &Downstream, unit: &Unit) -> Result<Found, CliError> {
    let (rendered, history) = unit::rendered(inputs, unit).await?;
    let (options, name) = (unit.bd.options(), unit.name());
    let comparing = format!("compare bundle {name}");
    let namespace = api::release_namespace(&options).to_owned();
    let release = api::release_name(&name, &options);
    let operation = operation(&history);
    let helm = options.helm.as_ref();
    // As the agent: what a failed revision lists may be another's, and is looked at again only to be pruned.
    let owned = objects_of(inputs, deployed(&history), &name).await?;
    let earlier = objects_of(inputs, unaccounted(&history), &name).await?;
    let previous = Identity::of_all(&owned, &below.kinds, &namespace);
    let owner = Owner {
        namespace: &namespace,
        name: &release,
        upgrade: operation == Operation::Upgrade,
        replace: helm.is_some_and(|helm| helm.force)
            || options.correct_drift.as_ref().is_some_and(|drift| drift.force),
        take_ownership: helm.is_some_and(|helm| helm.take_ownership),
        overwrites: &options.overwrites,
        previous: &previous,
    };
    let mut found = Found::default();
    let makes = |object: &Object| object.kind == "Namespace" && object.name == namespace;
    let forced = Forced {
        labels: options.namespace_labels.as_ref(),
        annotations: options.namespace_annotations.as_ref(),
    };
    let made = options.create_namespace.unwrap_or(true) && !rendered.objects.iter().any(makes);
    if let Some((before, after)) =
        forced.would_be(below, &namespace, made).await.map_err(CliError::failed(&*comparing))?
    {
        found.add(difference(&format!("Namespace {namespace}"), "live", before.as_ref(), Some(&after)));
    }
    definitions(below, &rendered.crds, operation, &mut found).await.map_err(CliError::failed(&*comparing))?;
    let to_come: &[Object] = if operation == Operation::Install { &rendered.crds } else { &[] };
    let all: Vec<Object> = to_come.iter().chain(&rendered.objects).cloned().collect();
    for object in &rendered.objects {
        let seen =
            apply::preview(below, &owner, &all, object).await.map_err(CliError::failed(&*comparing))?;
        found.add(difference(&seen.object, "live", seen.before.as_ref(), Some(&seen.after)));
    }
    let kept: HashSet<Identity> = Identity::of_all(&rendered.objects, &below.kinds, &namespace);
    let gone = prune::would_go(below, (&namespace, &release), &earlier, &kept)
        .await
        .map_err(CliError::failed(&*comparing))?;
    for (identity, live) in gone {
        let title = output::place(&identity.kind, &identity.namespace, &identity.name);
        found.add(difference(&title, "live", Some(&live), None));
    }
    for change in hooks(inputs, &history, &rendered.hooks, &name).await? {
        found.add(Some(change));
    }
    Ok(found)
}

/// The objects of `crds/`: a first install makes those that are absent. What else differs is told and not counted.
async fn definitions(
    below: &Downstream,
    crds: &[Object],
    operation: Operation,
    found: &mut Found,
) -> Result<(), ApplyError> {
    for crd in crds {
        let seen = match apply::preview_crd(below, crd).await {
            Ok(seen) => seen,
            // An object of a kind that stands in crds/, too.
            Err(ApplyError::Kind { .. }) if operation == Operation::Install => Preview {
                object: output::place(&crd.kind, &crd.namespace, &crd.name),
                before: None,
                after: crd.value.clone(),
            },
            Err(error) => return Err(error),
        };
        let change = difference(&seen.object, "live", seen.before.as_ref(), Some(&seen.after));
        if operation == Operation::Install && seen.before.is_none() {
            found.add(change);
        } else {
            found.texts.extend(change.map(|change| format!("# not applied: {ONCE}\n{change}")));
        }
    }
    Ok(())
}

/// What changes of the hooks since the revision that stands. They come and go, so the cluster cannot tell.
async fn hooks(
    inputs: &Inputs<'_>,
    history: &[Record],
    wanted: &[Hook],
    name: &str,
) -> Result<Vec<String>, CliError> {
    let release = standing(history).and_then(|record| record.release.as_ref().ok());
    let stored = parse_hooks(inputs.engine, release.map_or(&[], Release::hooks)).await;
    let stored = stored.map_err(CliError::failed(format!("read the hooks of bundle {name}")))?;
    Ok(hook_changes(&stored, wanted))
}

fn hook_changes(stored: &[Hook], wanted: &[Hook]) -> Vec<String> {
    let title =
        |object: &Object| format!("hook {}", output::place(&object.kind, &object.namespace, &object.name));
    // One object may be a hook twice, at different moments.
    let same =
        |one: &Hook, other: &Hook| title(&one.object) == title(&other.object) && one.events == other.events;
    let mut found = Vec::new();
    for hook in wanted {
        let before = stored.iter().find(|old| same(old, hook)).map(|old| &old.object.value);
        found.extend(difference(&title(&hook.object), "deployed", before, Some(&hook.object.value)));
    }
    for old in stored.iter().filter(|old| !wanted.iter().any(|hook| same(old, hook))) {
        found.extend(difference(&title(&old.object), "deployed", Some(&old.object.value), None));
    }
    found
}

/// The objects that these revisions list, the oldest first.
async fn objects_of(
    inputs: &Inputs<'_>,
    records: impl IntoIterator<Item = &Record>,
    name: &str,
) -> Result<Vec<Object>, CliError> {
    let mut objects: Vec<Object> = Vec::new();
    for record in records {
        let Ok(release) = &record.release else { continue };
        let read = parse_manifest(inputs.engine, &release.manifest).await;
        objects.extend(
            read.map_err(CliError::failed(format!("read revision {} of bundle {name}", record.revision)))?,
        );
    }
    Ok(objects)
}
