// SPDX-License-Identifier: Apache-2.0
//! The cluster that is deployed to: release records, apply, prune, removal.
//!
//! Every write carries its precondition (create-only, or uid and resourceVersion of what was read) and passes the
//! [`fence`]: a frozen replica can never overwrite newer work. Nothing here decides *whether* to deploy.

pub mod accounts;
pub mod apply;
pub mod completion;
pub mod copies;
pub mod drift;
pub mod fence;
pub mod fleet_lease;
pub mod hooks;
pub mod kinds;
pub mod live;
pub mod lookup;
pub mod namespace;
pub mod objects;
pub mod prune;
pub mod references;
pub mod release;
pub mod removal;
pub mod restamp;
mod scaling;
pub mod server;
pub mod session;
pub mod uninstall;

#[cfg(test)]
pub(crate) mod testing;

use std::time::Duration;

use kube::Client;

use self::{
    kinds::KindCache,
    release::{Clock, Store},
    server::Server,
};

/// Everything that work on one downstream cluster under one identity needs.
#[derive(Clone)]
pub struct Downstream {
    /// Requests, as the identity of the deployment.
    pub server: Server,
    /// Requests as the agent itself: for what no account of a deployment needs rights for.
    pub agent: Server,
    /// What the server serves.
    pub kinds: KindCache,
    /// Release records.
    pub store: Store,
}

impl Downstream {
    /// A downstream cluster behind `client`. Every request waits for at most `timeout`; `clock` dates release records.
    ///
    /// The client must not retry writes by itself: an answer lost and a request repeated would look like a conflict
    /// with somebody else.
    pub fn new(client: Client, timeout: Duration, clock: Clock) -> Self {
        let server = Server::new(client, timeout);
        Self {
            kinds: KindCache::new(server.clone()),
            store: Store::new(server.clone(), clock),
            agent: server.clone(),
            server,
        }
    }

    /// The same cluster as this user sees it: objects, hooks, look-ups and release records are written as that user.
    /// What is served, the history of releases and what labels find are read by the agent itself, and watched by it.
    /// `None` when no header can hold the name.
    pub fn acting_as(&self, user: &str) -> Option<Self> {
        let server = self.server.acting_as(user)?;
        let store = self.store.written_through(server.clone());
        Some(Self { server, store, ..self.clone() })
    }
}
