// SPDX-License-Identifier: Apache-2.0
//! A run with real replicas.

use std::time::Duration;

use chrono::Utc;
use tokio::time::Instant;

use super::figures::Figures;
use super::ground::{Ground, children, peak_memory};
use super::{Arguments, Arrival};
use crate::harness::replica::{Replica, cpu_seconds};
use crate::harness::units::is_applied;
use crate::harness::world::{World, ready};

/// Longer than any run that is worth a figure.
const BOUND: Duration = Duration::from_secs(600);

/// Measures `replicas` replicas from the first claim to the last result.
pub async fn run(
    world: &World,
    ground: &Ground<'_>,
    replicas: usize,
    arguments: &Arguments,
) -> anyhow::Result<Figures> {
    let units = ground.units().await?;
    if arguments.arrival == Arrival::Waiting {
        ground.publish().await?;
    }
    #[expect(clippy::disallowed_methods, reason = "a measurement")]
    let since = Utc::now();
    let mut running = (1..=replicas)
        .map(|number| {
            Replica::spawn(
                &world.binary,
                &format!("{}-{number}", ground.namespace),
                &ground.registration.agent_kubeconfig,
                &ground.registration.agent_namespace,
                &[],
                &[("BUNDLEDEPLOYMENT_RECONCILER_WORKERS", &arguments.slots().to_string())],
                &world.dir().join(format!("{}-{number}.log", ground.namespace)),
            )
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let pids: Vec<u32> = running.iter().map(|replica| replica.pid()).collect();
    if arguments.arrival != Arrival::Waiting {
        for replica in &mut running {
            ready(replica).await?;
        }
    }
    let publish = async {
        match arguments.arrival {
            Arrival::Waiting => Ok(()),
            Arrival::Burst => ground.publish().await,
            Arrival::Single => ground.publish_singly(arguments.pace).await,
        }
    };
    let work = async {
        let first = units.until_claim("the first claim", BOUND, |_| true).await?;
        let before = usage(&pids)?;
        let wanted = ground.names.len();
        let last = units.until("all bundles to be deployed", BOUND, |live| {
            (live.values().filter(|unit| is_applied(unit)).count() == wanted).then(Instant::now)
        });
        anyhow::Ok((before, last.await?.duration_since(first.seen).as_secs_f64()))
    };
    let (before, seconds) = tokio::select! {
        worked = async { tokio::try_join!(work, publish) } => worked?.0,
        ended = first_end(&mut running) => return Err(ended),
    };
    let after = usage(&pids)?;
    for replica in &mut running {
        replica.check()?;
        replica.kill()?;
    }
    Ok(Figures {
        name: if replicas == 1 { "one replica".into() } else { format!("{replicas} replicas") },
        bundles: ground.names.len(),
        seconds,
        cpu: after.cpu - before.cpu,
        engine_cpu: after.engine_cpu - before.engine_cpu,
        memory: after.memory,
        engine_memory: after.engine_memory,
        writes: ground.writes(since).await?,
        claims: units.claims().len(),
    })
}

/// Waits until a replica ends, which none should; gives the end of its log.
async fn first_end(replicas: &mut [Replica]) -> anyhow::Error {
    let ends = replicas.iter_mut().map(|replica| {
        Box::pin(async move {
            let _ = replica.wait().await;
            replica.check().err().unwrap_or_else(|| anyhow::anyhow!("{} ended", replica.name()))
        })
    });
    futures::future::select_all(ends).await.0
}

/// What the replicas have used so far.
struct Usage {
    cpu: f64,
    engine_cpu: f64,
    memory: f64,
    engine_memory: f64,
}

fn usage(replicas: &[u32]) -> anyhow::Result<Usage> {
    let mut usage = Usage { cpu: 0.0, engine_cpu: 0.0, memory: 0.0, engine_memory: 0.0 };
    for replica in replicas {
        usage.cpu += cpu_seconds(*replica)?;
        usage.memory = usage.memory.max(peak_memory(*replica)?);
        for engine in children(*replica)?.into_keys() {
            usage.engine_cpu += cpu_seconds(engine)?;
            usage.engine_memory = usage.engine_memory.max(peak_memory(engine)?);
        }
    }
    Ok(usage)
}
