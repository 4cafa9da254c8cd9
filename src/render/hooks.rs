// SPDX-License-Identifier: Apache-2.0
//! Helm's hooks: objects that are run at certain moments of a release instead of being kept in it.

use std::fmt;

use serde_json::{Map, Value, json};

use super::Object;

/// Annotation that makes an object a hook: its events, parted by commas.
pub const HOOK: &str = "helm.sh/hook";
/// Its place among the hooks of one event.
const WEIGHT: &str = "helm.sh/hook-weight";
/// When it is deleted.
const DELETE_POLICY: &str = "helm.sh/hook-delete-policy";
/// When its log is shown.
const OUTPUT_LOG_POLICY: &str = "helm.sh/hook-output-log-policy";

/// A moment at which a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum HookEvent {
    PreInstall,
    PostInstall,
    PreUpgrade,
    PostUpgrade,
    PreDelete,
    PostDelete,
    PreRollback,
    PostRollback,
    Test,
}

impl HookEvent {
    /// Helm's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreInstall => "pre-install",
            Self::PostInstall => "post-install",
            Self::PreUpgrade => "pre-upgrade",
            Self::PostUpgrade => "post-upgrade",
            Self::PreDelete => "pre-delete",
            Self::PostDelete => "post-delete",
            Self::PreRollback => "pre-rollback",
            Self::PostRollback => "post-rollback",
            Self::Test => "test",
        }
    }

    /// The event of this word, if it is one.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "pre-install" => Self::PreInstall,
            "post-install" => Self::PostInstall,
            "pre-upgrade" => Self::PreUpgrade,
            "post-upgrade" => Self::PostUpgrade,
            "pre-delete" => Self::PreDelete,
            "post-delete" => Self::PostDelete,
            "pre-rollback" => Self::PreRollback,
            "post-rollback" => Self::PostRollback,
            // The second is Helm 2's.
            "test" | "test-success" => Self::Test,
            _ => return None,
        })
    }
}

/// When a hook's object is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeletePolicy {
    /// Before the next run of it.
    BeforeHookCreation,
    /// Once it has succeeded.
    HookSucceeded,
    /// Once it has failed.
    HookFailed,
    /// A word without a meaning; Helm keeps it, and takes it for a policy where it looks whether there is one.
    Other(String),
}

impl DeletePolicy {
    /// Helm's word.
    pub fn as_str(&self) -> &str {
        match self {
            Self::BeforeHookCreation => "before-hook-creation",
            Self::HookSucceeded => "hook-succeeded",
            Self::HookFailed => "hook-failed",
            Self::Other(word) => word,
        }
    }

    /// The policy of this word.
    pub fn parse(word: String) -> Self {
        match word.as_str() {
            "before-hook-creation" => Self::BeforeHookCreation,
            "hook-succeeded" => Self::HookSucceeded,
            "hook-failed" => Self::HookFailed,
            _ => Self::Other(word),
        }
    }
}

/// A hook, with Fleet's marks as every other object.
#[derive(Clone, PartialEq)]
pub struct Hook {
    /// What is created.
    pub object: Object,
    /// Helm's path of the template, or the name made up for what has none.
    pub path: String,
    /// When it runs; at least one.
    pub events: Vec<HookEvent>,
    /// Lower ones run first.
    pub weight: i32,
    /// As annotated. Helm adds [`DeletePolicy::BeforeHookCreation`] to the record when it runs a hook that names
    /// none: see [`Hook::has_policy`].
    pub delete_policies: Vec<DeletePolicy>,
    /// As annotated, in Helm's words; the agent shows no logs.
    pub output_log_policies: Vec<String>,
    /// Its text in the release record.
    pub manifest: String,
}

/// Names only: it may be a Secret.
impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook")
            .field("object", &self.object)
            .field("events", &self.events)
            .field("weight", &self.weight)
            .finish_non_exhaustive()
    }
}

impl Hook {
    /// Whether the object is deleted at this moment; one that names no policy is deleted before its next run.
    pub fn has_policy(&self, policy: &DeletePolicy) -> bool {
        match self.delete_policies.as_slice() {
            [] => *policy == DeletePolicy::BeforeHookCreation,
            policies => policies.contains(policy),
        }
    }

    /// The hook in Helm's release record, as one that did not run.
    pub fn record_json(&self) -> Value {
        let mut record = Map::new();
        record.insert("name".into(), self.object.name.as_str().into());
        record.insert("kind".into(), self.object.kind.as_str().into());
        record.insert("path".into(), self.path.as_str().into());
        record.insert("manifest".into(), self.manifest.as_str().into());
        let events: Vec<&str> = self.events.iter().map(|event| event.as_str()).collect();
        record.insert("events".into(), events.into());
        record.insert("last_run".into(), json!({"phase": ""}));
        // Go's `omitempty`.
        if self.weight != 0 {
            record.insert("weight".into(), self.weight.into());
        }
        if !self.delete_policies.is_empty() {
            let policies: Vec<&str> = self.delete_policies.iter().map(DeletePolicy::as_str).collect();
            record.insert("delete_policies".into(), policies.into());
        }
        if !self.output_log_policies.is_empty() {
            record.insert("output_log_policies".into(), self.output_log_policies.clone().into());
        }
        record.into()
    }
}
/// What Helm makes of an object.
pub(super) enum Role {
    /// Kept in the release.
    Kept(Object),
    /// A hook, still without its text.
    Hook(Hook),
    /// Left out: one of its events is none.
    Unknown,
}

/// Tells a hook from an object that is kept. Helm's rules: one unknown event and the document is left out, a weight
/// that is no number counts as 0.
pub(super) fn role(object: Object, path: &str) -> Role {
    let annotation = |name: &str| object.value["metadata"]["annotations"][name].as_str();
    let Some(events) = annotation(HOOK) else { return Role::Kept(object) };
    let Some(events) = words(events).map(|word| HookEvent::parse(&word)).collect() else {
        return Role::Unknown;
    };
    let weight = annotation(WEIGHT).and_then(|weight| weight.parse().ok()).unwrap_or(0);
    let delete_policies =
        annotation(DELETE_POLICY).map(|text| words(text).map(DeletePolicy::parse).collect());
    let output_log_policies = annotation(OUTPUT_LOG_POLICY).map(|text| words(text).collect());
    Role::Hook(Hook {
        path: path.to_owned(),
        events,
        weight,
        delete_policies: delete_policies.unwrap_or_default(),
        output_log_policies: output_log_policies.unwrap_or_default(),
        manifest: String::new(),
        object,
    })
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(|word| word.trim().to_lowercase())
}
