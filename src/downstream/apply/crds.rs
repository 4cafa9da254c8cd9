// SPDX-License-Identifier: Apache-2.0
//! CustomResourceDefinitions: served before anything of their kinds is written. Those of a chart's `crds/` are created
//! if they are absent and never changed or deleted, as with Helm.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    runtime::wait::{await_condition, conditions},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{
    ApplyError, CREATE_ONLY,
    body::{self, Overlay},
    kind_of,
};
use crate::{
    api::keys,
    downstream::{
        Downstream,
        fence::{Fence, Fenced},
        objects::{Place, is_askable},
        release::APPLY,
        server::RequestError,
    },
    render::Object,
};

/// How long a CRD may take until the API server serves it; Helm's own limit for CRDs.
const CRD_WAIT: Duration = Duration::from_secs(60);
/// Discovery lags behind `Established`, and nothing can be watched for it: looked at this often, this far apart.
const DISCOVERY_ROUNDS: u32 = 20;
const DISCOVERY_PAUSE: Duration = Duration::from_millis(250);

/// Creates the objects of `crds/` that are absent, and waits until they are served. Whether any was created.
///
/// They belong to no release and carry no stamp: nothing of ours ever writes them again.
///
/// # Errors
/// As for other objects, and [`ApplyError::NotEstablished`].
pub async fn install(ctx: &Downstream, fence: &Fence, crds: &[Object]) -> Result<bool, ApplyError> {
    let mut created = Vec::new();
    for crd in crds {
        if !is_askable(&crd.name) {
            return Err(ApplyError::Name { kind: crd.kind.clone(), name: crd.name.clone() });
        }
        let kind = kind_of(ctx, crd).await?;
        let namespace = if kind.namespaced { crd.namespace.as_str() } else { "" };
        let place = Place { kind: &kind, namespace, name: &crd.name };
        let object = || place.to_string();
        fence.uncompared().await.map_err(|source| ApplyError::Fenced { object: object(), source })?;
        let overlay = Overlay {
            release: None,
            stamp: None,
            uid: None,
            resource_version: CREATE_ONLY,
            namespace,
            leave_replicas: false,
        };
        let refused = |source| ApplyError::Refused { object: object(), source };
        let body =
            body::bytes(&crd.value, &overlay).map_err(|error| refused(RequestError::Unwritable(error)))?;
        let path = format!("{}?fieldManager={}&force=true", place.path(), keys::FIELD_MANAGER);
        match ctx.server.patch::<Value>(&path, APPLY, body).await {
            Ok(live) => {
                info!(object = %place, "created from crds/");
                created.push((crd, live));
            }
            Err(error) if error.is_conflict() => {
                debug!(object = %place, "is there already and stays as it is")
            }
            Err(source) => return Err(refused(source)),
        }
    }
    let defining = |crd: &Object| crd.kind == "CustomResourceDefinition";
    let written: Vec<_> = created
        .iter()
        .filter(|(crd, _)| defining(crd))
        .map(|(crd, live)| (crd.name.as_str(), live))
        .collect();
    let shown = || created.iter().all(|(crd, _)| !defining(crd) || is_shown(ctx, &crd.value["spec"]));
    if !written.is_empty() {
        establish(ctx, &fence.cancelled, &written, &shown).await?;
        ctx.kinds.forget_capabilities().await;
    }
    Ok(!created.is_empty())
}

/// Whether discovery shows every version that a CRD serves.
pub(in crate::downstream) fn is_shown(ctx: &Downstream, spec: &Value) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, kind) = (text(&spec["group"]), text(&spec["names"]["kind"]));
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let served = versions.iter().filter(|version| version["served"] == true);
    served
        .into_iter()
        .all(|version| ctx.kinds.known(&format!("{group}/{}", text(&version["name"])), &kind).is_some())
}

/// Waits until the CRDs just written (name and the server's answer) are served, then until discovery shows the kinds
/// that wait for them.
pub(in crate::downstream) async fn establish(
    ctx: &Downstream,
    cancelled: &CancellationToken,
    crds: &[(&str, &Value)],
    shown: &(dyn Fn() -> bool + Sync),
) -> Result<(), ApplyError> {
    let api: Api<CustomResourceDefinition> = Api::all(ctx.server.client().clone());
    let mut waited = false;
    for &(name, live) in crds {
        if is_established(live) {
            continue;
        }
        waited = true;
        let not_established = || ApplyError::NotEstablished { name: name.to_owned() };
        let served = await_condition(api.clone(), name, conditions::is_crd_established());
        tokio::select! {
            served = tokio::time::timeout(CRD_WAIT, served) => match served {
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => return Err(not_established()),
            },
            () = cancelled.cancelled() => {
                return Err(ApplyError::Fenced { object: name.to_owned(), source: Fenced::Cancelled });
            }
        }
    }
    if !waited && shown() {
        return Ok(());
    }
    for round in 0..DISCOVERY_ROUNDS {
        if round > 0 {
            tokio::time::sleep(DISCOVERY_PAUSE).await;
        }
        // A failed renewal is no verdict: what is still missing afterwards is told by the kind's own lookup.
        if ctx.kinds.refresh().await.is_ok() && shown() {
            break;
        }
        if cancelled.is_cancelled() {
            break;
        }
    }
    Ok(())
}

fn is_established(crd: &Value) -> bool {
    let conditions = crd["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}
