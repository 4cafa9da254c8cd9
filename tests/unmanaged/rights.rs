// SPDX-License-Identifier: Apache-2.0
//! What the agent's identity may do on the management cluster: what Fleet grants its agents, and nothing else.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::authorization::v1::{SelfSubjectRulesReview, SubjectAccessReview};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::{Stage, namespace_of};

const FLEET: &str = "fleet.cattle.io";

/// Verb, group, resource with subresource, namespace, name, and whether it is allowed.
type Row<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str, bool);

pub async fn are_exactly_what_is_needed(stage: &Stage, own: &str, token: &str) -> anyhow::Result<()> {
    let (other, registered) = (namespace_of("meadow"), "fleet-default");
    let mut table: Vec<Row<'_>> = vec![
        ("get", FLEET, "contents", "", "", true),
        ("list", FLEET, "contents", "", "", false),
        ("create", FLEET, "contents", "", "", false),
        ("patch", FLEET, "clusters/status", registered, "orchard", true),
        ("update", FLEET, "clusters/status", registered, "orchard", false),
        ("patch", FLEET, "clusters/status", registered, "meadow", false),
        ("get", FLEET, "clusters", registered, "orchard", false),
        ("patch", FLEET, "clusters", registered, "orchard", false),
        ("create", FLEET, "clusterregistrations", registered, "", false),
        ("get", "", "secrets", registered, "", false),
        ("get", "", "secrets", "kube-system", "", false),
        ("create", "", "serviceaccounts/token", own, "flotilla-agent", false),
        ("create", "", "events", own, "", false),
        ("create", "", "pods", own, "", false),
        ("get", "", "namespaces", "", own, false),
        ("create", "rbac.authorization.k8s.io", "rolebindings", own, "", false),
        ("create", "coordination.k8s.io", "leases", own, "", false),
        ("impersonate", "", "users", "", "", false),
    ];
    for verb in ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"] {
        let reads = ["get", "list", "watch"].contains(&verb);
        table.push((verb, FLEET, "bundledeployments", own, "", reads));
        table.push((verb, FLEET, "bundledeployments", &other, "", false));
        table.push((verb, FLEET, "bundledeployments", "", "", false));
        table.push((verb, FLEET, "bundledeployments/status", own, "", ["update", "patch"].contains(&verb)));
        table.push((verb, FLEET, "bundledeployments/status", &other, "", false));
        for resource in ["secrets", "configmaps"] {
            table.push((verb, "", resource, own, "", verb == "get"));
            table.push((verb, "", resource, &other, "", false));
        }
    }
    let reviews: Api<SubjectAccessReview> = Api::all(stage.upstream.clone());
    let user = format!("system:serviceaccount:{own}:flotilla-agent");
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{own}"),
        "system:authenticated".to_owned(),
    ];
    let wrong: Vec<String> = stream::iter(table)
        .map(|row| {
            let (reviews, user, groups) = (&reviews, &user, &groups);
            async move {
                let (verb, group, resource, namespace, name, expected) = row;
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {
                    "user": user, "groups": groups,
                    "resourceAttributes": {"verb": verb, "group": group, "resource": resource,
                        "subresource": subresource, "namespace": namespace, "name": name},
                }}))?;
                let answer = reviews.create(&PostParams::default(), &review).await?.status;
                let allowed = answer.context("no answer")?.allowed;
                anyhow::Ok((allowed != expected).then(|| format!("{row:?} is {allowed}")))
            }
        })
        .buffer_unordered(8)
        .try_filter_map(async |wrong| Ok(wrong))
        .try_collect()
        .await?;
    ensure!(wrong.is_empty(), "{wrong:#?}");
    the_rules_are_those(stage, own, token).await
}

/// The same the other way round: the server lists all rules, and there is none that the table does not know.
async fn the_rules_are_those(stage: &Stage, own: &str, token: &str) -> anyhow::Result<()> {
    let client = stage.management.with_token(token, own).await?;
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client);
    for (namespace, expected) in [
        (
            own,
            &[
                "get,list,watch bundledeployments",
                "update,patch bundledeployments/status",
                "get secrets,configmaps",
                "get contents",
            ][..],
        ),
        ("fleet-default", &["patch clusters/status [orchard]", "get contents"]),
        ("kube-system", &["get contents"]),
    ] {
        let review = serde_json::from_value(json!({"spec": {"namespace": namespace}}))?;
        let rules = reviews.create(&PostParams::default(), &review).await?.status.context("no answer")?;
        let found: BTreeSet<String> = rules
            .resource_rules
            .iter()
            // What everybody who is known may: ask about oneself.
            .filter(|rule| {
                !rule
                    .api_groups
                    .iter()
                    .flatten()
                    .any(|group| group.ends_with("authorization.k8s.io") || group == "authentication.k8s.io")
            })
            .map(|rule| {
                let resources = rule.resources.clone().unwrap_or_default().join(",");
                match rule.resource_names.as_deref() {
                    None | Some([]) => format!("{} {resources}", rule.verbs.join(",")),
                    Some(names) => format!("{} {resources} {names:?}", rule.verbs.join(",")).replace('"', ""),
                }
            })
            .collect();
        let expected: BTreeSet<String> = expected.iter().map(|&rule| rule.to_owned()).collect();
        ensure!(found == expected, "in {namespace}: {found:?}");
    }
    Ok(())
}
