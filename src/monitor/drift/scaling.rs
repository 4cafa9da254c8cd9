// SPDX-License-Identifier: Apache-2.0
//! Replicas that are an autoscaler's business.

use serde_json::Value;

use crate::monitor::Key;

/// Whether one of these HorizontalPodAutoscalers (of the object's namespace) targets the object and would allow the
/// replicas it has. Outside of its bounds they are nobody's wish.
pub fn is_delegated(autoscalers: &[Value], key: &Key, live: &Value) -> bool {
    let Some(replicas) = live["spec"]["replicas"].as_i64() else { return false };
    autoscalers.iter().any(|autoscaler| {
        let spec = &autoscaler["spec"];
        let target = &spec["scaleTargetRef"];
        let version = target["apiVersion"].as_str().unwrap_or_default();
        let least = spec["minReplicas"].as_i64().unwrap_or(1);
        let most = spec["maxReplicas"].as_i64().unwrap_or(i64::MAX);
        target["kind"] == *key.kind
            && target["name"] == *key.name
            && (version.is_empty() || version == &*key.api_version)
            && (least..=most).contains(&replicas)
    })
}
