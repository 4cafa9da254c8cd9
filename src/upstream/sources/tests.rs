// SPDX-License-Identifier: Apache-2.0
//! The ways of a request, against servers that a script plays. Real servers: `tests/sources.rs`.

use std::sync::{Mutex, OnceLock};

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::{
    api::{hex, manifest::BundleResource},
    render::engine::EngineConfig,
    upstream::chain,
};

/// What a client sent: `GET /path`, and its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    line: String,
    authorization: Option<String>,
    /// `If-None-Match`.
    known: Option<String>,
}

/// Answers each request by a rule, and remembers it.
struct Server {
    host: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// Status, headers, body.
type Reply = (u16, Vec<(&'static str, String)>, Vec<u8>);

impl Server {
    async fn start(rule: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (seen, rule) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::new(rule));
        let noted = seen.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (rule, noted) = (rule.clone(), noted.clone());
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).unwrap();
                    let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
                    let header = |wanted: &str| {
                        head.lines().find_map(|line| {
                            let (key, value) = line.split_once(": ")?;
                            key.eq_ignore_ascii_case(wanted).then(|| value.to_owned())
                        })
                    };
                    let (authorization, known) = (header("authorization"), header("if-none-match"));
                    let one = Seen { line, authorization, known };
                    let (status, headers, body) = rule(&one);
                    noted.lock().unwrap().push(one);
                    let mut text = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
                    if !headers.iter().any(|(key, _)| *key == "content-length") {
                        text += &format!("content-length: {}\r\n", body.len());
                    }
                    for (key, value) in headers {
                        text += &format!("{key}: {value}\r\n");
                    }
                    let _ = stream.write_all(format!("{text}\r\n").as_bytes()).await;
                    let _ = stream.write_all(&body).await;
                });
            }
        });
        Self { host, seen }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn ok(body: impl Into<Vec<u8>>) -> Reply {
    (200, Vec::new(), body.into())
}

fn not_found() -> Reply {
    (404, Vec::new(), Vec::new())
}

fn redirect(to: String) -> Reply {
    (302, vec![("location", to)], Vec::new())
}

fn sources() -> Sources {
    Sources::new(Engine::start(EngineConfig::default()).expect("cargo has built the engine"))
}

fn access() -> Access {
    Access { username: "admiral".into(), password: "hunter2".into(), plain_http: true, ..Access::default() }
}

fn basic() -> Option<String> {
    // admiral:hunter2
    Some("Basic YWRtaXJhbDpodW50ZXIy".into())
}

fn helm(repo: &str, chart: &str, version: &str) -> HelmOptions {
    let [repo, chart, version] = [repo, chart, version].map(str::to_owned);
    HelmOptions { repo, chart, version, ..HelmOptions::default() }
}

/// A chart as `helm package` packs it.
fn chart() -> Vec<u8> {
    static CHART: OnceLock<Vec<u8>> = OnceLock::new();
    let pack = || {
        let mut builder = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), Default::default()));
        let text = b"apiVersion: v2\nname: app\nversion: 1.0.0\n";
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        builder.append_data(&mut header, "app/Chart.yaml", &text[..]).unwrap();
        builder.into_inner().unwrap().finish().unwrap()
    };
    CHART.get_or_init(pack).clone()
}

fn sum(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// All of an error, and whether it is permanent. No password is ever in it.
fn told(result: Result<Arc<Manifest>, SourceError>) -> (String, bool) {
    let error = result.unwrap_err();
    let (text, debug) = (chain(&error), format!("{error:?}"));
    for secret in ["hunter2", "YWRtaXJhbDpodW50ZXIy", "s3cr3t"] {
        assert!(!text.contains(secret) && !debug.contains(secret), "{text}\n{debug}");
    }
    (text, error.is_permanent())
}

#[tokio::test]
async fn credentials_go_to_the_repository_and_nowhere_else() {
    let other = Server::start(|_| ok(chart())).await;
    let elsewhere = other.host.clone();
    let repository = Server::start(move |seen| match &*seen.line {
        "GET /charts/index.yaml" => ok(json!({"entries": {
            "here": [{"version": "1.0.0", "urls": ["here.tgz"]}],
            "there": [{"version": "1.0.0", "urls": [format!("http://{elsewhere}/there.tgz")]}],
            "moved": [{"version": "1.0.0", "urls": ["moved.tgz"]}],
        }})
        .to_string()),
        "GET /charts/here.tgz" => ok(chart()),
        "GET /charts/moved.tgz" => redirect(format!("http://{elsewhere}/moved.tgz")),
        _ => not_found(),
    })
    .await;
    let (sources, url) = (sources(), format!("http://{}/charts", repository.host));
    for name in ["here", "there", "moved"] {
        let bundle = sources.chart(&helm(&url, name, ""), &access()).await.unwrap();
        let names: Vec<_> = bundle.resources.iter().map(|file| &*file.name).collect();
        assert_eq!(names, [format!("{}app/Chart.yaml", render::external_directory(&helm(&url, name, "")))]);
    }
    assert!(repository.seen().iter().all(|seen| seen.authorization == basic()));
    assert_eq!(other.seen().len(), 2);
    assert!(other.seen().iter().all(|seen| seen.authorization.is_none()), "{:?}", other.seen());
}

#[tokio::test]
async fn a_urls_own_password_is_used_and_never_told() {
    let repository = Server::start(|seen| match &*seen.line {
        "GET /index.yaml" => ok(r#"{"entries": {"app": [{"version": "1.0.0", "urls": ["app.tgz"]}]}}"#),
        _ => not_found(),
    })
    .await;
    let url = format!("http://admiral:hunter2@{}", repository.host);
    let sources = sources();
    let nobody = Access::default();
    let (text, permanent) = told(sources.chart(&helm(&url, "app", ""), &nobody).await);
    assert_eq!(
        text,
        format!("cannot get http://{}/app.tgz: the server answered 404 Not Found", repository.host)
    );
    assert!(!permanent);
    assert!(repository.seen().iter().all(|seen| seen.authorization == basic()), "{:?}", repository.seen());
    // The Secret's count more, and only they are sent.
    let other = Access { username: "a".into(), password: "b".into(), ..Access::default() };
    told(sources.chart(&helm(&url, "app", ""), &other).await);
    assert_eq!(repository.seen().last().unwrap().authorization.as_deref(), Some("Basic YTpi"));
    for text in
        ["http://admiral:hunter2@[", "ftp://admiral:hunter2@x.test/a.tgz", "oci://admiral:hunter2@r.test/a"]
    {
        let (_, permanent) = told(sources.chart(&helm("", text, ""), &nobody).await);
        assert!(permanent);
    }
}

#[tokio::test]
async fn an_archive_is_what_the_index_says_and_is_fetched_once() {
    let digest = sum(&chart());
    let repository = Server::start(move |seen| match &*seen.line {
        "GET /index.yaml" => ok(json!({"entries": {
            "app": [{"version": "1.0.0", "digest": digest, "urls": ["app.tgz"]}],
            "bad": [{"version": "1.0.0", "digest": "00".repeat(32), "urls": ["app.tgz"]}],
        }})
        .to_string()),
        _ => ok(chart()),
    })
    .await;
    let (sources, url) = (sources(), format!("http://{}", repository.host));
    let app = helm(&url, "app", "");
    let access = access();
    let (one, two) = tokio::join!(sources.chart(&app, &access), sources.chart(&app, &access));
    assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
    let archives = || repository.seen().iter().filter(|seen| seen.line == "GET /app.tgz").count();
    assert_eq!(archives(), 1);
    let (text, permanent) = told(sources.chart(&helm(&url, "bad", ""), &access).await);
    assert!(text.contains("does not match its digest: got sha256:") && !permanent, "{text}");
    let (text, permanent) = told(sources.chart(&helm(&url, "none", ">1"), &access).await);
    assert_eq!(text, format!("{url}/ has no chart \"none\" of a version that fits \">1\""));
    assert!(!permanent, "it may be published later");
    let (text, permanent) = told(sources.chart(&helm(&url, "app", "not a version"), &access).await);
    assert!(permanent, "{text}");
}

#[tokio::test]
async fn an_index_that_has_not_changed_is_not_read_again() {
    let index = r#"{"entries": {"app": [{"version": "1.0.0", "urls": ["app.tgz"]}]}}"#;
    let repository = Server::start(move |seen| match (&*seen.line, seen.known.as_deref()) {
        ("GET /index.yaml", Some("\"7\"")) => (304, Vec::new(), Vec::new()),
        ("GET /index.yaml", _) => (200, vec![("etag", "\"7\"".into())], index.into()),
        _ => ok(chart()),
    })
    .await;
    let (sources, app) = (sources(), helm(&format!("http://{}", repository.host), "app", ""));
    for _ in 0..2 {
        sources.chart(&app, &access()).await.unwrap();
    }
    // Somebody else asks for his own.
    sources.chart(&app, &Access::default()).await.unwrap();
    let seen = repository.seen();
    let known: Vec<_> =
        seen.iter().filter(|seen| seen.line == "GET /index.yaml").map(|seen| seen.known.as_deref()).collect();
    assert_eq!(known, [None, Some("\"7\""), None]);
}

#[tokio::test]
async fn a_token_is_asked_for_where_the_registry_says() {
    let manifest =
        Manifest { resources: vec![BundleResource::from_bytes("a.yaml".into(), b"a: 1\n".into())] };
    let (id, bytes) = (manifest.id(), manifest.to_bytes());
    let tokens = Server::start(|seen| {
        assert!(seen.line.starts_with("GET /token?service=r&scope=repository%3Astore%2Fs-"), "{}", seen.line);
        ok(r#"{"token": "s3cr3t"}"#)
    })
    .await;
    let (realm, name, layer) = (tokens.host.clone(), id.clone(), bytes.clone());
    let registry = Server::start(move |seen| {
        if seen.authorization.as_deref() != Some("Bearer s3cr3t") {
            let scope = format!("repository:store/{name}:pull");
            let wants = format!("Bearer realm=\"http://{realm}/token\",service=\"r\",scope=\"{scope}\"");
            return (401, vec![("www-authenticate", wants)], Vec::new());
        }
        match &seen.line {
            line if line.ends_with("/manifests/latest") => ok(json!({"layers": [{
                "mediaType": "application/fleet.file", "digest": format!("sha256:{}", sum(&layer)),
                "size": layer.len(), "annotations": {"id": name},
            }]})
            .to_string()),
            _ => ok(layer.clone()),
        }
    })
    .await;
    let (sources, reference) = (sources(), format!("{}/store", registry.host));
    let got = sources.contents(&reference, &access(), &id).await.unwrap();
    assert_eq!(*got, manifest);
    assert_eq!(tokens.seen().len(), 1, "one token for both");
    assert_eq!(tokens.seen()[0].authorization, basic());
    assert!(registry.seen().iter().all(|seen| seen.authorization != basic()));
    let asked = registry.seen().len();
    sources.contents(&reference, &access(), &id).await.unwrap();
    assert_eq!(registry.seen().len(), asked, "kept");
}

/// A registry that has this manifest and answers everything else with these bytes.
async fn storing(manifest: serde_json::Value, bytes: Vec<u8>) -> Server {
    Server::start(move |seen| match &seen.line {
        line if line.contains("/manifests/") => ok(manifest.to_string()),
        _ => ok(bytes.clone()),
    })
    .await
}

#[tokio::test]
async fn stored_files_are_those_of_the_id_or_an_error_in_fleets_words() {
    let manifest =
        Manifest { resources: vec![BundleResource::from_bytes("a.yaml".into(), b"a: 1\n".into())] };
    let (bytes, actual) = (manifest.to_bytes(), manifest.id());
    let layer = json!({"digest": format!("sha256:{}", sum(&bytes)), "size": bytes.len(), "annotations": {"id": "s-0"}});
    let mut two = layer.clone();
    two["annotations"]["more"] = "x".into();
    let mut other = layer.clone();
    other["annotations"]["id"] = "s-1".into();
    let mut short = layer.clone();
    short["size"] = 3.into();
    let mut huge = layer.clone();
    huge["size"] = (MAX_UNPACKED + 1).into();
    for (layers, expected) in [
        (json!([layer]), format!("invalid or corrupt manifest. Expecting id: \"s-0\", got \"{actual}\"")),
        (json!([layer, layer]), "expected 1 layer in OCI manifest, 2 found".into()),
        (json!([two]), "expecting 1 Annotation in layer descriptor. Found 2".into()),
        (json!([other]), "could not find expected id in Descriptor's annotations".into()),
        (json!([short]), "is larger than the maximum size 3".into()),
        (json!([huge]), format!("is larger than the maximum size {MAX_UNPACKED}")),
    ] {
        let registry = storing(json!({"layers": layers}), bytes.clone()).await;
        let (text, permanent) = told(sources().contents(&registry.host, &access(), "s-0").await);
        assert!(text.contains(&expected), "{text}\n{expected}");
        assert!(!permanent);
    }
}

#[tokio::test]
async fn what_is_too_large_or_unsafe_is_not_taken() {
    let server = Server::start(|seen| match &*seen.line {
        "GET /declared.tgz" => (200, vec![("content-length", (MAX_CHART + 1).to_string())], Vec::new()),
        "GET /loop.tgz" => redirect("/loop.tgz".into()),
        _ => ok("<html>"),
    })
    .await;
    let url = |path: &str| helm("", &format!("http://{}/{path}", server.host), "");
    let sources = sources();
    let odd = told(sources.contents("r.test", &access(), "../x").await);
    assert_eq!(odd, ("\"../x\" cannot be the name of a repository".into(), true));
    let (text, permanent) = told(sources.chart(&url("declared.tgz"), &access()).await);
    assert!(text.ends_with("is larger than the maximum size 104857600") && !permanent, "{text}");
    let (text, _) = told(sources.chart(&url("loop.tgz"), &access()).await);
    assert!(text.contains("too many redirects"), "{text}");
    let (text, permanent) = told(sources.chart(&url("page.tgz"), &access()).await);
    assert!(text.contains("it is no chart archive") && !permanent, "{text}");
}

#[tokio::test]
async fn the_options_name_one_chart() {
    let sources = sources();
    for (repo, chart, words) in [
        ("", "", "names no chart"),
        ("https://c.test", "", "helm.chart is empty"),
        ("", "./charts/app", "helm.chart is no URL"),
        ("oci://r.test/UPPER", "", "helm.repo is no chart in a registry"),
        ("git+ssh://c.test/x", "app", "charts are fetched by https, http and oci"),
    ] {
        let (text, permanent) = told(sources.chart(&helm(repo, chart, ""), &access()).await);
        assert!(text.contains(words) && permanent, "{text}");
    }
}

#[test]
fn one_version_is_told_from_a_range() {
    for exact in ["1.2.3", "v1.2.3", "1.2.3-rc.1", "1.2.3+b.5", "0.0.0-20260101-ab+x"] {
        assert!(is_exact(exact), "{exact}");
    }
    for range in ["", "1.2", "^1.2.3", "1.x.0", ">1.0.0", "1.2.3 - 2.0.0", "1.2.3 || 2.0.0", "*", "1.2.3.4"] {
        assert!(!is_exact(range), "{range}");
    }
}
