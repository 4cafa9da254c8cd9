// SPDX-License-Identifier: Apache-2.0
//! Whether BundleDeployments are served as a kind: a CRD that is being removed deletes all of them.

use std::collections::BTreeSet;

use kube::api::ListParams;

use super::{Upstream, UpstreamError};
use crate::protocol::{Epoch, Uid};

const GROUP_VERSION: &str = "fleet.cattle.io/v1alpha1";
const PLURAL: &str = "bundledeployments";

impl Upstream {
    /// Whether the kind is served, may be created, and can be listed by us.
    ///
    /// The agent may not read CRDs, but discovery is everybody's: a CRD that is being deleted is still listed there,
    /// without the verb `create`. An error is no answer.
    pub async fn serves_units(&self) -> Result<bool, UpstreamError> {
        let object = || format!("what {GROUP_VERSION} serves");
        let client = self.client();
        let served = match self.in_time(client.list_api_group_resources(GROUP_VERSION), object).await? {
            Ok(served) => served,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            Err(source) => return Err(UpstreamError::Read { object: object(), source: Box::new(source) }),
        };
        let whole = served
            .resources
            .iter()
            .any(|resource| resource.name == PLURAL && resource.verbs.iter().any(|verb| verb == "create"));
        if !whole {
            return Ok(false);
        }
        let object = || format!("bundledeployments in {}", self.namespace);
        let first = ListParams::default().limit(1);
        let bundle_deployments = self.bundle_deployments();
        match self.in_time(bundle_deployments.list_metadata(&first), object).await? {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(source) => Err(UpstreamError::Read { object: object(), source: Box::new(source) }),
        }
    }

    /// The newest version of the collection: no object can carry a larger one, unless it was written later.
    pub async fn newest_version(&self) -> Result<Epoch, UpstreamError> {
        let object = || format!("bundledeployments in {}", self.namespace);
        let first = ListParams::default().limit(1);
        let bundle_deployments = self.bundle_deployments();
        let list = self.in_time(bundle_deployments.list_metadata(&first), object).await?;
        let list =
            list.map_err(|source| UpstreamError::Read { object: object(), source: Box::new(source) })?;
        Ok(Epoch(list.metadata.resource_version.unwrap_or_default()))
    }

    /// Which of these BundleDeployments exist no more, by a live list.
    pub async fn gone(&self, mut uids: BTreeSet<Uid>) -> Result<BTreeSet<Uid>, UpstreamError> {
        if uids.is_empty() {
            return Ok(uids);
        }
        let object = || format!("bundledeployments in {}", self.namespace);
        let bundle_deployments = self.bundle_deployments();
        let list = self.in_time(bundle_deployments.list_metadata(&ListParams::default()), object).await?;
        let list =
            list.map_err(|source| UpstreamError::Read { object: object(), source: Box::new(source) })?;
        for living in list.items {
            uids.remove(&Uid(living.metadata.uid.unwrap_or_default()));
        }
        Ok(uids)
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = kube::Result<T>>,
        object: impl FnOnce() -> String,
    ) -> Result<kube::Result<T>, UpstreamError> {
        let answer = self.noted(call).await;
        answer.map_err(|_| UpstreamError::Timeout { object: object() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::telemetry::scripted;

    fn discovery(verbs: &[&str]) -> Value {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION, "resources": [
            {"name": PLURAL, "singularName": "", "namespaced": true, "kind": "BundleDeployment", "verbs": verbs},
            {"name": "contents", "singularName": "", "namespaced": false, "kind": "Content", "verbs": ["create"]},
        ]})
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_going_or_gone_is_not_served() {
        for (answer, served) in [
            (Some(discovery(&["get", "list", "create"])), true),
            (Some(discovery(&["get", "list", "delete", "watch"])), false),
            (None, false),
        ] {
            let (client, mut server) = scripted::client();
            let upstream = Upstream::with_client(client, "c1".into());
            let asked = tokio::spawn(async move { upstream.serves_units().await });
            let call = server.next().await;
            assert_eq!(call.line(), "GET /apis/fleet.cattle.io/v1alpha1");
            match answer {
                Some(list) => call.answer(200, &list),
                None => call.refuse(404, "NotFound"),
            }
            if served {
                let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": "9"}, "items": []});
                server.next().await.answer(200, &list);
            }
            assert_eq!(asked.await.unwrap().unwrap(), served);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_live_list_does_not_name_is_gone() {
        let uids = |uids: &[&str]| uids.iter().map(|uid| Uid((*uid).into())).collect::<BTreeSet<_>>();
        let (client, mut server) = scripted::client();
        let upstream = Upstream::with_client(client, "c1".into());
        assert_eq!(upstream.gone(uids(&[])).await.unwrap(), uids(&[]), "nothing is asked for nothing");

        let asked = tokio::spawn(async move {
            let gone = upstream.gone(uids(&["u1", "u2"])).await;
            (gone, upstream.gone(uids(&["u1"])).await)
        });
        let call = server.next().await;
        assert_eq!(call.line(), "GET /apis/fleet.cattle.io/v1alpha1/namespaces/c1/bundledeployments");
        // Without a version the list comes from storage, not from a cache; without a limit it is whole.
        assert!(!call.query.contains("resourceVersion") && !call.query.contains("limit"), "{}", call.query);
        let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "9"}, "items": [
            {"metadata": {"name": "app", "namespace": "c1", "uid": "u2"}},
            {"metadata": {"name": "other", "namespace": "c1", "uid": "u3"}},
        ]});
        call.answer(200, &list);
        server.next().await.refuse(503, "ServiceUnavailable");
        let (gone, unknown) = asked.await.unwrap();
        assert_eq!(gone.unwrap(), uids(&["u1"]));
        assert!(matches!(unknown, Err(UpstreamError::Read { .. })), "a failed list says nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_asked_is_no_answer() {
        let (client, mut server) = scripted::client();
        let upstream = Upstream::with_client(client, "c1".into());
        let asked = tokio::spawn(async move { upstream.serves_units().await });
        server.next().await.answer(200, &discovery(&["create"]));
        server.next().await.refuse(403, "Forbidden");
        assert!(asked.await.unwrap().is_err());
    }
}
