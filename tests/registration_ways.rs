// SPDX-License-Identifier: Apache-2.0
//! What can stand in the way of a registration: a Secret that cannot be changed, a controller that does not answer, a
//! token that is over, an authority that is not known.
//!
//! Fleet's controller is played by a stand-in (`dev/harness/registrar.rs`) on a real API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use flotilla::registration::managed::{BOOTSTRAP, INTENT};
use flotilla::registration::{self, Settings};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

#[path = "../dev/harness/mod.rs"]
mod harness;

use harness::fleet::{self, REGISTRATION_NAMESPACE};
use harness::replica::Replica;
use harness::stage::{Stage, settings};
use harness::world::{Downstream, World};
use harness::{GENEROUS, Tools, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_hindered_registration_says_what_is_wrong_and_goes_on_when_it_can() -> anyhow::Result<()> {
    let tools = Tools::build(Tools::CONTROL_PLANE)?;
    let binary = Path::new(env!("CARGO_BIN_EXE_flotilla"));
    let world = World::start(binary, tools, Downstream::Bare).await?;
    let result = stories(&world).await;
    world.conclude(result)
}

async fn stories(world: &World) -> anyhow::Result<()> {
    let stage = Stage::new(world).await?;
    tokio::try_join!(
        stage.an_immutable_secret_is_replaced_as_a_whole(),
        stage.a_request_that_is_not_granted_is_followed_by_another(),
        stage.an_expired_token_is_told_and_a_new_one_is_used_at_once(),
        stage.the_mode_says_whom_to_trust(),
    )?;
    Ok(())
}

impl Stage<'_> {
    async fn an_immutable_secret_is_replaced_as_a_whole(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "immutable";
        self.offer(NAMESPACE, NAMESPACE).await?;
        self.useless_secret(NAMESPACE, &self.world.upstream.url(), true).await?;
        let got = registration::obtain(&self.local, &settings(NAMESPACE)).await?;
        ensure!(got.cluster_name == self.cluster_name(NAMESPACE).await?, "{}", got.cluster_name);
        self.asked_once(NAMESPACE).await?;
        let new = self.secret(NAMESPACE, registration::SECRET).await?.context("no Secret")?;
        ensure!(new.immutable == Some(true) && new.labels().contains_key("kept"), "{:?}", new.metadata);
        Ok(())
    }

    async fn a_request_that_is_not_granted_is_followed_by_another(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "patient";
        self.offer(NAMESPACE, NAMESPACE).await?;
        self.registrar.hold(NAMESPACE, true);
        // Creation times upstream are whole seconds: the younger one of two requests must be known.
        let settings = Settings { patience: Duration::from_millis(1200), ..settings(NAMESPACE) };
        let two = until("a second request", GENEROUS, async || {
            let requests = self.registrar.requests(NAMESPACE).await?.len();
            Ok((requests >= 2).then(|| self.registrar.hold(NAMESPACE, false)))
        });
        let (got, two) = tokio::join!(registration::obtain(&self.local, &settings), two);
        two?;
        got?;
        let intent = self.secret(NAMESPACE, INTENT).await?;
        ensure!(intent.is_none() && self.secret(NAMESPACE, BOOTSTRAP).await?.is_none());
        Ok(())
    }

    async fn an_expired_token_is_told_and_a_new_one_is_used_at_once(&self) -> anyhow::Result<()> {
        const NAMESPACE: &str = "expired";
        self.offer(NAMESPACE, NAMESPACE).await?;
        let values = json!({"data": null, "stringData": {
            "token": "expired", "tokenName": NAMESPACE, "clusterNamespace": REGISTRATION_NAMESPACE,
            "systemRegistrationNamespace": "s", "apiServerURL": self.world.upstream.url(),
            "apiServerCA": self.world.upstream.ca_pem(),
        }});
        let secrets: Api<Secret> = Api::namespaced(self.local.clone(), NAMESPACE);
        secrets.patch(BOOTSTRAP, &PatchParams::default(), &Patch::Merge(&values)).await?;
        // The flow is not tried again by itself as long as this test lasts.
        let (told, mut told_what) = tokio::sync::mpsc::unbounded_channel();
        let report = Arc::new(move |_, reason: &'static str, note| drop(told.send((reason, note))));
        let settings = Settings { retry: 2 * GENEROUS, report, ..settings(NAMESPACE) };
        let renewed = async {
            let (reason, note) = told_what.recv().await.context("nothing was told")?;
            ensure!(reason == "RegistrationFailed", "{reason}: {note}");
            ensure!(note.contains("refuses the token of Secret fleet-agent-bootstrap"), "{note}");
            let offer = self.registrar.bootstrap(NAMESPACE, NAMESPACE).await?;
            let patch = Patch::Merge(json!({"data": null, "stringData": offer["stringData"]}));
            secrets.patch(BOOTSTRAP, &PatchParams::default(), &patch).await?;
            Ok(())
        };
        let flow = tokio::time::timeout(GENEROUS, registration::obtain(&self.local, &settings));
        let (got, renewed) = tokio::join!(flow, renewed);
        renewed?;
        got.context("it waits in spite of the new token")??;
        self.asked_once(NAMESPACE).await
    }

    async fn the_mode_says_whom_to_trust(&self) -> anyhow::Result<()> {
        let known = self.world.dir().join("known.pem");
        std::fs::write(&known, self.world.upstream.ca_pem())?;
        let unknown = self.world.dir().join("unknown.pem");
        std::fs::write(&unknown, self.world.downstream.ca_pem())?;
        // The mode, whether the authority is given, whether the system knows it; then whether the agent keeps what was
        // given, or what it says.
        let table: [(&str, bool, bool, Result<bool, &str>); 7] = [
            ("system-store", true, true, Ok(false)),
            ("system-store", true, false, Ok(true)),
            ("system-store", false, true, Ok(false)),
            ("system-store", false, false, Err("cannot create ClusterRegistration")),
            ("strict", true, true, Ok(true)),
            ("strict", false, true, Err("has no apiServerCA")),
            ("unheard-of", true, false, Ok(true)),
        ];
        stream::iter(table.into_iter().enumerate())
            .map(|(number, (mode, given, knows, expected))| {
                let system = if knows { &known } else { &unknown };
                async move {
                    let row = format!("trust-{number}");
                    let seen = self.trusted(&row, mode, given, system, expected.err()).await;
                    let seen = seen.with_context(|| format!("{mode}, given {given}, known {knows}"))?;
                    ensure!(seen == expected.ok(), "{mode}, given {given}, known {knows}: {seen:?}");
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(4)
            .try_collect()
            .await
    }

    /// Whether a process that registers so puts the authority into its kubeconfig; `None` when it says `refusal`.
    async fn trusted(
        &self,
        namespace: &str,
        mode: &str,
        given: bool,
        system: &Path,
        refusal: Option<&str>,
    ) -> anyhow::Result<Option<bool>> {
        self.offer(namespace, "trust").await?;
        let (url, ca) = (self.world.upstream.url(), if given { self.world.upstream.ca_pem() } else { "" });
        fleet::apply(&self.local, self.registrar.bootstrap_at(&url, ca, "trust", namespace).await?).await?;
        let config = json!({"clientID": namespace, "agentTLSMode": mode}).to_string();
        let maps: Api<ConfigMap> = Api::namespaced(self.local.clone(), namespace);
        let patch = json!({"data": {"config": config}});
        maps.patch("fleet-agent", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let system = system.to_str().context("a path that is no text")?;
        let replica = Replica::spawn(
            &self.world.binary,
            namespace,
            &self.world.registration.agent_kubeconfig,
            namespace,
            &[],
            &[("SSL_CERT_FILE", system)],
            &self.world.dir().join(format!("{namespace}.log")),
        )?;
        if let Some(refusal) = refusal {
            self.says(&replica, refusal).await?;
            return Ok(None);
        }
        self.says(&replica, "[+]registration ok").await?;
        self.says(&replica, "[+]watch ok").await?;
        let secret = self.secret(namespace, registration::SECRET).await?.context("no Secret")?;
        let kubeconfig =
            secret.data.and_then(|mut data| data.remove("kubeconfig")).context("no kubeconfig")?;
        Ok(Some(String::from_utf8(kubeconfig.0)?.contains("certificate-authority-data")))
    }
}
