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
    /// Claims made, taken-over ones included.
    pub claims: usize,
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
            claims: count(|run| run.claims),
        }
    }
}

/// The table: the bare loop first, where there is one, then the runs with their share of its throughput; without it
/// as multiples of the first run.
pub fn table(title: &str, bare: Option<&Figures>, runs: &[Figures]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        title,
        "bundles/s",
        if bare.is_some() { "of the bare loop" } else { "of the first" },
        "writes a bundle: up + down",
        "leases, events",
        "conflicts a claim",
        "CPU ms a bundle (+ engine)",
        "peak MB (+ engine)",
    ]);
    let base = bare.or(runs.first()).map_or(1.0, Figures::bundles_per_second);
    for run in bare.into_iter().chain(runs) {
        let each = |total: f64| total / run.bundles as f64;
        let of_base = run.bundles_per_second() / base;
        table.add_row([
            run.name.clone(),
            format!("{:.1}", run.bundles_per_second()),
            if bare.is_some() { format!("{:.0} %", 100.0 * of_base) } else { format!("{of_base:.2} ×") },
            format!("{:.2} + {:.2}", each(run.writes.upstream as f64), each(run.writes.downstream as f64)),
            run.writes.apart.to_string(),
            format!("{:.3}", run.writes.conflicts as f64 / run.claims.max(1) as f64),
            format!("{:.1} + {:.1}", each(run.cpu * 1e3), each(run.engine_cpu * 1e3)),
            format!("{:.0} + {:.0}", run.memory, run.engine_memory),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\nAll processes, API servers included, share this machine's processors.")
}
