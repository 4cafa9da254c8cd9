// SPDX-License-Identifier: Apache-2.0

use std::collections::HashSet;

use k8s_openapi::jiff::Timestamp;
use ratatui::{Terminal, backend::TestBackend};
use serde_json::{Value, json};

use super::{model::Sort, *};
use crate::{
    api::BundleDeployment,
    downstream::session::{Session, SessionView},
    upstream::Event,
};

fn at(text: &str) -> DateTime<Utc> {
    format!("2026-01-01T{text}Z").parse().unwrap()
}

fn claim(holder: &str, session: &str, nonce: &str, attempt: u32, reason: &str, rest: &str) -> Value {
    let message = format!(
        "v1 holder={holder} session={session} nonce={nonce} attempt={attempt} lost=0 by= budget=600 deployment=d2{rest}"
    );
    let status = if ["Claimed", "Waiting"].contains(&reason) { "True" } else { "False" };
    json!([{"type": "InProgress", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T11:59:30Z"}])
}

fn bd(name: &str, spec: &Value, conditions: &Value) -> Event {
    seen(name, spec, json!({"appliedDeploymentID": "d1", "conditions": conditions}))
}

fn seen(name: &str, spec: &Value, status: Value) -> Event {
    let mut spec = spec.clone();
    (spec["deploymentID"], spec["stagedDeploymentID"]) = ("d2".into(), "d2".into());
    let object: BundleDeployment = serde_json::from_value(json!({
        "apiVersion": "fleet.cattle.io/v1alpha1", "kind": "BundleDeployment",
        "metadata": {"name": name, "namespace": "c1", "creationTimestamp": "2026-01-01T11:50:00Z"},
        "spec": spec, "status": status,
    }))
    .unwrap();
    Event::Seen(Box::new(object))
}

fn deployed(name: &str) -> Event {
    seen(
        name,
        &json!({}),
        json!({"appliedDeploymentID": "d2", "release": "ns/x:1", "ready": true, "nonModified": true}),
    )
}

fn session(id: &str, holder: &str, renewed: &str, free_slots: usize) -> ViewEvent {
    ViewEvent::Seen(Box::new(SessionView {
        session: Session {
            session: id.into(),
            holder: holder.into(),
            pod_uid: None,
            version: "1".into(),
            free_slots,
            since_boot: None,
        },
        namespace: "fleet".into(),
        scope: String::new(),
        version: "0.1.0".into(),
        replicas: None,
        renewed: Some(format!("2026-01-01T{renewed}Z").parse::<Timestamp>().unwrap()),
        ttl: 15,
    }))
}

fn model() -> Model {
    let mut model = Model::new(Below::Asked);
    let none = json!([]);
    model.session(ViewEvent::Listed(Vec::new()));
    model.session(session("aaaaaaaaaa", "agent-0", "11:59:58", 2));
    model.session(session("bbbbbbbbbb", "agent-1", "11:59:00", 0));
    for event in [
        deployed("done"),
        bd("web", &json!({}), &claim("agent-1", "bbbbbbbbbb", "n1", 1, "Claimed", "")),
        bd("db", &json!({}), &claim("agent-0", "aaaaaaaaaa", "n2", 2, "Waiting", "")),
        bd("lost", &json!({}), &claim("agent-9", "zzzzzzzzzz", "n3", 1, "Claimed", "")),
        bd(
            "later",
            &json!({}),
            &claim("agent-0", "aaaaaaaaaa", "n4", 4, "BackingOff", " retryIn=45 cause=no such kind"),
        ),
        bd("still", &json!({"paused": true}), &none),
        bd("next", &json!({}), &none),
        bd("app", &json!({"dependsOn": [{"selector": {"matchLabels": {"a": "b"}}}]}), &none),
    ] {
        model.bundle(event, at("11:59:55"));
    }
    let all = ["done", "web", "db", "lost", "later", "still", "next", "app"];
    let all: HashSet<_> = all.into_iter().map(|name| ("c1".to_owned(), name.to_owned())).collect();
    model.bundle(Event::Listed(all), at("11:59:55"));
    model.bundle(
        bd("web", &json!({}), &claim("agent-0", "aaaaaaaaaa", "n5", 2, "Claimed", "")),
        at("11:59:56"),
    );
    model
}

fn screen(model: &Model, choice: &mut Choice) -> String {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let draw = |frame: &mut ratatui::Frame<'_>| {
        let area = frame.area();
        view::draw(model, choice, "c1", at("12:00:00"), area, frame.buffer_mut());
    };
    terminal.draw(draw).unwrap();
    let rows = terminal.backend().buffer().content().chunks(80);
    let lines = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn a_screen_of_80_by_24_shows_lanes_queue_and_takeovers() {
    assert_eq!(
        screen(&model(), &mut Choice::default()),
        "\
flotilla top  c1  12:00:00  8 bundles  1 Ready  7 WaitApplied
0.0 bundles/s   takeovers: 1   replicas: 1 live
── Replicas: free slots, version, last sign of life, claims (#attempt, age) ────
agent-0            2 free  0.1.0       2s  db #2 30s waiting │ web #2 30s
agent-1            0 free  0.1.0      60s
agent-9            no Lease: ended         lost #1 30s
── Queue 1–4 of 4: attempts, age, why ──────────────────────────────────────────
app                         -    10m  list bundledeployments: no bundles matchi…
next                        -    10m  next free replica
still                       -    10m  held, waits for somebody to unpause the b…
later                       4    30s  attempt 5 in 15s. no such kind










── Takeovers ───────────────────────────────────────────────────────────────────
11:59:56  web                       agent-1 → agent-0
q quit   ↑ ↓ scroll   s sort: age
"
    );
}

#[test]
fn a_print_is_as_long_as_it_needs_to_be() {
    let text = printed(&model(), "c1", at("12:00:00"));
    assert_eq!(
        text,
        "\
flotilla top  c1  12:00:00  8 bundles  1 Ready  7 WaitApplied
replicas: 1 live
── Replicas: free slots, version, last sign of life, claims (#attempt, age) ────────────────────────
agent-0            2 free  0.1.0       2s  db #2 30s waiting │ web #2 30s
agent-1            0 free  0.1.0      60s
agent-9            no Lease: ended         lost #1 30s
── Queue 1–4 of 4: attempts, age, why ──────────────────────────────────────────────────────────────
app                         -    10m  list bundledeployments: no bundles matching labels a=b in nam…
next                        -    10m  next free replica
still                       -    10m  held, waits for somebody to unpause the bundle
later                       4    30s  attempt 5 in 15s. no such kind
── Takeovers ───────────────────────────────────────────────────────────────────────────────────────
11:59:56  web                       agent-1 → agent-0
"
    );
}

#[test]
fn a_print_shows_every_claim_of_a_lane() {
    let mut model = Model::new(Below::NotAsked);
    for n in 0..9 {
        let claim = claim("agent-1", "b", &format!("n{n}"), 1, "Claimed", "");
        model.bundle(bd(&format!("bundle-number-{n}"), &json!({}), &claim), at("11:59:55"));
    }
    let text = printed(&model, "c1", at("12:00:00"));
    assert_eq!(text.matches("bundle-number-").count(), 9, "{text}");
    let screen = screen(&model, &mut Choice::default());
    assert!(screen.contains("bundle-number-0 #1 30s +8"), "{screen}");
}

#[test]
fn the_rate_counts_what_was_deployed_in_the_last_ten_seconds() {
    let mut model = model();
    model.bundle(deployed("web"), at("12:00:00"));
    model.bundle(deployed("web"), at("12:00:01"));
    assert!((model.rate(at("12:00:05")) - 0.1).abs() < 1e-9, "the same status again is no deployment");
    assert!(model.rate(at("12:00:11")) < 1e-9);
}

#[test]
fn the_queue_scrolls_within_its_bounds_and_sorts() {
    let model = model();
    let mut choice = Choice { scroll: usize::MAX, ..Choice::default() };
    screen(&model, &mut choice);
    assert_eq!(choice.scroll, 0, "all of it fits");
    let names =
        |sort| model.queue(sort, at("12:00:00")).into_iter().map(|line| line.name).collect::<Vec<_>>();
    assert_eq!(names(Sort::Name), ["app", "later", "next", "still"]);
    assert_eq!(names(Sort::Attempt)[0], "later");
    assert_eq!(names(Sort::Age)[3], "later");
}

#[test]
fn without_the_cluster_below_holders_of_claims_are_lanes_all_the_same() {
    let mut model = Model::new(Below::NotAsked);
    model.bundle(
        bd("web", &json!({}), &claim("agent-1", "bbbbbbbbbb", "n1", 1, "Claimed", "")),
        at("11:59:55"),
    );
    let lanes = model.lanes(Sort::Age, at("12:00:00"));
    assert_eq!((lanes.len(), &*lanes[0].holder, lanes[0].seen.is_none()), (1, "agent-1", true));
    assert!(screen(&model, &mut Choice::default()).contains("only holders of claims are seen"));
}

#[test]
fn keys_scroll_sort_and_end() {
    use ratatui::crossterm::event::KeyEvent;

    let key = |code| Input::Key(KeyEvent::new(code, KeyModifiers::NONE));
    let mut choice = Choice::default();
    for (code, scroll) in [
        (KeyCode::Up, 0),
        (KeyCode::Down, 1),
        (KeyCode::PageDown, 11),
        (KeyCode::Char('k'), 10),
        (KeyCode::PageUp, 0),
        (KeyCode::End, usize::MAX),
        (KeyCode::Home, 0),
    ] {
        apply(&key(code), &mut choice);
        assert_eq!(choice.scroll, scroll, "{code:?}");
    }
    apply(&key(KeyCode::Char('s')), &mut choice);
    assert_eq!(choice.sort, Sort::Attempt);
    assert!(ends(&key(KeyCode::Char('q'))) && !ends(&key(KeyCode::Char('c'))));
    assert!(ends(&Input::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL))));
}
