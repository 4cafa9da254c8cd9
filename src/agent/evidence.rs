// SPDX-License-Identifier: Apache-2.0
//! What can be seen of an attempt that was lost with its holder: for the person who reads that a unit is in
//! quarantine. Read once, when it is condemned; nothing depends on it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tracing::debug;

use super::{context::Context, inbox::Name, removal};
use crate::{
    api::{self, BundleDeployment},
    downstream::release::Record,
    protocol::{Claim, ClaimSlot, Stamp},
    upstream,
};

/// A condemned unit does not wait longer than this for its story.
const LIMIT: Duration = Duration::from_secs(5);

/// The claim with what is known of the last attempt added to its cause.
pub(super) async fn added(ctx: &Context, name: &Name, object: &BundleDeployment, mut claim: Claim) -> Claim {
    let slot = upstream::snapshot(object, false).slot;
    let ClaimSlot::Claim(lost) = slot else { return claim };
    let (Ok(step) | Err(step)) = tokio::time::timeout(LIMIT, step(ctx, name, object))
        .await
        .map_err(|_| "its last step is not known".to_owned());
    let exit = tokio::time::timeout(LIMIT, exit(ctx, &lost.holder.0)).await.ok().flatten();
    let cause = claim.cause.get_or_insert_default();
    cause.push_str(&format!("; last by {}: {step}", lost.holder));
    if let Some(exit) = exit {
        cause.push_str(&format!("; {exit}"));
    }
    claim
}

/// How far the attempt came, by what it left.
async fn step(ctx: &Context, name: &Name, object: &BundleDeployment) -> String {
    let (namespace, release) = removal::expected_place(name, object);
    let history = match ctx.downstream.store.history(&namespace, &release).await {
        Ok(history) => history,
        Err(error) => {
            debug!(unit = %name, cause = upstream::chain(&error), "no evidence of a lost attempt");
            return "its last step is not known".to_owned();
        }
    };
    let uid = object.metadata.uid.as_deref().unwrap_or_default();
    let hash = api::names::object_hash(&api::names::set_id(name, &ctx.scope));
    let live = ctx.live.by_hash(&hash);
    reached(&history, uid, live.iter().filter_map(|observed| observed.stamp.as_ref()))
}

/// In words, given the release's history and the stamps on the objects that live.
fn reached<'a>(history: &[Record], uid: &str, stamps: impl Iterator<Item = &'a Stamp>) -> String {
    let left = history.last().and_then(|record| pending(record, uid));
    let Some((revision, stamp)) = left else {
        return "before it opened a revision (load, render)".to_owned();
    };
    let written = stamps.filter(|found| **found == stamp).count();
    format!("revision {revision} was open, {written} objects were written")
}

fn pending(record: &Record, uid: &str) -> Option<(u32, Stamp)> {
    let stamp = record.stamp().filter(|stamp| stamp.uid.0 == uid)?;
    record.status.is_pending().then_some((record.revision, stamp))
}

/// How the holder's container ended, when it was a pod and it is still there.
async fn exit(ctx: &Context, holder: &str) -> Option<String> {
    let pods: kube::Api<Pod> =
        kube::Api::namespaced(ctx.downstream.server.client().clone(), &ctx.agent_namespace);
    let pod = pods.get_opt(holder).await.ok()??;
    ended(&pod)
}

fn ended(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        return Some(format!("its pod was ended: {reason}"));
    }
    let states = status.container_statuses.iter().flatten();
    let ended = states.filter_map(|status| {
        let of =
            |state: &Option<k8s_openapi::api::core::v1::ContainerState>| state.as_ref()?.terminated.clone();
        of(&status.state).or_else(|| of(&status.last_state))
    });
    let last = ended.max_by_key(|end| end.finished_at.as_ref().map(|time| time.0))?;
    let reason = last.reason.unwrap_or_else(|| "no reason given".to_owned());
    Some(format!("its container ended: {reason}, exit code {}", last.exit_code))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::downstream::release::fixtures::record;

    #[test]
    fn how_far_it_came_is_told_by_the_open_revision_and_the_stamps() {
        let deployed = || record(1, "deployed").stamped("u/5").stored();
        let stamps: Vec<Stamp> = ["u/5", "u/9", "u/9", "other/9"].map(|it| Stamp::parse(it).unwrap()).into();
        let told = |history: &[Record]| reached(history, "u", stamps.iter());
        let open = "revision 2 was open, 2 objects were written";
        assert_eq!(told(&[deployed(), record(2, "pending-upgrade").stamped("u/9").stored()]), open);
        let before = "before it opened a revision (load, render)";
        assert_eq!(told(&[]), before);
        assert_eq!(told(&[deployed()]), before);
        // Of a bundle of the same name that was there before.
        assert_eq!(told(&[record(1, "pending-install").stamped("old/9").stored()]), before);
        assert_eq!(told(&[record(1, "pending-install").stored()]), before, "somebody's Helm");
    }

    #[test]
    fn the_last_end_of_a_container_or_the_pods_own_is_told() {
        let pod = |status| serde_json::from_value::<Pod>(json!({"metadata": {}, "status": status})).unwrap();
        let end = |reason: &str, code: i32, at: &str| json!({"terminated": {"reason": reason, "exitCode": code, "finishedAt": at}});
        let container = |name: &str, state, last| {
            json!({"name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 1,
                "state": state, "lastState": last})
        };
        let killed = pod(json!({"containerStatuses": [
            container("side", json!({"running": {}}), end("Completed", 0, "2026-01-01T00:00:00Z")),
            container("agent", json!({"running": {}}), end("OOMKilled", 137, "2026-01-02T00:00:00Z")),
        ]}));
        assert_eq!(ended(&killed).as_deref(), Some("its container ended: OOMKilled, exit code 137"));
        assert_eq!(ended(&pod(json!({"reason": "Evicted"}))).as_deref(), Some("its pod was ended: Evicted"));
        assert_eq!(
            ended(&pod(
                json!({"containerStatuses": [container("agent", json!({"running": {}}), json!({}))]})
            )),
            None
        );
    }
}
