//! The connection between two processes: frames over sockets.

pub mod frame;
pub mod peer_descriptor;

pub(crate) mod blocking_io;
pub(crate) mod close_on_fork;
pub(crate) mod socket;
pub(crate) mod spin_wait;
