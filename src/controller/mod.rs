// SPDX-License-Identifier: Apache-2.0
//! The companion.

pub mod args;
