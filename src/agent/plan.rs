// SPDX-License-Identifier: Apache-2.0
//! What a release should hold, and what of it lives.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};

use super::{
    context::Context,
    drift::{self, Known, Memory},
    inbox::Name,
};
use crate::{
    api::{self, BundleDeployment, ReleaseId},
    downstream::{
        kinds::{Kind, KindError},
        live::KindState,
        release::{Record, ReleaseError},
        server::RequestError,
    },
    monitor::{self, Evaluation, Key, Live, conditions::READY},
    render::{self, Object, RenderError},
    upstream::fields::{Fields, ObservedFields},
};

/// How long the first list of a kind may take.
const SYNC: Duration = Duration::from_secs(30);
/// Live looks at objects that seem to be missing, at once.
const LOOKS: usize = 8;

/// The objects of one revision, with their namespaces filled in.
#[derive(Debug)]
pub struct Plan {
    /// Which revision.
    pub release: ReleaseId,
    /// Its objects, in the order of its manifest.
    pub desired: Vec<Key>,
    /// The objects of the revision before it: what is still there of them was to go.
    pub previous: Vec<Key>,
    /// What is known of how its objects differ.
    pub memory: Memory,
}

/// What came of the last of many tries, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LastFailure(Arc<str>);

impl LastFailure {
    fn of(text: Arc<str>) -> Self {
        Self(if text.is_empty() { "no answer yet".into() } else { text })
    }
}

/// Why there is no plan, or no judgement.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The revision is not in the cluster.
    #[error("release record {release} is gone")]
    Gone {
        /// Which.
        release: String,
    },
    /// The text in the status names no release.
    #[error("the status names no release")]
    Name(#[source] api::ReleaseIdError),
    /// The history could not be read.
    #[error("cannot read the release")]
    History(#[source] ReleaseError),
    /// The stored manifest could not be read.
    #[error("cannot read the manifest of release {release}")]
    Manifest {
        /// Which.
        release: String,
        /// Why.
        #[source]
        source: RenderError,
    },
    /// A kind is not served.
    #[error("failed to discover client for {api_version}, Kind={kind}")]
    Kind {
        /// Of the object.
        api_version: String,
        /// Of the object.
        kind: String,
        /// Why.
        #[source]
        source: KindError,
    },
    /// A kind is served, and its objects could not be read even once.
    #[error("cannot watch {api_version} {kind} in the downstream cluster")]
    Unread {
        /// Of the objects.
        api_version: String,
        /// Of the objects.
        kind: String,
        /// The server says no, or does not know the kind any more; else it gave no answer in time.
        refused: bool,
        /// What came of the last try.
        #[source]
        source: LastFailure,
    },
    /// The watch of a kind failed for so long that nothing is known of its objects.
    #[error("cannot watch {api_version} {kind} in the downstream cluster")]
    Lost {
        /// Of the objects.
        api_version: String,
        /// Of the objects.
        kind: String,
        /// What came of the last try.
        #[source]
        source: LastFailure,
    },
    /// An object could not be looked at.
    #[error("cannot look at {object}")]
    Look {
        /// Which.
        object: String,
        /// Why.
        #[source]
        source: RequestError,
    },
}

impl PlanError {
    /// Whether the server only gave no usable answer: the next one may well be good.
    pub fn is_passing(&self) -> bool {
        let request = |error: &RequestError| {
            let refused = error.status().is_some_and(|status| matches!(status.code, 401 | 429));
            refused || error.is_unclear() && !error.is_permanent()
        };
        match self {
            Self::History(ReleaseError::Read { source, .. }) | Self::Look { source, .. } => request(source),
            Self::Kind { source: KindError::Discovery(source), .. } => request(source),
            Self::Manifest { source: RenderError::Engine(error), .. } => !error.is_permanent(),
            Self::Unread { refused, .. } => !refused,
            Self::Lost { .. } => true,
            Self::Gone { .. }
            | Self::Name(_)
            | Self::History(_)
            | Self::Manifest { .. }
            | Self::Kind { .. } => false,
        }
    }
}

impl Plan {
    /// A release without objects.
    pub fn empty(release: ReleaseId) -> Self {
        Self { release, desired: Vec::new(), previous: Vec::new(), memory: Memory::default() }
    }
}

/// Keys of rendered or stored objects. Namespaced objects without a namespace are in the release's.
pub async fn keys(ctx: &Context, objects: &[Object], namespace: &str) -> Result<Vec<Key>, PlanError> {
    let mut interned: HashSet<Arc<str>> = HashSet::new();
    let mut keys = Vec::with_capacity(objects.len());
    for object in objects {
        let kind =
            ctx.downstream.kinds.resolve(&object.api_version, &object.kind).await.map_err(|source| {
                PlanError::Kind { api_version: object.api_version.clone(), kind: object.kind.clone(), source }
            })?;
        let place = match (kind.namespaced, object.namespace.is_empty()) {
            (false, _) => "",
            (true, true) => namespace,
            (true, false) => &object.namespace,
        };
        let mut shared = |text: &str| match interned.get(text) {
            Some(known) => known.clone(),
            None => {
                let new: Arc<str> = text.into();
                interned.insert(new.clone());
                new
            }
        };
        keys.push(Key {
            api_version: shared(&object.api_version),
            kind: shared(&object.kind),
            namespace: shared(place),
            name: object.name.as_str().into(),
        });
    }
    Ok(keys)
}

/// Reads the plan of a revision from its record.
pub async fn load(ctx: &Context, name: &Name, release: &str) -> Result<Plan, PlanError> {
    let release: ReleaseId = release.parse().map_err(PlanError::Name)?;
    let store = &ctx.downstream.store;
    let before = release.revision.checked_sub(1).filter(|revision| *revision > 0);
    let before = async {
        match before {
            Some(revision) => store.revision(&ReleaseId { revision, ..release.clone() }).await,
            None => Ok(None),
        }
    };
    let (record, before) =
        futures::try_join!(store.revision(&release), before).map_err(PlanError::History)?;
    let Some(text) = record.as_ref().and_then(manifest) else {
        return Err(PlanError::Gone { release: release.to_string() });
    };
    let recorded = record.as_ref().and_then(Record::fields);
    tracing::debug!(unit = %name, release = %release, "release record read for monitoring");
    let objects = stored(ctx, &release, text).await?;
    let desired = keys(ctx, &objects, &release.namespace).await?;
    let previous = match before.as_ref().and_then(manifest) {
        Some(text) => {
            let objects = stored(ctx, &release, text).await.unwrap_or_default();
            keys(ctx, &objects, &release.namespace).await.unwrap_or_default()
        }
        None => Vec::new(),
    };
    let memory = Memory::loaded(&objects, recorded);
    Ok(Plan { release, desired, previous, memory })
}

/// The objects of a revision, read from its record; in the order of its plan.
pub async fn objects(ctx: &Context, release: &ReleaseId) -> Result<Vec<Object>, PlanError> {
    let record = ctx.downstream.store.revision(release).await.map_err(PlanError::History)?;
    match record.as_ref().and_then(manifest) {
        Some(text) => stored(ctx, release, text).await,
        None => Err(PlanError::Gone { release: release.to_string() }),
    }
}

/// The manifest of a record; `None` when it cannot be read.
fn manifest(record: &Record) -> Option<&str> {
    record.release.as_ref().ok().map(|release| release.manifest.as_str())
}

async fn stored(ctx: &Context, release: &ReleaseId, text: &str) -> Result<Vec<Object>, PlanError> {
    render::parse_manifest(&ctx.engine, text)
        .await
        .map_err(|source| PlanError::Manifest { release: release.to_string(), source })
}

/// The kind of an object of a plan.
pub async fn kind(ctx: &Context, key: &Key) -> Result<Arc<Kind>, PlanError> {
    ctx.downstream.kinds.resolve(&key.api_version, &key.kind).await.map_err(|source| PlanError::Kind {
        api_version: key.api_version.to_string(),
        kind: key.kind.to_string(),
        source,
    })
}

/// Watches the kinds of a plan and waits until each was read once. Tells of one whose watch has failed for so long that
/// nothing is known of its objects but what was written and looked at: no work fails of that.
pub async fn watch(
    ctx: &Context,
    name: &Name,
    object: &BundleDeployment,
    plan: &Plan,
) -> Result<Option<PlanError>, PlanError> {
    let hash = api::names::object_hash(&api::names::set_id(name, &ctx.scope));
    ctx.live.ignore(&hash, &object.options().ignore.clone().unwrap_or_default());
    watch_kinds(ctx, &plan.desired).await
}

/// Judges what lives of a plan, by what is known of it. Waits until every kind of it was read once.
pub async fn evaluate(
    ctx: &Context,
    name: &Name,
    object: &BundleDeployment,
    plan: &Plan,
) -> Result<Evaluation, PlanError> {
    let hash = api::names::object_hash(&api::names::set_id(name, &ctx.scope));
    watch(ctx, name, object, plan).await?;
    drift::note_jobs(ctx, object, plan);
    let options = object.options();
    let patches = options.diff.as_ref().map_or(&[][..], |diff| &diff.compare_patches);
    let missing: Vec<Key> = {
        let known = Known::of(plan, patches);
        let missing = plan.desired.iter().filter(|key| matches!(ctx.live.lookup(key, &hash), Live::Missing));
        missing.filter(|key| !known.may_miss(key)).cloned().collect()
    };
    // What seems to be missing may have lost its label: a live look tells.
    let looks = stream::iter(missing).map(|key| look(ctx, key)).buffered(LOOKS);
    let found: Vec<Result<(Key, bool), PlanError>> = looks.collect().await;
    let found: HashMap<Key, bool> = found.into_iter().collect::<Result<_, _>>()?;
    let known = Known::of(plan, patches);
    let live = |key: &Key| match ctx.live.lookup(key, &hash) {
        Live::Ours(live) => known.live(key, live),
        Live::Missing if known.may_miss(key) => Live::Gone,
        Live::Missing if found.get(key) == Some(&true) => Live::NotOurs,
        live => live,
    };
    let extra = monitor::extras(&ctx.live.by_hash(&hash), &plan.desired, &plan.previous);
    Ok(monitor::evaluate(&plan.desired, &live, &extra, ctx.clock.wall()))
}

/// See [`watch`].
async fn watch_kinds(ctx: &Context, keys: &[Key]) -> Result<Option<PlanError>, PlanError> {
    let kinds = kinds(keys);
    for (api_version, kind) in &kinds {
        let unknown =
            |source| PlanError::Kind { api_version: api_version.to_string(), kind: kind.to_string(), source };
        let resolved = ctx.downstream.kinds.resolve(api_version, kind).await.map_err(unknown)?;
        ctx.live.ensure(&resolved.resource);
    }
    let mut lost = None;
    for (api_version, kind) in kinds {
        let state = tokio::time::timeout(SYNC, ctx.live.synced(api_version, kind)).await;
        if matches!(state, Ok(KindState::Synced | KindState::Behind)) {
            continue;
        }
        let source = LastFailure::of(ctx.live.failure(api_version, kind));
        let (api_version, kind) = (api_version.to_string(), kind.to_string());
        match state {
            Ok(KindState::Lost) => {
                lost.get_or_insert(PlanError::Lost { api_version, kind, source });
            }
            _ => {
                let refused = matches!(state, Ok(KindState::Unavailable));
                return Err(PlanError::Unread { api_version, kind, refused, source });
            }
        }
    }
    Ok(lost)
}

/// The kinds of these objects, each once, in the order of the objects: of several that cannot be watched it is always
/// the same one that is told.
fn kinds(keys: &[Key]) -> Vec<(&Arc<str>, &Arc<str>)> {
    let mut known = HashSet::new();
    let kinds = keys.iter().map(|key| (&key.api_version, &key.kind));
    kinds.filter(|kind| known.insert(*kind)).collect()
}

async fn look(ctx: &Context, key: Key) -> Result<(Key, bool), PlanError> {
    let kind = kind(ctx, &key).await?;
    let found = ctx.downstream.server.metadata(&kind.path(&key.namespace, &key.name)).await;
    let found = found.map_err(|source| PlanError::Look { object: key.to_string(), source })?;
    Ok((key, found.is_some()))
}

/// The status fields of a judgement.
pub fn fields(evaluation: Evaluation, object: &BundleDeployment) -> Fields {
    let options = object.options();
    // Written even when it is 0, as Fleet's agent does.
    let sync = options.force_sync_generation;
    let ready = evaluation.message.map_or(Ok(()), Err);
    Fields {
        sync_generation: Some(sync),
        observed: Some(ObservedFields {
            ready: evaluation.ready,
            non_modified: evaluation.non_modified,
            non_ready: evaluation.non_ready,
            modified: evaluation.modified,
            incomplete: evaluation.incomplete,
            resources: evaluation.resources,
            counts: evaluation.counts,
        }),
        conditions: vec![(READY, ready)],
        ..Fields::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_kinds_that_are_away_it_is_always_the_first_that_is_told() {
        let keys: Vec<Key> = (0..40)
            .map(|number| {
                Key::new("x.example.com/v1", &format!("Kind{}", number % 20), "ns", &number.to_string())
            })
            .collect();
        for _ in 0..3 {
            let kinds: Vec<String> = kinds(&keys).iter().map(|(_, kind)| kind.to_string()).collect();
            assert_eq!(kinds, (0..20).map(|number| format!("Kind{number}")).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_kind_that_cannot_be_read_says_why() {
        let unread = |text: &str, refused| PlanError::Unread {
            api_version: "x.example.com/v1".into(),
            kind: "Widget".into(),
            refused,
            source: LastFailure::of(text.into()),
        };
        let forbidden = unread("the request failed: widgets is forbidden", true);
        assert!(!forbidden.is_passing());
        assert_eq!(
            crate::telemetry::chain(&forbidden),
            "cannot watch x.example.com/v1 Widget in the downstream cluster: the request failed: widgets is forbidden"
        );
        let slow = unread("", false);
        assert!(slow.is_passing());
        assert!(crate::telemetry::chain(&slow).ends_with(": no answer yet"));
        // Fleet's words where discovery failed.
        let (api_version, kind) = ("x.example.com/v1".to_owned(), "Widget".to_owned());
        let source = KindError::Unknown { api_version: api_version.clone(), kind: kind.clone() };
        let unknown = PlanError::Kind { api_version, kind, source };
        let told = crate::telemetry::chain(&unknown);
        assert!(told.starts_with("failed to discover client for x.example.com/v1, Kind=Widget: "), "{told}");
        assert!(!unknown.is_passing());
    }
}
