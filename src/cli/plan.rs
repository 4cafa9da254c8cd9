// SPDX-License-Identifier: Apache-2.0
//! From a Bundle to the two objects an agent needs: the Content with its files and the BundleDeployment. Pure.
//!
//! What Fleet's controller would write for a cluster that one plain target matches, less what only it can keep up:
//! the finalizer (nobody would remove it) and the values Secret (values stay inline).

use std::collections::BTreeMap;

use kube::api::ObjectMeta;

use super::error::CliError;
use crate::api::{
    Bundle, BundleDeployment, BundleDeploymentSpec, Content, keys,
    manifest::{Manifest, options_hash},
    state::State,
};

/// Labels of a BundleDeployment that name its Cluster.
pub const CLUSTER_LABELS: [&str; 2] = ["fleet.cattle.io/cluster", "fleet.cattle.io/cluster-namespace"];

/// Label of everything that Fleet made.
const MANAGED: &str = "fleet.cattle.io/managed";

/// What is added to a Bundle on the command line.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// The cluster namespace.
    pub namespace: String,
    /// Replaces the bundle's name.
    pub name: Option<String>,
    /// Win over the bundle's labels.
    pub labels: Vec<(String, String)>,
    /// Pauses it.
    pub paused: bool,
}

/// The objects to write: the Content first.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The files.
    pub content: Content,
    /// What is to be deployed.
    pub bundle_deployment: BundleDeployment,
}

/// Makes the objects of a bundle.
pub fn plan(bundle: &Bundle, additions: &Additions) -> Result<Plan, CliError> {
    let given = additions.name.as_ref().or(bundle.metadata.name.as_ref()).filter(|name| !name.is_empty());
    let name = given.ok_or_else(|| CliError::Refused("a bundle has no name; use --name".to_owned()))?.clone();
    check(bundle, &name)?;
    let spec = &bundle.spec;
    let content = Manifest { resources: spec.resources.clone() }.to_content();
    let content_name = content.metadata.name.clone().unwrap_or_default();
    let deployment_id = format!("{content_name}:{}", options_hash(&spec.options));
    let mut labels = inherited(bundle, additions);
    let bundle_namespace = bundle.metadata.namespace.clone().unwrap_or_else(|| additions.namespace.clone());
    for (key, value) in [
        (keys::BUNDLE_NAME, name.clone()),
        (keys::BUNDLE_NAMESPACE, bundle_namespace),
        (keys::CONTENT_NAME, content_name),
        (MANAGED, "true".to_owned()),
    ] {
        labels.insert(key.to_owned(), value);
    }
    let bundle_deployment = BundleDeployment {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(additions.namespace.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: BundleDeploymentSpec {
            paused: spec.paused || additions.paused,
            staged_options: Some(spec.options.clone()),
            staged_deployment_id: deployment_id.clone(),
            options: Some(spec.options.clone()),
            deployment_id,
            depends_on: spec.depends_on.clone(),
            correct_drift: spec.options.correct_drift.clone(),
            ..BundleDeploymentSpec::default()
        },
        status: None,
    };
    Ok(Plan { content, bundle_deployment })
}

/// A bundle's own labels as they are passed on: tools' bookkeeping stays behind, Fleet's own keys go along.
fn inherited(bundle: &Bundle, additions: &Additions) -> BTreeMap<String, String> {
    let passes = |key: &str| {
        key.starts_with("fleet.cattle.io/")
            || !(key.starts_with("kubectl.kubernetes.io/") || key.contains("cattle.io"))
    };
    let own = bundle.metadata.labels.iter().flatten().filter(|(key, _)| passes(key));
    own.map(|(key, value)| (key.clone(), value.clone())).chain(additions.labels.iter().cloned()).collect()
}

fn check(bundle: &Bundle, name: &str) -> Result<(), CliError> {
    let refused = |text: String| Err(CliError::Refused(format!("bundle {name}: {text}")));
    let spec = &bundle.spec;
    for (key, given) in [
        ("contentsId", !spec.contents_id.is_empty()),
        ("helmOpOptions", spec.helm_op_options.is_some()),
        ("valuesHash", !spec.values_hash.is_empty()),
    ] {
        if given {
            return refused(format!(
                "{key} is set, so its contents are not in the Bundle; a Fleet controller must deploy it"
            ));
        }
    }
    for (at, dependency) in spec.depends_on.iter().enumerate() {
        if dependency.name.is_empty() && dependency.selector.is_none() {
            return refused(format!("dependsOn[{at}] has neither name nor selector"));
        }
        if let Some(strange) = dependency.accepted_states.iter().find(|state| state.parse::<State>().is_err())
        {
            let known = State::ALL.map(State::as_str).join(", ");
            return refused(format!("dependsOn[{at}].acceptedStates: {strange:?} is none of {known}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn bundle(spec: Value) -> Bundle {
        serde_json::from_value(json!({
            "apiVersion": "fleet.cattle.io/v1alpha1",
            "kind": "Bundle",
            "metadata": {"name": "web", "labels": {
                "team": "a",
                "fleet.cattle.io/commit": "abc",
                "objectset.rio.cattle.io/hash": "x",
                "kubectl.kubernetes.io/x": "x",
            }},
            "spec": spec,
        }))
        .unwrap()
    }

    fn additions() -> Additions {
        Additions { namespace: "cluster-ns".into(), ..Additions::default() }
    }

    #[test]
    fn a_bundle_becomes_what_fleets_controller_would_write() {
        let bundle = bundle(json!({
            "resources": [{"name": "foo", "content": "bar"}],
            "defaultNamespace": "shop",
            "correctDrift": {"enabled": true},
            "dependsOn": [{"name": "db", "acceptedStates": ["Ready", "Modified"]}],
        }));
        let plan = plan(&bundle, &additions()).unwrap();
        let id = "s-b538e5004002a3ba4700d90b52d258f575e288e584c03e0e301f2032e937f";
        assert_eq!(plan.content.metadata.name.as_deref(), Some(id));
        let deployment = format!("{id}:{}", options_hash(&bundle.spec.options));
        assert_eq!(
            serde_json::to_value(&plan.bundle_deployment).unwrap(),
            json!({
                "apiVersion": "fleet.cattle.io/v1alpha1",
                "kind": "BundleDeployment",
                "metadata": {
                    "name": "web",
                    "namespace": "cluster-ns",
                    "labels": {
                        "team": "a",
                        "fleet.cattle.io/bundle-name": "web",
                        "fleet.cattle.io/bundle-namespace": "cluster-ns",
                        "fleet.cattle.io/commit": "abc",
                        "fleet.cattle.io/content-name": id,
                        "fleet.cattle.io/managed": "true",
                    },
                },
                "spec": {
                    "deploymentID": deployment,
                    "stagedDeploymentID": deployment,
                    "options": {"defaultNamespace": "shop", "correctDrift": {"enabled": true}},
                    "stagedOptions": {"defaultNamespace": "shop", "correctDrift": {"enabled": true}},
                    "correctDrift": {"enabled": true},
                    "dependsOn": [{"name": "db", "acceptedStates": ["Ready", "Modified"]}],
                },
            })
        );
    }

    #[test]
    fn the_command_line_adds_and_overrides() {
        let additions = Additions {
            name: Some("other".into()),
            labels: vec![("team".into(), "b".into())],
            paused: true,
            ..additions()
        };
        let bd = plan(&bundle(json!({})), &additions).unwrap().bundle_deployment;
        assert_eq!(bd.metadata.name.as_deref(), Some("other"));
        assert_eq!((bd.label("team"), bd.label(keys::BUNDLE_NAME)), ("b", "other"));
        assert!(bd.spec.paused);
    }

    #[test]
    fn the_id_changes_with_files_and_options_only() {
        let id = |spec| plan(&bundle(spec), &additions()).unwrap().bundle_deployment.spec.deployment_id;
        let plain = id(json!({"resources": [{"name": "a", "content": "1"}]}));
        let same = id(
            json!({"resources": [{"name": "a", "content": "1"}], "paused": true, "correctDrift": {"enabled": true}}),
        );
        assert_eq!(plain, same);
        assert_ne!(plain, id(json!({"resources": [{"name": "a", "content": "2"}]})));
        assert_ne!(plain, id(json!({"resources": [{"name": "a", "content": "1"}], "keepResources": true})));
    }

    #[test]
    fn bundles_without_their_contents_are_refused() {
        for spec in [json!({"contentsId": "s-1"}), json!({"helmOpOptions": {}}), json!({"valuesHash": "1"})] {
            let error = plan(&bundle(spec.clone()), &additions()).unwrap_err().to_string();
            assert!(error.starts_with("bundle web: ") && error.contains("Fleet controller"), "{error}");
        }
    }

    #[test]
    fn impossible_dependencies_are_refused() {
        for (spec, said) in [
            (json!({"dependsOn": [{}]}), "bundle web: dependsOn[0] has neither name nor selector"),
            (
                json!({"dependsOn": [{"name": "a"}, {"name": "b", "acceptedStates": ["Fine"]}]}),
                "bundle web: dependsOn[1].acceptedStates: \"Fine\" is none of Ready, NotReady, Pending, OutOfSync, \
                 Modified, WaitApplied, ErrApplied",
            ),
        ] {
            assert_eq!(plan(&bundle(spec), &additions()).unwrap_err().to_string(), said);
        }
        let mut nameless = bundle(json!({}));
        nameless.metadata.name = None;
        assert!(plan(&nameless, &additions()).is_err());
    }
}
