// SPDX-License-Identifier: Apache-2.0
use super::*;

/// What a gate does about a history: opens this revision as this operation, or refuses.
enum Opens {
    As(Operation, &'static [u32]),
    Refuses(&'static str),
}

#[tokio::test]
async fn every_half_way_state_is_repaired_under_the_claim_or_refused_in_words() {
    use Opens::{As, Refuses};
    let ours = "u/10";
    let fails = |revision| writes_any(revision);
    let table = vec![
        ("nothing", vec![], vec![], As(Operation::Install, &[])),
        (
            "an interrupted first install",
            vec![record(1, "pending-install").stamped(ours)],
            vec![fails(1)],
            As(Operation::Install, &[1]),
        ),
        (
            "an interrupted upgrade",
            vec![record(1, "deployed").stamped(ours), record(2, "pending-upgrade").stamped(ours)],
            vec![fails(2)],
            As(Operation::Upgrade, &[1, 2]),
        ),
        (
            "an interrupted roll-back",
            vec![
                record(1, "deployed").stamped(ours),
                record(2, "failed").stamped(ours),
                record(3, "pending-rollback").stamped(ours),
            ],
            vec![fails(3)],
            As(Operation::Upgrade, &[1, 2, 3]),
        ),
        (
            "an upgrade interrupted under another uid of the same name",
            vec![record(1, "deployed").stamped("old/5"), record(2, "pending-upgrade").stamped("old/6")],
            vec![fails(2)],
            As(Operation::Upgrade, &[1, 2]),
        ),
        (
            "a failed first install",
            vec![record(1, "failed").stamped(ours)],
            vec![],
            As(Operation::Install, &[1]),
        ),
        (
            "killed between superseding and deploying (Helm)",
            vec![record(1, "superseded"), record(2, "failed")],
            vec![],
            As(Operation::Upgrade, &[1, 2]),
        ),
        (
            "two deployed ones",
            vec![record(1, "deployed"), record(2, "deployed")],
            vec![],
            As(Operation::Upgrade, &[2]),
        ),
        (
            "removed, history kept (Helm)",
            vec![record(1, "uninstalled")],
            vec![],
            As(Operation::Upgrade, &[1]),
        ),
        (
            "a record in the middle deleted by hand",
            vec![record(1, "deployed").stamped(ours), record(3, "failed").stamped(ours)],
            vec![],
            As(Operation::Upgrade, &[1, 3]),
        ),
        (
            "the newest record corrupt, an older one readable",
            vec![record(1, "deployed").stamped(ours), record(2, "deployed").stamped(ours).unreadable()],
            vec![],
            As(Operation::Upgrade, &[2]),
        ),
        (
            "a corrupt record that says pending, under our claim",
            vec![
                record(1, "deployed").stamped(ours),
                record(2, "pending-upgrade").stamped(ours).unreadable(),
            ],
            vec![],
            As(Operation::Upgrade, &[1, 2]),
        ),
        (
            "the only record corrupt, but stamped by us",
            vec![record(1, "deployed").stamped(ours).unreadable()],
            vec![],
            As(Operation::Upgrade, &[1]),
        ),
        (
            "the only record corrupt, anybody's",
            vec![record(1, "deployed").unreadable()],
            vec![],
            Refuses("cannot be read"),
        ),
        ("a run of Helm's", vec![record(1, "pending-install")], vec![], Refuses("another tool is working")),
        (
            "a roll-back of Helm's",
            vec![record(1, "deployed"), record(2, "pending-rollback")],
            vec![],
            Refuses("another tool is working"),
        ),
        ("a removal of Helm's", vec![record(1, "uninstalling")], vec![], Refuses("is being removed")),
        (
            "a removal of a replica's",
            vec![record(1, "uninstalling").stamped(ours).guarded("s/n")],
            vec![],
            Refuses("is being removed"),
        ),
        (
            "another bundle's",
            vec![record(1, "deployed").of("other")],
            vec![],
            Refuses("belongs to bundle other"),
        ),
        (
            "another bundle's, interrupted",
            vec![record(1, "pending-install").stamped("x/1").of("other")],
            vec![],
            Refuses("belongs to bundle other"),
        ),
    ];
    for (what, drafts, mut exchanges, expected) in table {
        let history: Vec<_> = drafts.into_iter().map(Draft::stored).collect();
        let next = history.last().map_or(1, |record| record.revision + 1);
        if let As(operation, _) = &expected {
            let pending =
                if *operation == Operation::Install { "pending-install" } else { "pending-upgrade" };
            exchanges.push(creates(next, pending));
        }
        let (server, script) = scripted(exchanges);
        let gate = Gate::open(&store(server), &fence("u/20"), input(history)).await;
        match (gate, expected) {
            (Ok(gate), As(operation, before)) => {
                assert_eq!(gate.operation(), Some(operation), "{what}");
                let revisions: Vec<_> = gate.before().iter().map(|record| record.revision).collect();
                assert_eq!(revisions, before, "{what}");
            }
            (Err(error), Refuses(words)) => {
                assert!(error.to_string().contains(words), "{what}: {error}");
                assert!(!error.is_permanent(), "{what}");
            }
            (Ok(_), Refuses(_)) => panic!("{what}: opened"),
            (Err(error), As(..)) => panic!("{what}: {error}"),
        }
        script.finished().await;
    }
}

/// The write that fails a leftover.
fn writes_any(revision: u32) -> Exchange {
    Exchange::put(&secret_path(revision))
        .expecting(|sent| assert_eq!(sent["metadata"]["labels"]["status"], "failed"))
        .stores(&format!("uid-{}", secret(revision)), "600")
}
