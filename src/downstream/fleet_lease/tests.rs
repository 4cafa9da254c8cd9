// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;

fn lease(holder: &str, version: &str) -> Lease {
    let holder = Some(holder).filter(|holder| !holder.is_empty());
    serde_json::from_value(json!({
        "metadata": {"name": NAME, "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 30},
    }))
    .unwrap()
}

fn replica() -> FleetLease {
    let (client, server) = crate::telemetry::scripted::client();
    drop(server);
    FleetLease::new(client, "cattle-fleet-system", &"agent-0".into())
}

fn lead(replica: &FleetLease) -> Lead {
    replica.lead.borrow().clone()
}

#[tokio::test(start_paused = true)]
async fn a_foreign_holder_has_its_whole_time_and_more_whenever_it_renews() {
    let mut replica = replica();
    assert_eq!(lead(&replica), Lead::Unknown);
    let start = Instant::now();
    replica.note(lease("fleet-agent-7f", "5"), false);
    assert_eq!(lead(&replica), Lead::Foreign { holder: "fleet-agent-7f".into(), renewed: false });
    assert_eq!(replica.due(), start + Duration::from_secs(30));
    tokio::time::advance(Duration::from_secs(29)).await;
    replica.note(lease("fleet-agent-7f", "5"), false);
    assert_eq!(replica.due(), start + Duration::from_secs(30), "the same version is no sign of life");
    replica.note(lease("fleet-agent-7f", "6"), false);
    assert_eq!(replica.due(), start + Duration::from_secs(59));
    assert_eq!(lead(&replica), Lead::Foreign { holder: "fleet-agent-7f".into(), renewed: true });
    let text = lead(&replica).text("cattle-fleet-system").unwrap();
    assert!(text.contains("pod fleet-agent-7f renews"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_holds_it_lets_all_work_and_is_replaced_before_fleets_agent_would_be_first() {
    let mut replica = replica();
    replica.note(lease("flotilla/agent-1", "5"), false);
    assert_eq!(lead(&replica), Lead::Ours);
    assert_eq!(replica.due(), Instant::now() + PEER);
    assert!(PEER + CALL < Duration::from_secs(30));
    replica.note(lease("flotilla/agent-0", "6"), false);
    assert_eq!(replica.due(), Instant::now() + RENEW, "it is ours to renew");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_given_up_is_free_at_once_and_says_nothing_about_who_works() {
    let mut replica = replica();
    replica.note(lease("fleet-agent-7f", "5"), false);
    replica.note(lease("", "6"), false);
    assert!(matches!(lead(&replica), Lead::Foreign { .. }), "until it is taken");
    assert!(replica.due() <= Instant::now());
    let wanted = replica.wanted();
    assert_eq!(wanted.metadata.resource_version.as_deref(), Some("6"));
    assert_eq!(wanted.spec.unwrap().holder_identity.as_deref(), Some("flotilla/agent-0"));
}

#[tokio::test(start_paused = true)]
async fn a_fleet_agent_that_takes_it_from_us_is_alive_and_old_news_are_none() {
    let mut replica = replica();
    replica.note(lease("flotilla/agent-0", "5"), false);
    replica.note(lease("fleet-agent-7f", "10"), false);
    replica.note(lease("flotilla/agent-0", "9"), false);
    assert_eq!(lead(&replica), Lead::Foreign { holder: "fleet-agent-7f".into(), renewed: true });
}
