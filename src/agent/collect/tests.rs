// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::downstream::release::fixtures::{Draft, record};

const AGENT: &str = "cattle-fleet-system";

fn release() -> Draft {
    record(3, "deployed").annotated(keys::AGENT_NAMESPACE, AGENT)
}

fn labelled(scope: &str) -> String {
    format!("labels: {{{}: {}}}", keys::HASH_LABEL, names::object_hash(&names::set_id("b", scope)))
}

#[test]
fn only_releases_of_this_agent_are_its_garbage() {
    let is_ours = |draft: Draft, scope: &str| ours(&[draft.stored()], AGENT, scope).is_some();
    assert!(is_ours(release(), ""));
    assert!(is_ours(release().manifest(&labelled("")), ""));
    assert!(is_ours(release().manifest(&labelled("blue")), "blue"));
    // Of an agent with another scope, of another agent, of a person's Helm, of an agent itself.
    assert!(!is_ours(release().manifest(&labelled("green")), "blue"));
    assert!(!is_ours(release().manifest(&labelled("green")), ""));
    assert!(!is_ours(release(), "blue"), "without a label nothing tells the scope");
    assert!(!is_ours(release().annotated(keys::AGENT_NAMESPACE, "elsewhere"), ""));
    assert!(!is_ours(record(1, "deployed"), ""));
    assert!(!is_ours(release().of("fleet-agent-shop"), ""));
    assert!(!is_ours(release().unreadable(), ""), "what cannot be read is left");
    assert!(ours(&[], AGENT, "").is_none());
}

#[test]
fn the_newest_stamp_and_guard_of_a_release_are_told() {
    let history = [
        record(2, "deployed").annotated(keys::AGENT_NAMESPACE, AGENT).stamped("u/7").stored(),
        release().stored(),
    ];
    assert_eq!(ours(&history, AGENT, ""), Some(("b".to_owned(), Uid("u".into()), None)));
    let guarded = [release().guarded("s/n").at("9").stored()];
    let guard = Some((SessionId("s".into()), "9".to_owned()));
    assert_eq!(ours(&guarded, AGENT, ""), Some(("b".to_owned(), Uid::default(), guard)));
}

#[test]
fn a_unit_without_its_record_is_found() {
    let standing = |name: &str, text: &str| (Name::from(name), text.parse::<ReleaseId>().unwrap());
    let found = |name: &str, revision| Standing {
        namespace: "ns".into(),
        name: name.into(),
        revision,
        resource_version: "1".into(),
    };
    let mut units = vec![
        standing("a", "ns/a:1"),
        standing("b", "ns/b:3"),
        standing("c", "ns/c:2"),
        standing("d", "ns/d:1"),
    ];
    keep_lost(&mut units, &[found("a", 1), found("b", 2), found("c", 4)]);
    assert_eq!(units, [standing("b", "ns/b:3"), standing("d", "ns/d:1")]);
}
