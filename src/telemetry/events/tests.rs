// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use super::*;
use crate::telemetry::scripted::{self, Server};

fn unit(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("fleet.cattle.io/v1alpha1".into()),
        kind: Some("BundleDeployment".into()),
        namespace: Some("cluster-a".into()),
        name: Some(name.into()),
        uid: Some("u-1".into()),
        ..ObjectReference::default()
    }
}

fn started(home: Option<ObjectReference>) -> (Events, Server, Metrics, CancellationToken) {
    let (client, server) = scripted::client();
    let (metrics, stop) = (Metrics::new(), CancellationToken::new());
    let config = EventsConfig { component: AGENT, instance: "agent-0".into(), home };
    (Events::start(client, config, metrics.clone(), stop.clone()), server, metrics, stop)
}

fn counted(metrics: &Metrics, line: &str) {
    let text = metrics.encode();
    assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
}

#[tokio::test(start_paused = true)]
async fn an_event_names_the_object_the_reason_and_the_replica() {
    let (events, mut server, metrics, _stop) = started(None);
    events.publish(unit("app"), EventType::Normal, reason::FIRST_DEPLOYED, "revision 1".into());
    let call = server.next().await;
    assert_eq!(call.line(), "POST /api/v1/namespaces/cluster-a/events");
    for (pointer, value) in [
        ("/involvedObject/name", "app"),
        ("/involvedObject/uid", "u-1"),
        ("/type", "Normal"),
        ("/reason", "FirstDeployed"),
        ("/message", "revision 1"),
        ("/reportingComponent", "flotilla-agent"),
        ("/reportingInstance", "agent-0"),
        ("/source/component", "flotilla-agent"),
    ] {
        assert_eq!(call.body.pointer(pointer).and_then(|v| v.as_str()), Some(value), "{pointer}");
    }
    assert!(call.body["metadata"]["name"].as_str().unwrap().starts_with("app."));
    call.accept("1");
    events.publish(unit("app"), EventType::Normal, reason::RECOVERED, "revision 2".into());
    server.next().await.accept("2");
    events.publish(unit("app"), EventType::Normal, reason::UNINSTALLED, "gone".into());
    let _third = server.next().await;
    counted(&metrics, "flotilla_events_written_total 2");
}

#[tokio::test(start_paused = true)]
async fn the_same_report_within_minutes_raises_a_count_and_later_starts_anew() {
    let (events, mut server, _, _stop) = started(None);
    let again = || events.publish(unit("app"), EventType::Warning, reason::DEPLOY_FAILED, "refused".into());
    again();
    let call = server.next().await;
    let name = call.body["metadata"]["name"].as_str().unwrap().to_owned();
    call.accept("1");

    again();
    let call = server.next().await;
    assert_eq!(call.line(), format!("PATCH /api/v1/namespaces/cluster-a/events/{name}"));
    assert_eq!(call.body["count"], 2);
    call.accept("2");

    tokio::time::advance(series::WINDOW).await;
    again();
    assert_eq!(server.next().await.method, "POST");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_was_removed_meanwhile_is_written_again() {
    let (events, mut server, _, _stop) = started(None);
    let again = || events.publish(unit("app"), EventType::Warning, reason::DEPLOY_FAILED, "refused".into());
    again();
    server.next().await.accept("1");
    again();
    server.next().await.refuse(404, "NotFound");
    let call = server.next().await;
    assert_eq!((call.method.as_str(), &call.body["count"]), ("POST", &1.into()));
}

#[tokio::test(start_paused = true)]
async fn a_denied_namespace_is_left_alone_for_a_while_and_only_counted() {
    let (events, mut server, metrics, _stop) = started(None);
    events.publish(unit("app"), EventType::Normal, reason::RECOVERED, "one".into());
    server.next().await.refuse(403, "Forbidden");
    events.publish(unit("app"), EventType::Normal, reason::RECOVERED, "two".into());
    let elsewhere = ObjectReference { namespace: Some("cluster-b".into()), ..unit("app") };
    events.publish(elsewhere, EventType::Normal, reason::RECOVERED, "three".into());
    assert_eq!(server.next().await.path, "/api/v1/namespaces/cluster-b/events");
    counted(&metrics, "flotilla_events_failed_total 2");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_and_never_waits() {
    let (events, mut server, metrics, _stop) = started(None);
    events.publish(unit("app"), EventType::Normal, reason::RECOVERED, "first".into());
    let hanging = server.next().await;
    for number in 0..QUEUE + 3 {
        events.publish(unit("app"), EventType::Normal, reason::RECOVERED, format!("note {number}"));
    }
    counted(&metrics, "flotilla_events_dropped_total 3");
    // The hanging write runs into its own time limit, then the queue moves on.
    let next = tokio::time::timeout(Duration::from_secs(60), server.next()).await.unwrap();
    assert_eq!(next.body["message"], "note 0");
    drop(hanging);
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_cluster_is_reported_on_the_home_object() {
    let home = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some("fleet-system".into()),
        name: Some("agent-0".into()),
        ..ObjectReference::default()
    };
    let (events, mut server, _, _stop) = started(Some(home));
    events.publish(unit("app"), EventType::Warning, reason::TAKEN_OVER, "from agent-1".into());
    let call = server.next().await;
    assert_eq!(call.path, "/api/v1/namespaces/fleet-system/events");
    assert_eq!(call.body["involvedObject"]["kind"], "Pod");
    assert_eq!(call.body["related"]["name"], "app");
    assert_eq!(call.body["message"], "bundledeployment cluster-a/app: from agent-1");
}

#[tokio::test(start_paused = true)]
async fn a_long_note_is_cut_between_characters() {
    let (events, mut server, _, _stop) = started(None);
    events.publish(unit(&"n".repeat(253)), EventType::Normal, reason::SIZE_EXCEEDED, "ü".repeat(600) + "x");
    let call = server.next().await;
    assert_eq!(call.body["message"].as_str().unwrap().len(), 1024);
    assert_eq!(call.body["metadata"]["name"].as_str().unwrap().len(), 253);
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_at_the_end_is_still_written() {
    let (events, mut server, _, stop) = started(None);
    events.publish(unit("app"), EventType::Normal, reason::UNINSTALLED, "last words".into());
    stop.cancel();
    assert_eq!(server.next().await.body["message"], "last words");
}

#[test]
fn a_reason_is_one_camel_case_word() {
    for reason in reason::ALL {
        assert!(reason.bytes().all(|byte| byte.is_ascii_alphabetic()), "{reason}");
        assert!(reason.starts_with(|first: char| first.is_ascii_uppercase()), "{reason}");
    }
}
