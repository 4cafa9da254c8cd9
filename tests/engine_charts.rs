// SPDX-License-Identifier: Apache-2.0
//! What charts may do to the engine and to their neighbours, and what they may ask.

#![cfg(unix)]

use std::{
    env,
    io::{Read, Write},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use flotilla::render::engine::{
    Capabilities, Engine, EngineConfig, EngineError, KustomizeRequest, Lookup, ReleaseFacts, RenderRequest,
    RenderedChart, ResolveRequest,
};
use futures::future::{BoxFuture, join_all};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

/// Short where a test waits for it to run out, long enough for a busy machine elsewhere.
const SHORT: Duration = Duration::from_secs(2);

const CHART: &str = "{apiVersion: v2, name: shop, version: 1.0.0}";

fn config() -> EngineConfig {
    EngineConfig {
        deadline: Duration::from_secs(60),
        patience: Duration::from_secs(300),
        ..EngineConfig::default()
    }
}

fn start(config: EngineConfig) -> Engine {
    Engine::start(config).expect("cargo has built the engine")
}

/// Finds what `answers` says, and counts how often it was asked.
struct Cluster {
    answers: fn(&str, &str, &str, &str) -> Result<Option<Value>, String>,
    asked: watch::Sender<usize>,
    /// It answers while this is true.
    open: watch::Receiver<bool>,
}

impl Lookup for Cluster {
    fn lookup<'a>(
        &'a self,
        api_version: &'a str,
        kind: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, String>> {
        Box::pin(async move {
            self.asked.send_modify(|count| *count += 1);
            let mut open = self.open.clone();
            let _ = open.wait_for(|open| *open).await;
            (self.answers)(api_version, kind, namespace, name)
        })
    }
}

fn empty() -> Arc<Cluster> {
    Arc::new(Cluster {
        answers: |_, _, _, _| Ok(None),
        asked: watch::Sender::new(0),
        open: watch::channel(true).1,
    })
}

fn chart(files: &[(&str, &str)], lookup: Arc<dyn Lookup>) -> RenderRequest {
    let mut all = vec![("Chart.yaml".to_owned(), CHART.as_bytes().to_vec())];
    all.extend(files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())));
    RenderRequest {
        files: all,
        values: Map::new(),
        release: ReleaseFacts {
            name: "rel".into(),
            namespace: "space".into(),
            revision: 1,
            is_upgrade: false,
        },
        capabilities: Arc::new(Capabilities {
            kube_version: "v1.36.3".into(),
            api_versions: vec!["v1".into(), "apps/v1".into()],
        }),
        dns: false,
        skip_schema: false,
        lookup,
    }
}

/// A chart of one template.
fn template(text: &str) -> RenderRequest {
    chart(&[("templates/x.yaml", text)], empty())
}

fn map(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\ndata:\n  a: {data}\n")
}

/// `data.a` of the only document.
fn only(rendered: Result<RenderedChart, EngineError>) -> Value {
    let rendered = rendered.expect("it renders");
    assert_eq!(rendered.documents.len(), 1);
    rendered.documents[0].value["data"]["a"].clone()
}

async fn refused(engine: &Engine, request: RenderRequest) -> String {
    let error = engine.render(request).await.expect_err("it is refused");
    assert!(error.is_permanent(), "{error}");
    error.to_string()
}

/// Renders `poison` between sound charts, which must not notice.
async fn alone(config: EngineConfig, poison: RenderRequest) -> EngineError {
    let engine = start(config);
    let poison = engine.render(poison);
    let sound = (0..20).map(|i| {
        let engine = engine.clone();
        async move { (i, engine.render(template(&map(&format!("\"{i}\"")))).await) }
    });
    let (poison, sound) = tokio::join!(poison, join_all(sound));
    for (i, answer) in sound {
        assert_eq!(only(answer), json!(i.to_string()));
    }
    assert_eq!(only(engine.render(template(&map("b"))).await), json!("b"));
    poison.expect_err("more than may be")
}

#[tokio::test]
async fn an_endless_loop_fails_alone_when_its_time_is_up() {
    let endless = "{{ range 1000000000 }}{{ range 1000000000 }}{{ end }}{{ end }}";
    let error = alone(EngineConfig { deadline: SHORT, ..config() }, template(endless)).await;
    assert!(matches!(error, EngineError::Overran { .. }), "{error}");
}

#[tokio::test]
async fn a_string_of_ten_gigabytes_fails_alone() {
    let error = alone(config(), template("a: {{ repeat 10000000000 \"x\" }}")).await;
    assert!(matches!(error, EngineError::Crashed { by_itself: true, .. }) && error.is_permanent(), "{error}");
}

#[tokio::test]
async fn recursion_without_end_fails_alone() {
    for (text, expected) in [
        (
            "{{ define \"a\" }}{{ template \"a\" . }}{{ end }}{{ template \"a\" . }}",
            "exceeded maximum template depth",
        ),
        (
            "{{ define \"a\" }}{{ include \"a\" . }}{{ end }}{{ include \"a\" . }}",
            "has a nested reference name: a",
        ),
        (
            "{{ $x := \"{{ tpl .x . }}\" }}{{ tpl $x (dict \"x\" $x \"Template\" .Template) }}",
            "the engine died",
        ),
    ] {
        let error = alone(EngineConfig { memory: 256 << 20, ..config() }, template(text)).await;
        let words = error.to_string();
        assert!(error.is_permanent() && words.contains(expected), "{words}");
        assert!(words.len() < 10_000, "{} bytes", words.len());
    }
}

#[tokio::test]
async fn more_output_than_a_frame_holds_is_refused() {
    let text = format!("{{{{ range 70 }}}}\n---\n{}{{{{ end }}}}", map("{{ repeat 1000000 \"x\" }}"));
    let error = alone(config(), template(&text)).await;
    assert!(matches!(error, EngineError::TooLarge { .. }) && error.is_permanent(), "{error}");
}

#[test]
fn an_endless_loop_does_not_outlive_the_agent() {
    let mut directory = env::current_exe().expect("a test is a file");
    directory.pop();
    let binary = directory.parent().expect("target/<profile>").join("flotilla-engine");
    let mut engine = Command::new(binary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo has built the engine");
    let sources = json!([
        {"name": "Chart.yaml", "text": CHART},
        {"name": "templates/x.yaml", "text": "{{ range 1000000000 }}{{ range 1000000000 }}{{ end }}{{ end }}"},
    ]);
    let args = json!({"sources": sources, "capabilities": {"kube_version": "v1.36.3"}});
    let request = json!({"id": 1, "op": "render", "args": args}).to_string();
    let mut input = engine.stdin.take().expect("a pipe");
    let size = u32::try_from(request.len()).expect("it is short");
    input.write_all(&[&size.to_be_bytes(), request.as_bytes()].concat()).expect("it reads");
    // It says that it computes: the loop has begun.
    let mut head = [0; 4];
    engine.stdout.as_mut().expect("a pipe").read_exact(&mut head).expect("a frame");
    drop(input);
    assert!(engine.wait().expect("it ends").success());
}

#[tokio::test]
async fn fifty_thousand_objects_do_not_harm_others() {
    let engine = start(config());
    let text = format!("{{{{ range 50000 }}}}\n---\n{}{{{{ end }}}}", map("b"));
    let (many, one) = tokio::join!(engine.render(template(&text)), engine.render(template(&map("c"))));
    assert_eq!(only(one), json!("c"));
    assert_eq!(many.expect("they fit").documents.len(), 50_000);
    let text = text.replace("50000", "100001");
    assert!(refused(&engine, template(&text)).await.ends_with("more than 100000 documents"));
    assert_eq!(engine.restarts(), 0);
}

#[tokio::test]
async fn values_that_expand_without_bound_fail_alone() {
    let values = format!("a: &a {}\nb: [{}*a]", "x".repeat(1 << 20), "*a, ".repeat(10_000));
    let error = alone(config(), chart(&[("values.yaml", &values)], empty())).await;
    assert!(matches!(error, EngineError::Crashed { by_itself: true, .. }), "{error}");
}

#[tokio::test]
async fn a_template_that_asks_for_ever_ends_with_its_time() {
    let text = "{{ range 1000000000000 }}{{ $x := lookup \"v1\" \"Pod\" \"\" \"\" }}{{ end }}";
    let error = alone(EngineConfig { deadline: SHORT, ..config() }, template(text)).await;
    assert!(matches!(error, EngineError::Overran { .. }), "{error}");
}

#[tokio::test]
async fn a_lookup_is_answered_live_and_its_result_not_to_be_kept() {
    let engine = start(config());
    let cluster = Cluster {
        answers: |api_version, kind, namespace, name| match (kind, name) {
            ("Secret", "old") => {
                Ok(Some(json!({"data": {"n": 3, "f": 1.5, "who": [api_version, namespace]}})))
            }
            ("Pod", "") => Ok(Some(json!({"items": [{}, {}]}))),
            ("Secret", _) => Ok(None),
            _ => Err(format!("no kind {kind}")),
        },
        asked: watch::Sender::new(0),
        open: watch::channel(true).1,
    };
    let cluster = Arc::new(cluster);
    let look = |text: &str| chart(&[("templates/x.yaml", &map(text))], Arc::clone(&cluster) as _);
    let found = "{{ (lookup \"v1\" \"Secret\" \"s\" \"old\").data | toJson | quote }}";
    let rendered = engine.render(look(found)).await.expect("it renders");
    assert!(rendered.observed_cluster);
    assert_eq!(only(Ok(rendered)), json!(r#"{"f":1.5,"n":3,"who":["v1","s"]}"#));
    // Whole numbers are integers, as in Helm.
    let kind = "{{ (lookup \"v1\" \"Secret\" \"s\" \"old\").data.n | kindOf }}";
    assert_eq!(only(engine.render(look(kind)).await), json!("int64"));
    let none = "{{ if lookup \"v1\" \"Secret\" \"s\" \"new\" }}some{{ else }}none{{ end }}";
    assert_eq!(only(engine.render(look(none)).await), json!("none"));
    let all = "{{ len (lookup \"v1\" \"Pod\" \"s\" \"\").items | quote }}";
    assert_eq!(only(engine.render(look(all)).await), json!("2"));
    assert_eq!(*cluster.asked.borrow(), 4);
    let error = refused(&engine, look("{{ lookup \"v1\" \"Nothing\" \"\" \"\" }}")).await;
    assert!(error.contains("error calling lookup: no kind Nothing"), "{error}");
    assert!(!engine.render(template(&map("b"))).await.expect("it renders").observed_cluster);
}

#[tokio::test]
async fn renders_that_wait_for_a_lookup_hold_up_nobody() {
    let engine = start(config());
    let (open, opened) = watch::channel(false);
    let cluster =
        Arc::new(Cluster { answers: |_, _, _, _| Ok(None), asked: watch::Sender::new(0), open: opened });
    let text = map("{{ len (lookup \"v1\" \"Pod\" \"\" \"\") | quote }}");
    // More than the engine computes at once.
    let waiting: Vec<_> = (0..12)
        .map(|_| {
            let (engine, request) =
                (engine.clone(), chart(&[("templates/x.yaml", &text)], Arc::clone(&cluster) as _));
            tokio::spawn(async move { engine.render(request).await })
        })
        .collect();
    cluster.asked.subscribe().wait_for(|count| *count == 12).await.expect("they ask");
    assert_eq!(only(engine.render(template(&map("b"))).await), json!("b"));
    open.send_replace(true);
    for answer in join_all(waiting).await {
        assert_eq!(only(answer.expect("no panic")), json!("0"));
    }
}

#[tokio::test]
async fn others_go_on_while_a_request_has_its_second_chance() {
    let engine = start(config());
    let (open, opened) = watch::channel(false);
    let cluster =
        Arc::new(Cluster { answers: |_, _, _, _| Ok(None), asked: watch::Sender::new(0), open: opened });
    let request = chart(
        &[("templates/x.yaml", &map("{{ len (lookup \"v1\" \"Pod\" \"\" \"\") | quote }}"))],
        Arc::clone(&cluster) as _,
    );
    let waiting = tokio::spawn({
        let engine = engine.clone();
        async move { engine.render(request).await }
    });
    let mut asked = cluster.asked.subscribe();
    asked.wait_for(|count| *count == 1).await.expect("it asks");
    let pid = libc::pid_t::try_from(engine.pid().expect("the engine runs")).expect("a pid");
    // SAFETY: kill takes two numbers; the process is a child of this test, which has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    asked.wait_for(|count| *count == 2).await.expect("it asks again");
    assert_eq!(only(engine.render(template(&map("b"))).await), json!("b"));
    assert!(!waiting.is_finished());
    open.send_replace(true);
    assert_eq!(only(waiting.await.expect("no panic")), json!("0"));
    assert_eq!(engine.restarts(), 1);
}

#[tokio::test]
async fn host_names_are_resolved_only_where_that_is_allowed() {
    let engine = start(config());
    let text = map("{{ getHostByName \"127.0.0.1\" | quote }}");
    let rendered = engine.render(template(&text)).await.expect("it renders");
    assert!(!rendered.observed_cluster);
    assert_eq!(only(Ok(rendered)), json!(""));
    let rendered = engine.render(RenderRequest { dns: true, ..template(&text) }).await.expect("it renders");
    assert!(rendered.observed_cluster);
    assert_eq!(only(Ok(rendered)), json!("127.0.0.1"));
    let unknown = map("{{ getHostByName \"no name\" | quote }}");
    let error = refused(&engine, RenderRequest { dns: true, ..template(&unknown) }).await;
    assert!(error.contains("cannot resolve the name no name"), "{error}");
}

#[tokio::test]
async fn a_schema_reaches_neither_files_nor_the_network() {
    let engine = start(config());
    for reference in ["file:///etc/hostname", "https://127.0.0.1:1/schema.json"] {
        let schema = json!({"$ref": reference}).to_string();
        let error = refused(&engine, chart(&[("values.schema.json", &schema)], empty())).await;
        assert!(error.contains("is not in the chart, and schemas are not fetched"), "{error}");
    }
}

#[tokio::test]
async fn a_kustomization_reaches_neither_files_nor_the_network() {
    let engine = start(config());
    for (resource, expected) in [
        ("https://127.0.0.1:1/x.yaml", "nothing is fetched from elsewhere"),
        ("https://127.0.0.1:1/org/repo//base?ref=v1", "remote resources are not fetched"),
        ("git@127.0.0.1:org/repo.git", "remote resources are not fetched"),
        ("/etc/hostname", "'/etc/hostname' doesn't exist"),
    ] {
        let files =
            vec![("kustomization.yaml".to_owned(), format!("resources: ['{resource}']").into_bytes())];
        let request = KustomizeRequest { files, directory: String::new(), first: Vec::new() };
        let error = engine.kustomize(request).await.expect_err("it is refused");
        assert!(error.is_permanent() && error.to_string().contains(expected), "{resource}: {error}");
    }
    assert_eq!(engine.restarts(), 0);
}

#[tokio::test]
async fn versions_are_chosen_as_helm_chooses_from_an_index() {
    let engine = start(config());
    for (constraint, expected) in [
        ("", Some("2.1.0")),
        ("^1.0", Some("1.10.0")),
        ("1.9", Some("1.9.0")),
        ("v1.2.0", Some("v1.2.0")),
        ("1.2.0", Some("v1.2.0")),
        (">2.1.0-0", Some("3.0.0-rc.1")),
        ("3.0.0-rc.1", Some("3.0.0-rc.1")),
        ("~5", None),
        ("latest", Some("latest")),
    ] {
        let versions = ["1.9.0", "2.1.0", "1.10.0", "v1.2.0", "3.0.0-rc.1", "nonsense"];
        let mut versions: Vec<String> = versions.map(str::to_owned).to_vec();
        versions.extend((constraint == "latest").then(|| constraint.to_owned()));
        let chosen =
            engine.resolve_version(ResolveRequest { constraint: constraint.to_owned(), versions }).await;
        match (chosen, expected) {
            // Helm reads the constraint before it looks for the very version.
            (Err(error), Some("latest")) => assert_eq!(error.to_string(), "improper constraint: \"latest\""),
            (chosen, expected) => assert_eq!(chosen.expect(constraint).as_deref(), expected, "{constraint}"),
        }
    }
}

#[tokio::test]
async fn templates_see_the_version_that_helm_has_in_fleets_agent() {
    let engine = start(config());
    let text = map("\"{{ .Capabilities.HelmVersion.Version }} {{ .Capabilities.KubeVersion.Minor }}\"");
    assert_eq!(only(engine.render(template(&text)).await), json!("v4.2 36"));
}

#[tokio::test]
async fn faults_have_the_words_that_fleet_shows() {
    let engine = start(config());
    let broken = template("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x\n");
    assert_eq!(
        refused(&engine, broken).await,
        "error merging manifests: parsing shop/templates/x.yaml: MalformedYAMLError: yaml: line 2: did not find \
         expected ',' or '}'"
    );
    let old = CHART.replace('}', ", kubeVersion: '<1.30'}");
    let mut request = template(&map("b"));
    request.files[0].1 = old.into_bytes();
    assert_eq!(
        refused(&engine, request).await,
        "chart requires kubeVersion: <1.30 which is incompatible with Kubernetes v1.36.3"
    );
    let big = "x".repeat((5 << 20) + 1);
    assert_eq!(
        refused(&engine, chart(&[("big", &big)], empty())).await,
        "decompressed chart file \"big\" is larger than the maximum file size 5242880"
    );
    for name in ["../x", "/x", "a/../../x"] {
        assert!(refused(&engine, chart(&[(name, "")], empty())).await.starts_with("chart illegally"));
    }
}
