// SPDX-License-Identifier: Apache-2.0
//! The check-in: the sign of life in `Cluster.status.agent`, the one write that can have no precondition.
//!
//! The agent's role allows `patch` on `clusters/status` of its own Cluster and no read of it, so there is no version to
//! name. It needs none: the patch replaces this one field, which is the agent's alone, and the last writer is right
//! within an interval (docs/limits.md).

use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Upstream, UpstreamError};

/// What is written, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckIn {
    /// Name of the Cluster.
    pub cluster: String,
    /// Namespace of the Cluster: the registration namespace.
    pub registration_namespace: String,
    /// Now, RFC 3339, in seconds.
    pub last_seen: String,
    /// The agent's namespace in its own cluster.
    pub agent_namespace: String,
}

impl CheckIn {
    fn agent(&self) -> Value {
        json!({"lastSeen": self.last_seen, "namespace": self.agent_namespace})
    }

    /// Fleet's patch. The server answers 422 while the Cluster has no status to add to.
    fn addition(&self) -> Result<Patch<Value>, serde_json::Error> {
        let operations = json!([{"op": "add", "path": "/status/agent", "value": self.agent()}]);
        Ok(Patch::Json(serde_json::from_value(operations)?))
    }

    /// The same for a Cluster without a status. Should it have got one meanwhile, its other fields stay.
    fn beginning(&self) -> Patch<Value> {
        Patch::Merge(json!({"status": {"agent": self.agent()}}))
    }
}

impl Upstream {
    /// Writes the sign of life.
    pub async fn check_in(&self, sign: &CheckIn) -> Result<(), UpstreamError> {
        let object = || format!("status of cluster {}/{}", sign.registration_namespace, sign.cluster);
        // Untyped: what the Cluster looks like otherwise is none of the agent's business.
        let resource = ApiResource {
            group: "fleet.cattle.io".into(),
            version: "v1alpha1".into(),
            api_version: "fleet.cattle.io/v1alpha1".into(),
            kind: "Cluster".into(),
            plural: "clusters".into(),
        };
        let clusters: Api<DynamicObject> =
            Api::namespaced_with(self.client(), &sign.registration_namespace, &resource);
        let params = PatchParams::default();
        let write = async |patch: Patch<Value>| {
            let call = clusters.patch_status(&sign.cluster, &params, &patch);
            self.noted(call).await.map_err(|_| UpstreamError::Timeout { object: object() })
        };
        let failed =
            |source: kube::Error| UpstreamError::Write { object: object(), source: Box::new(source) };
        let addition = sign.addition().map_err(|error| failed(kube::Error::SerdeError(error)))?;
        match write(addition).await? {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 422 => {
                write(sign.beginning()).await?.map(drop).map_err(failed)
            }
            Err(source) => Err(failed(source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::scripted;

    fn sign() -> CheckIn {
        CheckIn {
            cluster: "shop".into(),
            registration_namespace: "fleet-default".into(),
            last_seen: "2026-01-02T03:04:05Z".into(),
            agent_namespace: "cattle-fleet-system".into(),
        }
    }

    fn cluster() -> Value {
        json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "shop"}})
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_without_a_status_is_given_one_and_nothing_else_is_written() {
        let (client, mut server) = scripted::client();
        let upstream = Upstream::with_client(client, "c1".into());
        let written = tokio::spawn(async move { upstream.check_in(&sign()).await });
        let call = server.next().await;
        assert_eq!(
            call.line(),
            "PATCH /apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusters/shop/status"
        );
        let agent = json!({"lastSeen": "2026-01-02T03:04:05Z", "namespace": "cattle-fleet-system"});
        assert_eq!(call.body, json!([{"op": "add", "path": "/status/agent", "value": agent}]));
        call.refuse(422, "Invalid");
        let call = server.next().await;
        assert_eq!(call.body, json!({"status": {"agent": agent}}));
        call.answer(200, &cluster());
        written.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_an_error_and_is_not_repeated_in_another_form() {
        let (client, mut server) = scripted::client();
        let upstream = Upstream::with_client(client, "c1".into());
        let written = tokio::spawn(async move { upstream.check_in(&sign()).await });
        server.next().await.refuse(403, "Forbidden");
        assert!(written.await.unwrap().is_err());
        assert!(server.try_next().await.is_none());
    }
}
