// SPDX-License-Identifier: Apache-2.0
//! The short form of `dev/chaos`: a minute of everything going wrong, then calm, then the judge.

use std::path::Path;
use std::time::Duration;

#[path = "../dev/harness/mod.rs"]
mod harness;

#[path = "../dev/disorder/mod.rs"]
#[expect(dead_code, reason = "the measurement of takeovers is dev/chaos' alone")]
mod disorder;

use disorder::Settings;
use harness::Tools;
use harness::world::{Downstream, World};

/// Fixed, so that what fails here fails again; `dev/chaos` draws its own.
const SEED: u64 = 20_260_101;

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_chaos_leaves_nothing_double_stale_lost_or_stuck() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let mut world = World::start_with(binary, tools, Downstream::Bare, disorder::options()).await?;
    println!("seed {SEED}");
    let settings = Settings::short(SEED, Duration::from_secs(60));
    let result = disorder::run(&mut world, &settings).await.and_then(|report| {
        println!("{}", report.text);
        let judgement = &report.judgement;
        anyhow::ensure!(judgement.copies > 0 && judgement.hooks > 0, "no copy or no hook was seen");
        report.verdict()
    });
    world.conclude(result)
}
