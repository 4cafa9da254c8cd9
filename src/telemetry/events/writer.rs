// SPDX-License-Identifier: Apache-2.0
//! The task behind the queue: one write at a time, each with its own time limit.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{EventsConfig, Report, series};
use crate::telemetry::Metrics;

/// Of one write. Events are worth little: better a lost one than a queue behind a hanging API server.
const CALL: Duration = Duration::from_secs(5);
/// For what is still queued when the process stops.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// No further try in a namespace that denied one: rights rarely change within minutes.
const DENIED: Duration = Duration::from_secs(600);
/// Longest `message` that the API server takes, in bytes.
const NOTE: usize = 1024;
/// Longest part of the object's name in an Event's name: 253, less a dot and 16 digits.
const NAME: usize = 253 - 17;

pub(super) async fn run(
    client: kube::Client,
    config: EventsConfig,
    mut reports: mpsc::Receiver<Report>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut writer = Writer {
        client,
        config,
        metrics,
        series: series::Series::default(),
        denied: HashMap::new(),
        warned: false,
    };
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            report = reports.recv() => match report {
                Some(report) => writer.write(report).await,
                None => return,
            },
        }
    }
    reports.close();
    let rest = async {
        while let Some(report) = reports.recv().await {
            writer.write(report).await;
        }
    };
    if timeout(LAST_WORDS, rest).await.is_err() {
        debug!("some events were not written before the end");
    }
}

struct Writer {
    client: kube::Client,
    config: EventsConfig,
    metrics: Metrics,
    series: series::Series,
    /// Namespaces that refused us, and when.
    denied: HashMap<String, Instant>,
    /// Whether a denial was logged already.
    warned: bool,
}

/// Why an Event was not written.
enum Failure {
    Timeout,
    /// The Event to continue is gone.
    Gone,
    Denied(kube::Error),
    Other(kube::Error),
}

impl Writer {
    async fn write(&mut self, report: Report) {
        let now = Instant::now();
        let story = series::story(&report);
        if let Some(known) = self.series.find(story, now) {
            let (namespace, name, count) = (known.namespace.clone(), known.name.clone(), known.count + 1);
            match self.raise(&namespace, &name, count).await {
                Ok(()) => {
                    self.metrics.event_written();
                    return self.series.remember(story, namespace, name, count, now);
                }
                Err(Failure::Gone) => self.series.forget(story),
                Err(failure) => return self.failed(&namespace, failure),
            }
        }
        let event = self.event(&report, story);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        if self.denied.get(&namespace).is_some_and(|since| now.duration_since(*since) < DENIED) {
            return self.metrics.event_failed();
        }
        match self.create(&namespace, &event).await {
            Ok(()) => {
                self.metrics.event_written();
                self.series.remember(story, namespace, event.metadata.name.unwrap_or_default(), 1, now);
            }
            Err(failure) => self.failed(&namespace, failure),
        }
    }

    async fn create(&self, namespace: &str, event: &Event) -> Result<(), Failure> {
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        ended(timeout(CALL, api.create(&PostParams::default(), event)).await)
    }

    async fn raise(&self, namespace: &str, name: &str, count: i32) -> Result<(), Failure> {
        let api = Api::<Event>::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "count": count, "lastTimestamp": Time(Timestamp::now()) }));
        ended(timeout(CALL, api.patch(name, &PatchParams::default(), &patch)).await)
    }

    fn failed(&mut self, namespace: &str, failure: Failure) {
        self.metrics.event_failed();
        match failure {
            Failure::Denied(cause) => {
                self.denied.insert(namespace.to_owned(), Instant::now());
                if !std::mem::replace(&mut self.warned, true) {
                    warn!(namespace, %cause, "no right to write events here; further denials are only counted");
                }
            }
            Failure::Other(cause) => debug!(namespace, %cause, "event not written"),
            Failure::Timeout => debug!(namespace, "event not written in time"),
            Failure::Gone => debug!(namespace, "no such place for an event"),
        }
    }

    fn event(&self, report: &Report, story: series::Story) -> Event {
        let time = Timestamp::now();
        let (about, related, note) = match &self.config.home {
            None => (report.regarding.clone(), None, report.note.clone()),
            Some(home) => {
                let note = format!("{}: {}", title(&report.regarding), report.note);
                (home.clone(), Some(report.regarding.clone()), note)
            }
        };
        // The API server demands: an Event of a cluster-wide object stands in `default`.
        let namespace =
            about.namespace.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "default".into());
        let unique = story ^ time.as_nanosecond() as u64;
        let name =
            cut(about.name.as_deref().unwrap_or("unknown"), NAME).trim_end_matches(['.', '-']).to_owned();
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{unique:016x}")),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: about,
            related,
            type_: Some(report.kind.word().to_owned()),
            reason: Some(report.reason.to_owned()),
            message: Some(cut(&note, NOTE).to_owned()),
            count: Some(1),
            first_timestamp: Some(Time(time)),
            last_timestamp: Some(Time(time)),
            source: Some(EventSource { component: Some(self.config.component.to_owned()), host: None }),
            reporting_component: Some(self.config.component.to_owned()),
            reporting_instance: Some(self.config.instance.clone()),
            ..Event::default()
        }
    }
}

fn ended<T>(result: Result<kube::Result<T>, tokio::time::error::Elapsed>) -> Result<(), Failure> {
    match result {
        Err(_) => Err(Failure::Timeout),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
            Err(Failure::Denied(kube::Error::Api(status)))
        }
        Ok(Err(kube::Error::Api(status))) if status.is_not_found() => Err(Failure::Gone),
        Ok(Err(error)) => Err(Failure::Other(error)),
    }
}

/// `bundledeployment cluster-ns/name`.
fn title(object: &ObjectReference) -> String {
    let kind = object.kind.as_deref().unwrap_or("object").to_ascii_lowercase();
    let name = object.name.as_deref().unwrap_or_default();
    match object.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{kind} {namespace}/{name}"),
        _ => format!("{kind} {name}"),
    }
}

/// At most `limit` bytes, never half a character.
fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}
