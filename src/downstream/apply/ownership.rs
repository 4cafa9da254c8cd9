// SPDX-License-Identifier: Apache-2.0
//! Whose object is it? An object of another release or bundle is never taken without being told to.
//!
//! Also the one-time move from *Update* to *Apply* ownership of objects that Fleet's agent or Helm created with POST or
//! PUT: without it, a field dropped from the bundle would stay for ever.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::Value;

use super::Owner;
use crate::{
    api::keys,
    downstream::{objects::Place, server::LiveMeta},
    render::Object,
};

/// Managers whose *Update* entries are this product's or its predecessors' own.
const PREDECESSORS: [&str; 2] = [keys::FIELD_MANAGER, "helm"];
/// The manager under which the horizontal autoscaler (and what builds on it) scales.
const AUTOSCALER: &str = "kube-controller-manager";

/// Says, in Helm's words, why a live object may not be taken; `None` when it may.
///
/// `listed` says that an earlier revision of this release has the object: then labels that somebody stripped do not
/// make it foreign, only another owner's do.
pub(super) fn refusal(
    live: &LiveMeta,
    object: &Object,
    place: &Place<'_>,
    owner: &Owner<'_>,
    listed: bool,
) -> Option<String> {
    if owner.take_ownership || is_overwritten(owner, place) {
        return None;
    }
    // The same bundle under another release name: its hash stays.
    let ours = object.value["metadata"]["labels"][keys::HASH_LABEL].as_str();
    let theirs = live.labels.get(keys::HASH_LABEL).map(String::as_str);
    if theirs.is_some_and(|theirs| !theirs.is_empty() && Some(theirs) == ours) {
        return None;
    }
    let unowned = !live.annotations.contains_key(keys::RELEASE_NAME)
        && !live.annotations.contains_key(keys::RELEASE_NAMESPACE);
    if unowned && (listed || is_own_namespace(live, place, owner)) {
        return None;
    }
    let faults = [
        fault("label", keys::MANAGED_BY, live.labels.get(keys::MANAGED_BY), "Helm"),
        fault("annotation", keys::RELEASE_NAME, live.annotations.get(keys::RELEASE_NAME), owner.name),
        fault(
            "annotation",
            keys::RELEASE_NAMESPACE,
            live.annotations.get(keys::RELEASE_NAMESPACE),
            owner.namespace,
        ),
    ];
    let [label, name, namespace] = &faults;
    if (listed || label.is_none()) && name.is_none() && namespace.is_none() {
        return None;
    }
    let faults: Vec<_> = faults.into_iter().flatten().collect();
    Some(format!("invalid ownership metadata; {}", faults.join("; ")))
}

fn fault(sort: &str, key: &str, found: Option<&String>, wanted: &str) -> Option<String> {
    match found {
        Some(found) if found == wanted => None,
        Some(found) => Some(format!(
            "{sort} validation error: key \"{key}\" must equal \"{wanted}\": current value is \"{found}\""
        )),
        None => Some(format!("{sort} validation error: missing key \"{key}\": must be set to \"{wanted}\"")),
    }
}

/// Fleet's controller lists what another bundle just gave up.
fn is_overwritten(owner: &Owner<'_>, place: &Place<'_>) -> bool {
    owner.overwrites.iter().any(|listed| {
        listed.kind == place.kind.resource.kind
            && listed.name == place.name
            && (listed.namespace.is_empty() || listed.namespace == place.namespace)
    })
}

/// The release namespace as the gate made it, which the bundle lists as well. One that a person made is not ours: the
/// bundle's removal would take it along.
fn is_own_namespace(live: &LiveMeta, place: &Place<'_>, owner: &Owner<'_>) -> bool {
    place.kind.is("", "Namespace")
        && place.name == owner.namespace
        && live.managed_fields.iter().any(|entry| {
            entry.manager.as_deref() == Some(keys::FIELD_MANAGER)
                && entry.operation.as_deref() == Some("Apply")
        })
}

/// Whether an autoscaler decides on the replicas: it owns them through the scale subresource.
pub(in crate::downstream) fn is_autoscaled(live: &LiveMeta) -> bool {
    live.managed_fields.iter().any(|entry| {
        entry.subresource.as_deref() == Some("scale")
            && entry.manager.as_deref() == Some(AUTOSCALER)
            && entry.fields_v1.as_ref().is_some_and(|fields| !fields.0["f:spec"]["f:replicas"].is_null())
    })
}

/// The field owners with our predecessors' *Update* entries folded into one *Apply* entry of ours; `None` when there
/// are none.
///
/// An applier has one entry whatever the version, so entries of other versions than it stay as they are.
pub(super) fn folded(entries: &[ManagedFieldsEntry]) -> Option<Vec<ManagedFieldsEntry>> {
    let is_ours = |entry: &ManagedFieldsEntry, operation: &str| {
        entry.operation.as_deref() == Some(operation)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let is_update = |entry: &ManagedFieldsEntry| {
        is_ours(entry, "Update") && entry.manager.as_deref().is_some_and(|name| PREDECESSORS.contains(&name))
    };
    let is_apply = |entry: &ManagedFieldsEntry| {
        is_ours(entry, "Apply") && entry.manager.as_deref() == Some(keys::FIELD_MANAGER)
    };
    let first = entries.iter().position(is_update)?;
    let base = entries.iter().position(is_apply).unwrap_or(first);
    let mut apply = entries[base].clone();
    apply.manager = Some(keys::FIELD_MANAGER.to_owned());
    apply.operation = Some("Apply".to_owned());
    let mut kept = Vec::with_capacity(entries.len());
    let mut moved = base == first;
    for (index, entry) in entries.iter().enumerate() {
        if index == base {
            continue;
        }
        match (&entry.fields_v1, &mut apply.fields_v1) {
            (Some(FieldsV1(more)), Some(FieldsV1(fields)))
                if is_update(entry) && entry.api_version == apply.api_version =>
            {
                unite(fields, more);
                moved = true;
            }
            _ => kept.push(entry.clone()),
        }
    }
    kept.insert(0, apply);
    moved.then_some(kept)
}

/// The union of two field sets: their JSON form is nested maps, whose keys are the set.
fn unite(fields: &mut Value, more: &Value) {
    if let (Value::Object(fields), Value::Object(more)) = (fields, more) {
        for (key, value) in more {
            unite(fields.entry(key.clone()).or_insert_with(|| Value::Object(Default::default())), value);
        }
    }
}

/// The JSON patch that writes folded field owners, if the object is still the one that was read.
pub(super) fn fold_patch(
    live: &LiveMeta,
    folded: &[ManagedFieldsEntry],
) -> Result<Vec<u8>, serde_json::Error> {
    let operation = |op: &'static str, path: &'static str, value: Value| {
        HashMap::from([("op", Value::from(op)), ("path", Value::from(path)), ("value", value)])
    };
    serde_json::to_vec(&[
        operation("test", "/metadata/uid", Value::from(live.uid.as_str())),
        operation("replace", "/metadata/managedFields", serde_json::to_value(folded)?),
        operation("replace", "/metadata/resourceVersion", Value::from(live.resource_version.as_str())),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, version: &str, fields: Value) -> ManagedFieldsEntry {
        serde_json::from_value(json!({"manager": manager, "operation": operation, "apiVersion": version,
            "fieldsType": "FieldsV1", "fieldsV1": fields}))
        .unwrap()
    }

    #[test]
    fn what_helm_or_fleet_posted_becomes_ours_by_apply() {
        let posted = entry("helm", "Update", "v1", json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
        let foreign = entry("kubectl", "Update", "v1", json!({"f:data": {"f:c": {}}}));
        let alone = folded(&[posted.clone(), foreign.clone()]).unwrap();
        assert_eq!(alone.len(), 2);
        assert_eq!(alone[0].manager.as_deref(), Some("fleetagent"));
        assert_eq!(alone[0].operation.as_deref(), Some("Apply"));
        assert_eq!(alone[1], foreign);

        let applied = entry("fleetagent", "Apply", "v1", json!({"f:data": {"f:a": {}, "f:z": {}}}));
        let both = folded(&[posted.clone(), applied.clone()]).unwrap();
        assert_eq!(both.len(), 1);
        let fields = both[0].fields_v1.as_ref().unwrap().0.clone();
        assert_eq!(fields, json!({"f:data": {".": {}, "f:a": {}, "f:b": {}, "f:z": {}}}));

        assert_eq!(folded(&[applied.clone(), foreign]), None);
        let elsewhere = entry("helm", "Update", "v2", json!({"f:data": {}}));
        assert_eq!(folded(&[applied, elsewhere]), None, "another version's field set does not compare");
    }

    #[test]
    fn an_autoscaler_is_told_from_a_person() {
        let mut live = LiveMeta::default();
        for (manager, subresource, expected) in
            [(AUTOSCALER, "scale", true), ("kubectl", "scale", false), (AUTOSCALER, "status", false)]
        {
            let mut owner = entry(manager, "Update", "apps/v1", json!({"f:spec": {"f:replicas": {}}}));
            owner.subresource = Some(subresource.into());
            live.managed_fields = vec![owner];
            assert_eq!(is_autoscaled(&live), expected, "{manager} {subresource}");
        }
    }
}
