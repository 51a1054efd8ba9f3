//! The wire format of messages between Mesh processes, independent of their transport.
//!
//! This crate uses no sockets, clocks, threads or Python. Its two main types are [`id::Address`],
//! which identifies one receiver, and [`frame::Frame`], which is one message on a connection.
//!
//! # Layout
//! - [`id`]: ids of hosts, processes, ports and jobs.
//! - [`region`]: subsets of the ranks of a mesh, as arrays with named dimensions.
//! - [`frame`]: the fixed head of a frame, its kinds and limits.
//! - [`codec`]: incremental decoding of bytes into frames.

pub mod codec;
pub mod frame;
pub mod id;
pub mod region;
