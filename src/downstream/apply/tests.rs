// SPDX-License-Identifier: Apache-2.0
use serde_json::json;

use super::*;
use crate::{
    api::keys,
    downstream::{
        fence::tests::{fence, outdated, proof, with},
        testing::{Exchange, context, scripted},
    },
};

pub(super) const PATH: &str = "/api/v1/namespaces/ns/configmaps/c";

pub(super) fn object(api_version: &str, kind: &str, name: &str) -> Object {
    Object {
        api_version: api_version.into(),
        kind: kind.into(),
        namespace: String::new(),
        name: name.into(),
        value: json!({"apiVersion": api_version, "kind": kind, "data": {"a": "1"},
            "metadata": {"name": name, "labels": {keys::HASH_LABEL: "h"}}}),
    }
}

pub(super) fn config_map() -> Vec<Object> {
    vec![object("v1", "ConfigMap", "c")]
}

pub(super) fn live(stamp: &str) -> Value {
    json!({"metadata": {"name": "c", "namespace": "ns", "uid": "x", "resourceVersion": "7",
        "labels": {keys::MANAGED_BY: "Helm"},
        "annotations": {keys::RELEASE_NAME: "app", keys::RELEASE_NAMESPACE: "ns", keys::EPOCH_ANNOTATION: stamp}}})
}

fn writes(path: &str, uid: Option<&'static str>, version: &'static str) -> Exchange {
    Exchange::patch(&format!("{path}?fieldManager=fleetagent&force=true&fieldValidation=Strict")).expecting(
        move |sent| {
            assert_eq!(sent["metadata"]["resourceVersion"], version);
            assert_eq!(sent["metadata"].get("uid").and_then(Value::as_str), uid);
            assert_eq!(sent["metadata"]["annotations"][keys::EPOCH_ANNOTATION], "u/20");
            assert_eq!(sent["metadata"]["annotations"][keys::RELEASE_NAME], "app");
            assert_eq!(sent["metadata"]["labels"][keys::MANAGED_BY], "Helm");
        },
    )
}

/// Applies under claim u/20, release ns/app; `previous` are the objects of earlier revisions.
async fn applied(
    exchanges: Vec<Exchange>,
    objects: &[Object],
    previous: &[Object],
    fence: &Fence,
) -> Result<Vec<Applied>, ApplyError> {
    let (server, script) = scripted(exchanges);
    let ctx = context(server);
    ctx.kinds.learn("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", true);
    let previous = Identity::of_all(previous, &ctx.kinds, "ns");
    let owner = Owner {
        namespace: "ns",
        name: "app",
        upgrade: false,
        replace: false,
        take_ownership: false,
        overwrites: &[],
        previous: &previous,
    };
    let result = apply_all(&ctx, fence, &owner, objects, None).await;
    script.finished().await;
    result
}

#[tokio::test]
async fn a_new_object_costs_one_request_that_can_only_create() {
    let script = vec![writes(PATH, None, "1").stores("x", "8")];
    let written = applied(script, &config_map(), &[], &fence("u/20")).await.unwrap();
    assert!(written[0].created);
    assert_eq!(written[0].live["metadata"]["resourceVersion"], "8");
}

#[tokio::test]
async fn an_object_of_an_earlier_revision_is_read_and_written_with_uid_and_version() {
    let script =
        vec![Exchange::get(PATH).answers(live("u/10")), writes(PATH, Some("x"), "7").stores("x", "8")];
    let written = applied(script, &config_map(), &config_map(), &fence("u/20")).await.unwrap();
    assert!(!written[0].created);
}

#[tokio::test]
async fn an_object_that_exists_after_all_is_looked_at_before_it_is_written() {
    let script = vec![
        writes(PATH, None, "1").conflicts(),
        Exchange::get(PATH).answers(live("old/99")),
        writes(PATH, Some("x"), "7").stores("x", "8"),
    ];
    applied(script, &config_map(), &[], &fence("u/20")).await.unwrap();
}

#[tokio::test]
async fn an_object_that_vanished_is_created_and_never_written_blindly() {
    let script = vec![
        Exchange::get(PATH).answers(live("u/10")),
        writes(PATH, Some("x"), "7").refuses(409, "Conflict", "uid mismatch: no existing object was found"),
        Exchange::get(PATH).missing(),
        writes(PATH, None, "1").stores("y", "9"),
    ];
    applied(script, &config_map(), &config_map(), &fence("u/20")).await.unwrap();
}

#[tokio::test]
async fn a_stale_holder_cannot_overwrite_an_object_with_a_newer_stamp() {
    let script = vec![writes(PATH, None, "1").conflicts(), Exchange::get(PATH).answers(live("u/100"))];
    let error = applied(script, &config_map(), &[], &fence("u/20")).await.unwrap_err();
    assert!(matches!(error.fenced(), Some(Fenced::Newer { .. })), "{error}");
    let script = vec![Exchange::get(PATH).answers(live("u/21"))];
    let error = applied(script, &config_map(), &config_map(), &fence("u/20")).await.unwrap_err();
    assert!(matches!(error.fenced(), Some(Fenced::Newer { .. })), "{error}");
}

#[tokio::test]
async fn conflicts_end() {
    let mut script = vec![writes(PATH, None, "1").conflicts()];
    for _ in 0..3 {
        script.push(Exchange::get(PATH).answers(live("u/10")));
        script.push(writes(PATH, Some("x"), "7").conflicts());
    }
    script.push(Exchange::get(PATH).answers(live("u/10")));
    let error = applied(script, &config_map(), &[], &fence("u/20")).await.unwrap_err();
    assert!(matches!(error, ApplyError::Busy { .. }), "{error}");
    assert!(!error.is_permanent());
}

#[tokio::test]
async fn another_releases_object_is_refused_in_helms_words() {
    let mut theirs = live("other/1");
    theirs["metadata"]["annotations"][keys::RELEASE_NAME] = json!("first");
    let script = vec![writes(PATH, None, "1").conflicts(), Exchange::get(PATH).answers(theirs.clone())];
    let error = applied(script, &config_map(), &[], &fence("u/20")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "unable to continue with install: ConfigMap \"c\" in namespace \"ns\" exists and cannot be imported into the current release: invalid ownership \
         metadata; annotation validation error: key \"meta.helm.sh/release-name\" must equal \"app\": current value is \"first\""
    );
    // Nor when an earlier revision listed it.
    let script = vec![Exchange::get(PATH).answers(theirs)];
    let error = applied(script, &config_map(), &config_map(), &fence("u/20")).await.unwrap_err();
    assert!(matches!(error, ApplyError::Foreign { .. }));
    // A person's object has none of Helm's marks.
    let bare = json!({"metadata": {"name": "c", "uid": "x", "resourceVersion": "7"}});
    let script = vec![writes(PATH, None, "1").conflicts(), Exchange::get(PATH).answers(bare.clone())];
    let error = applied(script, &config_map(), &[], &fence("u/20")).await.unwrap_err();
    assert!(
        error.to_string().contains("label validation error: missing key \"app.kubernetes.io/managed-by\"")
    );
    // But stripped of them, an object that we listed stays ours.
    let script = vec![Exchange::get(PATH).answers(bare), writes(PATH, Some("x"), "7").stores("x", "8")];
    applied(script, &config_map(), &config_map(), &fence("u/20")).await.unwrap();
}

#[tokio::test]
async fn the_same_bundle_under_another_release_name_keeps_its_objects() {
    let mut renamed = live("u/10");
    renamed["metadata"]["annotations"][keys::RELEASE_NAME] = json!("before");
    renamed["metadata"]["labels"][keys::HASH_LABEL] = json!("h");
    let script = vec![
        writes(PATH, None, "1").conflicts(),
        Exchange::get(PATH).answers(renamed),
        writes(PATH, Some("x"), "7").stores("x", "8"),
    ];
    applied(script, &config_map(), &[], &fence("u/20")).await.unwrap();
}

/// What another unit has is taken only for what is asked for after it was seen there: told to give it up and frozen, this
/// replica would take it back.
#[tokio::test]
async fn what_another_release_has_is_taken_only_under_a_claim_that_is_looked_at_after_it() {
    let mut theirs = live("other/99");
    theirs["metadata"]["annotations"][keys::RELEASE_NAME] = json!("theirs");
    for wanted in [true, false] {
        let mut script =
            vec![writes(PATH, None, "1").conflicts(), Exchange::get(PATH).answers(theirs.clone())];
        if wanted {
            script.push(writes(PATH, Some("x"), "7").stores("x", "8"));
        }
        let (server, script) = scripted(script);
        let ctx = context(server);
        let known = if wanted { proof(true, true, true) } else { outdated(true) };
        let owner = Owner {
            namespace: "ns",
            name: "app",
            upgrade: false,
            replace: false,
            take_ownership: true,
            overwrites: &[],
            previous: &Default::default(),
        };
        let result = apply_all(&ctx, &with("u/20", known.clone()), &owner, &config_map(), None).await;
        script.finished().await;
        assert_eq!(
            known.reads.load(std::sync::atomic::Ordering::SeqCst),
            1,
            "though it was seen just before"
        );
        match result {
            Ok(_) => assert!(wanted),
            Err(error) => assert!(!wanted && matches!(error.fenced(), Some(Fenced::Outdated)), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_claim_that_is_gone_writes_nothing() {
    let lost = with("u/20", proof(false, true, false));
    let error = applied(vec![], &config_map(), &[], &lost).await.unwrap_err();
    assert!(matches!(error.fenced(), Some(Fenced::ClaimLost)));
    let called_off = fence("u/20");
    called_off.cancelled.cancel();
    let error = applied(vec![], &config_map(), &[], &called_off).await.unwrap_err();
    assert!(matches!(error.fenced(), Some(Fenced::Cancelled)));
}

#[tokio::test]
async fn field_ownership_moves_once_for_what_fleet_or_helm_posted() {
    let mut posted = live("u/10");
    posted["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::EPOCH_ANNOTATION);
    posted["metadata"]["managedFields"] = json!([{"manager": "fleetagent", "operation": "Update", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}}}]);
    let script = vec![
        Exchange::get(PATH).answers(posted),
        Exchange::patch(PATH)
            .expecting(|sent| {
                assert_eq!(sent[0], json!({"op": "test", "path": "/metadata/uid", "value": "x"}));
                assert_eq!(sent[1]["value"][0]["operation"], "Apply");
                assert_eq!(sent[2]["value"], "7");
            })
            .answers(json!({"metadata": {"uid": "x", "resourceVersion": "8"}})),
        writes(PATH, Some("x"), "8").stores("x", "9"),
    ];
    applied(script, &config_map(), &config_map(), &fence("u/20")).await.unwrap();
}

#[tokio::test]
async fn replicas_are_left_to_an_autoscaler() {
    let mut web = object("apps/v1", "Deployment", "web");
    web.value["spec"] = json!({"replicas": 2, "paused": true});
    let mut scaled = live("u/10");
    scaled["metadata"]["managedFields"] = json!([{"manager": "kube-controller-manager", "operation": "Update",
        "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
    let mut whole = scaled.clone();
    whole["spec"] = json!({"replicas": 3});
    let path = "/apis/apps/v1/namespaces/ns/deployments/web";
    let scalers = || Exchange::get("/apis/autoscaling/v2/namespaces/ns/horizontalpodautoscalers");
    let scaler = |most: u32| {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
        scalers().answers(json!({"items": [{"spec": {"maxReplicas": most, "scaleTargetRef": target}}]}))
    };
    let web = vec![web];
    for (told, left) in [
        (scaler(5), true),
        (scaler(2), false),
        (scalers().answers(json!({"items": []})), false),
        (scalers().refuses(403, "Forbidden", "no"), true),
    ] {
        let wanted = if left { json!({"paused": true}) } else { json!({"paused": true, "replicas": 2}) };
        let script = vec![
            Exchange::get(path).answers(scaled.clone()),
            Exchange::get(path).answers(whole.clone()),
            told,
            Exchange::patch(path).expecting(move |sent| assert_eq!(sent["spec"], wanted)).stores("x", "8"),
        ];
        let applied = applied(script, &web, &web, &fence("u/20")).await.unwrap();
        assert_eq!(applied[0].left, left);
    }
}

#[tokio::test]
async fn kinds_go_in_helms_order_and_a_failure_stops_before_the_next_kind() {
    let objects =
        vec![object("v1", "ConfigMap", "c"), object("v1", "Namespace", "n"), object("v1", "Secret", "s")];
    let script = vec![
        writes("/api/v1/namespaces/n", None, "1").stores("1", "2"),
        writes("/api/v1/namespaces/ns/secrets/s", None, "1").refuses(
            500,
            "",
            "failed to create typed patch object (ns/s; /v1, Kind=Secret): .data.b: got &value.valueUnstructured{Value:4711}",
        ),
    ];
    let error = applied(script, &objects, &[], &fence("u/20")).await.unwrap_err();
    assert_eq!(error.to_string(), "server-side apply failed for object ns/s /v1, Kind=Secret");
    let said = std::error::Error::source(&error).unwrap().to_string();
    assert!(said.starts_with("failed to create typed patch object") && !said.contains("4711"), "{said}");
    assert!(error.is_permanent());
}

#[tokio::test]
async fn of_an_object_listed_twice_the_last_counts() {
    let mut last = object("v1", "ConfigMap", "c");
    last.namespace = "ns".into();
    last.value["data"]["a"] = json!("2");
    let script = vec![writes(PATH, None, "1").stores("x", "8")];
    let written =
        applied(script, &[object("v1", "ConfigMap", "c"), last], &[], &fence("u/20")).await.unwrap();
    assert_eq!(written[0].live["data"]["a"], "2");
}

#[tokio::test]
async fn an_unknown_kind_is_told_before_anything_is_written() {
    let objects = vec![object("v1", "ConfigMap", "c"), object("nope.example.com/v1", "Nope", "nope-1")];
    let script = crate::downstream::testing::discovery(&[]);
    let error = applied(script, &objects, &[], &fence("u/20")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "unable to build kubernetes objects from release manifest: resource mapping not found for name: \"nope-1\" \
         namespace: \"\" from \"\""
    );
    assert!(!error.is_permanent(), "its CRD may come");
}

#[tokio::test]
async fn a_crd_and_an_object_of_its_kind_deploy_together() {
    let mut crd = object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "widgets.gold.example.com");
    crd.value["spec"] = json!({"group": "gold.example.com", "names": {"kind": "Widget"}});
    let objects = vec![object("gold.example.com/v1", "Widget", "w"), crd];
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut script = crate::downstream::testing::discovery(&[]);
    let mut established = objects[1].value.clone();
    established["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
    script.push(writes(&format!("{crds}/widgets.gold.example.com"), None, "1").answers(established));
    script.extend(crate::downstream::testing::discovery(&[(
        "gold.example.com",
        "v1",
        "widgets",
        "Widget",
        "Namespaced",
    )]));
    script.push(writes("/apis/gold.example.com/v1/namespaces/ns/widgets/w", None, "1").stores("w", "3"));
    assert_eq!(applied(script, &objects, &[], &fence("u/20")).await.unwrap().len(), 2);
}

struct Watched(&'static str);

impl KnownObjects for Watched {
    fn known(&self, _: &Kind, _: &str, _: &str) -> Option<Known> {
        let stamp = Stamp::parse(self.0).unwrap();
        Some(Known { uid: "x".into(), resource_version: "7".into(), stamp })
    }
}

#[tokio::test]
async fn what_our_own_uid_stamped_is_not_read_and_what_another_stamped_is() {
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
    let mut theirs = live("other/1");
    theirs["metadata"]["annotations"][keys::RELEASE_NAME] = json!("first");
    let (server, script) =
        scripted(vec![writes(PATH, Some("x"), "7").stores("x", "8"), Exchange::get(PATH).answers(theirs)]);
    let ctx = context(server);
    let fence = fence("u/20");
    let known = Watched("u/10");
    apply_all(&ctx, &fence, &owner, &config_map(), Some(&known)).await.unwrap();
    let known = Watched("other/1");
    let error = apply_all(&ctx, &fence, &owner, &config_map(), Some(&known)).await.unwrap_err();
    assert!(matches!(error, ApplyError::Foreign { .. }), "{error}");
    let known = Watched("u/100");
    let error = apply_all(&ctx, &fence, &owner, &config_map(), Some(&known)).await.unwrap_err();
    assert!(matches!(error.fenced(), Some(Fenced::Newer { .. })), "{error}");
    script.finished().await;
}

/// What is invalid besides could not be made anew either: nothing is deleted.
#[tokio::test]
async fn a_job_that_is_invalid_as_well_stays_in_spite_of_force() {
    let job = vec![object("batch/v1", "Job", "migrate")];
    let path = "/apis/batch/v1/namespaces/ns/jobs/migrate";
    let both = "Job.batch \"migrate\" is invalid: [spec.template: Invalid value: {}: field is immutable, \
                spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0]";
    let (server, script) = scripted(vec![
        Exchange::get(path).answers(live("u/10")),
        writes(path, Some("x"), "7").refuses(422, "Invalid", both),
    ]);
    let ctx = context(server);
    ctx.kinds.learn("batch/v1", "Job", "jobs", true);
    let previous = Identity::of_all(&job, &ctx.kinds, "ns");
    let owner = Owner {
        namespace: "ns",
        name: "app",
        upgrade: true,
        replace: true,
        take_ownership: false,
        overwrites: &[],
        previous: &previous,
    };
    let error = apply_all(&ctx, &fence("u/20"), &owner, &job, None).await.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    script.finished().await;
}

/// A Job that has run takes no other template. With force it is made anew, once, and only when it differs.
#[tokio::test]
async fn pc_072_a_job_that_cannot_be_changed_is_made_anew_with_force_and_told_without() {
    let job = vec![object("batch/v1", "Job", "migrate")];
    let path = "/apis/batch/v1/namespaces/ns/jobs/migrate";
    let immutable = "Job.batch \"migrate\" is invalid: spec.template: Invalid value: {}: field is immutable";
    let refused = || writes(path, Some("x"), "7").refuses(422, "Invalid", immutable);
    let deletes = || {
        Exchange::delete(path).expecting(|sent| {
            assert_eq!(sent["preconditions"], json!({"uid": "x", "resourceVersion": "7"}));
        })
    };
    for (replace, differs) in [(false, true), (true, true), (true, false)] {
        let mut script = vec![Exchange::get(path).answers(live("u/10"))];
        match (replace, differs) {
            (_, false) => script.push(writes(path, Some("x"), "7").stores("x", "8")),
            (false, true) => script.push(refused()),
            (true, true) => script.extend([refused(), deletes(), writes(path, None, "1").stores("y", "9")]),
        }
        let (server, script) = scripted(script);
        let ctx = context(server);
        ctx.kinds.learn("batch/v1", "Job", "jobs", true);
        let previous = Identity::of_all(&job, &ctx.kinds, "ns");
        let owner = Owner {
            namespace: "ns",
            name: "app",
            upgrade: true,
            replace,
            take_ownership: false,
            overwrites: &[],
            previous: &previous,
        };
        let result = apply_all(&ctx, &fence("u/20"), &owner, &job, None).await;
        script.finished().await;
        match result {
            Ok(_) => assert!(replace, "{differs}"),
            Err(error) => {
                assert!(!replace && error.is_permanent());
                let text = crate::telemetry::chain(&error);
                assert!(text.contains("batch/v1, Kind=Job") && text.contains("spec.template"), "{text}");
            }
        }
    }
}
