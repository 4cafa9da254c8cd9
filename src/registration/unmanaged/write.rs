// SPDX-License-Identifier: Apache-2.0
//! Writes and deletes of single objects, each in exactly the version that was read.

use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, TypeMeta},
    core::GroupVersionKind,
    discovery::ApiResource,
};
use serde_json::Value;

use super::UnmanagedError;
use crate::downstream::apply::CREATE_ONLY;

/// Who writes, in the objects' own records of their writers.
const MANAGER: &str = "flotilla-register";
/// Others may write the same object: how often a write that met one of theirs begins anew.
const TRIES: usize = 5;

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is new.
    Created,
    /// It is different now.
    Configured,
    /// It was so already.
    Unchanged,
    /// It is gone, or on its way.
    Deleted,
}

/// An object and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Kind, namespace and name; never its contents.
    pub object: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// Whether an object that is already there is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// It becomes as given, in the given fields.
    Apply,
    /// It stays as it is: somebody else's, or shared.
    Create,
}

/// `Kind namespace/name`.
pub(super) fn name_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

/// Server-side apply under uid and version of what was read; `dry_run` writes nothing.
pub(super) async fn put(
    client: &Client,
    object: &Value,
    mode: Mode,
    dry_run: bool,
) -> Result<Done, UnmanagedError> {
    let what = name_of(object);
    let done = |outcome| Ok(Done { object: what.clone(), outcome });
    let (api, name) = api(client, object)?;
    for _ in 0..TRIES {
        let live = api.get_opt(&name).await.map_err(failed(object, format!("read {what}")))?;
        let mut wanted = object.clone();
        match &live {
            Some(_) if mode == Mode::Create => return done(Outcome::Unchanged),
            Some(live) => {
                wanted["metadata"]["uid"] = live.metadata.uid.clone().into();
                wanted["metadata"]["resourceVersion"] = live.metadata.resource_version.clone().into();
            }
            None if dry_run => return done(Outcome::Created),
            None => wanted["metadata"]["resourceVersion"] = CREATE_ONLY.into(),
        }
        let mut params = PatchParams::apply(MANAGER).force();
        params.dry_run = dry_run;
        match api.patch(&name, &params, &Patch::Apply(&wanted)).await {
            Ok(after) => {
                return done(match live {
                    None => Outcome::Created,
                    Some(live) if same(&live, &after) => Outcome::Unchanged,
                    Some(_) => Outcome::Configured,
                });
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed(object, format!("apply {what}"))(error)),
        }
    }
    Err(UnmanagedError::Contended { object: what })
}

/// Deletes an object in the version that was read; `None`: it was not there.
pub(super) async fn delete(client: &Client, object: &Value) -> Result<Option<Done>, UnmanagedError> {
    let what = name_of(object);
    let (api, name) = api(client, object)?;
    for _ in 0..TRIES {
        let live = api.get_metadata_opt(&name).await.map_err(failed(object, format!("read {what}")))?;
        let Some(live) = live else { return Ok(None) };
        let preconditions = Preconditions {
            uid: live.metadata.uid.clone(),
            resource_version: live.metadata.resource_version.clone(),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match api.delete(&name, &params).await {
            Ok(_) => return Ok(Some(Done { object: what, outcome: Outcome::Deleted })),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed(object, format!("delete {what}"))(error)),
        }
    }
    Err(UnmanagedError::Contended { object: what })
}

fn api(client: &Client, object: &Value) -> Result<(Api<DynamicObject>, String), UnmanagedError> {
    let form = |source| UnmanagedError::Form { object: name_of(object), source };
    let types: TypeMeta = serde_json::from_value(
        serde_json::json!({"apiVersion": object["apiVersion"], "kind": object["kind"]}),
    )
    .map_err(form)?;
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let api = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    Ok((api, name))
}

/// A dry run changes no version, so that it cannot tell by that.
fn same(before: &DynamicObject, after: &DynamicObject) -> bool {
    before.metadata.resource_version == after.metadata.resource_version
        && before.metadata.labels == after.metadata.labels
        && before.metadata.annotations == after.metadata.annotations
        && before.data == after.data
}

fn failed(object: &Value, doing: String) -> Box<dyn FnOnce(kube::Error) -> UnmanagedError> {
    if object["kind"] == "Secret" {
        Box::new(UnmanagedError::secret(doing))
    } else {
        Box::new(UnmanagedError::request(doing))
    }
}
