// SPDX-License-Identifier: Apache-2.0
//! From live objects to status: readiness, lists, counts and texts, as Fleet's agent reports them.
//!
//! Everything here is pure: the object, the user's rules and the time are inputs. A live object is read once, by
//! [`observe`] or [`observe_metadata`], and only the small [`Observed`] is kept; [`evaluate`] then judges a whole
//! release from these without seeing an object again.

pub mod conditions;
pub mod drift;
mod errors;
mod evaluate;
mod kstatus;
mod observed;
mod owners;
mod subject;
mod summary;

pub use errors::{ErrorStatuses, MappingError};
pub use evaluate::{Evaluation, LIST_LIMIT, Live, evaluate, extras};
pub use observed::{
    Desired, Key, Observed, is_ready_by_existing, observe, observe_dynamic, observe_metadata, owners_of,
};
pub use owners::{Digest, Owners};

use chrono::{DateTime, Utc};

use crate::api::IgnoreOptions;

/// What readiness is judged by, besides the object.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    /// Conditions the user wants not to be looked at.
    pub ignore: &'a IgnoreOptions,
    /// Which conditions are errors, by kind.
    pub errors: &'a ErrorStatuses,
    /// The present.
    pub now: DateTime<Utc>,
}
