// SPDX-License-Identifier: Apache-2.0
//! What an agent is started with: plain values, read from flags and environment in one place (`cli::args`).

use std::{path::PathBuf, time::Duration};

/// The agent's configuration as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentArgs {
    /// The agent's own namespace downstream.
    pub namespace: String,
    /// Suffix of set ids; lets several agents share a cluster. Usually empty.
    pub scope: String,
    /// Period of the sign of life in `Cluster.status.agent`.
    pub checkin_interval: Duration,
    /// Kubeconfig of the downstream cluster; none: the pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// Deployments worked on at once. At least 1.
    pub workers: usize,
    /// Where metrics are served, in Go's form: `:8080` is every address, `0` nowhere.
    pub metrics_address: String,
    /// Where probes are served; same form.
    pub probe_address: String,
    /// Budget of a claim without a wait.
    pub claim_timeout: Duration,
    /// Peers take a claim over this much later than its budget says.
    pub claim_margin: Duration,
    /// A session unchanged for this long is dead.
    pub session_ttl: Duration,
    /// Period of the session's renewal. At most half of `session_ttl`.
    pub session_renew: Duration,
    /// Head start of each more preferred replica.
    pub steal_delay: Duration,
    /// How long a BundleDeployment must be absent, without a DELETED event, before its release goes.
    pub absence_grace: Duration,
    /// The same when many are absent at once.
    pub mass_absence_grace: Duration,
    /// Time to a safe point after SIGTERM.
    pub shutdown_grace: Duration,
    /// The pod's name, if known.
    pub pod_name: Option<String>,
    /// The pod's uid, if known: with it, what the kubelet says of the pod proves the replica's death.
    pub pod_uid: Option<String>,
    /// Sentences for the log: what was set without effect, or could not be read.
    pub remarks: Vec<String>,
}
