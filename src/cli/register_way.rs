// SPDX-License-Identifier: Apache-2.0
//! The way from the agent to the management cluster: by flag, else as the agent has it already, else as the kubeconfig
//! has it.

use std::path::Path;

use kube::config::Kubeconfig;

use super::{
    cluster::ClusterFlags,
    error::CliError,
    register::{AccessFlags, read},
};
use crate::registration::{bearer, unmanaged::Held};

/// How the agent reaches the management cluster.
#[derive(Debug, PartialEq, Eq)]
pub struct Way {
    /// URL of the API server.
    pub server: String,
    /// Its authority, PEM; `None`: one that the system trusts.
    pub authority: Option<String>,
    /// Somebody said so, now or when the agent's Secret was written: it is not merely how the management cluster is
    /// reached from here.
    pub chosen: bool,
}

/// Decides. `upstream` says where the kubeconfig is.
pub fn find(flags: &AccessFlags, held: Option<&Held>, upstream: &ClusterFlags) -> Result<Way, CliError> {
    let by_flag = flags.ca_file.as_deref().map(read).transpose()?;
    let decided = by_flag.is_some() || flags.system_ca;
    if let (Some(server), true) = (&flags.server, decided) {
        return Ok(Way { server: server.clone(), authority: by_flag, chosen: true });
    }
    // An authority goes with its server, so that the one of another says nothing; and the way of a Pod, without a token,
    // is one inside its own cluster.
    let same = |held: &&Held| {
        held.token.is_some() && flags.server.as_ref().is_none_or(|server| *server == held.server)
    };
    if let Some(held) = held.filter(same) {
        let authority = if decided { by_flag } else { held.authority.clone() };
        return Ok(Way { server: held.server.clone(), authority, chosen: true });
    }
    let mut kubeconfig = upstream.kubeconfig()?.ok_or_else(|| {
        let what = "--server, and --ca-file or --system-ca";
        CliError::Refused(format!("there is no kubeconfig of the management cluster: give {what}"))
    })?;
    if let Some(context) = &upstream.context {
        kubeconfig.current_context = Some(context.clone());
    }
    let server = flags.server.clone().or_else(|| bearer::server(&kubeconfig).map(str::to_owned));
    let server = server.ok_or_else(|| {
        CliError::Refused("the kubeconfig's context names no server: give one with --server".into())
    })?;
    let authority = if decided { by_flag } else { authority(&kubeconfig)? };
    Ok(Way { server, authority, chosen: flags.server.is_some() })
}

fn authority(kubeconfig: &Kubeconfig) -> Result<Option<String>, CliError> {
    let Some(cluster) = bearer::cluster(kubeconfig) else { return Ok(None) };
    if let Some(data) = &cluster.certificate_authority_data {
        let bad =
            || CliError::Refused("the kubeconfig's certificate-authority-data is not PEM in base64".into());
        return bearer::authority(data).map(Some).ok_or_else(bad);
    }
    cluster.certificate_authority.as_deref().map(|path| read(Path::new(path))).transpose()
}

/// Whether a server is one that only this machine reaches.
pub fn is_of_this_machine(server: &str) -> bool {
    let host = server.split_once("://").map_or(server, |(_, rest)| rest);
    ["127.", "localhost", "[::1]", "0.0.0.0"].iter().any(|start| host.starts_with(start))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Verb};

    const KUBECONFIG: &str = "
current-context: c
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority-data: aGVyZQ==}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
";

    fn found(flags: &[&str], held: Option<&Held>) -> (String, Option<String>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name)
        };
        let (ca, kubeconfig) = (file("ca.pem", "mine"), file("kubeconfig", KUBECONFIG));
        let mut arguments = vec!["flotilla", "register", "a"];
        arguments.extend(flags);
        if flags.contains(&"--ca-file") {
            arguments.push(ca.to_str().unwrap());
        }
        let Verb::Register(verb) = Cli::try_parse_from(arguments).unwrap().verb else {
            panic!("another verb")
        };
        let upstream = ClusterFlags { namespace: None, kubeconfig: Some(kubeconfig), context: None };
        let way = find(&verb.access, held, &upstream).unwrap();
        (way.server, way.authority, way.chosen)
    }

    fn way(server: &str, authority: Option<&str>, chosen: bool) -> (String, Option<String>, bool) {
        (server.to_owned(), authority.map(str::to_owned), chosen)
    }

    #[test]
    fn the_kubeconfig_says_it_only_where_neither_a_flag_nor_the_agent_does() {
        let held = |token: Option<&str>| Held {
            server: "https://up".into(),
            authority: Some("theirs".into()),
            token: token.map(str::to_owned),
        };
        let (agent, pod) = (held(Some("t")), held(None));
        for (flags, held, expected) in [
            (&[][..], None, way("https://127.0.0.1:1", Some("here"), false)),
            (&[], Some(&agent), way("https://up", Some("theirs"), true)),
            (&[], Some(&pod), way("https://127.0.0.1:1", Some("here"), false)),
            (&["--server", "https://up"], Some(&agent), way("https://up", Some("theirs"), true)),
            (&["--server", "https://new"], Some(&agent), way("https://new", Some("here"), true)),
            (&["--system-ca"], Some(&agent), way("https://up", None, true)),
            (&["--ca-file"], Some(&agent), way("https://up", Some("mine"), true)),
            (&["--server", "https://new", "--ca-file"], Some(&agent), way("https://new", Some("mine"), true)),
        ] {
            assert_eq!(found(flags, held), expected, "{flags:?}");
        }
    }

    #[test]
    fn a_server_that_only_this_machine_reaches_is_recognised() {
        for (server, expected) in
            [("https://127.0.0.1:6443", true), ("https://localhost", true), ("https://api.example", false)]
        {
            assert_eq!(is_of_this_machine(server), expected, "{server}");
        }
    }
}
