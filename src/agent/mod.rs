// SPDX-License-Identifier: Apache-2.0
//! The replica.

pub mod args;
