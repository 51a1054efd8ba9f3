//! What runs in a Mesh process.
//!
//! # Layout
//! Pure state machines, driven alike by the engine and by the simulator:
//! - [`node`]: one process: peers, ports, calls; built from
//!   [`session`] (numbering and replay), [`mailbox`] (queues and credit), [`fault`] (codes);
//! - [`cast`]: the tree that a cast goes down, and the merging of its answers;
//! - [`events`]: what happens, for whoever subscribes;
//! - [`origin`]: where a message comes from, as its meta says;
//! - [`supervise`]: who hears of a failure, what is restarted, what stops with what.
//!
//! The edge, where time, memory and sockets are:
//! - [`engine`]: one process for real: epoll, unix sockets, waiting threads;
//! - [`segment`]: large payloads in memory that the processes of a host share.

pub mod cast;
pub mod engine;
pub mod events;
pub mod fault;
pub mod hash;
pub mod mailbox;
pub mod node;
pub mod origin;
pub mod segment;
pub mod session;
pub mod supervise;
