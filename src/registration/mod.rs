// SPDX-License-Identifier: Apache-2.0
//! How this agent knows its management cluster: one part of the agent of its own.
//!
//! An existing registration is used as it is (`existing`); without one, or with credentials that are refused, the
//! managed flow gets one (`managed`); while the agent runs, its credentials are kept (`keeper`).

pub mod bearer;
mod existing;
mod keeper;
pub mod managed;
mod obtain;
mod settings;
pub mod unmanaged;

pub use existing::{AgentConfig, NAME as SECRET, Registration, RegistrationError, agent_config, existing};
pub use keeper::{ClusterName, Keeper};
pub use obtain::obtain;
pub use settings::{PART, Report, Settings};
