// SPDX-License-Identifier: Apache-2.0
//! What is pulled from an OCI registry: tags, manifests, blobs. By the distribution specification, sizes bounded,
//! digests checked.

use std::collections::BTreeMap;

use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{LINK, WWW_AUTHENTICATE},
};
use reqwest::Url;
use serde::{Deserialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use super::{
    access::Access,
    error::SourceError,
    net::{self, Answer, Net, Question, plain},
    reference::{Challenge, Reference},
};
use crate::api::hex;

/// Of a manifest and of a page of tags, in bytes: what registries themselves take.
const MAX_MANIFEST: u64 = 4 << 20;
/// Of a token's answer.
const MAX_TOKEN: u64 = 256 << 10;
/// Of one list of tags.
const MAX_PAGES: usize = 100;

const MANIFEST_TYPES: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json";

/// What a manifest says of a layer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Layer {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(deserialize_with = "crate::api::null_default")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default, deserialize_with = "crate::api::null_default")]
    layers: Vec<Layer>,
}

/// One repository of a registry, with what it gave us to show.
pub(super) struct Registry<'a> {
    net: &'a Net,
    access: &'a Access,
    repository: String,
    base: Url,
    shown: Option<HeaderValue>,
}

impl<'a> Registry<'a> {
    /// Nothing is asked yet.
    pub fn new(net: &'a Net, access: &'a Access, reference: &Reference) -> Result<Self, SourceError> {
        let scheme = if access.plain_http { "http" } else { "https" };
        let base = format!("{scheme}://{}/v2/{}/", reference.api_host(), reference.repository);
        let base = Url::parse(&base)
            .map_err(|error| SourceError::Options(format!("{:?} is no registry: {error}", reference.host)))?;
        Ok(Self { net, access, repository: reference.repository.clone(), base, shown: None })
    }

    /// The repository, for people.
    pub fn name(&self) -> String {
        plain(&self.base)
    }

    /// All tags, in the registry's order.
    pub async fn tags(&mut self) -> Result<Vec<String>, SourceError> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default, deserialize_with = "crate::api::null_default")]
            tags: Vec<String>,
        }
        let (mut tags, mut next) = (Vec::new(), Some(self.at("tags/list?n=1000")?));
        for _ in 0..MAX_PAGES {
            let Some(url) = next else { return Ok(tags) };
            let answer = self.get(url.clone(), "application/json", MAX_MANIFEST).await?;
            let page: Page = decode(&url, &answer.body)?;
            tags.extend(page.tags);
            next = following(&url, &answer.headers);
        }
        Err(SourceError::Answer { url: self.name(), reason: format!("more than {MAX_PAGES} pages of tags") })
    }

    /// The layers of the manifest of this tag or digest.
    pub async fn layers(&mut self, tag: &str) -> Result<Vec<Layer>, SourceError> {
        let url = self.at(&format!("manifests/{tag}"))?;
        let answer = self.get(url.clone(), MANIFEST_TYPES, MAX_MANIFEST).await?;
        if tag.starts_with("sha256:") {
            check(&url, &answer.body, tag)?;
        }
        Ok(decode::<Manifest>(&url, &answer.body)?.layers)
    }

    /// The bytes of a layer; larger ones than `limit` are not asked for.
    pub async fn blob(&mut self, layer: &Layer, limit: u64) -> Result<Vec<u8>, SourceError> {
        let url = self.at(&format!("blobs/{}", layer.digest))?;
        if layer.size > limit {
            return Err(SourceError::TooLarge { url: plain(&url), limit });
        }
        let answer = self.get(url.clone(), "*/*", layer.size).await?;
        check(&url, &answer.body, &layer.digest)?;
        Ok(answer.body)
    }

    fn at(&self, path: &str) -> Result<Url, SourceError> {
        let reason = |error| SourceError::Answer { url: self.name(), reason: format!("{path:?}: {error}") };
        // A digest has a colon, which would make it a scheme.
        self.base.join(&format!("./{path}")).map_err(reason)
    }

    async fn get(&mut self, url: Url, accept: &'static str, limit: u64) -> Result<Answer, SourceError> {
        let question =
            |authorization| Question { url: url.clone(), authorization, accept, known: None, limit };
        let mut answer = self.net.ask(self.access, question(self.shown.clone())).await?;
        if answer.status == StatusCode::UNAUTHORIZED {
            // Also when something was shown: tokens end.
            self.shown = self.asked_for(&answer.headers).await?;
            if self.shown.is_some() {
                answer = self.net.ask(self.access, question(self.shown.clone())).await?;
            }
        }
        if answer.status.is_success() {
            Ok(answer)
        } else {
            Err(SourceError::Status { url: plain(&url), status: answer.status })
        }
    }

    /// What the registry wants to see, if we have it.
    async fn asked_for(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, SourceError> {
        let challenges: Vec<_> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| Challenge::parse(value.to_str().ok()?))
            .collect();
        for challenge in &challenges {
            if let Challenge::Bearer { realm, service, scope } = challenge {
                return self.token(realm, service, scope).await.map(Some);
            }
        }
        Ok(challenges.first().and_then(|_| net::basic(self.access)))
    }

    /// Asks the service that the registry names; name and password go there, as they do for every client.
    async fn token(&self, realm: &str, service: &str, scope: &str) -> Result<HeaderValue, SourceError> {
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let unusable = |reason: &str| SourceError::Answer { url: self.name(), reason: reason.to_owned() };
        let mut url = Url::parse(realm)
            .map_err(|error| unusable(&format!("where tokens are got is no URL: {error}")))?;
        let _ = url.set_username("");
        let _ = url.set_password(None);
        match url.scheme() {
            "https" => {}
            "http" if self.base.scheme() == "http" => {}
            _ => return Err(unusable("it sends to another service for a token without TLS")),
        }
        let own = format!("repository:{}:pull", self.repository);
        let scope = if scope.is_empty() { &own } else { scope };
        if !service.is_empty() {
            url.query_pairs_mut().append_pair("service", service);
        }
        url.query_pairs_mut().append_pair("scope", scope);
        let question = Question {
            url: url.clone(),
            authorization: net::basic(self.access),
            accept: "application/json",
            known: None,
            limit: MAX_TOKEN,
        };
        let body = self.net.get(self.access, question).await?;
        let token: Token = decode(&url, &body)?;
        token
            .token
            .or(token.access_token)
            .and_then(|token| net::secret(&format!("Bearer {token}")))
            .ok_or_else(|| SourceError::Answer { url: plain(&url), reason: "no token in it".into() })
    }
}

/// The next page, which is on the same server.
fn following(url: &Url, headers: &HeaderMap) -> Option<Url> {
    let link = headers.get(LINK)?.to_str().ok()?;
    let (target, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
    let next = url.join(target).ok()?;
    (rest.contains("next") && next.origin() == url.origin()).then_some(next)
}

/// No text of the answer goes into the error: a token's answer is a secret.
fn decode<T: DeserializeOwned>(url: &Url, body: &[u8]) -> Result<T, SourceError> {
    serde_json::from_slice(body).map_err(|error| SourceError::Answer {
        url: plain(url),
        reason: format!("it is not the JSON it should be (column {}, line {})", error.column(), error.line()),
    })
}

/// Compares with a digest, with or without its `sha256:`.
pub(super) fn check(url: &Url, bytes: &[u8], expected: &str) -> Result<(), SourceError> {
    let hash = expected.strip_prefix("sha256:").unwrap_or(expected);
    let actual = hex(&Sha256::digest(bytes));
    if actual.eq_ignore_ascii_case(hash) {
        return Ok(());
    }
    Err(SourceError::Digest {
        url: plain(url),
        actual: format!("sha256:{actual}"),
        expected: expected.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_taken_from_the_same_server_only() {
        let url = Url::parse("https://r.test/v2/a/tags/list?n=1").unwrap();
        let next = |link: &'static str| {
            let headers = HeaderMap::from_iter([(LINK, HeaderValue::from_static(link))]);
            following(&url, &headers).map(String::from)
        };
        assert_eq!(
            next("</v2/a/tags/list?last=1&n=1>; rel=\"next\"").as_deref(),
            Some("https://r.test/v2/a/tags/list?last=1&n=1")
        );
        assert_eq!(next("<https://evil.test/v2/a/tags/list>; rel=\"next\""), None);
        assert_eq!(next("</v2/a>; rel=\"prev\""), None);
    }

    #[test]
    fn a_digest_is_compared_with_or_without_its_algorithm() {
        let url = Url::parse("https://u:p@r.test/x").unwrap();
        let sum = hex(&Sha256::digest(b"x"));
        assert!(check(&url, b"x", &sum).is_ok() && check(&url, b"x", &format!("sha256:{sum}")).is_ok());
        let error = check(&url, b"y", &sum).unwrap_err().to_string();
        assert!(error.starts_with("https://r.test/x does not match its digest: got sha256:"), "{error}");
        assert!(check(&url, b"x", "sha512:00").is_err());
    }
}
