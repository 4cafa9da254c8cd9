// SPDX-License-Identifier: Apache-2.0
//! Manifests as users write them, and foreign changes.

/// Name and manifest: what the server stores differs from what is written, and that is no drift.
pub const HARMLESS: &[(&str, &str)] = &[
    (
        "quantity-milli",
        "{apiVersion: v1, kind: Pod, metadata: {name: q1}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1000m, memory: 1024Mi}}}]}}",
    ),
    (
        "quantity-number",
        "{apiVersion: v1, kind: Pod, metadata: {name: q2}, spec: {containers: [{name: c, image: i, resources: {limits: {cpu: 0.5, memory: 1e9}}}]}}",
    ),
    (
        "quota",
        "{apiVersion: v1, kind: ResourceQuota, metadata: {name: q3}, spec: {hard: {requests.cpu: '4000m', pods: 10}}}",
    ),
    (
        "limit-range",
        "{apiVersion: v1, kind: LimitRange, metadata: {name: l}, spec: {limits: [{type: Container, default: {cpu: 1000m}}]}}",
    ),
    (
        "claim",
        "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: p}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1024Mi}}}}",
    ),
    (
        "volume",
        "{apiVersion: v1, kind: PersistentVolume, metadata: {name: drift-pv}, spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1000Mi}, hostPath: {path: /x}}}",
    ),
    (
        "config-empty",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: c1, labels: {}, annotations: null}, data: {a: ''}}",
    ),
    ("config-no-data", "{apiVersion: v1, kind: ConfigMap, metadata: {name: c2}, data: null}"),
    (
        "config-binary",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: c3}, binaryData: {a: AAEC}, data: {}}",
    ),
    (
        "secret-strings",
        "{apiVersion: v1, kind: Secret, metadata: {name: s1}, stringData: {a: one, b: ''}, data: {c: dHdv}}",
    ),
    (
        "secret-both",
        "{apiVersion: v1, kind: Secret, metadata: {name: s2}, stringData: {a: one}, data: {a: dHdv}}",
    ),
    (
        "secret-typed",
        "{apiVersion: v1, kind: Secret, type: kubernetes.io/basic-auth, metadata: {name: s3}, stringData: {username: u, password: p}}",
    ),
    (
        "service-plain",
        "{apiVersion: v1, kind: Service, metadata: {name: v1}, spec: {selector: {a: b}, ports: [{port: 80}]}}",
    ),
    (
        "service-node-port",
        "{apiVersion: v1, kind: Service, metadata: {name: v2}, spec: {type: NodePort, selector: {a: b}, ports: [{name: a, port: 80, targetPort: http}, {name: b, port: 443}]}}",
    ),
    (
        "service-headless",
        "{apiVersion: v1, kind: Service, metadata: {name: v3}, spec: {clusterIP: None, ipFamilyPolicy: SingleStack, selector: {a: b}, ports: [{port: 80}]}, status: {loadBalancer: {}}}",
    ),
    (
        "service-balancer",
        "{apiVersion: v1, kind: Service, metadata: {name: v4}, spec: {type: LoadBalancer, selector: {a: b}, externalTrafficPolicy: Local, ports: [{name: w, port: 80, protocol: TCP}, {port: 81, protocol: UDP, name: u}, {port: 82, name: x}]}}",
    ),
    (
        "service-external",
        "{apiVersion: v1, kind: Service, metadata: {name: v5}, spec: {type: ExternalName, externalName: example.test}}",
    ),
    ("account", "{apiVersion: v1, kind: ServiceAccount, metadata: {name: a1, labels: null}}"),
    (
        "deployment-short",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d1, creationTimestamp: null}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}, creationTimestamp: null}, spec: {containers: [{name: c, image: i, ports: [{containerPort: 80}], env: [{name: A, value: ''}, {name: B}], resources: {}}]}}}, status: {}}",
    ),
    (
        "deployment-recreate",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d2}, spec: {strategy: {type: Recreate, rollingUpdate: null}, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {nodeSelector: null, tolerations: [], affinity: {}, securityContext: {}, containers: [{name: c, image: i}]}}}}",
    ),
    (
        "deployment-rolling",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d3}, spec: {strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 25%}}, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i, livenessProbe: {httpGet: {path: /, port: 80}}, readinessProbe: {tcpSocket: {port: http}}, ports: [{name: http, containerPort: 80}]}]}}}}",
    ),
    (
        "deployment-volumes",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d4}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {volumes: [{name: e, emptyDir: {}}, {name: m, configMap: {name: c}}, {name: s, emptyDir: {medium: Memory, sizeLimit: 1024Mi}}], containers: [{name: c, image: i, volumeMounts: [{name: e, mountPath: /e}, {name: e, mountPath: /f, subPath: f}]}]}}}}",
    ),
    (
        "deployment-env-from",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d5}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i, env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]}]}}}}",
    ),
    (
        "stateful-set",
        "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: t1}, spec: {serviceName: s, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}, volumeClaimTemplates: [{metadata: {name: d}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1024Mi}}}}]}}",
    ),
    (
        "daemon-set",
        "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: n1}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {hostNetwork: true, containers: [{name: c, image: i, ports: [{containerPort: 9100}]}]}}}}",
    ),
    (
        "job",
        "{apiVersion: batch/v1, kind: Job, metadata: {name: j1}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}",
    ),
    (
        "cron-job",
        "{apiVersion: batch/v1, kind: CronJob, metadata: {name: k1}, spec: {schedule: '*/5 * * * *', jobTemplate: {spec: {template: {spec: {restartPolicy: OnFailure, containers: [{name: c, image: i}]}}}}}}",
    ),
    (
        "cron-job-zone",
        "{apiVersion: batch/v1, kind: CronJob, metadata: {name: k2}, spec: {schedule: '@daily', timeZone: Etc/UTC, suspend: false, startingDeadlineSeconds: null, jobTemplate: {spec: {backoffLimit: 0, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}",
    ),
    (
        "disruption-percent",
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b1}, spec: {minAvailable: 50%, selector: {matchLabels: {a: b}}}}",
    ),
    (
        "disruption-number",
        "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b2}, spec: {maxUnavailable: 1, selector: {}}}",
    ),
    (
        "autoscaler",
        "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: h1}, spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: none}, metrics: [{type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 1024Mi}}}, {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]}}",
    ),
    (
        "autoscaler-old",
        "{apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {name: h2}, spec: {maxReplicas: 3, targetCPUUtilizationPercentage: 80, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: none}}}",
    ),
    (
        "ingress",
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i1}, spec: {rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}], tls: [{hosts: [a.test]}]}}",
    ),
    (
        "ingress-class",
        "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: drift-class}, spec: {controller: example.test/x, parameters: null}}",
    ),
    (
        "network-policy",
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: w1}, spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}}",
    ),
    (
        "network-policy-none",
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: w2}, spec: {podSelector: {matchLabels: {}}, policyTypes: [Ingress, Egress], ingress: [], egress: []}}",
    ),
    ("role", "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: r1}, rules: []}"),
    (
        "role-null",
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: drift-null}, rules: null}",
    ),
    (
        "role-aggregated",
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: drift-aggregated}, aggregationRule: {clusterRoleSelectors: [{matchLabels: {rbac.authorization.k8s.io/aggregate-to-view: 'true'}}]}, rules: []}",
    ),
    (
        "role-binding",
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: r2}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r1}, subjects: [{kind: ServiceAccount, name: a1, namespace: harbour}, {kind: User, name: u}]}",
    ),
    (
        "webhook",
        "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: drift-hook}, webhooks: [{name: a.example.test, admissionReviewVersions: [v1], sideEffects: None, failurePolicy: Ignore, clientConfig: {caBundle: Cg==, service: {name: x, namespace: none}}, rules: [{apiGroups: [none.example.test], apiVersions: [v1], operations: [CREATE], resources: [things]}]}]}",
    ),
    (
        "priority",
        "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: drift-priority}, value: 100, description: ''}",
    ),
    (
        "storage-class",
        "{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: drift-storage}, provisioner: example.test/x, parameters: {}}",
    ),
    (
        "custom-kind",
        "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: boats.drift.example.test, creationTimestamp: null}, spec: {group: drift.example.test, scope: Namespaced, preserveUnknownFields: false, names: {plural: boats, kind: Boat}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, default: 7}, anchor: {type: object}, tags: {type: array, items: {type: string}}, crew: {type: array, items: {type: object, properties: {name: {type: string}, role: {type: string}}}}}}}}}}]}, status: {acceptedNames: {kind: '', plural: ''}, conditions: [], storedVersions: []}}\n---\n{apiVersion: drift.example.test/v1, kind: Boat, metadata: {name: o1}, spec: {tags: [], crew: [{name: a}]}}",
    ),
    (
        "list-items",
        "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: ConfigMap, metadata: {name: m1}}, {apiVersion: v1, kind: ConfigMap, metadata: {name: m2}, data: {n: '1'}}]}",
    ),
    (
        "endpoints",
        "{apiVersion: v1, kind: Endpoints, metadata: {name: e1}, subsets: [{addresses: [{ip: 10.0.0.2}, {ip: 10.0.0.1}], ports: [{port: 80}]}]}",
    ),
    (
        "lease",
        "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: l1}, spec: {leaseDurationSeconds: 15, renewTime: '2026-01-01T00:00:00.000000Z'}}",
    ),
];

/// Name, manifest, kind (with its version), name of the object, merge patch, and the patch that restores.
pub const FOREIGN: &[(&str, &str, &str, &str, &str, &str)] = &[
    (
        "map-value",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: f1}, data: {a: '1'}}",
        "v1/ConfigMap",
        "f1",
        r#"{"data":{"a":"2"}}"#,
        r#"{"data":{"a":"1"}}"#,
    ),
    (
        "map-removed",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: f2}, data: {a: '1'}}",
        "v1/ConfigMap",
        "f2",
        r#"{"data":null}"#,
        r#"{"data":{"a":"1"}}"#,
    ),
    (
        "label-removed",
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: f3, labels: {x: one}}}",
        "v1/ServiceAccount",
        "f3",
        r#"{"metadata":{"labels":{"x":null}}}"#,
        r#"{"metadata":{"labels":{"x":"one"}}}"#,
    ),
    (
        "secret-string",
        "{apiVersion: v1, kind: Secret, metadata: {name: f4}, stringData: {pin: '4711'}}",
        "v1/Secret",
        "f4",
        r#"{"data":{"pin":"eA=="}}"#,
        r#"{"data":{"pin":"***"}}"#,
    ),
    (
        "secret-removed",
        "{apiVersion: v1, kind: Secret, metadata: {name: f5}, data: {pin: NDcxMQ==}}",
        "v1/Secret",
        "f5",
        r#"{"data":{"pin":null}}"#,
        r#"{"data":{"pin":"***"}}"#,
    ),
    (
        "selector",
        "{apiVersion: v1, kind: Service, metadata: {name: f6}, spec: {selector: {app.kubernetes.io/name: MyApp}, ports: [{port: 80}]}}",
        "v1/Service",
        "f6",
        r#"{"spec":{"selector":{"app.kubernetes.io/name":"x"}}}"#,
        r#"{"spec":{"selector":{"app.kubernetes.io/name":"MyApp"}}}"#,
    ),
    (
        "replicas",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: f7}, spec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}",
        "apps/v1/Deployment",
        "f7",
        r#"{"spec":{"replicas":0}}"#,
        r#"{"spec":{"replicas":1}}"#,
    ),
    (
        "role-rules",
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: f8}, rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]}",
        "rbac.authorization.k8s.io/v1/Role",
        "f8",
        r#"{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get","delete"]}]}"#,
        r#"{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}"#,
    ),
    (
        "schedule",
        "{apiVersion: batch/v1, kind: CronJob, metadata: {name: f9}, spec: {schedule: '*/5 * * * *', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}",
        "batch/v1/CronJob",
        "f9",
        r#"{"spec":{"schedule":"@daily"}}"#,
        r#"{"spec":{"schedule":"*/5 * * * *"}}"#,
    ),
    (
        "autoscaler-bound",
        "{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: f10}, spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: none}}}",
        "autoscaling/v2/HorizontalPodAutoscaler",
        "f10",
        r#"{"spec":{"maxReplicas":9}}"#,
        r#"{"spec":{"maxReplicas":3}}"#,
    ),
    (
        "immutable",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: f11}, data: {a: '1'}}",
        "v1/ConfigMap",
        "f11",
        r#"{"data":{"a":"2"},"immutable":true}"#,
        r#"{"data":{"a":"1"}}"#,
    ),
    (
        "ingress-host",
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: f12}, spec: {ingressClassName: a, defaultBackend: {service: {name: s, port: {number: 80}}}}}",
        "networking.k8s.io/v1/Ingress",
        "f12",
        r#"{"spec":{"ingressClassName":"b"}}"#,
        r#"{"spec":{"ingressClassName":"a"}}"#,
    ),
    (
        "policy-opened",
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: f13}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: []}}",
        "networking.k8s.io/v1/NetworkPolicy",
        "f13",
        r#"{"spec":{"ingress":[{}]}}"#,
        r#"{"spec":{"ingress":null}}"#,
    ),
    (
        "role-opened",
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: f14}, rules: []}",
        "rbac.authorization.k8s.io/v1/Role",
        "f14",
        r#"{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}"#,
        r#"{"rules":null}"#,
    ),
    (
        "volume-source",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: f15}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {volumes: [{name: e, emptyDir: {}}], containers: [{name: c, image: i, volumeMounts: [{name: e, mountPath: /e}]}]}}}}",
        "apps/v1/Deployment",
        "f15",
        r#"{"spec":{"template":{"spec":{"volumes":[{"name":"e","hostPath":{"path":"/"}}]}}}}"#,
        r#"{"spec":{"template":{"spec":{"volumes":[{"emptyDir":{},"name":"e"}]}}}}"#,
    ),
];
