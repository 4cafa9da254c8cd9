// SPDX-License-Identifier: Apache-2.0
//! Bounded downloads over HTTP: limits of size and time, redirects that give nothing away, proxies of the environment.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{ACCEPT, AUTHORIZATION, IF_NONE_MATCH},
};
use reqwest::{Certificate, Client, Url, redirect::Policy};
use tokio::sync::Semaphore;

use super::{access::Access, error::SourceError};

/// To a connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two pieces of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Of one request with its redirects.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Go's limit.
const MAX_REDIRECTS: usize = 10;
/// At once: each may hold a chart in memory.
const DOWNLOADS: usize = 8;
/// Kept for their connections, one for each set of authorities.
const CLIENTS: usize = 32;

/// What is asked for.
pub(super) struct Question {
    pub url: Url,
    pub authorization: Option<HeaderValue>,
    pub accept: &'static str,
    /// The entity tag of what is there already: 304 if it is still the same.
    pub known: Option<HeaderValue>,
    /// Bytes that are taken.
    pub limit: u64,
}

/// What came back. The body only of a success.
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Clients by authorities and whether certificates are checked.
pub(super) struct Net {
    clients: Mutex<HashMap<(Vec<u8>, bool), Client>>,
    permits: Semaphore,
}

impl Net {
    pub fn new() -> Self {
        Self { clients: Mutex::default(), permits: Semaphore::new(DOWNLOADS) }
    }

    /// Asks once; whatever is answered is an answer.
    pub async fn ask(&self, access: &Access, question: Question) -> Result<Answer, SourceError> {
        let Question { mut url, authorization, accept, known, limit } = question;
        if authorization.is_some() {
            // The client would send a URL's own name and password beside it.
            let _ = url.set_username("");
            let _ = url.set_password(None);
        }
        let name = plain(&url);
        let client = self
            .client(access)
            .map_err(|source| SourceError::Client { url: name.clone(), source: source.without_url() })?;
        let transfer = |source: reqwest::Error| SourceError::Transfer {
            url: name.clone(),
            source: source.without_url(),
        };
        let mut request = client.get(url).header(ACCEPT, accept);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(known) = known {
            request = request.header(IF_NONE_MATCH, known);
        }
        let mut response = request.send().await.map_err(transfer)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        if status.is_success() {
            let too_large = || SourceError::TooLarge { url: name.clone(), limit };
            if response.content_length().is_some_and(|length| length > limit) {
                return Err(too_large());
            }
            // Only now, so that a server that says nothing keeps nobody waiting. The semaphore is never closed.
            let _permit = self.permits.acquire().await;
            while let Some(piece) = response.chunk().await.map_err(transfer)? {
                if (body.len() + piece.len()) as u64 > limit {
                    return Err(too_large());
                }
                body.extend_from_slice(&piece);
            }
        }
        Ok(Answer { status, headers, body })
    }

    /// Asks once, and takes only success.
    pub async fn get(&self, access: &Access, question: Question) -> Result<Vec<u8>, SourceError> {
        let url = plain(&question.url);
        let answer = self.ask(access, question).await?;
        if answer.status.is_success() {
            Ok(answer.body)
        } else {
            Err(SourceError::Status { url, status: answer.status })
        }
    }

    fn client(&self, access: &Access) -> Result<Client, reqwest::Error> {
        let key = (access.authorities.clone(), access.skip_verify);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let client = build(access)?;
        if clients.len() >= CLIENTS {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }
}

/// The system's authorities and those given; a machine without any trusts those given alone.
fn build(access: &Access) -> Result<Client, reqwest::Error> {
    // Fails if there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let given = Certificate::from_pem_bundle(&access.authorities)?;
    let builder = || {
        Client::builder()
            .user_agent(concat!("flotilla/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            // It would tell the next server the query of the last.
            .referer(false)
            .redirect(redirects())
            .tls_danger_accept_invalid_certs(access.skip_verify)
    };
    builder().tls_certs_merge(given.clone()).build().or_else(|_| builder().tls_certs_only(given).build())
}

/// Credentials do not follow to another host, which the client sees to; nor does anything go on without TLS.
fn redirects() -> Policy {
    Policy::custom(|attempt| {
        if attempt.previous().len() > MAX_REDIRECTS {
            return attempt.error("too many redirects");
        }
        let secure = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
        if secure && attempt.url().scheme() != "https" {
            return attempt.error("a redirect from https to http is not followed");
        }
        attempt.follow()
    })
}

/// A URL for people: without user, password, query and fragment.
pub(super) fn plain(url: &Url) -> String {
    let mut url = url.clone();
    // Fails for URLs that have none.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// The credentials of the access, for one who asks for them in this form.
pub(super) fn basic(access: &Access) -> Option<HeaderValue> {
    if access.username.is_empty() {
        return None;
    }
    let pair = BASE64_STANDARD.encode(format!("{}:{}", access.username, access.password));
    secret(&format!("Basic {pair}"))
}

/// A header that is not shown in any debug print; `None` if it cannot be one.
pub(super) fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_for_people_has_no_secrets() {
        let url = Url::parse("https://user:pass@charts.test:8443/a/x.tgz?token=t#f").unwrap();
        assert_eq!(plain(&url), "https://charts.test:8443/a/x.tgz");
    }

    #[test]
    fn credentials_are_not_debug_printed() {
        let access = Access { username: "u".into(), password: "p".into(), ..Access::default() };
        let header = basic(&access).unwrap();
        assert_eq!(header, "Basic dTpw");
        assert!(!format!("{header:?}").contains("dTpw"));
        assert!(basic(&Access::default()).is_none());
    }

    #[test]
    fn authorities_that_are_no_pem_are_an_error() {
        let broken = "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n";
        assert!(build(&Access { authorities: broken.into(), ..Access::default() }).is_err());
        assert!(build(&Access::default()).is_ok());
    }
}
