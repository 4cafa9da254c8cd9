// SPDX-License-Identifier: Apache-2.0
//! `fleet.yaml`: the options of a bundle folder.
//!
//! Its keys are those of a Bundle's spec and a few more. A key nobody knows is an error that names it, since a
//! misspelt option would silently deploy something else; keys only Fleet's controller acts on are reported.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{error::CliError, yaml};
use crate::api::{BundleSpec, crds, null_default};

/// Keys Fleet knows whose meaning needs a controller, several clusters or a git repository.
const CONTROLLERS_KEYS: [&str; 8] = [
    "annotations",
    "imageScans",
    "overrideTargets",
    "rolloutStrategy",
    "targetCustomizationMode",
    "targetCustomizations",
    "targetRestrictions",
    "targets",
];

/// Keys beside those of a Bundle's spec.
const OWN_KEYS: [&str; 2] = ["name", "labels"];

/// Keys of a Bundle's spec that Fleet fills in itself; in a `fleet.yaml` they are a mistake.
const INTERNAL_KEYS: [&str; 4] = ["resources", "contentsId", "helmOpOptions", "valuesHash"];

/// A folder's options.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetYaml {
    /// The bundle's name; empty: the folder's.
    pub name: String,
    /// The bundle's labels.
    pub labels: BTreeMap<String, String>,
    /// Options, dependencies, paused.
    pub spec: BundleSpec,
    /// Keys that were read and have no meaning here.
    pub ignored: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Own {
    #[serde(deserialize_with = "null_default")]
    name: String,
    #[serde(deserialize_with = "null_default")]
    labels: BTreeMap<String, String>,
}

/// Reads the text of a `fleet.yaml`; `what` names it in errors.
pub fn parse(text: &str, what: &str) -> Result<FleetYaml, CliError> {
    let mut document = yaml::document(text, what)?;
    let Some(keys) = document.as_object_mut() else {
        return Err(CliError::Refused(format!("{what} is not a map")));
    };
    let mut own = serde_json::Map::new();
    for key in OWN_KEYS {
        own.extend(keys.remove_entry(key));
    }
    let ignored: Vec<_> =
        CONTROLLERS_KEYS.iter().filter(|key| keys.remove(**key).is_some()).map(ToString::to_string).collect();
    if let Some(key) = INTERNAL_KEYS.iter().find(|key| keys.contains_key(**key)) {
        return Err(CliError::Refused(format!("{what}: {key} is set by Fleet itself, not in a fleet.yaml")));
    }
    if let Some(unknown) = first_unknown(&document, &bundle_spec_schema(), "") {
        return Err(CliError::Refused(format!("{what}: unknown key {unknown}")));
    }
    let form = |source| CliError::Form { what: what.to_owned(), source };
    let own: Own = serde_json::from_value(Value::Object(own)).map_err(form)?;
    let spec: BundleSpec = serde_json::from_value(document).map_err(form)?;
    Ok(FleetYaml { name: own.name, labels: own.labels, spec, ignored })
}

fn bundle_spec_schema() -> Value {
    let schema = crds::all()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "Bundle")
        .and_then(|crd| crd.spec.versions.into_iter().next()?.schema?.open_api_v3_schema);
    serde_json::to_value(schema).unwrap_or_default()["properties"]["spec"].take()
}

/// The path of the first key the schema does not have, with a hint if only its case is wrong.
fn first_unknown(value: &Value, schema: &Value, path: &str) -> Option<String> {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(at, item)| first_unknown(item, &schema["items"], &format!("{path}[{at}]"))),
        Value::Object(keys) if schema["x-kubernetes-preserve-unknown-fields"] != true => {
            let additional = &schema["additionalProperties"];
            let known = schema["properties"].as_object();
            keys.iter().find_map(|(key, value)| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                if let Some(schema) = known.and_then(|known| known.get(key)) {
                    return first_unknown(value, schema, &path);
                }
                if additional.is_object() {
                    return first_unknown(value, additional, &path);
                }
                let meant = known.into_iter().flatten().find(|(name, _)| name.eq_ignore_ascii_case(key));
                Some(match meant {
                    Some((name, _)) => format!("{path} (meant {name}?)"),
                    None => path,
                })
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_empty_files_are_fine() {
        assert_eq!(parse("", "fleet.yaml").unwrap(), FleetYaml::default());
        let read = parse(
            "name: web\nlabels: {team: a}\ndefaultNamespace: shop\npaused: yes\n\
             helm: {releaseName: r, values: {any: {thing: 1}}, timeoutSeconds: 60}\n\
             dependsOn:\n- name: db\n  acceptedStates: [Ready]\n\
             diff: {comparePatches: [{kind: Service, operations: [{op: remove, path: /x}]}]}\n\
             namespaceLabels: {any: label}\nignore: {conditions: [{type: Active}]}\n",
            "fleet.yaml",
        )
        .unwrap();
        assert_eq!(read.name, "web");
        assert_eq!(read.labels["team"], "a");
        assert_eq!(read.spec.options.default_namespace, "shop");
        assert!(read.spec.paused);
        assert_eq!(read.spec.depends_on[0].name, "db");
        assert_eq!(read.spec.options.helm.unwrap().timeout_seconds, 60);
        assert!(read.ignored.is_empty());
    }

    #[test]
    fn unknown_keys_are_errors_that_name_them() {
        for (text, named) in [
            ("defaultNamespce: x", "unknown key defaultNamespce"),
            ("defaultnamespace: x", "unknown key defaultnamespace (meant defaultNamespace?)"),
            ("helm: {releasename: x}", "unknown key helm.releasename (meant releaseName?)"),
            ("dependsOn: [{name: a}, {nme: b}]", "unknown key dependsOn[1].nme"),
            ("resources: []", "resources is set by Fleet itself, not in a fleet.yaml"),
        ] {
            let error = parse(text, "fleet.yaml").unwrap_err();
            assert_eq!(error.to_string(), format!("fleet.yaml: {named}"));
        }
    }

    #[test]
    fn keys_of_the_controller_are_reported_whatever_is_in_them() {
        let read =
            parse("targets: [{anything: 1}]\nimageScans: []\ntargetCustomizations: []\n", "f").unwrap();
        assert_eq!(read.ignored, ["imageScans", "targetCustomizations", "targets"]);
        assert_eq!(read.spec, BundleSpec::default());
    }

    #[test]
    fn a_wrong_form_is_an_error() {
        assert!(matches!(parse("paused: 7", "f"), Err(CliError::Form { .. })));
        assert!(matches!(parse("- a", "f"), Err(CliError::Refused(_))));
    }
}
