// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use super::*;
use crate::telemetry::scripted;

fn wanted() -> Wanted {
    let plan = Plan::new("shop", "fleet-default", None, BTreeMap::new(), "agents", Identity::Own).unwrap();
    Wanted {
        plan,
        lifetime: Lifetime::Unlimited,
        server: "https://up".into(),
        authority: None,
        settings: DownstreamSettings::default(),
        dry_run: false,
        word: 7,
    }
}

/// All requests, where the Cluster is one that Fleet's controller manages, and how the verb ended.
async fn of_a_managed_cluster(
    verb: impl AsyncFnOnce(Client) -> Result<(), UnmanagedError>,
) -> (Vec<String>, UnmanagedError) {
    let (client, mut server) = scripted::client();
    let script = async {
        let mut lines = Vec::new();
        while let Some(call) = server.try_next().await {
            lines.push(call.line());
            call.answer(
                200,
                &json!({"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster",
                    "metadata": {"name": "shop", "namespace": "fleet-default", "labels": {"env": "test"}},
                    "spec": {}}),
            );
        }
        lines
    };
    let (lines, ended) = tokio::join!(script, verb(client));
    (lines, ended.unwrap_err())
}

#[tokio::test]
async fn a_cluster_that_fleet_manages_is_not_touched_by_any_verb() {
    let wanted = wanted();
    let both = |client: Client| Clusters { upstream: client.clone(), downstream: Some(client) };
    let ends = [
        of_a_managed_cluster(async |client| register(&wanted, &both(client), &mut |_| ()).await).await,
        of_a_managed_cluster(async |client| rotate(&wanted, &client, &client, &mut |_| ()).await).await,
        of_a_managed_cluster(async |client| revoke(&wanted.plan, &both(client), false, &mut |_| ()).await)
            .await,
        of_a_managed_cluster(async |client| revoke(&wanted.plan, &both(client), true, &mut |_| ()).await)
            .await,
        of_a_managed_cluster(async |client| {
            let lifetime = Lifetime::Limited(std::time::Duration::from_secs(3600));
            token::to_print(&client, &wanted.plan, lifetime, 7).await.map(drop)
        })
        .await,
    ];
    for (lines, error) in ends {
        assert!(matches!(error, UnmanagedError::Managed { .. }), "{error}");
        assert_eq!(lines, ["GET /apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusters/shop"]);
    }
}
