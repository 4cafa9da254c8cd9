// SPDX-License-Identifier: Apache-2.0
//! The claim protocol, pure: no tokio, no kube, no clock, no randomness. Time, entropy and identity are inputs.
//!
//! The agent executes the effects that come out of here; the model checker and the property tests drive the very
//! same functions.
//!
//! Invariants named in comments and tests:
//! S1 once an object carries an epoch, no write of an older epoch changes it · S3 one claim at a time per uid,
//! epochs rise · S4 while a claim is open only its holder writes status · S5 attempts never fall without success
//! or a change of the spec · S6 a quarantined unit is not claimed before its time, and then works alone, as does one
//! whose next loss may be quarantine · S8 expiry never hits a session that renewed within TTL · S9 ambiguous answers
//! lead neither to two live claims nor to a lost one · S10 what is paused, off schedule or blocked is never claimed ·
//! L1 what is actionable is claimed eventually · L2 the dead and the stuck are taken over · L3 units that kill their
//! replicas do not stop the others · L5 conflict retries end.

mod answers;
pub mod backoff;
mod claim;
mod decide;
mod ids;
pub mod reaper;
mod removal;
mod run;
mod sessions;
mod snapshot;
mod step;
#[cfg(test)]
mod tests;
mod unit;
mod words;

pub use claim::*;
pub use ids::*;
pub use removal::Mass;
pub use sessions::*;
pub use snapshot::*;
pub use step::step;
pub use unit::*;
pub use words::*;
