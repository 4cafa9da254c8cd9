// SPDX-License-Identifier: Apache-2.0
//! The engine as a fault boundary: real processes that crash, hang, lie or grow.

#![cfg(unix)]

use std::{
    env, fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use flotilla::render::engine::{Engine, EngineConfig, EngineError, ResolveRequest};
use serde_json::json;

/// Short where a test waits for it to run out, long enough for a busy machine elsewhere.
const SHORT: Duration = Duration::from_millis(300);

fn config() -> EngineConfig {
    EngineConfig { deadline: Duration::from_secs(30), ..EngineConfig::default() }
}

fn one(text: &str) -> Vec<(String, Vec<u8>)> {
    vec![("a.yaml".to_owned(), text.as_bytes().to_vec())]
}

async fn up(engine: &Engine) {
    let starting = engine.healthy();
    if starting.is_err() {
        assert_eq!(engine.health_changed(&starting).await, Ok(()));
    }
}

fn signal(engine: &Engine, signal: libc::c_int) {
    let pid = engine.pid().expect("the engine runs");
    // SAFETY: kill takes two numbers; the process is a child of this test, which has not been waited for.
    assert_eq!(unsafe { libc::kill(libc::pid_t::try_from(pid).expect("a pid"), signal) }, 0);
}

/// An engine of a few lines of shell.
fn script(directory: &Path, body: &str) -> EngineConfig {
    let path = directory.join("engine");
    let mut file = fs::File::create(&path).expect("a file");
    writeln!(file, "#!/bin/sh\n{body}").expect("a line");
    file.set_permissions(fs::Permissions::from_mode(0o755)).expect("a mode");
    EngineConfig { binary: Some(path), ..config() }
}

/// Shell that sends the handshake of a protocol.
fn handshake(protocol: u8) -> String {
    let answer = format!(r#"{{"id":0,"result":{{"protocol":{protocol}}}}}"#);
    format!(r"printf '\000\000\000\{:03o}{answer}'", answer.len())
}

#[tokio::test]
async fn many_requests_at_once_are_each_answered_with_their_own_documents() {
    let engine = Engine::start(config()).expect("cargo has built the engine");
    let asked = (0..200).map(|i| {
        let engine = engine.clone();
        async move { (i, engine.yaml(one(&format!("i: {i}\n---\ni: x"))).await) }
    });
    for (i, answer) in futures::future::join_all(asked).await {
        let documents = answer.expect("sound YAML");
        assert_eq!(documents[0].value, json!({ "i": i }));
        assert_eq!((documents[1].file.as_str(), documents[1].index), ("a.yaml", 1));
    }
    assert_eq!(engine.restarts(), 0);
}

#[tokio::test]
async fn requests_in_flight_survive_the_engines_death() {
    let engine = Engine::start(config()).expect("cargo has built the engine");
    up(&engine).await;
    // Stopped, it holds what it was given.
    signal(&engine, libc::SIGSTOP);
    let asked = (0..5).map(|i| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.yaml(one(&format!("i: {i}"))).await })
    });
    let asked: Vec<_> = asked.collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    signal(&engine, libc::SIGKILL);
    for (i, answer) in futures::future::join_all(asked).await.into_iter().enumerate() {
        assert_eq!(answer.expect("no panic").expect("tried again")[0].value, json!({ "i": i }));
    }
    up(&engine).await;
    assert_eq!(engine.restarts(), 1);
}

#[tokio::test]
async fn an_engine_without_work_is_let_go_and_comes_back_with_the_next_request() {
    let config = EngineConfig { idle: Duration::from_millis(50), ..config() };
    let engine = Engine::start(config).expect("cargo has built the engine");
    for round in 0..3 {
        assert_eq!(engine.yaml(one("a: 1")).await.expect("an answer")[0].value, json!({"a": 1}));
        let gone = async {
            while engine.pid().is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.expect("it is let go");
        assert_eq!((engine.healthy(), engine.restarts()), (Ok(()), 0), "round {round}");
    }
}

#[tokio::test]
async fn a_hung_engine_is_replaced_and_its_request_answered() {
    let engine = Engine::start(EngineConfig { deadline: Duration::from_secs(2), ..config() });
    let engine = engine.expect("cargo has built the engine");
    up(&engine).await;
    signal(&engine, libc::SIGSTOP);
    assert_eq!(engine.yaml(one("a: 1")).await.expect("a new engine")[0].value, json!({"a": 1}));
    up(&engine).await;
    assert_eq!(engine.restarts(), 1);
}

#[tokio::test]
async fn a_document_that_kills_the_engine_fails_alone() {
    // Enough to start and work, too little for a million values.
    let engine = Engine::start(EngineConfig { memory: 128 << 20, ..config() });
    let engine = engine.expect("cargo has built the engine");
    let poison = engine.yaml(one(&format!("a:\n{}", "- 1\n".repeat(1 << 20))));
    let neighbours = (0..20).map(|i| engine.yaml(one(&format!("i: {i}"))));
    let (poison, neighbours) = tokio::join!(poison, futures::future::join_all(neighbours));
    let error = poison.expect_err("more than its memory");
    assert!(matches!(error, EngineError::Crashed { by_itself: true, .. }), "{error}");
    assert!(error.is_permanent(), "the content alone decides");
    for answer in neighbours {
        answer.expect("a neighbour is not to blame");
    }
    assert_eq!(engine.yaml(one("a: 1")).await.expect("the engine is back").len(), 1);
}

#[tokio::test]
async fn the_largest_file_that_helm_accepts_fits_into_the_default_memory() {
    let engine = Engine::start(config()).expect("cargo has built the engine");
    let text = format!("a:\n{}", "- 1\n".repeat((5 << 20) / 4 - 1));
    engine.yaml(one(&text)).await.expect("five mebibytes");
    assert_eq!(engine.restarts(), 0);
}

#[tokio::test]
async fn an_oversized_request_is_refused_before_it_is_sent() {
    let engine = Engine::start(config()).expect("cargo has built the engine");
    let error = engine.yaml(one(&" ".repeat(65 << 20))).await.expect_err("too large");
    assert!(matches!(error, EngineError::TooLarge { .. }) && error.is_permanent(), "{error}");
    assert_eq!(engine.yaml(one("a: 1")).await.expect("nothing happened").len(), 1);
    assert_eq!(engine.restarts(), 0);
}

#[tokio::test]
async fn hostile_documents_are_errors_that_name_them() {
    let engine = Engine::start(config()).expect("cargo has built the engine");
    let repeated = format!("a: &a {}\nb: [{}*a]", "x".repeat(1 << 20), "*a, ".repeat(99));
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    for (text, expected) in [
        (repeated.as_bytes(), "the document's aliases expand to more than 67108864 bytes"),
        (b"a: \xff".as_slice(), "yaml: invalid leading UTF-8 octet"),
        (b"a: \0".as_slice(), "yaml: control characters are not allowed"),
        (format!("a: {deep}").as_bytes(), "the engine's answer cannot be read"),
    ] {
        let error = engine.yaml(vec![("bad.yaml".into(), text.to_vec())]).await.expect_err(expected);
        assert_eq!(error.to_string(), expected);
        assert!(error.is_permanent(), "{error}");
    }
    assert_eq!(engine.restarts(), 0);
}

#[tokio::test]
async fn an_engine_of_another_protocol_is_not_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = script(directory.path(), &format!("{}; exec cat >/dev/null", handshake(9)));
    let engine = Engine::start(EngineConfig { patience: SHORT, ..config }).expect("it exists");
    let starting = engine.healthy();
    assert_eq!(
        engine.health_changed(&starting).await,
        Err("the agent speaks protocol 2, the engine 9".to_owned())
    );
    let error = engine.yaml(one("a: 1")).await.expect_err("never up");
    assert!(!error.is_permanent(), "the bundle is not to blame");
    assert!(error.to_string().contains("the engine 9"), "{error}");
}

#[tokio::test]
async fn an_engine_that_ends_at_once_is_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = Engine::start(script(directory.path(), "exit 3")).expect("it exists");
    let starting = engine.healthy();
    let reason = engine.health_changed(&starting).await.expect_err("it ended");
    assert!(reason.contains("before the handshake") && reason.contains('3'), "{reason}");
}

#[tokio::test]
async fn a_request_never_answered_fails_and_may_be_tried_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = script(directory.path(), &format!("{}; exec sleep 600", handshake(2)));
    let engine = Engine::start(EngineConfig { deadline: SHORT, ..config }).expect("it exists");
    let error = engine.yaml(one("a: 1")).await.expect_err("no answer");
    assert!(matches!(error, EngineError::Overran { .. }) && !error.is_permanent(), "{error}");
}

#[tokio::test]
async fn an_engine_killed_from_outside_proves_nothing_against_a_document() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = script(directory.path(), &format!("{}; head -c 1 >/dev/null; kill -9 $$", handshake(2)));
    let engine = Engine::start(config).expect("it exists");
    let error = engine.yaml(one("a: 1")).await.expect_err("killed twice");
    assert!(matches!(error, EngineError::Crashed { by_itself: false, .. }), "{error}");
    assert!(!error.is_permanent());
}

#[tokio::test]
async fn an_engine_that_speaks_no_frames_is_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let config =
        script(directory.path(), &format!("{}; echo hello world; exec cat >/dev/null", handshake(2)));
    let engine = Engine::start(config).expect("it exists");
    up(&engine).await;
    let reason = engine.health_changed(&Ok(())).await.expect_err("no frames");
    assert!(reason.contains("died") || reason.contains("hung"), "{reason}");
}

#[tokio::test]
async fn versions_are_chosen_as_helm_chooses_from_an_index() {
    let engine = Engine::start(config()).expect("cargo has built the engine");
    for (constraint, expected) in [
        ("", Some("2.1.0")),
        ("^1.0", Some("1.10.0")),
        ("1.9", Some("1.9.0")),
        ("v1.2.0", Some("v1.2.0")),
        ("1.2.0", Some("v1.2.0")),
        (">2.1.0-0", Some("3.0.0-rc.1")),
        ("3.0.0-rc.1", Some("3.0.0-rc.1")),
        ("~5", None),
        ("latest", Some("latest")),
    ] {
        let versions = ["1.9.0", "2.1.0", "1.10.0", "v1.2.0", "3.0.0-rc.1", "nonsense"];
        let mut versions: Vec<String> = versions.map(str::to_owned).to_vec();
        versions.extend((constraint == "latest").then(|| constraint.to_owned()));
        let chosen =
            engine.resolve_version(ResolveRequest { constraint: constraint.to_owned(), versions }).await;
        match (chosen, expected) {
            // Helm reads the constraint before it looks for the very version.
            (Err(error), Some("latest")) => assert_eq!(error.to_string(), "improper constraint: \"latest\""),
            (chosen, expected) => assert_eq!(chosen.expect(constraint).as_deref(), expected, "{constraint}"),
        }
    }
}

#[test]
fn a_missing_engine_is_said_at_once_with_where_it_should_be() {
    let config = EngineConfig { binary: Some("/nowhere/flotilla-engine".into()), ..config() };
    let error = Engine::start(config).expect_err("there is none");
    assert!(error.to_string().contains("/nowhere/flotilla-engine"), "{error}");
}

#[test]
fn the_engine_ends_with_its_input_so_that_it_never_outlives_the_agent() {
    let mut directory = env::current_exe().expect("a test is a file");
    directory.pop();
    let built = |up: PathBuf| up.join("flotilla-engine");
    let binary = built(directory.parent().expect("target/<profile>").to_owned());
    let status = Command::new(binary).stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(status.expect("it starts").success());
}
