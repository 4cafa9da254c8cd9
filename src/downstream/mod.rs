//! downstream

pub mod live;
