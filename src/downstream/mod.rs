// SPDX-License-Identifier: Apache-2.0
//! The cluster this agent deploys to.

pub mod session;
