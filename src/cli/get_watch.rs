// SPDX-License-Identifier: Apache-2.0
//! `flotilla get --watch`: the table, then a line for each change. Columns keep the widths of the first table.

use std::{collections::HashMap, io::Write};

use chrono::{DateTime, Utc};
use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};

use super::{
    error::CliError,
    get::{GetVerb, Output, Row, Shown},
    output,
};
use crate::{api::BundleDeployment, telemetry::chain};

/// Blanks between columns, kubectl's.
const GAP: usize = 3;
/// Widths that columns have at least, so that what comes later fits: states, holders, claims.
const LEAST: [(&str, usize); 6] =
    [("STATE", 11), ("CLAIM", 11), ("HOLDER", 12), ("ATTEMPT", 7), ("READY", 7), ("AGE", 6)];

/// Prints until it is interrupted. `now` is when it began.
pub(super) async fn run(
    verb: &GetVerb,
    client: Client,
    namespace: Option<&str>,
    out: &mut dyn Write,
    now: DateTime<Utc>,
) -> Result<(), CliError> {
    let wide = match verb.output {
        None => false,
        Some(Output::Wide) => true,
        Some(Output::Json | Output::Yaml | Output::Name) => {
            return Err(CliError::Refused("--watch prints tables: use it alone or with -o wide".to_owned()));
        }
    };
    let api: Api<BundleDeployment> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let config = verb.selector.iter().fold(watcher::Config::default(), |config, text| config.labels(text));
    let shown = Shown { namespace: namespace.is_none(), wide, headers: !verb.no_headers };
    let (mut lines, mut first) = (Lines::new(shown), Vec::new());
    let started = tokio::time::Instant::now();
    let mut events = watcher(api, config).default_backoff().boxed();
    let wanted = |bd: &BundleDeployment| verb.names.is_empty() || verb.names.contains(&bd.name_any());
    let mut listed = false;
    while let Some(event) = events.next().await {
        let elapsed = chrono::TimeDelta::from_std(started.elapsed()).unwrap_or_default();
        let now = now + elapsed;
        let text = match event {
            Ok(watcher::Event::Init) => String::new(),
            Ok(watcher::Event::InitApply(bd)) if !wanted(&bd) => String::new(),
            Ok(watcher::Event::InitApply(bd)) if !listed => {
                first.push(Row::of(&bd, now));
                String::new()
            }
            Ok(watcher::Event::InitDone) if !listed => {
                listed = true;
                lines.begin(std::mem::take(&mut first))
            }
            Ok(watcher::Event::InitDone) => String::new(),
            Ok(watcher::Event::InitApply(bd) | watcher::Event::Apply(bd)) if wanted(&bd) => {
                lines.change(Row::of(&bd, now))
            }
            Ok(watcher::Event::Delete(bd)) if wanted(&bd) => lines.gone(Row::of(&bd, now)),
            Ok(_) => String::new(),
            // The first list tells whether it can be read at all; later failures pass.
            Err(error) if !listed => {
                return Err(CliError::Refused(format!("list BundleDeployments: {}", chain(&error))));
            }
            Err(_) => String::new(),
        };
        if !text.is_empty() {
            output::write(out, &text)?;
        }
    }
    Ok(())
}

/// What was printed, and how wide.
struct Lines {
    shown: Shown,
    widths: Vec<usize>,
    last: HashMap<(String, String), Row>,
}

impl Lines {
    fn new(shown: Shown) -> Self {
        let widths = shown
            .titles()
            .iter()
            .map(|title| {
                let least = LEAST.iter().find(|(name, _)| name == title).map_or(0, |(_, least)| *least);
                title.len().max(least)
            })
            .collect();
        Self { shown, widths, last: HashMap::new() }
    }

    /// The first table; decides on the widths.
    fn begin(&mut self, mut rows: Vec<Row>) -> String {
        rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        for row in &rows {
            for (width, cell) in self.widths.iter_mut().zip(self.shown.pick(row.clone())) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = if self.shown.headers { self.line(&self.shown.titles()) } else { String::new() };
        for row in rows {
            text.push_str(&self.change(row));
        }
        text
    }

    /// A line, if anything but the age is another than before.
    fn change(&mut self, row: Row) -> String {
        let key = (row.namespace.clone(), row.name.clone());
        let same = |before: &Row| Row { age: row.age.clone(), ..before.clone() } == row;
        if self.last.get(&key).is_some_and(same) {
            return String::new();
        }
        let text = self.line(&self.shown.pick(row.clone()));
        self.last.insert(key, row);
        text
    }

    fn gone(&mut self, row: Row) -> String {
        self.last.remove(&(row.namespace.clone(), row.name.clone()));
        self.line(&self.shown.pick(Row { state: "Deleted".into(), ..row }))
    }

    fn line(&self, cells: &[String]) -> String {
        let mut text = String::new();
        for (cell, width) in cells.iter().zip(&self.widths) {
            text.push_str(&format!("{cell:<width$}{:GAP$}", ""));
        }
        text.trim_end().to_owned() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: &str, holder: &str, age: &str) -> Row {
        let dash = || "-".to_owned();
        Row {
            namespace: "c1".into(),
            name: name.into(),
            state: state.into(),
            claim: dash(),
            holder: holder.into(),
            attempt: dash(),
            ready: dash(),
            drift: dash(),
            age: age.into(),
            message: String::new(),
        }
    }

    #[test]
    fn columns_stay_where_the_first_table_put_them() {
        let mut lines = Lines::new(Shown { namespace: false, wide: true, headers: true });
        let mut text =
            lines.begin(vec![row("shop", "WaitApplied", "-", "2s"), row("db", "Ready", "-", "3h")]);
        text += &lines.change(row("shop", "WaitApplied", "-", "9s"));
        text += &lines.change(row("shop", "WaitApplied", "agent-0", "9s"));
        text += &lines.gone(row("db", "Ready", "-", "3h"));
        assert_eq!(
            text,
            "\
NAME   STATE         CLAIM         HOLDER         ATTEMPT   READY     DRIFT   AGE      MESSAGE
db     Ready         -             -              -         -         -       3h
shop   WaitApplied   -             -              -         -         -       2s
shop   WaitApplied   -             agent-0        -         -         -       9s
db     Deleted       -             -              -         -         -       3h
"
        );
    }
}
