// SPDX-License-Identifier: Apache-2.0

use serde_json::Value;

use super::*;
use crate::telemetry::scripted::{self, Server};

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/fleet/leases";
const RENEW: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(15);

fn config() -> SessionConfig {
    SessionConfig {
        namespace: "fleet".into(),
        session: "b1".into(),
        holder: "agent-0".into(),
        pod_uid: Some("pod-1".into()),
        cluster_namespace: "cluster-a".into(),
        scope: String::new(),
        ttl: TTL,
        renew: RENEW,
        version: "0.1.0".into(),
        replicas: Arc::new(AtomicUsize::new(1)),
    }
}

fn stored(version: &str) -> Value {
    let mut lease = serde_json::to_value(config().lease(2)).unwrap();
    lease["metadata"]["uid"] = "lease-1".into();
    lease["metadata"]["resourceVersion"] = version.into();
    lease
}

async fn started(server: &mut Server, client: Client, free: &Arc<AtomicUsize>) -> SessionLease {
    let (lease, ()) = tokio::join!(SessionLease::start(client, config(), free.clone()), async {
        let call = server.next().await;
        assert_eq!(call.line(), format!("POST {PATH}"));
        call.answer(201, &stored("1"));
    });
    lease.unwrap()
}

fn slots(free: usize) -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(free))
}

/// Answers one renewal and waits until the session has noted it.
async fn renewed(server: &mut Server, lease: &SessionLease, from: &str, to: &str) {
    let mut renewals = lease.health().renewals();
    renewals.mark_unchanged();
    let call = server.next().await;
    assert_eq!(call.line(), format!("PATCH {PATH}/flotilla-b1"));
    assert_eq!(call.body["metadata"]["resourceVersion"], from);
    call.answer(200, &stored(to));
    renewals.changed().await.unwrap();
}

#[test]
fn the_lease_says_who_where_and_how_free() {
    let lease = serde_json::to_value(config().lease(2)).unwrap();
    for (pointer, value) in [
        ("/metadata/name", "flotilla-b1"),
        ("/metadata/labels/flotilla.fleet~1cluster-namespace", "cluster-a"),
        ("/metadata/labels/flotilla.fleet~1agent-scope", ""),
        ("/metadata/annotations/flotilla.fleet~1pod-uid", "pod-1"),
        ("/metadata/annotations/flotilla.fleet~1free-slots", "2"),
        ("/metadata/ownerReferences/0/kind", "Pod"),
        ("/metadata/ownerReferences/0/name", "agent-0"),
        ("/metadata/ownerReferences/0/uid", "pod-1"),
        ("/spec/holderIdentity", "agent-0"),
    ] {
        assert_eq!(lease.pointer(pointer).and_then(Value::as_str), Some(value), "{pointer}");
    }
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);

    let outside = SessionConfig { pod_uid: None, ..config() };
    assert_eq!(outside.lease(0).metadata.owner_references, None);
}

#[tokio::test(start_paused = true)]
async fn every_renewal_names_the_version_it_follows_and_tells_the_free_slots() {
    let (client, mut server) = scripted::client();
    let free = slots(2);
    let lease = started(&mut server, client, &free).await;
    renewed(&mut server, &lease, "1", "2").await;
    free.store(0, Ordering::Relaxed);
    let call = server.next().await;
    assert_eq!(call.body["metadata"]["resourceVersion"], "2");
    assert_eq!(call.body["metadata"]["annotations"]["flotilla.fleet/free-slots"], "0");
    assert!(call.body["spec"]["renewTime"].is_string());
    assert_eq!(lease.health().renewals().borrow().count, 2);
}

#[tokio::test(start_paused = true)]
async fn news_of_the_slots_are_told_at_once() {
    let (client, mut server) = scripted::client();
    let free = slots(2);
    let lease = started(&mut server, client, &free).await;
    let begun = Instant::now();
    free.store(0, Ordering::Relaxed);
    lease.news().notify_one();
    let call = server.next().await;
    assert_eq!(call.body["metadata"]["annotations"]["flotilla.fleet/free-slots"], "0");
    assert!(begun.elapsed() < RENEW / 5, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_announce_itself_does_not_start() {
    let (client, mut server) = scripted::client();
    let (result, ()) = tokio::join!(SessionLease::start(client, config(), slots(1)), async {
        server.next().await.refuse(403, "Forbidden");
    });
    let error = result.unwrap_err();
    assert!(matches!(error, SessionError::Create { .. }), "{error:?}");
    assert!(error.to_string().contains("flotilla-b1"));
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_was_lost_is_found_again() {
    let (client, mut server) = scripted::client();
    let (result, ()) = tokio::join!(SessionLease::start(client, config(), slots(1)), async {
        server.next().await.refuse(409, "AlreadyExists");
        let call = server.next().await;
        assert_eq!(call.line(), format!("GET {PATH}/flotilla-b1"));
        call.answer(200, &stored("4"));
        let call = server.next().await;
        assert_eq!(call.body["metadata"]["resourceVersion"], "4");
        call.answer(200, &stored("5"));
    });
    assert!(result.unwrap().health().renewed_within(RENEW));
}

#[tokio::test(start_paused = true)]
async fn another_replica_under_our_name_is_an_error() {
    let (client, mut server) = scripted::client();
    let (result, ()) = tokio::join!(SessionLease::start(client, config(), slots(1)), async {
        server.next().await.refuse(409, "AlreadyExists");
        let mut theirs = stored("4");
        theirs["metadata"]["annotations"]["flotilla.fleet/holder"] = "agent-9".into();
        server.next().await.answer(200, &theirs);
    });
    assert!(matches!(result.unwrap_err(), SessionError::Taken { holder, .. } if holder.0 == "agent-9"));
}

#[tokio::test(start_paused = true)]
async fn health_counts_from_when_the_request_was_sent_not_from_its_answer() {
    let (client, mut server) = scripted::client();
    let lease = started(&mut server, client, &slots(1)).await;
    let health = lease.health();
    let call = server.next().await;
    let sent = Instant::now();
    tokio::time::advance(Duration::from_secs(3)).await;
    call.answer(200, &stored("2"));
    let mut renewals = health.renewals();
    renewals.changed().await.unwrap();
    assert_eq!(health.last_renewed(), sent);
    assert!(health.renewed_within(Duration::from_secs(3)));
    assert!(!health.renewed_within(Duration::from_secs(2)));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_or_fails_is_tried_again_soon_and_health_grows_old() {
    let (client, mut server) = scripted::client();
    let lease = started(&mut server, client, &slots(1)).await;
    let health = lease.health();
    let hanging = server.next().await;
    let begun = Instant::now();
    let retry = server.next().await;
    assert_eq!(begun.elapsed(), RENEW * 4 / 5 + RENEW / 5, "time limit and a short pause");
    drop(hanging);
    retry.refuse(503, "ServiceUnavailable");
    let third = server.next().await;
    assert!(!health.renewed_within(Duration::from_secs(10)));
    drop(third);
    tokio::time::advance(TTL).await;
    assert!(!health.renewed_within(TTL));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_settled_by_reading_and_a_removed_lease_comes_back() {
    let (client, mut server) = scripted::client();
    let lease = started(&mut server, client, &slots(1)).await;
    let mut renewals = lease.health().renewals();
    renewals.mark_unchanged();

    server.next().await.refuse(409, "Conflict");
    let call = server.next().await;
    assert_eq!(call.line(), format!("GET {PATH}/flotilla-b1"));
    call.answer(200, &stored("7"));
    let call = server.next().await;
    assert_eq!(call.body["metadata"]["resourceVersion"], "7");
    call.answer(200, &stored("8"));
    renewals.changed().await.unwrap();

    server.next().await.refuse(404, "NotFound");
    let call = server.next().await;
    assert_eq!(call.line(), format!("POST {PATH}"));
    call.answer(201, &stored("9"));
    renewals.changed().await.unwrap();
    assert_eq!(renewals.borrow().count, 3);
}

#[tokio::test(start_paused = true)]
async fn what_was_repeated_on_its_way_is_known_by_its_time() {
    let standing = |version: &str, time: &serde_json::Value| {
        let mut lease = stored(version);
        lease["spec"]["renewTime"] = time.clone();
        lease
    };
    let (client, mut server) = scripted::client();
    let (lease, ()) = tokio::join!(SessionLease::start(client, config(), slots(1)), async {
        let call = server.next().await;
        let time = call.body["spec"]["renewTime"].clone();
        call.refuse(409, "AlreadyExists");
        server.next().await.answer(200, &standing("4", &time));
    });
    let lease = lease.unwrap();
    let mut renewals = lease.health().renewals();
    renewals.mark_unchanged();

    let call = server.next().await;
    assert_eq!(call.body["metadata"]["resourceVersion"], "4");
    let (sent, time) = (Instant::now(), call.body["spec"]["renewTime"].clone());
    tokio::time::advance(Duration::from_millis(100)).await;
    call.refuse(409, "Conflict");
    server.next().await.answer(200, &standing("5", &time));
    renewals.changed().await.unwrap();
    assert_eq!(lease.health().last_renewed(), sent);

    let call = server.next().await;
    assert_eq!(
        (call.line(), &call.body["metadata"]["resourceVersion"]),
        (format!("PATCH {PATH}/flotilla-b1"), &json!("5"))
    );
}

#[tokio::test(start_paused = true)]
async fn the_end_deletes_exactly_the_lease_it_knows() {
    let (client, mut server) = scripted::client();
    let lease = started(&mut server, client, &slots(1)).await;
    renewed(&mut server, &lease, "1", "2").await;
    let (ended, ()) = tokio::join!(lease.end(), async {
        let call = server.next().await;
        assert_eq!(call.line(), format!("DELETE {PATH}/flotilla-b1"));
        assert_eq!(call.body["preconditions"], json!({ "uid": "lease-1", "resourceVersion": "2" }));
        call.refuse(409, "Conflict");
        server.next().await.answer(200, &stored("3"));
        let call = server.next().await;
        assert_eq!(call.body["preconditions"]["resourceVersion"], "3");
        call.answer(200, &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }));
    });
    ended.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ending_a_session_whose_lease_is_gone_is_no_error() {
    let (client, mut server) = scripted::client();
    let lease = started(&mut server, client, &slots(1)).await;
    let (ended, ()) = tokio::join!(lease.end(), async {
        server.next().await.refuse(404, "NotFound");
    });
    ended.unwrap();
}
