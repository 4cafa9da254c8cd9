// SPDX-License-Identifier: Apache-2.0
//! What templates see of the cluster: its version and what it serves.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{KindCache, KindError};
use crate::render::engine::Capabilities;

/// How long capabilities are good: a CRD that somebody else installs is no miss, so nothing else would show it.
/// Helm asks at every install; deployments within this time share one question.
const CAPABILITIES_AGE: Duration = Duration::from_secs(1);

/// What `/version` says, the part that is read.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerVersion {
    git_version: String,
}

impl KindCache {
    /// What templates see of the cluster, at most a second old.
    ///
    /// # Errors
    /// [`KindError::Discovery`]: the server did not tell.
    pub async fn capabilities(&self) -> Result<Arc<Capabilities>, KindError> {
        // Held while asking: whoever comes meanwhile waits and shares the answer.
        let mut known = self.inner.capabilities.lock().await;
        let now = Instant::now();
        if let Some((since, capabilities)) = &*known
            && now.duration_since(*since) < CAPABILITIES_AGE
        {
            return Ok(capabilities.clone());
        }
        let version: ServerVersion = self.inner.server.get("/version").await.map_err(KindError::Discovery)?;
        self.refresh().await?;
        let table = self.inner.table.read().unwrap_or_else(PoisonError::into_inner);
        let api_versions = table.api_versions.iter().cloned().collect();
        let fresh = Capabilities { kube_version: version.git_version, api_versions };
        // Equal ones stay one: they are part of keys.
        let capabilities = match known.take() {
            Some((_, old)) if *old == fresh => old,
            _ => Arc::new(fresh),
        };
        *known = Some((now, capabilities.clone()));
        Ok(capabilities)
    }

    /// What was known of them is out of date: a kind was just added.
    pub async fn forget_capabilities(&self) {
        *self.inner.capabilities.lock().await = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::testing::{Exchange, discovery, scripted};

    #[tokio::test(start_paused = true)]
    async fn capabilities_are_asked_for_anew_after_a_second_and_name_subresources() {
        let version = || Exchange::get("/version").answers(serde_json::json!({"gitVersion": "v1.36.3"}));
        let scale = serde_json::json!({"items": [{"metadata": {"name": "apps"}, "versions": [{"version": "v1",
            "resources": [{"resource": "deployments", "scope": "Namespaced", "responseKind": {"kind": "Deployment"},
                "subresources": [{"subresource": "scale", "responseKind": {"kind": "Scale"}}]}]}]}]});
        let mut exchanges = vec![version(), Exchange::get("/api"), Exchange::get("/apis").answers(scale)];
        exchanges.push(version());
        exchanges.extend(discovery(&[("gold.example.com", "v1", "widgets", "Widget", "Namespaced")]));
        let (server, script) = scripted(exchanges);
        let kinds = KindCache::new(server);
        let (one, two) = tokio::join!(kinds.capabilities(), kinds.capabilities());
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(Arc::ptr_eq(&one, &two));
        assert_eq!(one.kube_version, "v1.36.3");
        assert_eq!(one.api_versions, ["apps/v1", "apps/v1/Deployment", "apps/v1/Scale"]);
        tokio::time::advance(CAPABILITIES_AGE).await;
        let later = kinds.capabilities().await.unwrap();
        assert!(later.api_versions.iter().any(|version| version == "gold.example.com/v1/Widget"));
        script.finished().await;
    }
}
