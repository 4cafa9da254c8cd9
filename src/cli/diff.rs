// SPDX-License-Identifier: Apache-2.0
//! `flotilla diff`: what a deployment would change, asked of the API server by dry runs.

use std::{collections::HashSet, io::Write};

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::Value;

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
        apply::{self, Owner},
        objects::{Identity, is_kept},
        release::{Operation, Record, Release, operation, standing, unaccounted},
    },
    render::{Hook, Object, parse_hooks, parse_manifest},
};

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
    let units = unit::read(&verb.unit, &verb.cluster, warn).await?;
    let engine = render::engine()?;
    let inputs = Inputs { engine: &engine, below: Some(&below), flags: &verb.unit };
    let mut differs = false;
    for unit in &units {
        for text in differences(&inputs, &below, unit).await? {
            differs = true;
            output::write(out, &text)?;
        }
    }
    Ok(differs)
}

async fn differences(inputs: &Inputs<'_>, below: &Downstream, unit: &Unit) -> Result<Vec<String>, CliError> {
    let (rendered, history) = unit::rendered(inputs, unit).await?;
    let (options, name) = (unit.bd.options(), unit.name());
    let namespace = api::release_namespace(&options).to_owned();
    let release = api::release_name(&name, &options);
    let earlier = earlier(inputs, &history, &name).await?;
    let previous = Identity::of_all(&earlier, &below.kinds, &namespace);
    let owner = Owner {
        namespace: &namespace,
        name: &release,
        upgrade: operation(&history) == Operation::Upgrade,
        replace: options.helm.as_ref().is_some_and(|helm| helm.force),
        take_ownership: options.helm.as_ref().is_some_and(|helm| helm.take_ownership),
        overwrites: &options.overwrites,
        previous: &previous,
    };
    let crds: &[Object] = match operation(&history) {
        Operation::Install => &rendered.crds,
        Operation::Upgrade | Operation::Rollback { .. } => &[],
    };
    let all: Vec<Object> = crds.iter().chain(&rendered.objects).cloned().collect();
    let mut found = Vec::new();
    for object in &all {
        let seen = apply::preview(below, &owner, &all, object).await;
        let seen = seen.map_err(CliError::failed(format!("compare bundle {name}")))?;
        found.extend(difference(&seen.object, "live", seen.before.as_ref(), Some(&seen.after)));
    }
    let kept: HashSet<Identity> = Identity::of_all(&all, &below.kinds, &namespace);
    for object in &earlier {
        let identity = Identity::of(object, &below.kinds, &namespace);
        if !kept.contains(&identity) && !is_kept(object) {
            found.extend(removal(below, object, &identity).await?);
        }
    }
    found.extend(hooks(inputs, &history, &rendered.hooks, &name).await?);
    Ok(found)
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

/// The objects of the revisions that may be live, each once.
async fn earlier(inputs: &Inputs<'_>, history: &[Record], name: &str) -> Result<Vec<Object>, CliError> {
    let mut objects: Vec<Object> = Vec::new();
    for record in unaccounted(history) {
        let Ok(release) = &record.release else { continue };
        let read = parse_manifest(inputs.engine, &release.manifest).await;
        let read =
            read.map_err(CliError::failed(format!("read revision {} of bundle {name}", record.revision)))?;
        for object in read {
            let same = |other: &Object| {
                (&other.api_version, &other.kind, &other.namespace, &other.name)
                    == (&object.api_version, &object.kind, &object.namespace, &object.name)
            };
            if !objects.iter().any(same) {
                objects.push(object);
            }
        }
    }
    Ok(objects)
}

/// What an earlier revision has and this one no longer: removed, if it is there.
async fn removal(
    below: &Downstream,
    object: &Object,
    identity: &Identity,
) -> Result<Option<String>, CliError> {
    let Ok(kind) = below.kinds.resolve(&object.api_version, &object.kind).await else { return Ok(None) };
    let title = output::place(&identity.kind, &identity.namespace, &identity.name);
    match below.server.get::<Value>(&kind.path(&identity.namespace, &identity.name)).await {
        Ok(live) => Ok(difference(&title, "live", Some(&live), None)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(CliError::failed(format!("read {title}"))(error)),
    }
}
