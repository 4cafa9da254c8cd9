// SPDX-License-Identifier: Apache-2.0
//! `flotilla register`: a cluster without a registering controller, by plain objects, printed or applied.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    cluster::ClusterFlags,
    error::CliError,
    output,
    register_print::{self, Printed},
    register_way::{self, Way},
};
use crate::{
    api::duration,
    registration::unmanaged::{
        self, AGENT_ACCOUNT, AGENT_NAMESPACE, Clusters, Done, DownstreamSettings, Held, Identity,
        LOCAL_REGISTRATION_NAMESPACE, Lifetime, Outcome, Plan, REGISTRATION_NAMESPACE, TOKEN_SECRET,
        UnmanagedError, Wanted,
    },
};
use clap::{ArgGroup, Args, ValueEnum};

/// How Pods reach the API server of their own cluster.
const IN_CLUSTER: &str = "https://kubernetes.default.svc";
/// The API server makes no token for less.
const SHORTEST: Duration = Duration::from_secs(600);

/// Flags of `flotilla register`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("agents_cluster").args(["local", "downstream_kubeconfig"]))]
pub struct RegisterVerb {
    /// Name of the Cluster.
    pub name: String,
    /// Namespace of the Cluster [default: fleet-default; with --local fleet-local].
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Labels of the Cluster, for the targets of bundles.
    #[arg(long = "labels", value_name = "KEY=VALUE,…", value_delimiter = ',', value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Print one side's objects for `kubectl apply`, write nothing. Those of downstream have a token in them.
    #[arg(long, value_enum, value_name = "SIDE")]
    pub print: Option<Side>,
    /// Print into this file, which must not exist; only its owner may read it.
    #[arg(long, value_name = "FILE", requires = "print")]
    pub to: Option<PathBuf>,
    /// Only tell what would be written.
    #[arg(long, conflicts_with_all = ["print", "rotate_token", "revoke"])]
    pub dry_run: bool,
    /// The cluster has a registration that it keeps: only Fleet's own agent is kept away from it.
    #[arg(long, conflicts_with_all = ["rotate_token", "revoke", "print", "local", "labels"])]
    pub existing: bool,
    /// Exchange the token: a new one into the agent's Secret, then the end of all others.
    #[arg(long, conflicts_with_all = ["revoke", "print"], requires = "agents_cluster")]
    pub rotate_token: bool,
    /// Take token, account and rights away. The bundles stay.
    #[arg(long)]
    pub revoke: bool,
    /// With --revoke: delete the Cluster and its BundleDeployments, too. What they deployed stays.
    #[arg(long, requires = "revoke", conflicts_with = "print")]
    pub delete_bundles: bool,
    /// Bundles come from the agent's own cluster. Without --server the agent uses its Pod's account, unless its Secret
    /// has a token already.
    #[arg(long, conflicts_with = "downstream_kubeconfig")]
    pub local: bool,
    /// What the agent needs.
    #[command(flatten)]
    pub access: AccessFlags,
    /// Which clusters.
    #[command(flatten)]
    pub clusters: ClustersFlags,
}

/// Flags about credentials.
#[derive(Debug, Args)]
#[command(next_help_heading = "Credentials")]
pub struct AccessFlags {
    /// URL of the management cluster's API server as the agent reaches it [default: the one in the agent's Secret, else
    /// the kubeconfig's].
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Certificate authority of that server, PEM [default: as for --server].
    #[arg(long, value_name = "FILE", conflicts_with = "system_ca")]
    pub ca_file: Option<PathBuf>,
    /// The agent's system trusts that server's authority.
    #[arg(long)]
    pub system_ca: bool,
    /// Tokens end after this time (at least 10m); nobody renews them but `--rotate-token` [default: they do not end].
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub ttl: Option<Duration>,
    /// With --print downstream or secret: the token, - for standard input [default: read from the management cluster].
    #[arg(long, value_name = "FILE", requires = "print")]
    pub token_file: Option<PathBuf>,
    /// With --print upstream: name of the token's Secret. To exchange a token, take a name never used before.
    #[arg(long, value_name = "NAME", default_value = TOKEN_SECRET)]
    pub token_secret: String,
    /// Leave the agent's account and its rights in its own cluster to the agent's chart.
    #[arg(long)]
    pub for_chart: bool,
    /// Make the agent's Deployment in its own cluster, too: two replicas of this image.
    #[arg(long, value_name = "IMAGE", conflicts_with = "for_chart")]
    pub image: Option<String>,
    /// The account of the agent's Pods in its own cluster; with --local its rights are bound to it. The chart's is named
    /// like its release.
    #[arg(long, value_name = "NAME", default_value = AGENT_ACCOUNT)]
    pub service_account: String,
}

/// Flags that choose clusters and namespaces.
#[derive(Debug, Args)]
#[command(next_help_heading = "Clusters")]
pub struct ClustersFlags {
    /// Kubeconfig of the management cluster [env: KUBECONFIG] [default: ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in that kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Kubeconfig of the agent's cluster [default: nothing is written there].
    #[arg(long, value_name = "FILE")]
    pub downstream_kubeconfig: Option<PathBuf>,
    /// Context in that kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", requires = "downstream_kubeconfig")]
    pub downstream_context: Option<String>,
    /// Namespace of the BundleDeployments [default: the Cluster's, or the one Fleet would make].
    #[arg(long, value_name = "NAMESPACE")]
    pub cluster_namespace: Option<String>,
    /// Namespace of the agent in its own cluster.
    #[arg(long, value_name = "NAMESPACE", default_value = AGENT_NAMESPACE)]
    pub agent_namespace: String,
}

/// A side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// The management cluster.
    Upstream,
    /// The agent's own cluster.
    Downstream,
    /// Of the agent's own cluster only the Secret, to exchange the token: the settings stay.
    Secret,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not KEY=VALUE".to_owned()),
    }
}

impl From<UnmanagedError> for CliError {
    fn from(error: UnmanagedError) -> Self {
        Self::Ended(Box::new(error))
    }
}

/// Registers, prints, exchanges or takes away. `warn` gets sentences for standard error, `word` is random.
pub async fn run(
    verb: &RegisterVerb,
    out: &mut dyn Write,
    warn: &dyn Fn(&str),
    word: u64,
) -> Result<(), CliError> {
    if let Some(side) = verb.print {
        let mut text = Vec::new();
        print(verb, side, &mut text, word).await?;
        return match &verb.to {
            Some(path) => write_private(path, &text),
            None => out.write_all(&text).map_err(CliError::Output),
        };
    }
    let upstream = verb.upstream().client().await?;
    let mut told = Ok(());
    let mut report = |done: Done| {
        if told.is_ok() {
            told = output::write(out, &line(&done));
        }
    };
    if verb.existing {
        let namespace = verb.registration_namespace();
        report(unmanaged::keep_agent_bundle_away(&upstream, namespace, &verb.name, verb.dry_run).await?);
        return told;
    }
    let mut plan = verb.plan()?;
    let given = verb.clusters.cluster_namespace.is_some();
    unmanaged::locate(&upstream, &mut plan, given).await?;
    let downstream = verb.downstream(&upstream).await?;
    let held = match &downstream {
        Some(local) => unmanaged::held(local, &plan).await?,
        None => None,
    };
    // In local mode it is told by the Secret alone that the agent was given a token.
    if held.as_ref().is_some_and(|held| held.token.is_some()) {
        plan.identity = Identity::Own;
    }
    if verb.revoke {
        let clusters = Clusters { upstream, downstream };
        unmanaged::revoke(&plan, &clusters, verb.delete_bundles, &mut report).await?;
        return told;
    }
    if verb.rotate_token && plan.identity == Identity::Pod {
        return Err(CliError::Refused(
            "this agent uses the account of its Pod: there is no token to exchange".into(),
        ));
    }
    let (wanted, chosen) = verb.wanted(plan, word, held.as_ref())?;
    if !chosen && register_way::is_of_this_machine(&wanted.server) {
        let unreachable =
            format!("an agent elsewhere cannot reach {}: name the server with --server", wanted.server);
        if verb.rotate_token {
            return Err(CliError::Refused(unreachable));
        }
        warn(&unreachable);
    }
    match downstream {
        Some(local) if verb.rotate_token => {
            unmanaged::rotate(&wanted, &upstream, &local, &mut report).await?;
        }
        downstream => {
            let reached = downstream.is_some();
            unmanaged::register(&wanted, &Clusters { upstream, downstream }, &mut report).await?;
            if !reached && !verb.dry_run {
                warn(&format!(
                    "nothing was written to the agent's cluster: `flotilla register {} --print downstream` prints \
                     what it needs, a token included",
                    verb.name
                ));
            }
        }
    }
    told
}

async fn print(verb: &RegisterVerb, side: Side, out: &mut Vec<u8>, word: u64) -> Result<(), CliError> {
    let mut plan = verb.plan()?;
    if verb.revoke {
        return match side {
            Side::Upstream => register_print::revocation(out, &plan),
            Side::Downstream | Side::Secret => Err(CliError::Refused(
                "in the agent's cluster there is only its Secret to delete: `kubectl delete secret fleet-agent`"
                    .into(),
            )),
        };
    }
    if side == Side::Upstream {
        let printed = Printed { ttl: verb.access.ttl, token_secret: &verb.access.token_secret, plan: &plan };
        return register_print::upstream(out, &printed);
    }
    let token = match (&verb.access.token_file, plan.identity) {
        (_, Identity::Pod) => None,
        (Some(path), Identity::Own) => Some(read_token(path)?),
        (None, Identity::Own) => {
            let client = verb.upstream().client().await?;
            unmanaged::locate(&client, &mut plan, verb.clusters.cluster_namespace.is_some()).await?;
            Some(unmanaged::token_to_print(&client, &plan, verb.lifetime()?, word).await?)
        }
    };
    let (wanted, _) = verb.wanted(plan, word, None)?;
    let access = match &token {
        None => unmanaged::Access::Pod { server: &wanted.server },
        Some(token) => {
            unmanaged::Access::Token { server: &wanted.server, authority: wanted.authority.as_deref(), token }
        }
    };
    if side == Side::Secret {
        return register_print::secret(out, &wanted.plan, &access);
    }
    register_print::downstream(out, &wanted.plan, &access, &wanted.settings)
}

impl RegisterVerb {
    fn registration_namespace(&self) -> &str {
        let default = if self.local { LOCAL_REGISTRATION_NAMESPACE } else { REGISTRATION_NAMESPACE };
        self.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or(default)
    }

    fn plan(&self) -> Result<Plan, CliError> {
        let identity = if self.local && self.access.server.is_none() { Identity::Pod } else { Identity::Own };
        let account = &self.access.service_account;
        if identity == Identity::Pod && self.access.for_chart && account == AGENT_ACCOUNT {
            return Err(CliError::Refused(
                "the agent's chart does all of this by itself: install it with local.enabled=true, or name the account \
                 of its Pods with --service-account"
                    .into(),
            ));
        }
        let labels: BTreeMap<_, _> = self.labels.iter().cloned().collect();
        let (given, agents) = (self.clusters.cluster_namespace.as_deref(), &self.clusters.agent_namespace);
        let plan = Plan::new(&self.name, self.registration_namespace(), given, labels, agents, identity)?;
        Ok(plan.with_agent_account(account)?)
    }

    fn lifetime(&self) -> Result<Lifetime, CliError> {
        match self.access.ttl {
            None => Ok(Lifetime::Unlimited),
            Some(ttl) if ttl < SHORTEST => Err(CliError::Refused("--ttl must be at least 10m".into())),
            Some(ttl) => Ok(Lifetime::Limited(ttl)),
        }
    }

    /// And whether the server was chosen by somebody.
    fn wanted(&self, plan: Plan, word: u64, held: Option<&Held>) -> Result<(Wanted, bool), CliError> {
        let Way { server, authority, chosen } = match plan.identity {
            Identity::Pod => Way { server: IN_CLUSTER.to_owned(), authority: None, chosen: true },
            Identity::Own => register_way::find(&self.access, held, &self.upstream())?,
        };
        let settings =
            DownstreamSettings { for_chart: self.access.for_chart, image: self.access.image.clone() };
        let wanted = Wanted {
            plan,
            lifetime: self.lifetime()?,
            server,
            authority,
            settings,
            dry_run: self.dry_run,
            word,
        };
        Ok((wanted, chosen))
    }

    fn upstream(&self) -> ClusterFlags {
        ClusterFlags {
            namespace: None,
            kubeconfig: self.clusters.kubeconfig.clone(),
            context: self.clusters.context.clone(),
        }
    }

    async fn downstream(&self, upstream: &kube::Client) -> Result<Option<kube::Client>, CliError> {
        if self.local {
            return Ok(Some(upstream.clone()));
        }
        let Some(kubeconfig) = self.clusters.downstream_kubeconfig.clone() else { return Ok(None) };
        let context = self.clusters.downstream_context.clone();
        let flags = ClusterFlags { namespace: None, kubeconfig: Some(kubeconfig), context };
        flags.client().await.map(Some)
    }
}

/// The text of a file that a flag names.
pub(super) fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path)
        .map_err(|source| CliError::Read { path: path.display().to_string(), source })
}

fn read_token(path: &Path) -> Result<String, CliError> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|source| CliError::Read { path: "standard input".to_owned(), source })?;
        text
    } else {
        read(path)?
    };
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        let place = path.display();
        return Err(CliError::Refused(format!("what {place} holds is not a token: one word")));
    }
    Ok(token.to_owned())
}

fn write_private(path: &Path, text: &[u8]) -> Result<(), CliError> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path).and_then(|mut file| file.write_all(text));
    file.map_err(|source| CliError::Write { path: path.display().to_string(), source })
}

fn line(done: &Done) -> String {
    let word = match done.outcome {
        Outcome::Created => "created",
        Outcome::Configured => "configured",
        Outcome::Unchanged => "unchanged",
        Outcome::Deleted => "deleted",
    };
    format!("{} {word}\n", done.object)
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
