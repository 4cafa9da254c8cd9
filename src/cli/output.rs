// SPDX-License-Identifier: Apache-2.0
//! Objects as text, as kubectl prints them.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use super::{error::CliError, yaml};
use crate::api::BundleDeployment;

/// Forms in which objects are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// YAML documents.
    Yaml,
    /// One JSON document.
    Json,
    /// `resource.group/name`, one a line.
    Name,
}

/// `Kind namespace/name`.
pub fn place(kind: &str, namespace: &str, name: &str) -> String {
    match namespace {
        "" => format!("{kind} {name}"),
        namespace => format!("{kind} {namespace}/{name}"),
    }
}

/// Writes text; a closed pipe is told apart later.
pub fn write(out: &mut dyn Write, text: &str) -> Result<(), CliError> {
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Writes objects. As one JSON document, or as YAML when `list`, several become a `List`.
pub fn objects<T: Serialize>(
    out: &mut dyn Write,
    objects: &[T],
    form: Form,
    list: bool,
) -> Result<(), CliError> {
    let mut values = Vec::with_capacity(objects.len());
    for object in objects {
        let mut value = serde_json::to_value(object).map_err(|error| CliError::Print(Box::new(error)))?;
        // Bookkeeping of the server that fills the screen; kubectl leaves it out, too.
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        values.push(value);
    }
    let text = match form {
        Form::Name => values.iter().map(|value| reference(value) + "\n").collect(),
        Form::Yaml if !list => documents(&values)?,
        Form::Yaml => yaml::text(&one_or_list(values))?,
        Form::Json => {
            let text = serde_json::to_string_pretty(&one_or_list(values));
            text.map_err(|error| CliError::Print(Box::new(error)))? + "\n"
        }
    };
    write(out, &text)
}

/// `bundledeployment.fleet.cattle.io/web`.
pub fn reference(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let group =
        object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map(|(group, _)| group);
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match group {
        Some(group) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

/// `bundledeployment.fleet.cattle.io/web`.
pub fn bundle_deployment_reference(bd: &BundleDeployment) -> String {
    format!("bundledeployment.fleet.cattle.io/{}", bd.metadata.name.as_deref().unwrap_or_default())
}

fn documents(values: &[Value]) -> Result<String, CliError> {
    let mut text = String::new();
    for value in values {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&yaml::text(value)?);
    }
    Ok(text)
}

fn one_or_list(mut values: Vec<Value>) -> Value {
    if values.len() == 1 {
        return values.remove(0);
    }
    json!({"apiVersion": "v1", "kind": "List", "items": values})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> Value {
        json!({
            "apiVersion": "fleet.cattle.io/v1alpha1",
            "kind": "BundleDeployment",
            "metadata": {"name": name, "managedFields": [{}]},
        })
    }

    fn printed(values: &[Value], form: Form, list: bool) -> String {
        let mut out = Vec::new();
        objects(&mut out, values, form, list).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_are_printed_as_kubectl_does() {
        let values = [object("a"), json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})];
        assert_eq!(printed(&values, Form::Name, true), "bundledeployment.fleet.cattle.io/a\nsecret/s\n");
    }

    #[test]
    fn several_objects_are_a_list_or_documents_and_managed_fields_stay_out() {
        let two = [object("a"), object("b")];
        let documents = printed(&two, Form::Yaml, false);
        assert_eq!(documents.matches("---\n").count(), 1);
        assert!(!documents.contains("managedFields"));
        let list: Value = serde_json::from_str(&printed(&two, Form::Json, true)).unwrap();
        assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("List"), 2));
        let one: Value = serde_json::from_str(&printed(&two[..1], Form::Json, true)).unwrap();
        assert_eq!(one["metadata"], json!({"name": "a"}));
        assert!(printed(&[], Form::Yaml, true).contains("items: []"));
    }
}
