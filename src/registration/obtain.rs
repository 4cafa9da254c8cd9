// SPDX-License-Identifier: Apache-2.0
//! A registration at the start: the existing one, or one from the managed flow.

use std::time::Duration;

use futures::{Stream, StreamExt, future, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use tracing::{debug, warn};

use super::{
    Registration, RegistrationError, agent_config,
    existing::{self, NAME},
    managed::{self, BOOTSTRAP, Bootstrap},
    settings::Settings,
};
use crate::{
    telemetry::{
        chain,
        events::{EventType, reason},
    },
    upstream::{Access, Upstream},
};

/// A management cluster that does not answer must not keep a replica from starting: its registration is used as it is.
const LOOK: Duration = Duration::from_secs(3);
/// Seconds one watch call may last, so that a connection that died silently is noticed.
const CALL_SECONDS: u32 = 60;

/// Returns a registration that works, or at least is not known not to. An existing one is returned as it is.
///
/// Without one, and without a bootstrap Secret, this is an error at once. Otherwise it waits: for the controller, for a
/// better token, for better credentials; the readiness part and an Event say for what.
pub async fn obtain(local: &Client, settings: &Settings) -> Result<Registration, RegistrationError> {
    let mut changes: Option<stream::BoxStream<'static, ()>> = None;
    let (mut told, mut looked) = (String::new(), false);
    loop {
        let (cause, kind) = match attempt(local, settings).await {
            Ok(Some(registration)) => {
                settings.well();
                return Ok(registration);
            }
            Ok(None) => {
                // The second flow in a row that left nothing to use: somebody else is at work on the Secret.
                if std::mem::replace(&mut looked, true) {
                    tokio::time::sleep(settings.poll).await;
                }
                continue;
            }
            Err(error @ RegistrationError::Managed(_)) => (chain(&error), reason::REGISTRATION_FAILED),
            Err(error @ RegistrationError::Refused { .. }) => (chain(&error), reason::CREDENTIALS_REFUSED),
            Err(error) => return Err(error),
        };
        settings.ill(cause.clone());
        if told != cause {
            (settings.report)(EventType::Warning, kind, cause.clone());
            told = cause;
        }
        let changes = changes.get_or_insert_with(|| secrets(local, &settings.namespace).boxed());
        tokio::select! {
            _ = changes.next() => {}
            () = tokio::time::sleep(settings.pause()) => {}
        }
    }
}

/// One look, and one flow if it takes one; `None` calls for another look.
async fn attempt(local: &Client, settings: &Settings) -> Result<Option<Registration>, RegistrationError> {
    let namespace = settings.namespace.as_str();
    let judged = existing::secret(local, namespace).await?;
    let wanting = match &judged {
        None => existing::missing(namespace),
        Some(secret) => match existing::read(secret, namespace) {
            Err(error) => error,
            Ok(registration) => match refusal(&registration).await {
                None => {
                    if let Err(error) = managed::tidy(local, namespace, &registration).await {
                        warn!(cause = chain(&error), "the rest of a registration stays behind");
                    }
                    return Ok(Some(registration));
                }
                Some(source) => RegistrationError::Refused { namespace: namespace.to_owned(), source },
            },
        },
    };
    match register(local, settings, judged.as_ref()).await? {
        true => Ok(None),
        false => Err(wanting),
    }
}

/// Goes through the managed flow; false when there is no bootstrap Secret.
pub(super) async fn register(
    local: &Client,
    settings: &Settings,
    judged: Option<&Secret>,
) -> Result<bool, RegistrationError> {
    let bootstrap = Bootstrap::read(local, &settings.namespace).await.map_err(RegistrationError::Managed)?;
    let Some(bootstrap) = bootstrap else { return Ok(false) };
    let config = agent_config(local, &settings.namespace).await?;
    let outcome = managed::register(local, settings, &config, &bootstrap, judged)
        .await
        .map_err(RegistrationError::Managed)?;
    debug!(?outcome, "the managed flow has ended");
    Ok(true)
}

/// Why the management cluster refuses these credentials; `None` when it does not, or does not say.
async fn refusal(registration: &Registration) -> Option<crate::upstream::UpstreamError> {
    let upstream = match Upstream::connect(registration.kubeconfig.clone()).await {
        Ok(upstream) => upstream,
        Err(error) => return Some(error),
    };
    match tokio::time::timeout(LOOK, upstream.access()).await {
        Ok(Access::Refused(cause)) => Some(cause),
        Ok(Access::Granted | Access::Unknown(_)) | Err(_) => None,
    }
}

/// Every change of the two Secrets. Never ends; the first items tell what is there.
pub(super) fn secrets(local: &Client, namespace: &str) -> impl Stream<Item = ()> + Send + use<> {
    let one = |name: &str| {
        let api: Api<Secret> = Api::namespaced(local.clone(), namespace);
        let config =
            watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(CALL_SECONDS);
        watcher(api, config).default_backoff().filter_map(|event| {
            future::ready(match event {
                Ok(watcher::Event::Init | watcher::Event::InitDone) => None,
                Ok(_) => Some(()),
                Err(cause) => {
                    debug!(cause = chain(&cause), "the watch of the registration's Secrets failed");
                    None
                }
            })
        })
    };
    stream::select(one(NAME).boxed(), one(BOOTSTRAP).boxed())
}
