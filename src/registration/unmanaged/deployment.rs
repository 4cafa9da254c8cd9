// SPDX-License-Identifier: Apache-2.0
//! The agent's Deployment, for sites without its chart: what the chart makes with its defaults, and nothing to set.

use serde_json::{Value, json};

use super::Plan;

/// The chart's, so that a site is not given both unnoticed.
const NAME: &str = "flotilla-agent";
/// Ports of metrics and probes: the agent's defaults.
const PORTS: (u16, u16) = (8080, 8081);
/// The user of the image.
const USER: u32 = 65532;

/// Two replicas of `image`.
pub(super) fn object(plan: &Plan, image: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": NAME});
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"name": NAME, "namespace": plan.agent_namespace, "labels": labels},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "template": {"metadata": {"labels": labels}, "spec": pod(plan, image, &labels)},
    }})
}

fn pod(plan: &Plan, image: &str, labels: &Value) -> Value {
    let spread = |key: &str| {
        json!({"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels}})
    };
    json!({
        "serviceAccountName": plan.agent_account,
        "enableServiceLinks": false,
        // The agent takes 25 s of them to finish or hand over.
        "terminationGracePeriodSeconds": 40,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container(image)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        // Nodes that a cloud provider or Rancher is setting up.
        "tolerations": [
            {"key": "node.cloudprovider.kubernetes.io/uninitialized", "operator": "Equal", "value": "true",
                "effect": "NoSchedule"},
            {"key": "cattle.io/os", "operator": "Equal", "value": "linux", "effect": "NoSchedule"},
        ],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1,
            "preference": {"matchExpressions": [
                {"key": "fleet.cattle.io/agent", "operator": "In", "values": ["true"]}]}}]}},
        "topologySpreadConstraints": [spread("kubernetes.io/hostname"), spread("topology.kubernetes.io/zone")],
    })
}

fn container(image: &str) -> Value {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let probe = |path: &str| json!({"path": path, "port": "probes"});
    let (metrics, probes) = PORTS;
    json!({
        "name": "agent",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["agent", "--log-level=info", "--log-format=json"],
        "env": [
            field("NAMESPACE", "metadata.namespace"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            field("POD_UID", "metadata.uid"),
            field("NODE_NAME", "spec.nodeName"),
            {"name": "BUNDLEDEPLOYMENT_RECONCILER_WORKERS", "value": "50"},
            {"name": "FLEET_AGENT_METRICS_BIND_ADDRESS", "value": format!(":{metrics}")},
            {"name": "FLEET_AGENT_PROBE_BIND_ADDRESS", "value": format!(":{probes}")},
        ],
        "ports": [{"name": "metrics", "containerPort": metrics}, {"name": "probes", "containerPort": probes}],
        "livenessProbe": {"httpGet": probe("/livez"), "periodSeconds": 10, "timeoutSeconds": 5,
            "failureThreshold": 6},
        "readinessProbe": {"httpGet": probe("/readyz"), "periodSeconds": 5, "timeoutSeconds": 5},
        // The limit holds the agent and its engine.
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "privileged": false,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    })
}
