//! Opening and admission of TCP connections, independent of the data that they carry.
//!
//! A source crate: each wheel that uses it compiles a separate copy, see the root
//! `ARCHITECTURE.md`.
//!
//! # Layout
//! - [`dial`]: connecting to the first of several addresses that accepts.

pub mod dial;
