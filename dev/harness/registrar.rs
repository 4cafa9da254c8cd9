// SPDX-License-Identifier: Apache-2.0
//! A stand-in for the part of Fleet's controller that registers clusters: tokens, requests, credentials.
//!
//! It is not Fleet's code. It does what Fleet's controller was read to do, with the same objects, names and rights, so
//! that an agent finds the same conditions: a token that may create requests and nothing else, credentials that only the
//! token named by the request may read, and rights that come after them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flotilla::api::names::{registration_secret, safe_concat_name};
use futures::StreamExt;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::control_plane::ControlPlane;
use super::fleet::{self, REGISTRATION_NAMESPACE};

/// Where credentials are left.
pub const CREDENTIALS_NAMESPACE: &str = "cattle-fleet-clusters-system";

/// Fleet's, as far as an agent can tell.
const CRDS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusterregistrations.fleet.cattle.io}
spec:
  group: fleet.cattle.io
  scope: Namespaced
  names: {kind: ClusterRegistration, listKind: ClusterRegistrationList, plural: clusterregistrations, singular: clusterregistration}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              clientID: {type: string, nullable: true}
              clientRandom: {type: string, nullable: true}
              clusterLabels: {type: object, nullable: true, additionalProperties: {type: string, nullable: true}}
          status:
            type: object
            properties:
              clusterName: {type: string, nullable: true}
              granted: {type: boolean}
";

/// The stand-in. It stops when dropped.
pub struct Registrar {
    client: Client,
    url: String,
    ca: String,
    held: Held,
    task: JoinHandle<()>,
}

/// Clients whose requests are not granted for now.
type Held = Arc<watch::Sender<BTreeSet<String>>>;

impl Registrar {
    /// Prepares `upstream`, whose other CRDs are installed, and begins to grant.
    pub async fn start(upstream: &ControlPlane) -> anyhow::Result<Registrar> {
        fleet::install_crds_from(upstream, CRDS).await?;
        let client = upstream.admin().await?;
        for namespace in [REGISTRATION_NAMESPACE, CREDENTIALS_NAMESPACE] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            fleet::apply(&client, object).await?;
        }
        let held = Held::default();
        let task = tokio::spawn(run(client.clone(), held.clone()));
        Ok(Registrar { client, url: upstream.url(), ca: upstream.ca_pem().to_owned(), held, task })
    }

    /// Makes a token, and the bootstrap Secret for `namespace` downstream that carries it.
    pub async fn bootstrap(&self, token: &str, namespace: &str) -> anyhow::Result<Value> {
        self.bootstrap_at(&self.url, &self.ca, token, namespace).await
    }

    /// The same with the management cluster at `url`, and with `ca` as its authority: PEM, or nothing.
    pub async fn bootstrap_at(
        &self,
        url: &str,
        ca: &str,
        token: &str,
        namespace: &str,
    ) -> anyhow::Result<Value> {
        for object in token_objects(token) {
            fleet::apply(&self.client, object).await?;
        }
        let bearer = fleet::token(&self.client, REGISTRATION_NAMESPACE, token).await?;
        let values = format!(
            "clusterNamespace: {REGISTRATION_NAMESPACE}\napiServerURL: {url}\ntoken: {bearer}\ntokenName: {token}\n\
             systemRegistrationNamespace: {CREDENTIALS_NAMESPACE}\napiServerCA: {}\n",
            serde_json::to_string(ca)?,
        );
        Ok(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {
            "name": "fleet-agent-bootstrap", "namespace": namespace,
        }, "stringData": {"values": values}}))
    }

    /// Grants nothing to this client from now on, or grants again what waits.
    pub fn hold(&self, client_id: &str, held: bool) {
        self.held.send_modify(|clients| {
            if held {
                clients.insert(client_id.to_owned());
            } else {
                clients.remove(client_id);
            }
        });
    }

    /// All requests of a client that there are.
    pub async fn requests(&self, client_id: &str) -> anyhow::Result<Vec<DynamicObject>> {
        let all = requests(&self.client).list(&ListParams::default()).await?;
        Ok(all.into_iter().filter(|request| request.data["spec"]["clientID"] == client_id).collect())
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("fleet.cattle.io", "v1alpha1", kind))
}

fn requests(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), REGISTRATION_NAMESPACE, &kind("ClusterRegistration"))
}

async fn run(client: Client, held: Held) {
    let mut events =
        Box::pin(watcher(requests(&client), watcher::Config::default()).default_backoff().touched_objects());
    // They end with the stand-in.
    let mut grants = JoinSet::new();
    while let Some(event) = events.next().await {
        let Ok(request) = event else { continue };
        if request.data["status"]["granted"] == true || request.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (client, mut held) = (client.clone(), held.subscribe());
        grants.spawn(async move {
            let id = text(&request.data["spec"]["clientID"]);
            if held.wait_for(|held| !held.contains(&id)).await.is_err() {
                return;
            }
            // A conflict or a lost race: once more, as a work queue would.
            for _ in 0..5 {
                // Another one may have taken its place meanwhile.
                match requests(&client).get_opt(&request.name_any()).await {
                    Ok(Some(now)) if now.data["status"]["granted"] != true => {}
                    Ok(_) => break,
                    Err(_) => continue,
                }
                match grant(&client, &request).await {
                    Ok(()) => break,
                    Err(cause) => {
                        eprintln!("the stand-in for Fleet's controller: {cause:#}");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                }
            }
        });
    }
}

/// A Cluster, an account with its rights, the credentials, and the word `granted`, in the controller's order.
async fn grant(client: &Client, request: &DynamicObject) -> anyhow::Result<()> {
    let name = request.name_any();
    let spec = &request.data["spec"];
    let (id, random) = (text(&spec["clientID"]), text(&spec["clientRandom"]));
    let (cluster, cluster_namespace) = cluster(client, &id, &spec["clusterLabels"]).await?;
    let account = safe_concat_name(&[&name, request.metadata.uid.as_deref().unwrap_or_default()]);
    fleet::apply(client, account_object(&account, &cluster, &cluster_namespace, &name)).await?;
    let token = fleet::token(client, &cluster_namespace, &account).await?;

    let mine = request.metadata.creation_timestamp.clone();
    for other in requests(client).list(&ListParams::default()).await? {
        let older = other.data["spec"]["clientID"] == spec["clientID"]
            && other.metadata.uid != request.metadata.uid
            && other.metadata.creation_timestamp < mine;
        if older {
            requests(client).delete(&other.name_any(), &DeleteParams::default()).await?;
        }
    }
    let secret = registration_secret(&id, &random);
    let objects = credential_objects(&Grant {
        request: &name,
        token_name: request.labels().get("fleet.cattle.io/registration-token").map_or("", String::as_str),
        account: &account,
        cluster: &cluster,
        cluster_namespace: &cluster_namespace,
        secret: &secret,
        token: &token,
    });
    for object in objects {
        fleet::apply(client, object).await?;
    }
    let status = json!({"status": {"granted": true, "clusterName": cluster}});
    requests(client)
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .with_context(|| format!("granting {name}"))?;
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The Cluster of a client, made when there is none, and its namespace.
async fn cluster(client: &Client, id: &str, labels: &Value) -> anyhow::Result<(String, String)> {
    let hash: String = Sha256::digest(id).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let name = format!("cluster-{hash}");
    let namespace = fleet::cluster_namespace(REGISTRATION_NAMESPACE, &name);
    let kept = |key: &str| {
        let reserved = key.starts_with("fleet.cattle.io/") || key.starts_with("management.cattle.io/");
        !reserved || key == "fleet.cattle.io/created-by-agent-pod"
    };
    let labels: BTreeMap<&String, &Value> =
        labels.as_object().into_iter().flatten().filter(|(key, _)| kept(key)).collect();
    let object = json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": {
        "name": name, "namespace": REGISTRATION_NAMESPACE, "labels": labels,
    }, "spec": {"clientID": id}});
    fleet::apply(client, object).await?;
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": namespace, "labels": {"fleet.cattle.io/managed": "true"},
        "annotations": {
            "fleet.cattle.io/cluster": name, "fleet.cattle.io/cluster-namespace": REGISTRATION_NAMESPACE,
        },
    }});
    fleet::apply(client, object).await?;
    let clusters: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), REGISTRATION_NAMESPACE, &kind("Cluster"));
    let status = json!({"status": {"namespace": namespace}});
    clusters.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok((name, namespace))
}

fn account_object(account: &str, cluster: &str, cluster_namespace: &str, request: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
        "name": account, "namespace": cluster_namespace, "labels": {"fleet.cattle.io/managed": "true"},
        "annotations": {
            "fleet.cattle.io/cluster": cluster,
            "fleet.cattle.io/cluster-registration": request,
            "fleet.cattle.io/cluster-registration-namespace": REGISTRATION_NAMESPACE,
        },
    }})
}

struct Grant<'a> {
    request: &'a str,
    token_name: &'a str,
    account: &'a str,
    cluster: &'a str,
    cluster_namespace: &'a str,
    secret: &'a str,
    token: &'a str,
}

fn credential_objects(grant: &Grant<'_>) -> Vec<Value> {
    let Grant { request, token_name, account, cluster, cluster_namespace, secret, token } = grant;
    let rbac = "rbac.authorization.k8s.io/v1";
    let managed = json!({"fleet.cattle.io/managed": "true"});
    let role =
        |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let agent = json!([{"kind": "ServiceAccount", "name": account, "namespace": cluster_namespace}]);
    let asker = json!([{"kind": "ServiceAccount", "name": token_name, "namespace": REGISTRATION_NAMESPACE}]);
    let creds = format!("{request}-creds");
    vec![
        json!({"apiVersion": "v1", "kind": "Secret", "type": "fleet.cattle.io/agent-credential", "metadata": {
            "name": secret, "namespace": CREDENTIALS_NAMESPACE,
            "labels": {"fleet.cattle.io/managed": "true", "fleet.cattle.io/cluster": cluster},
        }, "stringData": {
            "token": token, "deploymentNamespace": cluster_namespace, "clusterNamespace": REGISTRATION_NAMESPACE,
            "clusterName": cluster, "systemNamespace": "cattle-fleet-system",
        }}),
        json!({"apiVersion": rbac, "kind": "Role",
        "metadata": {"name": creds, "namespace": CREDENTIALS_NAMESPACE, "labels": managed}, "rules": [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": [secret]},
        ]}),
        json!({"apiVersion": rbac, "kind": "RoleBinding",
            "metadata": {"name": creds, "namespace": CREDENTIALS_NAMESPACE, "labels": managed},
            "roleRef": role("Role", &creds), "subjects": asker}),
        json!({"apiVersion": rbac, "kind": "Role",
        "metadata": {"name": request, "namespace": REGISTRATION_NAMESPACE, "labels": managed}, "rules": [
            {"apiGroups": ["fleet.cattle.io"], "resources": ["clusters/status"], "verbs": ["patch"],
                "resourceNames": [cluster]},
        ]}),
        json!({"apiVersion": rbac, "kind": "RoleBinding",
            "metadata": {"name": request, "namespace": REGISTRATION_NAMESPACE, "labels": managed},
            "roleRef": role("Role", request), "subjects": agent}),
        json!({"apiVersion": rbac, "kind": "RoleBinding",
            "metadata": {"name": request, "namespace": cluster_namespace, "labels": managed},
            "roleRef": role("ClusterRole", "fleet-bundle-deployment"), "subjects": agent}),
        json!({"apiVersion": rbac, "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("{request}-content"), "labels": managed},
            "roleRef": role("ClusterRole", "fleet-content"), "subjects": agent}),
    ]
}

/// The account of a token may create requests, and nothing else.
fn token_objects(token: &str) -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let place = |name: &str| json!({"name": name, "namespace": REGISTRATION_NAMESPACE});
    let role = format!("{token}-role");
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place(token)}),
        json!({"apiVersion": rbac, "kind": "Role", "metadata": place(&role), "rules": [
            {"apiGroups": ["fleet.cattle.io"], "resources": ["clusterregistrations"], "verbs": ["create"]},
        ]}),
        json!({"apiVersion": rbac, "kind": "RoleBinding", "metadata": place(&role),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": token, "namespace": REGISTRATION_NAMESPACE}]}),
    ]
}
