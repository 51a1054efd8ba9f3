//! How connections over TCP are opened and admitted, independent of what travels over them.
//!
//! A source crate: each wheel that uses it compiles a copy of its own, see the root
//! `ARCHITECTURE.md`.
//!
//! # Layout
//! - [`dial`]: connecting to the first of several addresses that accepts.

pub mod dial;
