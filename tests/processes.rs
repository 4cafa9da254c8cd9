// SPDX-License-Identifier: Apache-2.0
//! The harness' hold over processes, tried on a stand-in for the program.

use std::path::Path;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::replica::Replica;
use harness::{GENEROUS, until};

// A file of the repository: one written by the test could still be open for writing in a process forked meanwhile,
// and would not start ("text file busy").
const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/stand-in");

async fn start(dir: &Path, name: &str) -> anyhow::Result<Replica> {
    let log = dir.join(format!("{name}.log"));
    let kubeconfig = Path::new("/k");
    let mut replica =
        Replica::spawn(Path::new(STAND_IN), name, kubeconfig, "ns", &["--more"], &[("EXTRA", "1")], &log)?;
    until("the stand-in to be ready", GENEROUS, async || {
        replica.check()?;
        Ok(replica.log().contains("ready").then_some(()))
    })
    .await?;
    Ok(replica)
}

fn state(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').next().map(String::from)
}

#[tokio::test]
async fn a_replica_can_be_frozen_thawed_and_ended() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut replica = start(dir.path(), "replica-a").await?;
    assert!(
        replica.log().contains("replica-a in ns runs: agent --kubeconfig /k --more"),
        "{}",
        replica.log()
    );
    assert!(replica.rss_bytes()? > 100_000);
    until(
        "processor time to be counted",
        GENEROUS,
        async || Ok((replica.cpu_seconds()? > 0.0).then_some(())),
    )
    .await?;

    let pid = replica.pid();
    replica.stop_signal()?;
    until("it to be frozen", GENEROUS, async || Ok((state(pid).as_deref() == Some("T")).then_some(())))
        .await?;
    replica.cont()?;
    until("it to be thawed", GENEROUS, async || Ok((state(pid).as_deref() != Some("T")).then_some(())))
        .await?;
    replica.term()?;
    let status = tokio::time::timeout(GENEROUS, replica.wait()).await??;
    assert_eq!(status.code(), Some(7));
    assert!(replica.log().ends_with("told to stop\n"), "{}", replica.log());
    Ok(())
}

#[tokio::test]
async fn a_replica_dies_with_its_handle_even_when_frozen() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut replica = start(dir.path(), "replica-b").await?;
    let pid = replica.pid();
    replica.stop_signal()?;
    drop(replica);
    assert_eq!(state(pid), None);
    Ok(())
}
