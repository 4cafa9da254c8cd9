// SPDX-License-Identifier: Apache-2.0
//! Names of labels, annotations and types that Fleet, Helm and Flotilla read from objects.

/// SHA-1 of the set id; a label on every deployed object.
pub const HASH_LABEL: &str = "objectset.rio.cattle.io/hash";
/// The set id; an annotation on every deployed object.
pub const ID_ANNOTATION: &str = "objectset.rio.cattle.io/id";
/// `false` exempts an object from being reported as extra.
pub const PRUNE_LABEL: &str = "objectset.rio.cattle.io/prune";
/// Helm's keep policy.
pub const RESOURCE_POLICY: &str = "helm.sh/resource-policy";
/// Helm's ownership label; its value is `Helm`.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Helm's ownership annotation.
pub const RELEASE_NAME: &str = "meta.helm.sh/release-name";
/// Helm's ownership annotation.
pub const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";
/// `<BD uid>/<epoch>`: the claim under which an object or a release record was last written.
pub const EPOCH_ANNOTATION: &str = "flotilla.fleet/epoch";
/// On a release record under removal: `<session>/<nonce>` of the replica that removes it.
pub const GUARD_ANNOTATION: &str = "flotilla.fleet/guard";
/// On a BundleDeployment, `true`: a version without any object is wanted, and all that was deployed may go.
pub const ALLOW_EMPTY_ANNOTATION: &str = "flotilla.fleet/allow-empty";
/// On a release record: a digest of the fields that were ours when its objects were applied, as 16 hex digits. As long
/// as they still are, nobody changed them, and a replica that comes new to a unit need not ask about each object.
pub const FIELDS_ANNOTATION: &str = "flotilla.fleet/fields";
/// Cluster namespace a session Lease belongs to.
pub const CLUSTER_NAMESPACE_LABEL: &str = "flotilla.fleet/cluster-namespace";
/// Agent scope a session Lease belongs to.
pub const AGENT_SCOPE_LABEL: &str = "flotilla.fleet/agent-scope";
/// Type of the claim's condition.
pub const CLAIM_CONDITION: &str = "InProgress";
/// Field manager of every apply; the name of Fleet's own executable, so that moving in and out conflicts with nothing.
pub const FIELD_MANAGER: &str = "fleetagent";
/// Label of a BundleDeployment: its bundle.
pub const BUNDLE_NAME: &str = "fleet.cattle.io/bundle-name";
/// Label of a BundleDeployment: its bundle's namespace.
pub const BUNDLE_NAMESPACE: &str = "fleet.cattle.io/bundle-namespace";
/// Label of a BundleDeployment: its manifest id.
pub const CONTENT_NAME: &str = "fleet.cattle.io/content-name";
/// Label of a BundleDeployment, annotation of a release's chart: the commit.
pub const COMMIT: &str = "fleet.cattle.io/commit";
/// Annotation of a release's chart: the BundleDeployment's name.
pub const BUNDLE_ID: &str = "fleet.cattle.io/bundle-id";
/// Annotation of a release's chart: the agent's namespace.
pub const AGENT_NAMESPACE: &str = "fleet.cattle.io/agent-namespace";
/// Annotation of a release's chart: the impersonated account.
pub const SERVICE_ACCOUNT: &str = "fleet.cattle.io/service-account";
/// Annotation of a release's chart: whether objects stay when the bundle goes.
pub const KEEP_RESOURCES: &str = "fleet.cattle.io/keep-resources";
/// Label of a copied Secret or ConfigMap: the name of the BundleDeployment it was copied for.
pub const BUNDLE_DEPLOYMENT: &str = "fleet.cattle.io/bundledeployment";
