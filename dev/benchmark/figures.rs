// SPDX-License-Identifier: Apache-2.0
//! What was measured, and the table that shows it.

use comfy_table::{CellAlignment, Table, presets};

use super::ground::Writes;

/// The figures of one run, or the medians of several.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What was measured.
    pub name: String,
    /// Bundles deployed.
    pub bundles: usize,
    /// From the first claim to the last result.
    pub seconds: f64,
    /// Processor seconds of all replicas in that time.
    pub cpu: f64,
    /// The same of their engines.
    pub engine_cpu: f64,
    /// Peak memory of the largest replica, MB.
    pub memory: f64,
    /// Peak memory of the largest engine, MB.
    pub engine_memory: f64,
    /// Writes in that time.
    pub writes: Writes,
}

impl Figures {
    /// Throughput.
    pub fn bundles_per_second(&self) -> f64 {
        self.bundles as f64 / self.seconds
    }

    /// The median of each figure. There must be at least one run.
    pub fn median(runs: &[Figures]) -> Figures {
        let float = |figure: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.len() / 2;
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
        };
        let count = |figure: fn(&Figures) -> usize| {
            let mut values: Vec<usize> = runs.iter().map(figure).collect();
            values.sort();
            values[values.len() / 2]
        };
        Figures {
            name: runs[0].name.clone(),
            bundles: runs[0].bundles,
            seconds: float(|run| run.seconds),
            cpu: float(|run| run.cpu),
            engine_cpu: float(|run| run.engine_cpu),
            memory: float(|run| run.memory),
            engine_memory: float(|run| run.engine_memory),
            writes: Writes {
                upstream: count(|run| run.writes.upstream),
                downstream: count(|run| run.writes.downstream),
                apart: count(|run| run.writes.apart),
                conflicts: count(|run| run.writes.conflicts),
            },
        }
    }
}

/// The table: the bare loop first, then the runs, with their share of its throughput.
pub fn table(title: &str, bare: &Figures, runs: &[&Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        title,
        "bundles/s",
        "of the bare loop",
        "writes a bundle: up + down",
        "leases, events",
        "conflicts",
        "CPU ms a bundle (+ engine)",
        "peak MB (+ engine)",
    ]);
    for run in std::iter::once(bare).chain(runs.iter().copied()) {
        let each = |total: f64| total / run.bundles as f64;
        table.add_row([
            run.name.clone(),
            format!("{:.1}", run.bundles_per_second()),
            format!("{:.0} %", 100.0 * run.bundles_per_second() / bare.bundles_per_second()),
            format!("{:.2} + {:.2}", each(run.writes.upstream as f64), each(run.writes.downstream as f64)),
            run.writes.apart.to_string(),
            run.writes.conflicts.to_string(),
            format!("{:.1} + {:.1}", each(run.cpu * 1e3), each(run.engine_cpu * 1e3)),
            format!("{:.0} + {:.0}", run.memory, run.engine_memory),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\nAll processes, API servers included, share this machine's processors.")
}
