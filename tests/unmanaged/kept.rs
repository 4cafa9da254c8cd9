// SPDX-License-Identifier: Apache-2.0
//! What an agent was given stays: its server, whatever the kubeconfig of who registers again calls it, and all of it once
//! Fleet's controller manages the Cluster.

use anyhow::ensure;

use super::{Stage, namespace_of, way_of};

const SERVER: &str = "https://management.example:6443";
const REGISTER: &str = "flotilla register paddock --context management --agent-namespace paddock \
                        --downstream-kubeconfig \"$KUBECONFIG\" --downstream-context site";

pub async fn the_way_that_was_chosen(stage: &Stage) -> anyhow::Result<()> {
    stage.shell.done(&format!("{REGISTER} --server {SERVER} --system-ca"))?;
    let (server, token) = way_of(&stage.local, "paddock").await?;
    ensure!(server == SERVER, "{server}");

    let again = stage.shell.done(REGISTER)?;
    let changed: Vec<_> = again.stdout.lines().filter(|line| !line.ends_with(" unchanged")).collect();
    ensure!(changed.is_empty(), "the second time changed {changed:?}");
    ensure!(!again.stderr.contains("cannot reach"), "{}", again.stderr);

    stage.shell.done(&format!("{REGISTER} --rotate-token"))?;
    let (server, fresh) = way_of(&stage.local, "paddock").await?;
    ensure!(server == SERVER && fresh != token, "{server}");
    ensure!(stage.answer(&fresh, &namespace_of("paddock")).await? == 200);

    let label =
        "kubectl --context management --namespace fleet-default label clusters.fleet.cattle.io paddock";
    stage.shell.done(&format!("{label} fleet.cattle.io/cluster-management-"))?;
    for verb in ["", "--rotate-token", "--revoke", "--revoke --delete-bundles"] {
        let refused = stage.shell.run(&format!("{REGISTER} {verb}"))?;
        ensure!(refused.code == 1 && refused.stderr.contains("managed by Fleet"), "{}", refused.stderr);
    }
    ensure!(stage.answer(&fresh, &namespace_of("paddock")).await? == 200);
    stage.shell.done(&format!("{label} fleet.cattle.io/cluster-management=x"))?;

    // Without the Secret nobody has chosen a server, and the one of this machine is of no use elsewhere.
    stage.delete_secret("paddock").await?;
    let refused = stage.shell.run(&format!("{REGISTER} --rotate-token"))?;
    ensure!(refused.code == 1 && refused.stderr.contains("--server"), "{}", refused.stderr);
    ensure!(stage.answer(&fresh, &namespace_of("paddock")).await? == 200, "a refusal ends no token");
    Ok(())
}
