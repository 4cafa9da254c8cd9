// SPDX-License-Identifier: Apache-2.0
//! Conformance: what Fleet's agent was recorded to do, ours must do, save the differences that are justified.
//!
//! ```text
//! cargo test --test golden                       all cases
//! cargo test --test golden -- lifecycle/two      those with this in their name
//! cargo test --test golden -- --exact raw/single
//! ```
//!
//! `GOLDEN_IDLE=8` gives up on a step when nothing has moved for 8 s, `GOLDEN_LONG=1` prints values whole, and
//! `GOLDEN_KEEP=1` leaves the cluster's directory with the agent's log. A step that fails leaves its canonical form in
//! `target/tmp/golden`, beside the expected one.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

#[path = "conformance/mod.rs"]
mod conformance;
#[path = "../dev/harness/mod.rs"]
mod harness;

use conformance::canonical::both;
use conformance::case::{self, Case, RECORDED_NAMESPACE};
use conformance::compare::{Names, differences};
use conformance::ground::Ground;
use conformance::lists::Lists;
use conformance::play::{Complaints, Patience, play, seen_file};
use conformance::table;

/// Cases played at once: they mostly wait.
const THREADS: usize = 14;

/// The servers, started when a case first needs them: one for each agent configuration.
struct Grounds {
    runtime: Runtime,
    plain: OnceCell<Ground>,
    configured: OnceCell<Ground>,
    lists: Lists,
}

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let cases = case::names()?;
    let lists = Lists::read(&cases)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let grounds = Grounds { runtime, plain: OnceCell::new(), configured: OnceCell::new(), lists };
    let grounds = Arc::new(grounds);
    let mut trials: Vec<Trial> = cases.iter().map(|name| trial(name, &grounds)).collect();
    let shared = grounds.clone();
    trials.push(Trial::test("docs/conformance.md", move || {
        table::check(&cases, &shared.lists).map_err(|error| Failed::from(format!("{error:#}")))
    }));
    trials.push(Trial::test("comparer", || comparer_tells_what_differs().map_err(Failed::from)));
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Only here do all processes end and all directories go: the tests hold no ground any more.
    if let Some(mut grounds) = Arc::into_inner(grounds) {
        if std::env::var_os("GOLDEN_KEEP").is_some() {
            for ground in grounds.plain.get_mut().into_iter().chain(grounds.configured.get_mut()) {
                println!("the logs are in {}", ground.keep().display());
            }
        }
        drop(grounds);
    }
    Ok(conclusion.exit_code())
}

fn trial(name: &str, grounds: &Arc<Grounds>) -> Trial {
    let (case, grounds) = (name.to_owned(), grounds.clone());
    let kind = if grounds.lists.not_yet(name).is_some() { "not yet" } else { "" };
    Trial::test(name, move || grounds.runtime.block_on(judge(&grounds, &case)).map_err(Failed::from))
        .with_kind(kind)
}

async fn judge(grounds: &Grounds, name: &str) -> Result<(), String> {
    let not_yet = grounds.lists.not_yet(name);
    let patience = match idle() {
        _ if not_yet.is_some() => Patience::SHORT,
        Some(idle) => Patience { idle, ..Patience::FULL },
        None => Patience::FULL,
    };
    let ground = grounds.of(name).await.map_err(|error| format!("{error:#}"))?;
    match (play(ground, name, &grounds.lists, patience).await, not_yet) {
        (Ok(complaints), None) if complaints.is_empty() => Ok(()),
        (Ok(complaints), None) => Err(told(ground, name, &complaints)),
        (Ok(complaints), Some(_)) if complaints.is_empty() => {
            Err(format!("{name} passes: take it off tests/golden/not-yet.json"))
        }
        (Ok(complaints), Some(reason)) => {
            if std::env::var_os("GOLDEN_SHOW").is_some() {
                println!("{name}: not yet ({reason}){}", told(ground, name, &complaints));
            }
            Ok(())
        }
        // A step's preparation that fails for want of what is not built.
        (Err(_), Some(_)) => Ok(()),
        (Err(error), None) => Err(format!("{error:#}")),
    }
}

/// What the comparer must find, and what it must not.
fn comparer_tells_what_differs() -> Result<(), String> {
    let step = |uids: [&str; 2], revision: u64, ready: Value, time: &str| {
        let object =
            |name: &str, uid: &str| json!({"kind": "Pod", "namespace": "n", "name": name, "uid": uid});
        json!({
            "bundleDeployments": {"b": {"status": {
                "conditions": [{"type": "Ready", "status": "False", "lastUpdateTime": time}],
                "ready": ready, "release": format!("n/b:{revision}"),
                "nonReadyStatus": [object("x", uids[0]), object("y", uids[1])],
            }}},
            "releases": [{"secretNamespace": "n", "name": "b", "version": revision, "info": {"status": "failed"}}],
            "objects": [],
        })
    };
    let (one, two) = ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222");
    let recorded = step(["<uid-1>", "<uid-2>"], 7, Value::Null, "<time>");
    let cases = [
        (
            "absent is false, uids correspond, failed revisions have no number",
            step([one, two], 1, false.into(), "<time>"),
            0,
        ),
        ("a value that differs", step([one, two], 7, true.into(), "<time>"), 1),
        ("one uid in the place of two", step([one, one], 7, Value::Null, "<time>"), 1),
    ];
    for (what, seen, count) in cases {
        let (expected, shown) = both(&recorded, &seen);
        let found = differences(&expected, &shown, &mut Names::new());
        if found.len() != count {
            return Err(format!("{what}: {found:?}"));
        }
    }
    Ok(())
}

impl Grounds {
    async fn of(&self, name: &str) -> anyhow::Result<&Ground> {
        let case = Case::read(name, RECORDED_NAMESPACE)?;
        match case.steps.get("agentConfig") {
            None => self.plain.get_or_try_init(|| Ground::start("{}")).await,
            // All recorded cases with one have the same.
            Some(config) => {
                let config = config.to_string();
                self.configured.get_or_try_init(|| Ground::start(&config)).await
            }
        }
    }
}

fn idle() -> Option<Duration> {
    std::env::var("GOLDEN_IDLE").ok()?.parse().ok().map(Duration::from_secs)
}

/// The differences, the agent's own words, and where to see the whole.
fn told(ground: &Ground, name: &str, complaints: &Complaints) -> String {
    let mut text = String::new();
    for (step, found) in complaints {
        text += &format!("\n  step {step}: {} differences\n", found.len());
        for one in found.iter().take(12) {
            text += &format!("    {}\n", one.text);
        }
        text += &format!("    whole: {}\n", seen_file(name, step).display());
    }
    let unit = name.replace('/', "-");
    for line in ground.complaints(&unit).unwrap_or_default() {
        let line: String = line.chars().take(600).collect();
        text += &format!("  agent: {line}\n");
    }
    text
}
