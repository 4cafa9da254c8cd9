// SPDX-License-Identifier: Apache-2.0
//! `flotilla doctor`: everything an agent depends on, looked at from outside, told in words with the way to mend it.
//!
//! It needs no agent to run and changes nothing. It looks with the credentials of its own kubeconfig in the agent's
//! cluster, and with the agent's own credentials at the management cluster.

mod adopt;
mod agent_side;
mod definitions;
mod finding;
mod management_side;
mod origin;
mod reach;
pub mod rights;

use std::{io::Write, path::PathBuf};

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};

use self::{finding::Findings, reach::reach, rights::Subject};
use super::{cluster::ClusterFlags, error::CliError, output};
use crate::{
    registration::unmanaged::AGENT_NAMESPACE,
    render::engine::{Engine, EngineConfig},
    telemetry::chain,
};

/// Tells the time of day.
pub type Now<'a> = &'a dyn Fn() -> DateTime<Utc>;

/// Flags of `flotilla doctor`.
#[derive(Debug, Args)]
pub struct DoctorVerb {
    /// List what would become of each bundle before the first claim: untouched, stamped or redeployed, and why.
    #[arg(long)]
    pub adopt: bool,
    /// The agent's own namespace.
    #[arg(short, long, default_value = AGENT_NAMESPACE)]
    pub namespace: String,
    /// Form of the result.
    #[arg(short, long, value_enum)]
    pub output: Option<DoctorForm>,
    /// With --adopt: the agent's scope.
    #[arg(long, value_name = "SCOPE", default_value = "")]
    pub agent_scope: String,
    /// Whose rights to check in the agent's cluster [default: the account of a Pod that runs a replica, else those of
    /// the kubeconfig].
    #[arg(long, value_name = "NAME")]
    pub service_account: Option<String>,
    /// Kubeconfig of the agent's cluster [env: KUBECONFIG] [default: ~/.kube/config, in a pod its account].
    #[arg(long, value_name = "FILE", help_heading = "Clusters")]
    pub downstream_kubeconfig: Option<PathBuf>,
    /// Context in that kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", help_heading = "Clusters")]
    pub downstream_context: Option<String>,
    /// Kubeconfig of the management cluster, to look at the Cluster and the definitions, too [default: only what the
    /// agent's own credentials show].
    #[arg(long, value_name = "FILE", help_heading = "Clusters")]
    pub upstream_kubeconfig: Option<PathBuf>,
    /// Context in that kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", requires = "upstream_kubeconfig", help_heading = "Clusters")]
    pub upstream_context: Option<String>,
}

/// Forms other than text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DoctorForm {
    /// One JSON document.
    Json,
}

/// Looks, prints, and fails when something has to be mended.
pub async fn run(verb: &DoctorVerb, out: &mut dyn Write, now: Now<'_>) -> Result<(), CliError> {
    if verb.adopt {
        return adopt::run(verb, out, now).await;
    }
    let mut findings = Findings::default();
    look(verb, &mut findings, now).await?;
    match verb.output {
        Some(DoctorForm::Json) => print_json(out, &findings.0)?,
        None => findings.print(out)?,
    }
    match findings.failures() {
        0 => Ok(()),
        failures => Err(CliError::Refused(format!("{failures} of {} checks failed", findings.0.len()))),
    }
}

fn print_json(out: &mut dyn Write, value: &impl serde::Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Print(Box::new(error)))?;
    output::write(out, &(text + "\n"))
}

async fn look(verb: &DoctorVerb, findings: &mut Findings, now: Now<'_>) -> Result<(), CliError> {
    engine(findings).await;
    let local = verb.downstream().client().await?;
    let fix = "check the kubeconfig of --downstream-kubeconfig, the network and the API server";
    let Some(server_time) = reach(&local, findings, ["cluster", "cluster-clock"], fix, now).await else {
        return Ok(());
    };
    let sessions = agent_side::sessions(&local, &verb.namespace, findings, server_time).await;
    agent_side::fleet_lease(&local, &verb.namespace, findings, server_time, sessions.count).await;
    let subject = match verb.service_account.clone().or(sessions.account) {
        Some(name) => Subject::Account { namespace: verb.namespace.clone(), name },
        None => Subject::Caller,
    };
    let fix = "bind the agent's account to ClusterRole cluster-admin, or install the agent's chart, which makes its rights";
    rights::check(findings, "cluster-rights", &local, &subject, rights::downstream(&verb.namespace), fix)
        .await;
    agent_side::settings(&local, &verb.namespace, findings).await;
    let Some(registration) = agent_side::registration(&local, &verb.namespace, findings).await else {
        return Ok(());
    };
    let admin = match verb.upstream() {
        Some(flags) => Some(flags.client().await?),
        None => None,
    };
    management_side::check(&registration, &local, &subject, admin.as_ref(), findings, now).await;
    Ok(())
}

/// The engine beside this program: the agent runs the same one.
async fn engine(findings: &mut Findings) {
    let fix = "put flotilla-engine beside flotilla, or set FLOTILLA_ENGINE to where it is";
    let engine = match Engine::start(EngineConfig::default()) {
        Ok(engine) => engine,
        Err(error) => return findings.fail("engine", chain(&error), fix),
    };
    match engine.yaml(vec![("probe.yaml".to_owned(), b"a: yes".to_vec())]).await {
        Ok(documents) if documents.first().is_some_and(|one| one.value["a"] == true) => {
            findings.ok("engine", "flotilla-engine is there and reads manifests");
        }
        Ok(_) => findings.fail("engine", "flotilla-engine does not read YAML as Kubernetes does", fix),
        Err(error) => findings.fail("engine", chain(&error), fix),
    }
}

impl DoctorVerb {
    fn downstream(&self) -> ClusterFlags {
        ClusterFlags {
            namespace: None,
            kubeconfig: self.downstream_kubeconfig.clone(),
            context: self.downstream_context.clone(),
        }
    }

    fn upstream(&self) -> Option<ClusterFlags> {
        let kubeconfig = Some(self.upstream_kubeconfig.clone()?);
        Some(ClusterFlags { namespace: None, kubeconfig, context: self.upstream_context.clone() })
    }
}
