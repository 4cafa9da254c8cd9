// SPDX-License-Identifier: Apache-2.0
//! The release's namespace: whether a bundle may go there, and the labels and annotations that a bundle forces on it.
//!
//! Namespaces are shared, so they carry no stamp: written only with the uid and resourceVersion that were read, and
//! under a claim that was confirmed a short time ago.

use std::collections::BTreeMap;

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{
    Downstream,
    fence::{Fence, Fenced},
    server::{LiveMeta, RequestError, Server, push_segment},
};
use crate::api::{
    keys,
    selector::{self, SelectorError},
};

/// Labels of this prefix are the cluster's own business.
const POD_SECURITY: &str = "pod-security.kubernetes.io/";
/// Set by the API server.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// What Helm puts on a namespace that it creates: its name.
const HELM_LABEL: &str = "name";
/// Reads and writes before it is given up (L5).
const ROUNDS: usize = 4;

/// Why a bundle may not go to its namespace. Fleet's texts.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// It is not there.
    #[error("target namespace {0} does not exist on downstream cluster")]
    Missing(String),
    /// It could not be read.
    #[error("failed to get target namespace {namespace}")]
    Read {
        /// Which.
        namespace: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// The selector is none.
    #[error("invalid AllowedTargetNamespaceSelector")]
    Selector(#[source] SelectorError),
    /// It has other labels.
    #[error(
        "target namespace {namespace} does not match AllowedTargetNamespaceSelector ({selector}); \
         namespace labels {labels}"
    )]
    Mismatch {
        /// Which.
        namespace: String,
        /// As Go prints it.
        selector: String,
        /// As Go prints them.
        labels: String,
    },
}

/// Checks that the namespace exists and has labels that are selected. Read by the agent itself.
///
/// # Errors
/// Whatever keeps the bundle from going there.
pub async fn permit(agent: &Server, namespace: &str, wanted: &LabelSelector) -> Result<(), TargetError> {
    let found = agent.metadata(&path(namespace)).await;
    let found = found.map_err(|source| TargetError::Read { namespace: namespace.to_owned(), source })?;
    let Some(live) = found else { return Err(TargetError::Missing(namespace.to_owned())) };
    selector::check(wanted).map_err(TargetError::Selector)?;
    if selector::matches(wanted, &live.labels) {
        return Ok(());
    }
    Err(TargetError::Mismatch {
        namespace: namespace.to_owned(),
        selector: selector::text(wanted),
        labels: selector::go_map(&live.labels),
    })
}

/// What a bundle forces on its namespace. A map that is not given leaves its part alone.
#[derive(Clone, Copy, Debug)]
pub struct Forced<'a> {
    /// All labels, but the cluster's own.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// All annotations.
    pub annotations: Option<&'a BTreeMap<String, String>>,
}

/// How Fleet's text begins.
const FORBIDDEN: &str = "the deployment's service account is not allowed to";

/// Why a namespace does not carry what is forced on it.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The identity of the deployment may not. Fleet's text.
    #[error(
        "{} {verb} namespace {namespace:?}; grant it '{verb}' on this \
         namespace (scoped via resourceNames) or remove namespaceLabels/namespaceAnnotations",
        FORBIDDEN
    )]
    Forbidden {
        /// `get` or `update`.
        verb: &'static str,
        /// Which.
        namespace: String,
        /// The server's words.
        #[source]
        source: RequestError,
    },
    /// The server refused, or did not answer.
    #[error("cannot {verb} namespace {namespace:?}")]
    Refused {
        /// `get` or `update`.
        verb: &'static str,
        /// Which.
        namespace: String,
        /// Why.
        #[source]
        source: RequestError,
    },
    /// It changed between every read and write.
    #[error("namespace {namespace:?} is changed by others faster than it can be written")]
    Busy {
        /// Which.
        namespace: String,
    },
    /// The claim does not allow the write.
    #[error("namespace {namespace:?} is not written")]
    Fenced {
        /// Which.
        namespace: String,
        /// Why.
        #[source]
        source: Fenced,
    },
}

impl NamespaceError {
    /// Whether a text that a status tells is one of these, of reading or writing a namespace.
    pub fn is_told(text: &str) -> bool {
        let busy = || text.starts_with("namespace ") && text.contains(" is changed by others ");
        text.starts_with(FORBIDDEN)
            || ["cannot get namespace ", "cannot update namespace "]
                .iter()
                .any(|start| text.starts_with(start))
            || busy()
    }

    fn of(verb: &'static str, namespace: &str, source: RequestError) -> Self {
        let namespace = namespace.to_owned();
        if source.status().is_some_and(|status| status.code == 403) {
            Self::Forbidden { verb, namespace, source }
        } else {
            Self::Refused { verb, namespace, source }
        }
    }

    /// The fence's refusal, when it is one.
    pub fn fenced(&self) -> Option<&Fenced> {
        if let Self::Fenced { source, .. } = self { Some(source) } else { None }
    }
}

impl Forced<'_> {
    /// Whether nothing is forced.
    pub fn is_nothing(&self) -> bool {
        self.labels.is_none() && self.annotations.is_none()
    }

    /// Whether the live namespace is not as it is to be.
    ///
    /// # Errors
    /// It could not be read under this identity.
    pub async fn differs(&self, ctx: &Downstream, namespace: &str) -> Result<bool, NamespaceError> {
        match ctx.server.metadata(&path(namespace)).await {
            Ok(Some(live)) => Ok(self.changes(&live).is_some()),
            Ok(None) => Ok(false),
            Err(source) => Err(NamespaceError::of("get", namespace, source)),
        }
    }

    /// The live namespace (`None`: it is not there) and how it is to be; nothing if that is how it is. `made` says
    /// whether a deployment makes one that is missing. Only read.
    ///
    /// # Errors
    /// It could not be read under this identity.
    pub async fn would_be(
        &self,
        ctx: &Downstream,
        namespace: &str,
        made: bool,
    ) -> Result<Option<(Option<Value>, Value)>, NamespaceError> {
        let live = match ctx.server.get::<Value>(&path(namespace)).await {
            Ok(live) => live,
            Err(error) if error.is_not_found() => {
                let mut metadata = self.of_new(namespace);
                metadata["name"] = namespace.into();
                let new = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
                return Ok(made.then_some((None, new)));
            }
            Err(source) => return Err(NamespaceError::of("get", namespace, source)),
        };
        let meta: LiveMeta = serde_json::from_value(live["metadata"].clone()).unwrap_or_default();
        Ok(self.changes(&meta).map(|(labels, annotations)| {
            let mut after = live.clone();
            after["metadata"]["labels"] = pairs(labels);
            after["metadata"]["annotations"] = pairs(annotations);
            (Some(live), after)
        }))
    }

    /// Makes the live namespace as it is to be; whether it was written.
    ///
    /// # Errors
    /// It could not be read or written under this identity, or the claim does not allow it.
    pub async fn put(
        &self,
        ctx: &Downstream,
        fence: &Fence,
        namespace: &str,
    ) -> Result<bool, NamespaceError> {
        let path = path(namespace);
        let write = format!("{path}?fieldManager={}", keys::FIELD_MANAGER);
        for _ in 0..ROUNDS {
            let read = ctx.server.get::<Value>(&path).await;
            let mut live = read.map_err(|source| NamespaceError::of("get", namespace, source))?;
            let meta: LiveMeta = serde_json::from_value(live["metadata"].clone()).unwrap_or_default();
            let Some((labels, annotations)) = self.changes(&meta) else { return Ok(false) };
            // Uid and resourceVersion go back as they were read.
            live["metadata"]["labels"] = pairs(labels);
            live["metadata"]["annotations"] = pairs(annotations);
            fence
                .uncompared()
                .await
                .map_err(|source| NamespaceError::Fenced { namespace: namespace.to_owned(), source })?;
            match ctx.server.write::<IgnoredAny>(Method::PUT, &write, &live).await {
                Ok(_) => return Ok(true),
                Err(error) if error.is_conflict() => {}
                Err(source) => return Err(NamespaceError::of("update", namespace, source)),
            }
        }
        Err(NamespaceError::Busy { namespace: namespace.to_owned() })
    }

    /// The metadata of a namespace that is yet to be made: it is never seen without what the bundle wants on it. Where
    /// the bundle says nothing of labels, Helm's label `name`.
    pub fn of_new(&self, namespace: &str) -> Value {
        let labels = BTreeMap::from([(HELM_LABEL.to_owned(), namespace.to_owned())]);
        let helms = LiveMeta { labels, ..LiveMeta::default() };
        let (labels, annotations) = self.changes(&helms).unwrap_or((helms.labels, helms.annotations));
        json!({"labels": pairs(labels), "annotations": pairs(annotations)})
    }

    /// Labels and annotations as they are to be; `None` when they are.
    fn changes(&self, live: &LiveMeta) -> Option<(BTreeMap<String, String>, BTreeMap<String, String>)> {
        let is_own = |key: &str| key == NAME_LABEL || key.starts_with(POD_SECURITY);
        let labels = self.labels.map_or_else(
            || live.labels.clone(),
            |forced| {
                let stay = live.labels.iter().filter(|(key, _)| is_own(key));
                let set = forced.iter().filter(|(key, _)| !is_own(key));
                stay.chain(set).map(|(key, value)| (key.clone(), value.clone())).collect()
            },
        );
        let annotations = self.annotations.cloned().unwrap_or_else(|| live.annotations.clone());
        (labels != live.labels || annotations != live.annotations).then_some((labels, annotations))
    }
}

fn pairs(map: BTreeMap<String, String>) -> Value {
    map.into_iter().map(|(key, value)| (key, Value::String(value))).collect()
}

fn path(namespace: &str) -> String {
    let mut path = String::from("/api/v1/namespaces/");
    push_segment(&mut path, namespace);
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        downstream::{
            fence::tests::{fence, proof, with},
            testing::{Exchange, context, scripted},
        },
        telemetry::chain,
    };

    const PATH: &str = "/api/v1/namespaces/ns";

    #[tokio::test]
    async fn what_a_status_tells_of_a_namespace_is_known_again() {
        let labels = map(&[("a", "b")]);
        let forced = Forced { labels: Some(&labels), annotations: None };
        for (code, reason) in [(403, "Forbidden"), (500, "InternalError")] {
            let (server, script) = scripted(vec![Exchange::get(PATH).refuses(code, reason, "no")]);
            let error = forced.differs(&context(server), "ns").await.unwrap_err();
            assert!(NamespaceError::is_told(&chain(&error)), "{error}");
            script.finished().await;
        }
        assert!(NamespaceError::is_told(&NamespaceError::Busy { namespace: "ns".into() }.to_string()));
        assert!(!NamespaceError::is_told("cannot create namespace \"ns\": no"));
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn live(version: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Namespace", "spec": {"finalizers": ["kubernetes"]}, "metadata": {
            "name": "ns", "uid": "n", "resourceVersion": version, "annotations": {"old": "note"},
            "labels": {NAME_LABEL: "ns", "old": "label", "pod-security.kubernetes.io/warn": "restricted"}}})
    }

    #[tokio::test]
    async fn a_namespace_must_exist_and_be_selected() {
        let wanted: LabelSelector = serde_json::from_value(json!({"matchLabels": {"allow": "yes"}})).unwrap();
        let allowed = json!({"metadata": {"name": "ns", "labels": {"allow": "yes"}}});
        let other = json!({"metadata": {"name": "ns", "labels": {NAME_LABEL: "ns", "a": "b"}}});
        for (exchange, text) in [
            (Exchange::get(PATH).answers(allowed), None),
            (
                Exchange::get(PATH).answers(other),
                Some(
                    "target namespace ns does not match AllowedTargetNamespaceSelector (allow=yes); namespace labels \
                     map[a:b kubernetes.io/metadata.name:ns]",
                ),
            ),
            (Exchange::get(PATH).missing(), Some("target namespace ns does not exist on downstream cluster")),
            (
                Exchange::get(PATH).refuses(403, "Forbidden", "no"),
                Some("failed to get target namespace ns: no"),
            ),
        ] {
            let (server, script) = scripted(vec![exchange]);
            let permitted = permit(&server, "ns", &wanted).await;
            assert_eq!(permitted.err().map(|error| chain(&error)).as_deref(), text);
            script.finished().await;
        }
        let (server, _script) = scripted(vec![Exchange::get(PATH).answers(live("1"))]);
        let wanted: LabelSelector =
            serde_json::from_value(json!({"matchExpressions": [{"key": "k", "operator": "Like"}]})).unwrap();
        assert_eq!(
            chain(&permit(&server, "ns", &wanted).await.unwrap_err()),
            "invalid AllowedTargetNamespaceSelector: \"Like\" is not a valid label selector operator"
        );
    }

    #[tokio::test]
    async fn how_a_namespace_would_be_is_told_without_a_write() {
        let labels = map(&[("team", "blue")]);
        let forced = Forced { labels: Some(&labels), annotations: None };
        let asked = async |exchange: Exchange, forced: Forced<'_>, made: bool| {
            let (server, script) = scripted(vec![exchange]);
            let found = forced.would_be(&context(server), "ns", made).await.unwrap();
            script.finished().await;
            found
        };
        let (before, after) = asked(Exchange::get(PATH).answers(live("1")), forced, true).await.unwrap();
        assert_eq!(before, Some(live("1")));
        assert_eq!(
            after["metadata"]["labels"],
            json!({NAME_LABEL: "ns", "team": "blue", "pod-security.kubernetes.io/warn": "restricted"})
        );
        assert_eq!(after["metadata"]["annotations"], json!({"old": "note"}));
        let (before, after) = asked(Exchange::get(PATH).missing(), forced, true).await.unwrap();
        assert_eq!((before, &after["metadata"]["labels"]), (None, &json!({"team": "blue"})));
        assert_eq!(asked(Exchange::get(PATH).missing(), forced, false).await, None);
        let nothing = Forced { labels: None, annotations: None };
        assert_eq!(asked(Exchange::get(PATH).answers(live("1")), nothing, true).await, None);
    }

    #[tokio::test]
    async fn all_is_replaced_but_the_clusters_own_labels_and_under_what_was_read() {
        let labels = map(&[("team", "blue"), ("pod-security.kubernetes.io/enforce", "baseline")]);
        let annotations = map(&[("note", "hello")]);
        let forced = Forced { labels: Some(&labels), annotations: Some(&annotations) };
        let puts = |version: &'static str| {
            Exchange::put("/api/v1/namespaces/ns?fieldManager=fleetagent").expecting(move |sent| {
                assert_eq!((&sent["metadata"]["uid"], &sent["metadata"]["resourceVersion"]), (&json!("n"), &json!(version)));
                let labels = json!({NAME_LABEL: "ns", "pod-security.kubernetes.io/warn": "restricted", "team": "blue"});
                assert_eq!(sent["metadata"]["labels"], labels);
                assert_eq!(sent["metadata"]["annotations"], json!({"note": "hello"}));
                assert_eq!(sent["spec"], json!({"finalizers": ["kubernetes"]}));
            })
        };
        let (server, script) = scripted(vec![
            Exchange::get(PATH).answers(live("7")),
            puts("7").conflicts(),
            Exchange::get(PATH).answers(live("8")),
            puts("8"),
        ]);
        assert!(forced.put(&context(server), &fence("u/20"), "ns").await.unwrap());
        script.finished().await;
    }

    #[test]
    fn a_new_namespace_is_made_with_what_the_bundle_wants_on_it() {
        let labels = map(&[("team", "blue"), ("pod-security.kubernetes.io/enforce", "baseline")]);
        let annotations = map(&[("note", "hello")]);
        for (labels, annotations, wanted) in [
            (None, None, json!({"labels": {"name": "ns"}, "annotations": {}})),
            (Some(&labels), None, json!({"labels": {"team": "blue"}, "annotations": {}})),
            (None, Some(&annotations), json!({"labels": {"name": "ns"}, "annotations": {"note": "hello"}})),
            (
                Some(&labels),
                Some(&annotations),
                json!({"labels": {"team": "blue"}, "annotations": {"note": "hello"}}),
            ),
        ] {
            assert_eq!(Forced { labels, annotations }.of_new("ns"), wanted);
        }
    }

    #[tokio::test]
    async fn what_is_as_it_should_be_is_not_written_and_half_of_it_may_be_left_alone() {
        let annotations = map(&[("old", "note")]);
        let forced = Forced { labels: None, annotations: Some(&annotations) };
        let (server, script) =
            scripted(vec![Exchange::get(PATH).answers(live("7")), Exchange::get(PATH).answers(live("7"))]);
        let ctx = context(server);
        assert!(!forced.put(&ctx, &fence("u/20"), "ns").await.unwrap());
        assert!(!forced.differs(&ctx, "ns").await.unwrap());
        script.finished().await;
    }

    #[tokio::test]
    async fn a_lost_claim_writes_nothing_and_a_refusal_says_what_to_grant() {
        let labels = map(&[]);
        let forced = Forced { labels: Some(&labels), annotations: None };
        let (server, script) = scripted(vec![Exchange::get(PATH).answers(live("7"))]);
        let lost = with("u/20", proof(false, true, false));
        let error = forced.put(&context(server), &lost, "ns").await.unwrap_err();
        assert!(matches!(error.fenced(), Some(Fenced::ClaimLost)));
        script.finished().await;
        let (server, script) = scripted(vec![
            Exchange::get(PATH).answers(live("7")),
            Exchange::put(PATH).refuses(403, "Forbidden", "namespaces \"ns\" is forbidden"),
        ]);
        let error = forced.put(&context(server), &fence("u/20"), "ns").await.unwrap_err();
        assert_eq!(
            chain(&error),
            "the deployment's service account is not allowed to update namespace \"ns\"; grant it 'update' on this \
             namespace (scoped via resourceNames) or remove namespaceLabels/namespaceAnnotations: \
             namespaces \"ns\" is forbidden"
        );
        script.finished().await;
    }
}
