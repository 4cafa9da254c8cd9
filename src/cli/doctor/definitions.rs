// SPDX-License-Identifier: Apache-2.0
//! Definitions of another version: a field they lack is thrown away by the API server without a word.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use serde_json::Value;

use super::finding::Findings;

/// Missing fields that are named; the others are counted.
const NAMED: usize = 5;
const VERSION: &str = "v1alpha1";

/// Compares what `theirs` keeps with what this program knows.
pub(super) fn compare(
    ours: &CustomResourceDefinition,
    theirs: &CustomResourceDefinition,
    findings: &mut Findings,
    fix: &str,
) {
    let check = "definition-fields";
    let name = ours.name_any();
    let Some(served) = theirs.spec.versions.iter().find(|version| version.name == VERSION && version.served)
    else {
        return findings.fail(check, format!("{name} is not served as {VERSION}"), fix);
    };
    let ours = ours.spec.versions.first().and_then(|version| version.schema.as_ref());
    let schema = |schema: Option<
        &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceValidation,
    >| {
        schema.and_then(|schema| serde_json::to_value(&schema.open_api_v3_schema).ok()).unwrap_or_default()
    };
    let mut missing = Vec::new();
    lacks(&schema(ours), &schema(served.schema.as_ref()), "", &mut missing);
    if missing.is_empty() {
        return findings.ok(check, format!("{name} knows every field that this version uses"));
    }
    let more = missing.len().saturating_sub(NAMED);
    let mut text = format!("{name} does not know {}", missing[..missing.len().min(NAMED)].join(", "));
    if more > 0 {
        text.push_str(&format!(" and {more} more fields"));
    }
    findings.warn(check, text, format!("update Fleet's definitions, or without Fleet: {fix}"));
}

/// Paths of ours that theirs lacks; what theirs keeps whole lacks nothing.
fn lacks(ours: &Value, theirs: &Value, path: &str, missing: &mut Vec<String>) {
    if theirs["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    if let Some(fields) = ours["properties"].as_object() {
        for (field, inner) in fields {
            let path = format!("{path}.{field}");
            match theirs["properties"].get(field) {
                Some(found) => lacks(inner, found, &path, missing),
                None => missing.push(path),
            }
        }
    }
    for part in ["items", "additionalProperties"] {
        if ours[part].is_object() && theirs[part].is_object() {
            lacks(&ours[part], &theirs[part], path, missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::crds, cli::doctor::finding::Verdict};

    #[test]
    fn a_field_that_is_thrown_away_is_named() {
        let ours = &crds::all()[1];
        let mut findings = Findings::default();
        compare(ours, ours, &mut findings, "x");
        assert_eq!(findings.0[0].verdict, Verdict::Ok);
        let mut older = serde_json::to_value(ours).unwrap();
        let schema = &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"]["properties"].as_object_mut().unwrap().remove("offSchedule");
        compare(ours, &serde_json::from_value(older).unwrap(), &mut findings, "x");
        assert_eq!(findings.0[1].verdict, Verdict::Warning);
        assert!(findings.0[1].text.ends_with("does not know .spec.offSchedule"), "{}", findings.0[1].text);
    }
}
