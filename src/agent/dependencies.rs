// SPDX-License-Identifier: Apache-2.0
//! `dependsOn`: a bundle waits until others are in an accepted state.

use std::collections::BTreeMap;

use crate::api::{self, BundleDeployment, keys, selector};

/// Checks the dependencies of `object` among all BundleDeployments of its namespace.
///
/// The texts are those of Fleet's agent, since people and tools search for them.
pub fn check<'a>(
    object: &BundleDeployment,
    all: impl Iterator<Item = &'a BundleDeployment> + Clone,
) -> Result<(), String> {
    let (mut waiting, none) = (Vec::new(), BTreeMap::new());
    for dependency in &object.spec.depends_on {
        let mut wanted = dependency.selector.clone().unwrap_or_default();
        if !dependency.name.is_empty() {
            let labels = wanted.match_labels.get_or_insert_default();
            labels.insert(keys::BUNDLE_NAME.into(), dependency.name.clone());
            labels.insert(keys::BUNDLE_NAMESPACE.into(), object.label(keys::BUNDLE_NAMESPACE).into());
        } else if dependency.selector.is_none() {
            continue;
        }
        let mut found = false;
        for other in all
            .clone()
            .filter(|other| selector::matches(&wanted, other.metadata.labels.as_ref().unwrap_or(&none)))
        {
            found = true;
            let state = api::state::state(other).as_str();
            let accepted = if dependency.accepted_states.is_empty() {
                state == "Ready"
            } else {
                dependency.accepted_states.iter().any(|accepted| accepted == state)
            };
            if !accepted {
                waiting.push(other.metadata.name.clone().unwrap_or_default());
            }
        }
        if !found {
            return Err(format!(
                "list bundledeployments: no bundles matching labels {} in namespace {}",
                selector::text(&wanted),
                object.label(keys::BUNDLE_NAMESPACE)
            ));
        }
    }
    waiting.sort();
    waiting.dedup();
    if waiting.is_empty() {
        return Ok(());
    }
    Err(format!("dependent bundle(s) are not ready: [{}]", waiting.join(" ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bd(name: &str, ready: bool, depends: serde_json::Value) -> BundleDeployment {
        serde_json::from_value(json!({
            "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
            "metadata": {"name": name, "labels": {
                keys::BUNDLE_NAME: name, keys::BUNDLE_NAMESPACE: "fleet-default", "tier": "base",
            }},
            "spec": {"deploymentID": "s:1", "stagedDeploymentID": "s:1", "dependsOn": depends},
            "status": {"appliedDeploymentID": "s:1", "ready": ready, "nonModified": true},
        }))
        .unwrap()
    }

    #[test]
    fn a_bundle_waits_for_those_it_names_and_those_it_selects() {
        let all = [bd("base", false, json!([])), bd("db", true, json!([])), bd("net", false, json!([]))];
        let check = |depends| check(&bd("app", false, depends), all.iter());
        assert_eq!(check(json!([])), Ok(()));
        assert_eq!(check(json!([{"name": "db"}])), Ok(()));
        assert_eq!(
            check(json!([{"name": "net"}, {"name": "base"}])).unwrap_err(),
            "dependent bundle(s) are not ready: [base net]"
        );
        assert_eq!(check(json!([{"name": "base", "acceptedStates": ["NotReady"]}])), Ok(()));
        let select = json!([{"selector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["base"]}]}}]);
        assert!(check(select).unwrap_err().ends_with("[base net]"));
        assert_eq!(
            check(json!([{"name": "gone"}])).unwrap_err(),
            "list bundledeployments: no bundles matching labels \
             fleet.cattle.io/bundle-name=gone,fleet.cattle.io/bundle-namespace=fleet-default \
             in namespace fleet-default"
        );
    }
}
