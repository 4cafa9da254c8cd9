// SPDX-License-Identifier: Apache-2.0
//! The rights that an agent needs, and whether it has them: the API servers are asked (SubjectAccessReview).

use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};

use super::finding::Findings;
use crate::cli::error::ServerError;

const FLEET: &str = "fleet.cattle.io";
const AT_ONCE: usize = 8;
/// What impersonation is for.
pub const IMPERSONATED: &str =
    "bundles with serviceAccount, and no others where account fleet-default exists";

/// Whose rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Of whoever asks.
    Caller,
    /// Of a service account; asking needs a right of its own.
    Account {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// One right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// The verb.
    pub verb: &'static str,
    /// The API group; empty: core.
    pub group: &'static str,
    /// The resource, with `/subresource`.
    pub resource: &'static str,
    /// In which namespace; empty: in all, or of no namespace.
    pub namespace: String,
    /// Of which object; empty: of all.
    pub name: String,
    /// What does not work without it; empty: nothing at all does.
    pub without: &'static str,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{} {}{dot}{}", self.verb, self.resource, self.group)?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        if !self.namespace.is_empty() {
            write!(f, " in namespace {}", self.namespace)?;
        }
        Ok(())
    }
}

type Entry = (&'static [&'static str], &'static str, &'static str, &'static str);

fn rights(table: &[Entry], namespace: &str, name: &str) -> Vec<Right> {
    let mut rights = Vec::new();
    for (verbs, group, resource, without) in table {
        rights.extend(verbs.iter().map(|verb| Right {
            verb,
            group,
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            without,
        }));
    }
    rights
}

/// On the management cluster: what Fleet gives its agents.
pub fn upstream(cluster_namespace: &str, registration_namespace: &str, cluster: &str) -> Vec<Right> {
    let mut all = rights(
        &[
            (&["get", "list", "watch"], FLEET, "bundledeployments", ""),
            (&["patch"], FLEET, "bundledeployments/status", ""),
            (&["get"], "", "secrets", "bundles with values or copied Secrets"),
            (&["get"], "", "configmaps", "bundles with copied ConfigMaps"),
        ],
        cluster_namespace,
        "",
    );
    all.extend(rights(&[(&["get"], FLEET, "contents", "")], "", ""));
    all.extend(rights(
        &[(&["patch"], FLEET, "clusters/status", "the check-in (the Cluster's lastSeen)")],
        registration_namespace,
        cluster,
    ));
    all
}

/// On the management cluster: what an agent must not be able to do.
pub fn excess(cluster_namespace: &str, registration_namespace: &str) -> Vec<Right> {
    let mut all = rights(
        &[(&["create", "delete", "update"], FLEET, "bundledeployments", ""), (&["list"], "", "secrets", "")],
        cluster_namespace,
        "",
    );
    all.extend(rights(&[(&["get", "list"], "", "secrets", "")], "", ""));
    all.extend(rights(&[(&["patch"], FLEET, "clusters/status", "")], registration_namespace, ""));
    all
}

/// In the agent's own cluster, for itself.
pub fn downstream(agent_namespace: &str) -> Vec<Right> {
    let mut all = rights(
        &[
            (
                &["get", "list", "watch", "create", "update", "patch", "delete"],
                "coordination.k8s.io",
                "leases",
                "",
            ),
            (&["get", "list", "watch", "create", "update", "delete"], "", "secrets", ""),
            (&["get"], "", "configmaps", ""),
            (&["list", "watch"], "", "pods", "knowing at once when a replica has died"),
            // Every deployment that names no account asks for `fleet-default`.
            (&["get"], "", "serviceaccounts", ""),
            (&["impersonate"], "", "serviceaccounts", IMPERSONATED),
        ],
        agent_namespace,
        "",
    );
    all.extend(rights(
        &[
            (&["get", "list", "watch", "create", "update", "delete"], "", "secrets", ""),
            // The uid of kube-system, labels that a bundle selects or sets.
            (&["get"], "", "namespaces", ""),
            // An apply that makes something is asked for both.
            (&["create", "patch"], "", "namespaces", "bundles into namespaces that are not there yet"),
            (&["update"], "", "namespaces", "bundles with namespaceLabels or namespaceAnnotations"),
            (&["create", "patch"], "", "events", "Events"),
        ],
        "",
        "",
    ));
    all
}

/// Whether the subject has it.
pub async fn has(client: &Client, subject: &Subject, right: &Right) -> kube::Result<bool> {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource, None),
    };
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let attributes = ResourceAttributes {
        verb: some(right.verb),
        group: some(right.group),
        resource: some(resource),
        subresource,
        namespace: some(&right.namespace),
        name: some(&right.name),
        ..ResourceAttributes::default()
    };
    let post = PostParams::default();
    let status = match subject {
        Subject::Caller => {
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            Api::<SelfSubjectAccessReview>::all(client.clone()).create(&post, &review).await?.status
        }
        Subject::Account { namespace, name } => {
            let groups = vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ];
            let review = SubjectAccessReview {
                spec: SubjectAccessReviewSpec {
                    user: Some(format!("system:serviceaccount:{namespace}:{name}")),
                    groups: Some(groups),
                    resource_attributes: Some(attributes),
                    ..SubjectAccessReviewSpec::default()
                },
                ..SubjectAccessReview::default()
            };
            Api::<SubjectAccessReview>::all(client.clone()).create(&post, &review).await?.status
        }
    };
    Ok(status.is_some_and(|status| status.allowed))
}

/// Those of `rights` that the subject has, or has not.
pub async fn split(
    client: &Client,
    subject: &Subject,
    rights: Vec<Right>,
) -> kube::Result<(Vec<Right>, Vec<Right>)> {
    let asked = stream::iter(rights).map(|right| async move {
        let has = has(client, subject, &right).await?;
        Ok::<_, kube::Error>((right, has))
    });
    let (mut granted, mut refused) = (Vec::new(), Vec::new());
    let mut answers = asked.buffered(AT_ONCE);
    while let Some(answer) = answers.next().await {
        let (right, has) = answer?;
        if has { granted.push(right) } else { refused.push(right) }
    }
    Ok((granted, refused))
}

/// Checks that nothing is missing. `fix` says how rights are given.
pub async fn check(
    findings: &mut Findings,
    check: &'static str,
    client: &Client,
    subject: &Subject,
    wanted: Vec<Right>,
    fix: &str,
) {
    let who = match subject {
        Subject::Caller => "these credentials".to_owned(),
        Subject::Account { namespace, name } => format!("ServiceAccount {namespace}/{name}"),
    };
    match split(client, subject, wanted).await {
        Err(error) => findings.skip(check, format!("cannot ask for rights: {}", ServerError(error))),
        Ok((granted, refused)) if refused.is_empty() => {
            findings.ok(check, format!("{who}: all {} rights that are needed", granted.len()));
        }
        Ok((_, refused)) => {
            for right in refused {
                if right.without.is_empty() {
                    findings.fail(check, format!("{who} may not {right}"), fix);
                } else {
                    let text = format!("{who} may not {right}; without it: no {}", right.without);
                    findings.warn(check, text, fix);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_told_as_kubectl_names_them() {
        let all = upstream("c1", "fleet-default", "shop");
        let texts: Vec<_> = all.iter().map(Right::to_string).collect();
        assert!(texts.contains(&"patch bundledeployments/status.fleet.cattle.io in namespace c1".to_owned()));
        assert!(texts.contains(&"get contents.fleet.cattle.io".to_owned()));
        assert_eq!(
            texts.last().unwrap(),
            "patch clusters/status.fleet.cattle.io shop in namespace fleet-default"
        );
    }
}
