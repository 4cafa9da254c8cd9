// SPDX-License-Identifier: Apache-2.0
//! Figures beside their targets.

use std::time::Duration;

use comfy_table::{Table, presets};

/// A figure, its target, and whether it is met.
pub struct Row {
    what: String,
    measured: String,
    target: String,
    met: bool,
}

impl Row {
    /// A figure. Told at once: what comes after it may fail.
    pub fn new(what: &str, measured: String, target: &str, met: bool) -> Row {
        eprintln!("{what}: {measured}");
        Row { what: what.into(), measured, target: target.into(), met }
    }

    /// Times, of which the longest is to be within `bound`.
    pub fn time(what: &str, times: &mut [Duration], bound: Duration) -> Row {
        times.sort();
        let seconds = |time: Option<&Duration>| time.map_or(f64::NAN, Duration::as_secs_f64);
        let longest = times.last();
        let measured = format!(
            "shortest {:.2} s, median {:.2} s, longest {:.2} s of {}",
            seconds(times.first()),
            seconds(times.get(times.len() / 2)),
            seconds(longest),
            times.len()
        );
        let met = longest.is_some_and(|longest| *longest <= bound);
        Row::new(what, measured, &format!("{} s", bound.as_secs()), met)
    }
}

/// Shows the figures, with how busy the machine is.
pub fn print(title: &str, rows: &[Row]) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([title, "measured", "target", ""]);
    for row in rows {
        let met = if row.met { "met" } else { "missed" };
        table.add_row([&row.what, &row.measured, &row.target, met]);
    }
    println!("{table}\nLoad of the machine: {}", load());
}

/// The averages of 1, 5 and 15 minutes.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(", ")
}
