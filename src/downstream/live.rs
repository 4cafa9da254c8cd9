// SPDX-License-Identifier: Apache-2.0
//! The live objects of all units, kept current by one shared watch per kind in use.
//!
//! Watches select the hash label over all namespaces, and read metadata only where that tells everything; of a full
//! object nothing is kept but [`Observed`]. A watch that breaks, goes silent or is too old heals by itself; a kind
//! that is not served is marked so and tried again, and the others do not notice.
//!
//! Objects that lost the label are not here: whether a missing one exists after all needs a live read.

mod changes;
mod table;
mod watch;

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use chrono::{DateTime, Utc};
use kube::{
    Api, Client,
    api::PartialObjectMeta,
    core::{ApiResource, DynamicObject},
};
use tokio::{
    sync::{Notify, watch as channel},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use changes::Changes;
use changes::Readers;
pub use table::Kind as WatchedKind;
use table::{Changed, Kind, Table};
use watch::{Follower, Timing};

use crate::{
    api::IgnoreOptions,
    monitor::{ErrorStatuses, Judge, Key, Live, Observed, is_ready_by_existing},
};

/// A kind that nobody has asked for and no unit has is watched for so long all the same: longer than a deployment waits
/// between two looks, and than duties need to move from one replica to another and back.
const UNUSED: Duration = Duration::from_secs(10 * 60);

/// Where the time comes from.
pub type Clock = fn() -> DateTime<Utc>;

/// How far the watch of a kind is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindState {
    /// Being read for the first time; what is known is incomplete.
    Listing,
    /// Complete and followed.
    Synced,
    /// Was complete, but the connection is lost; what is known may be old.
    Behind,
    /// The same for so long that what is known says nothing about now.
    Lost,
    /// Not served, or not to us: the kind is unknown to the server, or forbidden.
    Unavailable,
}

/// The live objects of all units. Clones share everything; the watches end with the last one.
#[derive(Clone)]
pub struct LiveStore {
    client: Client,
    shared: Arc<Shared>,
    watches: Arc<Mutex<HashMap<Kind, Watched>>>,
    timing: Timing,
}

struct Watched {
    state: Arc<channel::Sender<KindState>>,
    failure: Failure,
    relist: Arc<Notify>,
    /// When it was last asked for.
    asked: Instant,
    _end: DropGuard,
}

/// Why the watch of a kind failed last, in one line.
type Failure = Arc<Mutex<Arc<str>>>;

/// What watches and readers share.
struct Shared {
    table: Mutex<Table>,
    readers: Readers<Arc<str>>,
    /// Those of kinds that can no longer be watched, or can again.
    kinds: Readers<Kind>,
    ignored: RwLock<HashMap<Arc<str>, Arc<IgnoreOptions>>>,
    errors: Arc<ErrorStatuses>,
    now: Clock,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table and tells the readers which units to look at.
    fn change(&self, change: impl FnOnce(&mut Table, &mut Changed)) {
        let mut changed = Changed::new();
        change(&mut self.table(), &mut changed);
        self.readers.tell(&changed);
    }

    fn judged<T>(&self, hash: &str, judge: impl FnOnce(&Judge<'_>) -> T) -> T {
        let ignored = self.ignored.read().unwrap_or_else(PoisonError::into_inner).get(hash).cloned();
        let none = IgnoreOptions::default();
        let ignore = ignored.as_deref().unwrap_or(&none);
        judge(&Judge { ignore, errors: &self.errors, now: (self.now)() })
    }
}

impl LiveStore {
    /// An empty store; kinds are added by [`ensure`](Self::ensure).
    pub fn new(client: Client, errors: Arc<ErrorStatuses>, now: Clock) -> Self {
        Self::with_timing(client, errors, now, Timing::default())
    }

    fn with_timing(client: Client, errors: Arc<ErrorStatuses>, now: Clock, timing: Timing) -> Self {
        let shared = Shared {
            table: Mutex::default(),
            readers: Readers::default(),
            kinds: Readers::default(),
            ignored: RwLock::default(),
            errors,
            now,
        };
        Self { client, shared: Arc::new(shared), watches: Arc::default(), timing }
    }

    /// Watches a kind from now on, if that is not done yet. Must be called within a tokio runtime.
    pub fn ensure(&self, resource: &ApiResource) {
        let kind = Kind::new(&resource.api_version, &resource.kind);
        let mut watches = self.watches();
        if let Some(watched) = watches.get_mut(&kind) {
            watched.asked = Instant::now();
            return;
        }
        self.shared.table().open(&kind);
        let end = CancellationToken::new();
        let state = Arc::new(channel::Sender::new(KindState::Listing));
        let relist = Arc::new(Notify::new());
        let failure = Failure::new(Mutex::new("".into()));
        let follower =
            self.follow(&kind, resource, Arc::clone(&state), Arc::clone(&failure), Arc::clone(&relist));
        let ended = end.clone().cancelled_owned();
        tokio::spawn(async move {
            tokio::select! { () = ended => {} () = follower => {} }
        });
        let asked = Instant::now();
        watches.insert(kind, Watched { state, failure, relist, asked, _end: end.drop_guard() });
    }

    fn follow(
        &self,
        kind: &Kind,
        resource: &ApiResource,
        state: Arc<channel::Sender<KindState>>,
        failure: Failure,
        relist: Arc<Notify>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (client, kind, shared) = (self.client.clone(), kind.clone(), Arc::clone(&self.shared));
        let timing = self.timing;
        if is_ready_by_existing(&resource.api_version, &resource.kind) {
            let api = Api::<PartialObjectMeta<DynamicObject>>::all_with(client, resource);
            Box::pin(Follower { api, kind, shared, state, failure, relist, timing }.run())
        } else {
            let api = Api::<DynamicObject>::all_with(client, resource);
            Box::pin(Follower { api, kind, shared, state, failure, relist, timing }.run())
        }
    }

    /// Ends the watches of kinds that are not among these and that nobody has asked for lately, and forgets their objects.
    /// Returns which.
    pub fn forget_unused(&self, used: &HashSet<Kind>) -> Vec<Kind> {
        let mut watches = self.watches();
        let unused = |(kind, watched): (&Kind, &Watched)| {
            (!used.contains(kind) && watched.asked.elapsed() >= UNUSED).then(|| kind.clone())
        };
        let unused: Vec<Kind> = watches.iter().filter_map(unused).collect();
        for kind in &unused {
            // Under the lock: whoever asks for it now opens it anew afterwards.
            watches.remove(kind);
            self.shared.table().close(kind);
        }
        unused
    }

    /// How far a kind is, or `None` if it is not watched.
    pub fn state(&self, api_version: &str, kind: &str) -> Option<KindState> {
        self.watches().get(&Kind::new(api_version, kind)).map(|watched| *watched.state.borrow())
    }

    /// Why the watch of a kind failed last; empty if it never did.
    pub fn failure(&self, api_version: &str, kind: &str) -> Arc<str> {
        let watches = self.watches();
        let failure = watches.get(&Kind::new(api_version, kind)).map(|watched| &watched.failure);
        failure.map_or_else(
            || "".into(),
            |failure| failure.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        )
    }

    /// Waits until a kind has been read, or cannot be. A kind that is not watched counts as unavailable.
    pub async fn synced(&self, api_version: &str, kind: &str) -> KindState {
        let state =
            self.watches().get(&Kind::new(api_version, kind)).map(|watched| watched.state.subscribe());
        let Some(mut state) = state else { return KindState::Unavailable };
        let known = state.wait_for(|state| *state != KindState::Listing).await;
        known.map_or(KindState::Unavailable, |state| *state)
    }

    /// The object, if it is there and carries anybody's hash label.
    pub fn get(&self, key: &Key) -> Option<Arc<Observed>> {
        self.shared.table().get(key)
    }

    /// The object as the evaluation of the unit with that hash wants it. [`Live::Missing`] may be an object that lost
    /// its label; a live read tells.
    pub fn lookup(&self, key: &Key, hash: &str) -> Live {
        match self.get(key) {
            Some(object) if object.hash.as_deref() == Some(hash) => Live::Ours(object),
            Some(_) => Live::NotOurs,
            None => Live::Missing,
        }
    }

    /// Whether it is a Job that is gone, and was seen to have ended before.
    pub fn has_ended(&self, key: &Key) -> bool {
        self.shared.table().has_ended(key)
    }

    /// All objects with that hash label, in no order.
    pub fn by_hash(&self, hash: &str) -> Vec<Arc<Observed>> {
        self.shared.table().by_hash(hash)
    }

    /// Takes over what the answer to an own write shows, unless something newer is known. Tells nobody, since
    /// the writer knows already, but the unit that the object was taken from.
    pub fn upsert(&self, observed: Observed) {
        let lost = self.shared.table().upsert(observed);
        if let Some(hash) = lost {
            self.shared.readers.tell(&[hash]);
        }
    }

    /// Drops an object that an own delete removed for good (not one that its finalizers still hold).
    pub fn removed(&self, key: &Key, uid: &str) {
        self.shared.table().removed(key, uid);
    }

    /// Which units changed, from now on.
    pub fn subscribe(&self) -> Changes {
        self.shared.readers.add()
    }

    /// Which kinds can be watched no longer, or can again, from now on. No object of theirs need have changed, and there
    /// may be none.
    pub fn subscribe_to_kinds(&self) -> Changes<Kind> {
        self.shared.kinds.add()
    }

    /// Sets which conditions are not looked at in the objects of a unit. Objects read under other rules are read again.
    pub fn ignore(&self, hash: &str, options: &IgnoreOptions) {
        let mut ignored = self.shared.ignored.write().unwrap_or_else(PoisonError::into_inner);
        if ignored.get(hash).map_or(&IgnoreOptions::default(), |known| known) == options {
            return;
        }
        if *options == IgnoreOptions::default() {
            ignored.remove(hash);
        } else {
            ignored.insert(hash.into(), Arc::new(options.clone()));
        }
        drop(ignored);
        let kinds = self.shared.table().kinds_of(hash);
        for (_, watched) in self.watches().iter().filter(|(kind, _)| kinds.contains(kind)) {
            watched.relist.notify_one();
        }
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<Kind, Watched>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
