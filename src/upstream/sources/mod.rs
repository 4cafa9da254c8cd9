// SPDX-License-Identifier: Apache-2.0
//! Where a bundle's files come from when they are in no Content: an OCI registry, or a chart that the agent fetches
//! itself (HelmOp).

mod access;
mod cache;
mod error;
mod net;
mod reference;
mod registry;
mod repository;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use http::header::ETAG;
use reqwest::{StatusCode, Url};

pub use access::{Access, AccessError, Data, STORAGE_TYPE};
pub use error::SourceError;

use self::{
    cache::Cache,
    net::{Net, Question, plain},
    reference::Reference,
    registry::Registry,
    repository::{Index, Indexes},
};
use crate::{
    api::{
        HelmOptions,
        manifest::{MAX_UNPACKED, Manifest},
    },
    render::{
        self, MAX_CHART,
        engine::{Engine, ResolveRequest},
    },
};

/// Of all requests for one bundle. Fleet's limit.
const DEADLINE: Duration = Duration::from_secs(300);

/// Layers that hold a chart; the second is that of old registries.
const CHART_LAYERS: [&str; 2] =
    ["application/vnd.cncf.helm.chart.content.v1.tar+gzip", "application/tar+gzip"];

/// Fetches files. Clones share connections and what was fetched lately.
#[derive(Clone)]
pub struct Sources(Arc<Shared>);

struct Shared {
    net: Net,
    cache: Cache,
    indexes: Indexes,
    engine: Engine,
}

impl Sources {
    /// The engine chooses among versions.
    pub fn new(engine: Engine) -> Self {
        Self(Arc::new(Shared { net: Net::new(), cache: Cache::new(), indexes: Indexes::default(), engine }))
    }

    /// The bundle of this manifest id, from the registry that `reference` names. It has the id, or it is an error.
    pub async fn contents(
        &self,
        reference: &str,
        access: &Access,
        id: &str,
    ) -> Result<Arc<Manifest>, SourceError> {
        // An id is the digest of the files: no other registry has others under it.
        in_time(self.0.cache.get(id, self.0.pull(reference, access, id))).await
    }

    /// The bundle that the chart of these options makes.
    pub async fn chart(&self, helm: &HelmOptions, access: &Access) -> Result<Arc<Manifest>, SourceError> {
        in_time(self.0.chart(helm, access)).await
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => Err(SourceError::Deadline(DEADLINE.as_secs())),
    }
}

impl Shared {
    async fn pull(&self, reference: &str, access: &Access, id: &str) -> Result<Manifest, SourceError> {
        let repository = format!("{}/{id}", reference.trim_end_matches('/'));
        // Only the id can be at fault: the rest of it was read from the Secret.
        let reference = Reference::parse(&repository)
            .ok_or_else(|| SourceError::Options(format!("{id:?} cannot be the name of a repository")))?;
        let mut registry = Registry::new(&self.net, access, &reference)?;
        let layers = registry.layers("latest").await?;
        let unusable = |reason: String| SourceError::Answer { url: registry.name(), reason };
        // Fleet's texts.
        let [layer] = &layers[..] else {
            return Err(unusable(format!("expected 1 layer in OCI manifest, {} found", layers.len())));
        };
        if layer.annotations.len() != 1 {
            let found = layer.annotations.len();
            return Err(unusable(format!("expecting 1 Annotation in layer descriptor. Found {found}")));
        }
        if layer.annotations.get("id").map(String::as_str) != Some(id) {
            return Err(unusable("could not find expected id in Descriptor's annotations".into()));
        }
        let bytes = registry.blob(layer, MAX_UNPACKED).await?;
        let manifest = Manifest::from_bytes(&bytes, &registry.name()).map_err(SourceError::Manifest)?;
        let actual = manifest.id();
        if actual != id {
            return Err(SourceError::Id { expected: id.to_owned(), actual });
        }
        Ok(manifest)
    }

    /// By Fleet's rules: a repository that is `oci://…` is the chart itself; without a repository the chart is a URL.
    async fn chart(&self, helm: &HelmOptions, access: &Access) -> Result<Arc<Manifest>, SourceError> {
        let (repository, chart) = (helm.repo.as_str(), helm.chart.as_str());
        if repository.starts_with("oci://") {
            self.by_registry("helm.repo", repository, &helm.version, helm, access).await
        } else if !repository.is_empty() {
            self.by_repository(&address("helm.repo", repository)?, helm, access).await
        } else if chart.starts_with("oci://") {
            self.by_registry("helm.chart", chart, &helm.version, helm, access).await
        } else if chart.is_empty() {
            Err(SourceError::Options("a HelmOp names no chart: helm.repo and helm.chart are empty".into()))
        } else {
            self.by_url(&address("helm.chart", chart)?, None, helm, access).await
        }
    }

    async fn by_registry(
        &self,
        option: &str,
        text: &str,
        version: &str,
        helm: &HelmOptions,
        access: &Access,
    ) -> Result<Arc<Manifest>, SourceError> {
        // The text is not repeated: it may have a password in it.
        let reference = Reference::parse(text).ok_or_else(|| {
            SourceError::Options(format!("{option} is no chart in a registry (oci://host/path)"))
        })?;
        let mut registry = Registry::new(&self.net, access, &reference)?;
        let none = |registry: &Registry<'_>| {
            // The chart's name is the last part of its repository.
            let chart = reference.repository.rsplit('/').next().unwrap_or_default();
            no_version(registry.name(), chart, version)
        };
        let tag = match (&reference.digest, &reference.tag) {
            (Some(digest), _) => digest.clone(),
            (None, Some(tag)) if version.is_empty() || tag_of(version) == *tag => tag.clone(),
            (None, Some(tag)) => {
                let fits = self.choose(version, vec![tag.replace('_', "+")]).await?;
                fits.map(|_| tag.clone()).ok_or_else(|| none(&registry))?
            }
            (None, None) if is_exact(version) => tag_of(version),
            (None, None) => {
                let versions = registry.tags().await?.iter().map(|tag| tag.replace('_', "+")).collect();
                let chosen = self.choose(version, versions).await?;
                chosen.map(|version| tag_of(&version)).ok_or_else(|| none(&registry))?
            }
        };
        let layers = registry.layers(&tag).await?;
        let layer = layers.iter().find(|layer| CHART_LAYERS.contains(&&*layer.media_type));
        let layer = layer.ok_or_else(|| SourceError::Answer {
            url: registry.name(),
            reason: format!("{tag} is no chart: it has no layer of type {}", CHART_LAYERS[0]),
        })?;
        let url = format!("{}:{tag}", registry.name().trim_end_matches('/'));
        let fetch = async { unpack(registry.blob(layer, MAX_CHART).await?, url, helm).await };
        self.cache.get(&cache_key(&layer.digest, helm), fetch).await
    }

    async fn by_repository(
        &self,
        repository: &Url,
        helm: &HelmOptions,
        access: &Access,
    ) -> Result<Arc<Manifest>, SourceError> {
        if helm.chart.is_empty() {
            return Err(SourceError::Options(
                "helm.repo is a chart repository, but helm.chart is empty".into(),
            ));
        }
        let index = self.index(repository, access).await?;
        let entries = index.of(&helm.chart);
        let versions = entries.iter().map(|entry| entry.version.clone()).collect();
        let chosen = self.choose(&helm.version, versions).await?;
        let entry = chosen.and_then(|version| entries.iter().find(|entry| entry.version == version));
        let Some(entry) = entry else {
            return Err(no_version(plain(repository), &helm.chart, &helm.version));
        };
        let url = entry.urls.first().and_then(|url| repository::chart_url(repository, url));
        let Some(mut url) = url else {
            let reason = format!("no URLs found for chart {} {}", helm.chart, entry.version);
            return Err(SourceError::Answer { url: plain(repository), reason });
        };
        // Name and password are for the repository's server, and only for it.
        let nobody = Access { username: String::new(), password: String::new(), ..access.clone() };
        if url.scheme() == "oci" {
            let theirs = (url.host_str(), url.port()) == (repository.host_str(), repository.port());
            let access = if theirs { access } else { &nobody };
            return self.by_registry("the chart's URL", url.as_str(), &entry.version, helm, access).await;
        }
        let theirs = url.origin() == repository.origin();
        if theirs && url.username().is_empty() {
            // Fails for URLs that have no place for them.
            let _ = url.set_username(repository.username());
            let _ = url.set_password(repository.password());
        }
        let access = if theirs { access } else { &nobody };
        supported("the chart's URL", &url)?;
        self.by_url(&url, entry.digest.as_deref().filter(|digest| !digest.is_empty()), helm, access).await
    }

    /// The repository's index; read anew only if it has changed.
    async fn index(&self, repository: &Url, access: &Access) -> Result<Arc<Index>, SourceError> {
        let url = repository::index_url(repository);
        let key = Indexes::key(&url, access);
        let known = self.indexes.get(&key);
        let question = Question {
            url: url.clone(),
            authorization: net::basic(access),
            accept: "*/*",
            known: known.as_ref().map(|known| known.tag.clone()),
            limit: repository::MAX_INDEX,
        };
        let answer = self.net.ask(access, question).await?;
        if let (Some(known), StatusCode::NOT_MODIFIED) = (known, answer.status) {
            return Ok(known.index);
        }
        if !answer.status.is_success() {
            return Err(SourceError::Status { url: plain(&url), status: answer.status });
        }
        let index = Arc::new(blocking(move || Index::parse(&url, &answer.body)).await?);
        if let Some(tag) = answer.headers.get(ETAG) {
            self.indexes.keep(key, tag.clone(), &index);
        }
        Ok(index)
    }

    async fn by_url(
        &self,
        url: &Url,
        digest: Option<&str>,
        helm: &HelmOptions,
        access: &Access,
    ) -> Result<Arc<Manifest>, SourceError> {
        let fetch = async {
            let question = Question {
                url: url.clone(),
                authorization: net::basic(access),
                accept: "*/*",
                known: None,
                limit: MAX_CHART,
            };
            let bytes = self.net.get(access, question).await?;
            if let Some(digest) = digest {
                registry::check(url, &bytes, digest)?;
            }
            unpack(bytes, plain(url), helm).await
        };
        match digest {
            Some(digest) => self.cache.get(&cache_key(digest, helm), fetch).await,
            // Nobody says whether it is still the same.
            None => fetch.await.map(Arc::new),
        }
    }

    async fn choose(&self, constraint: &str, versions: Vec<String>) -> Result<Option<String>, SourceError> {
        let request = ResolveRequest { constraint: constraint.to_owned(), versions };
        self.engine
            .resolve_version(request)
            .await
            .map_err(|source| SourceError::Version { constraint: constraint.to_owned(), source })
    }
}

/// The files lie under a directory that depends on how they were asked for, which is not part of the digest.
fn cache_key(digest: &str, helm: &HelmOptions) -> String {
    let digest = digest.strip_prefix("sha256:").unwrap_or(digest);
    format!("{digest} {}", render::external_directory(helm))
}

async fn unpack(packed: Vec<u8>, url: String, helm: &HelmOptions) -> Result<Manifest, SourceError> {
    let helm = helm.clone();
    blocking(move || {
        render::chart_bundle(&packed, &helm).map_err(|source| SourceError::Archive { url, source })
    })
    .await
}

/// Work of many milliseconds.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only at the end of the runtime.
            Err(_) => Err(SourceError::Deadline(0)),
        },
    }
}

/// The text of an option as a URL. It is not repeated in the error: it may have a password in it.
fn address(option: &str, text: &str) -> Result<Url, SourceError> {
    let url =
        Url::parse(text).map_err(|error| SourceError::Options(format!("{option} is no URL: {error}")))?;
    supported(option, &url)?;
    Ok(url)
}

fn supported(option: &str, url: &Url) -> Result<(), SourceError> {
    match url.scheme() {
        "http" | "https" => Ok(()),
        other => Err(SourceError::Options(format!(
            "{option} has scheme {other:?}: charts are fetched by https, http and oci"
        ))),
    }
}

fn no_version(at: String, chart: &str, version: &str) -> SourceError {
    SourceError::NoVersion { at, chart: chart.to_owned(), version: version.to_owned() }
}

/// Helm's rule: a tag cannot have the plus of build metadata.
fn tag_of(version: &str) -> String {
    version.replace('+', "_")
}

/// Whether it is one version, not a range: three numbers, perhaps with pre-release and build metadata.
fn is_exact(version: &str) -> bool {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let numbers = core.strip_prefix('v').unwrap_or(core).split('.');
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let sign = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    numbers.clone().count() == 3 && { numbers }.all(is_number) && version.bytes().all(sign)
}
