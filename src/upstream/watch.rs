// SPDX-License-Identifier: Apache-2.0
//! The watch of BundleDeployments: heals itself, and never dies of one bad object.

use std::collections::HashSet;

use futures::{Stream, StreamExt, stream};
use kube::{
    Api, Client, ResourceExt,
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};

use super::WATCH_SECONDS;
use crate::api::BundleDeployment;

/// Objects a list request asks for. Fewer than kubectl's 500: a page is in memory as a whole, three times the size of what
/// is kept of it, and the allocator gives little of it back.
const PAGE: u32 = 50;

/// What the watch tells. Objects are boxed: they are large beside the other variants.
#[derive(Debug)]
pub enum Event {
    /// The object is there, in this state.
    Seen(Box<BundleDeployment>),
    /// The same, from a list under way: no late event.
    ListItem(Box<BundleDeployment>),
    /// A DELETED event for it.
    Deleted(Box<BundleDeployment>),
    /// A full list ended; these (namespace, name) are all there are.
    Listed(HashSet<(String, String)>),
    /// It cannot be read as a BundleDeployment; others go on.
    Invalid {
        /// Namespace of the object.
        namespace: String,
        /// Name of the object.
        name: String,
        /// What is wrong with it.
        error: String,
    },
    /// The watch failed and is opened anew after a wait.
    Failed(watcher::Error),
}

/// Watches the BundleDeployments of a namespace, or all, with back-off and a short idle limit.
pub fn watch(client: Client, namespace: Option<&str>) -> impl Stream<Item = Event> + Send + use<> {
    watch_in_pages(client, namespace, PAGE)
}

/// The same, listing so many objects at a time: what a page holds is in memory at once.
pub fn watch_in_pages(
    client: Client,
    namespace: Option<&str>,
    page: u32,
) -> impl Stream<Item = Event> + Send + use<> {
    let guarded: Api<DeserializeGuard<BundleDeployment>> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(page);
    let mut listing = HashSet::new();
    watcher(guarded, config)
        .default_backoff()
        .map(move |event| translate(event, &mut listing))
        .flat_map(stream::iter)
}

fn translate(
    event: Result<watcher::Event<DeserializeGuard<BundleDeployment>>, watcher::Error>,
    listing: &mut HashSet<(String, String)>,
) -> Option<Event> {
    match event {
        Ok(watcher::Event::Init) => {
            listing.clear();
            None
        }
        Ok(watcher::Event::InitApply(object)) => {
            listing.insert((object.namespace().unwrap_or_default(), object.name_any()));
            Some(seen(object, Event::ListItem))
        }
        Ok(watcher::Event::InitDone) => Some(Event::Listed(std::mem::take(listing))),
        Ok(watcher::Event::Apply(object)) => Some(seen(object, Event::Seen)),
        Ok(watcher::Event::Delete(object)) => match object.0 {
            Ok(bd) => Some(Event::Deleted(Box::new(bd))),
            Err(invalid) => Some(Event::Deleted(Box::new(BundleDeployment {
                metadata: invalid.metadata,
                ..BundleDeployment::default()
            }))),
        },
        Err(error) => Some(Event::Failed(error)),
    }
}

fn seen(object: DeserializeGuard<BundleDeployment>, how: fn(Box<BundleDeployment>) -> Event) -> Event {
    match object.0 {
        Ok(bd) => how(Box::new(bd)),
        Err(invalid) => Event::Invalid {
            namespace: invalid.metadata.namespace.unwrap_or_default(),
            name: invalid.metadata.name.unwrap_or_default(),
            error: invalid.error,
        },
    }
}
