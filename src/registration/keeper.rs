// SPDX-License-Identifier: Apache-2.0
//! Keeps the credentials while the agent runs: a changed Secret is picked up, refused credentials are replaced.
//!
//! New ones are tried before they are used, and the old ones stay in use until then. Nothing here stops the work on
//! bundles: what was begun goes on and is settled under the new credentials.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    Registration, RegistrationError,
    existing::{self, NAME},
    obtain,
    settings::Settings,
};
use crate::{
    telemetry::{
        chain,
        events::{EventType, reason},
    },
    upstream::{Access, Upstream, UpstreamError},
};

/// Least time between two looks: a burst of refused calls is one reason.
const PACE: Duration = Duration::from_secs(1);
/// Credentials refused this often in a row are bad: rights are also withdrawn and given again within a moment.
const REFUSALS: u32 = 3;
/// Until the next look while something is wrong that no watch will tell.
const AGAIN: Duration = Duration::from_secs(30);

/// Name and namespace of this cluster's Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterName {
    /// Its name.
    pub name: String,
    /// The registration namespace.
    pub registration_namespace: String,
}

impl From<&Registration> for ClusterName {
    fn from(registration: &Registration) -> Self {
        Self {
            name: registration.cluster_name.clone(),
            registration_namespace: registration.cluster_registration_namespace.clone(),
        }
    }
}

/// What a look showed.
enum Look {
    /// All is well.
    Well,
    /// The credentials in use work, but something is to be said.
    Remark(String),
    /// Nothing is known of the management cluster now.
    Unknown,
    /// They are refused and nothing is there to replace them; the error says so.
    Bad(String),
    /// The flow ended: look again.
    Again,
}

/// The part of the agent that keeps its registration.
pub struct Keeper {
    local: Client,
    settings: Settings,
    upstream: Upstream,
    fingerprint: [u8; 32],
    cluster: watch::Sender<ClusterName>,
    moved: CancellationToken,
    told: String,
}

impl Keeper {
    /// `moved` is cancelled when the registration is another cluster namespace's by now: the process is to start anew.
    pub fn new(
        local: Client,
        settings: Settings,
        upstream: Upstream,
        registration: &Registration,
        moved: CancellationToken,
    ) -> Self {
        Self {
            local,
            settings,
            upstream,
            fingerprint: registration.fingerprint,
            cluster: watch::Sender::new(registration.into()),
            moved,
            told: String::new(),
        }
    }

    /// The Cluster this agent stands for, as it changes.
    pub fn cluster(&self) -> watch::Receiver<ClusterName> {
        self.cluster.subscribe()
    }

    /// Keeps until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep() => {}
        }
    }

    async fn keep(&mut self) {
        let mut secrets = obtain::secrets(&self.local, &self.settings.namespace).boxed();
        let mut refusals = self.upstream.refusals();
        let mut again: Option<Instant> = None;
        loop {
            let timer = async {
                match again {
                    Some(moment) => tokio::time::sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = secrets.next() => {}
                // While it is known, every call says it again.
                _ = refusals.changed(), if again.is_none() => {}
                () = timer => {}
            }
            let look = match self.look().await {
                Ok(look) => look,
                Err(error) => Look::Bad(chain(&error)),
            };
            again = match look {
                Look::Well => {
                    self.told.clear();
                    self.settings.well();
                    None
                }
                Look::Remark(text) => {
                    self.tell(text, reason::REGISTRATION_FAILED);
                    Some(Instant::now() + AGAIN)
                }
                Look::Bad(text) => {
                    self.tell(text, reason::CREDENTIALS_REFUSED);
                    Some(Instant::now() + self.settings.retry.min(AGAIN))
                }
                Look::Unknown => Some(Instant::now() + AGAIN),
                Look::Again => Some(Instant::now()),
            };
            tokio::time::sleep(PACE).await;
            refusals.mark_unchanged();
        }
    }

    fn tell(&mut self, text: String, kind: &'static str) {
        self.settings.ill(text.clone());
        if self.told != text {
            (self.settings.report)(EventType::Warning, kind, text.clone());
            self.told = text;
        }
    }

    /// Looks at the Secret and at what the credentials in use are worth; exchanges and registers as it takes.
    async fn look(&mut self) -> Result<Look, RegistrationError> {
        let namespace = self.settings.namespace.clone();
        let secret = existing::secret(&self.local, &namespace).await?;
        let remark = match &secret {
            None => Some(format!(
                "Secret {namespace}/{NAME} is gone: this replica works on with what it read, and cannot start again"
            )),
            Some(secret) => match existing::read(secret, &namespace) {
                Err(error) => Some(format!("{}: what was read before stays in use", chain(&error))),
                Ok(read) if read.fingerprint == self.fingerprint => None,
                Ok(read) => match self.change_to(&read).await {
                    Ok(()) => return Ok(Look::Well),
                    Err(cause) => Some(format!(
                        "the credentials that Secret {namespace}/{NAME} has now do not work, those from before stay \
                         in use: {cause}"
                    )),
                },
            },
        };
        match (self.access().await, remark) {
            (Access::Granted, None) => Ok(Look::Well),
            // A manager that takes the Secret away and leaves a bootstrap Secret asks for a registration.
            (Access::Granted, Some(_)) if secret.is_none() && self.register(None).await? => Ok(Look::Again),
            (Access::Granted, Some(remark)) => Ok(Look::Remark(remark)),
            (Access::Unknown(cause), _) => {
                debug!(cause = chain(&cause), "cannot look at the registration now");
                Ok(Look::Unknown)
            }
            (Access::Refused(source), _) => {
                warn!(cause = chain(&source), "the management cluster refuses this agent's credentials");
                self.settings.ill(format!("the credentials are refused: {}", chain(&source)));
                if self.register(secret.as_ref()).await? {
                    return Ok(Look::Again);
                }
                let error = RegistrationError::Refused { namespace, source };
                Ok(Look::Bad(chain(&error)))
            }
        }
    }

    async fn register(&self, judged: Option<&Secret>) -> Result<bool, RegistrationError> {
        obtain::register(&self.local, &self.settings, judged).await
    }

    /// What the credentials in use are worth; a refusal counts when it stands.
    async fn access(&self) -> Access {
        for _ in 1..REFUSALS {
            match self.upstream.access().await {
                Access::Refused(_) => tokio::time::sleep(PACE).await,
                other => return other,
            }
        }
        self.upstream.access().await
    }

    /// Tries new credentials, and uses them if they work.
    async fn change_to(&mut self, read: &Registration) -> Result<(), String> {
        let text = |error: UpstreamError| chain(&error);
        let next = Upstream::connect(read.kubeconfig.clone()).await.map_err(text)?;
        match next.access().await {
            Access::Granted => {}
            Access::Refused(cause) | Access::Unknown(cause) => return Err(text(cause)),
        }
        if next.namespace() != self.upstream.namespace() {
            warn!(
                from = self.upstream.namespace(),
                to = next.namespace(),
                "this cluster is registered for another cluster namespace now: ending, to start anew"
            );
            self.moved.cancel();
            return Ok(());
        }
        self.upstream.exchange(&next);
        self.fingerprint = read.fingerprint;
        self.cluster.send_replace(read.into());
        info!(cluster = read.cluster_name, "new credentials are in use");
        let note = format!("the credentials of Secret {NAME} were changed and are in use");
        (self.settings.report)(EventType::Normal, reason::CREDENTIALS_CHANGED, note);
        Ok(())
    }
}
