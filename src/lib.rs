// SPDX-License-Identifier: Apache-2.0
//! Flotilla: a drop-in replacement for Rancher Fleet's downstream agent in which every replica works and none leads.
//!
//! The modules below are the rooms of the house, from the edge to the core. Arrows point down only
//! (`tests/architecture.rs` enforces it): a module may use the ones below it, never one above.

pub mod cli;

pub mod agent;
pub mod controller;
pub mod registration;

pub mod upstream;

pub mod downstream;
pub mod monitor;
pub mod render;

pub mod protocol;
pub mod telemetry;

pub mod api;
