// SPDX-License-Identifier: Apache-2.0
//! The judge of `dev/chaos` and its two witnesses find what they look for: each fault planted here must be told.

#[path = "../dev/harness/mod.rs"]
mod harness;

#[path = "../dev/disorder/mod.rs"]
#[expect(dead_code, reason = "only what judges is used")]
mod disorder;

#[path = "witnesses/deletions.rs"]
mod deletions;
#[path = "witnesses/living.rs"]
mod living;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::time::Duration;

use disorder::audited::{Compared, Log, differences};
use disorder::disturber::Done;
use disorder::etcd::Version;
use disorder::judgement::{Judgement, Promises, judge};
use disorder::load::{Story, Wanted};
use disorder::witness::{Evidence, is_judged, units_of};
use serde_json::{Value, json};

const NAMESPACE: &str = "cluster";
const MAP: &str = "configmaps/shop/app-0";
const UNIT: &str = "fleet.cattle.io/bundledeployments/cluster/app";

/// A version in the store.
fn version(revision: u64, key: &str, object: Option<Value>) -> Version {
    Version { revision, key: key.into(), object }
}

/// A ConfigMap `app-0`, written under `epoch`.
fn map(epoch: u64, content: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1", "data": {"version": content},
        "metadata": {
            "name": "app-0", "namespace": "shop", "uid": "map-uid",
            "annotations": {"flotilla.fleet/epoch": format!("unit-uid/{epoch}")},
            "labels": {"objectset.rio.cattle.io/hash": "hash"},
        },
    })
}

/// A unit `app` that wants `deployment`, claimed by `claim` (nonce and session) where there is one.
fn unit(deployment: &str, applied: &str, claim: Option<(&str, &str)>) -> Value {
    let conditions: Vec<Value> = claim
        .map(|(nonce, session)| {
            let message = format!(
                "v1 holder={session} session={session} nonce={nonce} attempt=1 lost=0 budget=20 deployment={deployment}"
            );
            json!({"type": "InProgress", "status": "True", "reason": "Claimed", "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .into_iter()
        .collect();
    json!({
        "kind": "BundleDeployment", "apiVersion": "fleet.cattle.io/v1alpha1",
        "metadata": {"name": "app", "namespace": NAMESPACE, "uid": "unit-uid"},
        "spec": {"deploymentID": deployment},
        "status": {"appliedDeploymentID": applied, "release": "shop/app:1", "conditions": conditions},
    })
}

/// A release record of `app`.
fn record(revision: u64, epoch: u64, status: &str) -> (String, Value) {
    let name = format!("sh.helm.release.v1.app.v{revision}");
    let object = json!({
        "kind": "Secret", "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("record-{revision}"),
            "labels": {"owner": "helm", "name": "app", "version": revision.to_string(), "status": status},
            "annotations": {"flotilla.fleet/epoch": format!("unit-uid/{epoch}")},
        },
    });
    (format!("secrets/shop/{name}"), object)
}

/// The line of the log that fits a version of the store; `code` and `stage` as given.
fn line(version: &Version, stage: &str, code: u16) -> String {
    let mut parts: Vec<&str> = version.key.split('/').collect();
    let (name, namespace) = (parts.pop().unwrap_or_default(), parts.pop().unwrap_or_default());
    let resource = parts.pop().unwrap_or_default();
    let group = parts.pop().unwrap_or_default();
    let object = version.object.clone().map(|mut object| {
        object["metadata"]["resourceVersion"] = version.revision.to_string().into();
        object
    });
    let mut line = json!({
        "auditID": version.revision.to_string(), "stage": stage,
        "verb": if object.is_some() { "patch" } else { "delete" },
        "objectRef": {"resource": resource, "namespace": namespace, "name": name, "apiGroup": group},
    });
    if stage == "ResponseComplete" {
        line["responseStatus"] = json!({"code": code});
        if code < 300 {
            line["responseObject"] = object.unwrap_or(json!({"kind": "Status"}));
        }
    }
    format!("{line}\n")
}

fn answered(history: &[Version]) -> String {
    history.iter().map(|version| line(version, "ResponseComplete", 200)).collect()
}

fn compare(plane: &str, log: &str, history: Vec<Version>) -> Compared {
    let units = units_of(NAMESPACE);
    let log = Log::read(BufReader::new(log.as_bytes()), |key| is_judged(plane, &units, key));
    log.expect("a log").compare(history)
}

fn evidence(histories: impl IntoIterator<Item = Version>) -> Evidence {
    let mut evidence = Evidence::default();
    histories.into_iter().for_each(|version| evidence.take(version, &units_of(NAMESPACE)));
    evidence
}

/// Judged by the log alone.
fn judged(upstream: Vec<Version>, downstream: Vec<Version>) -> Judgement {
    let mut told = Vec::new();
    for (plane, history) in [("upstream", upstream), ("downstream", downstream)] {
        let log = answered(&history);
        let compared = compare(plane, &log, history);
        assert_eq!(compared.disagreements, Vec::<String>::new());
        told.extend(compared.versions);
    }
    by_story(&evidence(told))
}

/// `one` and `two` want the ConfigMap, `bare` wants nothing; `two` is wanted at the end.
fn by_story(evidence: &Evidence) -> Judgement {
    let wanted = |versions: &[&str]| Wanted {
        objects: versions.iter().map(|version| (MAP.to_owned(), (*version).to_owned())).collect(),
        hooks: BTreeMap::new(),
    };
    let deployments = [("one", wanted(&["1"])), ("two", wanted(&["2"])), ("bare", wanted(&[]))];
    let story = Story {
        deployments: deployments.map(|(id, wanted)| (id.to_owned(), wanted)).into(),
        now: [("app".to_owned(), "two".to_owned())].into(),
        ..Story::default()
    };
    let promises = Promises { ttl: Duration::from_secs(3) };
    judge(evidence, &story, &Done::default(), promises)
}

/// `one` deployed under the claim at 10, `two` under that at 20.
fn units() -> Vec<Version> {
    vec![
        version(9, UNIT, Some(unit("one", "", None))),
        version(10, UNIT, Some(unit("one", "", Some(("a", "left"))))),
        version(11, UNIT, Some(unit("one", "one", None))),
        version(20, UNIT, Some(unit("two", "one", Some(("b", "right"))))),
        version(21, UNIT, Some(unit("two", "two", None))),
    ]
}

fn records(all: &[(u64, u64, u64, &str)]) -> Vec<Version> {
    all.iter()
        .map(|(at, revision, epoch, status)| {
            let (key, object) = record(*revision, *epoch, status);
            version(*at, &key, Some(object))
        })
        .collect()
}

#[test]
fn two_witnesses_that_tell_the_same_agree() {
    let history = || vec![version(5, MAP, Some(map(4, "1"))), version(7, MAP, None)];
    let compared = compare("downstream", &answered(&history()), history());
    assert_eq!((compared.disagreements, compared.unanswered), (Vec::new(), 0));
    assert_eq!(differences(&evidence(history()), &evidence(compared.versions)), Vec::<String>::new());
}

#[test]
fn a_write_that_only_one_of_them_tells_is_a_disagreement() {
    let (first, second) = (|| version(5, MAP, Some(map(4, "1"))), || version(6, MAP, Some(map(4, "1"))));
    let unasked = compare("downstream", &answered(&[first()]), vec![first(), second()]).disagreements;
    assert!(unasked.len() == 1 && unasked[0].contains("nobody asked for it"), "{unasked:?}");
    let missing = compare("downstream", &answered(&[first(), second()]), vec![first()]).disagreements;
    assert!(missing.len() == 1 && missing[0].contains("is not in the store"), "{missing:?}");
}

#[test]
fn a_deletion_that_nobody_asked_for_and_one_that_did_nothing_are_disagreements() {
    let history = || vec![version(5, MAP, Some(map(4, "1"))), version(6, MAP, None)];
    let made = answered(&history()[..1]);
    let found = compare("downstream", &made, history()).disagreements;
    assert!(found.len() == 1 && found[0].contains("nobody asked for it"), "{found:?}");
    let found = compare("downstream", &answered(&history()), vec![history().remove(0)]).disagreements;
    assert!(found.len() == 1 && found[0].contains("1 times more than it went"), "{found:?}");
}

#[test]
fn a_request_without_an_outcome_excuses_one_version_of_its_object_and_no_other() {
    let history = || vec![version(5, MAP, Some(map(4, "1"))), version(6, MAP, Some(map(4, "2")))];
    let first = &history()[0];
    for log in [line(first, "RequestReceived", 0), line(first, "ResponseComplete", 504)] {
        let compared = compare("downstream", &log, history());
        assert_eq!((compared.unanswered, compared.disagreements.len()), (1, 1), "{log}");
        let other = log.replace("app-0", "app-1");
        assert_eq!(compare("downstream", &other, history()).disagreements.len(), 2, "{other}");
    }
    // A clear refusal excuses nothing.
    let refused = line(first, "RequestReceived", 0) + &line(first, "ResponseComplete", 409);
    assert_eq!(compare("downstream", &refused, history()).disagreements.len(), 2);
}

#[test]
fn contents_that_differ_are_told() {
    let told = |content| evidence(vec![version(5, MAP, Some(map(4, content)))]);
    assert_eq!(differences(&told("1"), &told("2")).len(), 2);
    let mut other = units();
    other[1].object = Some(unit("one", "", Some(("c", "left"))));
    assert_eq!(differences(&evidence(units()), &evidence(other)).len(), 2);
}

#[test]
fn a_log_in_which_everything_is_right_is_judged_so() {
    let downstream = [
        records(&[(5, 1, 10, "pending-install"), (7, 1, 10, "deployed"), (15, 2, 20, "pending-upgrade")]),
        vec![version(16, MAP, Some(map(20, "2")))],
        records(&[(18, 2, 20, "deployed")]),
    ];
    let judged = judged(units(), downstream.into_iter().flatten().collect());
    assert_eq!((judged.claims, judged.revisions), (2, 2));
    for (name, sentences) in judged.zeros() {
        // The unit is made by hand: whether it is ready is not this test's.
        assert!(sentences.is_empty() || name == "bundles stuck", "{name}: {sentences:?}");
    }
}

#[test]
fn a_stale_write_that_was_accepted_is_found() {
    let downstream = vec![version(16, MAP, Some(map(20, "2"))), version(17, MAP, Some(map(10, "1")))];
    let found = judged(units(), downstream);
    assert!(
        found.stale.len() == 1 && found.stale[0].contains("epoch 10 (version 1) after 20"),
        "{:?}",
        found.stale
    );
    assert_eq!(found.lost.len(), 1, "and what it spoilt, too: {:?}", found.lost);
}

#[test]
fn a_write_under_no_claim_and_one_of_another_content_are_found() {
    for planted in [map(12, "2"), map(20, "1")] {
        assert_eq!(judged(units(), vec![version(16, MAP, Some(planted))]).stale.len(), 1);
    }
}

#[test]
fn two_gates_for_one_deployment_without_a_loss_between_are_found() {
    let again = |second: u64| {
        records(&[(5, 1, 10, "pending-install"), (7, 1, 10, "deployed"), (15, 2, second, "pending-upgrade")])
    };
    assert_eq!(judged(units(), again(10)).doubles.len(), 1, "under one claim");
    assert_eq!(judged(units(), again(12)).doubles.len(), 1, "under none");
    assert_eq!(judged(units(), again(20)).doubles.len(), 0, "for another deployment");
    let claimed_again = |end: Vec<Version>| {
        let mut units = units();
        units.truncate(2);
        units.extend(end);
        units
    };
    let finished = claimed_again(vec![
        version(11, UNIT, Some(unit("one", "one", None))),
        version(12, UNIT, Some(unit("one", "one", Some(("b", "right"))))),
    ]);
    assert_eq!(judged(finished, again(12)).doubles.len(), 1, "the first was finished");
    let lost = claimed_again(vec![version(12, UNIT, Some(unit("one", "", Some(("b", "right")))))]);
    let judged = judged(lost, again(12));
    assert_eq!((judged.doubles.len(), judged.repeats), (0, 1), "the first was lost: {:?}", judged.doubles);
}
