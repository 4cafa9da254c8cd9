// SPDX-License-Identifier: Apache-2.0
//! Types of `fleet.cattle.io/v1alpha1`, and the ids, names and hashes Fleet derives from them.
//!
//! Everything here is data: no I/O, no clock. Unknown fields survive a round trip, so that an agent older than
//! the CRDs loses nothing it does not understand.

mod bundle;
mod bundledeployment;
mod cluster;
mod content;
pub mod crds;
pub mod duration;
mod gojson;
mod ids;
pub mod keys;
pub mod manifest;
pub mod names;
mod optional;
mod options;
pub mod selector;
pub mod state;
mod summary;
mod target;

pub use bundle::*;
pub use bundledeployment::*;
pub use cluster::*;
pub use content::*;
pub use ids::*;
pub use options::*;
pub use summary::*;
pub use target::*;

pub(crate) use bundledeployment::{is_zero, null_default};

/// Fields this version does not know; kept so that writing an object back drops nothing.
pub type Unknown = std::collections::BTreeMap<String, serde_json::Value>;

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
