// SPDX-License-Identifier: Apache-2.0
//! `flotilla get`: bundles, their states, and who works on them.

use std::io::Write;

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use comfy_table::Table;
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{
    age,
    cluster::ClusterFlags,
    error::CliError,
    output::{self, Form},
};
use crate::api::{BundleDeployment, keys, state};

/// Flags of `flotilla get`.
#[derive(Debug, Args)]
pub struct GetVerb {
    /// Names of bundles [default: all].
    #[arg(conflicts_with_all = ["selector", "all_namespaces"])]
    pub names: Vec<String>,
    /// Bundles with these labels.
    #[arg(short = 'l', long)]
    pub selector: Option<String>,
    /// Bundles of all clusters.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Form of the output.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Leave out the first line.
    #[arg(long)]
    pub no_headers: bool,
    /// Go on with a line for each change, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

/// Forms of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// The table, with claims, drift and messages.
    Wide,
    /// YAML.
    Yaml,
    /// JSON.
    Json,
    /// `resource.group/name`, one a line.
    Name,
}

/// Looks up and prints. `warn` gets sentences for standard error, `now` is for ages.
pub async fn run(
    verb: &GetVerb,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    now: DateTime<Utc>,
) -> Result<(), CliError> {
    let namespace = if verb.all_namespaces { None } else { Some(verb.cluster.namespace()?) };
    let client = verb.cluster.client().await?;
    if verb.watch {
        return super::get_watch::run(verb, client, namespace.as_deref(), out, now).await;
    }
    let (found, missing) = find(verb, &client, namespace.as_deref()).await?;
    print(verb, &found, namespace.as_deref(), out, warn, now)?;
    match missing.first() {
        Some(name) => {
            Err(CliError::Refused(format!("bundledeployments.fleet.cattle.io \"{name}\" not found")))
        }
        None => Ok(()),
    }
}

/// The objects asked for, and the names nothing was found for.
async fn find(
    verb: &GetVerb,
    client: &Client,
    namespace: Option<&str>,
) -> Result<(Vec<BundleDeployment>, Vec<String>), CliError> {
    let api: Api<BundleDeployment> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    if verb.names.is_empty() {
        let params = match &verb.selector {
            Some(selector) => ListParams::default().labels(selector),
            None => ListParams::default(),
        };
        let list = api.list(&params).await.map_err(CliError::server("list BundleDeployments"))?;
        return Ok((list.items, Vec::new()));
    }
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in &verb.names {
        match api.get_opt(name).await.map_err(CliError::server(format!("get BundleDeployment {name}")))? {
            Some(bd) => found.push(bd),
            None => missing.push(name.clone()),
        }
    }
    Ok((found, missing))
}

fn print(
    verb: &GetVerb,
    found: &[BundleDeployment],
    namespace: Option<&str>,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    now: DateTime<Utc>,
) -> Result<(), CliError> {
    let form = match verb.output {
        Some(Output::Yaml) => Form::Yaml,
        Some(Output::Json) => Form::Json,
        Some(Output::Name) => Form::Name,
        Some(Output::Wide) | None if found.is_empty() => {
            if verb.names.is_empty() {
                warn(&namespace.map_or_else(
                    || "No resources found".to_owned(),
                    |namespace| format!("No resources found in {namespace} namespace."),
                ));
            }
            return Ok(());
        }
        wide @ (Some(Output::Wide) | None) => {
            let shown =
                Shown { namespace: namespace.is_none(), wide: wide.is_some(), headers: !verb.no_headers };
            return output::write(out, &table(found, shown, now));
        }
    };
    // Several, or whatever a list holds, are a List; one that was named is itself.
    output::objects(out, found, form, true)
}

/// What the table shows besides the columns that it always has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) namespace: bool,
    pub(super) wide: bool,
    pub(super) headers: bool,
}

impl Shown {
    /// The titles.
    pub(super) fn titles(self) -> Vec<String> {
        let title = |text: &str| text.to_owned();
        self.pick(Row {
            namespace: title("NAMESPACE"),
            name: title("NAME"),
            state: title("STATE"),
            claim: title("CLAIM"),
            holder: title("HOLDER"),
            attempt: title("ATTEMPT"),
            ready: title("READY"),
            drift: title("DRIFT"),
            age: title("AGE"),
            message: title("MESSAGE"),
        })
    }

    /// The cells of a line.
    pub(super) fn pick(self, row: Row) -> Vec<String> {
        let wide = |text: String| self.wide.then_some(text);
        let cells = [
            self.namespace.then_some(row.namespace),
            Some(row.name),
            Some(row.state),
            wide(row.claim),
            Some(row.holder),
            Some(row.attempt),
            Some(row.ready),
            wide(row.drift),
            Some(row.age),
            wide(row.message),
        ];
        cells.into_iter().flatten().collect()
    }
}

fn table(found: &[BundleDeployment], shown: Shown, now: DateTime<Utc>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    if shown.headers {
        table.set_header(shown.titles());
    }
    for bd in found {
        table.add_row(shown.pick(Row::of(bd, now)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    // kubectl ends lines with the last text, not with blanks.
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// One line, all texts ready. Absent is `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) state: String,
    pub(super) claim: String,
    pub(super) holder: String,
    pub(super) attempt: String,
    pub(super) ready: String,
    pub(super) drift: String,
    pub(super) age: String,
    pub(super) message: String,
}

impl Row {
    pub(super) fn of(bd: &BundleDeployment, now: DateTime<Utc>) -> Self {
        let claim = claim(bd);
        let counts = bd.status.as_ref().and_then(|status| status.resource_counts);
        let age = bd.creation_timestamp().map(|created| now.timestamp() - created.0.as_second());
        let or_dash =
            |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
        Self {
            namespace: bd.namespace().unwrap_or_default(),
            name: bd.name_any(),
            state: state::state(bd).to_string(),
            claim: or_dash(claim.reason),
            holder: or_dash(claim.holder),
            attempt: or_dash(claim.attempt),
            ready: or_dash(counts.map(|counts| format!("{}/{}", counts.ready, counts.desired_ready))),
            drift: or_dash(drift(bd)),
            age: or_dash(age.map(age::text)),
            message: one_line(&claim.trouble.unwrap_or_else(|| message(bd))),
        }
    }
}

/// What the table shows of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ClaimWords {
    reason: Option<String>,
    /// Only of a claim that is held.
    holder: Option<String>,
    attempt: Option<String>,
    /// Why it is not being worked on.
    trouble: Option<String>,
}

fn claim(bd: &BundleDeployment) -> ClaimWords {
    let Some(condition) = bd.condition(keys::CLAIM_CONDITION) else { return ClaimWords::default() };
    // `cause=` is the last word and takes the rest of the line.
    let (words, cause) = condition.message.split_once(" cause=").unwrap_or((&condition.message, ""));
    let word = |key: &str| {
        let pairs = words.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
    };
    let held = condition.status == "True";
    let trouble = format!("{}: {cause}", condition.reason);
    ClaimWords {
        reason: Some(condition.reason.clone()),
        holder: word("holder").filter(|_| held),
        attempt: word("attempt"),
        trouble: (!held).then(|| trouble.trim_end_matches(": ").to_owned()),
    }
}

/// How many objects differ or are missing; more than the status lists is `10+`.
fn drift(bd: &BundleDeployment) -> Option<String> {
    let status = bd.status.as_ref()?;
    match (status.modified_status.len(), status.incomplete_state) {
        (0, _) => None,
        (count, true) => Some(format!("{count}+")),
        (count, false) => Some(count.to_string()),
    }
}

/// Fleet's message of the state; if it says nothing, what is not ready.
fn message(bd: &BundleDeployment) -> String {
    match state::message(bd) {
        "" => bd.condition("Ready").map(|ready| ready.message.clone()).unwrap_or_default(),
        text => text.to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "get_tests.rs"]
mod tests;
