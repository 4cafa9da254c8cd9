// SPDX-License-Identifier: Apache-2.0
//! Releases on a real API server: what is written, how often, and what Helm makes of it.

use std::{
    collections::{BTreeSet, HashSet},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use flotilla::{
    api::keys,
    downstream::{
        Downstream,
        apply::{self, Applied, ApplyError, Owner},
        fence::{ClaimNow, ClaimProof, Fence, Fenced, ProofError},
        objects::Identity,
        prune,
        release::{Gate, GateInput, Guard, Operation},
        removal::Fate,
        uninstall::{self, Removal},
    },
    protocol::Stamp,
    render::Object,
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::{ControlPlane, GENEROUS, Options, Tools, until};

/// A claim that holds.
struct Holds;

impl ClaimProof for Holds {
    fn confirmed_within(&self, _: Duration) -> bool {
        true
    }
    fn session_healthy(&self) -> bool {
        true
    }
    fn confirm(&self) -> BoxFuture<'_, Result<ClaimNow, ProofError>> {
        Box::pin(async { Ok(ClaimNow::Ours) })
    }
}

fn fence(stamp: &str) -> Fence {
    Fence {
        stamp: Stamp::parse(stamp).expect("a stamp"),
        proof: Arc::new(Holds),
        ttl: Duration::from_secs(15),
        cancelled: CancellationToken::new(),
    }
}

fn object(api_version: &str, kind: &str, name: &str, more: Value) -> Object {
    let mut value = json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "labels": {keys::HASH_LABEL: "hash"}}});
    for (key, part) in more.as_object().into_iter().flatten() {
        value[key] = part.clone();
    }
    let (api_version, kind, name) = (api_version.into(), kind.into(), name.into());
    Object { api_version, kind, namespace: String::new(), name, value }
}

fn config_map(name: &str, data: Value) -> Object {
    object("v1", "ConfigMap", name, json!({"data": data}))
}

fn manifest(objects: &[Object]) -> String {
    objects
        .iter()
        .map(|object| format!("---\n# Source: b/raw/{}.yaml\n{}\n", object.name, object.value))
        .collect()
}

/// Deploys these objects as release ns/app of bundle b; `before` are those of the earlier revisions.
async fn deploy(
    ctx: &Downstream,
    fence: &Fence,
    objects: &[Object],
    before: &[Object],
) -> anyhow::Result<(Option<Operation>, Vec<Applied>)> {
    apply::check(ctx, objects).await?;
    let history = ctx.store.history("ns", "app").await?;
    let gate = Gate::open(
        &ctx.store,
        fence,
        GateInput {
            namespace: "ns",
            name: "app",
            bundle: "b",
            chart: json!({"metadata": {"name": "b", "version": "v0.0.0+s-1", "apiVersion": "v2",
                "annotations": {keys::BUNDLE_ID: "b"}}, "templates": [], "files": [], "values": null}),
            manifest: manifest(objects),
            values: None,
            hooks: None,
            replaces: false,
            takes: false,
            history,
            create_namespace: Some(json!({})),
            fail_foreign: false,
            over_removal: false,
            max_history: 0,
        },
    )
    .await?;
    let previous = Identity::of_all(before, &ctx.kinds, "ns");
    let owner = Owner {
        namespace: "ns",
        name: "app",
        upgrade: false,
        replace: false,
        take_ownership: false,
        overwrites: &[],
        previous: &previous,
    };
    let operation = gate.operation();
    match apply::apply_all(ctx, fence, &owner, objects, None).await {
        Ok(applied) => {
            let keep = Identity::of_all(objects, &ctx.kinds, "ns");
            prune::prune(ctx, fence, ("ns", "app"), before, &keep).await?;
            gate.deployed(None).await?;
            Ok((operation, applied))
        }
        Err(error) => {
            gate.failed(&format!("{:#}", anyhow::anyhow!(error.to_string())), &BTreeSet::new()).await?;
            Err(error.into())
        }
    }
}

async fn context(plane: &ControlPlane) -> anyhow::Result<Downstream> {
    Ok(Downstream::new(plane.admin().await?, Duration::from_secs(10), Arc::new(chrono::DateTime::default)))
}

/// Writes seen since the last call, once `expected` of them are in the audit log.
async fn writes(plane: &ControlPlane, seen: &mut usize, expected: usize) -> anyhow::Result<Vec<String>> {
    let found = until("the writes in the audit log", GENEROUS, async || {
        let entries = plane.audit()?;
        let of_ours = entries.iter().filter(|entry| {
            entry.is_write() && entry.user == "admin" && (entry.namespace == "ns" || entry.name == "ns")
        });
        let new: Vec<_> = of_ours
            .skip(*seen)
            .map(|entry| format!("{} {} {}", entry.verb, entry.resource, entry.code))
            .collect();
        Ok((new.len() >= expected).then_some(new))
    })
    .await?;
    *seen += found.len();
    Ok(found)
}

#[tokio::test]
async fn a_release_lives_and_helm_reads_it_at_every_step() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let tools = Tools::build(&[])?;
    let mut plane = ControlPlane::start(&tools, dir.path(), "downstream", Options::default()).await?;
    let ctx = context(&plane).await?;
    let kubeconfig = plane.admin_kubeconfig();
    let helm = |arguments: &[&str]| -> anyhow::Result<Value> {
        let out = Command::new(tools.path("helm"))
            .args(arguments)
            .args(["-n", "ns", "-o", "json", "--kubeconfig"])
            .arg(&kubeconfig)
            .output()?;
        anyhow::ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Ok(serde_json::from_slice(&out.stdout)?)
    };

    // First deployment: gate (refused, then namespace, then again), two objects, record.
    let first = [config_map("one", json!({"a": "1", "b": "2"})), config_map("two", json!({"a": "1"}))];
    let (operation, applied) = deploy(&ctx, &fence("u/10"), &first, &[]).await?;
    assert_eq!(operation, Some(Operation::Install));
    assert!(applied.iter().all(|one| one.created));
    let mut seen = 0;
    let expected = [
        "create secrets 404",
        "patch namespaces 201",
        "create secrets 201",
        "patch configmaps 201",
        "patch configmaps 201",
        "update secrets 200",
    ];
    assert_eq!(writes(&plane, &mut seen, expected.len()).await?, expected);
    let listed = helm(&["list"])?;
    assert_eq!((&listed[0]["name"], &listed[0]["status"]), (&json!("app"), &json!("deployed")));

    // Upgrade: gate, two objects, one pruned, record, superseded. One history entry goes at the next.
    let second = [config_map("one", json!({"a": "2"})), config_map("three", json!({}))];
    deploy(&ctx, &fence("u/20"), &second, &first).await?;
    let expected = [
        "create secrets 201",
        "patch configmaps 200",
        "patch configmaps 201",
        "delete configmaps 200",
        "update secrets 200",
        "update secrets 200",
    ];
    let mut found = writes(&plane, &mut seen, expected.len()).await?;
    found[1..3].sort();
    assert_eq!(found, expected);
    let maps: Api<ConfigMap> = Api::namespaced(plane.admin().await?, "ns");
    let one = maps.get("one").await?;
    assert_eq!(one.data.clone().unwrap_or_default(), [("a".to_owned(), "2".to_owned())].into());
    assert_eq!(one.annotations()[keys::EPOCH_ANNOTATION], "u/20");
    assert!(maps.get_opt("two").await?.is_none());
    deploy(&ctx, &fence("u/30"), &second, &second).await?;
    let history = helm(&["history", "app"])?;
    let statuses: Vec<_> =
        history.as_array().context("a list")?.iter().map(|one| one["status"].clone()).collect();
    assert_eq!(statuses, ["superseded", "deployed"]);

    // A frozen replica wakes up: its gate, its apply and its prune are all refused, and nothing changes.
    let version = maps.get("one").await?.resource_version();
    let late = deploy(&ctx, &fence("u/20"), &first, &second).await.unwrap_err();
    assert!(format!("{late:#}").contains("newer claim"), "{late:#}");
    let previous = HashSet::new();
    let owner = Owner {
        namespace: "ns",
        name: "app",
        upgrade: false,
        replace: false,
        take_ownership: false,
        overwrites: &[],
        previous: &previous,
    };
    let late = apply::apply_all(&ctx, &fence("u/20"), &owner, &first[..1], None).await.unwrap_err();
    assert!(matches!(late.fenced(), Some(Fenced::Newer { .. })), "{late}");
    let late = prune::prune(&ctx, &fence("u/20"), ("ns", "app"), &second, &HashSet::new()).await.unwrap_err();
    assert!(matches!(late.fenced(), Some(Fenced::Newer { .. })), "{late}");
    assert_eq!(maps.get("one").await?.resource_version(), version);

    // Helm rolls back over our records, and we upgrade over Helm's.
    let out = Command::new(tools.path("helm"))
        .args(["rollback", "app", "-n", "ns", "--force-conflicts", "--kubeconfig"])
        .arg(&kubeconfig)
        .output()?;
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    deploy(&ctx, &fence("u/40"), &second, &second).await?;
    assert_eq!(helm(&["list"])?[0]["revision"], json!("5"));

    // Removal: the objects, then the records.
    let guard = Guard::parse("session/nonce").context("a guard")?;
    let uid = "u".into();
    let history = ctx.store.history("ns", "app").await?;
    let removal = Removal {
        namespace: "ns",
        name: "app",
        bundle: "b",
        uid: &uid,
        before: None,
        guard,
        take_over: false,
        history,
    };
    let guarded = uninstall::guard(&ctx, removal).await?.context("something to remove")?;
    let removed = guarded.remove(&ctx, &second, &CancellationToken::new()).await?;
    guarded.forget(&ctx).await?;
    assert!(removed.iter().all(|one| one.fate == Fate::Deleted && one.gone.is_some()), "{removed:?}");
    assert!(maps.get_opt("one").await?.is_none());
    let secrets: Api<Secret> = Api::namespaced(plane.admin().await?, "ns");
    assert!(secrets.list(&ListParams::default()).await?.items.is_empty());
    assert_eq!(helm(&["list", "--all"]).or_else(|_| helm(&["list"]))?, json!([]));
    plane.stop().await;
    Ok(())
}

#[tokio::test]
async fn errors_of_a_real_server_are_told_apart() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let mut plane = ControlPlane::start(&tools, dir.path(), "downstream", Options::default()).await?;
    let ctx = context(&plane).await?;
    let client = plane.admin().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut ns = Namespace::default();
    ns.metadata.name = Some("ns".into());
    namespaces.create(&PostParams::default(), &ns).await?;

    let previous = HashSet::new();
    let owner = Owner {
        namespace: "ns",
        name: "app",
        upgrade: false,
        replace: false,
        take_ownership: false,
        overwrites: &[],
        previous: &previous,
    };
    let fence = fence("u/10");
    let refused = async |object: Object| -> ApplyError {
        apply::apply_all(&ctx, &fence, &owner, &[object], None).await.expect_err("this must be refused")
    };
    let text =
        |error: &ApplyError| format!("{error}: {}", std::error::Error::source(error).expect("a source"));

    let numbers = refused(config_map("typed", json!({"b": true}))).await;
    assert!(numbers.is_permanent(), "{}", text(&numbers));
    assert_eq!(
        text(&numbers),
        "server-side apply failed for object ns/typed /v1, Kind=ConfigMap: failed to create typed patch object \
         (ns/typed; /v1, Kind=ConfigMap): .data.b: expected string, got &value.valueUnstructured{Value:true}"
    );
    let secret = refused(object("v1", "Secret", "s", json!({"stringData": {"pin": 4711}}))).await;
    assert!(secret.is_permanent() && !format!("{secret:?}{}", text(&secret)).contains("4711"), "{secret:?}");
    let unknown = refused(object("v1", "ConfigMap", "c", json!({"dota": {}}))).await;
    assert!(unknown.is_permanent(), "{}", text(&unknown));
    let mut bad = config_map("c", json!({}));
    bad.name = "Not A Name".into();
    bad.value["metadata"]["name"] = json!("Not A Name");
    let invalid = refused(bad).await;
    assert!(invalid.is_permanent(), "{}", text(&invalid));
    let mut elsewhere = config_map("c", json!({}));
    elsewhere.namespace = "nowhere".into();
    elsewhere.value["metadata"]["namespace"] = json!("nowhere");
    let missing = refused(elsewhere).await;
    assert!(!missing.is_permanent() && text(&missing).ends_with("namespaces \"nowhere\" not found"));

    // What somebody posted under Fleet's or Helm's name becomes ours by apply, so that a dropped field really goes.
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "ns");
    let posted = serde_json::from_value(
        json!({"metadata": {"name": "posted", "labels": {keys::MANAGED_BY: "Helm"},
        "annotations": {keys::RELEASE_NAME: "app", keys::RELEASE_NAMESPACE: "ns"}}, "data": {"old": "1", "kept": "1"}}),
    )?;
    let as_helm = PostParams { field_manager: Some("helm".into()), ..PostParams::default() };
    maps.create(&as_helm, &posted).await?;
    apply::apply_all(&ctx, &fence, &owner, &[config_map("posted", json!({"kept": "1"}))], None).await?;
    let moved = maps.get("posted").await?;
    assert_eq!(moved.data.clone().unwrap_or_default(), [("kept".to_owned(), "1".to_owned())].into());
    let owners = moved.metadata.managed_fields.unwrap_or_default();
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0].manager.as_deref(), Some("fleetagent"));

    // An object that vanishes between read and write is not resurrected by its old identity.
    let listed = Identity::of_all(&[config_map("posted", json!({}))], &ctx.kinds, "ns");
    maps.delete("posted", &DeleteParams::default()).await?;
    let owner = Owner { previous: &listed, ..owner };
    let again = apply::apply_all(&ctx, &fence, &owner, &[config_map("posted", json!({}))], None).await?;
    assert!(again[0].created);

    // A CRD and an object of its kind in one bundle.
    let crd = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "widgets.gold.example.com",
        json!({"spec": {"group": "gold.example.com", "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}}}]}}),
    );
    let widget = |spec: Value| object("gold.example.com/v1", "Widget", "w", json!({"spec": spec}));
    apply::apply_all(&ctx, &fence, &owner, &[widget(json!({"size": 1})), crd], None).await?;
    let strict = refused(widget(json!({"sice": 1}))).await;
    assert!(strict.is_permanent(), "{}", text(&strict));

    // A namespace on its way out takes nothing new, and says so.
    namespaces.delete("ns", &DeleteParams::default()).await?;
    let late = deploy(&ctx, &fence, &[config_map("late", json!({}))], &[]).await.unwrap_err();
    assert!(late.to_string().contains("namespace ns is being deleted"), "{late:#}");
    plane.stop().await;
    Ok(())
}
