// SPDX-License-Identifier: Apache-2.0
//! The judge of `dev/chaos` and its two witnesses find what they look for: each fault planted here must be told.

#[path = "../dev/harness/mod.rs"]
mod harness;

#[path = "../dev/disorder/mod.rs"]
#[expect(dead_code, reason = "only what judges is used")]
mod disorder;

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

/// `one` deployed under 10, then `bare` claimed at 20, then `one` once more at 30.
fn there_and_back() -> Vec<Version> {
    vec![
        version(10, UNIT, Some(unit("one", "", Some(("a", "left"))))),
        version(20, UNIT, Some(unit("bare", "one", Some(("b", "left"))))),
        version(30, UNIT, Some(unit("one", "one", Some(("c", "right"))))),
    ]
}

/// The ConfigMap of epoch 10, deleted at 40, and made anew under 30.
fn deleted_and_healed(records: Vec<Version>) -> Vec<Version> {
    let objects = vec![
        version(5, MAP, Some(map(10, "1"))),
        version(40, MAP, None),
        version(50, MAP, Some(map(30, "1"))),
    ];
    let mut all: Vec<Version> = records.into_iter().chain(objects).collect();
    all.sort_by_key(|version| version.revision);
    all
}

#[test]
fn a_deletion_of_what_is_wanted_is_found_although_the_next_write_heals_it() {
    let downstream = [
        records(&[(15, 1, 20, "pending-install")]),
        vec![
            version(16, MAP, Some(map(20, "2"))),
            version(17, MAP, None),
            version(18, MAP, Some(map(20, "2"))),
        ],
    ];
    let found = judged(units(), downstream.into_iter().flatten().collect());
    assert!(found.stale.len() == 1 && found.stale[0].contains("at 17 was deleted"), "{:?}", found.stale);
    assert_eq!(found.lost, Vec::<String>::new());
}

#[test]
fn a_prune_is_right_from_the_revision_of_its_claim_to_the_next_one_deployed() {
    let first = (3, 1, 10, "pending-install");
    let (pruning, next) = ((20, 2, 20, "pending-upgrade"), (30, 3, 30, "pending-upgrade"));
    for (records, found) in [
        (records(&[first]), 1),
        (records(&[first, pruning]), 0),
        // Sent before the next one stamped the object.
        (records(&[first, pruning, next]), 0),
        // A deployment whose stamp is not on all that it wants protects nothing.
        (records(&[first, pruning, next, (35, 3, 30, "deployed")]), 1),
        (records(&[first, pruning, next, (45, 3, 30, "deployed")]), 0),
    ] {
        let stale = judged(there_and_back(), deleted_and_healed(records)).stale;
        assert_eq!(stale.len(), found, "{stale:?}");
    }
}

/// The unit was deleted upstream, or is there.
fn removed(is_deleted: bool) -> Vec<Version> {
    let mut all = units();
    if is_deleted {
        all.push(version(25, UNIT, None));
    }
    all
}

/// The ConfigMap of `two`, whose record is guarded at 30 or not, and its deletion.
fn removal(is_guarded: bool) -> Vec<Version> {
    let mut all = records(&[(15, 1, 20, "deployed")]);
    all.push(version(16, MAP, Some(map(20, "2"))));
    if is_guarded {
        all.extend(records(&[(30, 1, 20, "uninstalling")]));
    }
    all.push(version(31, MAP, None));
    all
}

#[test]
fn a_removal_deletes_what_was_deleted_upstream_and_after_it_said_so() {
    for (is_deleted, is_guarded, found) in [(true, true, 0), (false, true, 1), (true, false, 1)] {
        let stale = judged(removed(is_deleted), removal(is_guarded)).stale;
        assert_eq!(stale.len(), found, "deleted {is_deleted}, guarded {is_guarded}: {stale:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_came_before_its_order_is_found() {
    for (early, found) in [(Duration::from_secs(1), 0), (Duration::from_secs(30), 1)] {
        let mut seen = Evidence::default();
        let mut take = |all: Vec<Version>| {
            all.into_iter().for_each(|version| seen.take(version, &units_of(NAMESPACE)));
        };
        take(units());
        take(removal(true));
        tokio::time::advance(early).await;
        take(vec![version(25, UNIT, None)]);
        let stale = by_story(&seen).stale;
        assert_eq!(stale.len(), found, "{early:?}: {stale:?}");
    }
}

#[test]
fn what_is_created_after_the_end_of_its_bundle_is_counted_although_it_goes_again() {
    let again = || vec![version(32, MAP, Some(map(20, "2"))), version(33, MAP, None)];
    let late = judged(removed(true), [removal(true), again()].into_iter().flatten().collect());
    assert!(late.after_end.len() == 1 && late.after_end[0].contains("at 32"), "{:?}", late.after_end);
    assert_eq!((late.stale, late.resurrected), (Vec::new(), Vec::new()));
    let in_time = judged(removed(true), removal(true));
    assert_eq!(in_time.after_end, Vec::<String>::new());
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

/// A claim of `session` on a unit of this name, whose uid is `<name>-uid`.
fn claimed(name: &str, session: &str, nonce: &str, words: &str, reason: &str) -> Value {
    let message =
        format!("v1 holder={session} session={session} nonce={nonce} attempt=1 {words} deployment=one");
    json!({
        "kind": "BundleDeployment", "apiVersion": "fleet.cattle.io/v1alpha1",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": format!("{name}-uid")},
        "spec": {"deploymentID": "one"},
        "status": {"conditions": [{"type": "InProgress", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}

/// A claim is made and a second later begins to wait, its session is silent from 5 to 9 s, and another takes it after `at`.
async fn taken(at: u64, waits: bool) -> Vec<String> {
    let mut seen = Evidence::default();
    for second in 0..=at {
        let mut take = |key: &str, object| {
            seen.take(version(second + 1, key, Some(object)), &units_of(NAMESPACE));
        };
        let claim = |session, nonce, budget: u32, reason| {
            claimed("app", session, nonce, &format!("lost=0 budget={budget}"), reason)
        };
        if !(6..9).contains(&second) {
            let lease = json!({"metadata": {"name": "replica-left"}, "spec": {"holderIdentity": "left"}});
            take("leases/cattle-fleet-system/replica-left", lease);
        }
        match second {
            0 => take(UNIT, claim("left", "a", 20, "Claimed")),
            1 if waits => take(UNIT, claim("left", "a", 80, "Waiting")),
            _ if second == at => take(UNIT, claim("right", "b", 20, "Claimed")),
            _ => {}
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    by_story(&seen).from_the_living
}

#[tokio::test(start_paused = true)]
async fn a_claim_taken_from_the_living_is_found_and_one_from_the_silent_or_the_slow_is_not() {
    for (at, waits, found) in [
        (4, false, 1),
        (8, false, 0),
        (11, false, 0),
        // Silent once, and back for longer than a look and a claim take.
        (16, false, 1),
        (21, false, 0),
        // A wait has its own budget.
        (30, true, 1),
        (79, true, 1),
        (82, true, 0),
    ] {
        let taken = taken(at, waits).await;
        assert_eq!(taken.len(), found, "after {at} s, waits {waits}: {taken:?}");
    }
}

#[test]
fn a_claim_at_work_beside_one_that_works_alone_is_found() {
    let other = "fleet.cattle.io/bundledeployments/cluster/other";
    let claim = |lost: u32, reason| claimed("app", "left", "a", &format!("lost={lost} budget=20"), reason);
    let beside = |session, reason| claimed("other", session, "b", "lost=0 budget=20", reason);
    let stamped = |uid: &str, epoch: u64| {
        let mut object = map(epoch, "1");
        object["metadata"]["annotations"]["flotilla.fleet/epoch"] = format!("{uid}/{epoch}").into();
        object
    };
    let company = |units: Vec<Version>, works: bool| {
        let mut objects = vec![version(1, MAP, Some(stamped("app-uid", 20)))];
        objects.extend(works.then(|| version(2, "configmaps/shop/other", Some(stamped("other-uid", 10)))));
        let evidence = evidence(units.into_iter().chain(objects));
        by_story(&evidence).company.len()
    };
    let together = |lost, session| {
        vec![
            version(10, other, Some(beside(session, "Claimed"))),
            version(20, UNIT, Some(claim(lost, "Claimed"))),
        ]
    };
    assert_eq!(company(together(2, "left"), true), 1);
    assert_eq!(company(together(1, "left"), true), 0, "not lost often enough");
    assert_eq!(company(together(2, "right"), true), 0, "another replica's");
    assert_eq!(company(together(2, "left"), false), 0, "it never began");
    for end in [Some(beside("left", "Waiting")), None] {
        let mut one_by_one = together(2, "left");
        one_by_one.insert(1, version(15, other, end));
        assert_eq!(company(one_by_one, true), 0);
    }
}
