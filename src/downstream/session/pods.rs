// SPDX-License-Identifier: Apache-2.0
//! What the kubelet says of the peers: their Pods, watched.
//!
//! A Pod in which nothing runs any more proves that its sessions are dead, long before their Leases fall silent. It is
//! only a short cut: where Pods cannot be watched, or sessions have none, silence is all there is.

use std::collections::HashSet;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use tracing::{debug, info, warn};

use super::watch::CALL_SECONDS;
use crate::protocol::Epoch;

/// Something that proves the death of a Pod's sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// The Pod's uid.
    pub uid: String,
    /// The Pod's resourceVersion that shows it; `None` when the Pod is missing from a later list.
    pub at: Option<Epoch>,
}

/// The ends of the Pods in `namespace`, as they come. Never ends; retries with back-off, and says only once why it must.
pub fn watch_pods(client: Client, namespace: &str) -> impl Stream<Item = PodEvent> + Send + 'static {
    let config = watcher::Config::default().timeout(CALL_SECONDS);
    let mut pods = Pods::default();
    let mut told = false;
    watcher(Api::<Pod>::namespaced(client, namespace), config)
        .default_backoff()
        .map(move |event| match event {
            Ok(event) => {
                if matches!(event, watcher::Event::InitDone) && std::mem::take(&mut told) {
                    info!("Pods are watched again");
                }
                pods.take(event)
            }
            Err(cause) => {
                if std::mem::replace(&mut told, true) {
                    debug!(%cause, "watch of Pods broke again");
                } else {
                    warn!(%cause, "Pods cannot be watched: a dead replica is known by its silence alone");
                }
                Vec::new()
            }
        })
        .flat_map(stream::iter)
}

/// The Pods there are, by uid.
#[derive(Default)]
struct Pods {
    present: HashSet<String>,
    listed: HashSet<String>,
}

impl Pods {
    fn take(&mut self, event: watcher::Event<Pod>) -> Vec<PodEvent> {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            watcher::Event::InitApply(pod) => {
                self.listed.extend(pod.metadata.uid.clone());
                ended(&pod).into_iter().collect()
            }
            watcher::Event::InitDone => {
                let before = std::mem::replace(&mut self.present, std::mem::take(&mut self.listed));
                let missing = before.into_iter().filter(|uid| !self.present.contains(uid));
                missing.map(|uid| PodEvent { uid, at: None }).collect()
            }
            watcher::Event::Apply(pod) => {
                self.present.extend(pod.metadata.uid.clone());
                ended(&pod).into_iter().collect()
            }
            watcher::Event::Delete(pod) => {
                if let Some(uid) = &pod.metadata.uid {
                    self.present.remove(uid);
                }
                report(&pod).into_iter().collect()
            }
        }
    }
}

fn report(pod: &Pod) -> Option<PodEvent> {
    let uid = pod.metadata.uid.clone()?;
    Some(PodEvent { uid, at: pod.metadata.resource_version.clone().map(Epoch) })
}

/// A Pod in which nothing runs any more. One that is being deleted may still run for all of its grace period.
fn ended(pod: &Pod) -> Option<PodEvent> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let wanted = pod.spec.as_ref().map_or(1, |spec| spec.containers.len());
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let stopped = !containers.is_empty() && containers.len() >= wanted && containers.iter().all(is_stopped);
    if over || stopped { report(pod) } else { None }
}

/// Terminated, or waiting to be started once more.
fn is_stopped(container: &ContainerStatus) -> bool {
    let Some(state) = &container.state else { return false };
    if state.running.is_some() {
        return false;
    }
    let ran = container.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
    let crashed = state.waiting.as_ref().is_some_and(|waiting| {
        waiting.reason.as_deref() == Some("CrashLoopBackOff") && container.restart_count > 0
    });
    state.terminated.is_some() || (crashed && ran)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use serde_json::{Value, json};

    use super::*;
    use crate::telemetry::scripted;

    fn pod(uid: &str, status: Value) -> Pod {
        serde_json::from_value(value(uid, status)).unwrap()
    }

    fn value(uid: &str, status: Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": uid, "uid": uid, "resourceVersion": "7" },
            "spec": { "containers": [{ "name": "agent" }] }, "status": status,
        })
    }

    fn container(state: Value, last: Value) -> Value {
        json!({
            "name": "agent", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
            "state": state, "lastState": last,
        })
    }

    #[test]
    fn a_pod_has_ended_when_nothing_runs_in_it_and_not_before() {
        let (none, terminated) = (json!({}), json!({ "terminated": { "exitCode": 137 } }));
        let running = json!({ "running": {} });
        let looping = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        let creating = json!({ "waiting": { "reason": "ContainerCreating" } });
        let one = |state: &Value, last: &Value| json!({ "containerStatuses": [container(state.clone(), last.clone())] });
        for (status, expected) in [
            (json!({ "phase": "Succeeded" }), true),
            (json!({ "phase": "Failed" }), true),
            (json!({ "phase": "Running" }), false),
            (json!({ "phase": "Unknown" }), false),
            (none.clone(), false),
            (one(&running, &none), false),
            (one(&running, &terminated), false),
            (one(&terminated, &none), true),
            (one(&looping, &terminated), true),
            (one(&looping, &none), false),
            (one(&creating, &terminated), false),
            (
                json!({ "containerStatuses": [container(terminated.clone(), none.clone()), container(running.clone(), none.clone())] }),
                false,
            ),
        ] {
            let found = ended(&pod("p", status.clone()));
            assert_eq!(found.is_some(), expected, "{status}");
            assert!(found.is_none_or(|found| found.at == Some("7".into())));
        }
        let mut leaving = pod("p", one(&running, &none));
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(ended(&leaving), None);
        let mut half_started = pod("p", one(&terminated, &none));
        let spec = half_started.spec.as_mut().unwrap();
        spec.containers.push(spec.containers[0].clone());
        assert_eq!(ended(&half_started), None, "the other container's state is not known");
    }

    #[test]
    fn a_pod_that_was_there_and_is_missing_from_a_later_list_has_ended() {
        let mut pods = Pods::default();
        let running = || json!({ "phase": "Running" });
        let mut list = |uids: &[&str]| {
            let mut events = pods.take(watcher::Event::Init);
            for uid in uids {
                events.extend(pods.take(watcher::Event::InitApply(pod(uid, running()))));
            }
            events.extend(pods.take(watcher::Event::InitDone));
            events
        };
        assert_eq!(list(&["a", "b"]), []);
        assert_eq!(list(&["b", "c"]), [PodEvent { uid: "a".into(), at: None }]);
        assert_eq!(list(&["b", "c"]), []);
        let deleted = pods.take(watcher::Event::Delete(pod("b", running())));
        assert_eq!(deleted, [PodEvent { uid: "b".into(), at: Some("7".into()) }]);
        assert_eq!(pods.present, HashSet::from(["c".into()]));
    }

    #[tokio::test(start_paused = true)]
    async fn without_the_right_to_watch_pods_it_asks_again_and_tells_nothing() {
        let (client, mut server) = scripted::client();
        let script = tokio::spawn(async move {
            for _ in 0..3 {
                let call = server.next().await;
                assert_eq!(call.line(), "GET /api/v1/namespaces/fleet/pods");
                call.refuse(403, "Forbidden");
            }
            let list = json!({
                "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "9" },
                "items": [value("p", json!({ "phase": "Failed" }))],
            });
            server.next().await.answer(200, &list);
        });
        let mut events = pin!(watch_pods(client, "fleet"));
        let event = events.next().await;
        assert_eq!(event, Some(PodEvent { uid: "p".into(), at: Some("7".into()) }));
        script.await.unwrap();
    }
}
