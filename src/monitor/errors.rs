// SPDX-License-Identifier: Apache-2.0
//! Which conditions count as errors, by kind.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Statuses that are errors, by condition type.
type Statuses = BTreeMap<String, Vec<String>>;

/// The error statuses of every kind: built-in ones and those the user added.
#[derive(Clone, Debug)]
pub struct ErrorStatuses {
    /// By (`apiVersion`, kind). A kind listed here does not use the fallback.
    kinds: BTreeMap<(String, String), Statuses>,
    fallback: Statuses,
}

/// Why the user's mapping cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// Not a JSON list of mappings.
    #[error("the mapping of error conditions is not the expected JSON list")]
    Json(#[source] serde_json::Error),
    /// A kind not written as `group/version, Kind=Kind`.
    #[error("{0:?} is not of the form \"group/version, Kind=Kind\"")]
    Kind(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    gvk: String,
    #[serde(default)]
    condition_mappings: Vec<ConditionMapping>,
}

#[derive(Deserialize)]
struct ConditionMapping {
    #[serde(rename = "type")]
    type_: String,
    #[serde(default)]
    status: Vec<String>,
}

impl Default for ErrorStatuses {
    fn default() -> Self {
        let kinds = [
            ("helm.cattle.io/v1", "HelmChart", statuses(&[("JobCreated", &[]), ("Failed", &["True"])])),
            (
                "v1",
                "Node",
                statuses(&[
                    ("OutOfDisk", &["True"]),
                    ("MemoryPressure", &["True"]),
                    ("DiskPressure", &["True"]),
                    ("NetworkUnavailable", &["True"]),
                ]),
            ),
            (
                "apps/v1",
                "Deployment",
                statuses(&[("ReplicaFailure", &["True"]), ("Progressing", &["False"])]),
            ),
            ("apps/v1", "ReplicaSet", statuses(&[("ReplicaFailure", &["True"])])),
        ];
        Self {
            kinds: kinds
                .into_iter()
                .map(|(version, kind, map)| ((version.into(), kind.into()), map))
                .collect(),
            fallback: statuses(&[("Stalled", &["True"]), ("Failed", &["True"])]),
        }
    }
}

impl ErrorStatuses {
    /// The environment variable that carries the user's additions; Fleet's agent reads the same.
    pub const VARIABLE: &str = "CATTLE_WRANGLER_CHECK_GVK_ERROR_MAPPING";

    /// The built-in mapping with the user's JSON laid over it, condition type by condition type.
    pub fn with(json: &str) -> Result<Self, MappingError> {
        let mappings: Vec<Mapping> = serde_json::from_str(json).map_err(MappingError::Json)?;
        let mut result = Self::default();
        for mapping in mappings {
            let kind = parse(&mapping.gvk).ok_or(MappingError::Kind(mapping.gvk))?;
            let statuses = result.kinds.entry(kind).or_default();
            statuses.extend(mapping.condition_mappings.into_iter().map(|one| (one.type_, one.status)));
        }
        Ok(result)
    }

    /// The error statuses of one kind, or the fallback if it has no entry of its own.
    pub(super) fn of(&self, api_version: &str, kind: &str) -> &Statuses {
        // A walk over a handful of entries allocates nothing; a look-up by a pair of texts would.
        let own = self.kinds.iter().find(|((version, name), _)| version == api_version && name == kind);
        own.map_or(&self.fallback, |(_, statuses)| statuses)
    }
}

fn statuses(pairs: &[(&str, &[&str])]) -> Statuses {
    let owned = |list: &[&str]| list.iter().map(|&status| status.to_owned()).collect();
    pairs.iter().map(|&(type_, list)| (type_.to_owned(), owned(list))).collect()
}

/// `group/version, Kind=K` as (`apiVersion`, kind); the core group's name is empty (`/v1, Kind=Node`).
fn parse(gvk: &str) -> Option<(String, String)> {
    let (group, rest) = gvk.split_once('/')?;
    let at = rest.rfind("Kind=")?;
    let version = rest[..at].trim_end().strip_suffix(',')?;
    let kind = &rest[at + "Kind=".len()..];
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    (!kind.is_empty()).then(|| (api_version, kind.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_with_an_entry_of_its_own_does_not_use_the_fallback() {
        let map = ErrorStatuses::default();
        assert!(map.of("apps/v1", "Deployment").contains_key("Progressing"));
        assert!(!map.of("apps/v1", "Deployment").contains_key("Failed"));
        assert!(map.of("apps/v1", "StatefulSet").contains_key("Failed"));
        assert!(map.of("helm.cattle.io/v1", "HelmChart")["JobCreated"].is_empty());
    }

    #[test]
    fn the_users_mapping_adds_and_replaces_condition_by_condition() {
        let json = r#"[{"gvk":"helm.cattle.io/v1, Kind=HelmChart","conditionMappings":[
            {"type":"Failed","status":["False"]},{"type":"Worked","status":["True","Unknown"]}]},
            {"gvk":"/v1,Kind=Pod","conditionMappings":[{"type":"Odd"}]}]"#;
        let map = ErrorStatuses::with(json).unwrap();
        let chart = map.of("helm.cattle.io/v1", "HelmChart");
        assert_eq!(chart["Failed"], ["False"]);
        assert_eq!(chart["Worked"], ["True", "Unknown"]);
        assert!(chart["JobCreated"].is_empty());
        assert!(map.of("v1", "Pod")["Odd"].is_empty());
        assert!(!map.of("v1", "Pod").contains_key("Failed"));
    }

    #[test]
    fn a_mapping_that_cannot_be_read_is_refused() {
        assert!(matches!(ErrorStatuses::with("{}"), Err(MappingError::Json(_))));
        for gvk in ["HelmChart", "v1 Kind=Pod", "apps/v1, Kind=", "apps/v1 Kind=Deployment"] {
            let json = format!(r#"[{{"gvk":"{gvk}"}}]"#);
            assert!(matches!(ErrorStatuses::with(&json), Err(MappingError::Kind(_))), "{gvk}");
        }
    }
}
