//! The runtime of a Mesh process.
//!
//! # Layout
//! Pure state machines, driven by both the engine and the simulator:
//! - [`node`]: one process: peers, ports, calls; built from [`session`] (sequence numbers and
//!   retransmission), [`mailbox`] (queues and credit), [`fault`] (fault codes)
//! - [`cast`]: the tree along which a cast is forwarded, and the aggregation of its replies
//! - [`events`]: events for subscribers
//! - [`origin`]: the origin of a message, which is part of its meta
//! - [`supervise`]: propagation of failures, restarts, and the order of stopping
//!
//! The edge, which accesses time, memory and sockets:
//! - [`engine`]: one running process: epoll, sockets, waiting threads
//! - [`record_log`]: the messages that actors receive, in files that outlive the process
//! - [`segment`]: large payloads in memory that the processes of a host share

pub mod cast;
pub mod engine;
pub mod events;
pub mod fault;
pub mod hash;
pub mod mailbox;
pub mod node;
pub mod origin;
pub mod record_log;
pub mod segment;
pub mod session;
pub mod supervise;
