// SPDX-License-Identifier: Apache-2.0
//! What the downstream API server serves: a cache of its discovery.
//!
//! Filled on first use, renewed on a miss and after CRDs were applied. Each kind is one shared [`Kind`], so nothing
//! is allocated per object. Renewals are single-flight: however many tasks miss, one asks.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use kube::core::ApiResource;
use tokio::{sync::Mutex, time::Instant};

use super::server::{RequestError, Server, push_segment};
use crate::render::{Kinds, Scope, engine::Capabilities};

mod capabilities;

/// One served kind.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Group, version, kind and plural.
    pub resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Kind {
    /// The URL path of one object. `namespace` is ignored for cluster-scoped kinds.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let mut path = self.collection(namespace);
        path.push('/');
        push_segment(&mut path, name);
        path
    }

    /// The URL path of all objects in a namespace; an empty namespace means everywhere.
    pub fn collection(&self, namespace: &str) -> String {
        let root = if self.resource.group.is_empty() { "/api/" } else { "/apis/" };
        let mut path = String::with_capacity(96);
        path.push_str(root);
        path.push_str(&self.resource.api_version);
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            push_segment(&mut path, namespace);
        }
        path.push('/');
        path.push_str(&self.resource.plural);
        path
    }

    /// Whether this is the kind `kind` of `group`, in whichever version.
    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.resource.kind == kind && self.resource.group == group
    }
}

/// As Go prints a GroupVersionKind: `apps/v1, Kind=Deployment`, `/v1, Kind=ConfigMap`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ApiResource { group, version, kind, .. } = &self.resource;
        write!(f, "{group}/{version}, Kind={kind}")
    }
}

/// Why a kind could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum KindError {
    /// The API server does not serve it (now).
    #[error("no matches for kind \"{kind}\" in version \"{api_version}\"\nensure CRDs are installed first")]
    Unknown {
        /// Group and version, as in manifests.
        api_version: String,
        /// The kind.
        kind: String,
    },
    /// Discovery itself failed.
    #[error("cannot ask the API server which kinds it serves")]
    Discovery(#[source] RequestError),
}

#[derive(Default)]
struct Table {
    /// apiVersion → kind → entry: two levels, so that looking up borrows.
    kinds: HashMap<String, HashMap<String, Arc<Kind>>>,
    /// Groups of aggregated APIs that could not tell what they serve.
    silent: HashSet<String>,
    /// Group versions, and group versions with kinds, those of subresources too: what Helm calls API versions.
    api_versions: BTreeSet<String>,
}

/// The cache; clones share it.
#[derive(Clone)]
pub struct KindCache {
    inner: Arc<Inner>,
}

struct Inner {
    server: Server,
    table: RwLock<Table>,
    /// How many renewals were started.
    started: std::sync::atomic::AtomicU64,
    /// Held while renewing; the number of the last one that finished.
    finished: Mutex<u64>,
    /// What templates see, and when the question was begun that showed it.
    capabilities: Mutex<Option<(Instant, Arc<Capabilities>)>>,
}

impl KindCache {
    /// An empty cache: the first lookup asks the server.
    pub fn new(server: Server) -> Self {
        let inner = Inner {
            server,
            table: RwLock::default(),
            started: std::sync::atomic::AtomicU64::new(0),
            finished: Mutex::new(0),
            capabilities: Mutex::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What is known about a kind without asking.
    pub fn known(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let table = self.inner.table.read().unwrap_or_else(PoisonError::into_inner);
        table.kinds.get(api_version)?.get(kind).cloned()
    }

    /// The kind in whichever version is served: a stored manifest may name one that no longer is.
    pub fn known_in_any_version(&self, group: &str, kind: &str) -> Option<Arc<Kind>> {
        let table = self.inner.table.read().unwrap_or_else(PoisonError::into_inner);
        table
            .kinds
            .values()
            .find_map(|kinds| kinds.get(kind).filter(|found| found.resource.group == group))
            .cloned()
    }

    /// Every kind that is known, each in one of its versions, in a fixed order.
    pub fn all(&self) -> Vec<Arc<Kind>> {
        let table = self.inner.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = table.kinds.values().flat_map(HashMap::values).cloned().collect();
        let key = |kind: &Arc<Kind>| (kind.resource.group.clone(), kind.resource.kind.clone());
        all.sort_by_key(|kind| (key(kind), kind.resource.version.clone()));
        all.dedup_by_key(|kind| key(kind));
        all
    }

    /// Whether an unknown kind of this group means nothing: the aggregated API that serves it cannot be asked.
    pub fn is_silent(&self, group: &str) -> bool {
        self.inner.table.read().unwrap_or_else(PoisonError::into_inner).silent.contains(group)
    }

    /// The kind; asks the server once when it is not known.
    pub async fn resolve(&self, api_version: &str, kind: &str) -> Result<Arc<Kind>, KindError> {
        if let Some(known) = self.known(api_version, kind) {
            return Ok(known);
        }
        self.refresh_unless(|| self.known(api_version, kind).is_some()).await?;
        self.known(api_version, kind)
            .ok_or_else(|| KindError::Unknown { api_version: api_version.to_owned(), kind: kind.to_owned() })
    }

    /// Makes sure that [`Kinds::scope`] can answer for these kinds: asks the server once when any is not known.
    pub async fn prepare<'a>(
        &self,
        mut kinds: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), KindError> {
        if kinds.any(|(api_version, kind)| self.known(api_version, kind).is_none()) {
            self.refresh().await?;
        }
        Ok(())
    }

    /// Asks the server anew. Returns when a renewal *begun after this call* is done, ours or another task's: one
    /// begun earlier may have missed what the caller just created.
    pub async fn refresh(&self) -> Result<(), KindError> {
        self.refresh_unless(|| false).await
    }

    /// The same, unless the renewal that was under way is enough already.
    async fn refresh_unless(&self, enough: impl Fn() -> bool) -> Result<(), KindError> {
        use std::sync::atomic::Ordering::SeqCst;
        let ticket = self.inner.started.load(SeqCst);
        let mut finished = self.inner.finished.lock().await;
        if *finished > ticket || enough() {
            return Ok(());
        }
        let number = self.inner.started.fetch_add(1, SeqCst) + 1;
        let fresh = self.discover().await.map_err(KindError::Discovery)?;
        *self.inner.table.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        *finished = number;
        Ok(())
    }

    async fn discover(&self) -> Result<Table, RequestError> {
        let client = self.inner.server.client();
        let both = async {
            let core = client.list_core_api_versions_aggregated().await?;
            let groups = client.list_api_groups_aggregated().await?;
            Ok::<_, kube::Error>((core, groups))
        };
        let (core, groups) = match tokio::time::timeout(self.inner.server.timeout(), both).await {
            Ok(Ok(lists)) => lists,
            Ok(Err(kube::Error::Api(status))) => return Err(RequestError::Refused(status)),
            Ok(Err(error)) => return Err(RequestError::Transport(Box::new(error))),
            Err(_) => return Err(RequestError::Silent(self.inner.server.timeout())),
        };
        let old = self.inner.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut table = Table::default();
        for group in core.items.into_iter().chain(groups.items) {
            let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
            for served in group.versions {
                let version = served.version.unwrap_or_default();
                let api_version = if name.is_empty() { version.clone() } else { format!("{name}/{version}") };
                // An aggregated API that is down is listed as stale and empty: what it served stays known, else its
                // objects would look as if their kind had been removed.
                table.api_versions.insert(api_version.clone());
                if served.resources.is_empty() && served.freshness.as_deref() == Some("Stale") {
                    match old.kinds.get(&api_version) {
                        Some(kept) => {
                            let names = kept.keys().map(|kind| format!("{api_version}/{kind}"));
                            table.api_versions.extend(names);
                            table.kinds.insert(api_version, kept.clone());
                        }
                        None => drop(table.silent.insert(name.clone())),
                    }
                    continue;
                }
                let kinds: &mut HashMap<_, _> = table.kinds.entry(api_version.clone()).or_default();
                for resource in served.resources {
                    let subresources =
                        resource.subresources.iter().filter_map(|it| it.response_kind.as_ref());
                    let answers = resource.response_kind.iter().chain(subresources);
                    let answers = answers.filter_map(|answer| answer.kind.as_ref());
                    table.api_versions.extend(answers.map(|kind| format!("{api_version}/{kind}")));
                    let Some(plural) = resource.resource else { continue };
                    let Some(kind) = resource.response_kind.and_then(|kind| kind.kind) else { continue };
                    let namespaced = resource.scope.as_deref() == Some("Namespaced");
                    let api = ApiResource {
                        group: name.clone(),
                        version: version.clone(),
                        api_version: api_version.clone(),
                        kind: kind.clone(),
                        plural,
                    };
                    let entry = Kind { resource: api, namespaced };
                    // Two resources of one kind (a connect-only one beside the real one): the first is the real one.
                    kinds.entry(kind).or_insert_with(|| shared(&old, &api_version, entry));
                }
            }
        }
        Ok(table)
    }

    /// Puts kinds in by hand, for tests that are not about discovery.
    #[cfg(test)]
    pub(crate) fn learn(&self, api_version: &str, kind: &str, plural: &str, namespaced: bool) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let mut table = self.inner.table.write().expect("no test panics while it writes");
        let kinds = table.kinds.entry(api_version.to_owned()).or_default();
        kinds.insert(kind.to_owned(), Arc::new(Kind { resource, namespaced }));
    }
}

/// The entry that is already handed out, when nothing about it changed.
fn shared(old: &Table, api_version: &str, entry: Kind) -> Arc<Kind> {
    match old.kinds.get(api_version).and_then(|kinds| kinds.get(&entry.resource.kind)) {
        Some(known) if **known == entry => known.clone(),
        _ => Arc::new(entry),
    }
}

impl Kinds for KindCache {
    fn scope(&self, api_version: &str, kind: &str) -> Option<Scope> {
        self.known(api_version, kind).map(|kind| match kind.namespaced {
            true => Scope::Namespaced,
            false => Scope::Cluster,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downstream::testing::{Exchange, discovery, scripted};

    #[tokio::test]
    async fn a_kind_is_asked_for_once_and_then_shared() {
        let (server, script) = scripted(discovery(&[]));
        let kinds = KindCache::new(server);
        let first = kinds.resolve("apps/v1", "Deployment").await.unwrap();
        let second = kinds.resolve("apps/v1", "Deployment").await.unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(first.to_string(), "apps/v1, Kind=Deployment");
        assert_eq!(first.path("ns", "web"), "/apis/apps/v1/namespaces/ns/deployments/web");
        assert_eq!(kinds.scope("v1", "Namespace"), Some(Scope::Cluster));
        assert_eq!(kinds.resolve("v1", "Namespace").await.unwrap().path("ns", "n"), "/api/v1/namespaces/n");
        script.finished().await;
    }

    #[tokio::test]
    async fn an_unknown_kind_is_looked_for_once_more() {
        let mut exchanges = discovery(&[]);
        exchanges.extend(discovery(&[("gold.example.com", "v1", "widgets", "Widget", "Namespaced")]));
        exchanges.extend(discovery(&[]));
        let (server, script) = scripted(exchanges);
        let kinds = KindCache::new(server);
        kinds.resolve("v1", "ConfigMap").await.unwrap();
        assert!(kinds.resolve("gold.example.com/v1", "Widget").await.is_ok());
        let error = kinds.resolve("gold.example.com/v1", "Gadget").await.unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no matches for kind \"Gadget\" in version \"gold.example.com/v1\"")
        );
        script.finished().await;
    }

    #[tokio::test]
    async fn tasks_that_miss_together_ask_once() {
        let (server, script) = scripted(discovery(&[]));
        let kinds = KindCache::new(server);
        let (one, two, three) = tokio::join!(
            kinds.resolve("v1", "ConfigMap"),
            kinds.resolve("v1", "Secret"),
            kinds.resolve("apps/v1", "Deployment")
        );
        assert!(one.is_ok() && two.is_ok() && three.is_ok());
        script.finished().await;
    }

    #[tokio::test]
    async fn an_aggregated_api_that_is_down_removes_no_kind() {
        let down = |exchange: Exchange| {
            exchange.answers(serde_json::json!({"items": [{"metadata": {"name": "metrics.k8s.io"},
                "versions": [{"version": "v1", "freshness": "Stale"}]}]}))
        };
        let mut exchanges = discovery(&[("metrics.k8s.io", "v1", "pods", "PodMetrics", "Namespaced")]);
        exchanges.extend([Exchange::get("/api"), down(Exchange::get("/apis"))]);
        exchanges.extend([Exchange::get("/api"), down(Exchange::get("/apis"))]);
        let (server, script) = scripted(exchanges);
        let kinds = KindCache::new(server.clone());
        kinds.refresh().await.unwrap();
        kinds.refresh().await.unwrap();
        assert!(kinds.known("metrics.k8s.io/v1", "PodMetrics").is_some());
        let restarted = KindCache::new(server);
        restarted.refresh().await.unwrap();
        assert!(restarted.is_silent("metrics.k8s.io") && !restarted.is_silent("apps"));
        script.finished().await;
    }

    #[tokio::test]
    async fn a_refused_discovery_is_no_unknown_kind() {
        let (server, script) =
            scripted(vec![Exchange::get("/api").refuses(503, "ServiceUnavailable", "later")]);
        let error = KindCache::new(server).resolve("v1", "ConfigMap").await.unwrap_err();
        assert!(matches!(error, KindError::Discovery(_)));
        script.finished().await;
    }
}
