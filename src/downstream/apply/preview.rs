// SPDX-License-Identifier: Apache-2.0
//! What an apply would do, asked of the API server by a dry run: defaults, webhooks and quotas have their say, nothing
//! is stored. So no claim is needed, and no fence.
//!
//! Field ownership that a real apply would first take over from a predecessor's *Update* is not: fields that the bundle
//! gave up since then do not show as removed. Nor is a replacement (`helm.force`) told from an apply.

use std::sync::Arc;

use serde_json::Value;

use super::{ApplyError, CREATE_ONLY, Owner, body, body::Overlay, is_defined, kind_of, ownership};
use crate::{
    api::keys,
    downstream::{
        Downstream,
        kinds::{Kind, KindError},
        objects::{Identity, Place, namespace_of},
        release::APPLY,
        scaling::is_delegated,
        server::{LiveMeta, RequestError},
    },
    monitor::Key,
    render::Object,
};

/// Reads and dry runs of one object before it is given up.
const ROUNDS: usize = 4;

/// What an apply of one object would do.
#[derive(Clone, PartialEq)]
pub struct Preview {
    /// `Kind namespace/name`.
    pub object: String,
    /// The live object; `None`: it would be created.
    pub before: Option<Value>,
    /// The object as it would be.
    pub after: Value,
}

/// Asks for one of a bundle's objects. What can only be known once others of them are there (their namespace, their
/// kind) is as the bundle says.
///
/// # Errors
/// What the apply would fail with, as far as a dry run tells.
pub async fn preview(
    ctx: &Downstream,
    owner: &Owner<'_>,
    objects: &[Object],
    object: &Object,
) -> Result<Preview, ApplyError> {
    let kind = match ctx.kinds.resolve(&object.api_version, &object.kind).await {
        Ok(kind) => kind,
        Err(KindError::Unknown { .. }) if is_defined(object, objects) => {
            let place = if object.namespace.is_empty() { owner.namespace } else { &object.namespace };
            let named = format!("{} {place}/{}", object.kind, object.name);
            return Ok(Preview { object: named, before: None, after: object.value.clone() });
        }
        Err(source) => {
            let (namespace, name) = (object.namespace.clone(), object.name.clone());
            return Err(ApplyError::Kind { namespace, name, source });
        }
    };
    let namespace = namespace_of(&kind, &object.namespace, owner.namespace);
    let place = Place { kind: &kind, namespace, name: &object.name };
    let listed = owner.previous.contains(&Identity::of(object, &ctx.kinds, owner.namespace));
    for _ in 0..ROUNDS {
        let before = live(ctx, &place).await?;
        if let Some(live) = &before
            && let Some(reason) = ownership::refusal(&meta(live), object, &place, owner, listed)
        {
            let operation = if owner.upgrade { "update" } else { "install" };
            return Err(ApplyError::Foreign { operation, object: title(&place), reason });
        }
        match dry_run(ctx, Some((owner.name, owner.namespace)), object, &place, before.as_ref()).await {
            Ok(after) => return Ok(Preview { object: title(&place), before, after }),
            Err(source) if source.is_missing_namespace(namespace) && before.is_none() => {
                return Ok(Preview { object: title(&place), before, after: object.value.clone() });
            }
            // Changed since it was read.
            Err(source) if source.is_conflict() && !source.is_field_conflict() => {}
            Err(source) => {
                return Err(ApplyError::Refused { object: place.to_string(), source: hidden(&kind, source) });
            }
        }
    }
    Err(ApplyError::Busy { object: place.to_string() })
}

/// Asks for an object of `crds/`: as a first install makes it where it is absent, else as it would be if it were applied,
/// which nothing does.
///
/// # Errors
/// The cluster cannot be asked.
pub async fn preview_crd(ctx: &Downstream, crd: &Object) -> Result<Preview, ApplyError> {
    let kind = kind_of(ctx, crd).await?;
    let namespace = if kind.namespaced { crd.namespace.as_str() } else { "" };
    let place = Place { kind: &kind, namespace, name: &crd.name };
    let before = live(ctx, &place).await?;
    match dry_run(ctx, None, crd, &place, before.as_ref()).await {
        Ok(after) => Ok(Preview { object: title(&place), before, after }),
        Err(source) => Err(ApplyError::Refused { object: place.to_string(), source }),
    }
}

/// The live object at a place; `None` when there is none.
async fn live(ctx: &Downstream, place: &Place<'_>) -> Result<Option<Value>, ApplyError> {
    match ctx.server.get::<Value>(&place.path()).await {
        Ok(live) => Ok(Some(live)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(source) => Err(ApplyError::Read { object: place.to_string(), source }),
    }
}

async fn dry_run(
    ctx: &Downstream,
    release: Option<(&str, &str)>,
    object: &Object,
    place: &Place<'_>,
    before: Option<&Value>,
) -> Result<Value, RequestError> {
    let meta = before.map(meta);
    let leave_replicas = match (&meta, before) {
        (Some(meta), Some(live)) if ownership::is_autoscaled(meta) => {
            let key = Key::new(&object.api_version, &object.kind, place.namespace, place.name);
            is_delegated(ctx, &key, live).await?.unwrap_or(true)
        }
        _ => false,
    };
    let overlay = Overlay {
        release,
        // The live one: a stamp is no change.
        stamp: meta
            .as_ref()
            .and_then(|meta| meta.annotations.get(keys::EPOCH_ANNOTATION))
            .map(String::as_str),
        uid: meta.as_ref().map(|meta| meta.uid.as_str()),
        resource_version: meta.as_ref().map_or(CREATE_ONLY, |meta| meta.resource_version.as_str()),
        namespace: place.namespace,
        leave_replicas,
    };
    let body = body::bytes(&object.value, &overlay).map_err(RequestError::Unwritable)?;
    let path = format!(
        "{}?fieldManager={}&force=true&fieldValidation=Strict&dryRun=All",
        place.path(),
        keys::FIELD_MANAGER
    );
    ctx.server.patch(&path, APPLY, body).await
}

fn meta(live: &Value) -> LiveMeta {
    serde_json::from_value(live["metadata"].clone()).unwrap_or_default()
}

fn hidden(kind: &Arc<Kind>, source: RequestError) -> RequestError {
    if kind.is("", "Secret") { source.without_values() } else { source }
}

fn title(place: &Place<'_>) -> String {
    let kind = &place.kind.resource.kind;
    if place.namespace.is_empty() {
        format!("{kind} {}", place.name)
    } else {
        format!("{kind} {}/{}", place.namespace, place.name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;
    use crate::downstream::{
        kinds::KindCache,
        testing::{Exchange, context, discovery, scripted},
    };

    const PATH: &str = "/api/v1/namespaces/ns/configmaps/c";

    fn object() -> Object {
        Object {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: String::new(),
            name: "c".into(),
            value: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}),
        }
    }

    async fn asked(exchanges: Vec<Exchange>) -> Result<Preview, ApplyError> {
        let mut all = discovery(&[]);
        all.extend(exchanges);
        let (server, script) = scripted(all);
        let kinds = KindCache::new(server.clone());
        let ctx = Downstream { kinds, ..context(server) };
        let previous = HashSet::new();
        let owner = Owner {
            namespace: "ns",
            name: "app",
            upgrade: false,
            replace: false,
            take_ownership: false,
            overwrites: &[],
            previous: &previous,
        };
        let result = preview(&ctx, &owner, &[], &object()).await;
        script.finished().await;
        result
    }

    fn dry() -> Exchange {
        Exchange::patch(&format!(
            "{PATH}?fieldManager=fleetagent&force=true&fieldValidation=Strict&dryRun=All"
        ))
    }

    fn live(release: &str) -> Value {
        json!({"metadata": {"name": "c", "namespace": "ns", "uid": "x", "resourceVersion": "7",
            "labels": {keys::MANAGED_BY: "Helm"},
            "annotations": {keys::RELEASE_NAME: release, keys::RELEASE_NAMESPACE: "ns", keys::EPOCH_ANNOTATION: "u/5"}}})
    }

    #[tokio::test]
    async fn a_live_object_is_compared_under_its_own_stamp_and_version_and_never_stored() {
        let exchanges = vec![
            Exchange::get(PATH).answers(live("app")),
            dry().conflicts(),
            Exchange::get(PATH).answers(live("app")),
            dry()
                .expecting(|sent| {
                    assert_eq!(sent["metadata"]["resourceVersion"], "7");
                    assert_eq!(sent["metadata"]["uid"], "x");
                    assert_eq!(sent["metadata"]["annotations"][keys::EPOCH_ANNOTATION], "u/5");
                })
                .answers(json!({"after": true})),
        ];
        let seen = asked(exchanges).await.unwrap();
        assert_eq!(
            (&*seen.object, seen.before, seen.after),
            ("ConfigMap ns/c", Some(live("app")), json!({"after": true}))
        );
    }

    #[tokio::test]
    async fn what_is_not_there_is_created_also_in_a_namespace_still_to_come() {
        let create = || dry().expecting(|sent| assert_eq!(sent["metadata"]["resourceVersion"], CREATE_ONLY));
        let exchanges = vec![Exchange::get(PATH).missing(), create().answers(json!({"new": true}))];
        assert_eq!(asked(exchanges).await.unwrap().after, json!({"new": true}));
        let no_namespace = create().refuses(404, "NotFound", "namespaces \"ns\" not found");
        let seen = asked(vec![Exchange::get(PATH).missing(), no_namespace]).await.unwrap();
        assert_eq!((seen.before, seen.after), (None, object().value));
    }

    #[tokio::test]
    async fn what_belongs_to_another_release_is_told_as_the_apply_would() {
        let error = asked(vec![Exchange::get(PATH).answers(live("other"))]).await.err().unwrap();
        assert!(matches!(error, ApplyError::Foreign { .. }), "{error}");
    }
}
