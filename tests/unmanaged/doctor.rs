// SPDX-License-Identifier: Apache-2.0
//! Faults are planted one by one, and the doctor finds each and says how to mend it.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Stage, namespace_of};

const AGENTS: &str = "sick";
const LOOK: &str = "flotilla doctor --downstream-context site --namespace sick --upstream-kubeconfig \"$KUBECONFIG\" \
                    --upstream-context management -o json";

/// A fault: how it is planted, the check that finds it, its verdict, words of the text and of the fix, and its cure.
struct Fault<'a> {
    plant: &'a str,
    check: &'a str,
    verdict: &'a str,
    text: &'a str,
    fix: &'a str,
    cure: &'a str,
}

pub async fn planted_faults_are_found(stage: &Stage) -> anyhow::Result<()> {
    let register = "flotilla register sick --context management --agent-namespace sick \
                    --downstream-kubeconfig \"$KUBECONFIG\" --downstream-context site";
    stage.shell.done(register)?;
    let found = look(stage, "")?;
    ensure!(found.iter().all(|finding| finding["verdict"] != "failed"), "{found:#?}");

    let namespace = namespace_of("sick");
    let bind = format!(
        "kubectl --context management --namespace {namespace} create rolebinding flotilla-agent \
         --clusterrole fleet-bundle-deployment --serviceaccount {namespace}:flotilla-agent"
    );
    let unbind =
        format!("kubectl --context management --namespace {namespace} delete rolebinding flotilla-agent");
    let status = |text: &str| {
        format!(
            "kubectl --context management --namespace fleet-default patch clusters.fleet.cattle.io sick \
             --subresource=status --type=merge --patch '{{\"status\":{{\"namespace\":\"{text}\"}}}}'"
        )
    };
    let (wrong_status, right_status) = (status("elsewhere"), status(&namespace));
    let config = |text: &str| {
        format!(
            "kubectl --context site --namespace sick patch configmap fleet-agent --type=merge \
             --patch '{{\"data\":{{\"config\":\"{text}\"}}}}'"
        )
    };
    let (bad_config, good_config) = (config("{"), config("{}"));
    let lease = "printf '%s' '{\"apiVersion\":\"coordination.k8s.io/v1\",\"kind\":\"Lease\",\"metadata\":{\"name\":\
                 \"fleet-agent\"},\"spec\":{\"holderIdentity\":\"fleet-agent-5d9c\",\"leaseDurationSeconds\":600,\
                 \"renewTime\":\"'$(date -u +%Y-%m-%dT%H:%M:%S.000000Z)'\"}}' \
                 | kubectl --context site --namespace sick apply -f -";
    let widen = "kubectl --context management create clusterrolebinding wide --clusterrole cluster-admin \
                 --serviceaccount NAMESPACE:flotilla-agent"
        .replace("NAMESPACE", &namespace);
    let agent_bundle =
        format!("flotilla apply shop/ --name fleet-agent-sick --context management --namespace {namespace}");
    let no_bundle =
        format!("flotilla delete fleet-agent-sick --wait=false --context management --namespace {namespace}");
    let label = "kubectl --context management --namespace fleet-default label clusters.fleet.cattle.io sick";
    let (unlabel, relabel) = (
        format!("{label} fleet.cattle.io/cluster-management-"),
        format!("{label} fleet.cattle.io/cluster-management=x"),
    );
    let faults = [
        Fault {
            plant: "kubectl --context site --namespace sick delete configmap fleet-agent",
            check: "settings",
            verdict: "failed",
            text: "ConfigMap sick/fleet-agent does not exist",
            fix: "kubectl create configmap fleet-agent",
            cure: "kubectl --context site --namespace sick create configmap fleet-agent --from-literal=config='{}'",
        },
        Fault {
            plant: &bad_config,
            check: "settings",
            verdict: "failed",
            text: "\"config\"",
            fix: "mend its key",
            cure: &good_config,
        },
        Fault {
            plant: lease,
            check: "fleet-agent-lease",
            verdict: "failed",
            text: "pod fleet-agent-5d9c renews",
            fix: "scale deployment fleet-agent --replicas=0",
            cure: "kubectl --context site --namespace sick delete lease fleet-agent",
        },
        Fault {
            plant: &unbind,
            check: "management-rights",
            verdict: "failed",
            text: "may not list bundledeployments.fleet.cattle.io",
            fix: "flotilla register",
            cure: &bind,
        },
        Fault {
            plant: &widen,
            check: "management-excess",
            verdict: "warning",
            text: "list secrets",
            fix: "account of its own",
            cure: "kubectl --context management delete clusterrolebinding wide",
        },
        Fault {
            plant: &wrong_status,
            check: "cluster-object",
            verdict: "failed",
            text: "status.namespace \"elsewhere\"",
            fix: "--subresource=status",
            cure: &right_status,
        },
        Fault {
            plant: &unlabel,
            check: "cluster-labels",
            verdict: "warning",
            text: "keeps Fleet's own agent away",
            fix: "register --existing sick",
            cure: &relabel,
        },
        Fault {
            plant: &agent_bundle,
            check: "agent-bundle",
            verdict: "warning",
            text: "fleet-agent-sick",
            fix: "register --existing sick",
            cure: &no_bundle,
        },
    ];
    for fault in &faults {
        stage.shell.done(fault.plant)?;
        expect(&look(stage, "")?, fault.check, fault.verdict, fault.text, fault.fix)?;
        stage.shell.done(fault.cure)?;
    }
    let found = look(stage, "")?;
    ensure!(found.iter().all(|finding| finding["verdict"] != "failed"), "all is mended: {found:#?}");

    let found = look(stage, "FLOTILLA_ENGINE=/nowhere ")?;
    expect(&found, "engine", "failed", "/nowhere", "FLOTILLA_ENGINE")?;
    let narrow = stage.shell.run(&format!("{LOOK} --service-account default"))?;
    let found: Vec<Value> = serde_json::from_str(&narrow.stdout)?;
    expect(
        &found,
        "cluster-rights",
        "failed",
        "ServiceAccount sick/default may not create secrets",
        "cluster-admin",
    )?;
    the_secret_can_be_wrong_in_many_ways(stage, &namespace).await
}

async fn the_secret_can_be_wrong_in_many_ways(stage: &Stage, namespace: &str) -> anyhow::Result<()> {
    let secrets: Api<Secret> = Api::namespaced(stage.local.clone(), AGENTS);
    let write = async |kubeconfig: &str| {
        let patch = json!({"stringData": {"kubeconfig": kubeconfig}});
        secrets.patch("fleet-agent", &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
    };
    let plane = &stage.management;
    write(&plane.token_kubeconfig("nonsense", namespace)).await?;
    expect(&look(stage, "")?, "credentials", "failed", "the token is not valid", "--rotate-token")?;
    // A Cluster of Fleet's controller, on which `flotilla register` does nothing.
    let label = "kubectl --context management --namespace fleet-default label clusters.fleet.cattle.io sick";
    stage.shell.done(&format!("{label} fleet.cattle.io/cluster-management-"))?;
    let found = look(stage, "")?;
    expect(&found, "credentials", "failed", "the token is not valid", "fleet-agent-bootstrap")?;
    stage.shell.done(&format!("{label} fleet.cattle.io/cluster-management=x"))?;
    // Its own words say that it is over: {"exp":1000000000}.
    write(&plane.token_kubeconfig("e30.eyJleHAiOjEwMDAwMDAwMDB9.x", namespace)).await?;
    expect(&look(stage, "")?, "token", "failed", "ended on 2001-09-09", "--rotate-token")?;
    write(&plane.token_kubeconfig_at("https://127.0.0.1:1", "t", namespace)).await?;
    expect(&look(stage, "")?, "management-cluster", "failed", "no answer", "https://127.0.0.1:1")?;
    write("no kubeconfig").await?;
    expect(&look(stage, "")?, "registration", "failed", "is not a kubeconfig", "--print downstream")?;
    stage.delete_secret(AGENTS).await?;
    expect(&look(stage, "")?, "registration", "failed", "does not exist", "flotilla register NAME")?;
    let people = stage.shell.run("flotilla doctor --downstream-context site --namespace sick")?;
    ensure!(people.code == 1 && people.stderr.contains("checks failed"), "{}", people.stderr);
    ensure!(people.stdout.contains("FAILED") && people.stdout.contains("fix: register"), "{}", people.stdout);
    Ok(())
}

fn look(stage: &Stage, before: &str) -> anyhow::Result<Vec<Value>> {
    let ended = stage.shell.run(&format!("{before}{LOOK}"))?;
    ensure!(!ended.stdout.contains("eyJ"), "a token was told");
    let found: Vec<Value> = serde_json::from_str(&ended.stdout).with_context(|| ended.stderr.clone())?;
    let failed = found.iter().any(|finding| finding["verdict"] == "failed");
    ensure!(ended.code == i32::from(failed), "ended with {}: {}", ended.code, ended.stdout);
    Ok(found)
}

fn expect(found: &[Value], check: &str, verdict: &str, text: &str, fix: &str) -> anyhow::Result<()> {
    let says = |finding: &&Value, key: &str, words: &str| {
        finding[key].as_str().is_some_and(|said| said.contains(words))
    };
    let there = found
        .iter()
        .filter(|finding| finding["check"] == check && finding["verdict"] == verdict)
        .any(|finding| says(&finding, "text", text) && says(&finding, "fix", fix));
    ensure!(there, "{check} is not {verdict} with {text:?} and {fix:?}: {found:#?}");
    Ok(())
}
