// SPDX-License-Identifier: Apache-2.0
//! What a controller is started with: plain values, read from flags and environment in one place (`cli::args`).

use std::{path::PathBuf, time::Duration};

/// The controller's configuration as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerArgs {
    /// Kubeconfig of the upstream cluster; none: the pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// The only cluster namespace to watch; none: all.
    pub namespace: Option<String>,
    /// Budget assumed for a claim that names none, and time after which an unreadable claim is stale.
    pub claim_timeout: Duration,
    /// Added to a claim's budget before it is expired.
    pub claim_margin: Duration,
    /// Where metrics are served, in Go's form: `:8080` is every address, `0` nowhere.
    pub metrics_address: String,
    /// Where probes are served; same form.
    pub probe_address: String,
}
