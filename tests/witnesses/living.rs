// SPDX-License-Identifier: Apache-2.0
//! Claims taken from the living, and claims that should have been alone.

use super::*;

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
