// SPDX-License-Identifier: Apache-2.0
//! Stamps of a future that was lost: found, and set back by a person's order.
//!
//! When the management cluster is restored from a backup, its versions go back, and no new claim can exceed the stamps
//! that objects and records carry. They are never lowered by the agent itself; only here, one by one, each under the
//! uid and version at which it was read.

use std::collections::{HashMap, HashSet};

use serde_json::json;

use super::{
    Downstream,
    copies::Copied,
    kinds::{Kind, KindError},
    server::{LiveMeta, MetaOnly, RequestError},
};
use crate::{
    api::keys,
    protocol::{Stamp, Uid},
};

const MERGE: &str = "application/merge-patch+json";
/// Who sets stamps back, in the objects' own records of their writers.
const MANAGER: &str = "flotilla-reset";

/// Something with a stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// What it is, for people.
    pub object: String,
    /// The claim it was last written under.
    pub stamp: Stamp,
    path: String,
    uid: String,
    resource_version: String,
}

/// Why stamps could not be looked at or set.
#[derive(Debug, thiserror::Error)]
pub enum RestampError {
    /// What the cluster serves is not known.
    #[error("cannot tell which kinds the cluster serves")]
    Kinds(#[source] KindError),
    /// A list or a write was refused.
    #[error("cannot look at the stamp of {object}")]
    Request {
        /// What.
        object: String,
        /// Why.
        #[source]
        source: RequestError,
    },
}

/// Everything in the cluster that these BundleDeployments stamped: objects of every kind, copies of resources of the
/// management cluster, and release records.
pub async fn stamped(ctx: &Downstream, uids: &HashSet<Uid>) -> Result<Vec<Stamped>, RestampError> {
    ctx.kinds.refresh().await.map_err(RestampError::Kinds)?;
    let mut found: HashMap<String, Stamped> = HashMap::new();
    for kind in ctx.kinds.all() {
        let mut selectors = vec!["objectset.rio.cattle.io%2Fhash"];
        if Copied::ALL.iter().any(|copied| kind.is("", copied.kind())) {
            // A copy carries no hash: it is in no release.
            selectors.push("fleet.cattle.io%2Fbundledeployment");
        }
        if kind.is("", "Secret") {
            selectors.push("owner%3Dhelm");
        }
        for selector in selectors {
            let path = format!("{}?labelSelector={selector}", kind.collection(""));
            let listed = match ctx.server.metadata_list(&path).await {
                Ok(listed) => listed,
                // Not every kind can be listed, and some go away.
                Err(error) if error.status().is_some_and(|status| matches!(status.code, 404 | 405)) => {
                    continue;
                }
                Err(source) => return Err(RestampError::Request { object: kind.to_string(), source }),
            };
            let ours = listed.iter().filter_map(|live| of(&kind, live));
            for one in ours.filter(|one| uids.contains(&one.stamp.uid)) {
                found.insert(one.uid.clone(), one);
            }
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn of(kind: &Kind, live: &LiveMeta) -> Option<Stamped> {
    let place = if live.namespace.is_empty() { String::new() } else { format!("{}/", live.namespace) };
    Some(Stamped {
        object: format!("{} {place}{}", kind.resource.kind, live.name),
        stamp: live.stamp()?,
        path: kind.path(&live.namespace, &live.name),
        uid: live.uid.clone(),
        resource_version: live.resource_version.clone(),
    })
}

/// Sets one stamp, if nobody wrote the object since it was read. False: somebody did, or it is gone.
pub async fn restamp(ctx: &Downstream, one: &Stamped, stamp: &Stamp) -> Result<bool, RestampError> {
    let body = json!({"metadata": {
        "uid": one.uid,
        "resourceVersion": one.resource_version,
        "annotations": {keys::EPOCH_ANNOTATION: stamp.to_string()},
    }});
    let path = format!("{}?fieldManager={MANAGER}", one.path);
    match ctx.server.patch::<MetaOnly>(&path, MERGE, body.to_string().into_bytes()).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
        Err(source) => Err(RestampError::Request { object: one.object.clone(), source }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::downstream::testing::{Exchange, context, discovery, scripted};

    fn live(name: &str, stamp: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "annotations": {keys::EPOCH_ANNOTATION: stamp}}})
    }

    fn lists(path: &str, items: &[Value]) -> Exchange {
        let path = format!("{path}?labelSelector=objectset.rio.cattle.io%2Fhash");
        Exchange::get(&path).answers(json!({"items": items}))
    }

    #[tokio::test]
    async fn stamps_are_found_in_every_kind_and_set_under_what_was_read() {
        let copies = |path: &str, items: &[Value]| {
            let path = format!("{path}?labelSelector=fleet.cattle.io%2Fbundledeployment");
            Exchange::get(&path).answers(json!({"items": items}))
        };
        let mut exchanges = discovery(&[]);
        exchanges.extend([
            lists("/api/v1/configmaps", &[live("c", "u/99"), live("theirs", "other/99")]),
            copies("/api/v1/configmaps", &[live("copied", "u/95")]),
            lists("/api/v1/namespaces", &[]),
            lists("/api/v1/secrets", &[live("s", "u/98")]),
            copies("/api/v1/secrets", &[live("copy", "u/96"), live("their-copy", "other/96")]),
            Exchange::get("/api/v1/secrets?labelSelector=owner%3Dhelm")
                .answers(json!({"items": [live("s", "u/98"), live("record", "u/97")]})),
            lists("/api/v1/services", &[]),
            lists("/api/v1/serviceaccounts", &[]),
            Exchange::get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").refuses(
                405,
                "MethodNotAllowed",
                "no list",
            ),
            lists("/apis/apps/v1/deployments", &[]),
        ]);
        let patches = Exchange::patch("/api/v1/namespaces/ns/configmaps/c?fieldManager=flotilla-reset");
        exchanges.push(patches.expecting(|sent| {
            assert_eq!(sent["metadata"]["uid"], "uid-c");
            assert_eq!(sent["metadata"]["resourceVersion"], "7");
            assert_eq!(sent["metadata"]["annotations"], json!({keys::EPOCH_ANNOTATION: "u/5"}));
        }));
        exchanges.push(Exchange::patch("/api/v1/namespaces/ns/secrets/record").conflicts());
        let (server, script) = scripted(exchanges);
        let ctx = context(server);
        let found = stamped(&ctx, &HashSet::from(["u".into()])).await.unwrap();
        let told: Vec<_> = found.iter().map(|one| (&*one.object, &*one.stamp.epoch.0)).collect();
        let expected = [
            ("ConfigMap ns/c", "99"),
            ("ConfigMap ns/copied", "95"),
            ("Secret ns/copy", "96"),
            ("Secret ns/record", "97"),
            ("Secret ns/s", "98"),
        ];
        assert_eq!(told, expected);
        let stamp = Stamp::parse("u/5").unwrap();
        assert!(restamp(&ctx, &found[0], &stamp).await.unwrap());
        assert!(!restamp(&ctx, &found[3], &stamp).await.unwrap(), "somebody wrote it meanwhile");
        script.finished().await;
    }
}
