//! What travels between Mesh processes, and nothing that makes it travel.
//!
//! This crate knows no sockets, no clock, no threads and no Python. The two types to know are
//! [`id::Address`], which names one receiver, and [`frame::Frame`], which is one message on a link.
//!
//! # Layout
//! - [`id`]: hosts, procs, ports, jobs.
//! - [`region`]: which ranks of a mesh, as an array with named dimensions.
//! - [`frame`]: the fixed head of a frame, its kinds and limits.
//! - [`codec`]: bytes to frames, incrementally.

pub mod codec;
pub mod frame;
pub mod id;
pub mod region;
