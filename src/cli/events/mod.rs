// SPDX-License-Identifier: Apache-2.0
//! `flotilla events`: what agents and controller reported about bundles.
//!
//! Agents write their Events in their own cluster, the controller writes upstream: both are read, where there is access.

mod told;

use std::{collections::HashMap, io::Write};

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use comfy_table::Table;
use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};

use self::told::{Cluster, Told};
use super::{
    age,
    cluster::{ClusterFlags, DownstreamFlags},
    error::CliError,
    output,
};
use crate::{
    controller,
    telemetry::{chain, events},
};

/// Flags of `flotilla events`.
#[derive(Debug, Args)]
pub struct EventsVerb {
    /// Of one bundle [default: of all].
    pub name: Option<String>,
    /// Go on with each new Event, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
    /// Form of the output [default: a table]; with --watch one JSON object a line.
    #[arg(short, long, value_enum)]
    pub output: Option<Form>,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// The cluster below.
    #[command(flatten)]
    pub downstream: DownstreamFlags,
}

/// Forms besides the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// JSON.
    Json,
}

/// Where Events are read from.
struct Source {
    api: Api<Event>,
    cluster: Cluster,
    selector: String,
}

impl Source {
    fn new(api: Api<Event>, cluster: Cluster, component: &str) -> Self {
        Self { api, cluster, selector: format!("reportingComponent={component}") }
    }
}

/// Reads and prints. `warn` gets sentences for standard error.
pub async fn run(
    verb: &EventsVerb,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    now: DateTime<Utc>,
) -> Result<(), CliError> {
    let namespace = verb.cluster.namespace()?;
    let upstream = verb.cluster.client().await?;
    let sources = sources(upstream, &namespace, verb.downstream.client().await?);
    if sources.len() == 1 {
        warn("only the controller's Events are seen; --downstream-kubeconfig shows the agents'");
    }
    if verb.watch { watch(verb, sources, out, now).await } else { list(verb, &sources, out, warn, now).await }
}

fn sources(upstream: Client, namespace: &str, downstream: Option<Client>) -> Vec<Source> {
    let above = Source::new(Api::namespaced(upstream, namespace), Cluster::Upstream, controller::COMPONENT);
    let below = downstream.map(|client| Source::new(Api::all(client), Cluster::Downstream, events::AGENT));
    std::iter::once(above).chain(below).collect()
}

async fn list(
    verb: &EventsVerb,
    sources: &[Source],
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    now: DateTime<Utc>,
) -> Result<(), CliError> {
    let mut found = Vec::new();
    for source in sources {
        let params = ListParams::default().fields(&source.selector);
        let listing = format!("list Events {}", source.cluster.place());
        let events = source.api.list(&params).await.map_err(CliError::server(listing))?;
        found.extend(events.items.iter().map(|event| Told::of(event, source.cluster)));
    }
    found.retain(|told| told.is_about(verb.name.as_deref()));
    found.sort_by(|a, b| {
        (a.last_seen, &a.bundle, a.reason.as_str()).cmp(&(b.last_seen, &b.bundle, b.reason.as_str()))
    });
    if verb.output == Some(Form::Json) {
        let text = serde_json::to_string_pretty(&found).map_err(|error| CliError::Print(Box::new(error)))?;
        return output::write(out, &(text + "\n"));
    }
    if found.is_empty() {
        warn("No events found.");
        return Ok(());
    }
    output::write(out, &table(&found, now))
}

fn table(found: &[Told], now: DateTime<Utc>) -> String {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["LAST SEEN", "TYPE", "REASON", "BUNDLE", "CLUSTER", "COUNT", "NOTE"]);
    for told in found {
        let age = told.last_seen.map_or_else(|| "-".to_owned(), |seen| age::text((now - seen).num_seconds()));
        let bundle = told.bundle.as_deref().unwrap_or("-");
        table.add_row([
            &age,
            &told.kind,
            &told.reason,
            bundle,
            told.cluster.word(),
            &told.count.to_string(),
            &told.note,
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

async fn watch(
    verb: &EventsVerb,
    sources: Vec<Source>,
    out: &mut dyn Write,
    now: DateTime<Utc>,
) -> Result<(), CliError> {
    let started = tokio::time::Instant::now();
    let mut seen = HashMap::new();
    let mut events = stream::select_all(sources.into_iter().map(|source| one(source).boxed()));
    let mut open = HashMap::new();
    while let Some(event) = events.next().await {
        let texts = match event {
            // What was there before comes in its order, once all of a cluster is known.
            Change::Listed(cluster, mut found) => {
                found.sort_by_key(|told| told.last_seen);
                open.insert(cluster, ());
                found
            }
            Change::Seen(told) => vec![*told],
            Change::Failed(cluster, text) if !open.contains_key(&cluster) => {
                return Err(CliError::Refused(format!("watch Events {}: {text}", cluster.place())));
            }
            Change::Failed(..) => Vec::new(),
        };
        let now = now + chrono::TimeDelta::from_std(started.elapsed()).unwrap_or_default();
        for told in texts {
            let known = seen.insert((told.cluster, told.id.clone()), (told.count, told.last_seen));
            if !told.is_about(verb.name.as_deref()) || known == Some((told.count, told.last_seen)) {
                continue;
            }
            let text = match verb.output {
                Some(Form::Json) => {
                    serde_json::to_string(&told).map_err(|error| CliError::Print(Box::new(error)))? + "\n"
                }
                None => told.line(now),
            };
            output::write(out, &text)?;
        }
    }
    Ok(())
}

/// What a watch tells.
enum Change {
    Listed(Cluster, Vec<Told>),
    Seen(Box<Told>),
    Failed(Cluster, String),
}

fn one(source: Source) -> impl Stream<Item = Change> + Send {
    let Source { api, cluster, selector } = source;
    let mut listed = Vec::new();
    let events = watcher(api, watcher::Config::default().fields(&selector)).default_backoff();
    events.filter_map(move |event| {
        futures::future::ready(match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                None
            }
            Ok(watcher::Event::InitApply(event)) => {
                listed.push(Told::of(&event, cluster));
                None
            }
            Ok(watcher::Event::InitDone) => Some(Change::Listed(cluster, std::mem::take(&mut listed))),
            Ok(watcher::Event::Apply(event)) => Some(Change::Seen(Box::new(Told::of(&event, cluster)))),
            Ok(watcher::Event::Delete(_)) => None,
            Err(error) => Some(Change::Failed(cluster, chain(&error))),
        })
    })
}

fn id(event: &Event) -> String {
    format!("{}/{}", event.namespace().unwrap_or_default(), event.name_any())
}
