// SPDX-License-Identifier: Apache-2.0
//! How this agent knows its management cluster: an existing registration is used as it is.

mod existing;

pub use existing::{AgentConfig, Registration, RegistrationError, agent_config, existing};
