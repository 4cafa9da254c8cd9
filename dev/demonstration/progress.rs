// SPDX-License-Identifier: Apache-2.0
//! One line for each step of each bundle, as the cluster upstream shows it to anybody.

use std::sync::Arc;

use flotilla::api::{BundleDeployment, Condition, keys};
use kube::ResourceExt;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::harness::units::{Change, is_applied, is_ready, word};

/// Counts from a beginning.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts to count.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Seconds so far.
    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    /// The time so far as a line begins with it.
    pub fn label(&self) -> String {
        label(self.seconds())
    }
}

fn label(seconds: f64) -> String {
    format!("{seconds:.1}s")
}

/// Prints while it lives.
pub struct Progress(JoinHandle<()>);

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Prints each change worth a line.
pub fn print(mut changes: UnboundedReceiver<Change>, clock: Clock) -> Progress {
    Progress(tokio::spawn(async move {
        while let Some(change) = changes.recv().await {
            let Some(after) = &change.after else { continue };
            let seconds = change.at.duration_since(clock.0).as_secs_f64();
            for text in lines(change.before.as_ref(), after) {
                println!("{:>7}  {:<22} {text}", label(seconds), after.name_any());
            }
        }
    }))
}

fn lines(before: Option<&Arc<BundleDeployment>>, after: &BundleDeployment) -> Vec<String> {
    let old = before.and_then(|unit| unit.condition(keys::CLAIM_CONDITION));
    let new = after.condition(keys::CLAIM_CONDITION);
    let was = |state: fn(&BundleDeployment) -> bool| before.is_some_and(|unit| state(unit));
    let mut lines = Vec::new();
    if let Some(new) = new.filter(|new| old.is_none_or(|old| is_new(old, new))) {
        lines.push(claim_line(old, new));
    }
    if is_ready(after) && !was(is_ready) {
        lines.push("ready".into());
    } else if is_applied(after) && !was(is_applied) {
        lines.push("deployed, not ready yet".into());
    } else if old.is_some() && new.is_none() && !is_applied(after) {
        lines.push("claim given back".into());
    }
    lines
}

/// Another claim, or the same in another state.
fn is_new(old: &Condition, new: &Condition) -> bool {
    let identity = |condition: &Condition| {
        (
            word(&condition.message, "nonce").map(str::to_owned),
            condition.reason.clone(),
            condition.status.clone(),
        )
    };
    identity(old) != identity(new)
}

fn claim_line(old: Option<&Condition>, new: &Condition) -> String {
    let word_of = |condition: &Condition, key: &str| word(&condition.message, key).unwrap_or("?").to_owned();
    let (holder, attempt) = (word_of(new, "holder"), word_of(new, "attempt"));
    if new.status != "True" {
        let cause = new.message.split_once("cause=").map_or("", |(_, cause)| cause);
        return format!("{}: {cause}", new.reason);
    }
    if new.reason == "Waiting" {
        return format!("applied by {holder}, waits until it is ready");
    }
    match old.filter(|old| old.status == "True") {
        Some(old) if word_of(old, "session") != word_of(new, "session") => {
            format!("taken over by {holder} from {} (attempt {attempt})", word_of(old, "holder"))
        }
        _ => format!("claimed by {holder} (attempt {attempt})"),
    }
}
