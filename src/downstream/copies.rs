// SPDX-License-Identifier: Apache-2.0
//! Secrets and ConfigMaps that a bundle has copied from the management cluster into its namespace.
//!
//! Always as the agent itself. A copy carries the stamp of its claim like any object, and is written even when it is
//! equal: a frozen replica must meet the newer stamp. Nothing of what a copy holds is ever told.

use std::{collections::BTreeMap, fmt};

use http::Method;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{
    Downstream,
    fence::{Fence, Fenced},
    kinds::{Kind, KindError},
    objects::Place,
    removal::{Fate, RemovalError, Right, remove_one},
    server::{LiveMeta, RequestError, push_segment},
};
use crate::api::keys;

/// Reads and writes of one copy before it is given up (L5).
const ROUNDS: usize = 4;
/// What of a source is copied, beside labels and annotations.
const PARTS: [&str; 3] = ["type", "data", "binaryData"];

/// What can be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

impl Copied {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Secret, Self::ConfigMap];

    /// As bundles name them, in any case.
    pub fn parse(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|copied| copied.to_string().eq_ignore_ascii_case(kind))
    }

    /// The kind's name.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// The name of its collection.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
        }
    }
}

/// As in Fleet's texts.
impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret => "secret",
            Self::ConfigMap => "configmap",
        })
    }
}

/// What is to be copied, as it stands on the management cluster. Shows nothing of what it holds.
pub struct Source {
    kind: Copied,
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    parts: Map<String, Value>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

impl Source {
    /// Takes an object apart.
    pub fn new(kind: Copied, name: &str, mut object: Value) -> Self {
        let map = |value: &Value| -> BTreeMap<String, String> {
            serde_json::from_value(value.clone()).unwrap_or_default()
        };
        let parts = PARTS.iter().filter_map(|part| {
            let value = object.get_mut(*part)?.take();
            (!value.is_null()).then(|| ((*part).to_owned(), value))
        });
        let parts = parts.collect();
        let meta = &object["metadata"];
        let (mut labels, mut annotations) = (map(&meta["labels"]), map(&meta["annotations"]));
        // What says whose copy this is, and whose claim wrote it, is never the source's.
        labels.remove(keys::BUNDLE_DEPLOYMENT);
        annotations.remove(keys::EPOCH_ANNOTATION);
        Self { kind, name: name.to_owned(), labels, annotations, parts }
    }
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It was not there.
    Created,
    /// It held something else.
    Updated,
    /// It was the same; only the stamp is new.
    Same,
}

/// Why there is no copy, or an old one.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Its kind is not known.
    #[error("cannot copy {copy}")]
    Kind {
        /// Kind and place.
        copy: String,
        /// Why.
        #[source]
        source: KindError,
    },
    /// What stands there is an object of a release.
    #[error("cannot copy {copy}: an object of release {release} is in its place")]
    Foreign {
        /// Kind and place.
        copy: String,
        /// The release.
        release: String,
    },
    /// What stands there has another type, which cannot be changed, and is no copy for this bundle.
    #[error(
        "cannot copy {copy}: what is in its place has type {type_:?} and was not copied for this bundle; it stays until \
         somebody deletes it"
    )]
    NoCopy {
        /// Kind and place.
        copy: String,
        /// Its type.
        type_: String,
    },
    /// The server refused, or did not answer.
    #[error("cannot copy {copy}")]
    Refused {
        /// Kind and place.
        copy: String,
        /// Why; without what the server quotes.
        #[source]
        source: RequestError,
    },
    /// It changed between every read and write.
    #[error("cannot copy {copy}: it is changed by others faster than it can be written")]
    Busy {
        /// Kind and place.
        copy: String,
    },
    /// The claim does not allow it.
    #[error("{copy} is not copied")]
    Fenced {
        /// Kind and place.
        copy: String,
        /// Why.
        #[source]
        source: Fenced,
    },
}

impl CopyError {
    /// The fence's refusal, when it is one.
    pub fn fenced(&self) -> Option<&Fenced> {
        if let Self::Fenced { source, .. } = self { Some(source) } else { None }
    }
}

/// Puts a copy into a namespace for a bundle. A missing namespace is made with the metadata `new_namespace`.
///
/// A type cannot be changed, so a copy of another type is made anew; not what is no copy for this bundle.
///
/// # Errors
/// Whatever keeps the copy from being what it is to be.
pub async fn put(
    ctx: &Downstream,
    fence: &Fence,
    namespace: &str,
    new_namespace: &Value,
    bundle: &str,
    source: &Source,
) -> Result<Placed, CopyError> {
    let copy = || format!("{} {namespace}/{}", source.kind, source.name);
    let refused = |error: RequestError| CopyError::Refused { copy: copy(), source: error.without_values() };
    let kind = ctx.kinds.resolve("v1", source.kind.kind()).await;
    let kind = kind.map_err(|source| CopyError::Kind { copy: copy(), source })?;
    let place = Place { kind: &kind, namespace, name: &source.name };
    let mut made_anew = false;
    for _ in 0..ROUNDS {
        let live = match ctx.agent.get::<Value>(&place.path()).await {
            Ok(live) => Some(live),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(refused(error)),
        };
        let meta: LiveMeta = live
            .as_ref()
            .and_then(|live| serde_json::from_value(live["metadata"].clone()).ok())
            .unwrap_or_default();
        if let Some(release) = another_release(&meta, source) {
            return Err(CopyError::Foreign { copy: copy(), release });
        }
        let proof = fence.before(meta.stamp().as_ref(), copy).await;
        proof.map_err(|source| CopyError::Fenced { copy: copy(), source })?;
        let placed = match &live {
            // The bundle knows it with what it held before.
            None if made_anew => Placed::Updated,
            None => Placed::Created,
            Some(live) if holds(live, &meta, source) => Placed::Same,
            Some(_) => Placed::Updated,
        };
        let answer = match live {
            // What cannot be changed is made anew.
            Some(live) if live["type"] != *source.parts.get("type").unwrap_or(&Value::Null) => {
                if meta.labels.get(keys::BUNDLE_DEPLOYMENT).is_none_or(|name| name != bundle) {
                    let type_ = live["type"].as_str().unwrap_or_default().to_owned();
                    return Err(CopyError::NoCopy { copy: copy(), type_ });
                }
                let answer = ctx.agent.delete(&place.path(), &meta.uid, &meta.resource_version).await;
                made_anew |= answer.is_ok();
                answer.map(|_| ())
            }
            Some(live) => {
                let body = body(live, bundle, fence, source);
                let answer = write(ctx, Method::PUT, &place.path(), &body).await;
                if answer.is_ok() {
                    debug!(object = %place, ?placed, "copied");
                    return Ok(placed);
                }
                answer
            }
            None => {
                let body = body(Value::Null, bundle, fence, source);
                match write(ctx, Method::POST, &kind.collection(namespace), &body).await {
                    Ok(()) => {
                        debug!(object = %place, "copied");
                        return Ok(placed);
                    }
                    Err(error) if error.is_missing_namespace(namespace) => {
                        make_namespace(ctx, fence, namespace, new_namespace, &copy).await?;
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
        };
        match answer {
            Ok(()) => {}
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => return Err(refused(error)),
        }
    }
    Err(CopyError::Busy { copy: copy() })
}

async fn write(ctx: &Downstream, method: Method, path: &str, body: &Value) -> Result<(), RequestError> {
    let path = format!("{path}?fieldManager={}", keys::FIELD_MANAGER);
    ctx.agent.write::<IgnoredAny>(method, &path, body).await.map(|_| ())
}

async fn make_namespace(
    ctx: &Downstream,
    fence: &Fence,
    namespace: &str,
    metadata: &Value,
    copy: &(dyn Fn() -> String + Sync),
) -> Result<(), CopyError> {
    fence.uncompared().await.map_err(|source| CopyError::Fenced { copy: copy(), source })?;
    let mut body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    body["metadata"]["name"] = json!(namespace);
    match write(ctx, Method::POST, "/api/v1/namespaces", &body).await {
        Ok(()) => {
            info!(object = namespace, "namespace made");
            Ok(())
        }
        Err(error) if error.is_already_exists() => Ok(()),
        Err(source) => Err(CopyError::Refused { copy: copy(), source }),
    }
}

/// The release that the object in the place says it belongs to, other than what the source itself says.
fn another_release(live: &LiveMeta, source: &Source) -> Option<String> {
    let (namespace, name) = live.release()?;
    let own = live.labels.contains_key(keys::BUNDLE_DEPLOYMENT)
        || source.annotations.get(keys::RELEASE_NAME).map(String::as_str) == Some(name);
    (!own).then(|| format!("{namespace}/{name}"))
}

/// Whether the live copy holds what the source does. What others add to its metadata is no difference.
fn holds(live: &Value, meta: &LiveMeta, source: &Source) -> bool {
    let within = |wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| found.get(key) == Some(value))
    };
    PARTS.iter().all(|part| live[*part] == *source.parts.get(*part).unwrap_or(&Value::Null))
        && within(&source.labels, &meta.labels)
        && within(&source.annotations, &meta.annotations)
}

/// The copy as it is written: over what is live, or new.
fn body(live: Value, bundle: &str, fence: &Fence, source: &Source) -> Value {
    let mut body = if live.is_null() {
        json!({"apiVersion": "v1", "kind": source.kind.kind(), "metadata": {"name": source.name}})
    } else {
        live
    };
    for part in PARTS {
        match source.parts.get(part) {
            Some(value) => body[part] = value.clone(),
            None => {
                if let Some(object) = body.as_object_mut() {
                    object.remove(part);
                }
            }
        }
    }
    let (mut labels, mut annotations) = (source.labels.clone(), source.annotations.clone());
    labels.insert(keys::BUNDLE_DEPLOYMENT.into(), bundle.into());
    annotations.insert(keys::EPOCH_ANNOTATION.into(), fence.stamp.to_string());
    body["metadata"]["labels"] = json!(labels);
    body["metadata"]["annotations"] = json!(annotations);
    body
}

/// Deletes the copies of a bundle that `ours` tells to be of the one removed. How many there were.
///
/// # Errors
/// The first that cannot be deleted; a repetition goes on from there.
pub async fn remove(
    ctx: &Downstream,
    bundle: &str,
    ours: &(dyn Fn(&LiveMeta) -> bool + Sync),
) -> Result<usize, RemovalError> {
    let never = CancellationToken::new();
    let judge = |live: &LiveMeta| {
        let labelled = live.labels.get(keys::BUNDLE_DEPLOYMENT).is_some_and(|name| name == bundle);
        (!labelled || !ours(live)).then_some(Fate::NotOurs)
    };
    let as_agent = Downstream { server: ctx.agent.clone(), ..ctx.clone() };
    let mut count = 0;
    for copied in Copied::ALL {
        let resolved = ctx.kinds.resolve("v1", copied.kind()).await;
        let kind = resolved.map_err(|source| {
            let (kind, name) = (copied.kind().to_owned(), bundle.to_owned());
            RemovalError::Kind { kind, name, source }
        })?;
        let found = ctx.agent.metadata_list(&labelled(&kind, bundle)).await;
        let found = found.map_err(|source| RemovalError::Refused { object: kind.to_string(), source })?;
        for live in found.iter().filter(|live| judge(live).is_none()) {
            let place = Place { kind: &kind, namespace: &live.namespace, name: &live.name };
            if let (Fate::Deleted, _) = remove_one(&as_agent, Right::Guard(&never), &place, &judge).await? {
                count += 1;
            }
        }
    }
    Ok(count)
}

fn labelled(kind: &Kind, bundle: &str) -> String {
    let mut path = kind.collection("");
    path.push_str("?labelSelector=");
    push_segment(&mut path, keys::BUNDLE_DEPLOYMENT);
    path.push_str("%3D");
    push_segment(&mut path, bundle);
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::{
        fence::tests::fence,
        testing::{Exchange, context, scripted},
    };

    const SECRETS: &str = "/api/v1/namespaces/ns/secrets";
    const PATH: &str = "/api/v1/namespaces/ns/secrets/s";

    fn new() -> Value {
        json!({"labels": {"team": "shop"}, "annotations": {"owner": "me"}})
    }

    fn source() -> Source {
        let object = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "data": {"password": "aHVudGVyMg=="}, "immutable": true,
            "metadata": {"name": "s", "uid": "up", "labels": {"up": "stream", keys::BUNDLE_DEPLOYMENT: "theirs"},
                "annotations": {"an": "no", keys::EPOCH_ANNOTATION: "theirs/9"}}});
        Source::new(Copied::Secret, "s", object)
    }

    fn live(stamp: Option<&str>, password: &str) -> Value {
        let mut live = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/basic-auth",
            "data": {"password": password}, "metadata": {"name": "s", "namespace": "ns", "uid": "x",
            "resourceVersion": "7", "labels": {"up": "stream", keys::BUNDLE_DEPLOYMENT: "b"},
            "annotations": {"an": "no"}}});
        if let Some(stamp) = stamp {
            live["metadata"]["annotations"][keys::EPOCH_ANNOTATION] = json!(stamp);
        }
        live
    }

    fn carries_all(sent: &Value) {
        assert_eq!(sent["metadata"]["labels"], json!({"up": "stream", keys::BUNDLE_DEPLOYMENT: "b"}));
        assert_eq!(sent["metadata"]["annotations"], json!({"an": "no", keys::EPOCH_ANNOTATION: "u/20"}));
        assert_eq!(sent["data"], json!({"password": "aHVudGVyMg=="}));
        assert_eq!(sent["type"], "kubernetes.io/basic-auth");
        assert!(sent.get("immutable").is_none());
    }

    #[tokio::test]
    async fn a_copy_is_made_with_its_namespace_if_need_be() {
        let (server, script) = scripted(vec![
            Exchange::get(PATH).missing(),
            Exchange::post(SECRETS).refuses(404, "NotFound", "namespaces \"ns\" not found"),
            Exchange::post("/api/v1/namespaces").expecting(|sent| {
                let mut wanted = new();
                wanted["name"] = json!("ns");
                assert_eq!(sent["metadata"], wanted);
            }),
            Exchange::get(PATH).missing(),
            Exchange::post(&format!("{SECRETS}?fieldManager=fleetagent")).expecting(|sent| {
                carries_all(sent);
                assert!(sent["metadata"].get("uid").is_none());
            }),
        ]);
        let placed = put(&context(server), &fence("u/20"), "ns", &new(), "b", &source()).await.unwrap();
        assert_eq!(placed, Placed::Created);
        script.finished().await;
    }

    #[tokio::test]
    async fn a_copy_is_stamped_even_when_it_is_the_same() {
        for (found, expected) in [
            (live(Some("u/10"), "aHVudGVyMg=="), Placed::Same),
            (live(None, "aHVudGVyMg=="), Placed::Same),
            (live(Some("u/10"), "b2xk"), Placed::Updated),
        ] {
            let (server, script) = scripted(vec![
                Exchange::get(PATH).answers(found),
                Exchange::put(PATH).expecting(|sent| {
                    carries_all(sent);
                    assert_eq!(sent["metadata"]["uid"], "x");
                    assert_eq!(sent["metadata"]["resourceVersion"], "7");
                }),
            ]);
            let placed = put(&context(server), &fence("u/20"), "ns", &new(), "b", &source()).await.unwrap();
            assert_eq!(placed, expected);
            script.finished().await;
        }
    }

    #[tokio::test]
    async fn a_newer_copy_and_a_releases_object_are_left_alone() {
        let (server, script) = scripted(vec![Exchange::get(PATH).answers(live(Some("u/30"), "b2xk"))]);
        let error = put(&context(server), &fence("u/20"), "ns", &new(), "b", &source()).await.unwrap_err();
        assert!(matches!(error.fenced(), Some(Fenced::Newer { .. })));
        script.finished().await;
        let mut owned = live(None, "b2xk");
        owned["metadata"]["labels"] = json!({});
        owned["metadata"]["annotations"] = json!({keys::RELEASE_NAME: "r", keys::RELEASE_NAMESPACE: "ns"});
        let (server, script) = scripted(vec![Exchange::get(PATH).answers(owned)]);
        let error = put(&context(server), &fence("u/20"), "ns", &new(), "b", &source()).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot copy secret ns/s: an object of release ns/r is in its place");
        script.finished().await;
    }

    #[tokio::test]
    async fn another_type_makes_the_copy_anew() {
        let mut opaque = live(Some("u/10"), "b2xk");
        opaque["type"] = json!("Opaque");
        let (server, script) = scripted(vec![
            Exchange::get(PATH).answers(opaque),
            Exchange::delete(PATH)
                .expecting(|sent| assert_eq!(sent["preconditions"]["resourceVersion"], "7")),
            Exchange::get(PATH).missing(),
            Exchange::post(SECRETS).expecting(carries_all),
        ]);
        let placed = put(&context(server), &fence("u/20"), "ns", &new(), "b", &source()).await.unwrap();
        assert_eq!(placed, Placed::Updated, "the bundle is to notice");
        script.finished().await;
    }

    #[tokio::test]
    async fn what_is_no_copy_of_this_bundles_is_not_deleted_for_its_type() {
        for labels in [json!({}), json!({keys::BUNDLE_DEPLOYMENT: "other"})] {
            let mut theirs = live(None, "b2xk");
            theirs["type"] = json!("Opaque");
            theirs["metadata"]["labels"] = labels;
            let (server, script) = scripted(vec![Exchange::get(PATH).answers(theirs)]);
            let error =
                put(&context(server), &fence("u/20"), "ns", &new(), "b", &source()).await.unwrap_err();
            let expected = "cannot copy secret ns/s: what is in its place has type \"Opaque\" and was not copied for \
                            this bundle; it stays until somebody deletes it";
            assert_eq!(error.to_string(), expected);
            script.finished().await;
        }
    }

    #[tokio::test]
    async fn nothing_a_copy_holds_is_told() {
        assert_eq!(format!("{:?}", source()), "secret s");
        let words = "Secret \"s\" is invalid: data[password]: Invalid value: \"hunter2\": no";
        let (server, _script) = scripted(vec![
            Exchange::get(PATH).missing(),
            Exchange::post(SECRETS).refuses(422, "Invalid", words),
        ]);
        let error = put(&context(server), &fence("u/20"), "ns", &new(), "b", &source()).await.unwrap_err();
        assert!(!crate::telemetry::chain(&error).contains("hunter2"));
    }

    #[tokio::test]
    async fn only_copies_of_the_one_removed_go() {
        let one = |name: &str, stamp: &str| {
            json!({"metadata": {"name": name, "namespace": "ns", "uid": "x", "resourceVersion": "7",
                "labels": {keys::BUNDLE_DEPLOYMENT: "b"}, "annotations": {keys::EPOCH_ANNOTATION: stamp}}})
        };
        let selected =
            |plural| format!("/api/v1/{plural}?labelSelector=fleet.cattle.io%2Fbundledeployment%3Db");
        let (server, script) = scripted(vec![
            Exchange::get(&selected("secrets"))
                .answers(json!({"items": [one("s", "u/10"), one("new", "other/30")]})),
            Exchange::get(PATH).answers(one("s", "u/10")),
            Exchange::delete(PATH).expecting(|sent| {
                assert_eq!(sent["preconditions"], json!({"uid": "x", "resourceVersion": "7"}))
            }),
            Exchange::get(&selected("configmaps")).answers(json!({"items": []})),
        ]);
        let ours = |live: &LiveMeta| live.stamp().is_some_and(|stamp| stamp.uid.0 == "u");
        assert_eq!(remove(&context(server), "b", &ours).await.unwrap(), 1);
        script.finished().await;
    }
}
