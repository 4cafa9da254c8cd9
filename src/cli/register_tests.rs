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
fn a_token_is_exchanged_where_the_agents_cluster_is_at_hand() {
    for arguments in
        [&["a", "--rotate-token", "--local"][..], &["a", "--rotate-token", "--downstream-kubeconfig", "f"]]
    {
        assert!(verb(arguments).rotate_token, "{arguments:?}");
    }
}

/// The objects that are printed for the agent's cluster with these flags besides.
async fn site(flags: &[&str]) -> Vec<serde_json::Value> {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "secret-word").unwrap();
    let given = ["shop", "--server", "https://up", "--system-ca", "--token-file", token.to_str().unwrap()];
    let text = printed(&[&given[..], flags].concat()).await.unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

#[tokio::test]
async fn the_secret_can_be_printed_without_the_settings() {
    let (all, secret) = (site(&["--print", "downstream"]).await, site(&["--print", "secret"]).await);
    assert_eq!(secret.len(), 1);
    assert_eq!(all.last(), secret.last());
    assert_eq!(secret[0]["kind"], "Secret");
}

#[tokio::test]
async fn the_program_itself_understands_what_the_printed_deployment_tells_it() {
    let image = "registry.example/flotilla:1";
    let objects = site(&["--print", "downstream", "--image", image, "--service-account", "crew"]).await;
    assert!(
        objects
            .iter()
            .any(|object| object["kind"] == "ServiceAccount" && object["metadata"]["name"] == "crew")
    );
    let pod = &objects.last().unwrap()["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "crew");
    let container = &pod["containers"][0];
    assert_eq!(container["image"], image);
    let args = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
    let cli = Cli::try_parse_from(std::iter::once("flotilla").chain(args)).unwrap();
    let Verb::Agent(agent) = cli.verb else { panic!("another verb") };
    let variables = container["env"].as_array().unwrap();
    let lookup = |name: &str| {
        let variable = variables.iter().find(|variable| variable["name"] == name)?;
        Some(variable["value"].as_str().unwrap_or("from-the-pod").to_owned())
    };
    let resolved = agent.resolve(&lookup).unwrap();
    assert_eq!(resolved.namespace, "from-the-pod");
    assert!(resolved.pod_name.is_some() && resolved.pod_uid.is_some());
    assert!(resolved.remarks.is_empty(), "{:?}", resolved.remarks);
}

/// What is compared with here is held to the chart by the chart's own tests.
#[tokio::test]
async fn the_printed_pods_are_those_of_the_chart() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/own_charts/flotilla-agent/existing.yaml");
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
    let chart = documents.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let objects = site(&["--print", "downstream", "--image", "i"]).await;
    let (mut ours, mut theirs) = (objects.last().unwrap()["spec"].clone(), chart["spec"].clone());
    for spec in [&mut ours, &mut theirs] {
        // Here they may differ.
        spec["template"]["metadata"] = serde_json::Value::Null;
        spec["template"]["spec"]["serviceAccountName"] = serde_json::Value::Null;
        spec["template"]["spec"]["containers"][0]["image"] = serde_json::Value::Null;
    }
    assert_eq!(ours, theirs);
}

#[tokio::test]
async fn in_local_mode_the_rights_are_bound_to_the_account_of_the_pods() {
    let chart = ["local", "--local", "--for-chart", "--service-account", "flotilla-agent", "--print"];
    let upstream = printed(&[&chart[..], &["upstream"]].concat()).await.unwrap();
    assert_eq!(upstream.matches("kind: ServiceAccount\n").count(), 3, "one a binding: {upstream}");
    assert_eq!(upstream.matches("name: flotilla-agent\n").count(), 4, "and one binding's own: {upstream}");
    let downstream = printed(&[&chart[..], &["downstream"]].concat()).await.unwrap();
    assert!(!downstream.contains("kind: ServiceAccount"), "{downstream}");
    let bad = printed(&["local", "--local", "--service-account", "A b", "--print", "upstream"]).await;
    assert!(bad.unwrap_err().to_string().contains("name of an account"));
}
