// SPDX-License-Identifier: Apache-2.0
//! Bundles with objects of many kinds that can all be changed alike: for what is counted by kind.

use anyhow::Context;
use flotilla::api::CorrectDrift;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::json;

use super::bundles::Bundle;

/// Objects of each bundle: `apiVersion`, kind, resource, and what it has beside its metadata. None needs a controller to
/// be ready; a Service is watched whole, the others by their metadata.
pub const OBJECTS: [(&str, &str, &str, &str); 10] = [
    ("v1", "ConfigMap", "configmaps", "data: {greeting: hello}"),
    ("v1", "ConfigMap", "configmaps", "data: {greeting: hello again}"),
    ("v1", "Secret", "secrets", "data: {word: aGVsbG8=}"),
    ("v1", "Service", "services", "spec: {clusterIP: None, ports: [{port: 80}]}"),
    ("v1", "ServiceAccount", "serviceaccounts", "automountServiceAccountToken: false"),
    ("v1", "LimitRange", "limitranges", "spec: {limits: [{type: Pod, max: {cpu: '4'}}]}"),
    (
        "v1",
        "PodTemplate",
        "podtemplates",
        "template: {spec: {containers: [{name: main, image: example.test/app}]}}",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "Role",
        "roles",
        "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "rolebindings",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}",
    ),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", "spec: {podSelector: {}}"),
];

/// The label that every object has, and that changes are made to.
const LABEL: &str = "tier";
/// Its value as the bundles say.
pub const WANTED: &str = "wanted";

/// The resources of [`OBJECTS`], each once.
pub fn resources() -> Vec<&'static str> {
    let mut resources: Vec<&str> = OBJECTS.iter().map(|(_, _, resource, _)| *resource).collect();
    resources.sort();
    resources.dedup();
    resources
}

/// A bundle with one of each.
pub fn bundle(name: &str, namespace: &str, corrected: bool) -> Bundle {
    let mut text = String::new();
    for (index, (version, kind, _, rest)) in OBJECTS.iter().enumerate() {
        text += &format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {}, labels: {{{LABEL}: {WANTED}}}}}\n{rest}\n---\n",
            object_name(name, index)
        );
    }
    Bundle::new(name, namespace).file("objects.yaml", text).with(|options| {
        options.correct_drift = corrected.then(|| CorrectDrift { enabled: true, ..CorrectDrift::default() });
    })
}

/// The name of a bundle's object.
pub fn object_name(bundle: &str, index: usize) -> String {
    format!("{bundle}-{index}")
}

fn api(client: &Client, bundle: &Bundle, index: usize) -> anyhow::Result<Api<DynamicObject>> {
    let (version, kind, resource, _) = OBJECTS.get(index).context("no such object")?;
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    let kind = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, resource);
    Ok(Api::namespaced_with(client.clone(), bundle.namespace(), &resource))
}

/// Changes an object, as a person does.
pub async fn change(client: &Client, bundle: &Bundle, index: usize, value: &str) -> anyhow::Result<()> {
    let name = object_name(&bundle.name, index);
    let as_person = PatchParams { field_manager: Some("a-person".into()), ..PatchParams::default() };
    let patch = json!({"metadata": {"labels": {LABEL: value}}});
    let changed = api(client, bundle, index)?.patch(&name, &as_person, &Patch::Merge(&patch)).await;
    changed.map(drop).with_context(|| format!("changing {name}"))
}

/// What the label of an object says now.
pub async fn value(client: &Client, bundle: &Bundle, index: usize) -> anyhow::Result<String> {
    let live = api(client, bundle, index)?.get_metadata(&object_name(&bundle.name, index)).await?;
    Ok(live.metadata.labels.unwrap_or_default().remove(LABEL).unwrap_or_default())
}
