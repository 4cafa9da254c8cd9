// SPDX-License-Identifier: Apache-2.0
//! An explanation as a person reads it.

use super::facts::Explanation;

/// Sentences, one a line; headed parts below.
pub fn text(said: &Explanation) -> String {
    let mut text = format!("{}\n", said.summary);
    for sentence in &said.why {
        text.push_str(&format!("{sentence}\n"));
    }
    if let [one] = said.waits_for.as_slice() {
        text.push_str(&format!("It waits for {one}.\n"));
    } else if !said.waits_for.is_empty() {
        part(&mut text, "It waits for", said.waits_for.iter().cloned());
    }
    text.push_str(&format!("\nNext: {}\n", said.next));
    if let Some(error) = &said.last_error {
        text.push_str(&format!("Last error: {error}\n"));
    }
    part(
        &mut text,
        "Drift",
        said.drift.iter().map(|drift| match drift.managers.as_slice() {
            [] => format!("{}: {}", drift.object, drift.what),
            managers => format!("{}: {}; written by {}", drift.object, drift.what, managers.join(", ")),
        }),
    );
    part(&mut text, "Not seen from here", said.unseen.iter().cloned());
    part(
        &mut text,
        "What would help",
        said.advice.iter().map(|advice| format!("{}   # {}", advice.command, advice.effect)),
    );
    text
}

fn part(text: &mut String, head: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.map(|line| format!("  {line}\n")).collect();
    if !lines.is_empty() {
        text.push_str(&format!("{head}:\n{}", lines.concat()));
    }
}
