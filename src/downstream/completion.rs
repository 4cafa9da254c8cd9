// SPDX-License-Identifier: Apache-2.0
//! Objects that run to an end, Jobs and Pods, and objects that go away: waited for with a watch on the one object.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use kube::{
    Api,
    core::DynamicObject,
    runtime::wait::{Condition, await_condition},
};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    Downstream,
    kinds::Kind,
    objects::{Place, group_of, namespace_of},
};
use crate::{render::Object, telemetry::chain};

/// A watch that broke is begun anew after this long.
const AGAIN: Duration = Duration::from_secs(1);

/// How an object that runs to an end stands. The texts are Helm's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It ended well.
    Done,
    /// It ended badly.
    Failed(String),
    /// It did not end.
    Running(String),
}

/// Why a wait did not end as hoped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// Helm's words. `late` says that the time ran out.
    #[error(
        "resource {object} not ready. status: {status}, message: {message}{}",
        if *.late { "\ncontext deadline exceeded" } else { "" }
    )]
    NotDone {
        /// `Kind/namespace/name`.
        object: String,
        /// `Failed`, `InProgress` or `NotFound`.
        status: &'static str,
        /// How it stands.
        message: String,
        /// The time ran out.
        late: bool,
    },
    /// Helm's words for what does not go away, and what holds it.
    #[error(
        "resource {object} still exists. status: Terminating, message: {held}\ncontext deadline exceeded"
    )]
    StillThere {
        /// `Kind/namespace/name`.
        object: String,
        /// What holds it.
        held: String,
    },
    /// The work was called off.
    #[error("the wait was called off")]
    Cancelled,
}

/// Whether objects of this kind run to an end. All others are done once they are there, as with Helm.
pub fn runs(kind: &Kind) -> bool {
    kind.is("batch", "Job") || kind.is("", "Pod")
}

/// How a Job or Pod stands.
pub fn progress(kind: &Kind, object: &Value) -> Progress {
    let status = &object["status"];
    if kind.is("", "Pod") {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        return match status["phase"].as_str() {
            Some("Succeeded") => Progress::Done,
            Some("Failed") => Progress::Failed(format!("pod {name} failed")),
            _ => Progress::Running("Pod in progress".into()),
        };
    }
    let is_true = |wanted: &str| {
        let conditions = status["conditions"].as_array();
        conditions.into_iter().flatten().any(|it| it["type"] == wanted && it["status"] == "True")
    };
    let number = |value: &Value, absent: i64| value.as_i64().unwrap_or(absent);
    if is_true("Complete") {
        Progress::Done
    } else if is_true("Failed") {
        let parallelism = number(&object["spec"]["parallelism"], 1);
        let completions = number(&object["spec"]["completions"], parallelism);
        Progress::Failed(format!("Job Failed. failed: {}/{completions}", number(&status["failed"], 0)))
    } else {
        Progress::Running("Job in progress".into())
    }
}

/// Waits until every Job among these objects has ended well, for `timeout` at most.
///
/// # Errors
/// The first, in the objects' order, that ended badly, vanished, or did not end in time.
pub async fn jobs_done(
    ctx: &Downstream,
    release_namespace: &str,
    objects: &[Object],
    timeout: Duration,
    cancelled: &CancellationToken,
) -> Result<(), WaitError> {
    let deadline = Instant::now() + timeout;
    for object in objects.iter().filter(|object| is_job(object)) {
        let Some(kind) = ctx.kinds.known(&object.api_version, &object.kind) else { continue };
        let namespace = namespace_of(&kind, &object.namespace, release_namespace);
        let place = Place { kind: &kind, namespace, name: &object.name };
        completed(ctx, &place, None, deadline, cancelled).await?;
    }
    Ok(())
}

/// Whether a rendered object is a Job.
pub fn is_job(object: &Object) -> bool {
    object.kind == "Job" && group_of(&object.api_version) == "batch"
}

/// Waits until the object has ended well; `uid` tells it from one that took its place.
///
/// # Errors
/// It ended badly, vanished, or `deadline` passed.
pub(super) async fn completed(
    ctx: &Downstream,
    place: &Place<'_>,
    uid: Option<&str>,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Result<(), WaitError> {
    let last = Mutex::new(Progress::Running("not seen yet".into()));
    let note = |seen: Progress| *last.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    let ended = |object: Option<&DynamicObject>| {
        let is_it = |object: &&DynamicObject| uid.is_none() || object.metadata.uid.as_deref() == uid;
        let seen = match object.filter(is_it) {
            None => Progress::Failed(String::new()),
            Some(object) => {
                let mut value = object.data.clone();
                value["metadata"] = serde_json::json!({"name": place.name});
                progress(place.kind, &value)
            }
        };
        let over = !matches!(seen, Progress::Running(_));
        note(seen);
        over
    };
    let late = !watched(ctx, place, &ended, deadline, cancelled).await?;
    let seen = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (status, message) = match seen {
        Progress::Done => return Ok(()),
        Progress::Failed(message) if message.is_empty() => ("NotFound", "Resource not found".to_owned()),
        Progress::Failed(message) => ("Failed", message),
        Progress::Running(message) => ("InProgress", message),
    };
    Err(WaitError::NotDone { object: named(place), status, message, late })
}

/// Waits until the object is gone, or another has taken its place.
///
/// # Errors
/// `deadline` passed; what holds it is told.
pub(super) async fn gone(
    ctx: &Downstream,
    place: &Place<'_>,
    uid: &str,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Result<(), WaitError> {
    let held = Mutex::new(String::from("not seen yet"));
    let absent = |object: Option<&DynamicObject>| {
        let Some(object) = object.filter(|object| object.metadata.uid.as_deref() == Some(uid)) else {
            return true;
        };
        let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
        *held.lock().unwrap_or_else(PoisonError::into_inner) = held_by(finalizers);
        false
    };
    if watched(ctx, place, &absent, deadline, cancelled).await? {
        return Ok(());
    }
    let held = held.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Err(WaitError::StillThere { object: named(place), held })
}

/// What keeps a deleted object, for people.
pub(super) fn held_by(finalizers: &[String]) -> String {
    match finalizers {
        [] => "its grace period runs".to_owned(),
        [one] => format!("finalizer {one} holds it"),
        several => format!("finalizers {} hold it", several.join(", ")),
    }
}

/// Watches the object until `condition` holds: true. False: `deadline` passed.
async fn watched(
    ctx: &Downstream,
    place: &Place<'_>,
    condition: &(dyn Fn(Option<&DynamicObject>) -> bool + Sync),
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Result<bool, WaitError> {
    struct Holds<'a>(&'a (dyn Fn(Option<&DynamicObject>) -> bool + Sync));
    impl Condition<DynamicObject> for Holds<'_> {
        fn matches_object(&self, object: Option<&DynamicObject>) -> bool {
            (self.0)(object)
        }
    }
    let client = ctx.server.client().clone();
    let api: Api<DynamicObject> = match place.namespace {
        "" => Api::all_with(client, &place.kind.resource),
        namespace => Api::namespaced_with(client, namespace, &place.kind.resource),
    };
    let wait = async {
        while let Err(error) = await_condition(api.clone(), place.name, Holds(condition)).await {
            debug!(object = %place, cause = chain(&error), "the watch broke and is begun anew");
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::select! {
        () = wait => Ok(true),
        () = cancelled.cancelled() => Err(WaitError::Cancelled),
        () = tokio::time::sleep_until(deadline) => Ok(false),
    }
}

/// As Helm names what it waits for.
fn named(place: &Place<'_>) -> String {
    format!("{}/{}/{}", place.kind.resource.kind, place.namespace, place.name)
}

#[cfg(test)]
mod tests {
    use kube::core::ApiResource;
    use serde_json::json;

    use super::*;

    fn kind(group: &str, kind: &str) -> Kind {
        let resource = ApiResource {
            group: group.into(),
            version: "v1".into(),
            api_version: if group.is_empty() { "v1".into() } else { format!("{group}/v1") },
            kind: kind.into(),
            plural: format!("{}s", kind.to_lowercase()),
        };
        Kind { resource, namespaced: true }
    }

    #[test]
    fn a_job_ends_by_its_conditions_and_a_pod_by_its_phase() {
        let (job, pod) = (kind("batch", "Job"), kind("", "Pod"));
        let condition = |name: &str, status: &str| {
            json!({"spec": {"completions": 3},
                "status": {"failed": 2, "conditions": [{"type": name, "status": status}]}})
        };
        for (kind, object, expected) in [
            (&job, json!({}), Progress::Running("Job in progress".into())),
            (&job, condition("Complete", "True"), Progress::Done),
            (&job, condition("Complete", "False"), Progress::Running("Job in progress".into())),
            (&job, condition("FailureTarget", "True"), Progress::Running("Job in progress".into())),
            (&job, condition("Failed", "True"), Progress::Failed("Job Failed. failed: 2/3".into())),
            (&pod, json!({"status": {"phase": "Running"}}), Progress::Running("Pod in progress".into())),
            (&pod, json!({"status": {"phase": "Succeeded"}}), Progress::Done),
            (
                &pod,
                json!({"metadata": {"name": "p"}, "status": {"phase": "Failed"}}),
                Progress::Failed("pod p failed".into()),
            ),
        ] {
            assert_eq!(progress(kind, &object), expected, "{object}");
        }
        assert!(runs(&job) && runs(&pod) && !runs(&kind("", "ConfigMap")) && !runs(&kind("x.io", "Job")));
    }

    #[test]
    fn what_holds_a_deleted_object_is_named() {
        assert_eq!(held_by(&["a/b".into()]), "finalizer a/b holds it");
        assert_eq!(held_by(&["a".into(), "b".into()]), "finalizers a, b hold it");
        assert_eq!(held_by(&[]), "its grace period runs");
    }
}
