// SPDX-License-Identifier: Apache-2.0
//! Hears the second witness, the servers' audit logs, when everything stands still, and the judge once more on its account.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::Context;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::audited::{self, Log};
use super::disturber::Done;
use super::etcd;
use super::judgement::{self, Judgement, Promises};
use super::load::Story;
use super::witness::{Evidence, Witness, is_judged, units_of};
use crate::harness::world::World;
use crate::harness::{ControlPlane, GENEROUS, until};

/// The end of a log that is searched for the mark, in bytes: far longer than a line.
const TAIL: u64 = 1 << 20;
/// An object that nobody else writes, made last of all.
const MARK: &str = "end-of-chaos";

/// Compares both witnesses, and lets the judge judge by the logs alone what needs no clock. What they, or the two
/// judgements, differ in is added to `judgement`.
pub async fn examine(
    world: &World,
    witness: &Witness,
    story: &Story,
    promises: Promises,
    judgement: &mut Judgement,
) -> anyhow::Result<()> {
    let units = units_of(&world.registration.cluster_namespace);
    let mut told = Evidence::default();
    for (plane, server) in [("upstream", &world.upstream), ("downstream", &world.downstream)] {
        let wanted = |key: &str| is_judged(plane, &units, key);
        mark(server).await.with_context(|| format!("the audit log of {plane}"))?;
        let log = Log::read(BufReader::new(File::open(server.audit_log())?), wanted)?;
        judgement.refused += log.refused;
        // After the log: what is written from now on, nobody asked for.
        let compared = log.compare(etcd::history(server.etcd_url(), wanted).await?);
        judgement.audited += compared.versions.len();
        judgement.unanswered += compared.unanswered;
        judgement.disagreements.extend(compared.disagreements);
        compared.versions.into_iter().for_each(|version| told.take(version, &units));
    }
    judgement.disagreements.extend(witness.look(|seen| audited::differences(seen, &told)));
    let again = judgement::judge(&told, story, &Done::default(), promises);
    for (name, one, other) in [
        ("double deployments", &judgement.doubles, &again.doubles),
        ("stale writes", &judgement.stale, &again.stale),
        ("objects lost", &judgement.lost, &again.lost),
        ("objects or releases resurrected", &judgement.resurrected, &again.resurrected),
    ] {
        if one != other {
            let text = format!("{name} by the store: {one:?}; by the audit logs: {other:?}");
            judgement.disagreements.push(text);
        }
    }
    Ok(())
}

/// Waits until everything that was answered before is in the log.
async fn mark(server: &ControlPlane) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::default_namespaced(server.admin().await?);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MARK}});
    maps.patch(MARK, &PatchParams::apply("flotilla-chaos"), &Patch::Apply(&map)).await?;
    let answered = format!("{MARK}\",\"apiVersion\":\"v1\"}},\"responseStatus\"");
    until("the log to be complete", GENEROUS, async || {
        Ok(tail(&server.audit_log())?.contains(&answered).then_some(()))
    })
    .await
}

fn tail(path: &Path) -> anyhow::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
