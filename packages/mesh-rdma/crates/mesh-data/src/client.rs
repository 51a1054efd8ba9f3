//! The client side, which uses memory of other processes: connections to owners, and leases.

pub mod link;

pub(crate) mod happy_eyeballs;
pub(crate) mod leases;
pub(crate) mod peer_monitor;
pub(crate) mod retries;
pub(crate) mod streams;
pub(crate) mod unreachable_peers;
