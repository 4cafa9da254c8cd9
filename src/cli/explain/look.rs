// SPDX-License-Identifier: Apache-2.0
//! Reads what an explanation rests on. Only the BundleDeployment itself must be there: whatever else is refused is
//! told as not seen.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::facts::{Below, Revision, SessionFact, Writers};
use crate::{
    agent::dependencies,
    api::{self, BundleDeployment, ReleaseId, keys},
    cli::{error::CliError, output},
    downstream::{
        Downstream,
        release::Record,
        session::{self, SessionView},
    },
    telemetry::chain,
};

/// One request's limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the bundle's dependencies are ready.
pub async fn dependencies(upstream: &Client, bd: &BundleDeployment) -> Result<Result<(), String>, CliError> {
    if bd.spec.depends_on.is_empty() {
        return Ok(Ok(()));
    }
    let namespace = bd.namespace().unwrap_or_default();
    let api: Api<BundleDeployment> = Api::namespaced(upstream.clone(), &namespace);
    let listing = format!("list BundleDeployments in {namespace}");
    let all = api.list(&ListParams::default()).await.map_err(CliError::server(listing))?;
    Ok(dependencies::check(bd, all.items.iter()))
}

/// What the cluster below shows of a bundle.
pub async fn below(client: Client, bd: &BundleDeployment, now: DateTime<Utc>) -> Below {
    let namespace = bd.namespace().unwrap_or_default();
    let downstream = Downstream::new(client.clone(), REQUEST_TIMEOUT, Arc::new(move || now));
    let sessions = session::list_views(client, None, &namespace);
    let (sessions, history, writers) =
        tokio::join!(sessions, history(&downstream, bd), writers(&downstream, bd));
    let sessions = sessions.map_err(|error| chain(&error));
    Below {
        sessions: sessions.map(|sessions| sessions.iter().map(|session| fact(session, now)).collect()),
        history,
        writers,
    }
}

fn fact(view: &SessionView, now: DateTime<Utc>) -> SessionFact {
    SessionFact {
        session: view.session.session.0.clone(),
        holder: view.session.holder.0.clone(),
        silent: view.renewed.map(|renewed| now.timestamp() - renewed.as_second()),
        ttl: view.ttl.into(),
        free_slots: view.session.free_slots,
    }
}

async fn history(downstream: &Downstream, bd: &BundleDeployment) -> Result<Vec<Revision>, String> {
    let standing = bd.status.as_ref().and_then(|status| status.release.parse::<ReleaseId>().ok());
    let (namespace, name) = match standing {
        Some(release) => (release.namespace, release.name),
        None => {
            let options = bd.options();
            (api::release_namespace(&options).to_owned(), api::release_name(&bd.name_any(), &options))
        }
    };
    let records = downstream.store.history(&namespace, &name).await.map_err(|error| chain(&error))?;
    Ok(records.iter().map(revision).collect())
}

fn revision(record: &Record) -> Revision {
    let release = record.release.as_ref().ok();
    Revision {
        revision: record.revision,
        status: record.status.to_string(),
        description: release.map(|release| release.info.description.clone()).unwrap_or_default(),
        ours: record.stamp().is_some(),
    }
}

/// Who else owns fields of the objects that differ. An object that cannot be read has no entry.
async fn writers(downstream: &Downstream, bd: &BundleDeployment) -> Vec<Writers> {
    let mut found = Vec::new();
    for entry in bd.status.iter().flat_map(|status| &status.modified_status) {
        let Ok(kind) = downstream.kinds.resolve(&entry.api_version, &entry.kind).await else { continue };
        let read = downstream.server.metadata(&kind.path(&entry.namespace, &entry.name)).await;
        if let Ok(Some(live)) = read {
            found.push(Writers {
                object: output::place(&entry.kind, &entry.namespace, &entry.name),
                managers: managers(live.managed_fields),
            });
        }
    }
    found
}

fn managers(mut entries: Vec<ManagedFieldsEntry>) -> Vec<String> {
    entries.retain(|entry| entry.manager.as_deref() != Some(keys::FIELD_MANAGER));
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.time.as_ref().map(|time| time.0)));
    let told = entries.into_iter().map(|entry| {
        let manager = entry.manager.unwrap_or_else(|| "unknown".to_owned());
        let operation = entry.operation.unwrap_or_default();
        let part = entry.subresource.map(|part| format!(" of {part}")).unwrap_or_default();
        match entry.time {
            Some(time) => format!("{manager} ({operation}{part}, {})", time.0),
            None => format!("{manager} ({operation}{part})"),
        }
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_writers_are_told_the_newest_first() {
        let entries = json!([
            {"manager": "fleetagent", "operation": "Apply", "time": "2026-01-03T00:00:00Z"},
            {"manager": "kubectl-edit", "operation": "Update", "time": "2026-01-01T00:00:00Z"},
            {"manager": "hpa", "operation": "Update", "subresource": "scale", "time": "2026-01-02T00:00:00Z"},
        ]);
        let entries = serde_json::from_value(entries).unwrap();
        assert_eq!(
            managers(entries),
            ["hpa (Update of scale, 2026-01-02T00:00:00Z)", "kubectl-edit (Update, 2026-01-01T00:00:00Z)"]
        );
    }
}
