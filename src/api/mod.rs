// SPDX-License-Identifier: Apache-2.0
//! Types of `fleet.cattle.io/v1alpha1`, and the ids, names and hashes Fleet derives from them.
//!
//! Everything here is data: no I/O, no clock. Unknown fields survive a round trip, so that an agent older than
//! the CRDs loses nothing it does not understand.

mod bundledeployment;
mod content;
pub mod keys;
mod options;

pub use bundledeployment::*;
pub use content::*;
pub use options::*;

/// Fields this version does not know; kept so that writing an object back drops nothing.
pub type Unknown = std::collections::BTreeMap<String, serde_json::Value>;
