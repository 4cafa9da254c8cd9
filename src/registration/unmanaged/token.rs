// SPDX-License-Identifier: Apache-2.0
//! Tokens of the agent's account. Each stands or falls with one Secret, so that a single one can be taken away.

use std::time::Duration;

use k8s_openapi::api::{
    authentication::v1::{
        BoundObjectReference, TokenRequest, TokenRequestSpec, TokenReview, TokenReviewSpec,
    },
    core::v1::{Secret, ServiceAccount},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};

use super::{
    Plan, UnmanagedError,
    account::ACCOUNT,
    flow::refuse_managed,
    upstream::{self, TOKEN_LABEL},
    write::{self, Done, Mode},
};

/// The token controller fills a Secret within a moment, where there is one.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time in which a fresh token must be known to the API server, and between two looks.
const KNOWN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(200));
const TYPE: &str = "kubernetes.io/service-account-token";

/// How long a token is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// As long as its Secret is there.
    #[default]
    Unlimited,
    /// The same, and no longer than this. The API server may have a limit of its own.
    Limited(Duration),
}

/// A token. Not `Debug`: it must not be told.
pub(super) struct Minted {
    pub token: String,
    /// Name of the Secret it stands and falls with.
    pub secret: String,
    pub done: Done,
}

/// Makes a token under a name that was never used: one made of names alone would otherwise come back to life.
pub(super) async fn mint(
    client: &Client,
    plan: &Plan,
    lifetime: Lifetime,
    word: u64,
) -> Result<Minted, UnmanagedError> {
    let name = format!("{}-{:08x}", super::TOKEN_SECRET, word & 0xffff_ffff);
    let (token, done) = match lifetime {
        Lifetime::Unlimited => {
            let done = write::put(client, &upstream::token_secret(plan, &name), Mode::Create, false).await?;
            (filled(client, plan, &name).await?, done)
        }
        Lifetime::Limited(limit) => {
            let done = write::put(client, &handle(plan, &name), Mode::Create, false).await?;
            (request(client, plan, &name, limit).await?, done)
        }
    };
    Ok(Minted { token, secret: name, done })
}

/// A Secret without contents, to which a token is bound.
fn handle(plan: &Plan, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": {
        "name": name, "namespace": plan.cluster_namespace, "labels": {TOKEN_LABEL: "true"},
    }})
}

async fn filled(client: &Client, plan: &Plan, name: &str) -> Result<String, UnmanagedError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &plan.cluster_namespace);
    let place = format!("{}/{name}", plan.cluster_namespace);
    let ready = await_condition(secrets, name, |secret: Option<&Secret>| {
        secret.is_some_and(|secret| token(secret).is_some())
    });
    let late = || UnmanagedError::NoToken { secret: place.clone(), waited: PATIENCE };
    match tokio::time::timeout(PATIENCE, ready).await {
        Ok(Ok(secret)) => secret.as_ref().and_then(token).ok_or_else(late),
        Ok(Err(error)) => Err(UnmanagedError::Useless {
            cause: format!("watch Secret {place}: {}", crate::telemetry::chain(&error)),
        }),
        Err(_) => Err(late()),
    }
}

async fn request(
    client: &Client,
    plan: &Plan,
    handle: &str,
    limit: Duration,
) -> Result<String, UnmanagedError> {
    let (namespace, account) = plan.account();
    let place = format!("{namespace}/{account}");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let reading = UnmanagedError::secret(format!("read Secret {namespace}/{handle}"));
    let uid = secrets.get_metadata(handle).await.map_err(reading)?.metadata.uid;
    let spec = TokenRequestSpec {
        expiration_seconds: Some(i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)),
        bound_object_ref: Some(BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Secret".into()),
            name: Some(handle.to_owned()),
            uid,
        }),
        ..TokenRequestSpec::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let asking = UnmanagedError::secret(format!("ask for a token of ServiceAccount {place}"));
    let answer =
        accounts.create_token_request(account, &PostParams::default(), &request).await.map_err(asking)?;
    let token = answer.status.and_then(|status| status.token).filter(|token| !token.is_empty());
    token.ok_or(UnmanagedError::EmptyToken { account: place })
}

/// A token for a printed Secret: the newest one, or a fresh one that is bound to a Secret of its own.
pub async fn to_print(
    client: &Client,
    plan: &Plan,
    lifetime: Lifetime,
    word: u64,
) -> Result<String, UnmanagedError> {
    refuse_managed(client, plan).await?;
    match lifetime {
        Lifetime::Unlimited => current(client, plan).await,
        Lifetime::Limited(_) => Ok(mint(client, plan, lifetime, word).await?.token),
    }
}

/// The newest token that stands in a Secret; those that were asked for stand in none.
async fn current(client: &Client, plan: &Plan) -> Result<String, UnmanagedError> {
    let mut secrets = secrets(client, plan).await?;
    secrets.retain(|secret| {
        secret.type_.as_deref() == Some(TYPE) && secret.metadata.deletion_timestamp.is_none()
    });
    secrets.sort_by_key(|secret| secret.creation_timestamp().map(|time| time.0));
    let newest = secrets.pop().ok_or_else(|| UnmanagedError::NotRegistered { cluster: plan.cluster() })?;
    match token(&newest) {
        Some(token) => Ok(token),
        None => filled(client, plan, &newest.name_any()).await,
    }
}

/// The Secrets of all tokens.
async fn secrets(client: &Client, plan: &Plan) -> Result<Vec<Secret>, UnmanagedError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &plan.cluster_namespace);
    let params = ListParams::default().labels(&format!("{TOKEN_LABEL}=true"));
    let listing = UnmanagedError::secret(format!("list Secrets in {}", plan.cluster_namespace));
    Ok(api.list(&params).await.map_err(listing)?.items)
}

/// Ends all tokens but the one of `but`, by deleting their Secrets.
pub(super) async fn end(
    client: &Client,
    plan: &Plan,
    but: Option<&str>,
) -> Result<Vec<Done>, UnmanagedError> {
    let mut done = Vec::new();
    for secret in secrets(client, plan).await? {
        let name = secret.name_any();
        if but == Some(name.as_str()) {
            continue;
        }
        let object = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": plan.cluster_namespace}});
        done.extend(write::delete(client, &object).await?);
    }
    Ok(done)
}

/// Whether the management cluster takes the token for the agent's account.
pub(super) async fn is_known(client: &Client, plan: &Plan, token: &str) -> Result<bool, UnmanagedError> {
    let review = TokenReview {
        spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
        ..TokenReview::default()
    };
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let asking = UnmanagedError::secret("ask whether a token is valid (TokenReview)");
    let status = reviews.create(&PostParams::default(), &review).await.map_err(asking)?.status;
    Ok(status.is_some_and(|status| {
        status.authenticated == Some(true)
            && status.user.and_then(|user| user.username).as_deref() == Some(plan.user().as_str())
    }))
}

/// Waits for what a fresh token takes to be known to all API servers' memories.
pub(super) async fn until_known(client: &Client, plan: &Plan, token: &str) -> Result<(), UnmanagedError> {
    let looks = async {
        while !is_known(client, plan, token).await? {
            tokio::time::sleep(KNOWN.1).await;
        }
        Ok(())
    };
    tokio::time::timeout(KNOWN.0, looks).await.unwrap_or_else(|_| {
        let cause = format!("the management cluster does not take the token for {ACCOUNT}'s");
        Err(UnmanagedError::Useless { cause })
    })
}

fn token(secret: &Secret) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get("token")?.0;
    String::from_utf8(bytes.clone()).ok().filter(|token| !token.is_empty())
}
