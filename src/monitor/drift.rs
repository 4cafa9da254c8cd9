// SPDX-License-Identifier: Apache-2.0
//! Has a live object drifted from what its release wants, and which change would put it right?
//!
//! Three states are compared: what is *desired* (the manifest's object), what is *live*, and what is *predicted*, that
//! is, what applying the desired object would make of the live one. The API server predicts, by a dry run; where it
//! does not, [`predicted`] does. Only fields that the desired object sets have a say: what others add, and what the
//! server or a webhook fills in, is no drift.

mod local;
mod normal;
mod patch;
mod rules;
mod scaling;

use serde_json::Value;

pub use local::{predicted, restricted, without_voids};
pub use normal::settle;
pub use patch::{first_field, is_void};
pub use rules::{ObjectRules, Rules};
pub use scaling::is_delegated;

/// The change that would restore what is desired; `None` when there is nothing to restore.
pub fn difference(
    desired: &Value,
    live: &Value,
    predicted: &Value,
    rules: &ObjectRules<'_>,
) -> Option<Value> {
    let mut states = [desired.clone(), live.clone(), predicted.clone()];
    for state in &mut states {
        rules.apply(state);
        normal::prepare(state);
    }
    let [mut wanted, live, mut predicted] = states;
    normal::free_delegated(&mut wanted, &mut predicted);
    patch::drop_emptied(desired, &mut wanted);
    patch::restoring(&wanted, &live, &predicted)
}

/// The patch as the status tells it: compact JSON with sorted keys, the values of a Secret masked.
pub fn text(desired: &Value, patch: &Value) -> String {
    if desired["kind"] == "Secret" && desired["apiVersion"] == "v1" {
        return normal::masked(patch).to_string();
    }
    patch.to_string()
}

#[cfg(test)]
#[path = "drift/tests.rs"]
mod tests;
