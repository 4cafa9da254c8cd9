// SPDX-License-Identifier: Apache-2.0
//! One object compared with what is wanted: the API server is asked, by a dry run, what applying would change.
//!
//! Defaults, spellings of quantities, conversions and webhooks are then judged by the server itself. The dry run is the
//! apply as a deployment would send it, under the stamp that the live object carries, so that the stamp is no change.
//! Where the server refuses it, as it refuses a change of an immutable field, the object is completed by a dry run under
//! a name that nothing has, and merged here; where a webhook allows no dry run, it is merged here as it is.

use serde_json::Value;
use tracing::debug;

use super::{
    Downstream,
    apply::{
        CREATE_ONLY,
        body::{self, Overlay},
        ownership::is_autoscaled,
    },
    kinds::Kind,
    release::APPLY,
    scaling::is_delegated,
    server::{MetaOnly, RequestError},
};
use crate::{
    api::keys,
    monitor::{
        Key, Owners,
        drift::{self, ObjectRules},
        owners_of,
    },
    render::Object,
};

/// Appended to the name under which an object is completed.
const COMPLETED: &str = "-flotilla-compared";
/// The longest name every kind allows, its suffix included.
const NAME_LIMIT: usize = 60;

/// One object and what is asked about it.
pub struct Question<'a> {
    /// Release name and namespace.
    pub release: (&'a str, &'a str),
    /// The object as the manifest has it.
    pub object: &'a Object,
    /// Its kind.
    pub kind: &'a Kind,
    /// Its place.
    pub key: &'a Key,
    /// What the user overlooks.
    pub rules: &'a ObjectRules<'a>,
}

/// What the comparison showed.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The live object, so owned, was compared: with the drift, if there is any.
    Judged {
        /// Its uid.
        uid: String,
        /// As they were.
        owners: Owners,
        /// What differs.
        drift: Option<Drift>,
        /// An autoscaler had a say, or would have if there were one.
        scaled: bool,
    },
    /// The server cannot tell just now: a webhook that has to be asked does not answer.
    Unclear,
    /// It is not there (any more), or was changed meanwhile.
    Changed,
}

/// A foreign change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The merge patch that would restore what is wanted; no values of Secrets.
    pub patch: String,
    /// The first field in it.
    pub field: String,
    /// Who set it, if anybody is on record.
    pub manager: Option<String>,
}

/// Compares. Reads the live object, asks once or twice, writes nothing.
pub async fn judge(ctx: &Downstream, question: &Question<'_>) -> Result<Verdict, RequestError> {
    let Question { object, kind, key, rules, .. } = question;
    let path = kind.path(&key.namespace, &key.name);
    let live: Value = match ctx.server.get(&path).await {
        Ok(live) => live,
        Err(error) if error.is_not_found() => return Ok(Verdict::Changed),
        Err(error) => return Err(error),
    };
    let mut live = live;
    let meta = serde_json::from_value::<MetaOnly>(live.clone()).unwrap_or_default().metadata;
    let owners = owners_of(&live);
    if meta.deletion_timestamp.is_some() {
        // On its way out: whatever it looks like, nothing restores it.
        return Ok(Verdict::Judged { uid: meta.uid, owners, drift: None, scaled: false });
    }
    let entries =
        live.get_mut("metadata").and_then(|metadata| metadata.get_mut("managedFields")).map(Value::take);
    // Whoever scaled it may be gone since, or have no say about what it has now.
    let autoscaled = is_autoscaled(&meta) && object.value.pointer("/spec/replicas").is_some();
    let mut delegated = None;
    if autoscaled {
        delegated = Some(is_delegated(ctx, key, &live).await?.unwrap_or(true));
    }
    let predicted = match predict(ctx, question, &meta, delegated == Some(true), &live).await? {
        Prediction::Made(predicted) => predicted,
        Prediction::Changed => return Ok(Verdict::Changed),
        Prediction::Unclear => return Ok(Verdict::Unclear),
    };
    let mut desired = object.value.clone();
    let mut patch = drift::difference(&desired, &live, &predicted, rules);
    if scales(patch.as_ref()) && delegated.is_none() {
        delegated = Some(is_delegated(ctx, key, &live).await?.unwrap_or(false));
    }
    if scales(patch.as_ref()) && delegated == Some(true) {
        if let Some(spec) = desired.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("replicas");
        }
        patch = drift::difference(&desired, &live, &predicted, rules);
    }
    let drift = patch.map(|patch| Drift {
        manager: manager_of(&patch, entries.as_ref()),
        field: drift::first_field(&patch),
        patch: drift::text(&object.value, &patch),
    });
    Ok(Verdict::Judged { uid: meta.uid, owners, drift, scaled: delegated.is_some() })
}

/// Makes of a desired object what a correction applies: what rules overlook and what is left to others keeps what is
/// live.
pub async fn settled(ctx: &Downstream, question: &Question<'_>) -> Result<Value, RequestError> {
    let Question { object, kind, key, rules, .. } = question;
    let mut desired = object.value.clone();
    match ctx.server.get::<Value>(&kind.path(&key.namespace, &key.name)).await {
        Ok(live) => {
            let scaled = desired.pointer("/spec/replicas").is_some()
                && is_delegated(ctx, key, &live).await?.unwrap_or(false);
            drift::settle(&mut desired, &live, rules, scaled);
            Ok(desired)
        }
        Err(error) if error.is_not_found() => Ok(desired),
        Err(error) => Err(error),
    }
}

/// What applying would make of the live object.
enum Prediction {
    Made(Value),
    /// It was changed meanwhile.
    Changed,
    /// Nobody can say just now.
    Unclear,
}

async fn predict(
    ctx: &Downstream,
    question: &Question<'_>,
    meta: &super::server::LiveMeta,
    leave_replicas: bool,
    live: &Value,
) -> Result<Prediction, RequestError> {
    let Question { release, object, kind, key, .. } = question;
    let stamp = meta.annotations.get(keys::EPOCH_ANNOTATION).map(String::as_str);
    let overlay = Overlay {
        release: Some(*release),
        stamp,
        uid: Some(&meta.uid),
        resource_version: &meta.resource_version,
        namespace: &key.namespace,
        leave_replicas,
    };
    let refused = match dry_run(ctx, &kind.path(&key.namespace, &key.name), &object.value, &overlay).await {
        Ok(predicted) => return Ok(Prediction::Made(predicted)),
        Err(error) if error.is_conflict() || error.is_not_found() => return Ok(Prediction::Changed),
        Err(error) if is_passing(&error) => {
            debug!(object = %key, cause = %hidden(kind, error), "the API server cannot say just now what applying would change");
            return Ok(Prediction::Unclear);
        }
        Err(error)
            if error.status().is_some_and(|status| matches!(status.code, 400 | 403 | 405 | 422 | 500)) =>
        {
            error
        }
        Err(error) => return Err(error),
    };
    let builtin = k8s_group(key.group());
    debug!(object = %key, cause = %hidden(kind, refused),
        "the API server does not say what applying would change; compared without it");
    let name = completed_name(&key.name);
    let mut other = object.value.clone();
    if let Some(metadata) = other.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("name".into(), name.as_str().into());
    }
    let overlay = Overlay { uid: None, resource_version: CREATE_ONLY, leave_replicas: false, ..overlay };
    let desired = match dry_run(ctx, &kind.path(&key.namespace, &name), &other, &overlay).await {
        Ok(completed) => {
            let mut desired = drift::restricted(&completed, &object.value);
            for field in ["kind", "apiVersion", "data", "stringData"] {
                if let Some(value) = object.value.get(field).filter(|value| !drift::is_void(value)) {
                    desired[field] = value.clone();
                }
            }
            desired
        }
        Err(error) if is_passing(&error) => return Ok(Prediction::Unclear),
        // Whether the server keeps an empty map or drops it, nobody tells.
        Err(_) => drift::without_voids(&object.value),
    };
    Ok(Prediction::Made(drift::predicted(&desired, live, builtin)))
}

/// Whether the server failed by itself, as it does when a webhook that must be asked does not answer. What it refuses for
/// good has another reason, a patch that it cannot read (a plain 500) included.
fn is_passing(error: &RequestError) -> bool {
    error.status().is_some_and(|status| status.code == 500 && status.reason == "InternalError")
}

fn hidden(kind: &Kind, error: RequestError) -> RequestError {
    if kind.is("", "Secret") { error.without_values() } else { error }
}

async fn dry_run(
    ctx: &Downstream,
    path: &str,
    object: &Value,
    overlay: &Overlay<'_>,
) -> Result<Value, RequestError> {
    let body = body::bytes(object, overlay).map_err(RequestError::Unwritable)?;
    let path = format!("{path}?dryRun=All&fieldManager={}&force=true", keys::FIELD_MANAGER);
    ctx.server.patch(&path, APPLY, body).await
}

/// Whether the lists of a group's kinds have the merge keys of Kubernetes' own.
fn k8s_group(group: &str) -> bool {
    group != "apiextensions.k8s.io" && (!group.contains('.') || group.ends_with(".k8s.io"))
}

fn completed_name(name: &str) -> String {
    let room = NAME_LIMIT - COMPLETED.len();
    let end = name.char_indices().map(|(at, _)| at).take_while(|at| *at <= room).last().unwrap_or(0);
    let start = if name.len() <= room { name } else { &name[..end] };
    format!("{}{COMPLETED}", start.trim_end_matches(['.', '-']))
}

fn scales(patch: Option<&Value>) -> bool {
    patch.is_some_and(|patch| patch.pointer("/spec/replicas").is_some())
}

/// Who owns the first field of a patch, else who wrote last, of all but ourselves.
fn manager_of(patch: &Value, entries: Option<&Value>) -> Option<String> {
    let others = || {
        let entries = entries.and_then(Value::as_array).into_iter().flatten();
        entries.filter(|entry| {
            entry["manager"] != keys::FIELD_MANAGER
                && entry["subresource"].as_str().unwrap_or_default() != "status"
        })
    };
    let owner = others().find(|entry| owns(&entry["fieldsV1"], patch));
    let last = || others().max_by_key(|entry| entry["time"].as_str().unwrap_or_default().to_owned());
    owner.or_else(last)?["manager"].as_str().map(str::to_owned)
}

/// Whether a set of fields reaches as deep into the patch as maps go.
fn owns(fields: &Value, patch: &Value) -> bool {
    let Some(map) = patch.as_object().filter(|map| !map.is_empty()) else { return true };
    map.iter().any(|(key, value)| fields.get(format!("f:{key}")).is_some_and(|inner| owns(inner, value)))
}

#[cfg(test)]
#[path = "drift_tests.rs"]
mod tests;
