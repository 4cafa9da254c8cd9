// SPDX-License-Identifier: Apache-2.0

use clap::Parser;

use super::*;
use crate::cli::args::{Cli, Verb};

fn verb(arguments: &[&str]) -> RegisterVerb {
    let cli = Cli::try_parse_from([&["flotilla", "register"], arguments].concat()).unwrap();
    let Verb::Register(verb) = cli.verb else { panic!("another verb") };
    verb
}

async fn printed(arguments: &[&str]) -> Result<String, CliError> {
    let mut out = Vec::new();
    run(&verb(arguments), &mut out, &|_| {}, 7).await?;
    Ok(String::from_utf8(out).unwrap())
}

#[tokio::test]
async fn printing_needs_no_cluster_and_no_kubeconfig_when_everything_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (token, ca) = (file("token", "secret-word\n"), file("ca.pem", "pem"));
    let upstream = printed(&["shop", "--labels", "env=test,tier=1", "--print", "upstream"]).await.unwrap();
    assert!(upstream.contains("--subresource=status") && upstream.contains("env: test"), "{upstream}");
    let target = dir.path().join("out.yaml");
    let to = target.display().to_string();
    let given =
        ["shop", "--print", "downstream", "--server", "https://up", "--ca-file", &ca, "--token-file", &token];
    assert_eq!(printed(&[&given[..], &["--to", &to]].concat()).await.unwrap(), "");
    assert!(std::fs::read_to_string(&target).unwrap().contains("name: fleet-agent"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(matches!(printed(&[&given[..], &["--to", &to]].concat()).await, Err(CliError::Write { .. })));
}

#[tokio::test]
async fn with_a_limit_the_token_is_asked_for_by_command_and_no_secret_is_printed() {
    let text = printed(&["shop", "--print", "upstream", "--ttl", "24h"]).await.unwrap();
    assert!(
        text.contains("kubectl create token flotilla-agent") && text.contains("--duration 86400s"),
        "{text}"
    );
    assert!(!text.contains("service-account-token"), "{text}");
}

#[tokio::test]
async fn in_local_mode_there_is_no_token_at_all() {
    let text = printed(&["local", "--local", "--print", "downstream"]).await.unwrap();
    assert!(!text.contains("It holds a token"), "{text}");
    let refused = printed(&["local", "--local", "--for-chart", "--print", "upstream"]).await.unwrap_err();
    assert!(refused.to_string().contains("local.enabled=true"), "{refused}");
}

#[test]
fn what_makes_no_sense_together_is_refused() {
    for arguments in [
        &["a", "--rotate-token"][..],
        &["a", "--rotate-token", "--revoke"],
        &["a", "--existing", "--print", "upstream"],
        &["a", "--delete-bundles"],
        &["a", "--local", "--downstream-kubeconfig", "f"],
        &["a", "--labels", "novalue"],
        &[],
    ] {
        assert!(
            Cli::try_parse_from([&["flotilla", "register"], arguments].concat()).is_err(),
            "{arguments:?}"
        );
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
