// SPDX-License-Identifier: Apache-2.0
//! Which releases a cluster has, cheaply: metadata only, nothing decoded.

use std::collections::HashMap;

use super::{
    ReleaseError, Store,
    store::{collection, secret_name},
};
use crate::{api::ReleaseId, downstream::server::push_segment};

/// A release by its newest record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The newest revision.
    pub revision: u32,
    /// The newest record's version: unchanged means that nothing of it changed.
    pub resource_version: String,
}

impl Store {
    /// Whether the record of this very revision is there. One request, without its payload.
    pub async fn has(&self, release: &ReleaseId) -> Result<bool, ReleaseError> {
        let mut path = collection(&release.namespace);
        path.push('/');
        push_segment(&mut path, &secret_name(&release.name, release.revision));
        let found = self.reader().metadata(&path).await;
        let found = found.map_err(|source| ReleaseError::Read { release: release.to_string(), source })?;
        Ok(found.is_some())
    }

    /// All releases of all namespaces, whoever made them. One request; their payloads stay on the server.
    pub async fn releases(&self) -> Result<Vec<Standing>, ReleaseError> {
        let path = "/api/v1/secrets?labelSelector=owner%3Dhelm";
        let found = self.reader().metadata_list(path).await;
        let found = found.map_err(|source| ReleaseError::Read { release: "all".into(), source })?;
        let mut newest: HashMap<(String, String), Standing> = HashMap::new();
        for record in found {
            let label = |key: &str| record.labels.get(key).map(String::as_str);
            let (Some(name), Some(Ok(revision))) = (label("name"), label("version").map(str::parse)) else {
                continue;
            };
            let key = (record.namespace.clone(), name.to_owned());
            if newest.get(&key).is_none_or(|known| known.revision < revision) {
                let (namespace, name) = key.clone();
                let resource_version = record.resource_version.clone();
                newest.insert(key, Standing { namespace, name, revision, resource_version });
            }
        }
        let mut releases: Vec<_> = newest.into_values().collect();
        releases.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(releases)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::downstream::testing::{Exchange, context, scripted};

    fn record(namespace: &str, name: &str, revision: &str) -> Value {
        json!({"metadata": {"name": format!("sh.helm.release.v1.{name}.v{revision}"), "namespace": namespace,
            "resourceVersion": format!("10{revision}"), "labels": {"owner": "helm", "name": name, "version": revision}}})
    }

    #[tokio::test]
    async fn one_revision_is_read_without_the_others() {
        let path = "/api/v1/namespaces/a/secrets/sh.helm.release.v1.app.v10";
        let (server, script) = scripted(vec![
            Exchange::get(path).answers(record("a", "app", "10")),
            Exchange::get(path).missing(),
        ]);
        let store = context(server).store;
        let release = "a/app:10".parse().unwrap();
        let found = store.revision(&release).await.unwrap().unwrap();
        assert_eq!((found.revision, found.release.is_err()), (10, true), "this one holds nothing to decode");
        assert!(store.revision(&release).await.unwrap().is_none());
        script.finished().await;
        // Something on the way, that knows nothing of Secrets.
        let (server, script) = scripted(vec![Exchange::get(path).refuses(404, "", "404 page not found")]);
        assert!(context(server).store.revision(&release).await.is_err());
        script.finished().await;
    }

    #[tokio::test]
    async fn each_release_is_told_once_by_its_newest_record() {
        let strange = json!({"metadata": {"name": "x", "namespace": "a", "labels": {"owner": "helm"}}});
        let items = [record("b", "app", "9"), record("b", "app", "10"), record("a", "app", "1"), strange];
        let (server, script) = scripted(vec![
            Exchange::get("/api/v1/secrets?labelSelector=owner%3Dhelm").answers(json!({"items": items})),
        ]);
        let releases = context(server).store.releases().await.unwrap();
        let told: Vec<_> = releases
            .iter()
            .map(|release| {
                (&*release.namespace, &*release.name, release.revision, &*release.resource_version)
            })
            .collect();
        assert_eq!(told, [("a", "app", 1, "101"), ("b", "app", 10, "1010")]);
        script.finished().await;
    }
}
