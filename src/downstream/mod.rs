//! downstream
