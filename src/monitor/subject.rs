// SPDX-License-Identifier: Apache-2.0
//! What the readiness rules read of an object, whether it came as JSON or typed.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::api::IgnoreOptions;

/// A live object as the rules see it.
#[derive(Clone, Debug)]
pub(super) struct Subject<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub generation: Option<i64>,
    pub created_at: Option<DateTime<Utc>>,
    /// Has a deletionTimestamp.
    pub deleting: bool,
    /// Rancher's own `metadata.created` and `metadata.removed`; Kubernetes has no such fields.
    pub rancher: Rancher<'a>,
    /// `status.conditions`, then those of the status annotation.
    pub conditions: Vec<Condition<'a>>,
    /// How many of them come from `status.conditions`.
    pub own_conditions: usize,
    /// `status.conditions` was there, perhaps empty.
    pub has_conditions: bool,
    /// `status` or a condition in it is not of the usual types; kstatus then gives up on the object.
    pub malformed: bool,
    /// Object that `spec` and `status` are read from.
    pub body: &'a Value,
}

/// Fields of objects that Rancher maps for its own API.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rancher<'a> {
    pub created: &'a str,
    pub removed: &'a str,
    /// The first finalizer, if any.
    pub finalizer: &'a str,
}

/// One condition, as texts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition<'a> {
    pub type_: Cow<'a, str>,
    pub status: Cow<'a, str>,
    pub reason: Cow<'a, str>,
    pub message: Cow<'a, str>,
}

impl Condition<'_> {
    /// Whether it is the condition of that type with that status.
    pub fn is(&self, type_: &str, status: &str) -> bool {
        self.type_ == type_ && self.status == status
    }
}

impl<'a> Subject<'a> {
    /// Reads the conditions from `status` and from the annotation's text, and hides what the user ignores.
    ///
    /// Only conditions in `status` can be hidden; Fleet's agent does not look at the annotation's.
    pub fn read_conditions(&mut self, annotation: Option<&str>, ignore: &IgnoreOptions) {
        let list = self.at(&["status", "conditions"]);
        self.has_conditions = list.is_some();
        self.malformed = match list {
            None | Some(Value::Null) => {
                self.at(&["status"]).is_some_and(|one| !one.is_object() && !one.is_null())
            }
            Some(Value::Array(items)) => items.iter().any(is_malformed),
            Some(_) => true,
        };
        let own = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let shown = own.iter().filter(|condition| condition.is_object() && !is_ignored(condition, ignore));
        self.conditions = shown.map(borrowed).collect();
        self.own_conditions = self.conditions.len();
        let annotated = annotation.and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(items) = annotated.as_ref().and_then(|status| status["conditions"].as_array()) {
            self.conditions.extend(items.iter().filter(|item| item.is_object()).map(owned));
        }
    }

    /// The conditions in `status` that are not hidden.
    pub fn status_conditions(&self) -> &[Condition<'a>] {
        &self.conditions[..self.own_conditions]
    }

    /// The value at a path below the object.
    pub fn at(&self, path: &[&str]) -> Option<&'a Value> {
        path.iter().try_fold(self.body, |value, key| value.get(key))
    }

    /// A number at a path; the default when it is absent or no whole number.
    pub fn int(&self, path: &[&str], default: i64) -> i64 {
        self.at(path).and_then(Value::as_i64).unwrap_or(default)
    }

    /// A text at a path; the default when it is absent or no text.
    pub fn text(&self, path: &[&str], default: &'a str) -> &'a str {
        self.at(path).and_then(Value::as_str).unwrap_or(default)
    }
}

/// Any JSON value as text: texts as they are, `null` and nothing as the empty text, others as JSON.
pub(super) fn as_text(value: Option<&Value>) -> Cow<'_, str> {
    match value {
        None | Some(Value::Null) => Cow::Borrowed(""),
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(other) => Cow::Owned(other.to_string()),
    }
}

fn borrowed(condition: &Value) -> Condition<'_> {
    let text = |key| as_text(condition.get(key));
    Condition {
        type_: text("type"),
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
    }
}

fn owned<'a>(condition: &Value) -> Condition<'a> {
    let text = |key| Cow::Owned(as_text(condition.get(key)).into_owned());
    Condition {
        type_: text("type"),
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
    }
}

fn is_malformed(condition: &Value) -> bool {
    let strange = |key: &str| condition.get(key).is_some_and(|value| !value.is_string() && !value.is_null());
    !condition.is_object() || ["type", "status", "reason", "message"].into_iter().any(strange)
}

fn is_ignored(condition: &Value, ignore: &IgnoreOptions) -> bool {
    let equal =
        |(key, wanted): (&String, &String)| condition.get(key).and_then(Value::as_str) == Some(wanted);
    ignore.conditions.iter().any(|rule| rule.iter().all(equal))
}
