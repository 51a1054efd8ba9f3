//! What runs in a Mesh process.
//!
//! # Layout
//! Pure state machines, driven alike by the engine and by the simulator:
//! - [`node`]: one process: peers, ports, calls; built from
//!   [`session`] (numbering and replay), [`mailbox`] (queues and credit), [`fault`] (codes).
//!
//! The edge, where time and sockets are:
//! - [`engine`]: one process for real: epoll, unix sockets, waiting threads.

pub mod engine;
pub mod fault;
pub mod hash;
pub mod mailbox;
pub mod node;
pub mod session;
