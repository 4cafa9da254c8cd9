// SPDX-License-Identifier: Apache-2.0
//! `dependsOn`: a bundle waits until others are in an accepted state.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::api::{self, BundleDeployment, keys};

/// Checks the dependencies of `object` among all BundleDeployments of its namespace.
///
/// The texts are those of Fleet's agent, since people and tools search for them.
pub fn check<'a>(
    object: &BundleDeployment,
    all: impl Iterator<Item = &'a BundleDeployment> + Clone,
) -> Result<(), String> {
    let mut waiting = Vec::new();
    for dependency in &object.spec.depends_on {
        let mut selector = dependency.selector.clone().unwrap_or_default();
        if !dependency.name.is_empty() {
            let labels = selector.match_labels.get_or_insert_default();
            labels.insert(keys::BUNDLE_NAME.into(), dependency.name.clone());
            labels.insert(keys::BUNDLE_NAMESPACE.into(), object.label(keys::BUNDLE_NAMESPACE).into());
        } else if dependency.selector.is_none() {
            continue;
        }
        let mut found = false;
        for other in all.clone().filter(|other| matches(&selector, other.metadata.labels.as_ref())) {
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
                text(&selector),
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

fn matches(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let empty = BTreeMap::new();
    let labels = labels.unwrap_or(&empty);
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|rule| {
            let value = labels.get(&rule.key);
            let listed = value.is_some_and(|value| rule.values.iter().flatten().any(|one| one == value));
            match rule.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

fn text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let rules = selector.match_expressions.iter().flatten().map(|rule| {
        let values = rule.values.iter().flatten().cloned().collect::<Vec<_>>().join(",");
        match rule.operator.as_str() {
            "Exists" => rule.key.clone(),
            "DoesNotExist" => format!("!{}", rule.key),
            operator => format!("{} {} ({values})", rule.key, operator.to_lowercase()),
        }
    });
    labels.chain(rules).collect::<Vec<_>>().join(",")
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
