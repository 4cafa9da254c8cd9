// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::{
    facts::{Below, Explanation, Facts, Life, Phase, Revision, SessionFact, Writers},
    *,
};

const CLAIM: &str = "v1 holder=agent-0 session=s1 nonce=n attempt=2 lost=0 by= budget=600 deployment=d2";

fn merge(into: &mut Value, change: Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change,
    }
}

/// A unit at rest, changed.
fn bd(change: Value) -> BundleDeployment {
    let mut object = json!({
        "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
        "metadata": {"name": "web", "namespace": "c1", "uid": "u", "resourceVersion": "7"},
        "spec": {"deploymentID": "d2", "stagedDeploymentID": "d2"},
        "status": {"appliedDeploymentID": "d2", "release": "shop/web:3", "ready": true, "nonModified": true,
            "conditions": [{"type": "Deployed", "status": "True"}]},
    });
    merge(&mut object, change);
    serde_json::from_value(object).unwrap()
}

/// A unit whose new version is not deployed, with this claim, written half a minute ago.
fn with_claim(reason: &str, message: &str) -> Value {
    let status = if ["Claimed", "Waiting", "Locked"].contains(&reason) { "True" } else { "False" };
    json!({"status": {"appliedDeploymentID": "d1", "conditions": [
        {"type": "InProgress", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T11:59:30Z"}]}})
}

fn session(id: &str, silent: i64, free_slots: usize) -> SessionFact {
    SessionFact {
        session: id.into(),
        holder: format!("agent-{id}"),
        silent: Some(silent),
        ttl: 15,
        free_slots,
    }
}

fn below(sessions: &[SessionFact]) -> Below {
    Below { sessions: Ok(sessions.to_vec()), history: Ok(Vec::new()), writers: Vec::new() }
}

fn said(bd: &BundleDeployment, dependencies: Result<(), String>, below: Option<&Below>) -> Explanation {
    explain(&Facts { bd, dependencies, below, now: "2026-01-01T12:00:00Z".parse().unwrap() })
}

/// One row: what is there, the phase, and words that the text must have.
struct Row {
    change: Value,
    sessions: Option<Vec<SessionFact>>,
    phase: Phase,
    words: &'static [&'static str],
}

fn row(change: Value, phase: Phase, words: &'static [&'static str]) -> Row {
    Row { change, sessions: None, phase, words }
}

fn seen(change: Value, sessions: &[SessionFact], phase: Phase, words: &'static [&'static str]) -> Row {
    Row { change, sessions: Some(sessions.to_vec()), phase, words }
}

fn check(rows: Vec<Row>) {
    for Row { change, sessions, phase, words } in rows {
        let below = sessions.as_deref().map(below);
        let said = said(&bd(change.clone()), Ok(()), below.as_ref());
        let text = text(&said);
        assert_eq!(said.phase, phase, "{change}\n{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is missing for {change}:\n{text}");
        }
        assert!(!said.next.is_empty() && said.next.ends_with('.'), "{text}");
    }
}

#[test]
fn units_that_nobody_claimed_say_why() {
    let outdated = |change: Value| {
        let mut base = json!({"status": {"appliedDeploymentID": "d1"}});
        merge(&mut base, change);
        base
    };
    check(vec![
        row(
            json!({}),
            Phase::Ready,
            &["Bundle c1/web is deployed and ready.", "shop/web:3", "Next: nothing, until"],
        ),
        row(
            outdated(json!({"spec": {"paused": true}})),
            Phase::Held,
            &["held back", "paused", "waits for somebody to unpause"],
        ),
        row(json!({"spec": {"paused": true}}), Phase::Held, &["held as it is"]),
        row(outdated(json!({"spec": {"offSchedule": true}})), Phase::Held, &["Schedule"]),
        row(
            outdated(json!({"spec": {"waitingForValues": true}})),
            Phase::Held,
            &["values Secret is not written yet"],
        ),
        row(json!({"spec": {"deploymentID": ""}}), Phase::Held, &["no deployment id"]),
        row(
            outdated(json!({})),
            Phase::Unclaimed,
            &["no replica has claimed it yet", "Not seen from here:\n  which replicas live"],
        ),
        seen(outdated(json!({})), &[session("a", 3, 0)], Phase::Unclaimed, &["waits for a free worker slot"]),
        seen(
            outdated(json!({})),
            &[session("a", 3, 2), session("b", 3, 1)],
            Phase::Unclaimed,
            &["2 replicas are live; 3 worker"],
        ),
        seen(
            outdated(json!({})),
            &[session("a", 99, 9)],
            Phase::NoReplica,
            &["No replica of the agent lives"],
        ),
        row(
            json!({"metadata": {"name": "fleet-agent-c1"}}),
            Phase::Refused,
            &["Fleet's own agent", "non-managed-agent=true"],
        ),
        row(
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}}),
            Phase::Deleting,
            &["being deleted", "x/y"],
        ),
    ]);
}

#[test]
fn dependencies_are_named() {
    let bd = bd(json!({"status": {"appliedDeploymentID": "d1"}}));
    let said = said(&bd, Err("dependent bundle(s) are not ready: [db]".into()), None);
    assert_eq!(said.phase, Phase::Blocked);
    assert!(text(&said).contains("No replica claims it: dependent bundle(s) are not ready: [db]."));
}

#[test]
fn open_claims_tell_the_holder_and_whether_it_lives() {
    let claimed = || with_claim("Claimed", CLAIM);
    check(vec![
        row(
            claimed(),
            Phase::Claimed,
            &["Replica agent-0 works on deployment d2: attempt 2, begun 30s ago", "if it is dead or stuck"],
        ),
        seen(
            claimed(),
            &[session("s1", 4, 1)],
            Phase::Claimed,
            &["agent-0 lives: session s1 was renewed 4s ago", "in 9m30s"],
        ),
        seen(
            claimed(),
            &[session("s1", 40, 1), session("b", 1, 1)],
            Phase::Claimed,
            &["is silent", "replica agent-b takes over within seconds, as attempt 3"],
        ),
        seen(claimed(), &[session("b", 1, 1)], Phase::Claimed, &["has ended: it has no Lease", "takes over"]),
        seen(claimed(), &[], Phase::Claimed, &["nobody is left to take over", "flotilla controller"]),
        seen(
            with_claim("Waiting", CLAIM),
            &[session("s1", 4, 1)],
            Phase::Waiting,
            &["waits until it is ready", "holds no worker slot"],
        ),
    ]);
    let mut waiting = with_claim("Waiting", CLAIM);
    let entry = json!([{"kind": "Deployment", "namespace": "shop", "name": "web",
        "summary": {"state": "in-progress", "transitioning": true, "message": ["1 of 3 updated"]}}]);
    merge(&mut waiting, json!({"status": {"nonReadyStatus": entry}}));
    let said = said(&bd(waiting), Ok(()), None);
    assert_eq!(said.waits_for, ["Deployment shop/web (in-progress: 1 of 3 updated)"]);
    let claim = said.claim.unwrap();
    assert_eq!((claim.life, claim.attempt, &*claim.since), (Life::Unknown, 2, "2026-01-01T11:59:30Z"));
    assert_eq!(said.next_at.as_deref(), Some("2026-01-01T12:09:30Z"));
}

#[test]
fn claims_at_rest_tell_what_comes_next_and_when() {
    let failed = format!("{CLAIM} retryIn=45 cause=server-side apply failed: no such kind");
    let restored = format!(
        "{CLAIM} retryIn=45 cause=the management cluster went back in time (restored from a backup?)"
    );
    let lost = CLAIM.replace("lost=0 by=", "lost=3 by=aaaa,bbbb");
    let quarantined =
        format!("{lost} cause=lost 3 times by aaaa,bbbb; its container ended: OOMKilled, exit code 137");
    check(vec![
        row(
            with_claim("BackingOff", &failed),
            Phase::BackingOff,
            &[
                "Attempt 2 by replica agent-0 failed 30s ago",
                "Next: attempt 3 in 15s.",
                "Last error: server-side apply failed: no such kind",
                "flotilla retry web -n c1",
            ],
        ),
        row(
            with_claim("BackingOff", &failed.replace("retryIn=45", "retryIn=5")),
            Phase::BackingOff,
            &["as soon as a replica"],
        ),
        seen(
            with_claim("BackingOff", &failed),
            &[],
            Phase::BackingOff,
            &["until a replica of the agent runs"],
        ),
        row(
            with_claim("BackingOff", &failed.replace("deployment=d2", "deployment=d0")),
            Phase::Unclaimed,
            &["earlier deployment"],
        ),
        row(
            with_claim("BackingOff", &restored),
            Phase::WentBack,
            &["restored from a backup", "flotilla reset --downstream-kubeconfig"],
        ),
        row(
            with_claim("Expired", &format!("{lost} cause=holder agent-0 was not heard of within its budget")),
            Phase::Expired,
            &[
                "3 earlier attempts were lost",
                "sessions aaaa, bbbb",
                "was not heard of",
                "begins nothing else until it is alone",
            ],
        ),
        seen(with_claim("Expired", CLAIM), &[], Phase::NoReplica, &["No replica of the agent lives"]),
        row(
            with_claim("Quarantined", &quarantined),
            Phase::Quarantined,
            &["OOMKilled, exit code 137", "again in 59m", "flotilla retry"],
        ),
        row(
            with_claim("Locked", "something else"),
            Phase::Unreadable,
            &["something else", "flotilla release --force web"],
        ),
    ]);
    let mut paused = with_claim("BackingOff", &failed);
    merge(&mut paused, json!({"spec": {"paused": true}}));
    check(vec![row(paused, Phase::Held, &["paused", "Before that: BackingOff after attempt 2"])]);
}

#[test]
fn what_was_deployed_and_is_not_well_says_so() {
    let modified = json!({"status": {"nonModified": false, "modifiedStatus": [
        {"kind": "ConfigMap", "apiVersion": "v1", "namespace": "shop", "name": "stall", "patch": "{\"data\":{\"a\":\"1\"}}"},
        {"kind": "Service", "apiVersion": "v1", "namespace": "shop", "name": "web", "missing": true}]}});
    let correcting = {
        let mut change = modified.clone();
        merge(&mut change, json!({"spec": {"correctDrift": {"enabled": true}}}));
        change
    };
    let contended = {
        let mut change = correcting.clone();
        let message = "configmap.v1 shop/stall modified {\"data\":{\"a\":\"1\"}}; corrected 4 times, and manager \
            \"kubectl-edit\" changes it back: corrected again after 40 s";
        let condition = json!({"type": "Ready", "status": "False", "reason": "Error", "message": message,
            "lastUpdateTime": "2026-01-01T11:59:45Z"});
        merge(&mut change, json!({"status": {"conditions": [condition]}}));
        change
    };
    let unseen = |change: Value| {
        let mut base = json!({"status": {"conditions": [{"type": "Deployed", "status": "True"},
            {"type": "Monitored", "status": "False", "reason": "Error", "lastUpdateTime": "2026-01-01T11:57:00Z",
            "message": "cannot watch v1 Secret in the downstream cluster: the request failed: no"}]}});
        merge(&mut base, change);
        base
    };
    let failed = json!({"status": {"release": "", "conditions": [
        {"type": "Installed", "status": "False", "message": "not installed: bad yaml"},
        {"type": "Deployed", "status": "False", "message": "bad yaml"}]}});
    check(vec![
        row(
            modified.clone(),
            Phase::Drifted,
            &[
                "objects differ",
                "ConfigMap shop/stall: differs; to restore it: {\"data\"",
                "Service shop/web: is missing",
                "correctDrift is not enabled",
                "flotilla diff bd/web",
            ],
        ),
        row(correcting, Phase::Drifted, &["Next: a replica reverts the changes (correctDrift is enabled)."]),
        row(
            contended.clone(),
            Phase::Drifted,
            &[
                "corrected 4 times, and manager \"kubectl-edit\" changes it back: corrected again after 40 s.",
                "Next: a replica reverts the changes again in 25s.",
            ],
        ),
        row(
            unseen(json!({})),
            Phase::Unseen,
            &[
                "Bundle c1/web is deployed; its objects cannot be looked at.",
                "as last seen: all was ready.",
                "since 3m ago, because: cannot watch v1 Secret in the downstream cluster: the request failed: no.",
                "It waits for its objects to be seen again.",
            ],
        ),
        row(
            unseen(json!({"status": {"ready": false}})),
            Phase::Unseen,
            &["as last seen: not all of its objects were ready."],
        ),
        seen(unseen(json!({})), &[], Phase::Unseen, &["Next: nothing, until a replica of the agent runs."]),
        row(json!({"status": {"ready": false}}), Phase::NotReady, &["not all of its objects are ready"]),
        row(json!({"spec": {"stagedDeploymentID": "d3"}}), Phase::OutOfSync, &["staged"]),
        row(
            failed,
            Phase::Failed,
            &["cannot be deployed as it is", "Last error: bad yaml", "until the bundle changes"],
        ),
    ]);
    assert_eq!(said(&bd(contended), Ok(()), None).next_at.as_deref(), Some("2026-01-01T12:00:25Z"));
    let writers =
        Writers { object: "ConfigMap shop/stall".into(), managers: vec!["kubectl-edit (Update)".into()] };
    let below = Below { writers: vec![writers], ..below(&[]) };
    let text = text(&said(&bd(modified), Ok(()), Some(&below)));
    assert!(text.contains("; written by kubectl-edit (Update)\n"), "{text}");
    assert!(!text.contains("Not seen"), "{text}");
}

#[test]
fn the_release_history_and_what_is_refused_below_are_told() {
    let revision = |status: &str, ours| Revision {
        revision: 4,
        status: status.into(),
        description: "Upgrade failed".into(),
        ours,
    };
    let with = |history| Below { history, ..below(&[session("a", 1, 1)]) };
    let outdated = bd(json!({"status": {"appliedDeploymentID": "d1"}}));
    let foreign = said(&outdated, Ok(()), Some(&with(Ok(vec![revision("pending-upgrade", false)]))));
    assert!(text(&foreign).contains("by another tool"), "{}", text(&foreign));
    let failed = said(&outdated, Ok(()), Some(&with(Ok(vec![revision("failed", true)]))));
    assert!(text(&failed).contains("The newest revision, 4, is failed: Upgrade failed."));
    let refused = said(&outdated, Ok(()), Some(&with(Err("secrets is forbidden".into()))));
    assert_eq!(refused.unseen, ["the release's history: secrets is forbidden"]);
}

#[test]
fn the_json_form_has_stable_names() {
    let said = said(&bd(with_claim("Claimed", CLAIM)), Ok(()), None);
    let json = serde_json::to_value(&said).unwrap();
    assert_eq!(json["phase"], "Claimed");
    assert_eq!(
        json["claim"],
        json!({"reason": "Claimed", "holder": "agent-0", "session": "s1", "life": "Unknown",
        "attempt": 2, "lost": 0, "lostBy": [], "since": "2026-01-01T11:59:30Z"})
    );
    for key in
        ["summary", "why", "waitsFor", "next", "nextAt", "lastError", "drift", "release", "unseen", "advice"]
    {
        assert!(json.get(key).is_some(), "{key}");
    }
}
