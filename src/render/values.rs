// SPDX-License-Identifier: Apache-2.0
//! The values of a release: those of the options or of the values Secret, with what `valuesFrom` refers to laid over.

use std::{collections::BTreeMap, error::Error, fmt};

use futures::future::BoxFuture;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::engine::{Engine, EngineError};
use crate::api::{BundleDeploymentOptions, KeyRef, hex};

/// The key of a reference that names none.
const DEFAULT_KEY: &str = "values.yaml";
/// Keys of the values Secret.
const VALUES: &str = "values";
const STAGED_VALUES: &str = "stagedValues";

/// What holds values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

/// As in Fleet's texts.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        })
    }
}

/// Contents by key.
pub type Contents = BTreeMap<String, Vec<u8>>;

/// Why a ConfigMap or Secret could not be read.
pub type ReadError = Box<dyn Error + Send + Sync>;

/// Reads what `valuesFrom` refers to, under the identity of the deployment.
pub trait References: Send + Sync {
    /// The contents of one ConfigMap or Secret; one that is not there is an error.
    fn read<'a>(
        &'a self,
        holder: Holder,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Contents, ReadError>>;
}

/// Why there are no values. Never says any of them.
#[derive(Debug, thiserror::Error)]
pub enum ValuesError {
    /// The values Secret is not yet, or no longer, the one that the deployment was made from. Fleet's text.
    #[error(
        "retrying, hash mismatch between secret and bundledeployment: actual {actual} != expected {expected}"
    )]
    Hash {
        /// Of the Secret.
        actual: String,
        /// As the BundleDeployment says.
        expected: String,
    },
    /// The values Secret holds no JSON object.
    #[error("the values Secret holds no JSON object")]
    NoObject,
    /// A reference cannot be read.
    #[error("cannot read {holder} {namespace}/{name} of valuesFrom")]
    Read {
        /// What it is.
        holder: Holder,
        /// Where.
        namespace: String,
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// A reference lacks its key. Fleet's text.
    #[error("key {key} is missing from {holder} {namespace}/{name}, can't use it in valuesFrom")]
    Key {
        /// The key.
        key: String,
        /// What it is.
        holder: Holder,
        /// Where.
        namespace: String,
        /// Which.
        name: String,
    },
    /// What a reference holds is no map. The reader's own words may quote it.
    #[error("key {key} of {holder} {namespace}/{name} holds no YAML map, can't use it in valuesFrom")]
    Content {
        /// The key.
        key: String,
        /// What it is.
        holder: Holder,
        /// Where.
        namespace: String,
        /// Which.
        name: String,
    },
    /// The engine gave no answer.
    #[error("cannot read the values of valuesFrom")]
    Engine(#[source] EngineError),
}

/// The values in a BundleDeployment's values Secret, if they are those that it was made with.
///
/// # Errors
/// [`ValuesError::Hash`] and [`ValuesError::NoObject`].
pub fn of_secret(contents: &Contents, expected: &str) -> Result<Map<String, Value>, ValuesError> {
    let part = |key: &str| contents.get(key).map_or(&[][..], Vec::as_slice);
    let values = part(VALUES);
    let actual = hash(values, part(STAGED_VALUES));
    if actual != expected {
        return Err(ValuesError::Hash { actual, expected: expected.to_owned() });
    }
    if values.is_empty() {
        return Ok(Map::new());
    }
    let values: Option<Map<String, Value>> =
        serde_json::from_slice(values).map_err(|_| ValuesError::NoObject)?;
    Ok(values.unwrap_or_default())
}

/// Fleet's hash over a values Secret: hex SHA-256 of both parts; nothing for nothing.
fn hash(values: &[u8], staged: &[u8]) -> String {
    if values.is_empty() && staged.is_empty() {
        return String::new();
    }
    hex(&Sha256::new().chain_update(values).chain_update(staged).finalize())
}

/// Lays what `valuesFrom` refers to over the values, in its order; in one entry the ConfigMap comes before the Secret.
///
/// # Errors
/// The first reference that cannot be used.
pub async fn with_references(
    engine: &Engine,
    mut values: Map<String, Value>,
    options: &BundleDeploymentOptions,
    release_namespace: &str,
    references: &dyn References,
) -> Result<Map<String, Value>, ValuesError> {
    for entry in options.helm.iter().flat_map(|helm| &helm.values_from) {
        let both = [
            (Holder::ConfigMap, entry.config_map_key_ref.as_ref()),
            (Holder::Secret, entry.secret_key_ref.as_ref()),
        ];
        for (holder, reference) in both {
            let Some(KeyRef { name, namespace, key }) = reference else { continue };
            // What is copied from upstream is copied into the release namespace.
            let copied = options.downstream_resources.iter().any(|resource| {
                resource.name == *name && resource.kind.eq_ignore_ascii_case(&holder.to_string())
            });
            let namespace = if namespace.is_empty() || copied { release_namespace } else { namespace };
            let key = if key.is_empty() { DEFAULT_KEY } else { key };
            merge(&mut values, read(engine, holder, namespace, name, key, references).await?);
        }
    }
    Ok(values)
}

async fn read(
    engine: &Engine,
    holder: Holder,
    namespace: &str,
    name: &str,
    key: &str,
    references: &dyn References,
) -> Result<Map<String, Value>, ValuesError> {
    let named = || (key.to_owned(), namespace.to_owned(), name.to_owned());
    let mut contents = references.read(holder, namespace, name).await.map_err(|source| {
        let (_, namespace, name) = named();
        ValuesError::Read { holder, namespace, name, source }
    })?;
    let Some(text) = contents.remove(key) else {
        let (key, namespace, name) = named();
        return Err(ValuesError::Key { key, holder, namespace, name });
    };
    match engine.yaml(vec![(key.to_owned(), text)]).await {
        // Fleet reads the first document only.
        Ok(documents) => match documents.into_iter().next().map(|document| document.value) {
            Some(Value::Object(values)) => Ok(values),
            Some(_) | None => Ok(Map::new()),
        },
        Err(EngineError::Document { .. }) => {
            let (key, namespace, name) = named();
            Err(ValuesError::Content { key, holder, namespace, name })
        }
        Err(other) => Err(ValuesError::Engine(other)),
    }
}

/// Maps are merged, everything else is replaced; a null stays, for it removes a chart's own value.
fn merge(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::render::golden::engine;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().expect("a map").clone()
    }

    fn contents(pairs: &[(&str, &str)]) -> Contents {
        pairs.iter().map(|(key, text)| ((*key).to_owned(), text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn maps_merge_lists_and_scalars_are_replaced_and_nulls_stay() {
        let mut base =
            map(json!({"m": {"a": 1, "b": {"c": 2}}, "l": [1, 2], "s": "x", "gone": 1, "n": {"k": 1}}));
        merge(
            &mut base,
            map(json!({"m": {"b": {"d": 3}, "a": null}, "l": [], "s": {"y": 1}, "n": 5, "new": null})),
        );
        let expected = json!({"m": {"a": null, "b": {"c": 2, "d": 3}}, "l": [], "s": {"y": 1}, "gone": 1, "n": 5, "new": null});
        assert_eq!(Value::Object(base), expected);
    }

    #[test]
    fn a_values_secret_counts_only_with_the_hash_of_both_its_parts() {
        let secret = contents(&[("values", r#"{"a":2}"#), ("stagedValues", r#"{"a":3}"#)]);
        let digest = hex(&Sha256::digest(r#"{"a":2}{"a":3}"#));
        assert_eq!(of_secret(&secret, &digest).unwrap(), map(json!({"a": 2})));
        let error = of_secret(&secret, "abab").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "retrying, hash mismatch between secret and bundledeployment: actual {digest} != expected abab"
            )
        );
        let only_staged = contents(&[("values", ""), ("stagedValues", "{}")]);
        assert!(of_secret(&only_staged, &hex(&Sha256::digest("{}"))).unwrap().is_empty());
        assert!(of_secret(&Contents::new(), "").unwrap().is_empty());
        let list = contents(&[("values", r#"["hunter2"]"#)]);
        let error = of_secret(&list, &hex(&Sha256::digest(r#"["hunter2"]"#))).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }

    /// Answers every read with the place it was for, or with what is in there.
    struct Cluster(Vec<(Holder, &'static str, Contents)>);

    impl References for Cluster {
        fn read<'a>(
            &'a self,
            holder: Holder,
            namespace: &'a str,
            name: &'a str,
        ) -> BoxFuture<'a, Result<Contents, ReadError>> {
            Box::pin(async move {
                let place = format!("{namespace}/{name}");
                let found = self.0.iter().find(|(kind, at, _)| *kind == holder && *at == place);
                found
                    .map(|(_, _, contents)| contents.clone())
                    .ok_or_else(|| format!("{holder} {place} not found").into())
            })
        }
    }

    async fn values(options: Value, cluster: &Cluster) -> Result<Value, ValuesError> {
        let options: BundleDeploymentOptions = serde_json::from_value(options).expect("options of the CRD");
        let inline = options.helm.as_ref().and_then(|helm| helm.values.clone()).unwrap_or_default();
        with_references(&engine(), inline, &options, "ns", cluster).await.map(Value::Object)
    }

    #[tokio::test]
    async fn references_come_over_inline_values_in_order_the_config_map_of_an_entry_first() {
        let cluster = Cluster(vec![
            (
                Holder::ConfigMap,
                "ns/vf",
                contents(&[("values.yaml", "b: cm\nc: cm\ny: 1.0\n---\nb: second\n")]),
            ),
            (Holder::Secret, "other/vfs", contents(&[("more", r#"{"c": "secret", "m": {"k": null}}"#)])),
            (Holder::Secret, "ns/last", contents(&[("values.yaml", "# nothing\n")])),
        ]);
        let options = json!({"helm": {"values": {"a": "inline", "b": "inline", "m": {"k": 1, "l": 2}}, "valuesFrom": [
            {"secretKeyRef": {"name": "vfs", "namespace": "other", "key": "more"}, "configMapKeyRef": {"name": "vf"}},
            {"secretKeyRef": {"name": "last"}},
        ]}});
        let expected = json!({"a": "inline", "b": "cm", "c": "secret", "true": 1, "m": {"k": null, "l": 2}});
        assert_eq!(values(options, &cluster).await.unwrap(), expected);
    }

    #[tokio::test]
    async fn a_reference_to_a_copy_is_looked_for_in_the_release_namespace() {
        let cluster = Cluster(vec![(Holder::Secret, "ns/copy", contents(&[("values.yaml", "a: 1")]))]);
        let mut options = json!({"helm": {"valuesFrom": [{"secretKeyRef": {"name": "copy", "namespace": "else"}}]},
            "downstreamResources": [{"kind": "secret", "name": "copy"}]});
        assert_eq!(values(options.clone(), &cluster).await.unwrap(), json!({"a": 1}));
        options["downstreamResources"] = json!([{"kind": "ConfigMap", "name": "copy"}]);
        assert!(matches!(values(options, &cluster).await, Err(ValuesError::Read { .. })));
    }

    #[tokio::test]
    async fn what_is_missing_is_named_and_what_is_broken_is_not_quoted() {
        let cluster =
            Cluster(vec![(Holder::Secret, "ns/s", contents(&[("k", "hunter2"), ("l", "a: {hunter2")]))]);
        let with = |key: &str| json!({"helm": {"valuesFrom": [{"secretKeyRef": {"name": "s", "key": key}}]}});
        let error = values(with("no"), &cluster).await.unwrap_err();
        assert_eq!(error.to_string(), "key no is missing from secret ns/s, can't use it in valuesFrom");
        for key in ["k", "l"] {
            let error = values(with(key), &cluster).await.unwrap_err();
            assert!(matches!(error, ValuesError::Content { .. }));
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
