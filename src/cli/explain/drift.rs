// SPDX-License-Identifier: Apache-2.0
//! What of a bundle differs, from its status and the live objects' field managers.

use super::facts::{Drift, Facts};
use crate::{api::ModifiedStatus, cli::output};

/// Longest part of a patch that is told.
const PATCH: usize = 160;

/// Every entry of `modifiedStatus`.
pub fn of(facts: &Facts<'_>) -> Vec<Drift> {
    let entries = facts.bd.status.iter().flat_map(|status| &status.modified_status);
    entries
        .map(|entry| {
            let object = output::place(&entry.kind, &entry.namespace, &entry.name);
            let writers = facts.below.iter().flat_map(|below| &below.writers);
            let managers = writers.filter(|writers| writers.object == object);
            Drift {
                managers: managers.flat_map(|writers| writers.managers.clone()).collect(),
                what: what(entry),
                object,
            }
        })
        .collect()
}

fn what(entry: &ModifiedStatus) -> String {
    if entry.missing && entry.exist {
        return "exists, but is not this release's".into();
    }
    if entry.missing {
        return "is missing".into();
    }
    if entry.delete {
        return "is there, but no longer in the release".into();
    }
    // Secret values were masked by whoever wrote the status.
    match entry.patch.char_indices().nth(PATCH) {
        None => format!("differs; to restore it: {}", entry.patch),
        Some((end, _)) => format!("differs; to restore it: {}…", &entry.patch[..end]),
    }
}
