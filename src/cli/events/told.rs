// SPDX-License-Identifier: Apache-2.0
//! One Event, reduced to what is shown. Pure.

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use serde::Serialize;

use crate::cli::age;

/// Which of the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cluster {
    /// The management cluster.
    Upstream,
    /// The one that is deployed to.
    Downstream,
}

impl Cluster {
    /// For tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Downstream => "downstream",
        }
    }

    /// For errors.
    pub fn place(self) -> &'static str {
        match self {
            Self::Upstream => "of the management cluster",
            Self::Downstream => "of the downstream cluster",
        }
    }
}

/// An Event as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// Namespace and name of the Event.
    #[serde(rename = "event")]
    pub id: String,
    /// When it was reported last.
    pub last_seen: Option<DateTime<Utc>>,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Why.
    pub reason: String,
    /// The bundle it is about.
    pub bundle: Option<String>,
    /// `kind/name` it stands on.
    pub object: String,
    /// Where it was written.
    pub cluster: Cluster,
    /// Who wrote it.
    pub reporter: String,
    /// How often.
    pub count: i32,
    /// What it says, on one line.
    pub note: String,
}

impl Told {
    /// Reads an Event.
    pub fn of(event: &Event, cluster: Cluster) -> Self {
        let times = [&event.last_timestamp, &event.first_timestamp, &event.metadata.creation_timestamp];
        let last = times
            .into_iter()
            .flatten()
            .next()
            .and_then(|time| DateTime::from_timestamp(time.0.as_second(), 0));
        let note = event.message.as_deref().unwrap_or_default();
        let about = &event.involved_object;
        let named = [Some(about), event.related.as_ref()].into_iter().flatten().find_map(bundle_of);
        Self {
            id: super::id(event),
            last_seen: last,
            kind: event.type_.clone().unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
            bundle: named.or_else(|| in_note(note)),
            object: format!(
                "{}/{}",
                about.kind.as_deref().unwrap_or("object").to_lowercase(),
                about.name.as_deref().unwrap_or_default()
            ),
            cluster,
            reporter: event.reporting_instance.clone().unwrap_or_default(),
            count: event.count.unwrap_or(1),
            note: note.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    /// Whether it is about that bundle; everything is when none is named.
    pub fn is_about(&self, name: Option<&str>) -> bool {
        name.is_none_or(|name| self.bundle.as_deref() == Some(name))
    }

    /// One line of a watch; its columns have fixed widths.
    pub fn line(&self, now: DateTime<Utc>) -> String {
        let age = self.last_seen.map_or_else(|| "-".to_owned(), |seen| age::text((now - seen).num_seconds()));
        let bundle = self.bundle.as_deref().unwrap_or("-");
        let count = if self.count > 1 { format!(" (x{})", self.count) } else { String::new() };
        let line = format!("{age:<8} {:<8} {:<20} {bundle:<24} {}{count}", self.kind, self.reason, self.note);
        line.trim_end().to_owned() + "\n"
    }
}

fn bundle_of(object: &ObjectReference) -> Option<String> {
    (object.kind.as_deref() == Some("BundleDeployment")).then(|| object.name.clone()).flatten()
}

/// Agents' notes name their bundle first: `bundle NAME: …`, `bundle NAME (…): …`; an Event about the agent's Pod names
/// the real object before that.
fn in_note(note: &str) -> Option<String> {
    let rest = note.strip_prefix("bundle ").or_else(|| note.split_once(": bundle ").map(|(_, rest)| rest))?;
    let name = rest.split([' ', ':', '(']).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(change: Value) -> Told {
        let mut event = json!({
            "metadata": {"name": "e.1", "namespace": "shop"},
            "involvedObject": {"kind": "Secret", "name": "sh.helm.release.v1.web.v3"},
            "type": "Warning", "reason": "DeployFailed", "count": 2, "reportingInstance": "agent-0",
            "firstTimestamp": "2026-01-01T11:00:00Z", "lastTimestamp": "2026-01-01T11:59:00Z",
            "message": "bundle web (will be tried again): no\n such kind",
        });
        for (key, value) in change.as_object().unwrap() {
            event[key] = value.clone();
        }
        Told::of(&serde_json::from_value(event).unwrap(), Cluster::Downstream)
    }

    #[test]
    fn the_bundle_is_found_wherever_it_is_named() {
        for (change, bundle) in [
            (json!({}), Some("web")),
            (json!({"message": "bundle a.b-c: deployed"}), Some("a.b-c")),
            (json!({"message": "bundle fleet-agent-x carries Fleet's own agent"}), Some("fleet-agent-x")),
            (json!({"message": "secret shop/sh.helm.release.v1.web.v3: bundle web: deployed"}), Some("web")),
            (json!({"message": "registered"}), None),
            (json!({"involvedObject": {"kind": "BundleDeployment", "name": "db"}}), Some("db")),
            (json!({"related": {"kind": "BundleDeployment", "name": "db"}}), Some("db")),
        ] {
            assert_eq!(told(change.clone()).bundle.as_deref(), bundle, "{change}");
        }
        assert!(told(json!({})).is_about(Some("web")) && !told(json!({})).is_about(Some("we")));
    }

    #[test]
    fn a_line_tells_when_what_and_how_often() {
        let line = told(json!({})).line("2026-01-01T12:00:00Z".parse().unwrap());
        assert_eq!(
            line,
            "60s      Warning  DeployFailed         web                      bundle web (will be tried again): no such \
             kind (x2)\n"
        );
    }
}
