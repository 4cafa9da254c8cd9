// SPDX-License-Identifier: Apache-2.0
//! The cluster that is deployed to: release records, apply, prune, removal.
//!
//! Every write carries its precondition (create-only, or uid and resourceVersion of what was read) and passes the
//! [`fence`]: a frozen replica can never overwrite newer work. Nothing here decides *whether* to deploy.

pub mod apply;
pub mod fence;
pub mod kinds;
pub mod live;
pub mod release;
pub mod server;
pub mod session;

#[cfg(test)]
pub(crate) mod testing;
