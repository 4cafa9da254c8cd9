// SPDX-License-Identifier: Apache-2.0
//! Bad input of every kind: each is told clearly and once, blocks only its own bundle, and heals by itself.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use flotilla::api::{BundleDeploymentStatus, Condition, Content, keys};
use flotilla::protocol::Epoch;
use flotilla::telemetry::events::reason;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use rand::RngExt;
use serde_json::{Value, json};
use tokio::time::Instant;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::{Bundle, Publisher};
use harness::units::{Claim, Units, is_ready};
use harness::world::{Downstream, World};
use harness::{GENEROUS, Tools, fleet, until};

const NAMESPACE: &str = "depot";
/// A first back-off is 5 s and doubles: what heals is tried again well within this.
const BOUND: Duration = Duration::from_secs(180);
/// How long a claim that cannot be read is respected; also the budget of each deployment.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_told_clearly_blocks_nothing_else_and_heals() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = story(&world).await;
    world.conclude(result)
}

/// One kind of bad input.
struct Case {
    bundle: Bundle,
    /// What the condition must say.
    words: &'static [&'static str],
    /// Of those, what must be said exactly once.
    once: &'static str,
}

fn cases() -> Vec<Case> {
    let case = |bundle, words, once| Case { bundle, words, once };
    vec![
        case(
            Bundle::new("broken-yaml", NAMESPACE).file("manifests/bad.yaml", "kind: ConfigMap\n  name: [\n"),
            &["manifests/bad.yaml", "yaml"],
            "manifests/bad.yaml",
        ),
        case(Bundle::config_maps("missing-content", NAMESPACE, 2, "1"), &["not found"], "not found"),
        case(
            Bundle::config_maps("corrupt-content", NAMESPACE, 2, "1"),
            &["content s-", "does not match hash"],
            "hash",
        ),
        case(
            Bundle::new("unknown-kind", NAMESPACE).file("manifests/widget.yaml", WIDGET),
            &["Widget", "shelf.example/v1"],
            "shelf.example/v1",
        ),
        case(
            Bundle::new("invalid-object", NAMESPACE).file(
                "manifests/service.yaml",
                "apiVersion: v1\nkind: Service\nmetadata: {name: till}\nspec: {ports: [{port: 99999}]}\n",
            ),
            &["Service", "till", "99999"],
            "is invalid",
        ),
        case(
            Bundle::new("refused-object", NAMESPACE).file(
                "manifests/map.yaml",
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: contraband, labels: {cargo: secret}}\n",
            ),
            &["ConfigMap", "contraband", "no contraband in this port"],
            "no contraband in this port",
        ),
        case(
            Bundle::config_maps("no-namespace", "nowhere", 2, "1")
                .with(|options| options.create_namespace = Some(false)),
            &["nowhere"],
            "namespaces \"nowhere\" not found",
        ),
        case(
            Bundle::config_maps("forbidden-namespace", "forbidden-quay", 2, "1"),
            &["cannot create namespace forbidden-quay", "no contraband in this port"],
            "no contraband in this port",
        ),
        case(too_large("too-large", 580_000), &["too large", "byte"], "too large"),
    ]
}

const WIDGET: &str = "apiVersion: shelf.example/v1
kind: Widget
metadata: {name: gear}
spec: {teeth: 24}
";

/// Two ConfigMaps of `size` random characters each: too much for a release record, not for a Content.
fn too_large(name: &str, size: usize) -> Bundle {
    #[expect(clippy::disallowed_methods, reason = "what does not compress")]
    let mut random = rand::rng();
    let maps: Vec<String> = (0..2)
        .map(|index| {
            let text: String = (0..size).map(|_| char::from(random.sample(rand::distr::Alphanumeric))).collect();
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}-{index}}}\ndata: {{text: {text}}}\n")
        })
        .collect();
    Bundle::new(name, NAMESPACE).file("manifests/maps.yaml", maps.join("---\n"))
}

async fn story(world: &World) -> anyhow::Result<()> {
    let units = world.units().await?;
    let publisher = world.publisher().await?;
    let (upstream, downstream) = (world.upstream.admin().await?, world.downstream.admin().await?);
    let contents: Api<Content> = Api::all(upstream);
    let timeout = format!("--claim-timeout={}s", CLAIM_TIMEOUT.as_secs());
    let _replicas = (
        world.ready_replica_with("replica-1", 4, &[&timeout]).await?,
        world.ready_replica_with("replica-2", 4, &[&timeout]).await?,
    );
    forbid_contraband(&downstream).await?;

    let cases = cases();
    for case in &cases {
        match case.bundle.name.as_str() {
            "missing-content" => {}
            "corrupt-content" => {
                let mut content = case.bundle.manifest().to_content();
                content.sha256sum = "0".repeat(64);
                contents.create(&PostParams::default(), &content).await?;
            }
            _ => publisher.publish_content(&case.bundle).await?,
        }
        publisher.publish_unit(&case.bundle).await?;
    }
    for case in &cases {
        is_told_clearly(&units, &downstream, case).await?;
    }
    let bystanders: Vec<Bundle> =
        (0..10).map(|index| Bundle::config_maps(&format!("fine-{index}"), NAMESPACE, 3, "1")).collect();
    publisher.publish(&bystanders).await?;
    units.until_ready(bystanders.iter().map(|bundle| bundle.name.as_str()), BOUND).await?;
    let live = units.live();
    assert!(cases.iter().all(|case| !is_ready(&live[&case.bundle.name])), "bad input was taken for good");

    heal(&publisher, &contents, &downstream, &cases).await?;
    units.until_ready(cases.iter().map(|case| case.bundle.name.as_str()), BOUND).await?;
    success_is_told_of_the_release(&downstream, &cases).await?;

    a_status_that_someone_else_rewrote_is_put_right(&units, &publisher).await?;
    an_unreadable_claim_is_respected_for_the_claim_timeout(&units, &publisher).await
}

/// A condition names the object and the cause, once, and an Event says so too.
async fn is_told_clearly(units: &Units, downstream: &Client, case: &Case) -> anyhow::Result<()> {
    let name = case.bundle.name.as_str();
    let told = |condition: &&Condition| {
        let message = condition.message.to_lowercase();
        condition.status == "False" && case.words.iter().all(|word| message.contains(&word.to_lowercase()))
    };
    let message = units
        .until(&format!("{name} to say {:?}", case.words), BOUND, |live| {
            let conditions = &live.get(name)?.status.as_ref()?.conditions;
            let visible = conditions.iter().filter(|condition| condition.type_ != keys::CLAIM_CONDITION);
            visible.into_iter().find(told).map(|condition| condition.message.clone())
        })
        .await?;
    let times = message.to_lowercase().matches(&case.once.to_lowercase()).count();
    assert_eq!(times, 1, "{name}: the cause is told {times} times: {message}");

    let failures = [reason::DEPLOY_FAILED, reason::SIZE_EXCEEDED];
    an_event_tells(downstream, name, &failures).await.map(drop)
}

/// Waits for an Event of one of these reasons about the bundle, and gives it.
async fn an_event_tells(downstream: &Client, bundle: &str, reasons: &[&str]) -> anyhow::Result<Event> {
    let events: Api<Event> = Api::all(downstream.clone());
    let about = format!("bundle {bundle}");
    let told = |event: &Event| {
        let its = |note: &String| note.strip_prefix(&about).is_some_and(|rest| rest.starts_with([':', ' ']));
        event.note.as_ref().is_some_and(its)
            && event.reason.as_deref().is_some_and(|reason| reasons.contains(&reason))
    };
    until(&format!("an Event {reasons:?} about {bundle}"), GENEROUS, async || {
        Ok(events.list(&ListParams::default()).await?.into_iter().find(told))
    })
    .await
}

async fn success_is_told_of_the_release(downstream: &Client, cases: &[Case]) -> anyhow::Result<()> {
    let first = an_event_tells(downstream, "fine-0", &[reason::FIRST_DEPLOYED]).await?;
    let regarding = first.regarding.context("the Event is about nothing")?;
    assert_eq!(
        (regarding.kind.as_deref(), regarding.namespace.as_deref(), regarding.name.as_deref()),
        (Some("Secret"), Some(NAMESPACE), Some("sh.helm.release.v1.fine-0.v1"))
    );
    for case in cases {
        an_event_tells(downstream, &case.bundle.name, &[reason::RECOVERED]).await?;
    }
    Ok(())
}

/// Takes every cause away, in the way a person would.
async fn heal(
    publisher: &Publisher,
    contents: &Api<Content>,
    downstream: &Client,
    cases: &[Case],
) -> anyhow::Result<()> {
    for case in cases {
        let bundle = &case.bundle;
        match bundle.name.as_str() {
            "missing-content" => publisher.publish_content(bundle).await?,
            "corrupt-content" => {
                let content = bundle.manifest().to_content();
                let name = content.metadata.name.clone().context("a Content has a name")?;
                contents.delete(&name, &DeleteParams::default()).await?;
                contents.create(&PostParams::default(), &content).await?;
            }
            "unknown-kind" => {
                fleet::apply(downstream, widget_kind()).await?;
            }
            "refused-object" => allow_contraband(downstream).await?,
            "forbidden-namespace" => {} // allowed with the object
            "no-namespace" => {
                let mut namespace = Namespace::default();
                namespace.metadata.name = Some("nowhere".into());
                Api::<Namespace>::all(downstream.clone()).create(&PostParams::default(), &namespace).await?;
            }
            "too-large" => publisher.publish(&[too_large(&bundle.name, 1_000)]).await?,
            name => publisher.publish(&[Bundle::config_maps(name, NAMESPACE, 2, "mended")]).await?,
        }
    }
    Ok(())
}

async fn a_status_that_someone_else_rewrote_is_put_right(
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    let conditions = json!([{"type": "Ready", "status": "False", "message": "meddled with"}]);
    // Emptied, it asks for a deployment; with a wrong judgement only, it asks for a look.
    for (unit, meddled, claims) in [
        (
            "fine-0",
            json!({"status": {"conditions": conditions, "appliedDeploymentID": "", "release": "",
                "ready": false, "nonModified": false}}),
            1,
        ),
        (
            "fine-1",
            json!({"status": {"conditions": conditions, "ready": false, "nonModified": false,
                "modifiedStatus": [{"kind": "ConfigMap", "apiVersion": "v1", "name": "ghost", "missing": true}]}}),
            0,
        ),
    ] {
        let claimed = || units.claims().iter().filter(|claim| claim.unit == unit).count();
        let (before, wanted) = (claimed(), units.live()[unit].status.clone());
        let at = meddle(publisher, unit, &meddled).await?;
        units
            .until(&format!("the status of {unit} to be put right"), BOUND, |live| {
                let unit = live.get(unit)?;
                if Epoch(unit.resource_version()?) <= at {
                    return None; // from before
                }
                let mut status = unit.status.clone()?;
                // Made anew, at another time and under another revision.
                for (condition, old) in status.conditions.iter_mut().zip(&wanted.as_ref()?.conditions) {
                    condition.last_update_time.clone_from(&old.last_update_time);
                }
                if claims > 0 {
                    status.release.clone_from(&wanted.as_ref()?.release);
                }
                status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
                let mut wanted = wanted.clone()?;
                wanted.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
                let texts = |status: &BundleDeploymentStatus| -> Vec<[String; 4]> {
                    let conditions = status.conditions.iter();
                    let text =
                        |it: &Condition| [&it.type_, &it.status, &it.reason, &it.message].map(Clone::clone);
                    conditions.map(text).collect()
                };
                let same = texts(&status) == texts(&wanted);
                (status.conditions, wanted.conditions) = (Vec::new(), Vec::new());
                (same && status == wanted).then_some(())
            })
            .await?;
        assert_eq!(claimed() - before, claims, "claims on {unit}");
    }
    Ok(())
}

async fn an_unreadable_claim_is_respected_for_the_claim_timeout(
    units: &Units,
    publisher: &Publisher,
) -> anyhow::Result<()> {
    // Paused, so that nobody is faster.
    let bundle = Bundle { paused: true, ..Bundle::config_maps("strange-claim", NAMESPACE, 2, "1") };
    publisher.publish(&[bundle]).await?;
    let strange = json!({"status": {"conditions": [
        {"type": keys::CLAIM_CONDITION, "status": "True", "reason": "Claimed", "message": "mine, and you may guess"},
    ]}});
    let made = Instant::now();
    meddle(publisher, "strange-claim", &strange).await?;
    publisher.pause("strange-claim", false).await?;
    publisher.publish(&[Bundle::config_maps("after-strange-claim", NAMESPACE, 2, "1")]).await?;
    units.until_ready(["after-strange-claim", "strange-claim"], BOUND).await?;
    let ours = |claim: &&Claim| claim.unit == "strange-claim" && !claim.nonce.is_empty();
    let claims = units.claims();
    let taken = claims.iter().find(ours).context("a claim that took it over")?;
    // Nobody can have seen it before it was made.
    assert!(taken.seen.duration_since(made) >= CLAIM_TIMEOUT, "taken over too early");
    Ok(())
}

/// Writes somebody's status, and tells the version that made.
async fn meddle(publisher: &Publisher, name: &str, patch: &Value) -> anyhow::Result<Epoch> {
    let patched = publisher.units().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    let patched = patched.with_context(|| format!("meddling with the status of {name}"))?;
    Ok(Epoch(patched.resource_version().unwrap_or_default()))
}

/// An admission policy that refuses one label and one namespace.
async fn forbid_contraband(downstream: &Client) -> anyhow::Result<()> {
    let admission = "admissionregistration.k8s.io/v1";
    fleet::apply(
        downstream,
        json!({"apiVersion": admission, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "customs"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"], "resources": ["configmaps", "namespaces"]}]},
            "validations": [{
                "expression": "object.metadata.name != 'forbidden-quay' && \
                    (!has(object.metadata.labels) || !('cargo' in object.metadata.labels))",
                "message": "no contraband in this port"}],
        }}),
    )
    .await?;
    fleet::apply(
        downstream,
        json!({"apiVersion": admission, "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "customs"},
            "spec": {"policyName": "customs", "validationActions": ["Deny"]}}),
    )
    .await?;
    // The server reads its policies from a watch of its own.
    let contraband = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "probe", "namespace": "default", "labels": {"cargo": "probe"}}});
    until("the policy to be in force", GENEROUS, async || {
        let refused = fleet::apply(downstream, contraband.clone()).await.is_err();
        Ok(refused.then_some(()))
    })
    .await
}

async fn allow_contraband(downstream: &Client) -> anyhow::Result<()> {
    use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(downstream.clone());
    bindings.delete("customs", &DeleteParams::default()).await?;
    Ok(())
}

fn widget_kind() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.shelf.example"}, "spec": {
        "group": "shelf.example", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object",
                "properties": {"teeth": {"type": "integer"}}}},
        }}}],
    }})
}
