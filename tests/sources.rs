// SPDX-License-Identifier: Apache-2.0
//! Bundles from a real registry and a real chart repository, with TLS by an authority of their own and passwords.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use flotilla::api::manifest::{BundleResource, Manifest, options_hash};
use flotilla::api::{HelmChartOptions, HelmOptions};
use flotilla::render::engine::{Engine, EngineConfig};
use flotilla::upstream::chain;
use flotilla::upstream::sources::{Access, STORAGE_TYPE, SourceError, Sources};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::bundles::Bundle;
use harness::pki::Authority;
use harness::registry::{self, Guard, PASSWORD, Server, USER};
use harness::world::{Downstream, World};
use harness::{Tools, until};

const NAMESPACE: &str = "quay";
const BOUND: Duration = Duration::from_secs(120);
const TOOLS: &[&str] = &["registry", "helm"];
const VERSIONS: [&str; 5] = ["1.0.0", "1.1.0", "1.2.0+b.1", "2.0.0", "2.1.0-rc.1"];

/// A registry and a chart repository that want TLS and a password.
struct Harbour {
    authority: Authority,
    registry: Server,
    charts: Server,
    dir: tempfile::TempDir,
    tools: Tools,
}

impl Harbour {
    async fn start(tools: &Tools) -> anyhow::Result<Harbour> {
        let dir = tempfile::Builder::new().prefix("flotilla-sources-").tempdir()?;
        let authority = Authority::new("harbour")?;
        for version in VERSIONS {
            registry::package(tools, dir.path(), "app", version)?;
        }
        registry::helm(tools, dir.path(), &["repo", "index", "."])?;
        let guard = Guard { authority: Some(&authority), password: true };
        let registry = registry::registry(tools, dir.path(), "registry", guard).await?;
        let charts = registry::charts(tools, dir.path(), "charts", dir.path(), guard).await?;
        Ok(Harbour { authority, registry, charts, dir, tools: tools.clone() })
    }

    /// Puts every version into the registry, as users do.
    fn push(&self) -> anyhow::Result<()> {
        let ca = self.dir.path().join("ca.crt");
        std::fs::write(&ca, self.authority.pem())?;
        let (ca, host) = (ca.display().to_string(), self.registry.host.as_str());
        let helm = |args: &[&str]| registry::helm(&self.tools, self.dir.path(), args);
        helm(&["registry", "login", host, "-u", USER, "-p", PASSWORD, "--ca-file", &ca])?;
        for version in VERSIONS {
            let (package, target) = (format!("app-{version}.tgz"), format!("oci://{host}/charts"));
            helm(&["push", &package, &target, "--ca-file", &ca])?;
        }
        Ok(())
    }

    fn access(&self) -> Access {
        Access {
            username: USER.into(),
            password: PASSWORD.into(),
            authorities: self.authority.pem().into(),
            ..Access::default()
        }
    }

    fn in_repository(&self, version: &str) -> HelmOptions {
        helm(&format!("https://{}", self.charts.host), "app", version)
    }

    fn in_registry(&self, version: &str) -> HelmOptions {
        helm(&format!("oci://{}/charts/app", self.registry.host), "", version)
    }

    /// Stores files as Fleet's controller does; `annotated` is the id they are said to have.
    async fn store(&self, manifest: &Manifest, annotated: &str) -> anyhow::Result<()> {
        let client = reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(self.authority.pem().as_bytes())?])
            .build()?;
        let base = format!("https://{}/v2/store/{annotated}", self.registry.host);
        let login = format!("Basic {}", BASE64_STANDARD.encode(format!("{USER}:{PASSWORD}")));
        let blob = async |bytes: Vec<u8>| {
            let hex: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let digest = format!("sha256:{hex}");
            let begun = client.post(format!("{base}/blobs/uploads/")).header("authorization", &login).send();
            let begun = begun.await?.error_for_status()?;
            let place = begun.headers().get("location").context("where to upload")?.to_str()?.to_owned();
            let place = begun.url().join(&place)?;
            let place = format!("{place}&digest={digest}");
            let put = client.put(place).header("authorization", &login).body(bytes).send().await?;
            put.error_for_status()?;
            anyhow::Ok(digest)
        };
        let bytes = manifest.to_bytes();
        let size = bytes.len();
        let (empty, layer) = (blob(b"{}".to_vec()).await?, blob(bytes).await?);
        let artifact = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/fleet.manifest",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": empty, "size": 2},
            "layers": [{"mediaType": "application/fleet.file", "digest": layer, "size": size,
                "annotations": {"id": annotated}}],
        });
        let put = client
            .put(format!("{base}/manifests/latest"))
            .header("authorization", &login)
            .header("content-type", "application/vnd.oci.image.manifest.v1+json")
            .body(artifact.to_string())
            .send();
        put.await?.error_for_status()?;
        Ok(())
    }
}

fn helm(repo: &str, chart: &str, version: &str) -> HelmOptions {
    let [repo, chart, version] = [repo, chart, version].map(str::to_owned);
    HelmOptions { repo, chart, version, ..HelmOptions::default() }
}

fn sources() -> Sources {
    flotilla_engine().map(Sources::new).expect("cargo has built the engine")
}

fn flotilla_engine() -> anyhow::Result<Engine> {
    Ok(Engine::start(EngineConfig::default())?)
}

fn manifest(word: &str) -> Manifest {
    let text = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "stored"}, "data": {"word": word}});
    Manifest { resources: vec![BundleResource::from_bytes("map.yaml".into(), text.to_string().into_bytes())] }
}

/// The version in the bundle's Chart.yaml.
fn version(bundle: &Manifest) -> anyhow::Result<String> {
    let chart = bundle.resources.iter().find(|file| file.name.ends_with("/app/Chart.yaml"));
    let text = String::from_utf8(chart.context("a chart")?.decode()?)?;
    let line = text.lines().find_map(|line| line.strip_prefix("version: ")).context("a version")?;
    Ok(line.trim_matches('"').to_owned())
}

/// All of an error, which has no password in it.
fn told(result: Result<Arc<Manifest>, SourceError>) -> String {
    let error = result.expect_err("it cannot be fetched");
    let (text, debug) = (chain(&error), format!("{error:?}"));
    assert!(!text.contains(PASSWORD) && !debug.contains(PASSWORD), "{text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_come_from_a_repository_and_a_registry_in_the_version_that_helm_takes() -> anyhow::Result<()> {
    let tools = Tools::build(TOOLS)?;
    let harbour = Harbour::start(&tools).await?;
    harbour.push()?;
    let (sources, access) = (sources(), harbour.access());
    for (constraint, expected) in [
        ("", "2.0.0"),
        ("1.0.0", "1.0.0"),
        ("^1.0.0", "1.2.0+b.1"),
        ("~1.1", "1.1.0"),
        (">=1.0.0 <2.0.0 || 0.1.0", "1.2.0+b.1"),
        ("2.1.0-rc.1", "2.1.0-rc.1"),
        (">=2.0.0-0", "2.1.0-rc.1"),
        ("1.2.0+b.1", "1.2.0+b.1"),
    ] {
        for options in [harbour.in_repository(constraint), harbour.in_registry(constraint)] {
            let bundle = sources.chart(&options, &access).await;
            let bundle = bundle.map_err(|error| anyhow::anyhow!("{constraint}: {}", chain(&error)))?;
            ensure!(version(&bundle)? == expected, "{constraint:?} gave {}", version(&bundle)?);
            let prefix = flotilla::render::external_directory(&options);
            ensure!(bundle.resources.iter().all(|file| file.name.starts_with(&prefix)));
        }
    }
    for options in [harbour.in_repository(">=3"), harbour.in_registry(">=3")] {
        let text = told(sources.chart(&options, &access).await);
        ensure!(text.contains("has no chart \"app\" of a version that fits \">=3\""), "{text}");
    }

    // By its URL, and by tag and digest.
    let url = format!("https://{}/app-1.1.0.tgz", harbour.charts.host);
    ensure!(version(&*sources.chart(&helm("", &url, ""), &access).await?)? == "1.1.0");
    let tagged = format!("oci://{}/charts/app:1.0.0", harbour.registry.host);
    ensure!(version(&*sources.chart(&helm("", &tagged, ""), &access).await?)? == "1.0.0");

    // What was fetched is not fetched again, however often it is asked for.
    let archives = || harbour.charts.log().matches("GET /app-2.0.0.tgz").count();
    let before = archives();
    for _ in 0..3 {
        sources.chart(&harbour.in_repository(""), &access).await?;
    }
    ensure!((before, archives()) == (1, 1), "{before} and then {} downloads", archives());
    refusals(&harbour, &sources).await
}

async fn refusals(harbour: &Harbour, sources: &Sources) -> anyhow::Result<()> {
    let access = harbour.access();
    let both = [harbour.in_repository("1.0.0"), harbour.in_registry("1.0.0")];
    let wrong = Access { password: "wrong".into(), ..access.clone() };
    let nobody = Access { username: String::new(), password: String::new(), ..access.clone() };
    let stranger = Access { authorities: Vec::new(), ..access.clone() };
    let careless = Access { skip_verify: true, ..stranger.clone() };
    for options in &both {
        for access in [&wrong, &nobody] {
            let text = told(sources.chart(options, access).await);
            ensure!(text.contains("the server answered 401 Unauthorized"), "{text}");
        }
        let text = told(sources.chart(options, &stranger).await);
        ensure!(text.contains("certificate"), "{text}");
        sources.chart(options, &careless).await?;
    }

    // An archive that was exchanged after it was indexed.
    let package = harbour.dir.path().join("app-1.1.0.tgz");
    std::fs::copy(harbour.dir.path().join("app-1.0.0.tgz"), &package)?;
    let text = told(Sources::chart(&self::sources(), &harbour.in_repository("1.1.0"), &access).await);
    ensure!(text.contains("app-1.1.0.tgz does not match its digest: got sha256:"), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_bundles_are_what_their_id_says() -> anyhow::Result<()> {
    let tools = Tools::build(TOOLS)?;
    let harbour = Harbour::start(&tools).await?;
    let (sources, access) = (sources(), harbour.access());
    let reference = format!("{}/store", harbour.registry.host);
    let (good, bad) = (manifest("good"), manifest("bad"));
    harbour.store(&good, &good.id()).await?;
    ensure!(*sources.contents(&reference, &access, &good.id()).await? == good);

    let claimed = manifest("other").id();
    harbour.store(&bad, &claimed).await?;
    let text = told(sources.contents(&reference, &access, &claimed).await);
    ensure!(
        text == format!("invalid or corrupt manifest. Expecting id: {claimed:?}, got {:?}", bad.id()),
        "{text}"
    );
    let wrong = Access { password: "wrong".into(), ..access.clone() };
    let text = told(self::sources().contents(&reference, &wrong, &good.id()).await);
    ensure!(text.contains("the server answered 401 Unauthorized"), "{text}");
    let text = told(sources.contents(&reference, &access, "s-absent").await);
    ensure!(text.contains("the server answered 404 Not Found"), "{text}");

    // One without TLS and passwords, as in a lab.
    let open = registry::registry(&tools, harbour.dir.path(), "open", Guard::default()).await?;
    let plain = Access { plain_http: true, ..Access::default() };
    let target = format!("oci://{}/charts", open.host);
    registry::helm(&tools, harbour.dir.path(), &["push", "app-1.0.0.tgz", &target, "--plain-http"])?;
    let bundle = sources.chart(&helm(&format!("{target}/app"), "", "1.x"), &plain).await?;
    ensure!(version(&bundle)? == "1.0.0");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_deploys_from_both() -> anyhow::Result<()> {
    let names: Vec<&str> = Tools::CONTROL_PLANE.iter().chain(TOOLS).copied().collect();
    let tools = Tools::build(&names)?;
    let harbour = Harbour::start(&tools).await?;
    let world = World::start(Path::new(env!("CARGO_BIN_EXE_flotilla")), tools, Downstream::Bare).await?;
    let result = deploys(&world, &harbour).await;
    world.conclude(result)
}

async fn deploys(world: &World, harbour: &Harbour) -> anyhow::Result<()> {
    let (units, replica) = (world.units().await?, world.ready_replica("replica-1", 2).await?);
    let upstream = world.upstream.admin().await?;
    let secrets: Api<Secret> = Api::namespaced(upstream, &world.registration.cluster_namespace);
    let secret = async |name: &str, kind: &str, data: Value| {
        let secret = json!({"metadata": {"name": name}, "type": kind, "stringData": data});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
        anyhow::Ok(())
    };
    let publish = async |bundle: &Bundle, spec: Value, id: String| {
        let mut unit = bundle.bundle_deployment(&world.registration);
        unit.metadata.labels = None;
        let mut unit = serde_json::to_value(unit)?;
        for (key, value) in spec.as_object().context("fields")? {
            unit["spec"][key] = value.clone();
        }
        for key in ["deploymentID", "stagedDeploymentID"] {
            unit["spec"][key] = id.clone().into();
        }
        let units = world.publisher().await?;
        let params = PatchParams::apply("flotilla-harness").force();
        units.units().patch(&bundle.name, &params, &Patch::Apply(&unit)).await?;
        anyhow::Ok(())
    };

    // A HelmOp has no content, so that its deployment id begins with a colon.
    let op = HelmChartOptions {
        secret_name: "op".into(),
        ca_bundle: BASE64_STANDARD.encode(harbour.authority.pem()),
        ..HelmChartOptions::default()
    };
    let mut chart = Bundle::new("chart", NAMESPACE);
    chart.options.helm = Some(harbour.in_repository("^1"));
    let id = format!(":{}", options_hash(&chart.options));
    publish(&chart, json!({"helmChartOptions": op}), id).await?;
    let said = |name: &'static str, words: &'static str| {
        let units = &units;
        async move {
            units
                .until(&format!("{name} to say {words:?}"), BOUND, |live| {
                    let condition = live.get(name)?.condition("Deployed")?;
                    condition.message.contains(words).then_some(())
                })
                .await
        }
    };
    said("chart", "cannot read secret").await?;
    secret("op", "Opaque", json!({"username": USER, "password": PASSWORD})).await?;

    // Stored files; the agent's own credentials are the right ones.
    let stored = Bundle { resources: manifest("good").resources, ..Bundle::new("stored", NAMESPACE) };
    harbour.store(&stored.manifest(), &stored.manifest().id()).await?;
    let storage = json!({"reference": format!("{}/store", harbour.registry.host), "username": "deckhand",
        "password": "wrong", "agentUsername": USER, "agentPassword": PASSWORD, "insecure": "true"});
    secret(&stored.manifest().id(), STORAGE_TYPE, storage).await?;
    publish(&stored, json!({"ociContents": true}), stored.deployment_id()).await?;

    units.until_ready(["chart", "stored"], BOUND).await?;
    let maps: Api<ConfigMap> = Api::namespaced(world.downstream.admin().await?, NAMESPACE);
    let data = async |name: &str| {
        until(name, BOUND, async || Ok(maps.get_opt(name).await?.and_then(|map| map.data))).await
    };
    let deployed = data("chart").await?;
    ensure!(deployed["version"] == "1.2.0+b.1" && deployed["greeting"] == "ahoy", "{deployed:?}");
    ensure!(data("stored").await?["word"] == "good");

    what_is_in_no_content_is_rendered_and_compared_too(world)?;

    // Files that are not those of the id.
    let other = Bundle { resources: manifest("claimed").resources, ..Bundle::new("corrupt", NAMESPACE) };
    harbour.store(&manifest("bad"), &other.manifest().id()).await?;
    let storage = json!({"reference": format!("{}/store", harbour.registry.host), "username": USER,
        "password": PASSWORD, "cacerts": harbour.authority.pem()});
    secret("ocistorage", STORAGE_TYPE, storage).await?;
    publish(&other, json!({"ociContents": true}), other.deployment_id()).await?;
    said("corrupt", "invalid or corrupt manifest. Expecting id: ").await?;
    ensure!(!replica.log().contains(PASSWORD), "a password in the log");
    Ok(())
}

/// By the command line, which fetches as the agent does.
fn what_is_in_no_content_is_rendered_and_compared_too(world: &World) -> anyhow::Result<()> {
    let below = world.downstream.admin_kubeconfig().display().to_string();
    let run = |verb: &str, unit: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flotilla"));
        command.args([verb, unit, "--namespace", &world.registration.cluster_namespace]);
        command.args(["--downstream-kubeconfig", &below]);
        command.env("KUBECONFIG", world.upstream.admin_kubeconfig());
        let output = command.output().context("running flotilla")?;
        let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        ensure!(output.status.success(), "{verb} {unit}: {out}{err}");
        ensure!(!format!("{out}{err}").contains(PASSWORD), "a password is told");
        Ok(out)
    };
    for (unit, word) in [("bd/chart", "greeting: ahoy"), ("bd/stored", "word: good")] {
        let rendered = run("render", unit)?;
        ensure!(rendered.contains(word), "{rendered}");
        let changes = run("diff", unit)?;
        ensure!(changes.is_empty(), "what is deployed does not differ: {changes}");
    }
    Ok(())
}
