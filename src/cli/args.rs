// SPDX-License-Identifier: Apache-2.0
//! The flags: what may be typed, and how it becomes what is to be done. The rest of the program never sees a flag.
//!
//! Environment variables are looked up through a function, not by clap: an empty one counts as unset, as in Fleet,
//! and tests need no process environment.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use thiserror::Error;

use super::{
    apply::ApplyVerb,
    claims::{QuarantineVerb, ReleaseVerb, RetryVerb},
    delete::DeleteVerb,
    diff::DiffVerb,
    doctor::DoctorVerb,
    events::EventsVerb,
    explain::ExplainVerb,
    get::GetVerb,
    man::ManVerb,
    ready::ReadyVerb,
    register::RegisterVerb,
    render::RenderVerb,
    reset::ResetVerb,
    rollback::RollbackVerb,
    top::TopVerb,
};
use crate::{agent::args::AgentArgs, api::duration, controller::args::ControllerArgs};

/// Worker slots where nothing is set: what Fleet's chart sets.
const DEFAULT_WORKERS: usize = 50;

/// Period of the check-in where nothing, or zero, is set: Fleet's.
const DEFAULT_CHECKIN: Duration = Duration::from_secs(15 * 60);

/// Deploys Fleet bundles; every replica works.
#[derive(Debug, Parser)]
#[command(name = "flotilla", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // One per process.
pub enum Verb {
    /// Run one replica of the agent.
    Agent(AgentVerb),
    /// Run the companion controller, which expires claims that nobody is left to take over.
    Controller(ControllerVerb),
    /// Deploy a bundle to one cluster, without a Fleet controller.
    Apply(ApplyVerb),
    /// Remove bundles from one cluster.
    Delete(DeleteVerb),
    /// Show bundles and who works on them.
    Get(GetVerb),
    /// Say where a bundle is and why, and what comes next.
    Explain(ExplainVerb),
    /// Show what agents and controller reported about bundles.
    Events(EventsVerb),
    /// Show replicas, what they work on, and what waits and why, as it happens.
    Top(TopVerb),
    /// Print what a deployment of a bundle would apply.
    Render(RenderVerb),
    /// Show what a deployment of a bundle would change; exit code 1 if anything, 2 after an error.
    Diff(DiffVerb),
    /// Go back to what `flotilla apply` deployed before.
    Rollback(RollbackVerb),
    /// Try bundles again now that back off, are in quarantine, or wait for a change.
    Retry(RetryVerb),
    /// Take claims away, with their counts.
    Release(ReleaseVerb),
    /// Leave bundles alone until they change, or for an hour.
    Quarantine(QuarantineVerb),
    /// Set stamps back that a restored management cluster cannot reach.
    Reset(ResetVerb),
    /// Register a cluster without a controller, exchange its token, or take its access away.
    Register(RegisterVerb),
    /// Check an agent's rights, registration and surroundings, and say how to mend what is wrong.
    Doctor(DoctorVerb),
    /// Ask a replica of the agent or the controller whether it is ready.
    Ready(ReadyVerb),
    /// Print the custom resource definitions.
    Crds,
    /// Print a script with which a shell completes flotilla's arguments.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder.
    Man(ManVerb),
    /// Print the version.
    Version,
}

/// Why arguments make no sense together. Fleet's texts where Fleet has one.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ArgsError {
    /// No namespace anywhere.
    #[error("--namespace or env NAMESPACE is required to be set")]
    NoNamespace,
    /// A variable whose value cannot be read.
    #[error("env {name}")]
    Duration {
        /// The variable.
        name: &'static str,
        /// Its value.
        #[source]
        source: duration::DurationError,
    },
    /// A variable that is no address.
    #[error("env {name}: {value:?} is {NO_ADDRESS}")]
    Address {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// A replica must have two tries before its session is over.
    #[error("--session-renew must be at most half of --session-ttl, and not 0")]
    Renewal,
}

/// Looks up an environment variable; `std::env::var(name).ok()` outside tests.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

fn set(env: Lookup<'_>, name: &str) -> Option<String> {
    env(name).filter(|value| !value.is_empty())
}

/// Log flags, Fleet's and ours.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogFlags {
    /// Form of the log.
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Level (error, warn, info, debug, trace), or directives such as `info,flotilla::upstream=debug`.
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,
    /// Same as --log-level debug.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub debug: Option<bool>,
    /// Accepted for Fleet's chart, without meaning.
    #[arg(long, value_name = "N")]
    pub debug_level: Option<String>,
    /// Used where --log-level is not given: debug, info, error, panic or a number.
    #[arg(long, value_name = "LEVEL")]
    pub zap_log_level: Option<String>,
    /// Used where --log-format is not given: json or console.
    #[arg(long, value_name = "ENCODER")]
    pub zap_encoder: Option<String>,
    /// Accepted, without meaning.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub zap_devel: Option<bool>,
    /// Accepted, without meaning.
    #[arg(long, value_name = "LEVEL")]
    pub zap_stacktrace_level: Option<String>,
    /// Accepted, without meaning.
    #[arg(long, value_name = "ENCODING")]
    pub zap_time_encoding: Option<String>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// For reading.
    Text,
}

impl LogFlags {
    /// The form asked for.
    pub fn format(&self) -> LogFormat {
        let zap = match self.zap_encoder.as_deref() {
            Some("console") => LogFormat::Text,
            _ => LogFormat::Json,
        };
        self.log_format.unwrap_or(zap)
    }

    /// Directives for the log filter.
    pub fn filter(&self) -> &str {
        if let Some(level) = &self.log_level {
            return level;
        }
        if self.debug == Some(true) {
            return "debug";
        }
        match self.zap_log_level.as_deref() {
            Some("error" | "dpanic" | "panic" | "fatal") => "error",
            Some("warn") => "warn",
            Some("debug") => "debug",
            // A number is zap's verbosity: 1 is debug.
            Some(level) if level.parse::<u8>().is_ok_and(|level| level > 0) => "debug",
            _ => "info",
        }
    }

    fn remarks(&self, remarks: &mut Vec<String>) {
        for (flag, set) in [
            ("--debug-level", self.debug_level.is_some()),
            ("--zap-devel", self.zap_devel.is_some()),
            ("--zap-stacktrace-level", self.zap_stacktrace_level.is_some()),
            ("--zap-time-encoding", self.zap_time_encoding.is_some()),
        ] {
            if set {
                remarks.push(format!("{flag} is accepted and has no meaning here"));
            }
        }
    }
}

/// Variables that have no flag.
const AGENT_VARIABLES: &str = "\
Variables without a flag (an empty one counts as unset):
  BUNDLEDEPLOYMENT_RECONCILER_WORKERS  deployments at once [default: 50]
  POD_NAME                             this replica's name [default: HOSTNAME]
  POD_UID                              uid of its Pod, which then owns the session's Lease
  FLEET_AGENT_METRICS_BIND_ADDRESS     where to serve metrics; 0 disables [default: :8080]
  FLEET_AGENT_PROBE_BIND_ADDRESS       where to serve probes; 0 disables [default: :8081]
  FLOTILLA_ENGINE                      path of flotilla-engine [default: beside this program]
  CATTLE_WRANGLER_CHECK_GVK_ERROR_MAPPING
                                       JSON: conditions that are errors, by kind";

/// Flags of `flotilla agent`.
#[derive(Debug, Args)]
#[command(after_long_help = AGENT_VARIABLES)]
pub struct AgentVerb {
    /// The agent's own namespace [env: NAMESPACE].
    #[arg(long)]
    pub namespace: Option<String>,
    /// Suffix of the ids of deployed objects; lets several agents share a cluster [env: AGENT_SCOPE].
    #[arg(long, value_name = "SCOPE")]
    pub agent_scope: Option<String>,
    /// How often the Cluster's lastSeen is written, by one of the replicas [env: CHECKIN_INTERVAL] [default: 15m].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub checkin_interval: Option<Duration>,
    /// Kubeconfig of the cluster to deploy to [env: KUBECONFIG] [default: the pod's account].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Accepted for Fleet's chart, without meaning: there is no leader.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub leader_elect: Option<bool>,
    /// Budget of one deployment.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "10m")]
    pub claim_timeout: Duration,
    /// Added to the budget before another replica takes the deployment over.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s")]
    pub claim_margin: Duration,
    /// A replica silent for this long is dead.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "15s")]
    pub session_ttl: Duration,
    /// How often a replica shows that it lives.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    pub session_renew: Duration,
    /// Head start of each more preferred replica.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "250ms")]
    pub steal_delay: Duration,
    /// How long a bundle must be absent, without having been seen deleted, before it is uninstalled.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5m")]
    pub absence_grace: Duration,
    /// The same when many are absent at once: an upstream that was restored, or a kind that was removed.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1h")]
    pub mass_absence_grace: Duration,
    /// Time to finish or hand over after SIGTERM.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "25s")]
    pub shutdown_grace: Duration,
    /// Log flags.
    #[command(flatten)]
    pub log: LogFlags,
}

impl AgentVerb {
    /// Turns flags and environment into the agent's configuration.
    pub fn resolve(&self, env: Lookup<'_>) -> Result<AgentArgs, ArgsError> {
        let namespace = self.namespace.clone().filter(|namespace| !namespace.is_empty());
        let namespace = namespace.or_else(|| set(env, "NAMESPACE")).ok_or(ArgsError::NoNamespace)?;
        // Halved rather than doubled: a ttl of years must not overflow.
        if self.session_renew.is_zero() || self.session_renew > self.session_ttl / 2 {
            return Err(ArgsError::Renewal);
        }
        let mut remarks = Vec::new();
        if self.leader_elect.is_some() {
            remarks.push("--leader-elect has no meaning here: every replica works".to_owned());
        }
        for name in [
            "CATTLE_ELECTION_LEASE_DURATION",
            "CATTLE_ELECTION_RENEW_DEADLINE",
            "CATTLE_ELECTION_RETRY_PERIOD",
        ] {
            if set(env, name).is_some() {
                remarks.push(format!("{name} has no meaning here: there is no election"));
            }
        }
        if set(env, "DRIFT_RECONCILER_WORKERS").is_some() {
            remarks.push(
                "DRIFT_RECONCILER_WORKERS has no meaning here: corrections use worker slots".to_owned(),
            );
        }
        self.log.remarks(&mut remarks);
        Ok(AgentArgs {
            namespace,
            scope: self.agent_scope.clone().or_else(|| set(env, "AGENT_SCOPE")).unwrap_or_default(),
            checkin_interval: self.checkin(env)?,
            kubeconfig: kubeconfig(self.kubeconfig.as_ref(), env),
            workers: workers(env, &mut remarks),
            metrics_address: address(env, "FLEET_AGENT_METRICS_BIND_ADDRESS", ":8080")?,
            probe_address: address(env, "FLEET_AGENT_PROBE_BIND_ADDRESS", ":8081")?,
            claim_timeout: self.claim_timeout,
            claim_margin: self.claim_margin,
            session_ttl: self.session_ttl,
            session_renew: self.session_renew,
            steal_delay: self.steal_delay,
            absence_grace: self.absence_grace,
            mass_absence_grace: self.mass_absence_grace,
            shutdown_grace: self.shutdown_grace,
            pod_name: set(env, "POD_NAME").or_else(|| set(env, "HOSTNAME")),
            pod_uid: set(env, "POD_UID"),
            remarks,
        })
    }

    fn checkin(&self, env: Lookup<'_>) -> Result<Duration, ArgsError> {
        const NAME: &str = "CHECKIN_INTERVAL";
        let given = match (self.checkin_interval, set(env, NAME)) {
            (Some(given), _) => given,
            (None, Some(text)) => {
                duration::parse(&text).map_err(|source| ArgsError::Duration { name: NAME, source })?
            }
            (None, None) => DEFAULT_CHECKIN,
        };
        Ok(if given.is_zero() { DEFAULT_CHECKIN } else { given })
    }
}

/// Flags of `flotilla controller`.
#[derive(Debug, Args)]
pub struct ControllerVerb {
    /// Kubeconfig of the upstream cluster [env: KUBECONFIG] [default: the pod's account].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Watch this cluster namespace only [default: all].
    #[arg(long)]
    pub namespace: Option<String>,
    /// Budget of a claim that names none.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "10m")]
    pub claim_timeout: Duration,
    /// Added to a claim's budget before it is expired.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "30s")]
    pub claim_margin: Duration,
    /// Where to serve metrics; 0 disables.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    pub metrics_bind_address: BindAddress,
    /// Where to serve probes; 0 disables.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    pub probe_bind_address: BindAddress,
    /// Log flags.
    #[command(flatten)]
    pub log: LogFlags,
}

impl ControllerVerb {
    /// Turns flags and environment into the controller's configuration.
    pub fn resolve(&self, env: Lookup<'_>) -> ControllerArgs {
        ControllerArgs {
            kubeconfig: kubeconfig(self.kubeconfig.as_ref(), env),
            namespace: self.namespace.clone().filter(|namespace| !namespace.is_empty()),
            claim_timeout: self.claim_timeout,
            claim_margin: self.claim_margin,
            metrics_address: self.metrics_bind_address.0.clone(),
            probe_address: self.probe_bind_address.0.clone(),
        }
    }
}

/// An address to listen on in Go's form: `:8080` is every address, `0` none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindAddress(pub String);

impl FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = match text {
            "" | "0" => "0".to_owned(),
            text => text.replacen("localhost:", "127.0.0.1:", 1),
        };
        let valid = text == "0"
            || match text.strip_prefix(':') {
                Some(port) => port.parse::<u16>().is_ok(),
                None => text.parse::<SocketAddr>().is_ok(),
            };
        if valid { Ok(Self(text)) } else { Err(NO_ADDRESS.to_owned()) }
    }
}

const NO_ADDRESS: &str = "not an address to listen on (like :8080 or 127.0.0.1:8080; 0 disables)";

fn address(env: Lookup<'_>, name: &'static str, default: &str) -> Result<String, ArgsError> {
    let value = set(env, name).unwrap_or_else(|| default.to_owned());
    let parsed: Result<BindAddress, _> = value.parse();
    parsed.map(|address| address.0).map_err(|_| ArgsError::Address { name, value })
}

fn kubeconfig(flag: Option<&PathBuf>, env: Lookup<'_>) -> Option<PathBuf> {
    flag.cloned().or_else(|| set(env, "KUBECONFIG").map(PathBuf::from))
}

fn workers(env: Lookup<'_>, remarks: &mut Vec<String>) -> usize {
    const NAME: &str = "BUNDLEDEPLOYMENT_RECONCILER_WORKERS";
    let Some(text) = set(env, NAME) else { return DEFAULT_WORKERS };
    match text.parse() {
        Ok(workers) if workers > 0 => workers,
        _ => {
            remarks.push(format!(
                "{NAME}={text:?} is not a positive number; {DEFAULT_WORKERS} worker slots are used"
            ));
            DEFAULT_WORKERS
        }
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
